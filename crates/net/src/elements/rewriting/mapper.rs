//! RoundRobinIPMapper: makes rewriters use several patterns in turn.
//!
//! `RoundRobinIPMapper(PATTERN1, ..., PATTERNn)`: no ports. A rewriter with this element's name as the specification of an
//! input asks it about each new flow. Each argument is `SADDR SPORT DADDR DPORT FOUTPUT ROUTPUT` or `NAME FOUTPUT ROUTPUT`,
//! as after `pattern` in a rewriter's argument. Each flow takes the next pattern, or the first one from there that has
//! something left to choose. In the place of another router, one with the same patterns goes on with the next.

use crate::Log;
use crate::args::{Args, Failed};
use crate::element::{Element, downcast};
use crate::headers::FlowId;
use crate::lang::config::split_words;
use crate::rewrite::{FlowSet, MapId, Variable};
use crate::router::Cx;

use super::patterns::Which;
use super::spec;

/// The element.
#[derive(Default)]
pub(super) struct RoundRobinIpMapper {
    patterns: Vec<(Which, [u16; 2])>,
    next: usize,
}

/// What becomes of a flow: its addresses and ports, what was chosen from a range, and the outputs.
pub(super) type Mapped = (FlowId, Option<Variable>, [u16; 2]);

impl RoundRobinIpMapper {
    /// The first pattern that names an output which a rewriter with so many hasn't got.
    pub(super) fn out_of_range(&self, outputs: usize) -> Option<usize> {
        self.patterns.iter().position(|(_, ports)| ports.iter().any(|&port| usize::from(port) >= outputs))
    }

    /// Its patterns in words.
    pub(super) fn told(&self) -> String {
        let words =
            self.patterns.iter().map(|(which, [forward, reply])| format!("{} {forward} {reply}, ", which.told()));
        words.collect()
    }

    /// What becomes of a flow.
    pub(super) fn map(
        &mut self,
        flow: FlowId,
        ping: bool,
        flows: &mut FlowSet,
        map: MapId,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Option<Mapped> {
        for _ in 0..self.patterns.len() {
            let (which, outputs) = &self.patterns[self.next];
            self.next = (self.next + 1) % self.patterns.len();
            let mapped = which.get().and_then(|pattern| pattern.rewrite(flow, ping, flows, map, random));
            if let Some((rewritten, variable)) = mapped {
                return Some((rewritten, variable, *outputs));
            }
        }
        None
    }
}

impl Element for RoundRobinIpMapper {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let texts = args.rest();
        match texts.len() {
            0 => return Err(args.error("no patterns given")),
            1 => args.warning("only one pattern given"),
            _ => {}
        }
        for text in texts {
            let words = split_words(&text);
            match spec::pattern(&words.iter().map(String::as_str).collect::<Vec<_>>(), args.cx()) {
                Ok((which, (forward, reply))) => {
                    let port = |port: usize| u16::try_from(port).unwrap_or(u16::MAX);
                    self.patterns.push((which, [port(forward), port(reply)]));
                }
                Err(error) => _ = args.error(error),
            }
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        for (which, _) in &mut self.patterns {
            which.resolve(cx);
        }
        Ok(())
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let Some(old) = downcast::<Self>(old).filter(|old| old.told() == self.told()) else { return };
        self.next = old.next;
        self.patterns.iter().zip(&old.patterns).for_each(|((own, _), (old, _))| own.go_on(old));
    }
}
