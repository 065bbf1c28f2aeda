//! PortInfo: names for TCP and UDP ports.
//!
//! `PortInfo(NAME PORT[/PROTO] [NAME...], ...)`, no ports: other elements may say NAME where they take a port number (0 to
//! 65,535). PROTO is `tcp` or `udp`; both where it is missing. Further names mean the same; what begins with `#` is a comment,
//! so that lines of `/etc/services` may be arguments.
//!
//! Names are known in the compound element where the PortInfo stands, and in those within. Ports of other protocols are
//! ignored, since nobody asks for them.

use crate::args::{Args, Failed, NameKind};
use crate::element::Element;
use crate::lang::config::split_words;

/// The element.
#[derive(Default)]
pub(super) struct PortInfo;

impl Element for PortInfo {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        for arg in args.rest() {
            let mut words = split_words(&arg);
            if let Some(comment) = words.iter().position(|word| word.starts_with('#')) {
                words.truncate(comment);
            }
            let [name, port, others @ ..] = &words[..] else {
                if !words.is_empty() {
                    args.error(format_args!("expected 'NAME PORT/PROTO', got '{arg}'"));
                }
                continue;
            };
            let (number, protocol) = port.split_once('/').map_or((port.as_str(), None), |(n, p)| (n, Some(p)));
            let Ok(number) = number.parse::<u16>() else {
                args.error(format_args!("expected 'NAME PORT/PROTO', got '{arg}'"));
                continue;
            };
            let kinds: &[NameKind] = match protocol {
                None => &[NameKind::TcpPort, NameKind::UdpPort],
                Some("tcp") => &[NameKind::TcpPort],
                Some("udp") => &[NameKind::UdpPort],
                Some(_) => &[],
            };
            for name in std::iter::once(name).chain(others) {
                for kind in kinds {
                    args.define(*kind, name, &number.to_be_bytes());
                }
            }
        }
        args.finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;
    use crate::packet::Packet;

    /// The ports of the UDP header that a UDPIPEncap with these arguments makes.
    fn ports(info: &str, source: &str, sink: &str) -> [u16; 2] {
        let mut harness = Harness::new(&format!(
            "PortInfo({info}); give :: Give -> UDPIPEncap(1.0.0.1, {source}, 1.0.0.2, {sink}) -> take :: Take"
        ));
        harness.give("give", [Packet::from_slice(b"x")]);
        let packet = &harness.take("take")[0];
        [20, 22].map(|at| u16::from_be_bytes([packet.bytes()[at], packet.bytes()[at + 1]]))
    }

    #[test]
    fn names_stand_for_ports() {
        assert_eq!(ports("foo 79/udp fie # fum, , bar 1234", "foo", "bar"), [79, 1234]);
        assert_eq!(ports("foo 79/udp fie", "fie", "7"), [79, 7]);
    }

    #[test]
    fn wrong_ports_are_told() {
        let errors = Harness::errors("PortInfo(a, b x/tcp, c 65536, d 1/sctp, # e)");
        for arg in ["a", "b x/tcp", "c 65536"] {
            assert!(errors.contains(&format!("expected 'NAME PORT/PROTO', got '{arg}'")), "{errors}");
        }
        assert_eq!(errors.matches("expected").count(), 3, "{errors}");
        let errors = Harness::errors("PortInfo(t 1/tcp); give :: Give -> UDPIPEncap(1.0.0.1, t, 1.0.0.2, t) -> Take");
        assert!(errors.contains("UDPIPEncap"), "{errors}");
    }
}
