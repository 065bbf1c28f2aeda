//! Rules in the form of `ClassBench`'s files, as rules of an `IPFilter`, and packets that meet them.

use std::fmt::Write;
use std::net::Ipv4Addr;

/// A line such as `@10.0.0.0/8 18.0.0.0/8 0 : 65535 80 : 80 0x06/0xFF`; what follows is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Source and destination, and how many bits of them count.
    addresses: [(u32, u32); 2],
    /// Source and destination, the lowest and the highest.
    ports: [(u16, u16); 2],
    protocol: Option<u8>,
}

/// What of a packet rules are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The source.
    pub from: u32,
    /// The destination.
    pub to: u32,
    /// Source and destination.
    pub ports: [u16; 2],
    /// TCP, UDP or another one.
    pub protocol: u8,
}

impl Rule {
    /// The rule of a line, or nothing where it is none.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.trim().strip_prefix('@')?.split_whitespace();
        let mut address = || {
            let (address, bits) = words.next()?.split_once('/')?;
            let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 32)?;
            Some((u32::from(address.parse::<Ipv4Addr>().ok()?), bits))
        };
        let addresses = [address()?, address()?];
        let mut ports = || {
            let low: u16 = words.next()?.parse().ok()?;
            let high = words.nth(1)?.parse().ok()?;
            (low <= high).then_some((low, high))
        };
        let ports = [ports()?, ports()?];
        let (protocol, mask) = words.next()?.split_once('/')?;
        let protocol = u8::from_str_radix(protocol.strip_prefix("0x")?, 16).ok()?;
        Some(Self { addresses, ports, protocol: (mask != "0x00").then_some(protocol) })
    }

    /// The rule in Click's words, without what it does.
    pub(super) fn pattern(&self) -> String {
        let mut parts = vec![];
        for (end, (address, bits)) in ["src", "dst"].into_iter().zip(self.addresses) {
            if bits > 0 {
                parts.push(format!("{end} net {}/{bits}", Ipv4Addr::from(address)));
            }
        }
        parts.extend(self.protocol.map(|protocol| format!("ip proto {protocol}")));
        for (end, (low, high)) in ["src", "dst"].into_iter().zip(self.ports) {
            match (low, high) {
                (0, u16::MAX) => {}
                (low, high) if low == high => parts.push(format!("{end} port {low}")),
                (0, high) => parts.push(format!("{end} port <= {high}")),
                (low, u16::MAX) => parts.push(format!("{end} port >= {low}")),
                (low, high) => parts.push(format!("{end} port >= {low} && {end} port <= {high}")),
            }
        }
        if parts.is_empty() { "all".to_owned() } else { parts.join(" && ") }
    }

    /// A packet that meets the rule, with what it leaves open drawn.
    pub fn flow(&self, random: &mut fastrand::Rng) -> Flow {
        let [from, to] = self.addresses.map(|(address, bits)| {
            let free = u32::MAX.checked_shr(bits).unwrap_or(0);
            address & !free | random.u32(..) & free
        });
        let ports = self.ports.map(|(low, high)| random.u16(low..=high));
        let others = [6, 17];
        Flow { from, to, ports, protocol: self.protocol.unwrap_or_else(|| others[random.usize(..others.len())]) }
    }
}

/// The filter of these rules: packets of every third one leave by output 1.
pub(super) fn config(rules: &[Rule]) -> String {
    let mut text = "BenchSource -> Strip(14) -> CheckIPHeader -> f :: IPFilter(".to_owned();
    for (number, rule) in rules.iter().enumerate() {
        let output = u8::from(number % 3 == 2);
        let _ = write!(text, "{output} {}, ", rule.pattern());
    }
    text + "deny all); f -> BenchSink; f[1] -> BenchSink;"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_rule_with_all_its_parts() {
        let line = "@146.38.65.226/32\t10.0.0.0/8\t0 : 65535\t500 : 514\t0x11/0xFF\t0x0000/0x0000\t";
        let rule = Rule::parse(line).unwrap();
        let pattern =
            "src net 146.38.65.226/32 && dst net 10.0.0.0/8 && ip proto 17 && dst port >= 500 && dst port <= 514";
        assert_eq!(rule.pattern(), pattern);
        let all = Rule::parse("@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00").unwrap();
        assert_eq!(all.pattern(), "all");
    }

    #[test]
    fn what_is_no_rule_is_none() {
        for line in [
            "",
            "# @10.0.0.0/8",
            "@10.0.0.0/8 10.0.0.0/8 0 : 65535 0 : 65535",
            "@10.0.0.0/33 10.0.0.0/8 0 : 65535 0 : 65535 0x11/0xFF",
            "@10.0.0.0/8 10.0.0.0/8 9 : 8 0 : 65535 0x11/0xFF",
            "@10.0.0.0/8 10.0.0.0/8 0 : 65536 0 : 65535 0x11/0xFF",
            "@10.0.0.0/8 10.0.0.0/8 0 : 65535 0 : 65535 17/0xFF",
        ] {
            assert_eq!(Rule::parse(line), None, "{line}");
        }
    }

    #[test]
    fn packets_meet_the_rule_that_they_were_drawn_for() {
        let seed = bifolio_testing::seed();
        let mut random = fastrand::Rng::with_seed(seed);
        let rule = Rule::parse("@10.1.2.0/23 20.0.0.1/32 7 : 7 1000 : 2000 0x00/0x00").unwrap();
        for _ in 0..1000 {
            let flow = rule.flow(&mut random);
            assert_eq!((flow.from >> 9, flow.to), (0x0a01_0200 >> 9, 0x1400_0001), "seed {seed}");
            assert!(flow.ports[0] == 7 && (1000..=2000).contains(&flow.ports[1]), "{flow:?}, seed {seed}");
        }
    }
}
