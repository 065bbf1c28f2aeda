//! Another router in the place of one that runs.
//!
//! Whoever writes the handler `hotconfig` has a router made of a text; packets wait for as long as that takes. Is anything
//! wrong with it, nothing has happened. Else the old one stops after the batch that is on its way, elements take what those
//! of the same name have ([`Element::take_state`](crate::element::Element::take_state)), and the new one runs on.

use super::core::Router;
use super::cx::Cx;
use super::run::Running;
use crate::Log;
use std::fmt;
use std::sync::Arc;

type Make = dyn Fn(&Router, &str, &mut Log) -> Option<Running> + Send + Sync;

/// Makes a router of a text, for the place of one that runs.
#[derive(Clone)]
pub struct Rebuild(Arc<Make>);

impl Rebuild {
    /// By a function of the router that runs, and of the text. What is wrong goes to the log.
    pub fn new(make: impl Fn(&Router, &str, &mut Log) -> Option<Running> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Makes one, which takes its place after the batch that is on its way.
    pub(super) fn write(&self, cx: &mut Cx<'_>, text: &str) -> Result<(), String> {
        let mut log = Log::new();
        let next = (self.0)(cx.router(), text, &mut log);
        let told = log.to_string();
        match next {
            Some(next) => {
                told.lines().for_each(|line| cx.say(line));
                cx.router().replace(Box::new(next));
                Ok(())
            }
            None => Err(told.trim_end().to_owned()),
        }
    }
}

impl fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rebuild")
    }
}
