//! Packets that fail a check: counted, by reason if wanted, and told of.

use crate::args::Args;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, element::Element};
use std::fmt::Write as _;

/// Why packets fail an element's check.
pub(super) struct Reasons<const N: usize> {
    texts: [&'static str; N],
    drops: u64,
    counts: [u64; N],
    is_verbose: bool,
    has_details: bool,
}

impl<const N: usize> Reasons<N> {
    /// None failed yet.
    pub(super) fn new(texts: [&'static str; N]) -> Self {
        Self { texts, drops: 0, counts: [0; N], is_verbose: false, has_details: false }
    }

    /// VERBOSE and DETAILS.
    pub(super) fn configure(&mut self, args: &mut Args<'_>) {
        args.key("VERBOSE", &mut self.is_verbose).key("DETAILS", &mut self.has_details);
    }

    /// A packet has failed. `prefix` begins the line that says so.
    #[cold]
    pub(super) fn count(&mut self, cx: &Cx<'_>, prefix: &str, reason: usize) {
        if self.drops == 0 || self.is_verbose {
            cx.say(format_args!("{prefix} header check failed: {}", self.texts[reason]));
        }
        self.drops += 1;
        self.counts[reason] += 1;
    }

    fn details(&self) -> String {
        let mut details = String::new();
        for (count, text) in self.counts.iter().zip(self.texts) {
            let _ = writeln!(details, "{count}\t{text}");
        }
        details
    }

    /// `drops`, and `drop_details` if DETAILS is true.
    pub(super) fn handlers<E: Element>(&self, handlers: &mut Handlers, of: fn(&mut E) -> &mut Self) {
        handlers.read("drops", move |element: &mut E, _| of(element).drops);
        if self.has_details {
            handlers.read("drop_details", move |element: &mut E, _| of(element).details());
        }
    }
}

/// For a loop over a batch, which keeps a packet by reference: the packet goes to an output if there is such an output.
#[cold]
pub(super) fn divert(cx: &mut Cx<'_>, port: usize, packet: &Packet) {
    if port < cx.outputs() {
        cx.emit(port, packet.clone());
    }
}
