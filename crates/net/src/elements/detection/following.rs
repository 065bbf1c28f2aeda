//! Flows that are followed, so that literals are found across packets: the arguments and handlers of who does that.

use super::rule_files::RuleFile;
use crate::args::{Args, Failed};
use crate::handler::Handlers;
use crate::streams::{Counts, Following};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most flows.
const FLOWS_MAX: usize = 1 << 20;
/// The most bytes of each.
const TAIL_MAX: usize = 4096;

/// STREAM, FLOWS and TAIL.
#[derive(Debug, Clone)]
pub(crate) struct Streamed {
    is_on: bool,
    flows: usize,
    tail: usize,
    counts: Arc<Counts>,
}

impl Default for Streamed {
    fn default() -> Self {
        Self { is_on: false, flows: 1 << 16, tail: 256, counts: Arc::default() }
    }
}

impl Streamed {
    /// The keywords STREAM, FLOWS and TAIL.
    pub(crate) fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.key("STREAM", &mut self.is_on).key("FLOWS", &mut self.flows).key("TAIL", &mut self.tail);
        for (name, value, most) in [("FLOWS", self.flows, FLOWS_MAX), ("TAIL", self.tail, TAIL_MAX)] {
            if !(1..=most).contains(&value) {
                return Err(args.error_of(name, format_args!("must be between 1 and {most}")));
            }
        }
        Ok(())
    }

    /// How flows are followed for the literals of these rules, if they are.
    pub(crate) fn following(&self, file: &RuleFile) -> Option<Following> {
        let (flows, tail, counts) = (self.flows, self.tail, Arc::clone(&self.counts));
        self.is_on.then(|| Following { flows, tail, longest: Arc::clone(&file.longest), counts })
    }

    /// Handlers: `flows`, `strays`.
    pub(crate) fn handlers(&self, handlers: &mut Handlers) {
        let [flows, strays] = [Arc::clone(&self.counts), Arc::clone(&self.counts)];
        handlers.free_read("flows", move |_, _| Ok(flows.flows.load(Ordering::Relaxed).to_string()));
        handlers.free_read("strays", move |_, _| Ok(strays.strays.load(Ordering::Relaxed).to_string()));
    }
}
