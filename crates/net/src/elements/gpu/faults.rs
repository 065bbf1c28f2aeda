//! Devices that fail, are lost, lack memory or are slow while packets run: nothing is lost, nothing comes twice, and it is told.

use super::tests::{Seen, flows, path, seen, sinks, traffic};
use crate::elements::testing::Harness;
use crate::wide::devices;
use crate::{Clock, Packet};
use bifolio_compute::Executor;
use bifolio_device::backend::fault::{Damage, FaultBackend, Faults};
use bifolio_device::{BackendKind, Device, DeviceId, DeviceInfo, HostOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ELEMENTS: &str = "GPUCheckIPHeader(BADSRC 10.0.1.1) -> GPUDecIPTTL -> GPUSetIPChecksum";
const ENDS: &str = "d :: Dispatcher(18) -> ok :: Take; d[1] -> bad :: Take; d[2] -> expired :: Take";
const NAMES: [&str; 3] = ["ok", "bad", "expired"];

/// A device that fails as it is told to, with a name of its own; it is there as long as its executor.
pub(super) fn device(faults: &Arc<Faults>) -> (Arc<Executor>, String) {
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    let host = Device::host(&HostOptions::default());
    let id = DeviceId::new(BackendKind::Host, NEXT.fetch_add(1, Ordering::Relaxed));
    let info = DeviceInfo { id, ..host.info().clone() };
    let device = Device::from_backend(FaultBackend::presented_as(info, host.backend(), faults));
    (devices::of(&device, 1, 1 << 20).expect("an executor"), id.to_string())
}

/// A path with room for all packets of a test.
fn config(place: &str) -> String {
    path(&format!("{place}, USE device"), 37, ELEMENTS)
        .replace("GPUCompletionQueue", "queue :: GPUCompletionQueue(20, PATIENCE 50ms)")
        + ENDS
}

fn by_cpu(packets: &[Packet]) -> Vec<Vec<Seen>> {
    let config = "give :: Give -> c :: CheckIPHeader(BADSRC 10.0.1.1) -> t :: DecIPTTL -> SetIPChecksum -> ok :: Take;
                  c[1] -> bad :: Take; t[1] -> expired :: Take";
    sinks(config, packets, &NAMES)
}

/// A counter of an operation that fails.
type Chosen = fn(&Faults) -> &AtomicI64;

#[test]
fn a_device_that_fails_at_any_moment_is_told_once_and_no_packet_is_missed() {
    let operations: [(&str, Chosen); 6] = [
        ("copies", |faults| &faults.copies),
        ("downloads", |faults| &faults.downloads),
        ("launches", |faults| &faults.launches),
        ("allocations", |faults| &faults.allocations),
        ("pinned", |faults| &faults.pinned),
        ("life", |faults| &faults.life),
    ];
    let packets = traffic(400);
    let expected = by_cpu(&packets);
    let mut told = 0;
    for (name, operation) in operations {
        for good in [0, 1, 2, 4, 7, 15] {
            let faults = Arc::new(Faults::default());
            let (_executor, place) = device(&faults);
            let mut harness = Harness::once(&config(&place), Clock::simulated());
            operation(&faults).store(good, Ordering::SeqCst);
            for part in packets.chunks(90) {
                harness.give("give", part.iter().cloned());
                harness.pass(0.01);
            }
            let said = harness.said();
            let found: Vec<_> = NAMES.iter().map(|name| seen(&harness.take(name))).collect();
            assert_eq!(found, expected, "{name} fails after {good}: {said:?}");
            let is_expected = |line: &String| line.contains("the CPU takes over") || line.contains("ordinary memory");
            // On a busy machine a device may be late at any time, and one that rests is tried again after a second.
            let is_slow =
                |line: &String| line.contains("computes again") || line.contains("has not given a batch back");
            let (slow, said): (Vec<_>, Vec<_>) = said.into_iter().partition(is_slow);
            assert!(said.len() <= 2 + slow.len() && said.iter().all(is_expected), "{said:?}");
            told += said.len();
            if slow.is_empty() && said.iter().any(|line| line.contains("the CPU takes over")) {
                assert!(harness.read("h.off").contains("failed"), "{}", harness.read("h.off"));
            }
            assert_eq!(harness.read("h.lost"), "0");
        }
    }
    assert!(told > 10, "failures are told: {told}");
}

#[test]
fn a_device_that_does_not_answer_is_left_to_itself() {
    static IS_SLOW: AtomicBool = AtomicBool::new(false);
    let wait: Damage = |_| {
        while IS_SLOW.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    };
    let faults = Arc::new(Faults { damage: Some(wait), ..Faults::default() });
    let (_executor, place) = device(&faults);
    let packets = traffic(400);
    let expected = by_cpu(&packets);
    let mut harness = Harness::once(&config(&place), Clock::system());
    for (round, is_slow) in [false, true, false].into_iter().enumerate() {
        IS_SLOW.store(is_slow, Ordering::SeqCst);
        harness.give("give", packets.iter().cloned());
        let mut found: Vec<Vec<Packet>> = vec![Vec::new(); NAMES.len()];
        let begin = Instant::now();
        while found.iter().map(Vec::len).sum::<usize>() < packets.len() {
            assert!(begin.elapsed() < Duration::from_secs(60), "round {round}: {:?}", harness.said());
            harness.run();
            found.iter_mut().zip(NAMES).for_each(|(found, name)| found.extend(harness.take(name)));
        }
        let found: Vec<_> = found.iter().map(|packets| seen(packets)).collect();
        assert_eq!(found, expected, "round {round}");
        let said = harness.said();
        let is_late = said.iter().filter(|line| line.contains("has not given a batch back for 50ms")).count();
        // On a busy machine a device may be late at any time.
        assert!(is_late > 0 || !is_slow, "round {round}: {said:?}");
    }
    harness.run();
    assert!(harness.read("h.failures").parse::<u64>().unwrap() > 0);
    assert_eq!((harness.read("h.packets"), harness.read("h.lost")), ("1200".to_owned(), "0".to_owned()));
}

/// Symptom: where an upload had failed, batches were judged by a table of before. Cause: it was recorded as uploaded before it was.
#[test]
fn tables_are_right_in_every_batch_whatever_fails_while_they_change() {
    let elements = "r :: GPUIPLookup(0/0 1.1.1.1 0, 10.0.0.0/24 2.2.2.2 1) -> c :: GPUSDNClassifier(ip => 1, ANNO 17)
                    -> m :: GPUIDSMatcher(PATTERN ab ca, STREAM true, ANNO 19, SID_ANNO 20)";
    let changes = [
        ("r.set", "10.0.0.0/24 3.3.3.3 2"),
        ("c.add", "proto tcp => 2 PRIORITY 5"),
        ("r.add", "10.0.0.2/32 4.4.4.4 3"),
        ("r.remove", "10.0.0.2/32"),
        ("c.remove", "proto tcp => 2 PRIORITY 5"),
    ];
    let packets = flows(300);
    // From its third part on the device is well again.
    let run = |place: &str, fail: &dyn Fn(usize)| {
        let config = path(place, 37, elements).replace("GPUCompletionQueue", "GPUCompletionQueue(20, PATIENCE 50ms)");
        let mut harness = Harness::once(&(config + "take :: Take"), Clock::simulated());
        let mut all = Vec::new();
        for (at, (part, (handler, value))) in packets.chunks(60).zip(changes.iter().cycle()).enumerate() {
            fail(at);
            harness.give("give", part.iter().cloned());
            harness.pass(0.01);
            let judged = |packet: &Packet| {
                (packet.anno_u8(16), packet.anno_u8(17), packet.anno_u8(19), packet.anno_u32(20), packet.dst_ip())
            };
            all.push(harness.take("take").iter().map(judged).collect::<Vec<_>>());
            harness.write(handler, value).unwrap();
        }
        all
    };
    let expected = run("host, USE cpu", &|_| ());
    let operations: [(&str, Chosen); 4] = [
        ("copies", |faults| &faults.copies),
        ("allocations", |faults| &faults.allocations),
        ("launches", |faults| &faults.launches),
        ("downloads", |faults| &faults.downloads),
    ];
    for (name, operation) in operations {
        for good in [0, 1, 2, 3, 5, 8, 13, 21] {
            let faults = Arc::new(Faults::default());
            let (_executor, place) = device(&faults);
            let found = run(&format!("{place}, USE device"), &|part| match part {
                0 => operation(&faults).store(good, Ordering::SeqCst),
                2 => operation(&faults).store(-1, Ordering::SeqCst),
                _ => {}
            });
            assert!(found == expected, "{name} fail after {good}");
        }
    }
}
