//! IPsecESPUnencap: verifies and decrypts ESP packets with AES-GCM (RFC 4303, RFC 4106).
//!
//! `IPsecESPUnencap(SPI, KEY [, keywords KEYFILE, MODE, ESN, WINDOW])`: agnostic; output 1, where there is one, pushes packets that are
//! refused (as they are); they are dropped otherwise: those that are no ESP of the SPI, fragments, those that were seen or are too
//! old, those whose tag is wrong, and those without a packet inside.
//!
//! A packet becomes what was encrypted in it, with its IP header known and its destination address annotation set. Packets have a
//! known IP header, which lies in their data; what is before it stays there.
//!
//! - SPI, KEY, KEYFILE, MODE, ESN: as IPsecESPEncap's.
//! - WINDOW: how far behind the highest sequence number one may be, 1 to 65536 (64). One that was seen is refused again.
//!
//! Handlers: `count` (packets that were decrypted), `drops` (those that were refused), `drop_details` (by reason), `number` (the highest
//! sequence number that came). A hot-swap goes on with what an element of the same name, SPI and key has seen.

use super::receiver::Receiver;
use super::refusals::Counts;
use crate::args::{Args, Failed};
use crate::element::{Element, downcast};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Log, Packet};
use std::sync::Arc;

/// The element.
#[derive(Default)]
pub(super) struct Unencap {
    receiver: Option<Receiver>,
    counts: Arc<Counts>,
}

impl Element for Unencap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.receiver = Some(Receiver::of(args)?);
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let outcome = self.receiver.as_ref()?.open(&mut packet, None).map(drop);
        self.counts.count(outcome);
        if outcome.is_err() {
            cx.emit_checked(1, packet);
            return None;
        }
        Some(packet)
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let old = downcast::<Self>(old).and_then(|old| old.receiver.as_ref());
        if let (Some(receiver), Some(old)) = (&self.receiver, old) {
            receiver.inherit(old);
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let counts = Arc::clone(&self.counts);
        Counts::handlers(handlers, move || Arc::clone(&counts));
        handlers.read("number", |unencap: &mut Self, _| unencap.receiver.as_ref().map_or(0, Receiver::top));
    }
}
