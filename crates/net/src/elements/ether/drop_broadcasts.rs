//! DropBroadcasts: drops packets that the link layer sent to everybody or to a group.
//!
//! `DropBroadcasts`: one input; one output, and one for what is dropped, which is pushed. Looks at the packet's type annotation,
//! which HostEtherFilter and devices set. Says so when it drops the first one.
//!
//! Handlers: `drops`.

use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, PacketType};

/// The element.
#[derive(Default)]
pub(super) struct DropBroadcasts {
    drops: u64,
}

fn passes(packet: &Packet) -> bool {
    !matches!(packet.kind(), PacketType::Broadcast | PacketType::Multicast)
}

impl Element for DropBroadcasts {
    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if batch.iter().all(passes) {
            return cx.emit_batch(0, batch);
        }
        cx.push_each(self, port, batch);
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if passes(&packet) {
            return Some(packet);
        }
        if self.drops == 0 {
            cx.say("DropBroadcasts: dropped a packet");
        }
        self.drops += 1;
        cx.emit_checked(1, packet);
        None
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |drops: &mut Self, _| drops.drops);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};
    use crate::{Packet, PacketType};

    #[test]
    fn packets_for_everybody_and_for_groups_are_dropped_and_counted() {
        for (rest, dropped) in [("d[1] -> other :: Take", true), ("", false)] {
            let mut harness = Harness::new(&format!("give :: Give -> d :: DropBroadcasts -> take :: Take; {rest}"));
            let kinds = [PacketType::Host, PacketType::Broadcast, PacketType::Multicast, PacketType::OtherHost];
            harness.give(
                "give",
                kinds.into_iter().enumerate().map(|(number, kind)| {
                    let mut packet = Packet::from_slice(&[number as u8]);
                    packet.set_kind(kind);
                    packet
                }),
            );
            assert_eq!(harness.take_bytes("take"), [[0], [3]]);
            assert_eq!(
                (harness.read("d.drops"), harness.said()),
                ("2".to_owned(), vec!["DropBroadcasts: dropped a packet".to_owned()])
            );
            if dropped {
                assert_eq!(harness.take_bytes("other"), [[1], [2]]);
            }
        }
        fuzz("give :: Give -> HostEtherFilter(1:1:1:1:1:1, false, false) -> DropBroadcasts -> take :: Take", &["take"]);
    }

    #[test]
    fn there_are_no_arguments() {
        assert!(Harness::errors("Give -> DropBroadcasts(1) -> Take").contains("too many arguments"));
    }
}
