//! MarkMACHeader: sets where the link layer's header begins.
//!
//! `MarkMACHeader([OFFSET, LENGTH])`, one input, one output, push or pull. OFFSET is counted in bytes from the packet's beginning,
//! 0 by default. LENGTH (0: unknown) is how many bytes the header has; the network layer's header follows it. A packet that is
//! shorter has no such header.

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct MarkMacHeader {
    offset: u32,
    len: u32,
}

impl Element for MarkMacHeader {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut offset, mut len) = (0, 0);
        args.may("OFFSET", &mut offset).may("LENGTH", &mut len).finish()?;
        (self.offset, self.len) = (offset, len);
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.set_mac_header(self.offset as isize);
        if self.len > 0 {
            packet.set_network_header(self.offset as isize + self.len as isize, 0);
        }
        Some(packet)
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};

    #[test]
    fn the_header_stays_where_it_is_marked() {
        let mut harness = Harness::new("give :: Give -> MarkMACHeader(2) -> Strip(5) -> take :: Take");
        harness.give_bytes("give", b"0123456789");
        harness.give_bytes("give", b"0");
        let taken = harness.take("take");
        assert_eq!((taken[0].mac_offset(), taken[0].mac_header()), (Some(-3), Some(&b"23456789"[..])));
        assert_eq!(taken[1].mac_header(), None);
    }

    #[test]
    fn the_network_header_follows_one_whose_length_is_given() {
        let mut harness = Harness::new("give :: Give -> MarkMACHeader(2, 4) -> take :: Take");
        harness.give_bytes("give", b"0123456789");
        let taken = harness.take("take");
        assert_eq!((taken[0].mac_offset(), taken[0].network_offset()), (Some(2), Some(6)));
        let told = Harness::errors("Give -> MarkMACHeader(2, 4, 5) -> Take");
        assert!(told.contains("too many arguments"), "{told}");
    }

    #[test]
    fn the_offset_may_be_left_out() {
        let mut harness = Harness::new("give :: Give -> Queue -> MarkMACHeader -> take :: Take");
        harness.give_bytes("give", b"0");
        assert_eq!(harness.take("take")[0].mac_offset(), Some(0));
        assert!(Harness::errors("Give -> MarkMACHeader(-1) -> Take").contains("OFFSET: must be >= 0"));
    }

    #[test]
    fn any_packet_passes() {
        let taken = fuzz("give :: Give -> MarkMACHeader(4294967295) -> take :: Take", &["take"]);
        assert!(taken[0].iter().all(|packet| packet.mac_header().is_none()));
    }
}
