//! How elements are tested: in routers of their own, in simulated time, and each scenario twice, with packets that go together
//! and with packets that go one by one. Whatever can be seen has to be the same.

use crate::args::{Args, Failed};
use crate::element::{Class, Element, Run};
use crate::headers::checksum;
use crate::packet::ANNO_BYTES;
use crate::router::{self, Cx, Options, Running};
use crate::{Clock, Log, Packet, PacketType, Registry, Timestamp, lang};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

/// `Give`: pushes what a test gives it.
#[derive(Default)]
struct Give(VecDeque<Packet>);

impl Element for Give {
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Some(packet) = self.0.pop_front() else { return Run::Stop };
        cx.emit(0, packet);
        Run::Worked
    }
    fn pull(&mut self, _: &mut Cx<'_>, _: usize) -> Option<Packet> {
        self.0.pop_front()
    }
}

/// `Take`: keeps what is pushed to it, or pulls as long as there is something; `Take(MANUAL true)` only when it is asked.
/// With `STAMP true`, packets get the time at which they came.
#[derive(Default)]
struct Take {
    packets: Vec<Packet>,
    is_manual: bool,
    stamps: bool,
}

impl Element for Take {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.key("MANUAL", &mut self.is_manual).key("STAMP", &mut self.stamps).finish()
    }
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if cx.input_is_pull(0) && !self.is_manual {
            cx.schedule();
        }
        Ok(())
    }
    fn push(&mut self, cx: &mut Cx<'_>, _: usize, mut packet: Packet) {
        if self.stamps {
            packet.set_timestamp(cx.now());
        }
        self.packets.push(packet);
    }
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let packet = cx.pull(0);
        let did = if packet.is_some() { Run::Worked } else { Run::Idle };
        self.packets.extend(packet);
        did
    }
}

static CLASSES: &[Class] = &[
    Class::new::<Give>("Give", "0/1", "h", ""),
    Class::new::<Give>("GivePull", "0/1", "l", ""),
    Class::new::<Take>("Take", "1/0", "a", ""),
    Class::new::<Take>("TakePull", "1/0", "l", ""),
];

fn registry() -> Registry {
    let mut registry = Registry::standard();
    registry.add(CLASSES);
    registry
}

/// What can be seen of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) bytes: Vec<u8>,
    anno: [u8; ANNO_BYTES],
    timestamp: Timestamp,
    kind: PacketType,
    offsets: [Option<isize>; 3],
}

impl From<&Packet> for Seen {
    fn from(packet: &Packet) -> Self {
        Self {
            bytes: packet.bytes().to_vec(),
            anno: *packet.anno(),
            timestamp: packet.timestamp(),
            kind: packet.kind(),
            offsets: [packet.mac_offset(), packet.network_offset(), packet.transport_offset()],
        }
    }
}

struct Mode {
    running: Running,
    said: Arc<Mutex<Vec<String>>>,
    printed: Arc<Mutex<String>>,
}

/// A configuration, running in both ways. Elements of a test: `Give` and `GivePull` are sources, `Take` and `TakePull` sinks.
pub(super) struct Harness {
    modes: Vec<Mode>,
}

fn build(config: &str, clock: Clock, is_batched: bool, log: &mut Log) -> Option<Running> {
    let registry = registry();
    let graph = lang::parse(config, "config", &lang::Globals::new(), &registry, log)?;
    router::build(&graph, &registry, Options { clock, is_batched, seed: 1, ..Options::default() }, log)
}

impl Mode {
    #[track_caller]
    fn new(config: &str, clock: Clock, is_batched: bool) -> Self {
        let mut log = Log::new();
        let running = build(config, clock, is_batched, &mut log).unwrap_or_else(|| panic!("{log}"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&said);
        let printed = Arc::new(Mutex::new(String::new()));
        let text = Arc::clone(&printed);
        running.listen(
            move |line| lines.lock().unwrap().push(line.to_owned()),
            move |more| text.lock().unwrap().push_str(more),
        );
        let limit = running.router().clock().now();
        running.router().clock().hold_at(limit);
        Self { running, said, printed }
    }
}

/// A router of a configuration that is right, and runs as the options say.
#[track_caller]
pub(super) fn build_with(config: &str, options: Options) -> Running {
    let (registry, mut log) = (registry(), Log::new());
    let graph = lang::parse(config, "config", &lang::Globals::new(), &registry, &mut log);
    graph.and_then(|graph| router::build(&graph, &registry, options, &mut log)).unwrap_or_else(|| panic!("{log}"))
}

impl Harness {
    /// Starts a configuration, which has to be right.
    #[track_caller]
    pub(super) fn new(config: &str) -> Self {
        let modes = [true, false].map(|is_batched| Mode::new(config, Clock::simulated(), is_batched));
        Self { modes: modes.into() }
    }

    /// Starts a configuration in one way, with packets that go together: for what cannot happen twice.
    #[track_caller]
    pub(super) fn once(config: &str, clock: Clock) -> Self {
        Self { modes: vec![Mode::new(config, clock, true)] }
    }

    /// What is said of a configuration that is wrong.
    #[track_caller]
    pub(super) fn errors(config: &str) -> String {
        let mut log = Log::new();
        assert!(build(config, Clock::simulated(), true, &mut log).is_none(), "this configuration is right: {config}");
        log.to_string()
    }

    /// Both do the same, with the same result.
    #[track_caller]
    fn both<R: PartialEq + std::fmt::Debug>(&mut self, mut work: impl FnMut(&mut Mode) -> R) -> R {
        let mut results: Vec<_> = self.modes.iter_mut().map(&mut work).collect();
        let last = results.pop().expect("a router");
        for other in results {
            assert_eq!(other, last, "packets that go together, and one by one");
        }
        last
    }

    /// Gives packets to a source, all at once, and runs until nothing is left to do at this time.
    #[track_caller]
    pub(super) fn give(&mut self, source: &str, packets: impl IntoIterator<Item = Packet>) {
        let packets: Vec<_> = packets.into_iter().collect();
        self.both(|mode| {
            let id = mode.running.router().find(source).expect("a source of this name");
            let give = |give: &mut Give, cx: &mut Cx<'_>| {
                give.0.extend(packets.iter().cloned());
                if cx.output_is_push(0) {
                    cx.schedule();
                }
            };
            mode.running.enter(id, |cx| cx.with(id, give)).expect("a source");
        });
        self.run();
    }

    /// Gives bytes to a source.
    #[track_caller]
    pub(super) fn give_bytes(&mut self, source: &str, bytes: &[u8]) {
        self.give(source, [Packet::from_slice(bytes)]);
    }

    /// Runs until nothing is left to do at this time.
    #[track_caller]
    pub(super) fn run(&mut self) {
        self.both(|mode| mode.running.run_for(2000));
    }

    /// Lets time pass, in seconds.
    #[track_caller]
    pub(super) fn pass(&mut self, seconds: f64) {
        self.both(|mode| {
            let clock = mode.running.router().clock();
            let until = clock.now() + Timestamp::from_secs_f64(seconds);
            clock.hold_at(until);
            mode.running.run_for(100_000);
            mode.running.router().clock().advance(until);
            mode.running.run_for(2000);
        });
    }

    /// What has come to a sink since it was last asked.
    #[track_caller]
    pub(super) fn take(&mut self, sink: &str) -> Vec<Packet> {
        let mut first = None;
        self.both(|mode| {
            let id = mode.running.router().find(sink).expect("a sink of this name");
            let taken =
                mode.running.enter(id, |cx| cx.with(id, |take: &mut Take, _| std::mem::take(&mut take.packets)));
            let taken = taken.expect("a sink");
            let seen: Vec<_> = taken.iter().map(Seen::from).collect();
            first.get_or_insert(taken);
            seen
        });
        first.unwrap_or_default()
    }

    /// The bytes of what has come to a sink.
    #[track_caller]
    pub(super) fn take_bytes(&mut self, sink: &str) -> Vec<Vec<u8>> {
        self.take(sink).iter().map(|packet| packet.bytes().to_vec()).collect()
    }

    /// A sink pulls once.
    #[track_caller]
    pub(super) fn pull(&mut self, sink: &str) -> Option<Packet> {
        let mut first = None;
        self.both(|mode| {
            let id = mode.running.router().find(sink).expect("a sink of this name");
            let pulled = mode.running.enter(id, |cx| cx.pull(0));
            let seen = pulled.as_ref().map(Seen::from);
            first.get_or_insert(pulled);
            seen
        });
        first.flatten()
    }

    /// Reads a handler that there is.
    #[track_caller]
    pub(super) fn read(&mut self, handler: &str) -> String {
        self.both(|mode| mode.running.read(handler)).unwrap_or_else(|error| panic!("{handler}: {error}"))
    }

    /// Reads a handler.
    #[track_caller]
    pub(super) fn try_read(&mut self, handler: &str) -> Result<String, String> {
        self.both(|mode| mode.running.read(handler))
    }

    /// Writes a handler, and runs until nothing is left to do at this time.
    #[track_caller]
    pub(super) fn write(&mut self, handler: &str, value: &str) -> Result<(), String> {
        let done = self.both(|mode| mode.running.write(handler, value));
        self.run();
        done
    }

    /// Lines that were said since somebody last asked.
    #[track_caller]
    pub(super) fn said(&mut self) -> Vec<String> {
        self.both(|mode| std::mem::take(&mut *mode.said.lock().unwrap()))
    }

    /// What was printed since somebody last asked.
    #[track_caller]
    pub(super) fn printed(&mut self) -> String {
        self.both(|mode| std::mem::take(&mut *mode.printed.lock().unwrap()))
    }

    /// How often the router has yet to be stopped; at 0 it has stopped.
    #[track_caller]
    pub(super) fn runcount(&mut self) -> i32 {
        self.both(|mode| mode.running.router().runcount())
    }

    /// The time.
    #[track_caller]
    pub(super) fn now(&mut self) -> Timestamp {
        self.both(|mode| mode.running.router().clock().now())
    }
}

/// An IP packet (no Ethernet header) with right checksums; `payload` is what follows the IP header.
pub(super) fn ip(protocol: u8, src: [u8; 4], dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet.extend(src);
    packet.extend(dst);
    let sum = checksum::internet(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// A UDP packet with right checksums, from its IP header on.
pub(super) fn udp(src: ([u8; 4], u16), dst: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let mut segment =
        [src.1.to_be_bytes(), dst.1.to_be_bytes(), (8 + payload.len() as u16).to_be_bytes(), [0; 2]].concat();
    segment.extend(payload);
    let (from, to) = (Ipv4Addr::from(src.0), Ipv4Addr::from(dst.0));
    let sum = checksum::udp(from, to, &segment);
    segment[6..8].copy_from_slice(&sum.to_be_bytes());
    ip(17, src.0, dst.0, &segment)
}

/// Packets that are right, cut, changed, or nothing at all, with and without known headers.
pub(super) fn noise(count: usize) -> Vec<Packet> {
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    (0..count).map(|_| noisy(&mut random)).collect()
}

fn noisy(random: &mut fastrand::Rng) -> Packet {
    let mut bytes: Vec<u8> = if random.u8(..4) == 0 {
        (0..random.usize(..100)).map(|_| random.u8(..)).collect()
    } else {
        let address = |random: &mut fastrand::Rng| [10, 0, random.u8(..2), random.u8(..3)];
        let payload: Vec<u8> = (0..random.usize(..60)).map(|_| random.u8(..)).collect();
        let (src, dst) = (address(random), address(random));
        if random.bool() {
            udp((src, random.u16(..)), (dst, random.u16(..)), &payload)
        } else {
            ip([1, 6, 17, 50][random.usize(..4)], src, dst, &payload)
        }
    };
    let has_ether = random.bool();
    if has_ether {
        let kind: [u8; 2] = *[[8, 0], [8, 6], [0x81, 0]].get(random.usize(..3)).expect("one of three");
        let header: Vec<u8> = (0..12).map(|_| random.u8(..)).chain(kind).collect();
        bytes.splice(0..0, header);
    }
    if random.bool() && !bytes.is_empty() {
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
    }
    if random.u8(..3) == 0 {
        bytes.truncate(random.usize(..=bytes.len()));
    }
    let mut packet = Packet::new(random.usize(..80), &bytes, random.usize(..40));
    if random.bool() {
        let at = if has_ether { 14 } else { 0 };
        if bytes.len() >= at + 20 {
            packet.set_network_header(at as isize, 20);
        }
    }
    packet.set_dst_ip(Ipv4Addr::new(10, 0, 0, random.u8(..3)));
    packet
}

/// Random packets through a configuration whose source is `give` and whose sinks are `sinks`: nothing panics, and both ways
/// lead to the same. Returns what came out.
#[track_caller]
pub(super) fn fuzz(config: &str, sinks: &[&str]) -> Vec<Vec<Packet>> {
    let mut harness = Harness::new(config);
    for _ in 0..20 {
        harness.give("give", noise(100));
        harness.pass(0.3);
    }
    sinks.iter().map(|sink| harness.take(sink)).collect()
}
