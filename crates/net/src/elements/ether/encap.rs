//! EtherEncap: puts packets into Ethernet frames.
//!
//! `EtherEncap(ETHERTYPE, SRC, DST)`: one input, one output, both push or both pull. ETHERTYPE is a number of two bytes.
//!
//! Handlers: `ethertype`, `src`, `dst` (all r/w).
//!
//! Differs from Click: what handlers set is not shown by `config`.

use super::frame::header;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::EtherAddress;
use crate::headers::ether::LEN;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct EtherEncap {
    kind: u16,
    source: EtherAddress,
    destination: EtherAddress,
}

impl EtherEncap {
    #[inline]
    fn encapsulate(packet: &mut Packet, header: &[u8; LEN]) {
        packet.push(LEN)[..LEN].copy_from_slice(header);
        packet.set_mac_header(0);
    }

    fn header(&self) -> [u8; LEN] {
        header(self.destination, self.source, self.kind)
    }
}

impl Element for EtherEncap {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut new = Self::default();
        args.must("ETHERTYPE", &mut new.kind)
            .must("SRC", &mut new.source)
            .must("DST", &mut new.destination)
            .finish()?;
        *self = new;
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        Self::encapsulate(&mut packet, &self.header());
        Some(packet)
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        let header = self.header();
        for packet in batch.iter_mut() {
            Self::encapsulate(packet, &header);
        }
        cx.emit_batch(0, batch);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("ethertype", |encap: &mut Self| &mut encap.kind);
        handlers.data("etht", |encap: &mut Self| &mut encap.kind);
        handlers.hide("etht");
        handlers.data("src", |encap: &mut Self| &mut encap.source);
        handlers.data("dst", |encap: &mut Self| &mut encap.destination);
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, noise};

    const FRAME: [u8; 16] = [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 8, 0, 0xaa, 0xbb];

    #[test]
    fn frames_have_the_header_that_was_said() {
        let mut harness = Harness::new("give :: Give -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> take :: Take");
        harness.give("give", [Packet::from_slice(&FRAME[14..]), Packet::new(0, &FRAME[14..], 0)]);
        let pushed = harness.take("take");
        let mut harness = Harness::new(
            "give :: GivePull -> EtherEncap(DST 2:2:2:2:2:2, SRC 1:1:1:1:1:1, ETHERTYPE 2048)\n\
             -> take :: TakePull(MANUAL true)",
        );
        harness.give("give", [Packet::from_slice(&FRAME[14..])]);
        let pulled = harness.pull("take");
        assert_eq!((pushed.len(), pulled.is_some()), (2, true));
        for packet in pushed.into_iter().chain(pulled) {
            assert_eq!((packet.bytes(), packet.mac_offset()), (&FRAME[..], Some(0)));
        }
    }

    #[test]
    fn handlers_read_and_write_the_header() {
        let mut harness =
            Harness::new("give :: Give -> e :: EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> take :: Take");
        assert_eq!(harness.read("e.ethertype"), "2048");
        harness.write("e.ethertype", "0x0801").unwrap();
        assert_eq!(harness.read("e.ethertype"), "2049");
        assert_eq!(harness.read("e.src"), "01-01-01-01-01-01");
        harness.write("e.dst", "3:3:3:3:3:3").unwrap();
        assert!(harness.write("e.src", "3:3").is_err() && harness.write("e.ethertype", "65536").is_err());
        harness.give_bytes("give", &[]);
        assert_eq!(harness.take_bytes("take"), [[3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 8, 1]]);
        harness.write("e.config", "1, 4:4:4:4:4:4, 5:5:5:5:5:5").unwrap();
        assert!(harness.write("e.config", "1, 4:4:4:4:4:4").is_err());
        harness.give_bytes("give", &[]);
        assert_eq!(harness.take_bytes("take"), [[5, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 4, 0, 1]]);
    }

    #[test]
    fn all_three_arguments_are_needed() {
        let told = Harness::errors("Give -> EtherEncap(0x10000, 1:1:1:1:1) -> Take");
        assert!(told.contains("ETHERTYPE: out of range, bound 65535"), "{told}");
        assert!(told.contains("SRC: type mismatch") && told.contains("DST: required argument missing"), "{told}");
    }

    #[test]
    fn every_packet_gets_its_header_and_others_keep_their_bytes() {
        let config = "give :: Give -> EtherEncap(0x0800, 1:1:1:1:1:1, 2:2:2:2:2:2) -> take :: Take";
        let mut harness = Harness::new(config);
        let packets = noise(200);
        harness.give("give", packets.iter().cloned());
        for (packet, taken) in packets.iter().zip(harness.take_bytes("take")) {
            assert_eq!((&taken[..14], &taken[14..]), (&FRAME[..14], packet.bytes()));
        }
        fuzz(config, &["take"]);
    }
}
