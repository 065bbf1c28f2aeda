//! Random traffic for a configuration: its hosts, what they send by themselves, and what they answer.
//!
//! Addresses come from the configuration's own text, so that a new one gets traffic that concerns it. Answers are made of
//! what a router has sent: who is asked by ARP answers, flows get their other half, pings are answered, errors are told.

use crate::wire::{Ether, Header, Ip, arp, frame, icmp, ip, sum_header, tcp, udp};
use bifolio_net::capture::{LinkType, PcapOptions, PcapWriter, Reader};
use bifolio_net::lang::{Graph, config};
use bifolio_net::rules;
use std::net::Ipv4Addr;
use std::path::Path;

/// A packet of a capture: its time in nanoseconds, and its bytes.
pub(crate) type Timed = (i64, Vec<u8>);

pub(crate) const SECOND: i64 = 1_000_000_000;

/// When traffic begins: when simulated time does.
pub(crate) const BEGIN: i64 = 1_000_000_000 * SECOND;

const BROADCAST: Ether = [0xff; 6];

/// Writes a capture.
pub(crate) fn write(path: &Path, packets: &[Timed]) {
    let options = PcapOptions { link: LinkType::ETHERNET, snaplen: 65_535, nano: true };
    let mut writer = PcapWriter::new(std::fs::File::create(path).unwrap(), options).unwrap();
    for (time, bytes) in packets {
        writer.write(*time, bytes, bytes.len() as u32).unwrap();
    }
}

/// Reads a capture.
pub(crate) fn read(path: &Path) -> Vec<Timed> {
    let mut reader = Reader::open(path.to_str().unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.read().unwrap() {
        packets.push((record.time_ns, record.data.to_vec()));
    }
    packets
}

/// The Ethernet address of a host, by its IP address.
pub(crate) fn ether(ip: Ip) -> Ether {
    [4, 0, ip[0], ip[1], ip[2], ip[3]]
}

/// Who is there.
pub(crate) struct World {
    ips: Vec<Ip>,
    /// Networks of 256 addresses around those.
    nets: Vec<[u8; 3]>,
    ethers: Vec<Ether>,
    /// What rules about payloads search for: of each, all of its contents.
    texts: Vec<Vec<u8>>,
}

/// Payloads that match rules of a file, one for each rule.
fn matching(file: &str) -> Vec<Vec<u8>> {
    let rules = rules::parse(&std::fs::read(file).unwrap_or_else(|error| panic!("{file}: {error}"))).rules;
    rules.iter().map(|rule| rule.contents().map(|content| &content.bytes[..]).collect::<Vec<_>>().join(&b' ')).collect()
}

fn parse_ether(word: &str) -> Option<Ether> {
    let bytes: Option<Vec<u8>> = word.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes?.try_into().ok()
}

impl World {
    /// The addresses that a configuration names.
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut world = Self { ips: Vec::new(), nets: Vec::new(), ethers: Vec::new(), texts: Vec::new() };
        for searches in graph.elements.iter().filter(|element| element.class.ends_with("IDSMatcher")) {
            let args = config::split_args(&searches.config);
            let files = args.iter().filter_map(|argument| argument.strip_prefix("RULES "));
            world.texts.extend(files.flat_map(|file| matching(&config::unquote(file.trim()))));
        }
        let words = graph
            .elements
            .iter()
            .flat_map(|element| element.config.split(|c: char| !c.is_ascii_hexdigit() && !".:".contains(c)));
        for word in words {
            world.ips.extend(word.parse::<Ipv4Addr>().map(|ip| ip.octets()));
            world.ethers.extend(parse_ether(word));
        }
        world.ips.sort_unstable();
        world.ips.dedup();
        world.nets = world.ips.iter().map(|ip| [ip[0], ip[1], ip[2]]).collect();
        world.nets.push([198, 51, 100]);
        world.nets.dedup();
        // Addresses of networks are nobody's.
        world.ips.retain(|ip| ip[3] > 0);
        if world.ips.is_empty() {
            world.ips.push([198, 51, 100, 1]);
        }
        world
    }

    fn host(&self, random: &mut fastrand::Rng) -> Ip {
        let net = random.choice(&self.nets).expect("there is one");
        [net[0], net[1], net[2], [2, 3, 4, 254][random.usize(..4)]]
    }

    /// An address to which somebody sends.
    fn target(&self, random: &mut fastrand::Rng) -> Ip {
        match random.u8(..20) {
            0 => [255; 4],
            1 => [224, 0, 0, random.u8(..)],
            2 => [random.u8(..), random.u8(..), random.u8(..), random.u8(..)],
            3..10 => *random.choice(&self.ips).expect("there is one"),
            _ => self.host(random),
        }
    }

    /// The Ethernet address that a frame to `ip` has.
    fn next_hop(&self, ip: Ip, random: &mut fastrand::Rng) -> Ether {
        match random.u8(..20) {
            0 => BROADCAST,
            1 => [1, 0, 0x5e, random.u8(..), random.u8(..), random.u8(..)],
            2 => [6, random.u8(..), random.u8(..), 0, 0, 0],
            3 => ether(ip),
            _ => *random.choice(&self.ethers).unwrap_or(&ether(ip)),
        }
    }

    /// What hosts at a link send by themselves.
    pub(crate) fn traffic(&self, count: usize, random: &mut fastrand::Rng) -> Vec<Timed> {
        let mut time = BEGIN;
        let mut packets = Vec::new();
        while packets.len() < count {
            let mut bytes = self.any_frame(random);
            if random.u8(..12) == 0 {
                damage(&mut bytes, random);
            }
            // Bursts: several packets of one moment.
            for _ in 0..=random.usize(..3) {
                packets.push((time, bytes.clone()));
            }
            time += match random.u8(..100) {
                0 => random.i64(0..100 * SECOND),
                1..50 => 0,
                _ => random.i64(0..SECOND / 50),
            };
        }
        packets
    }

    fn any_frame(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let (src, dst) = (self.host(random), self.target(random));
        match random.u8(..20) {
            0 => frame(BROADCAST, ether(src), 0x806, &arp(1, (ether(src), src), ([0; 6], dst))),
            1 => {
                let to = self.next_hop(dst, random);
                frame(to, ether(src), 0x806, &arp(random.u16(..4), (ether(src), src), (to, dst)))
            }
            2 => {
                let kind = [0x86dd, 0x8100, 0x88a8, 60, random.u16(..)][random.usize(..5)];
                frame(self.next_hop(dst, random), ether(src), kind, &self.any_ip(src, dst, random))
            }
            _ => frame(self.next_hop(dst, random), ether(src), 0x800, &self.any_ip(src, dst, random)),
        }
    }

    fn any_ip(&self, src: Ip, dst: Ip, random: &mut fastrand::Rng) -> Vec<u8> {
        let len = [0, 1, 8, 64, 512, 700, 1400, 1472, 1600][random.usize(..9)];
        let mut data = vec![random.u8(..); random.usize(..=len)];
        if let Some(text) = random.choice(&self.texts).filter(|_| random.u8(..3) == 0) {
            let at = if random.bool() { 0 } else { random.usize(..=data.len()) };
            data.splice(at..at, text.iter().copied());
        }
        let ports = [random.u16(1000..1006), [53, 80, 1024, 5000][random.usize(..4)]];
        let (protocol, payload) = match random.u8(..20) {
            0..6 => (17, udp(src, dst, ports, &data)),
            6..12 => (6, tcp(src, dst, ports, [2, 16, 17, 4, 24, random.u8(..)][random.usize(..6)], &data)),
            12..16 => (1, icmp([8, 8, 8, 0][random.usize(..4)], 0, [0, random.u8(1..4), 0, random.u8(..4)], &data)),
            16 => {
                let about = Header { ttl: 1, protocol: 17, ..Header::default() };
                let about = ip(&about, dst, self.host(random), &udp(dst, src, ports, &data));
                (1, icmp([3, 4, 5, 11, 12][random.usize(..5)], random.u8(..4), [0; 4], &about[..28]))
            }
            17 => (1, icmp(random.u8(..), random.u8(..), [random.u8(..); 4], &data)),
            _ => (random.u8(..), data),
        };
        let header = Header {
            tos: random.u8(..),
            id: random.u16(..),
            fragment: [0, 0, 0, 0, 0x4000, 0x4000, 0x2000, random.u16(..)][random.usize(..8)],
            ttl: [0, 1, 2, 64, 64, 64, 64, 255][random.usize(..8)],
            protocol,
            options: if random.u8(..6) == 0 { any_options(src, random) } else { Vec::new() },
        };
        ip(&header, src, dst, &payload)
    }
}

/// What hosts send after they have got these packets.
pub(crate) fn answers(packets: &[Timed], count: usize, random: &mut fastrand::Rng) -> Vec<Timed> {
    let share = count as f64 / packets.len().max(1) as f64;
    let mut answers = Vec::new();
    for (time, bytes) in packets {
        if random.f64() < share
            && let Some(answer) = answer(bytes, random)
        {
            answers.push((time + random.i64(0..4) * SECOND / 500, answer));
        }
    }
    answers
}

/// Options of an IP header, good ones and bad ones.
fn any_options(ip: Ip, random: &mut fastrand::Rng) -> Vec<u8> {
    let pointer = [4, 8, 3, 5, 40, random.u8(..)][random.usize(..6)];
    let mut options = match random.u8(..7) {
        0 => [&[7, 11, pointer][..], &[0; 8]].concat(),
        1 => [&[68, 12, pointer.wrapping_add(random.u8(..2)), random.u8(..4)][..], &[0; 8]].concat(),
        2 => [&[131, 7, pointer][..], &ip].concat(),
        3 => vec![1, 1, 1, 0],
        4 => vec![7, random.u8(..)],
        5 => vec![148, 4, 0, 0],
        _ => (0..random.usize(..40)).map(|_| random.u8(..)).collect(),
    };
    options.truncate(40);
    options
}

/// Makes a frame wrong: too short, with lying lengths, or with a byte that is another one.
fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    match random.u8(..4) {
        0 => bytes.truncate(random.usize(..=bytes.len())),
        1 if bytes.len() > 34 => {
            bytes[14] = random.u8(..);
            sum_header_at(bytes);
        }
        2 if bytes.len() > 34 => {
            bytes[16..18].copy_from_slice(&random.u16(..2000).to_be_bytes());
            sum_header_at(bytes);
        }
        _ => {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
    }
}

/// Makes the checksum of a frame's IP header right, if the header is there.
fn sum_header_at(frame: &mut [u8]) {
    let len = usize::from(frame[14] & 15) * 4;
    if (20..=frame.len() - 14).contains(&len) {
        sum_header(&mut frame[14..]);
    }
}

fn bytes<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn answer(packet: &[u8], random: &mut fastrand::Rng) -> Option<Vec<u8>> {
    let (dst, src): (Ether, Ether) = (bytes(packet, 0)?, bytes(packet, 6)?);
    match bytes(packet, 12)? {
        [8, 6] if packet.get(21) == Some(&1) => {
            let (asks, asked): (Ip, Ip) = (bytes(packet, 28)?, bytes(packet, 38)?);
            Some(frame(src, ether(asked), 0x806, &arp(2, (ether(asked), asked), (src, asks))))
        }
        [8, 0] => Some(frame(src, dst, 0x800, &answer_ip(&packet[14..], random)?)),
        _ => None,
    }
}

fn answer_ip(packet: &[u8], random: &mut fastrand::Rng) -> Option<Vec<u8>> {
    let (src, dst): (Ip, Ip) = (bytes(packet, 12)?, bytes(packet, 16)?);
    let header_len = usize::from(packet[0] & 15) * 4;
    let payload = packet.get(header_len..)?;
    let [a, b, c, d]: Ip = bytes(payload, 0)?;
    let ports = [u16::from_be_bytes([c, d]), u16::from_be_bytes([a, b])];
    let mut header = Header { ttl: [1, 60, 60, 60][random.usize(..4)], protocol: packet[9], ..Header::default() };
    let is_error = random.u8(..5) == 0;
    let payload = match packet[9] {
        _ if is_error => {
            header.protocol = 1;
            let (kind, code) = [(11, 0), (3, 3), (3, 4), (5, 1)][random.usize(..4)];
            icmp(kind, code, [0, 0, 2, 0], &packet[..packet.len().min(header_len + 8)])
        }
        17 => udp(dst, src, ports, &[random.u8(..); 20]),
        6 => {
            let flags = if payload.get(13)? & 2 == 0 { [16, 17, 4][random.usize(..3)] } else { 18 };
            tcp(dst, src, ports, flags, &[random.u8(..); 20])
        }
        1 if a == 8 => icmp(0, 0, bytes(payload, 4)?, &payload[8..]),
        _ => return None,
    };
    Some(ip(&header, dst, src, &payload))
}
