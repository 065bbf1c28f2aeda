//! Tables that change while threads send packets without end: every packet leaves, and is judged by one of the versions.

use super::tests::places;
use crate::element::{Batch, Class, Element, Run};
use crate::packet::anno;
use crate::router::{self, Cx, Options, Router};
use crate::{Log, Packet, Registry, lang};
use bifolio_testing::until;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the number of the first rule found goes.
const SID: usize = 20;

/// Of a packet that left: what was painted, the rule found, the gateway.
type Judgement = (u8, u32, [u8; 4]);

/// What the one router of these tests has done.
static SENT: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);
static SEEN: Mutex<BTreeSet<Judgement>> = Mutex::new(BTreeSet::new());
/// One router at a time.
static TURN: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `Endless`: sends a packet again and again, as long as there is room for it.
#[derive(Default)]
struct Endless(Option<Packet>);

impl Element for Endless {
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let mut packet =
            Packet::from_slice(&crate::elements::testing::udp(([1; 4], 9), ([10, 0, 0, 7], 53), b"red blue green"));
        packet.set_network_header(0, 20);
        packet.set_dst_ip([10, 0, 0, 7].into());
        self.0 = Some(packet);
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let (false, Some(packet)) = (IS_OVER.load(Ordering::Relaxed), &self.0) else { return Run::Stop };
        // Nobody has to drop what there is no room for.
        let many = if cx.may_push(0) { cx.room().min(32) } else { 0 };
        (0..many).for_each(|_| cx.emit(0, packet.clone()));
        SENT.fetch_add(many as u64, Ordering::SeqCst);
        if many > 0 { Run::Worked } else { Run::Idle }
    }
}

/// `Judged`: notes how packets were judged.
#[derive(Default)]
struct Judged;

impl Element for Judged {
    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        self.push_batch(cx, port, &mut Batch::from([packet]));
    }

    fn push_batch(&mut self, _: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        let mut seen = lock(&SEEN);
        for packet in batch.drain(..) {
            seen.insert((packet.anno_u8(anno::PAINT), packet.anno_u32(SID), packet.dst_ip().octets()));
            LEFT.fetch_add(1, Ordering::SeqCst);
        }
    }
}

static CLASSES: &[Class] =
    &[Class::new::<Endless>("Endless", "0/1", "h", ""), Class::new::<Judged>("Judged", "1/0", "h", "")];

/// The router ends, also where a test fails that waits for its threads.
struct End(Arc<Router>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs a router whose packets go on one thread while the other one writes handlers, each in its turn; how packets were judged.
#[track_caller]
fn judged(config: &str, changes: &[(&str, String)], rounds: usize) -> BTreeSet<Judgement> {
    let _turn = lock(&TURN);
    SENT.store(0, Ordering::SeqCst);
    LEFT.store(0, Ordering::SeqCst);
    IS_OVER.store(false, Ordering::SeqCst);
    lock(&SEEN).clear();
    let (mut registry, mut log) = (Registry::standard(), Log::new());
    registry.add(CLASSES);
    let graph = lang::parse(config, "config", &lang::Globals::new(), &registry, &mut log);
    let options = Options { threads: 2, ..Options::default() };
    let running = graph.and_then(|graph| router::build(&graph, &registry, options, &mut log));
    let mut running = running.unwrap_or_else(|| panic!("{log}"));
    let router = Arc::clone(running.router());
    std::thread::scope(|scope| {
        let _end = End(Arc::clone(&router));
        scope.spawn(move || running.run());
        let left = || LEFT.load(Ordering::SeqCst);
        for round in 0..rounds {
            let (handler, value) = &changes[round % changes.len()];
            let (handler, value) = ((*handler).to_owned(), value.clone());
            let written = router.ask(Duration::from_secs(60), move |cx| cx.write_handler(&handler, &value));
            assert_eq!(written, Some(Ok(())), "round {round}");
            // Packets meet each version.
            let before = left();
            until("packets pass", || left() > before + 200);
        }
        IS_OVER.store(true, Ordering::SeqCst);
        let has_batcher = router.find("b").is_some();
        let drops = || {
            let read = router.ask(Duration::from_secs(60), move |cx| {
                if has_batcher { cx.read_handler("b.drops", "") } else { Ok("0".to_owned()) }
            });
            read.and_then(Result::ok).and_then(|text| text.parse::<u64>().ok())
        };
        until("all packets have left", || drops().is_some_and(|drops| left() + drops == SENT.load(Ordering::SeqCst)));
        assert_eq!(drops(), Some(0), "whoever sends is told where there is no room");
    });
    std::mem::take(&mut *lock(&SEEN))
}

/// A path whose packets go on the second thread.
fn path(place: &str, element: &str) -> String {
    format!(
        "e :: Endless -> b :: Batcher(64, 1ms) -> HostToDeviceMemcpy({place}) -> t :: {element}
         -> DeviceToHostMemcpy -> GPUCompletionQueue -> d :: Debatcher -> Judged; StaticThreadSched(e 1, b 1, d 1);"
    )
}

fn rules(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn rules_are_exchanged_at_full_load_and_no_packet_is_judged_by_half_of_them() {
    let folder = tempfile::tempdir().unwrap();
    // The first literal of the one is the first of the other, where another rule has it.
    let old = rules(
        folder.path(),
        "old",
        "alert ip any any -> any any ( content:\"red\"; content:\"blue\",distance 1,within 4; sid:1; )
         alert ip any any -> any any ( content:\"blue\"; content:!\"green\"; sid:90; )",
    );
    let new = rules(
        folder.path(),
        "new",
        "alert ip any any -> any any ( content:\"yellow\"; sid:91; )
         alert ip any any -> any any ( content:\"green\"; content:!\"black\"; sid:2; )
         alert ip any any -> any any ( content:\"red\"; content:\"blue\",within 2; sid:92; )",
    );
    let changes = [("t.reload", new), ("t.reload", old.clone())];
    let options = format!("RULES {old}, SID_ANNO {SID}");
    let expected = BTreeSet::from([(1, 1, [10, 0, 0, 7]), (1, 2, [10, 0, 0, 7])]);
    let cpu = format!("e :: Endless -> t :: IDSMatcher({options}) -> Judged; StaticThreadSched(e 1)");
    assert_eq!(judged(&cpu, &changes, 40), expected);
    for place in places() {
        for stream in [false, true] {
            let config = path(&place, &format!("GPUIDSMatcher({options}, STREAM {stream})"));
            assert_eq!(judged(&config, &changes, 12), expected, "{place}, STREAM {stream}");
        }
    }
}

#[test]
fn flow_rules_change_at_full_load() {
    let changes =
        [("t.add", "dport 53 => 2 PRIORITY 9".to_owned()), ("t.remove", "dport 53 => 2 PRIORITY 9".to_owned())];
    let expected = BTreeSet::from([(1, 0, [10, 0, 0, 7]), (2, 0, [10, 0, 0, 7])]);
    for place in places() {
        let config = path(&place, "GPUSDNClassifier(proto udp => 1 PRIORITY 1, ip => 3)");
        assert_eq!(judged(&config, &changes, 20), expected, "{place}");
    }
}

#[test]
fn routes_change_at_full_load_with_their_gateways() {
    let changes = [("t.set", "10.0.0.0/29 9.9.9.2 2".to_owned()), ("t.set", "10.0.0.0/29 9.9.9.1 1".to_owned())];
    let expected = BTreeSet::from([(1, 0, [9, 9, 9, 1]), (2, 0, [9, 9, 9, 2])]);
    for place in places() {
        let config = path(&place, "GPUIPLookup(0/0 9.9.9.3 3, 10.0.0.0/29 9.9.9.1 1)");
        assert_eq!(judged(&config, &changes, 20), expected, "{place}");
    }
}
