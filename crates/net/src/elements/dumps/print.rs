//! Print: prints packets' bytes.
//!
//! `Print([LABEL, MAXLENGTH, CONTENTS, TIMESTAMP, PRINTANNO, HEADROOM, ACTIVE])`: packets pass, pushed or pulled. A line on
//! standard error for each: the label, its length, and up to MAXLENGTH (24; negative: all) of its bytes.
//!
//! - CONTENTS (HEX): `HEX`, `ASCII` or `NONE`. TIMESTAMP (false), PRINTANNO (false), HEADROOM (false): what else is printed.
//! - ACTIVE (true): prints. CPU: accepted, and of no meaning.
//!
//! Handlers: `active` (r/w). The configuration can be changed while it runs.

use super::lines::Contents;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;
use std::fmt::Write as _;

/// The element.
#[expect(clippy::struct_excessive_bools, reason = "each is an argument")]
pub(super) struct Print {
    label: String,
    max_len: i64,
    contents: Contents,
    has_timestamp: bool,
    has_anno: bool,
    has_headroom: bool,
    is_active: bool,
}

impl Default for Print {
    fn default() -> Self {
        Self {
            label: String::new(),
            max_len: 24,
            contents: Contents::Hex,
            has_timestamp: false,
            has_anno: false,
            has_headroom: false,
            is_active: true,
        }
    }
}

impl Print {
    fn line(&self, packet: &Packet) -> String {
        let mut line = self.label.clone();
        let mut separator = if line.is_empty() { "" } else { ": " };
        if self.has_timestamp {
            let _ = write!(line, "{separator}{}", packet.timestamp());
            separator = ": ";
        }
        let _ = write!(line, "{separator}{:4}", packet.len());
        if self.has_headroom {
            let _ = write!(line, " (h{} t{})", packet.headroom(), packet.tailroom());
        }
        if self.has_anno {
            line.push_str(" | ");
            packet.anno().iter().for_each(|byte| _ = write!(line, "{byte:02x}"));
        }
        let len = usize::try_from(self.max_len).unwrap_or(usize::MAX).min(packet.len());
        if len > 0 && self.contents != Contents::None {
            line.push_str(" | ");
            self.contents.print(&packet.bytes()[..len], 0, &mut line);
        }
        line
    }
}

impl Element for Print {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        *self = Self::default();
        let mut cpu = false;
        args.may("LABEL", &mut self.label).may("MAXLENGTH", &mut self.max_len);
        args.key("LENGTH", &mut self.max_len).key("NBYTES", &mut self.max_len).key("CONTENTS", &mut self.contents);
        args.key("TIMESTAMP", &mut self.has_timestamp).key("PRINTANNO", &mut self.has_anno).key("CPU", &mut cpu);
        args.key("ACTIVE", &mut self.is_active).key("HEADROOM", &mut self.has_headroom).finish()
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        if self.is_active {
            cx.say(self.line(&packet));
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.data("active", |print: &mut Self| &mut print.is_active);
    }

    /// Its lines stand among those of others.
    fn observes(&self) -> bool {
        true
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz};
    use crate::packet::anno;
    use crate::{Packet, Timestamp};

    fn printed(arguments: &str, packet: &Packet) -> Vec<String> {
        let mut harness = Harness::new(&format!("give :: Give -> p :: Print({arguments}) -> take :: Take"));
        harness.give("give", [packet.clone()]);
        assert_eq!(harness.take_bytes("take"), [packet.bytes()]);
        harness.said()
    }

    #[test]
    fn packets_are_printed_as_asked() {
        let mut packet = Packet::new(10, b"\x00\x01hello, world\xFF", 7);
        packet.set_timestamp(Timestamp::new(5, 1000));
        packet.set_anno_u8(anno::PAINT, 0xAB);
        assert_eq!(printed("", &packet), ["  15 | 00016865 6c6c6f2c 20776f72 6c64ff"]);
        assert_eq!(printed("x, 3", &packet), ["x:   15 | 000168"]);
        assert_eq!(printed("x, 0, TIMESTAMP true", &packet), ["x: 5.000001:   15"]);
        assert_eq!(
            printed("TIMESTAMP true, CONTENTS NONE, HEADROOM true", &packet),
            [format!("5.000001:   15 (h10 t{})", packet.tailroom())]
        );
        assert_eq!(printed("CONTENTS ASCII, MAXLENGTH -1", &packet), ["  15 |  ..hello,  world."]);
        let with_anno = printed("PRINTANNO true, CONTENTS false", &packet);
        assert_eq!(with_anno, [format!("  15 | {}ab{}", "00".repeat(16), "00".repeat(31))]);
        assert_eq!(printed("ACTIVE false", &packet), [""; 0]);
    }

    #[test]
    fn it_can_be_switched_and_changed_while_it_runs() {
        let mut harness = Harness::new("give :: Give -> p :: Print(a, 1) -> q :: Print(b, 1) -> take :: Take");
        harness.give("give", [[1], [2]].map(|bytes| Packet::from_slice(&bytes)));
        assert_eq!(harness.said(), ["a:    1 | 01", "b:    1 | 01", "a:    1 | 02", "b:    1 | 02"]);
        harness.write("p.active", "false").unwrap();
        harness.write("q.config", "CONTENTS NONE").unwrap();
        harness.give_bytes("give", &[3]);
        assert_eq!(harness.said(), ["   1"]);
        assert_eq!(harness.read("p.active"), "false");
    }

    #[test]
    fn wrong_arguments_are_told() {
        let told = Harness::errors("Give -> Print(x, y, CONTENTS foo) -> Take");
        assert!(told.contains("MAXLENGTH: invalid number"), "{told}");
        assert!(told.contains("bad contents value 'foo'; should be 'NONE', 'HEX', or 'ASCII'"), "{told}");
    }

    #[test]
    fn any_packet_passes() {
        assert_eq!(fuzz("give :: Give -> Print(x, -1, CONTENTS ASCII) -> take :: Take", &["take"])[0].len(), 2000);
    }
}
