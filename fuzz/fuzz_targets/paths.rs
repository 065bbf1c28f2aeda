//! Any bytes as packets through a path of all elements that a device can compute, and through the CPU's elements beside it: by
//! twins and by the oracles of the kernels, the same packets leave by the same ways.

#![no_main]

#[allow(dead_code)] // Tests need more of them.
#[path = "../../crates/net/tests/it/malformed.rs"]
mod malformed;
mod packet_rows;
#[allow(dead_code)]
#[path = "../../crates/net/tests/it/wire.rs"]
mod wire;

use bifolio_net::element::{Class, Element};
use bifolio_net::router::{Cx, Options, Running, build};
use bifolio_net::{Clock, Log, Packet, Registry, lang};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use packet_rows::{Give, MALFORMED, split};
use std::cell::RefCell;

/// Keeps what comes to it: what can be seen of it, however it came here.
#[derive(Default)]
struct Keep(Vec<(Vec<u8>, [Option<isize>; 2], [u8; 4])>);

impl Element for Keep {
    fn push(&mut self, _: &mut Cx<'_>, _: usize, packet: Packet) {
        let offsets = [packet.network_offset(), packet.transport_offset()];
        self.0.push((packet.bytes().to_vec(), offsets, packet.dst_ip().octets()));
    }
}

static CLASSES: &[Class] = &[Class::new::<Give>("Give", "0/1", "h", ""), Class::new::<Keep>("Keep", "1/0", "h", "")];

/// Ways out: good packets by two routes, those with a finding, bad ones, expired ones.
const WAYS: [&str; 5] = ["near", "far", "found", "bad", "expired"];

const FLOWS: &str = "dst 10.0.1.0/24 proto udp dport 0-100 => 2 PRIORITY 3, proto tcp flags 2/2 => 1 PRIORITY 2, \
    proto icmp icmp_type 8 => 2 PRIORITY 2, eth_type 0x0806 => 1 PRIORITY 4, dscp 5 => 1, ip => 2";
const ROUTES: &str = "0/0 0, 10.0.0.0/8 1, 10.0.1.2/32 0, 255.255.255.255/32 1";
const ONE: &str = r#"PATTERN "\<00 00 00>" GET question, NOCASE true"#;
const OTHER: &str = r#"PATTERN "PORT 10" ing"#;

fn by_cpu() -> String {
    format!(
        "give :: Give -> check :: CheckIPHeader -> ttl :: DecIPTTL -> SetIPChecksum -> flows :: SDNClassifier({FLOWS});
         flows[0] -> bad :: Keep; check[1] -> bad; ttl[1] -> expired :: Keep;
         flows[1] -> one :: IDSMatcher({ONE}) -> routes :: DirectIPLookup({ROUTES});
         flows[2] -> other :: IDSMatcher({OTHER}) -> routes; one[1] -> found :: Keep; other[1] -> found;
         routes[0] -> near :: Keep; routes[1] -> far :: Keep;"
    )
}

fn by_path(user: &str, batch: &str) -> String {
    format!(
        "give :: Give -> b :: Batcher({batch}) -> HostToDeviceMemcpy(host, USE {user})
         -> GPUCheckIPHeader -> GPUDecIPTTL -> GPUSetIPChecksum -> GPUSDNClassifier({FLOWS}, ANNO 19, MISS 0)
         -> GPUIDSMatcher({ONE}, ANNO 17, CHK_ANNO 19, CHK_VALUE 1) -> GPUIDSMatcher({OTHER}, ANNO 17, CHK_ANNO 19, CHK_VALUE 2)
         -> GPUIPLookup({ROUTES}) -> DeviceToHostMemcpy -> GPUCompletionQueue -> back :: Debatcher -> sound :: Dispatcher(18);
         sound[0] -> finds :: Dispatcher(17); sound[1] -> bad :: Keep; sound[2] -> expired :: Keep; finds[1] -> found :: Keep;
         finds[0] -> routes :: Dispatcher; routes[0] -> near :: Keep; routes[1] -> far :: Keep;"
    )
}

fn start(config: &str) -> Running {
    let mut registry = Registry::standard();
    registry.add(CLASSES);
    let mut log = Log::new();
    let graph = lang::parse(config, "f", &lang::Globals::new(), &registry, &mut log).unwrap_or_else(|| panic!("{log}"));
    let options = Options { clock: Clock::simulated(), seed: 1, ..Options::default() };
    let running = build(&graph, &registry, options, &mut log).unwrap_or_else(|| panic!("{log}"));
    running.listen(|_| (), |_| ());
    running
}

thread_local! {
    /// The elements of the CPU, and paths: by twins, and by the oracles; in batches of few packets and of many, sliced and whole.
    static ROUTERS: RefCell<Vec<(String, Running)>> = RefCell::new({
        let paths = [("cpu", "5"), ("device", "64"), ("device", "64, SLICING false")];
        let paths = paths.map(|(user, batch)| by_path(user, batch));
        [by_cpu()].into_iter().chain(paths).map(|config| { let running = start(&config); (config, running) }).collect()
    });
}

/// Whether all that were given are through: how many that are is known from the ways out.
fn is_through(running: &mut Running, given: u64) -> bool {
    let mut number = |handler: &str| running.read(handler).unwrap_or_default().parse::<u64>().unwrap_or(0);
    number("b.count") >= given && number("b.length") == 0 && number("back.count") == number("b.count")
}

/// What comes out by each way.
fn pass(running: &mut Running, packets: &[&[u8]], all: u64) -> Vec<Keep> {
    packet_rows::give(running, packets.iter().copied());
    if running.router().find("b").is_some() {
        let begin = std::time::Instant::now();
        while !is_through(running, all) {
            running.run_for(10);
            // The device's threads may have to wait long for a processor.
            if begin.elapsed() > std::time::Duration::from_secs(60) {
                let read = ["b.count", "b.drops", "b.length", "back.count"].map(|handler| running.read(handler));
                panic!("packets do not come out of the path: of {all} {read:?}");
            }
        }
        running.run_for(1);
    } else {
        running.run_for(usize::MAX);
    }
    let kept = WAYS.map(|way| {
        let keep = running.router().find(way).expect("it is in the configuration");
        running.enter(keep, |cx| cx.with(keep, |keep: &mut Keep, _| std::mem::take(keep))).expect("a Keep")
    });
    kept.into()
}

thread_local! {
    /// Packets of all inputs.
    static GIVEN: RefCell<u64> = const { RefCell::new(0) };
}

fn compare(packets: &[&[u8]]) {
    let all = GIVEN.with_borrow_mut(|given| {
        *given += packets.len() as u64;
        *given
    });
    ROUTERS.with_borrow_mut(|routers| {
        let [(_, elements), paths @ ..] = &mut routers[..] else { return };
        let expected = pass(elements, packets, all);
        for (config, path) in paths {
            let found = pass(path, packets, all);
            for ((way, one), other) in WAYS.iter().zip(&expected).zip(&found) {
                assert_eq!(one.0, other.0, "{way}, {config}");
            }
        }
    });
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    packet_rows::mutate(data, size, max_size, seed)
});

fuzz_target!(init: compare(&MALFORMED.iter().map(|bytes| &bytes[..]).collect::<Vec<_>>()), |input: &[u8]| {
    compare(&split(input).collect::<Vec<_>>());
});
