//! IPsecESPEncap: encrypts and authenticates packets by ESP with AES-GCM (RFC 4303, RFC 4106).
//!
//! `IPsecESPEncap(SPI, KEY [, keywords KEYFILE, MODE, SRC, DST, TTL, ESN, NUMBER, IV])`: agnostic; output 1, where there is one, pushes
//! packets that are refused (as they are); they are dropped otherwise. Packets have a known IP header, which lies in their data;
//! what is before it stays there. What follows the length that it says is taken off.
//!
//! - SPI: the security parameters index, 256 or more.
//! - KEY: hexadecimal digits of the key (16, 24 or 32 bytes) and its salt of 4 bytes, as in `ip xfrm`. KEYFILE: a file that has them: who
//!   can read the configuration reads a KEY there. A key has one sender, and no two runs of it with the same IV.
//! - MODE: tunnel (by default) encrypts whole packets, and puts a new IP header before them; transport what follows the IP header, of
//!   packets that are no fragments.
//! - SRC, DST, TTL: of the new IP header, in tunnel mode: addresses, and its time to live (64). The destination address annotation
//!   is set to DST. Type of service and "don't fragment" are those of the packet inside.
//! - ESN: true for sequence numbers of 64 bits, whose lower half travels. False by default.
//! - NUMBER: the first sequence number (1). Each packet that comes has the next one, also one that is refused. After the last one, all
//!   are refused.
//! - IV: 64 bits: a packet's IV is its sequence number, exclusive or this. Random by default.
//!
//! Handlers: `count` (packets that were encrypted), `drops` (those that were refused), `drop_details` (by reason), `number` (the next
//! sequence number). A hot-swap goes on with the numbers of an element of the same name, SPI and key. The Click element of
//! this name leaves authentication and the IP header to others.

use super::refusals::Counts;
use super::sender::Sender;
use crate::args::{Args, Failed};
use crate::element::{Element, downcast};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Log, Packet};
use std::sync::Arc;

/// The element.
#[derive(Default)]
pub(super) struct Encap {
    sender: Option<Sender>,
    counts: Arc<Counts>,
}

impl Element for Encap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.sender = Some(Sender::of(args)?);
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let sender = self.sender.as_ref()?;
        let outcome = sender.seal(&mut packet, sender.take(1), None);
        self.counts.count(outcome);
        if outcome.is_err() {
            cx.emit_checked(1, packet);
            return None;
        }
        Some(packet)
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let old = downcast::<Self>(old).and_then(|old| old.sender.as_ref());
        if let (Some(sender), Some(old)) = (&self.sender, old) {
            sender.inherit(old);
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let counts = Arc::clone(&self.counts);
        Counts::handlers(handlers, move || Arc::clone(&counts));
        handlers.read("number", |encap: &mut Self, _| encap.sender.as_ref().map_or(0, Sender::next));
    }
}
