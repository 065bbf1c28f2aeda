//! Packets from the lines that tcpdump prints: TCP, some UDP, and addresses of the rest.
//!
//! ```text
//!   5.226619 192.168.1.100.32784 > 192.150.187.37.ssh: P 1:49(48) ack 1 win 32800 <nop,nop,timestamp 5 6> (DF) [tos 0x10]
//! ```
//!
//! tcpdump counts the sequence numbers of a connection from its first packets; they are made absolute again, as far as
//! those were seen.

mod line;

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::Packet;
use crate::headers::FlowId;

use super::summary::cursor::Cursor;
use super::summary::names;
use super::summary::value::time;
use super::summary::{Notice, TCP_FLAGS};
use super::{Error, Source};
use line::{Line, TCP, UDP, skip_notes};

const ICMP: u8 = 1;
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
const FIN: u8 = 0x01;
/// The longest line that is read.
const LINE_LEN_MAX: usize = 1 << 16;

/// Reads packets from tcpdump's lines.
#[derive(Debug)]
pub struct TcpdumpReader {
    source: Source,
    checksums: bool,
    flows: HashMap<FlowId, Flow>,
    /// Whether the file has absolute sequence numbers; nothing until that can be told.
    is_absolute: Option<bool>,
    line: u64,
    has_complained: bool,
    notices: Vec<Notice>,
}

/// Sequence numbers of a connection, in the direction from the higher port, and in the other one.
#[derive(Debug, Default)]
struct Flow {
    first: [u32; 2],
    last: [u32; 2],
}

impl TcpdumpReader {
    /// Reads what `source` has; with `checksums` packets get them.
    ///
    /// # Errors
    /// A source that cannot be read, or is empty.
    pub fn new(mut source: Source, checksums: bool) -> Result<Self, Error> {
        if source.at_end() {
            source.check()?;
            return Err(Error::new(source.name(), "empty file"));
        }
        let mut notices = Vec::new();
        if !source.peek(1)[0].is_ascii_digit() {
            let text = "first line suspicious; is this a tcpdump output file?".to_owned();
            notices.push(Notice { landmark: source.name().to_owned(), is_warning: true, text });
        }
        let flows = HashMap::new();
        Ok(Self { source, checksums, flows, is_absolute: None, line: 0, has_complained: false, notices })
    }

    /// The next packet; none at the end.
    ///
    /// # Errors
    /// A source that cannot be read further; a line longer than 65,536 bytes.
    pub fn read(&mut self) -> Result<Option<Packet>, Error> {
        while let Some(line) = self.next_line()? {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(line) = self.parse(&line) {
                return Ok(Some(line.packet(self.checksums)));
            }
            if !self.has_complained && !line.trim().is_empty() {
                self.has_complained = true;
                let landmark = format!("{}:{}", self.source.name(), self.line);
                self.notices.push(Notice { landmark, is_warning: false, text: "packet parse error".into() });
            }
        }
        Ok(None)
    }

    fn next_line(&mut self) -> Result<Option<String>, Error> {
        let mut want = 1;
        loop {
            let bytes = self.source.peek(want);
            let have = bytes.len();
            let end = bytes.iter().position(|&byte| byte == b'\n');
            if end.is_none() && have >= want && have <= LINE_LEN_MAX {
                want = have + 1;
                continue;
            }
            self.line += 1;
            if end.is_none() && have > LINE_LEN_MAX {
                return Err(Error::new(&format!("{}:{}", self.source.name(), self.line), "line too long"));
            }
            if have == 0 {
                return self.source.check().map(|()| None);
            }
            let len = end.map_or(have, |end| end + 1);
            let line = self.source.take(len).unwrap_or_default();
            return Ok(Some(String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned()));
        }
    }

    /// Takes what was wrong since the last time.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// How many bytes of the contents are consumed.
    pub fn position(&self) -> u64 {
        self.source.position()
    }

    /// The file's length in bytes; none for streams and compressed files.
    pub fn file_len(&self) -> Option<u64> {
        self.source.file_len()
    }

    /// The name that stands in messages.
    pub fn name(&self) -> &str {
        self.source.name()
    }

    /// What a line says; none where it is no packet's.
    fn parse(&mut self, text: &str) -> Option<Line> {
        let (stamp, rest) = text.split_once(' ')?;
        let (source, rest) = rest.split_once(" > ")?;
        let (destination, rest) = rest.split_once(':')?;
        let rest = rest.trim_start();
        let protocol = match rest.as_bytes() {
            [b'i', ..] => ICMP,
            [b'u', ..] | [b'[', b'u', ..] => UDP,
            [b'.' | b'A'..=b'Z', ..] => TCP,
            _ => 0,
        };
        let has_ports = protocol == TCP || protocol == UDP;
        let (source, source_port) = endpoint(source, has_ports)?;
        let (destination, destination_port) = endpoint(destination, has_ports)?;
        let mut line = Line { time: time(stamp.as_bytes())?, ..Line::default() };
        (line.ip[0], line.ip[8], line.ip[9]) = (0x45, 2, protocol);
        line.ip[12..16].copy_from_slice(&source.octets());
        line.ip[16..20].copy_from_slice(&destination.octets());
        line.transport = vec![0; if protocol == TCP { 20 } else { 8 }];
        line.transport[..2].copy_from_slice(&source_port.to_be_bytes());
        line.transport[2..4].copy_from_slice(&destination_port.to_be_bytes());
        let mut at = Cursor::new(rest.as_bytes());
        match protocol {
            TCP => self.tcp(&mut line, &mut at, FlowId::new(source, source_port, destination, destination_port)),
            UDP => line.udp(&mut at),
            _ => line.transport.clear(),
        }
        line.trailer(rest);
        Some(line)
    }

    /// Flags, sequence numbers, window, urgent pointer and options, as far as they are there.
    fn tcp(&mut self, line: &mut Line, at: &mut Cursor<'_>, flow: FlowId) {
        line.transport[12] = 0x50;
        let mut flags = tcp_flags(at);
        skip_notes(at, &[b"[bad hdr", b"[tcp sum ok]", b"[bad tcp"]);
        let (seq, end) = sequence(at);
        line.data_len = Some(end.wrapping_sub(seq));
        let mut ack = 0;
        if at.eat(b"ack ") {
            flags |= ACK;
            ack = at.number().unwrap_or(0);
            at.eat(b" ");
        }
        line.transport[13] = flags;
        let (seq, ack, base) = self.absolute(flow, flags, seq, end, ack);
        line.transport[4..8].copy_from_slice(&seq.to_be_bytes());
        line.transport[8..12].copy_from_slice(&ack.to_be_bytes());
        for (name, place) in [(&b"win "[..], 14), (b"urg ", 18)] {
            if at.eat(name) {
                let value = at.number().unwrap_or(0) as u16;
                line.transport[place..place + 2].copy_from_slice(&value.to_be_bytes());
                at.eat(b" ");
            }
        }
        if at.eat(b"<") {
            line.options(&options(at, base));
        }
    }

    /// Makes sequence numbers absolute; the last number is what selective acknowledgements are counted from.
    fn absolute(&mut self, id: FlowId, flags: u8, mut seq: u32, mut end: u32, mut ack: u32) -> (u32, u32, u32) {
        if flags & ACK == 0 {
            return (seq, ack, 0);
        }
        let is_reverse = (id.source_port, id.source) < (id.destination_port, id.destination);
        let (here, there) = (usize::from(is_reverse), usize::from(!is_reverse));
        let flow = self.flows.entry(if is_reverse { id } else { id.reverse() }).or_default();
        if flow.first == [0, 0] || flags & SYN != 0 {
            flow.first[here] = seq;
            flow.first[there] = ack.wrapping_sub(1);
        } else {
            let seems_absolute = ack.wrapping_sub(flow.first[there]) as i32 >= 0 && ack > 8000;
            let is_absolute = *self.is_absolute.get_or_insert(seems_absolute);
            let base = |side: usize| if is_absolute { 0 } else { flow.first[side] };
            if (seq, end) == (0, 0) {
                (seq, end) = (flow.last[here], flow.last[here]);
            } else {
                (seq, end) = (seq.wrapping_add(base(here)), end.wrapping_add(base(here)));
            }
            ack = ack.wrapping_add(base(there));
        }
        flow.last[here] = end.wrapping_add(u32::from(flags & SYN != 0)).wrapping_add(u32::from(flags & FIN != 0));
        if flow.last[there] == 0 {
            flow.last[there] = ack;
        }
        (seq, ack, if self.is_absolute == Some(true) { 0 } else { flow.first[there] })
    }
}

/// An address, and the port behind its last point.
fn endpoint(text: &str, has_port: bool) -> Option<(Ipv4Addr, u16)> {
    if !has_port {
        return Some((text.parse().ok()?, 0));
    }
    let (address, port) = text.rsplit_once(['.', ':'])?;
    Some((address.parse().ok()?, names::port(port)?))
}

/// Letters of flags; a point is no letter but an acknowledgement.
fn tcp_flags(at: &mut Cursor<'_>) -> u8 {
    let mut flags = 0;
    if at.eat(b".") {
        flags = ACK;
    } else {
        while let Some(bit) = (0..8).find(|&bit| at.eat(&TCP_FLAGS[bit..=bit]) || (bit == 7 && at.eat(b"W"))) {
            flags |= 1 << bit;
        }
    }
    at.eat(b" ");
    flags
}

/// `1:49(48)`.
fn sequence(at: &mut Cursor<'_>) -> (u32, u32) {
    if !at.digit_next() {
        return (0, 0);
    }
    let seq = at.number().unwrap_or(0);
    let end = if at.eat(b":") { at.number().unwrap_or(seq) } else { seq };
    if at.eat(b"(") {
        at.eat_until(b")");
    }
    at.eat(b" ");
    (seq, end)
}

/// Options up to `>`; those that are not known are left out.
fn options(at: &mut Cursor<'_>, base: u32) -> Vec<u8> {
    let mut all = Vec::new();
    while !at.is_empty() && !at.eat(b">") {
        let mut one = Vec::new();
        let known = option(at, base, &mut one).is_some();
        at.eat(b" ");
        let ends = at.eat(b",") || at.starts_with(b">");
        if !ends {
            // Not the option that it seemed to be.
            while !at.is_empty() && !at.starts_with(b">") && !at.eat(b",") {
                at.skip(1);
            }
        } else if known {
            all.extend(one);
        }
    }
    all.resize(all.len().next_multiple_of(4), 0);
    all
}

fn option(at: &mut Cursor<'_>, base: u32, out: &mut Vec<u8>) -> Option<()> {
    if at.eat(b"nop") {
        out.push(1);
    } else if at.eat(b"eol") {
        out.push(0);
    } else if at.eat(b"mss ") {
        let mss = u16::try_from(at.number()?).ok()?;
        out.extend([2, 4]);
        out.extend(mss.to_be_bytes());
    } else if at.eat(b"wscale ") {
        out.extend([3, 3, u8::try_from(at.number()?).ok()?]);
    } else if at.eat(b"sackOK") {
        out.extend([4, 2]);
    } else if at.eat(b"timestamp ") {
        let first = at.number()?;
        let echoed = if at.eat(b" ") { at.number()? } else { return None };
        out.extend([8, 10]);
        out.extend([first.to_be_bytes(), echoed.to_be_bytes()].concat());
    } else if at.eat(b"sack sack ") {
        at.number()?;
        out.extend([5, 2]);
        at.eat(b" ");
        while at.eat(b"{") {
            let left = at.number()?.wrapping_add(base);
            let right = if at.eat(b":") { at.number()?.wrapping_add(base) } else { return None };
            out.extend([left.to_be_bytes(), right.to_be_bytes()].concat());
            at.eat(b"}");
        }
        out[1] = u8::try_from(out.len()).ok()?;
    } else {
        return None;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use bifolio_testing::seed;

    use super::super::summary::{Field, Summarizer, SummaryWriterOptions};
    use super::*;
    use crate::headers::checksum;

    fn read(text: &str) -> (Vec<Packet>, Vec<String>) {
        let mut reader = TcpdumpReader::new(Source::bytes("f", text.as_bytes().to_vec()), true).unwrap();
        let mut packets = Vec::new();
        while let Some(packet) = reader.read().unwrap() {
            packets.push(packet);
        }
        (packets, reader.take_notices().iter().map(ToString::to_string).collect())
    }

    fn lines(packets: &[Packet], fields: &str) -> String {
        let options =
            SummaryWriterOptions { binary: false, bad_packets: false, careful_trunc: true, extra_length: true };
        let fields = fields.split(' ').map(|name| Field::find(name).unwrap()).collect();
        let mut summarizer = Summarizer::new(fields, options);
        let mut out = Vec::new();
        for packet in packets {
            summarizer.describe(packet, &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_of_udp_become_packets() {
        let text = "1.056252 169.232.91.64.1040 > 239.255.255.250.1900:  udp 90 [ttl 1]\n\
                    2.898617 169.232.91.4.771 > 224.0.0.2.hsrp:  udp 20 [tos 0xc0]  [ttl 1] (id 37528, len 48)\n";
        let (packets, notices) = read(text);
        let fields = "timestamp src sport dst dport proto ip_len udp_len ip_ttl ip_tos ip_id payload_len";
        let expected = "1.056252 169.232.91.64 1040 239.255.255.250 1900 U 118 98 1 0 0 90\n\
                        2.898617 169.232.91.4 771 224.0.0.2 1985 U 48 28 1 192 37528 20\n";
        assert_eq!((lines(&packets, fields).as_str(), notices.len()), (expected, 0));
    }

    #[test]
    fn sequence_numbers_of_connections_become_absolute() {
        let text = "29.1 10.0.0.1.32801 > 10.0.0.2.http: SWE 646783667:646783667(0) win 5840 <mss 1460,sackOK,timestamp 533430 0,nop,wscale 0> (DF)\n\
                    29.2 10.0.0.2.http > 10.0.0.1.32801: S 2865792400:2865792400(0) ack 646783668 win 8190 <mss 1452>\n\
                    29.3 10.0.0.1.32801 > 10.0.0.2.http: . ack 1 win 5840 (DF)\n\
                    29.4 10.0.0.1.32801 > 10.0.0.2.http: P 1:512(511) ack 1 win 5840 (DF)\n\
                    29.5 10.0.0.2.http > 10.0.0.1.32801: . [tcp sum ok] ack 512 win 31460 <nop,nop,sack sack 1 {600:700} > [tos 0x10]\n";
        let (packets, notices) = read(text);
        assert_eq!(notices, [""; 0]);
        let expected = "32801 80 646783667 0 SEC 5840 mss1460;sackok;ts533430:0;wscale0 0! 0\n\
                        80 32801 2865792400 646783668 SA 8190 mss1452 0 0\n\
                        32801 80 646783668 2865792401 A 5840 . 0! 0\n\
                        32801 80 646783668 2865792401 PA 5840 . 0! 511\n\
                        80 32801 2865792401 646784179 A 31460 sack646784267-646784367 0 0\n";
        assert_eq!(
            lines(&packets, "sport dport tcp_seq tcp_ack tcp_flags tcp_window tcp_opt ip_fragoff payload_len"),
            expected
        );
        for packet in &packets {
            let bytes = packet.bytes();
            assert!(checksum::is_valid(&bytes[..20]));
        }
    }

    #[test]
    fn other_protocols_and_fragments_have_addresses() {
        let (packets, _) = read(
            "1.0 1.2.3.4 > 5.6.7.8: icmp: echo request (ttl 9, id 7, len 84)\n2.0 1.2.3.4 > 5.6.7.8: (frag 77:100@1480+)\n",
        );
        let expected = "1.2.3.4 5.6.7.8 I 84 9 7 0\n1.2.3.4 5.6.7.8 0 120 2 77 1480+\n";
        assert_eq!(lines(&packets, "src dst proto ip_len ip_ttl ip_id ip_fragoff"), expected);
    }

    #[test]
    fn what_is_wrong_is_said_once() {
        let (packets, notices) = read("hello\n\nhello\n# x\n1.0 1.2.3.4.5 > 5.6.7.8.9: udp 5\n");
        assert_eq!(packets.len(), 1);
        let expected = ["f: warning: first line suspicious; is this a tcpdump output file?", "f:1: packet parse error"];
        assert_eq!(notices, expected);
    }

    #[test]
    fn any_damage_is_survived() {
        let mut random = fastrand::Rng::with_seed(seed());
        let line = "29.1 10.0.0.1.32801 > 10.0.0.2.http: SP [bad hdr length] 6:9(3) ack 5 win 5840 urg 4 <mss 1460,sackOK,timestamp 5 0,sack sack 2 {1:2}{3:4},wscale 0> (DF) [tos 0x2,ECT(0)] (ttl 3, id 4, len 99) (frag 5:6@7+)\n";
        for _ in 0..3000 {
            let mut bytes = line.as_bytes().to_vec();
            for _ in 0..random.usize(..9) {
                let at = random.usize(..bytes.len());
                match random.u8(..3) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes[at] = b" 0<>()[]:,.{}9"[random.usize(..14)],
                    _ => drop(bytes.drain(at..(at + random.usize(..5)).min(bytes.len()).max(at))),
                }
                bytes.push(b'\n');
            }
            let mut reader = TcpdumpReader::new(Source::bytes("f", bytes), random.bool()).unwrap();
            while let Some(packet) = reader.read().unwrap() {
                assert!(packet.len() <= 80);
            }
        }
    }
}
