//! SetAnnoByte: sets a byte of packets' annotations.
//!
//! `SetAnnoByte(ANNO, VALUE)`, one input, one output, push or pull. ANNO is the name of an annotation of one byte, or an offset
//! from 0 to 47; VALUE is 0 to 255. Handlers: `anno` (r, the offset), `value` (r/w).

use crate::Packet;
use crate::args::{AnnoArg, Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct SetAnnoByte {
    anno: usize,
    value: u8,
}

impl Element for SetAnnoByte {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut anno, mut value) = (AnnoArg::<1>(0), 0);
        args.must("ANNO", &mut anno).must("VALUE", &mut value).finish()?;
        (self.anno, self.value) = (anno.0, value);
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.set_anno_u8(self.anno, self.value);
        Some(packet)
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("anno", |set: &mut Self, _| set.anno);
        handlers.data("value", |set: &mut Self| &mut set.value);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;
    use crate::packet::{ANNO_BYTES, anno};

    #[test]
    fn one_byte_is_set_and_no_other() {
        for at in 0..ANNO_BYTES {
            let mut harness =
                Harness::new(&format!("give :: Give -> Queue -> s :: SetAnnoByte({at}, 0xA5) -> take :: Take"));
            harness.give_bytes("give", b"a");
            let mut expected = [0; ANNO_BYTES];
            expected[at] = 0xA5;
            assert_eq!(harness.take("take")[0].anno(), &expected);
            assert_eq!((harness.read("s.anno"), harness.read("s.value")), (at.to_string(), "165".to_owned()));
        }
    }

    #[test]
    fn annotations_have_names_and_values_change() {
        let mut harness = Harness::new("give :: Give -> s :: SetAnnoByte(ANNO PAINT, VALUE 1) -> take :: Take");
        harness.write("s.value", "9").unwrap();
        harness.give_bytes("give", b"a");
        assert_eq!(harness.take("take")[0].anno_u8(anno::PAINT), 9);
        assert!(harness.write("s.value", "256").is_err());
        for (config, expected) in [
            ("48, 1", "ANNO: "),
            ("DST_IP, 1", "ANNO: "),
            ("1, 256", "VALUE: out of range, bound 255"),
            ("1", "VALUE: required argument missing"),
            ("1, 2, 3", "too many arguments"),
        ] {
            let told = Harness::errors(&format!("Give -> SetAnnoByte({config}) -> Take"));
            assert!(told.contains(expected), "{config}: {told}");
        }
    }
}
