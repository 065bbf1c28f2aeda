//! AggregateIPFlows: numbers packets by their TCP or UDP flow.
//!
//! `AggregateIPFlows([TRACEINFO, SOURCE, TCP_TIMEOUT, TCP_DONE_TIMEOUT, UDP_TIMEOUT, FRAGMENT_TIMEOUT, REAP, ICMP, FRAGMENTS])`:
//! packets pass, pushed or pulled. The aggregate annotation becomes the flow's number, from 1 in the order in which flows begin;
//! the paint annotation 0 in the direction of its first packet, 1 in the other one (2 and 3: ICMP errors about them). Packets that
//! are neither, or too short, go to output 1 (push), if it is there.
//!
//! - TCP_TIMEOUT (24 h), TCP_DONE_TIMEOUT (30 s; both sides have ended), UDP_TIMEOUT (60 s): after so long without a packet, the
//!   next one begins a new flow. Time is that of packets. REAP (20 min): how often what is old is dropped.
//! - ICMP (false): errors about a flow are of it.
//! - FRAGMENTS (true where packets are pushed, and only there): fragments wait until FRAGMENT_TIMEOUT (30 s), for the one that
//!   has the ports; packets between the same addresses wait behind them.
//! - TRACEINFO: a file that gets an XML element for each flow that ends; SOURCE: an element whose `filename` and
//!   `packet_filepos` stand there, too.
//!
//! Handlers: `clear` (w): all flows end, and fragments leave.
//!
//! Different from Click: fragments without ports leave by output 1, as its manual says; nobody else is told of flows.

use super::flows::{Flows, Taken};
use crate::args::{Args, ElementRef, Failed, Interval};
use crate::capture::Output;
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::io::Write;

/// The element.
#[derive(Default)]
pub(super) struct AggregateIpFlows {
    flows: Flows,
    fragments: Option<bool>,
    reap: Interval,
    next_reap: Option<i64>,
    has_warned: bool,
    trace_name: String,
    trace: Option<Output>,
    source: Option<ElementRef>,
}

impl AggregateIpFlows {
    /// Numbers a packet, and emits those that were waiting; says what becomes of this one.
    fn handle(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Taken {
        if packet.timestamp().is_zero() {
            if !self.has_warned {
                self.has_warned = true;
                cx.say(format_args!("{}: warning: packet received without timestamp", cx.declaration()));
            }
            packet.set_timestamp(cx.now());
        }
        let mut waiting = Vec::new();
        let position = self.source.filter(|_| self.trace.is_some()).map(|source| source.0);
        let mut filepos = || {
            let read = cx.read_of(position, "packet_filepos", "").ok().filter(|_| position.is_some());
            read.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let taken = self.flows.take(packet, &mut filepos, &mut waiting);
        let now = self.flows.now();
        if self.next_reap.is_some_and(|next| now >= next) {
            self.flows.reap(&mut waiting);
        }
        if self.next_reap.is_none_or(|next| now >= next) {
            self.next_reap = Some(now.saturating_add(self.reap.0.secs()));
        }
        self.emit(cx, waiting);
        taken
    }

    fn emit(&mut self, cx: &mut Cx<'_>, waiting: Vec<(Packet, bool)>) {
        for (packet, has_flow) in waiting {
            if has_flow {
                cx.emit(0, packet);
            } else {
                cx.emit_checked(1, packet);
            }
        }
        self.tell(cx);
    }

    /// Writes the flows that have ended.
    fn tell(&mut self, cx: &Cx<'_>) {
        let ended = self.flows.take_ended();
        if let (Some(trace), false) = (&mut self.trace, ended.is_empty())
            && let Err(error) = trace.write_all(ended.concat().as_bytes())
        {
            cx.say(format_args!("{}: {error}", self.trace_name));
            self.trace = None;
        }
    }

    fn open_trace(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if self.trace_name.is_empty() {
            return Ok(());
        }
        let mut trace = Output::create(&self.trace_name, true).map_err(|error| error.to_string())?;
        let name = self.source.and_then(|source| cx.read_of(Some(source.0), "filename", "").ok());
        let file = name.filter(|name| !name.is_empty()).map_or_else(String::new, |name| format!(" file='{name}'"));
        let text = format!("<?xml version='1.0' standalone='yes'?>\n<trace{file}>\n");
        trace.write_all(text.as_bytes()).map_err(|error| format!("{}: {error}", self.trace_name))?;
        self.trace = Some(trace);
        self.flows.keep_ended();
        Ok(())
    }
}

impl Element for AggregateIpFlows {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.reap = Interval(Timestamp::new(20 * 60, 0));
        let mut timeouts = [24 * 3600, 30, 60, 30].map(|seconds| Interval(Timestamp::new(seconds, 0)));
        let names = ["TCP_TIMEOUT", "TCP_DONE_TIMEOUT", "UDP_TIMEOUT", "FRAGMENT_TIMEOUT"];
        for (name, timeout) in names.into_iter().zip(&mut timeouts) {
            args.key(name, timeout);
        }
        let mut has_icmp = false;
        args.key("REAP", &mut self.reap).key("ICMP", &mut has_icmp).key("TRACEINFO", &mut self.trace_name);
        args.key("SOURCE", &mut self.source).key("FRAGMENTS", &mut self.fragments);
        self.flows.configure(timeouts.map(|timeout| timeout.0.secs()), has_icmp);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let is_pulled = cx.input_is_pull(0);
        if is_pulled && self.fragments == Some(true) {
            let text = "'FRAGMENTS true' is incompatible with pull; run this element in a push context";
            return Err(text.to_owned());
        }
        self.flows.set_fragments(self.fragments.unwrap_or(!is_pulled));
        self.open_trace(cx)
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        match self.handle(cx, packet) {
            Taken::Flow(packet) => return Some(packet),
            Taken::Other(packet) => _ = cx.emit_checked(1, packet),
            Taken::Waits => {}
        }
        None
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.button("clear", |aggregate: &mut Self, cx| {
            let mut waiting = Vec::new();
            aggregate.flows.clear(&mut waiting);
            aggregate.emit(cx, waiting);
        });
    }

    /// It asks SOURCE where a packet was.
    fn observes(&self) -> bool {
        self.source.is_some() && !self.trace_name.is_empty()
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.flows.clear(&mut Vec::new());
        self.tell(cx);
        if let Some(mut trace) = self.trace.take() {
            let written = trace.write_all(b"</trace>\n").map_err(|error| error.to_string());
            if let Err(error) = written.and_then(|()| trace.finish().map_err(|error| error.to_string())) {
                cx.say(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::{Harness, fuzz};
    use crate::packet::anno;

    /// Runs a dump through the element; gives aggregate, paint and IP identifier of packets that have a flow.
    #[track_caller]
    fn run(arguments: &str, dump: &str) -> (Vec<[u32; 3]>, Harness) {
        let data = format!("!data timestamp src sport dst dport proto ip_id ip_fragoff ip_len tcp_flags\n{dump}");
        let mut harness = Harness::new(&format!(
            "FromIPSummaryDump(DATA \"{data}\") -> a :: AggregateIPFlows({arguments}) -> take :: Take; a[1] -> other :: Take"
        ));
        harness.run();
        (seen(&harness.take("take")), harness)
    }

    fn seen(packets: &[Packet]) -> Vec<[u32; 3]> {
        let id = |packet: &Packet| u32::from(packet.bytes()[4]) << 8 | u32::from(packet.bytes()[5]);
        let of = |packet: &Packet| [packet.anno_u32(anno::AGGREGATE), packet.anno_u8(anno::PAINT).into(), id(packet)];
        packets.iter().map(of).collect()
    }

    #[test]
    fn flows_directions_and_fragments_are_told_apart() {
        let dump = "1.0 18.26.4.44 30 10.0.0.4 40 U 1 0 100 -\n1.0 18.26.4.44 30 18.26.4.44 41 U 2 0 100 -\n\
                    1.0 10.0.0.4 40 18.26.4.44 30 U 3 0 100 -\n1.0 18.26.4.44 41 18.26.4.44 30 U 4 0 100 -\n\
                    1.0 18.26.4.44 41 18.26.4.44 30 U 5 24 80 -\n1.0 18.26.4.44 30 18.26.4.44 41 U 6 24 84 -\n\
                    1.0 18.26.4.44 41 18.26.4.44 30 U 5 0+ 24 -\n1.0 18.26.4.44 30 18.26.4.44 41 U 6 0+ 24 -\n";
        let (first, mut harness) = run("", dump);
        assert_eq!(first, [[1, 0, 1], [2, 0, 2], [1, 1, 3], [2, 1, 4]]);
        harness.write("a.clear", "").unwrap();
        assert_eq!(seen(&harness.take("take")), [[2, 1, 5], [2, 0, 6], [2, 1, 5], [2, 0, 6]]);
        assert_eq!(harness.take("other").len(), 0);
        let (all, mut harness) = run("FRAGMENTS false", dump);
        assert_eq!((all.len(), seen(&harness.take("other")).iter().map(|seen| seen[2]).collect()), (6, vec![5, 6]));
    }

    #[test]
    fn flows_end_after_their_timeouts() {
        let udp = "1.0 1.0.0.1 1 2.0.0.2 2 U 1 0 30 -\n60.0 2.0.0.2 2 1.0.0.1 1 U 2 0 30 -\n122.0 2.0.0.2 2 1.0.0.1 1 U 3 0 30 -\n";
        assert_eq!(run("", udp).0, [[1, 0, 1], [1, 1, 2], [2, 0, 3]]);
        assert_eq!(run("UDP_TIMEOUT 3min", udp).0, [[1, 0, 1], [1, 1, 2], [1, 1, 3]]);
        assert_eq!(run("REAP 1, UDP_TIMEOUT 10", udp).0, [[1, 0, 1], [2, 0, 2], [3, 0, 3]]);
    }

    #[test]
    fn connections_end_with_both_sides_or_a_reset() {
        let line = |time: u32, flags: &str, forth: bool| {
            let pair = if forth { "1.0.0.1 1 2.0.0.2 2" } else { "2.0.0.2 2 1.0.0.1 1" };
            format!("{time}.0 {pair} T {time} 0 40 {flags}\n")
        };
        let dump = line(1, "S", true)
            + &line(2, "FA", true)
            + &line(3, "FA", false)
            + &line(4, "A", true)
            + &line(5, "S", true);
        let numbers = |dump: &str| run("", dump).0.iter().map(|seen| seen[0]).collect::<Vec<_>>();
        assert_eq!(numbers(&dump), [1, 1, 1, 1, 2]);
        assert_eq!(numbers(&(line(1, "S", true) + &line(2, "R", false) + &line(40, "A", true))), [1, 1, 2]);
        assert_eq!(numbers(&(line(1, "S", true) + &line(2, "F", true) + &line(40, "A", true))), [1, 1, 1]);
    }

    #[test]
    fn errors_belong_to_their_flows_if_asked() {
        use crate::elements::testing::{ip, udp};
        let (a, b, router) = ([1, 0, 0, 1], [2, 0, 0, 2], [9, 9, 9, 9]);
        let packet = |bytes: &[u8]| {
            let mut packet = Packet::from_slice(bytes);
            packet.set_network_header(0, 20);
            packet.set_timestamp(crate::Timestamp::new(5, 0));
            packet
        };
        let datagram = udp((a, 1), (b, 2), b"x");
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend(&datagram);
        let packets =
            [packet(&datagram), packet(&ip(1, router, a, &message)), packet(&ip(1, router, a, &message[..20]))];
        for (arguments, expected) in [("ICMP true", vec![(1, 0), (1, 2)]), ("", vec![(1, 0)])] {
            let mut harness = Harness::new(&format!("give :: Give -> AggregateIPFlows({arguments}) -> take :: Take"));
            harness.give("give", packets.iter().cloned());
            let told: Vec<(u32, u32)> = seen(&harness.take("take")).iter().map(|seen| (seen[0], seen[1])).collect();
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_trace_has_an_element_for_each_flow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let dump = "1.5 1.0.0.1 1 2.0.0.2 2 U 1 0 30 -\n3.0 2.0.0.2 2 1.0.0.1 1 U 2 0 30 -\n4.0 3.0.0.1 1 2.0.0.2 2 U 1 0 30 -\n";
        drop(run(&format!("TRACEINFO {}", path.display()), dump));
        let expected = "<?xml version='1.0' standalone='yes'?>\n<trace>\n\
            <flow aggregate='1' src='1.0.0.1' sport='1' dst='2.0.0.2' dport='2' begin='1.500000' duration='1.500000'>\n  \
            <stream dir='0' packets='1' /><stream dir='1' packets='1' />\n</flow>\n\
            <flow aggregate='2' src='3.0.0.1' sport='1' dst='2.0.0.2' dport='2' begin='4.000000' duration='0.000000'>\n  \
            <stream dir='0' packets='1' /><stream dir='1' packets='0' />\n</flow>\n</trace>\n";
        assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
    }

    #[test]
    fn wrong_arguments_are_told() {
        let told = Harness::errors("GivePull -> AggregateIPFlows(FRAGMENTS true) -> TakePull");
        assert!(
            told.contains("'FRAGMENTS true' is incompatible with pull; run this element in a push context"),
            "{told}"
        );
        assert!(
            Harness::errors("Give -> AggregateIPFlows(UDP_TIMEOUT x) -> Take").contains("UDP_TIMEOUT: type mismatch")
        );
        assert!(Harness::errors("Give -> AggregateIPFlows(TRACEINFO /) -> Take").contains("/: Is a directory"));
    }

    #[test]
    fn no_packet_is_lost() {
        let config = "give :: Give -> a :: AggregateIPFlows(ICMP true, FRAGMENT_TIMEOUT 1) -> take :: Take; a[1] -> other :: Take";
        let mut harness = Harness::new(config);
        for _ in 0..20 {
            harness.give("give", crate::elements::testing::noise(100));
            harness.pass(0.3);
        }
        harness.write("a.clear", "").unwrap();
        assert_eq!(harness.take("take").len() + harness.take("other").len(), 2000);
        let pulled = "give :: Give -> Queue -> AggregateIPFlows -> take :: TakePull";
        fuzz(pulled, &["take"]);
    }
}
