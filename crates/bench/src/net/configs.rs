//! The configurations that are measured, and the packets for them.

use super::Options;
use super::classbench::{self, Flow, Rule};
use super::memory::Traffic;
use crate::error::{Error, Result};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::{self, Write};
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

/// Different frames of a run.
const FRAMES: usize = 16 << 10;
/// Different flows, each of one frame, where a rewriter keeps them; fewer of long frames, which would fill the memory.
const FLOWS: usize = 128 << 10;
/// As many bytes may they have.
const FLOW_BYTES: usize = 256 << 20;

/// A configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CaseKind {
    /// The IP router of the Click paper (figure 8), with two interfaces.
    Router,
    /// `IPFilter` with many rules.
    Filter,
    /// `RadixIPLookup` with many routes.
    Lookup,
    /// `IPRewriter` with many flows, each made by its first packet.
    Nat,
}

impl CaseKind {
    const ALL: [(&'static str, Self); 4] =
        [("router", Self::Router), ("filter", Self::Filter), ("lookup", Self::Lookup), ("nat", Self::Nat)];
}

impl fmt::Display for CaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for CaseKind {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        found.ok_or_else(|| format!("'{text}' is no configuration: router, filter, lookup or nat"))
    }
}

/// A configuration, what is written to it before it runs, and its packets.
pub(super) struct Case {
    pub(super) kind: CaseKind,
    pub(super) config: String,
    pub(super) writes: Vec<(String, String)>,
    pub(super) traffic: Arc<Traffic>,
}

impl Case {
    pub(super) fn new(kind: CaseKind, options: &Options, routes: &[String], rules: &[Rule]) -> Result<Self> {
        let mut random = fastrand::Rng::with_seed(options.seed);
        let (config, writes) = match kind {
            CaseKind::Router => {
                (router(), vec![("arpq1.insert".to_owned(), "10.1.255.254 00:00:00:00:00:99".to_owned())])
            }
            CaseKind::Filter if !rules.is_empty() => (classbench::config(rules), Vec::new()),
            CaseKind::Filter => (filter(&mut random, options.rules), Vec::new()),
            CaseKind::Lookup => (lookup(routes), Vec::new()),
            CaseKind::Nat => (NAT.to_owned(), Vec::new()),
        };
        let targets = match kind {
            CaseKind::Filter if !rules.is_empty() => Targets::Rules(rules),
            CaseKind::Lookup => Targets::Routes(routes),
            CaseKind::Router | CaseKind::Filter | CaseKind::Nat => Targets::Subnet,
        };
        let frames = if kind == CaseKind::Nat { FLOWS.min(FLOW_BYTES / options.frame_bytes) } else { FRAMES };
        let traffic = Arc::new(traffic(&mut random, options.frame_bytes, frames, targets)?);
        Ok(Self { kind, config, writes, traffic })
    }
}

/// A gateway's rewriter, from whose ports a flow takes the next one. What an address behind it gets is not measured.
const NAT: &str = "BenchSource -> Strip(14) -> CheckIPHeader
     -> rw :: IPRewriter(pattern 192.0.2.1 1024-65535# - - 0 1, drop) -> BenchSink;
 Idle -> [1] rw; rw [1] -> Discard;";

/// The router: packets come in at interface 0, and leave by interface 1 through a gateway that is known.
fn router() -> String {
    let mut text = "ip :: Strip(14) -> CheckIPHeader(INTERFACES 10.0.0.1/16 10.1.0.1/16)
                 -> rt :: StaticIPLookup(10.0.0.1/32 0, 10.1.0.1/32 0, 10.0.0.0/16 10.0.255.254 1, 10.1.0.0/16 10.1.255.254 2);
             rt[0] -> Discard;\n"
        .to_owned();
    for i in 0..2 {
        let (ip, ether) = (format!("10.{i}.0.1"), format!("00:00:00:00:00:0{}", i + 1));
        let source = if i == 0 { "BenchSource" } else { "Idle" };
        let _ = write!(
            text,
            "c{i} :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
             {source} -> c{i};
             out{i} :: Queue(1000) -> BenchSink;
             arpq{i} :: ARPQuerier({ip}, {ether}) -> out{i};
             c{i}[0] -> ARPResponder({ip} {ether}) -> out{i};
             c{i}[1] -> [1]arpq{i};
             c{i}[2] -> Paint({}) -> ip;
             c{i}[3] -> Discard;
             rt[{}] -> DropBroadcasts -> cp{i} :: PaintTee({0}) -> gio{i} :: IPGWOptions({ip}) -> FixIPSrc({ip})
                 -> dt{i} :: DecIPTTL -> fr{i} :: IPFragmenter(1500) -> [0]arpq{i};
             cp{i}[1] -> ICMPError({ip}, redirect, host) -> rt;
             gio{i}[1] -> ICMPError({ip}, parameterproblem) -> rt;
             dt{i}[1] -> ICMPError({ip}, timeexceeded) -> rt;
             fr{i}[1] -> ICMPError({ip}, unreachable, needfrag) -> rt;\n",
            i + 1,
            i + 1,
        );
    }
    text
}

/// Rules about addresses, protocols and ports; the last one lets everything through that no other has refused.
fn filter(random: &mut fastrand::Rng, rules: usize) -> String {
    let mut text = "BenchSource -> Strip(14) -> CheckIPHeader -> IPFilter(".to_owned();
    for _ in 1..rules {
        let net = |random: &mut fastrand::Rng| {
            let len = random.u32(12..=32);
            let address = Ipv4Addr::from(random.u32(..) & (u32::MAX << (32 - len)));
            format!("{address}/{len}")
        };
        // None of these is met by the traffic: its source is in 10.0/16.
        let source = loop {
            let source = net(random);
            if !source.starts_with("10.") {
                break source;
            }
        };
        let proto = ["tcp", "udp", "icmp"][random.usize(..3)];
        let _ = write!(text, "deny src net {source} && dst net {} && {proto}", net(random));
        if proto != "icmp" && random.bool() {
            let _ = write!(text, " && dst port {}", random.u16(1..));
        }
        text += ", ";
    }
    text + "allow all) -> BenchSink;"
}

fn lookup(routes: &[String]) -> String {
    let mut text =
        "BenchSource -> Strip(14) -> CheckIPHeader -> GetIPAddress(16) -> rt :: RadixIPLookup(0.0.0.0/0 0".to_owned();
    for (number, route) in routes.iter().enumerate() {
        let _ = write!(text, ", {route} {}", number % 4);
    }
    text += ");\n";
    (0..4).for_each(|output| _ = writeln!(text, "rt[{output}] -> BenchSink;"));
    text
}

/// The prefixes of the table: those of a file, or drawn with the lengths that tables have.
pub(super) fn routes(options: &Options) -> Result<Vec<String>> {
    if let Some(path) = &options.routes_file {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Error::system(path.display(), "reading", error))?;
        let routes = prefixes(&text).map_err(|(line, text)| {
            let detail = format!("'{text}' is no IPv4 prefix (such as 10.0.0.0/8)");
            Error::failed(format_args!("{}: line {line}", path.display()), detail)
        })?;
        if routes.is_empty() {
            return Err(Error::failed(
                path.display(),
                "there is no IPv4 prefix in it (a prefix a line, such as 10.0.0.0/8)",
            ));
        }
        return Ok(routes);
    }
    let mut random = fastrand::Rng::with_seed(options.seed ^ 0x726f_7574_6573);
    let (mut seen, mut routes) = (HashSet::new(), Vec::new());
    while routes.len() < options.routes {
        let len = match random.u8(..100) {
            0..60 => 24,
            60..72 => 22,
            72..80 => 23,
            80..92 => random.u32(19..=21),
            _ => random.u32(8..=18),
        };
        let prefix = random.u32(1 << 24..) & (u32::MAX << (32 - len));
        if seen.insert((prefix, len)) {
            routes.push(format!("{}/{len}", Ipv4Addr::from(prefix)));
        }
    }
    Ok(routes)
}

/// The IPv4 prefixes of a text, one a line, without the default route. Lines without a dot and a slash are left out, and
/// those with a colon, which are of IPv6; of another one that is no prefix, its number and its text.
fn prefixes(text: &str) -> std::result::Result<Vec<String>, (usize, &str)> {
    let mut routes = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if !line.contains('.') || !line.contains('/') || line.contains(':') {
            continue;
        }
        match prefix(line) {
            Some((_, 0)) => {}
            Some((address, len)) => routes.push(format!("{address}/{len}")),
            None => return Err((number + 1, line)),
        }
    }
    Ok(routes)
}

fn prefix(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, len) = text.split_once('/')?;
    Some((address.parse().ok()?, len.parse().ok().filter(|len| *len <= 32)?))
}

/// The rules of a file; none where there is no file.
pub(super) fn rules(options: &Options) -> Result<Vec<Rule>> {
    let Some(path) = &options.rules_file else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| Error::system(path.display(), "reading", error))?;
    let rules: Vec<_> = text.lines().filter_map(Rule::parse).collect();
    if rules.is_empty() {
        let detail = "there is no rule in it (such as @10.0.0.0/8 18.0.0.0/8 0 : 65535 80 : 80 0x06/0xFF, one a line)";
        return Err(Error::failed(path.display(), detail));
    }
    Ok(rules)
}

/// Where packets go.
#[derive(Clone, Copy)]
enum Targets<'a> {
    /// From 10.0/16 to 10.1/16.
    Subnet,
    /// From there to addresses within routes.
    Routes(&'a [String]),
    /// What rules are about.
    Rules(&'a [Rule]),
}

fn traffic(random: &mut fastrand::Rng, frame_bytes: usize, frames: usize, targets: Targets<'_>) -> Result<Traffic> {
    if frame_bytes < 60 {
        return Err(Error::failed(frame_bytes, "a frame has at least 60 bytes"));
    }
    let mut traffic = Traffic { frames: Vec::with_capacity(frames * frame_bytes), ends: Vec::with_capacity(frames) };
    for _ in 0..frames {
        let flow = match targets {
            Targets::Rules(rules) => rules[random.usize(..rules.len())].flow(random),
            Targets::Subnet => {
                let to = u32::from(Ipv4Addr::new(10, 1, 0, 2)) + random.u32(..60_000);
                udp(random, to)
            }
            Targets::Routes(routes) => {
                let route = &routes[random.usize(..routes.len())];
                let to = within(random, route)?;
                udp(random, to)
            }
        };
        frame(random, &mut traffic.frames, frame_bytes, flow);
        traffic.ends.push(traffic.frames.len());
    }
    Ok(traffic)
}

/// An address of a prefix.
fn within(random: &mut fastrand::Rng, prefix: &str) -> Result<u32> {
    let (address, len) = prefix.split_once('/').unwrap_or(("10.1.0.1", "32"));
    let address: Ipv4Addr = address.parse().map_err(|_| Error::failed(address, "this is no IPv4 prefix"))?;
    let len: u32 = len.parse().unwrap_or(32);
    Ok(u32::from(address) | (random.u32(..) & u32::MAX.checked_shr(len).unwrap_or(0)))
}

fn udp(random: &mut fastrand::Rng, to: u32) -> Flow {
    let from = u32::from(Ipv4Addr::new(10, 0, 0, 2)) + random.u32(..60_000);
    Flow { from, to, ports: [(); 2].map(|()| random.u16(1024..)), protocol: 17 }
}

fn frame(random: &mut fastrand::Rng, frames: &mut Vec<u8>, frame_bytes: usize, flow: Flow) {
    let start = frames.len();
    frames.extend([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 7, 8, 0]);
    let ip_bytes = (frame_bytes - 14) as u16;
    frames.extend([0x45, 0]);
    frames.extend(ip_bytes.to_be_bytes());
    frames.extend(random.u16(..).to_be_bytes());
    frames.extend([0, 0, 64, flow.protocol, 0, 0]);
    frames.extend(flow.from.to_be_bytes());
    frames.extend(flow.to.to_be_bytes());
    let sum = bifolio_net::headers::checksum::internet(&frames[start + 14..]);
    frames[start + 24..start + 26].copy_from_slice(&sum.to_be_bytes());
    flow.ports.iter().for_each(|port| frames.extend(port.to_be_bytes()));
    frames.extend((ip_bytes - 20).to_be_bytes());
    frames.extend([0, 0]);
    frames.extend((frames.len() - start..frame_bytes).map(|_| random.u8(..)).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_prefixes_and_what_is_none_is_told_by_its_line() {
        let text = "# routes\n10.0.0.0/8\n 1.2.3.0/24 \n\n0.0.0.0/0\n2001:db8::/32\n::ffff:1.2.3.4/96\n";
        assert_eq!(prefixes(text), Ok(vec!["10.0.0.0/8".to_owned(), "1.2.3.0/24".to_owned()]));
        for wrong in ["10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "10.0.0.0/255.0.0.0", "10.0.0.0/8 1", "x.y/8"] {
            assert_eq!(prefixes(&format!("{text}{wrong}\n1.0.0.0/8")), Err((8, wrong)), "{wrong}");
        }
    }

    #[test]
    fn a_file_of_routes_is_named_with_the_line_that_is_wrong() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10.0.0.0/8\n10.1.0.0/99\n").unwrap();
        let options = Options {
            cases: Vec::new(),
            packets: 1,
            frame_bytes: 60,
            rules_file: None,
            rules: 0,
            routes_file: Some(file.path().to_owned()),
            routes: 0,
            cores: Vec::new(),
            burst: 1,
            repetitions: 1,
            seed: 0,
        };
        let told = routes(&options).unwrap_err().to_string();
        assert!(
            told.contains(&format!("{}: line 2", file.path().display())) && told.contains("'10.1.0.0/99'"),
            "{told}"
        );
    }
}
