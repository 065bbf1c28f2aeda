//! Any bytes as packets through elements that look at headers: nothing panics, whatever headers say of themselves.
//!
//! An input is a row of packets, each behind its length, two bytes in network order. The malformed packets that the tests have
//! go through first, and inputs grow from them.

#![no_main]

#[allow(dead_code)] // Tests need more of them.
#[path = "../../crates/net/tests/it/malformed.rs"]
mod malformed;
#[allow(dead_code)]
#[path = "../../crates/net/tests/it/wire.rs"]
mod wire;

use bifolio_net::element::{Class, Element, Run};
use bifolio_net::router::{Cx, Options, Running, build};
use bifolio_net::{Clock, Log, Packet, Registry, Timestamp, lang};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::cell::RefCell;
use std::sync::LazyLock;

/// Sends what it is given.
#[derive(Default)]
struct Give(Vec<Packet>);

impl Element for Give {
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Some(packet) = self.0.pop() else { return Run::Stop };
        cx.emit(0, packet);
        Run::Worked
    }
}

static CLASSES: &[Class] = &[Class::new::<Give>("Give", "0/1", "h", "")];

/// A router whose elements parse everything there is to parse, checked and unchecked.
const CONFIG: &str = "
    give :: Give -> t :: Tee(4);
    t[0] -> c :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
    c[0] -> ARPResponder(10.0.0.1 0:0:0:0:0:1) -> Discard;
    arp :: ARPQuerier(10.0.0.1, 0:0:0:0:0:1) -> Discard;
    c[1] -> [1] arp;
    c[2] -> Strip(14) -> CheckIPHeader -> rt :: RadixIPLookup(10.0.0.0/8 0, 0/0 1);
    rt[0] -> DropBroadcasts -> g :: IPGWOptions(10.0.0.1) -> FixIPSrc(10.0.0.1) -> d :: DecIPTTL
        -> f :: IPFragmenter(68) -> IPReassembler -> [0] arp;
    rt[1] -> IPFilter(deny tcp opt syn, deny icmp type 3, allow src port < 1024, deny all) -> Discard;
    g[1] -> ICMPError(10.0.0.1, parameterproblem) -> rt;
    d[1] -> ICMPError(10.0.0.1, timeexceeded) -> rt;
    f[1] -> Discard;
    c[3] -> Discard;
    t[1] -> MarkIPHeader(0) -> IPFragmenter(100, HONOR_DF false) -> IPReassembler -> Discard;
    t[2] -> CheckIPHeader -> rw :: IPRewriter(pattern 1.0.0.1 1024-65535 - - 0 0) -> Discard;
    t[3] -> CheckIPHeader -> CheckTCPHeader -> SetTCPChecksum -> Discard;
";

fn start() -> Running {
    let mut registry = Registry::standard();
    registry.add(CLASSES);
    let mut log = Log::new();
    let graph = lang::parse(CONFIG, "f", &lang::Globals::new(), &registry, &mut log).unwrap_or_else(|| panic!("{log}"));
    let options = Options { clock: Clock::simulated(), seed: 1, ..Options::default() };
    let running = build(&graph, &registry, options, &mut log).unwrap_or_else(|| panic!("{log}"));
    running.listen(|_| (), |_| ());
    running
}

thread_local! {
    static RUNNING: RefCell<Running> = RefCell::new(start());
}

static MALFORMED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| [malformed::packets(), malformed::frames()].concat());

fn pass(packets: impl Iterator<Item = Packet>) {
    RUNNING.with_borrow_mut(|running| {
        let give = running.router().find("give").expect("it is in the configuration");
        running.enter(give, |cx| {
            cx.with(give, |element: &mut Give, cx| {
                element.0.extend(packets);
                cx.schedule();
            })
        });
        let clock = running.router().clock();
        clock.hold_at(clock.now() + Timestamp::new(1, 0));
        running.run_for(1000);
    });
}

/// The packets of an input; the last one ends where the input does.
fn split(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = input.split_first_chunk()?;
        let (packet, rest) = rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()));
        input = rest;
        Some(packet)
    })
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let known = &MALFORMED[seed as usize / 8 % MALFORMED.len()];
    let len = 2 + known.len();
    if seed % 8 > 0 || len > max_size || known.len() > usize::from(u16::MAX) {
        return fuzzer_mutate(data, size, max_size);
    }
    // In place of the input, or before it.
    let kept = if seed % 16 == 0 { size.min(max_size - len) } else { 0 };
    data.copy_within(..kept, len);
    data[..2].copy_from_slice(&(known.len() as u16).to_be_bytes());
    data[2..len].copy_from_slice(known);
    len + kept
});

fuzz_target!(init: pass(MALFORMED.iter().map(|bytes| Packet::from_slice(bytes))), |input: &[u8]| {
    pass(split(input).map(Packet::from_slice));
});
