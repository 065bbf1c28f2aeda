//! How fast rule sets in `ClassBench`'s form are compiled, and packets classified by them.
//!
//! `cargo run --release -p bifolio-net --example classbench -- RULES [COUNT]`: the first COUNT rules of a file as the rules of
//! an `IPFilter`, and packets that meet the rules, a rule drawn for each, with what the rule leaves open drawn as well.

use std::time::{Duration, Instant};

use bifolio_net::Log;
use bifolio_net::classify::{BuiltIn, Filter, Headers};

/// Packets in a round.
const PACKETS: usize = 1 << 16;
const SEED: u64 = 17;

/// A line such as `@10.0.0.0/8 18.0.0.0/8 0 : 65535 80 : 80 0x06/0xFF`.
struct Rule {
    addresses: [(u32, u32); 2],
    ports: [(u16, u16); 2],
    protocol: Option<u8>,
}

fn parse(line: &str) -> Option<Rule> {
    let mut words = line.strip_prefix('@')?.split_whitespace();
    let mut address = || {
        let (address, bits) = words.next()?.split_once('/')?;
        let address = u32::from(address.parse::<std::net::Ipv4Addr>().ok()?);
        Some((address, bits.parse().ok()?))
    };
    let addresses = [address()?, address()?];
    let mut ports = || {
        let low = words.next()?.parse().ok()?;
        words.next()?;
        Some((low, words.next()?.parse().ok()?))
    };
    let ports = [ports()?, ports()?];
    let (protocol, mask) = words.next()?.split_once('/')?;
    let protocol = u8::from_str_radix(protocol.strip_prefix("0x")?, 16).ok()?;
    Some(Rule { addresses, ports, protocol: (mask != "0x00").then_some(protocol) })
}

impl Rule {
    fn text(&self, at: usize) -> String {
        let mut parts = Vec::new();
        for (ends, (address, bits)) in ["src", "dst"].into_iter().zip(self.addresses) {
            if bits > 0 {
                parts.push(format!("{ends} net {}/{bits}", std::net::Ipv4Addr::from(address)));
            }
        }
        parts.extend(self.protocol.map(|protocol| format!("ip proto {protocol}")));
        for (ends, (low, high)) in ["src", "dst"].into_iter().zip(self.ports) {
            match (low, high) {
                (0, u16::MAX) => {}
                _ if low == high => parts.push(format!("{ends} port {low}")),
                (0, _) => parts.push(format!("{ends} port <= {high}")),
                (_, u16::MAX) => parts.push(format!("{ends} port >= {low}")),
                _ => parts.push(format!("{ends} port >= {low} and <= {high}")),
            }
        }
        let pattern = if parts.is_empty() { "all".into() } else { parts.join(" and ") };
        format!("{} {pattern}", if at.is_multiple_of(3) { "drop" } else { "allow" })
    }

    fn packet(&self, rng: &mut fastrand::Rng) -> [u8; 64] {
        let mut packet = [0; 64];
        packet[0] = 0x45;
        packet[9] = self.protocol.unwrap_or_else(|| *[6, 17, 1].get(rng.usize(..3)).unwrap_or(&6));
        for (at, (address, bits)) in [12, 16].into_iter().zip(self.addresses) {
            let free = u32::MAX.checked_shr(bits).unwrap_or(0);
            packet[at..at + 4].copy_from_slice(&(address & !free | rng.u32(..) & free).to_be_bytes());
        }
        for (at, (low, high)) in [20, 22].into_iter().zip(self.ports) {
            packet[at..at + 2].copy_from_slice(&rng.u16(low..=high).to_be_bytes());
        }
        packet
    }
}

fn view(bytes: &[u8; 64]) -> Headers<'_> {
    Headers { mac: &[], network: bytes, transport: 20 }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("a file of rules");
    let count = arguments.next().map_or(usize::MAX, |count| count.parse().expect("a number of rules"));
    let text = std::fs::read_to_string(&path).expect("the file of rules is readable");
    let rules: Vec<Rule> = text.lines().filter_map(parse).take(count).collect();
    let texts: Vec<String> = rules.iter().enumerate().map(|(at, rule)| rule.text(at)).collect();
    let mut log = Log::new();
    let begin = Instant::now();
    let filter = Filter::ip_filter(&texts, 1, &BuiltIn, &mut log).expect("the rules compile");
    let built = begin.elapsed();
    let mut rng = fastrand::Rng::with_seed(SEED);
    let packets: Vec<[u8; 64]> = (0..PACKETS).map(|_| rules[rng.usize(..rules.len())].packet(&mut rng)).collect();
    let mut best = Duration::MAX;
    let mut allowed = 0;
    for _ in 0..20 {
        let begin = Instant::now();
        allowed = packets.iter().filter(|packet| filter.classify(&view(packet)).is_some()).count();
        best = best.min(begin.elapsed());
    }
    println!(
        "{path}: {} rules, built in {:.3} s, tables of {:.1} MiB, {:.1} ns a packet ({:.1} million a second), {allowed} of {PACKETS} allowed",
        rules.len(),
        built.as_secs_f64(),
        filter.table_bytes() as f64 / f64::from(1 << 20),
        best.as_nanos() as f64 / PACKETS as f64,
        PACKETS as f64 / best.as_secs_f64() / 1e6,
    );
}
