//! IPFilter and IPClassifier: IP packets go to outputs, or are dropped, by their headers.
//!
//! `IPFilter(ACTION PATTERN, ...)`: push input, any number of push outputs. The first pattern that matches decides: ACTION is an
//! output's number, `allow` (0), or `drop` or `deny`. Packets that no pattern matches are dropped.
//!
//! `IPClassifier(PATTERN, ..., PATTERN)`: push input, a push output for each pattern. A packet goes to the output of the first
//! pattern that matches.
//!
//! Patterns are like tcpdump's, such as `src net 10.0.0.0/8 and tcp dst port 80 or 443`: see Click's manual of IPClassifier.
//! Packets need their network header known (CheckIPHeader, MarkIPHeader); without, every test fails.
//!
//! Handlers: `program`; IPClassifier: `pattern0` and so on (r/w).
//!
//! Differs from Click: a test needs the whole field that it names, both ports for `port`. `ether host A or syn` is allowed.
//! `proto != tcpudp` and protocols beyond 255 are refused. At most 32768 patterns.

use super::classifier::{finish, outputs};
use super::lanes::Lanes;
use crate::args::{Arg, ArgCx, Args, Failed, NameKind, Prefix};
use crate::classify::{Filter, Headers, Names, system};
use crate::element::{Batch, Element};
use crate::handler::Handlers;
use crate::headers::EtherAddress;
use crate::lang::config::unquote;
use crate::router::Cx;
use crate::{Log, Packet};
use std::net::Ipv4Addr;

/// Names of the configuration, and of the system.
struct Known<'a>(&'a ArgCx<'a>);

impl Known<'_> {
    fn number<const N: usize>(&self, kind: NameKind, name: &str) -> Option<[u8; N]> {
        self.0.names.get(kind, name, self.0.element)?.try_into().ok()
    }
}

impl Names for Known<'_> {
    fn protocol(&self, name: &str) -> Option<u8> {
        self.number::<1>(NameKind::IpProtocol, name).map(|[number]| number).or_else(|| system::protocol(name))
    }

    fn port(&self, protocol: u8, name: &str) -> Option<u16> {
        let kind = if protocol == 6 { NameKind::TcpPort } else { NameKind::UdpPort };
        self.number(kind, name).map(u16::from_be_bytes).or_else(|| system::port(protocol, name))
    }

    fn address(&self, name: &str) -> Option<[u8; 4]> {
        Ipv4Addr::parse(name, self.0).ok().map(|address| address.octets())
    }

    fn network(&self, name: &str) -> Option<([u8; 4], [u8; 4])> {
        Prefix::with_mask(name, self.0).ok().map(|prefix| (prefix.address.octets(), prefix.mask.octets()))
    }

    fn ethernet(&self, name: &str) -> Option<[u8; 6]> {
        EtherAddress::parse(name, self.0).ok().map(|address| address.0)
    }
}

/// A filter, and packets on their ways.
#[derive(Default)]
struct Common {
    filter: Option<Filter>,
    lanes: Lanes,
}

impl Common {
    #[inline]
    fn choose(filter: Option<&Filter>, packet: &Packet) -> Option<usize> {
        let headers = Headers {
            mac: packet.mac_header().unwrap_or_default(),
            network: packet.network_header().unwrap_or_default(),
            transport: packet.network_header_len(),
        };
        filter?.classify(&headers)
    }

    fn push(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        if let Some(port) = Self::choose(self.filter.as_ref(), &packet) {
            cx.emit_checked(port, packet);
        }
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, batch: &mut Batch) {
        let filter = self.filter.as_ref();
        self.lanes.send(cx, batch, |packet| Self::choose(filter, packet));
    }

    fn program(&self) -> String {
        self.filter.as_ref().map(Filter::program).unwrap_or_default()
    }
}

/// `IPFilter`.
#[derive(Default)]
pub(super) struct IpFilter(Common);

impl Element for IpFilter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let outputs = outputs(args);
        let rules: Vec<_> = args.rest().iter().map(|rule| unquote(rule)).collect();
        let mut log = Log::new();
        let filter = Filter::ip_filter(&rules, outputs, &Known(args.cx()), &mut log);
        self.0.filter = Some(finish(args, filter, log)?);
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.0.push(cx, packet);
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        self.0.push_batch(cx, batch);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("program", |filter: &mut Self, _| filter.0.program());
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

/// `IPClassifier`.
#[derive(Default)]
pub(super) struct IpClassifier {
    common: Common,
    patterns: Vec<String>,
}

impl IpClassifier {
    /// Compiles patterns; outputs are as many.
    fn compile(patterns: &[String], cx: &ArgCx<'_>, outputs: usize, log: &mut Log) -> Option<Filter> {
        let unquoted: Vec<_> = patterns.iter().map(|pattern| unquote(pattern)).collect();
        Filter::ip_classifier(&unquoted, outputs, &Known(cx), log)
    }

    fn set_pattern(&mut self, cx: &Cx<'_>, number: usize, text: &str) -> Result<(), String> {
        let mut patterns = self.patterns.clone();
        text.trim().clone_into(&mut patterns[number]);
        let mut log = Log::new();
        let filter = Self::compile(&patterns, &cx.arg_cx(), patterns.len(), &mut log);
        self.common.filter = Some(filter.ok_or_else(|| log.to_string().trim_end().to_owned())?);
        self.patterns = patterns;
        Ok(())
    }
}

impl Element for IpClassifier {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (outputs, patterns) = (outputs(args), args.rest());
        let mut log = Log::new();
        let filter = Self::compile(&patterns, args.cx(), outputs, &mut log);
        self.common.filter = Some(finish(args, filter, log)?);
        self.patterns = patterns;
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.common.push(cx, packet);
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        self.common.push_batch(cx, batch);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("program", |classifier: &mut Self, _| classifier.common.program());
        for number in 0..self.patterns.len() {
            let name = format!("pattern{number}");
            handlers.read(&name, move |classifier: &mut Self, _| classifier.patterns[number].clone());
            handlers.write(&name, move |classifier: &mut Self, cx, text| classifier.set_pattern(cx, number, text));
        }
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz, noise, udp};

    fn packet(port: u16) -> Packet {
        let mut packet = Packet::from_slice(&udp(([1, 2, 3, 4], 5), ([10, 0, 0, 1], port), &[port as u8]));
        packet.set_network_header(0, 20);
        packet
    }

    fn ports(harness: &mut Harness, sink: &str) -> Vec<u8> {
        harness.take(sink).iter().map(|packet| *packet.bytes().last().unwrap()).collect()
    }

    #[test]
    fn rules_let_packets_through_or_drop_them() {
        let mut harness = Harness::new(
            "give :: Give -> f :: IPFilter(drop dst port 7, 1 dst port > 8, allow src 1.2.3.4 and udp, 1 all);\n\
             f[0] -> a :: Take; f[1] -> b :: Take",
        );
        harness.give("give", [5, 6, 7, 8, 9, 10].map(packet));
        assert_eq!((ports(&mut harness, "a"), ports(&mut harness, "b")), (vec![5, 6, 8], vec![9, 10]));
    }

    #[test]
    fn packets_without_a_known_header_fail_every_test() {
        let mut harness =
            Harness::new("give :: Give -> c :: IPClassifier(udp, not udp); c[0] -> a :: Take; c[1] -> b :: Take");
        harness.give("give", [Packet::from_slice(packet(1).bytes())]);
        assert_eq!((harness.take("a").len(), harness.take("b").len()), (0, 1));
    }

    #[test]
    fn patterns_are_read_and_written_one_by_one() {
        let mut harness = Harness::new(
            "give :: Give -> c :: IPClassifier(dst port 5, \"dst port 6\", -);\n\
             c[0] -> a :: Take; c[1] -> b :: Take; c[2] -> d :: Take",
        );
        assert_eq!(harness.read("c.pattern0"), "dst port 5");
        harness.write("c.pattern0", "dst port 7").unwrap();
        assert_eq!(harness.write("c.pattern2", "dst port").unwrap_err(), "pattern 2: 'dst port': value missing");
        harness.give("give", [5, 6, 7].map(packet));
        assert_eq!(["a", "b", "d"].map(|sink| ports(&mut harness, sink)), [vec![7], vec![6], vec![5]]);
        harness.write("c.config", "dst port 1, dst port 2, dst port 3").unwrap();
        assert_eq!(harness.read("c.pattern2"), "dst port 3");
        assert!(harness.write("c.config", "udp").is_err());
        assert!(harness.read("c.program").ends_with("safe length 516\nalignment offset 0\n"));
    }

    #[test]
    fn what_is_wrong_is_reported_by_pattern() {
        let told = Harness::errors("Give -> IPFilter(allow tcp port, 5 udp, drop (tcp) -> Take");
        assert!(told.contains("config:1:"), "{told}");
        let told = Harness::errors("Give -> IPFilter(allow tcp port, 5 udp) -> Take");
        assert!(told.contains("  pattern 0: 'port': value missing\n"), "{told}");
        assert!(told.contains("  pattern 1: slot '5' out of range\n"), "{told}");
        let told = Harness::errors("Give -> IPClassifier(tcp, udp) -> Take");
        assert!(told.contains("  need 1 arguments, one per output port\n"), "{told}");
    }

    #[test]
    fn a_filter_and_a_classifier_of_the_same_patterns_decide_alike() {
        let patterns = ["src net 10.0.0.0/24 and tcp", "udp and dst port < 30000", "ip ttl > 9 and not frag", "true"];
        let outputs = |name: &str| [0, 1, 2, 3].map(|n| format!("{name}[{n}] -> {name}{n} :: Take;")).concat();
        let classifier = format!("give :: Give -> c :: IPClassifier({}); {}", patterns.join(", "), outputs("c"));
        let rules: Vec<_> = patterns.iter().enumerate().map(|(n, pattern)| format!("{n} {pattern}")).collect();
        let filter = format!("give :: Give -> f :: IPFilter({}); {}", rules.join(", "), outputs("f"));
        let (mut one, mut two) = (Harness::new(&classifier), Harness::new(&filter));
        let packets = noise(500);
        one.give("give", packets.iter().cloned());
        two.give("give", packets);
        for n in 0..4 {
            assert_eq!(one.take_bytes(&format!("c{n}")), two.take_bytes(&format!("f{n}")));
        }
        fuzz(&classifier, &["c0", "c1", "c2", "c3"]);
    }
}
