//! ICMPPingSource: sends ICMP echo requests, and counts the answers.
//!
//! `ICMPPingSource(SRC, DST [, INTERVAL, IDENTIFIER, DATA, LIMIT, ACTIVE, VERBOSE, STOP, MIRROR])`: the output is push or pull, the
//! optional input push. Every INTERVAL (1 s; pull: whenever it is asked) leaves a request from SRC to DST with IDENTIFIER (0),
//! the next sequence number from 1 on, and DATA (none): LIMIT (-1: no end) of them, and then the router stops if STOP (false)
//! says so. It begins if ACTIVE (true). Answers that come to the input are counted by their sequence numbers and, with VERBOSE
//! (true), told as ping tells them, and at the end the summary. With MIRROR (false), to a push output leaves for each of them
//! the next request at once, with the answer's data, whatever the limit is.
//!
//! Handlers: `active` (r/w), `src`, `dst` (r/w), `count`, `limit`, `interval`, `reset_counts` (w); with an input `summary`,
//! `rtt_min`, `rtt_avg`, `rtt_max` (seconds).
//!
//! Unlike Click on Linux: identifier and sequence number are in network order, as Click's manual says.

use std::fmt::Write;
use std::net::Ipv4Addr;

use crate::args::{Amount, Args, Failed, Interval};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::headers::{Icmp, IcmpMut, Ip, IpMut, icmp, ip};
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;
use crate::{Packet, Timestamp};

/// Hops of a request.
const TTL: u8 = 200;
/// The data that fits.
const DATA_MAX: usize = 0xffff - ip::LEN - icmp::LEN;

/// A request that was sent.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    at: Option<Timestamp>,
    is_answered: bool,
}

/// What is known of answers.
#[derive(Debug, Default)]
struct Answers {
    /// By sequence number.
    sent: Vec<Sent>,
    received: u64,
    doubled: u64,
    min_us: u64,
    max_us: u64,
    sum_us: u64,
    square_sum: u128,
}

impl Answers {
    fn reset(&mut self) {
        *self = Self { sent: vec![Sent::default(); 1 << 16], ..Self::default() };
    }

    /// Counts an answer; after how many microseconds it came, if there was such a request.
    fn count(&mut self, sequence: u16, at: Timestamp) -> Option<u64> {
        let sent = self.sent.get_mut(usize::from(sequence))?;
        let begin = sent.at?;
        self.doubled += u64::from(std::mem::replace(&mut sent.is_answered, true));
        let us = if at.is_zero() { 0 } else { (at - begin).nanos().max(0) as u64 / 1000 };
        if !at.is_zero() {
            self.min_us = if self.received == 0 { us } else { self.min_us.min(us) };
            self.max_us = self.max_us.max(us);
            self.sum_us += us;
            self.square_sum += u128::from(us) * u128::from(us);
        }
        self.received += 1;
        Some(us)
    }

    fn average_us(&self) -> u64 {
        self.sum_us / self.received.max(1)
    }

    fn deviation_us(&self) -> u64 {
        let average = u128::from(self.average_us());
        let squares = self.square_sum / u128::from(self.received.max(1));
        squares.saturating_sub(average * average).isqrt() as u64
    }

    fn summary(&self, count: u64) -> String {
        let mut text = format!("{count} packets transmitted, {} received", self.received - self.doubled);
        if self.doubled > 0 {
            let _ = write!(text, ", +{} duplicates", self.doubled);
        }
        if count > 0 {
            let lost = count.saturating_sub(self.received - self.doubled);
            let _ = writeln!(text, ", {}% packet loss", lost * 100 / count);
        }
        if self.received > 0 {
            let [min, average, max, deviation] =
                [self.min_us, self.average_us(), self.max_us, self.deviation_us()].map(millis);
            let _ = writeln!(text, "rtt min/avg/max/mdev = {min}/{average}/{max}/{deviation}");
        }
        text
    }
}

fn millis(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}

fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The element.
pub(super) struct IcmpPingSource {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    interval: Interval,
    identifier: u16,
    data: Vec<u8>,
    limit: Amount,
    is_active: bool,
    is_verbose: bool,
    stops: bool,
    mirrors: bool,
    count: u64,
    /// When the timer expires, if it is set.
    set_for: Option<Timestamp>,
    answers: Option<Answers>,
}

impl Default for IcmpPingSource {
    fn default() -> Self {
        Self {
            source: Ipv4Addr::UNSPECIFIED,
            destination: Ipv4Addr::UNSPECIFIED,
            interval: Interval(Timestamp::new(1, 0)),
            identifier: 0,
            data: Vec::new(),
            limit: Amount(None),
            is_active: true,
            is_verbose: true,
            stops: false,
            mirrors: false,
            count: 0,
            set_for: None,
            answers: None,
        }
    }
}

impl IcmpPingSource {
    fn is_done(&self) -> bool {
        self.limit.0.is_some_and(|limit| self.count >= limit)
    }

    fn next_request(&mut self, cx: &Cx<'_>) -> Option<Packet> {
        let data = std::mem::take(&mut self.data);
        let packet = self.request(cx, &data);
        self.data = data;
        packet
    }

    fn request(&mut self, cx: &Cx<'_>, data: &[u8]) -> Option<Packet> {
        let sequence = (self.count % 0xffff) as u16 + 1;
        let mut packet = Packet::with_room(DEFAULT_HEADROOM, ip::LEN + icmp::LEN + data.len(), 0);
        let bytes = packet.bytes_mut();
        let len = bytes.len() as u16;
        let mut header = IpMut::new(bytes)?;
        header.clear(ip::LEN);
        header.set_total_len(len);
        header.set_id(sequence);
        header.set_ttl(TTL);
        header.set_protocol(ip::PROTOCOL_ICMP);
        header.set_source(self.source);
        header.set_destination(self.destination);
        ip::set_checksum(bytes);
        let message = &mut bytes[ip::LEN..];
        message[icmp::LEN..].copy_from_slice(data);
        let mut header = IcmpMut::new(message)?;
        header.set_kind(icmp::ECHO, 0);
        header.set_id(self.identifier);
        header.set_sequence(sequence);
        icmp::set_checksum(message);
        packet.set_network_header(0, ip::LEN);
        packet.set_dst_ip(self.destination);
        packet.set_timestamp(cx.now());
        if let Some(answers) = &mut self.answers {
            answers.sent[usize::from(sequence)] = Sent { at: Some(cx.now()), is_answered: false };
        }
        self.count += 1;
        Some(packet)
    }

    /// Sets the timer, if there is more to send.
    fn set(&mut self, cx: &mut Cx<'_>, delay: Timestamp) {
        if self.is_active && !self.is_done() && self.set_for.is_none() && cx.output_is_push(0) {
            let at = cx.now() + delay;
            self.set_for = Some(at);
            cx.timer_at(0, at);
        }
    }

    /// Counts an answer. Returns its data; nothing for what is no answer.
    fn receive<'a>(&mut self, cx: &Cx<'_>, packet: &'a Packet) -> Option<&'a [u8]> {
        let ip = packet.network_header().and_then(Ip::new).filter(|ip| ip.protocol() == ip::PROTOCOL_ICMP)?;
        let icmp = Icmp::new(ip.payload()).filter(|_| ip.is_first_fragment())?;
        if icmp.kind() != icmp::ECHO_REPLY || icmp.id() != self.identifier {
            return None;
        }
        let us = self.answers.as_mut()?.count(icmp.sequence(), packet.timestamp())?;
        if self.is_verbose {
            let len = usize::from(ip.total_len()).saturating_sub(ip.header_len() + icmp::LEN);
            let (from, sequence, ttl) = (ip.source(), icmp.sequence(), ip.ttl());
            let name = cx.declaration();
            let time = millis(us);
            cx.say(format_args!("{name}: {len} bytes from {from}: icmp_seq={sequence} ttl={ttl} time={time} ms"));
        }
        Some(icmp.payload())
    }

    fn summary(&self) -> String {
        self.answers.as_ref().map_or_else(String::new, |answers| answers.summary(self.count))
    }
}

impl Element for IcmpPingSource {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("SRC", &mut self.source).must("DST", &mut self.destination);
        args.key("INTERVAL", &mut self.interval).key("IDENTIFIER", &mut self.identifier).key("DATA", &mut self.data);
        args.key("LIMIT", &mut self.limit).key("ACTIVE", &mut self.is_active).key("VERBOSE", &mut self.is_verbose);
        args.key("STOP", &mut self.stops).key("MIRROR", &mut self.mirrors).finish()?;
        if self.data.len() > DATA_MAX {
            return Err(args.error_of("DATA", format_args!("{} bytes, and {DATA_MAX} fit", self.data.len())));
        }
        if self.interval.0.is_zero() {
            args.warning("INTERVAL so small that it is zero");
        }
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if cx.inputs() == 1 {
            self.answers.insert(Answers::default()).reset();
        }
        self.set(cx, self.interval.0);
        Ok(())
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        self.set_for = None;
        let Some(packet) = self.next_request(cx) else { return };
        cx.emit(0, packet);
        if self.is_done() && self.stops {
            cx.stop_driver();
        }
        // A zero would never let time go on.
        self.set(cx, self.interval.0.max(Timestamp::from_nanos(1_000_000)));
    }

    fn run_task(&mut self, _: &mut Cx<'_>) -> Run {
        Run::Stop
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        if !self.is_done() {
            return self.next_request(cx);
        }
        if self.stops {
            cx.stop_driver();
        }
        None
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        let Some(data) = self.receive(cx, &packet) else { return };
        let next = if self.mirrors && cx.output_is_push(0) { self.request(cx, data) } else { None };
        if let Some(next) = next {
            cx.emit(0, next);
        }
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        if self.is_verbose && self.answers.is_some() {
            cx.say(format_args!("{}: {}", cx.declaration(), self.summary().trim_end()));
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("active", |element: &mut Self, _| element.is_active);
        handlers.write("active", |element: &mut Self, cx, text| {
            element.is_active = cx.parse(text)?;
            if element.is_active {
                element.set(cx, Timestamp::ZERO);
            } else {
                element.set_for = None;
                cx.timer_cancel(0);
            }
            Ok(())
        });
        handlers.data("src", |element: &mut Self| &mut element.source);
        handlers.data("dst", |element: &mut Self| &mut element.destination);
        handlers.read("count", |element: &mut Self, _| element.count);
        handlers.write("limit", |element: &mut Self, cx, text| {
            element.limit = cx.parse(text).map_err(|_| "'limit' should be integer")?;
            element.set(cx, element.interval.0);
            Ok(())
        });
        handlers.write("interval", |element: &mut Self, cx, text| {
            element.interval = cx.parse(text).map_err(|_| "'interval' should be an interval")?;
            Ok(())
        });
        handlers.button("reset_counts", |element: &mut Self, cx| {
            element.count = 0;
            if let Some(answers) = &mut element.answers {
                answers.reset();
            }
            element.set(cx, element.interval.0);
        });
        handlers.read("summary", |element: &mut Self, _| element.summary());
        for (name, value) in [
            ("rtt_min", (|answers| answers.min_us) as fn(&Answers) -> u64),
            ("rtt_avg", Answers::average_us),
            ("rtt_max", |answers| answers.max_us),
        ] {
            handlers.read(name, move |element: &mut Self, _| seconds(element.answers.as_ref().map_or(0, value)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz};
    use crate::headers::checksum;

    fn sequences(packets: &[Packet]) -> Vec<u16> {
        packets.iter().map(|packet| Icmp::new(&packet.bytes()[20..]).unwrap().sequence()).collect()
    }

    #[test]
    fn requests_leave_at_their_interval_up_to_the_limit() {
        let config = "s :: ICMPPingSource(1.0.0.1, 2.0.0.2, INTERVAL 0.5, IDENTIFIER 9, DATA abc, LIMIT 3, STOP true)";
        let mut harness = Harness::new(&format!("{config} -> take :: Take"));
        let runcount = harness.runcount();
        harness.pass(0.4);
        assert!(harness.take("take").is_empty());
        harness.pass(0.7);
        let out = harness.take("take");
        assert_eq!((sequences(&out), harness.runcount()), (vec![1, 2], runcount));
        let ip = Ip::checked(out[0].bytes()).unwrap();
        assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()));
        let icmp = Icmp::new(ip.payload()).unwrap();
        assert_eq!((icmp.kind(), icmp.id(), icmp.payload(), ip.ttl(), ip.id()), (8, 9, &b"abc"[..], 200, 1));
        assert_eq!((out[0].dst_ip(), ip.source()), (Ipv4Addr::new(2, 0, 0, 2), Ipv4Addr::new(1, 0, 0, 1)));
        harness.pass(5.0);
        assert_eq!((sequences(&harness.take("take")), harness.runcount()), (vec![3], runcount - 1));
    }

    #[test]
    fn it_can_be_stopped_and_go_on() {
        let mut harness = Harness::new("s :: ICMPPingSource(1.0.0.1, 2.0.0.2, ACTIVE false, LIMIT 2) -> take :: Take");
        harness.pass(3.0);
        assert_eq!((harness.read("s.count"), harness.read("s.active")), ("0".into(), "false".into()));
        harness.write("s.active", "true").unwrap();
        harness.pass(0.1);
        assert_eq!(harness.read("s.count"), "1");
        harness.write("s.active", "false").unwrap();
        harness.pass(3.0);
        assert_eq!(harness.read("s.count"), "1");
        harness.write("s.limit", "5").unwrap();
        harness.write("s.interval", "100ms").unwrap();
        harness.write("s.active", "true").unwrap();
        harness.pass(3.0);
        assert_eq!(harness.read("s.count"), "5");
        harness.write("s.reset_counts", "").unwrap();
        harness.pass(0.15);
        assert_eq!(harness.read("s.count"), "1");
        assert_eq!(harness.write("s.limit", "x").unwrap_err().trim(), "'limit' should be integer");
    }

    #[test]
    fn pulled_requests_come_at_once() {
        let mut harness =
            Harness::new("s :: ICMPPingSource(1.0.0.1, 2.0.0.2, LIMIT 2) -> take :: TakePull(MANUAL true)");
        let pulled: Vec<_> = (0..3).filter_map(|_| harness.pull("take")).collect();
        assert_eq!(sequences(&pulled), [1, 2]);
    }

    #[test]
    fn answers_are_counted_and_told() {
        let mut harness = Harness::new(
            "s :: ICMPPingSource(1.0.0.1, 2.0.0.2, LIMIT 4, IDENTIFIER 7) -> take :: Take; give :: Give -> s",
        );
        harness.pass(10.0);
        let out = harness.take("take");
        let answer = |packet: &Packet, ms: i64| {
            let mut packet = packet.clone();
            packet.set_timestamp(packet.timestamp() + Timestamp::from_nanos(ms * 1_000_000));
            packet.bytes_mut()[20] = 0;
            packet
        };
        let mut stranger = answer(&out[3], 1);
        stranger.bytes_mut()[25] = 8;
        let answers = [answer(&out[0], 2), answer(&out[1], 4), answer(&out[1], 6), stranger, out[3].clone()];
        harness.give("give", answers);
        let expected = "4 packets transmitted, 2 received, +1 duplicates, 50% packet loss\n\
                        rtt min/avg/max/mdev = 2.000/4.000/6.000/1.632\n";
        assert_eq!(harness.read("s.summary"), expected);
        assert_eq!(
            ["min", "avg", "max"].map(|name| harness.read(&format!("s.rtt_{name}"))),
            ["0.002", "0.004", "0.006"]
        );
        let said = harness.said();
        assert_eq!(said.len(), 3);
        assert_eq!(said[0], "s :: ICMPPingSource: 0 bytes from 1.0.0.1: icmp_seq=1 ttl=200 time=2.000 ms");
    }

    #[test]
    fn answers_are_mirrored() {
        let config = "s :: ICMPPingSource(1.0.0.1, 2.0.0.2, LIMIT 1, DATA abc, VERBOSE false, MIRROR true)";
        let mut harness = Harness::new(&format!("{config} -> take :: Take; give :: Give -> s"));
        harness.pass(3.0);
        let mut answer = harness.take("take").remove(0);
        answer.bytes_mut()[20] = icmp::ECHO_REPLY;
        answer.bytes_mut()[28..].copy_from_slice(b"xyz");
        let mut other = answer.clone();
        other.bytes_mut()[20] = icmp::ECHO;
        harness.give("give", [answer, other]);
        let out = harness.take("take");
        assert_eq!(sequences(&out), [2]);
        let ip = Ip::checked(out[0].bytes()).unwrap();
        assert!(ip.is_checksum_valid() && checksum::is_valid(ip.payload()));
        assert_eq!(Icmp::new(ip.payload()).unwrap().payload(), b"xyz");
        assert_eq!(harness.read("s.count"), "2");
    }

    #[test]
    fn its_arguments_are_checked() {
        let errors = |config: &str| Harness::errors(&format!("ICMPPingSource({config}) -> Take"));
        assert!(errors("1.0.0.1").contains("DST: required argument missing"));
        assert!(errors("1.0.0.1, 2.0.0.2, INTERVAL x").contains("INTERVAL: type mismatch"));
        assert!(errors("1.0.0.1, 2.0.0.2, IDENTIFIER -1").contains("IDENTIFIER: must be >= 0"));
        let long = "x".repeat(70_000);
        assert!(errors(&format!("1.0.0.1, 2.0.0.2, DATA {long}")).contains("DATA: 70000 bytes, and 65507 fit"));
    }

    #[test]
    fn any_packets_are_survived() {
        fuzz("s :: ICMPPingSource(1.0.0.1, 2.0.0.2, VERBOSE false) -> take :: Take; give :: Give -> s", &["take"]);
    }
}
