//! MarkIPHeader: says where the IP header is. StripIPHeader, UnstripIPHeader: take it off, and put it back.
//!
//! All are agnostic, with an input and an output, and have no handlers.
//!
//! `MarkIPHeader([OFFSET])`: an IP header begins at OFFSET (0) and has the length that it says. Checks nothing; where the packet
//! ends before OFFSET, no header is known afterwards.
//!
//! `StripIPHeader()`: the packet begins behind its IP header. `UnstripIPHeader()`: the packet begins at its IP header again, if
//! that was taken off. A packet whose header is not known passes as it is (Click reads what lies there).

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::router::Cx;

/// Says where the header is.
#[derive(Default)]
pub(super) struct MarkIpHeader {
    offset: usize,
}

impl Element for MarkIpHeader {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("OFFSET", &mut self.offset).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        match packet.bytes().get(self.offset) {
            Some(first) => {
                let len = usize::from(first & 15) * 4;
                packet.set_network_header(self.offset as isize, len);
            }
            None => packet.set_network_header(isize::MAX / 2, 0),
        }
        Some(packet)
    }
}

/// Takes the header off.
#[derive(Default)]
pub(super) struct StripIpHeader;

impl Element for StripIpHeader {
    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let behind = packet.transport_offset().and_then(|offset| usize::try_from(offset).ok());
        packet.pull(behind.unwrap_or(0));
        Some(packet)
    }
}

/// Puts the header back.
#[derive(Default)]
pub(super) struct UnstripIpHeader;

impl Element for UnstripIpHeader {
    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if let Some(before) = packet.network_offset().filter(|offset| *offset < 0) {
            packet.push_back_pulled(before.unsigned_abs());
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz, ip};

    #[test]
    fn a_header_is_marked_with_its_own_length() {
        let mut harness = Harness::new("give :: Give -> MarkIPHeader(14) -> take :: Take");
        let mut packet = [&[9; 14][..], &ip(17, [1; 4], [2; 4], &[5; 12])].concat();
        packet[14] = 0x46;
        harness.give_bytes("give", &packet);
        let marked = &harness.take("take")[0];
        assert_eq!((marked.network_offset(), marked.transport_offset()), (Some(14), Some(38)));
        assert_eq!(marked.bytes(), packet);
    }

    #[test]
    fn headers_in_a_row() {
        let steps = [
            ("MarkIPHeader -> StripIPHeader", 20..32),
            ("MarkIPHeader -> StripIPHeader -> UnstripIPHeader", 0..32),
            ("StripIPHeader -> UnstripIPHeader", 0..32),
            ("MarkIPHeader(32) -> StripIPHeader", 0..32),
            ("MarkIPHeader(99999999999) -> UnstripIPHeader", 0..32),
        ];
        let packet = ip(17, [1; 4], [2; 4], &[5; 12]);
        for (row, rest) in steps {
            let mut harness = Harness::new(&format!("give :: Give -> {row} -> take :: Take"));
            harness.give_bytes("give", &packet);
            assert_eq!(harness.take_bytes("take"), [&packet[rest]], "{row}");
        }
    }

    #[test]
    fn configurations_that_are_wrong() {
        for config in ["MarkIPHeader(x)", "MarkIPHeader(1, 2)", "StripIPHeader(1)", "UnstripIPHeader(1)"] {
            let log = Harness::errors(&format!("Give -> {config} -> Take"));
            assert!(log.contains("invalid number") || log.contains("too many arguments"), "{log}");
        }
    }

    #[test]
    fn any_packet_is_survived() {
        fuzz(
            "give :: Give -> UnstripIPHeader -> StripIPHeader -> MarkIPHeader(3) -> StripIPHeader -> take :: Take",
            &["take"],
        );
    }
}
