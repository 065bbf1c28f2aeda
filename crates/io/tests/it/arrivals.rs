//! The callback on arrival: it is told of every byte that has an event, once, and may use it as soon as the event is done.

use crate::support::{
    Fault, FaultStorage, Faulty, content_of, devices_besides_host, file_of, folder, host, only, poisoned, random,
    small_options, stays_in_memory,
};
use bifolio_device::{Device, DeviceSlice, Event, HostOptions};
use bifolio_io::{EngineChoice, EngineKind, ErrorKind, OnArrival, ReadOptions, Router, RouterOptions};
use bifolio_testing::skip;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Fetches what it is told of, and keeps it.
#[derive(Debug)]
struct Witness {
    device: Device,
    /// The address of the destination.
    start: u64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    begun: usize,
    /// What had landed of this run, and where in the destination.
    pieces: Vec<(u64, Vec<u8>)>,
    /// A file that somebody changes when the first piece is told.
    change: Option<(PathBuf, Vec<u8>)>,
    /// The number of a piece that is refused.
    refuse: Option<usize>,
    /// By a panic.
    panics: bool,
}

impl OnArrival for Witness {
    fn begin(&self) {
        let mut seen = self.seen.lock().unwrap();
        seen.begun += 1;
        seen.pieces.clear();
    }

    fn copied(&self, place: DeviceSlice<'_>, event: &Event) -> bifolio_device::Result<()> {
        let mut seen = self.seen.lock().unwrap();
        if let Some((path, content)) = seen.change.take() {
            std::fs::File::options().write(true).open(path).unwrap().write_all_at(&content, 0).unwrap();
        }
        if seen.refuse == Some(seen.pieces.len()) {
            if seen.panics {
                drop(seen);
                panic!("planted");
            }
            return Err(bifolio_device::Error::new(bifolio_device::ErrorKind::BadArgument, "planted"));
        }
        let stream = self.device.create_stream()?;
        stream.wait(event)?;
        let mut bytes = vec![0; place.len() as usize];
        stream.download(&mut bytes, place)?;
        seen.pieces.push((place.ptr().0 - self.start, bytes));
        Ok(())
    }
}

fn witness(destination: DeviceSlice<'_>, device: &Device) -> Arc<Witness> {
    Arc::new(Witness { device: device.clone(), start: destination.ptr().0, seen: Mutex::default() })
}

fn watched(engine: EngineKind, witness: &Arc<Witness>) -> ReadOptions {
    let follow: Arc<dyn OnArrival> = Arc::clone(witness) as _;
    ReadOptions { engine: EngineChoice::Only(engine), on_arrival: Some(follow), ..ReadOptions::default() }
}

/// Pieces that cover a content exactly.
fn assert_whole(seen: &Seen, content: &[u8], context: &str) {
    let mut pieces: Vec<_> = seen.pieces.iter().collect();
    pieces.sort_unstable_by_key(|(at, _)| *at);
    let mut end = 0;
    for (at, bytes) in pieces {
        assert_eq!(*at as usize, end, "{context}: a byte was told twice, or not at all");
        end += bytes.len();
        assert!(content[*at as usize..end] == *bytes, "{context}: the bytes at {at} were not there");
    }
    assert_eq!(end, content.len(), "{context}: the end was not told");
}

#[test]
fn every_byte_is_told_once_and_is_there_after_its_event() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes((5 << 20) + 777);
    let path = file_of(folder.path(), "data", &content);
    // Copies that take a while, so that an event which is done too early is seen.
    let slow = HostOptions { latency: Some(Duration::from_millis(2)), ..HostOptions::default() };
    for device in devices_besides_host().into_iter().chain([host(), Device::host(&slow)]) {
        let router = Router::new(&device, small_options());
        for engine in [EngineKind::Cached, EngineKind::Direct, EngineKind::Mapped] {
            if engine == EngineKind::Mapped && device.capabilities().host_register_read_only.reason().is_some() {
                skip(format_args!("{} cannot fetch from the page cache", device.id()));
                continue;
            }
            for range in [0..content.len(), 4096..3 << 20, 1001..(4 << 20) + 5] {
                let file = router.open(&path).unwrap();
                let memory = poisoned(&device, range.len() as u64);
                let witness = witness(memory.slice(), &device);
                let (offset, len) = (range.start as u64, range.len() as u64);
                let options = watched(engine, &witness);
                router.read(&file, offset, Some(len), memory.slice(), &options).unwrap();
                let context = format!("{engine} of {range:?} into {}", device.id());
                assert_whole(&witness.seen.lock().unwrap(), &content[range.clone()], &context);
                assert!(content_of(&memory) == content[range], "{context}");
            }
        }
    }
}

#[test]
fn a_second_run_begins_anew() {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(2 << 20);
    let path = file_of(folder.path(), "data", &content);
    let storage = Arc::new(Faulty(FaultStorage::new(5, Fault::Unbuffered(libc::EINVAL))));
    let router = Router::new(&host(), RouterOptions { storage, readahead_bytes: 0, ..small_options() });
    let file = router.open(&path).unwrap();
    if stays_in_memory(&file) {
        return;
    }
    bifolio_io::cache_state::evict(&file, 0..content.len() as u64).unwrap();
    let memory = poisoned(router.device(), content.len() as u64);
    let witness = witness(memory.slice(), router.device());
    let options = ReadOptions { engine: EngineChoice::Auto, ..watched(EngineKind::Cached, &witness) };
    router.read(&file, 0, None, memory.slice(), &options).unwrap();
    let seen = witness.seen.lock().unwrap();
    assert_eq!(seen.begun, 2, "unbuffered reads were refused half-way");
    assert_whole(&seen, &content, "the second run");
}

/// Symptom: none seen. A file that changes while its registered pages are fetched is read once more; what followed the
/// first bytes must not be taken for work on the second ones.
#[test]
fn what_changed_while_it_was_fetched_is_followed_from_the_beginning() {
    let (folder, mut random) = (folder(), random());
    let (old, new) = (random.bytes(3 << 20), random.bytes(3 << 20));
    let path = file_of(folder.path(), "data", &old);
    let router = Router::new(&host(), small_options());
    let file = router.open(&path).unwrap();
    let memory = poisoned(router.device(), old.len() as u64);
    let witness = witness(memory.slice(), router.device());
    witness.seen.lock().unwrap().change = Some((path, new.clone()));
    router.read(&file, 0, None, memory.slice(), &watched(EngineKind::Mapped, &witness)).unwrap();
    let seen = witness.seen.lock().unwrap();
    assert_eq!(seen.begun, 2);
    assert_whole(&seen, &new, "the second run");
    assert!(content_of(&memory) == new);
}

/// Symptom: none seen. A follower that failed took the mapping away from the copy it was told of, where that was not
/// kept: of a file that somebody may write to.
#[test]
fn a_callback_that_fails_or_panics_ends_the_request_when_nothing_is_in_flight() {
    let (folder, mut random) = (folder(), random());
    let path = file_of(folder.path(), "data", &random.bytes(2 << 20));
    let _writer = std::fs::File::options().write(true).open(&path).unwrap();
    let slow = HostOptions { latency: Some(Duration::from_millis(5)), ..HostOptions::default() };
    let router = Router::new(&Device::host(&slow), small_options());
    for engine in [EngineKind::Cached, EngineKind::Direct, EngineKind::Mapped] {
        let file = router.open(&path).unwrap();
        let [memory, other] = [(); 2].map(|()| poisoned(router.device(), 2 << 20));
        for (piece, panics) in [(0, false), (1, false), (0, true), (1, true)] {
            let witness = witness(memory.slice(), router.device());
            let seen = Seen { refuse: Some(piece), panics, ..Seen::default() };
            *witness.seen.lock().unwrap() = seen;
            let outcome = router.read(&file, 0, None, memory.slice(), &watched(engine, &witness));
            if engine == EngineKind::Mapped && piece == 1 {
                // All of it was one copy.
                continue;
            }
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Device);
            assert!(error.to_string().contains(if panics { "panicked" } else { "planted" }), "{error}");
            let before = content_of(&memory);
            // By then whatever was in flight before has landed.
            router.read(&file, 0, None, other.slice(), &only(EngineKind::Cached)).unwrap();
            assert!(content_of(&memory) == before, "{engine}: a copy was in flight");
        }
        let stats = router.pool_stats();
        assert_eq!(stats.idle_slots, stats.allocated_slots, "{engine}: a slot was lost");
    }
}
