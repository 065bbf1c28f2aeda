//! Any bytes as packets through elements that look at headers: nothing panics, whatever headers say of themselves.

#![no_main]

#[allow(dead_code)] // Tests need more of them.
#[path = "../../crates/net/tests/it/malformed.rs"]
mod malformed;
mod packet_rows;
#[allow(dead_code)]
#[path = "../../crates/net/tests/it/wire.rs"]
mod wire;

use bifolio_net::element::Class;
use bifolio_net::router::{Options, Running, build};
use bifolio_net::{Clock, Log, Registry, Timestamp, lang};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use packet_rows::{Give, MALFORMED, split};
use std::cell::RefCell;

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

fn pass<'a>(packets: impl Iterator<Item = &'a [u8]>) {
    RUNNING.with_borrow_mut(|running| {
        packet_rows::give(running, packets);
        let clock = running.router().clock();
        clock.hold_at(clock.now() + Timestamp::new(1, 0));
        running.run_for(1000);
    });
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    packet_rows::mutate(data, size, max_size, seed)
});

fuzz_target!(init: pass(MALFORMED.iter().map(|bytes| &bytes[..])), |input: &[u8]| {
    pass(split(input));
});
