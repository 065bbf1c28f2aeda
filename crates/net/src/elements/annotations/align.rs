//! Align: moves packets' data to aligned addresses.
//!
//! `Align(MODULUS, OFFSET)`, one input, one output, push or pull: the data of packets that leave it starts OFFSET bytes after a
//! multiple of MODULUS, which is 2, 4 or 8. Packets that do so already pass as they are; others are copied.
//!
//! click-align puts it where machines need it that read words at multiples of their size only.

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct Align {
    modulus: usize,
    offset: usize,
}

impl Align {
    /// How many bytes further the data has to start.
    fn missing(&self, packet: &Packet) -> usize {
        let address = packet.bytes().as_ptr().addr();
        (self.modulus + self.offset - address % self.modulus) % self.modulus
    }
}

impl Element for Align {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("MODULUS", &mut self.modulus).must("OFFSET", &mut self.offset).finish()?;
        if ![2, 4, 8].contains(&self.modulus) {
            return Err(args.error("align modulus must be 2, 4, or 8"));
        }
        if self.offset >= self.modulus {
            return Err(args.error("align offset must be smaller than modulus"));
        }
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let missing = self.missing(&packet);
        if missing > 0 {
            packet.shift(missing as isize);
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz};

    #[test]
    fn packets_leave_aligned_and_unchanged() {
        for (modulus, offset) in [(2, 1), (4, 0), (4, 2), (8, 3)] {
            let mut harness = Harness::new(&format!("give :: Give -> Align({modulus}, {offset}) -> take :: Take"));
            for headroom in 0..20 {
                let mut packet = Packet::new(headroom, b"0123456789", 3);
                packet.set_network_header(2, 4);
                harness.give("give", [packet]);
                let out = &harness.take("take")[0];
                assert_eq!(out.bytes().as_ptr().addr() % modulus, offset);
                assert_eq!((out.bytes(), out.network_offset()), (&b"0123456789"[..], Some(2)));
            }
        }
        fuzz("give :: Give -> Align(4, 2) -> take :: Take", &["take"]);
    }

    #[test]
    fn moduli_and_offsets_are_checked() {
        for (config, error) in [
            ("3, 0", "align modulus must be 2, 4, or 8"),
            ("16, 0", "align modulus must be 2, 4, or 8"),
            ("4, 4", "align offset must be smaller than modulus"),
            ("4", "OFFSET: required argument missing"),
        ] {
            let errors = Harness::errors(&format!("Give -> Align({config}) -> Take"));
            assert!(errors.contains(error), "{errors}");
        }
    }
}
