//! What other threads ask of a router that runs.

use super::core::Router;
use super::cx::Cx;
use super::thread::Mail;
use crate::lang::{Connection, ElementDecl, Graph};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How often who waits for an answer looks whether the router has stopped.
const LOOK: Duration = Duration::from_millis(20);

impl Router {
    /// The graph that runs, with the configurations as they were last written.
    pub fn graph(&self) -> Graph {
        let elements = (0..self.len()).map(|element| ElementDecl {
            name: self.name(element).to_owned(),
            class: self.class_of(element).name.to_owned(),
            config: self.config(element),
            landmark: self.landmark(element).clone(),
        });
        let connections = self.wiring.connections().map(|((from, from_port), (to, to_port))| Connection {
            from,
            from_port: from_port as u32,
            to,
            to_port: to_port as u32,
            landmark: crate::Landmark::default(),
        });
        Graph {
            elements: elements.collect(),
            connections: connections.collect(),
            requirements: self.requirements.clone(),
            ..Graph::default()
        }
    }

    /// Has the router's first thread do something between batches, as if its first element did it, and waits for the result.
    /// Nothing where the router does not run, or has not come to it after `patience`.
    pub fn ask<R: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&mut Cx<'_>) -> R + Send + 'static,
    ) -> Option<R> {
        if self.is_empty() || self.is_stopping() {
            return None;
        }
        let (answer, question) = sync_channel(1);
        self.asked.lock().expect("no panic in it").push(Box::new(move |router, thread| {
            let _ = answer.send(thread.root(router, 0, work));
        }));
        self.mailboxes[0].post(Mail::Asked);
        let end = Instant::now() + patience;
        loop {
            match question.recv_timeout(LOOK.min(end.saturating_duration_since(Instant::now()))) {
                Ok(result) => return Some(result),
                Err(RecvTimeoutError::Timeout) if !self.is_stopping() && Instant::now() < end => {}
                Err(_) => return None,
            }
        }
    }
}
