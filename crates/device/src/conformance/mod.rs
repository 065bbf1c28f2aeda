//! The behaviour that every backend must show, as checks over the public [`Device`] interface.
//!
//! A backend's test calls [`check_all`]; a capability that the device lacks must come with a
//! reason, and is then checked to be refused as `Unsupported`. Inputs are drawn afresh each run;
//! a failure names the seed (`BIFOLIO_TEST_SEED` repeats it). Outputs are poisoned before every
//! check, so an unwritten byte is seen.

mod gates;
mod peers;

use crate::{Access, AddressRange, Capability, Device, DeviceSlice, ErrorKind, FRAME_BYTES, PinnedPool, Rows, Stream};
use std::io::Write;
use std::os::fd::AsRawFd;

/// One check: a sentence that says what holds, and the code that shows it.
type Check = (&'static str, fn(&Device, &mut Random));

const CHECKS: &[Check] = &[
    ("copies round-trip at every size and touch nothing else", copies_round_trip),
    ("rows are spread and packed, and what lies between them stays", rows_round_trip),
    ("copies on the device and fills touch their range only", device_copies_and_fills),
    ("work of one stream runs in order", streams_run_in_order),
    ("a wait orders two streams", waits_order_streams),
    ("an event is done after the work before it", events_complete),
    ("streams of many threads do not disturb each other", threads_share_the_device),
    ("pinned memory starts zeroed, and pooled slots carry data", pinned_memory_carries_data),
    ("a request beyond the memory is refused and harms nothing", memory_is_bounded),
    ("a range outside its allocation is refused", ranges_are_checked),
    ("frames keep their content wherever they are mapped", frames_move),
    ("places in a range are checked", places_are_checked),
    ("an exported frame is the same memory", frames_are_shared),
    ("registered file mappings can be copied from", |device, random| registered_mappings_copy(device, device, random)),
    ("a direct path to storage is there, or refused", direct_storage_is_honest),
    ("a device copies from itself as from a peer, or refuses", |device, random| {
        peers::copies_arrive(device, device, random);
    }),
    ("energy is counted, or refused", energy_grows),
    ("absent capabilities have a reason", reasons_are_given),
];

const GATE_CHECKS: &[Check] = &[
    ("a gate holds back the work behind it", gates::hold_work_back),
    ("a gate opens from another thread", gates::open_from_another_thread),
    ("a gate that is dropped is open", gates::open_when_dropped),
    ("many gates of one stream open in order", gates::open_in_order),
    ("many gates of one stream open in reverse order", gates::open_in_reverse_order),
    ("gates hold back their own stream whatever order they open in", gates::keep_streams_apart),
    ("a gate leaves other streams alone", gates::leave_other_streams_alone),
    ("a gate may outlive its stream", gates::outlive_their_stream),
];

/// Runs every check on `device`; panics with the check, device and seed where one fails.
pub fn check_all(device: &Device) {
    check(device, CHECKS);
    check_gates(device);
}

/// Runs the checks of gates alone, for a backend that has several kinds of them.
pub fn check_gates(device: &Device) {
    check(device, GATE_CHECKS);
}

/// Runs the checks of two devices of one backend, each as the other's peer.
pub fn check_peers(one: &Device, other: &Device) {
    let seed = seed();
    for (device, peer) in [(one, other), (other, one)] {
        println!("{}: copies from {} (seed {seed})", device.id(), peer.id());
        peers::copies_arrive(device, peer, &mut Random(seed));
        registered_mappings_copy(device, peer, &mut Random(seed));
    }
}

fn check(device: &Device, checks: &[Check]) {
    let seed = seed();
    for (name, check) in checks {
        println!("{}: {name} (seed {seed})", device.id());
        check(device, &mut Random(seed));
    }
}

fn seed() -> u64 {
    std::env::var("BIFOLIO_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(fresh_seed)
}

/// A small generator for test data (splitmix64): seeded, fast, and no two words alike.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.word().to_le_bytes()).take(len as usize).collect()
    }
}

/// A seed from the clock.
pub fn fresh_seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64)
}

const POISON: u8 = 0xa5;

fn poison(stream: &Stream, memory: DeviceSlice<'_>) {
    stream.upload(memory, &vec![POISON; memory.len() as usize]).unwrap();
}

fn download(stream: &Stream, memory: DeviceSlice<'_>) -> Vec<u8> {
    let mut bytes = vec![!POISON; memory.len() as usize];
    stream.download(&mut bytes, memory).unwrap();
    bytes
}

fn copies_round_trip(device: &Device, random: &mut Random) {
    let stream = device.create_stream().unwrap();
    for len in [1, 2, 7, 8, 63, 64, 4095, 4096, 4097, 65_537, (1 << 20) + 3, 9 << 20] {
        let (before, after) = (random.below(5000), random.below(70));
        let memory = device.alloc(before + len + after).unwrap();
        poison(&stream, memory.slice());
        let data = random.bytes(len);
        stream.upload(memory.slice().part(before, len).unwrap(), &data).unwrap();
        let seen = download(&stream, memory.slice());
        let (head, rest) = seen.split_at(before as usize);
        let (body, tail) = rest.split_at(len as usize);
        assert!(body == data, "{len} bytes came back changed");
        assert!(head.iter().chain(tail).all(|byte| *byte == POISON), "a copy of {len} bytes wrote beside its range");
    }
    let empty = device.alloc(0).unwrap();
    stream.upload(empty.slice(), &[]).unwrap();
}

fn rows_round_trip(device: &Device, random: &mut Random) {
    let stream = device.create_stream().unwrap();
    for bytes in [1, 5, 64, 4096, 65_536, 500_000] {
        let count = 1 + random.below(9);
        let pitch = bytes + [0, 1, random.below(3 * bytes + 9)][random.below(3) as usize];
        let (rows, before) = (Rows { bytes, pitch, count }, random.below(300));
        let memory = device.alloc(before + rows.span() + 17).unwrap();
        poison(&stream, memory.slice());
        let place = memory.slice().part(before, rows.span()).unwrap();
        let mut pinned = device.alloc_pinned((bytes * count) as usize).unwrap();
        let data = random.bytes(bytes * count);
        pinned.bytes_mut().copy_from_slice(&data);
        // SAFETY: all memory lives until the download, and nobody else uses the pinned bytes.
        unsafe { stream.copy_rows_to_device(place, pinned.as_ptr(), rows) }.unwrap();
        let mut expected = vec![POISON; (before + rows.span() + 17) as usize];
        for row in 0..count {
            let (at, from) = ((before + row * pitch) as usize, (row * bytes) as usize);
            expected[at..at + bytes as usize].copy_from_slice(&data[from..from + bytes as usize]);
        }
        assert!(download(&stream, memory.slice()) == expected, "{rows:?} to the device");
        pinned.bytes_mut().fill(POISON);
        // SAFETY: as above; the synchronisation comes before the comparison.
        unsafe { stream.copy_rows_to_host(pinned.as_mut_ptr(), place, rows) }.unwrap();
        stream.synchronize().unwrap();
        assert!(pinned.bytes() == data, "{rows:?} to the host");
    }
    let memory = device.alloc(100).unwrap();
    for rows in [Rows { bytes: 10, pitch: 9, count: 2 }, Rows { bytes: 10, pitch: 50, count: 3 }] {
        // SAFETY: refused before anything is enqueued.
        let refused = unsafe { stream.copy_rows_to_device(memory.slice(), [0; 30].as_ptr(), rows) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadArgument);
    }
}

fn device_copies_and_fills(device: &Device, random: &mut Random) {
    let stream = device.create_stream().unwrap();
    let (from, to) = (device.alloc(1 << 20).unwrap(), device.alloc(1 << 20).unwrap());
    let data = random.bytes(1 << 20);
    stream.upload(from.slice(), &data).unwrap();
    for _ in 0..10 {
        poison(&stream, to.slice());
        let len = 1 + random.below(1 << 19);
        let (src, dst) = (random.below(1 << 19), random.below(1 << 19));
        let (fill_at, value) = (random.below(dst.max(1)), random.word() as u8);
        let filled = dst.saturating_sub(fill_at);
        // SAFETY: both allocations outlive the synchronising download below.
        unsafe {
            stream.copy_on_device(to.slice().part(dst, len).unwrap(), from.slice().part(src, len).unwrap()).unwrap();
            stream.fill(to.slice().part(fill_at, filled).unwrap(), value).unwrap();
        }
        let mut expected = vec![POISON; 1 << 20];
        expected[dst as usize..(dst + len) as usize].copy_from_slice(&data[src as usize..(src + len) as usize]);
        expected[fill_at as usize..(fill_at + filled) as usize].fill(value);
        assert!(download(&stream, to.slice()) == expected, "copy {src}->{dst}+{len}, fill {fill_at}+{filled}");
    }
}

fn streams_run_in_order(device: &Device, random: &mut Random) {
    let stream = device.create_stream().unwrap();
    let memory = device.alloc(1 << 20).unwrap();
    let mut pinned = device.alloc_pinned(1 << 20).unwrap();
    let data = random.bytes(1 << 20);
    pinned.bytes_mut().copy_from_slice(&data);
    // SAFETY: `pinned` and `memory` live until the synchronisation, and nobody writes `pinned`.
    unsafe {
        for value in 0..50 {
            stream.fill(memory.slice(), value).unwrap();
        }
        stream.copy_to_device(memory.slice(), pinned.as_ptr()).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(download(&stream, memory.slice()) == data, "an earlier fill landed after a later copy");
}

fn waits_order_streams(device: &Device, random: &mut Random) {
    let (one, two) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let (memory, copy) = (device.alloc(8 << 20).unwrap(), device.alloc(8 << 20).unwrap());
    for _ in 0..10 {
        let data = random.bytes(8 << 20);
        let mut pinned = device.alloc_pinned(8 << 20).unwrap();
        pinned.bytes_mut().copy_from_slice(&data);
        poison(&one, memory.slice());
        // SAFETY: everything lives until the download has synchronised `two`, which waited for `one`.
        unsafe {
            one.copy_to_device(memory.slice(), pinned.as_ptr()).unwrap();
            let copied = one.record().unwrap();
            two.wait(&copied).unwrap();
            two.copy_on_device(copy.slice(), memory.slice()).unwrap();
        }
        assert!(download(&two, copy.slice()) == data, "the second stream did not wait for the first");
    }
}

fn events_complete(device: &Device, random: &mut Random) {
    let stream = device.create_stream().unwrap();
    assert!(stream.record().unwrap().wait().is_ok(), "an event on an empty stream is done at once");
    let memory = device.alloc(32 << 20).unwrap();
    let mut pinned = device.alloc_pinned(32 << 20).unwrap();
    pinned.bytes_mut()[..4096].copy_from_slice(&random.bytes(4096));
    // SAFETY: `pinned` and `memory` live until the event below is done.
    unsafe { stream.copy_to_device(memory.slice(), pinned.as_ptr()).unwrap() };
    let event = stream.record().unwrap();
    event.wait().unwrap();
    assert!(event.query().unwrap(), "an event that was waited for is done");
    assert!(download(&stream, memory.slice().part(0, 4096).unwrap()) == pinned.bytes()[..4096]);
}

fn threads_share_the_device(device: &Device, random: &mut Random) {
    let seeds: Vec<u64> = (0..6).map(|_| random.word()).collect();
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(move || {
                let mut random = Random(seed);
                let stream = device.create_stream().unwrap();
                for _ in 0..8 {
                    let memory = device.alloc(1 + random.below(300_000)).unwrap();
                    let data = random.bytes(memory.len());
                    stream.upload(memory.slice(), &data).unwrap();
                    assert!(download(&stream, memory.slice()) == data, "seed {seed}");
                }
            });
        }
    });
}

fn pinned_memory_carries_data(device: &Device, random: &mut Random) {
    assert!(device.alloc_pinned(100_000).unwrap().bytes().iter().all(|byte| *byte == 0));
    let stream = device.create_stream().unwrap();
    let pool = PinnedPool::new(device, 65_536, 3);
    let memory = device.alloc(65_536 * 20).unwrap();
    poison(&stream, memory.slice());
    let data = random.bytes(memory.len());
    for (piece, chunk) in data.chunks(65_536).enumerate() {
        let mut slot = pool.acquire().unwrap();
        slot.buffer().bytes_mut().copy_from_slice(chunk);
        let place = memory.slice().part(piece as u64 * 65_536, 65_536).unwrap();
        // SAFETY: the slot is retired with an event recorded after the copy.
        unsafe { stream.copy_to_device(place, slot.buffer().as_ptr()) }.unwrap();
        slot.retire(stream.record().unwrap());
    }
    assert!(download(&stream, memory.slice()) == data);
    assert!(pool.stats().allocated_slots <= 3);
}

fn memory_is_bounded(device: &Device, random: &mut Random) {
    let total = device.memory().unwrap().total;
    let error = device.alloc(total.saturating_mul(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().starts_with(&device.id().to_string()), "the message names the device: {error}");
    copies_round_trip(device, random);
}

fn ranges_are_checked(device: &Device, _: &mut Random) {
    let memory = device.alloc(100).unwrap();
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 2)] {
        assert_eq!(memory.slice().part(offset, len).unwrap_err().kind(), ErrorKind::BadArgument);
    }
    assert!(memory.slice().part(100, 0).unwrap().is_empty());
}

/// Runs `check` where the device has `capability`; otherwise shows that `refused` is refused.
fn where_capable<T: std::fmt::Debug>(
    capability: &Capability,
    refused: impl FnOnce() -> crate::Result<T>,
    check: impl FnOnce(),
) {
    match capability.reason() {
        None => check(),
        Some(reason) => {
            println!("  not on this device: {reason}");
            assert_eq!(refused().unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}

/// A range whose mapped frames alone are used by the checks.
fn all_of(range: &AddressRange) -> DeviceSlice<'_> {
    // SAFETY: the checks below take the parts in which they have mapped frames.
    unsafe { range.slice() }
}

fn frames_move(device: &Device, random: &mut Random) {
    where_capable(
        &device.capabilities().virtual_memory,
        || device.create_frame(),
        || {
            let stream = device.create_stream().unwrap();
            let range = device.reserve(4 * FRAME_BYTES).unwrap();
            let frames = [device.create_frame().unwrap(), device.create_frame().unwrap()];
            range.map(FRAME_BYTES, &frames[0], Access::ReadWrite).unwrap();
            range.map(2 * FRAME_BYTES, &frames[1], Access::ReadWrite).unwrap();
            let data = random.bytes(2 * FRAME_BYTES);
            let both = all_of(&range).part(FRAME_BYTES, 2 * FRAME_BYTES).unwrap();
            poison(&stream, both);
            stream.upload(both, &data).unwrap();
            assert!(download(&stream, both) == data, "a copy across two frames");
            // SAFETY: the downloads have synchronised the stream; no work is in flight.
            let (second, first) = unsafe { (range.unmap(2 * FRAME_BYTES).unwrap(), range.unmap(FRAME_BYTES).unwrap()) };
            range.map(0, &second, Access::Read).unwrap();
            range.map(3 * FRAME_BYTES, &first, Access::ReadWrite).unwrap();
            assert_eq!(range.mapped(), [0, 3 * FRAME_BYTES]);
            let (low, high) = data.split_at(FRAME_BYTES as usize);
            assert!(download(&stream, all_of(&range).part(0, FRAME_BYTES).unwrap()) == high, "the second frame moved");
            assert!(
                download(&stream, all_of(&range).part(3 * FRAME_BYTES, FRAME_BYTES).unwrap()) == low,
                "the first frame moved"
            );
            // One that is as long as two of them.
            let long = device.create_frame_of(2 * FRAME_BYTES).unwrap();
            range.map(FRAME_BYTES, &long, Access::ReadWrite).unwrap();
            poison(&stream, both);
            stream.upload(both, &data).unwrap();
            // SAFETY: as above; the frame before it is in the way of the next place.
            let long = unsafe { (range.unmap(0).unwrap(), range.unmap(FRAME_BYTES).unwrap()) }.1;
            range.map(0, &long, Access::ReadWrite).unwrap();
            assert!(download(&stream, all_of(&range).part(0, 2 * FRAME_BYTES).unwrap()) == data, "a long frame moved");
        },
    );
}

fn places_are_checked(device: &Device, _: &mut Random) {
    where_capable(
        &device.capabilities().virtual_memory,
        || device.reserve(1),
        || {
            let range = device.reserve(FRAME_BYTES + 1).unwrap();
            assert_eq!(range.len(), 2 * FRAME_BYTES);
            let frame = device.create_frame().unwrap();
            range.map(0, &frame, Access::ReadWrite).unwrap();
            for offset in [0, 1, 2 * FRAME_BYTES, u64::MAX] {
                assert_eq!(
                    range.map(offset, &frame, Access::ReadWrite).unwrap_err().kind(),
                    ErrorKind::BadArgument,
                    "{offset}"
                );
            }
            let long = device.create_frame_of(2 * FRAME_BYTES).unwrap();
            for offset in [0, FRAME_BYTES] {
                let error = range.map(offset, &long, Access::ReadWrite).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BadArgument, "{offset}");
            }
            for len in [0, FRAME_BYTES - 1, FRAME_BYTES + 1] {
                assert_eq!(device.create_frame_of(len).unwrap_err().kind(), ErrorKind::BadArgument, "{len}");
            }
            // SAFETY: nothing is in flight.
            assert_eq!(unsafe { range.unmap(FRAME_BYTES) }.unwrap_err().kind(), ErrorKind::BadArgument);
        },
    );
}

fn frames_are_shared(device: &Device, random: &mut Random) {
    where_capable(
        &device.capabilities().export_fd,
        || device.create_frame(),
        || {
            let stream = device.create_stream().unwrap();
            let (here, there) = (device.reserve(FRAME_BYTES).unwrap(), device.reserve(FRAME_BYTES).unwrap());
            let frame = device.create_frame().unwrap();
            here.map(0, &frame, Access::ReadWrite).unwrap();
            let imported = device.import_frame(frame.export().unwrap()).unwrap();
            there.map(0, &imported, Access::ReadWrite).unwrap();
            poison(&stream, all_of(&there));
            let data = random.bytes(FRAME_BYTES);
            stream.upload(all_of(&here), &data).unwrap();
            drop((here, frame));
            assert!(download(&stream, all_of(&there)) == data, "the memory outlives its exporter");
        },
    );
}

/// `peer`, which may be `device` itself, copies from them too if the registration says so.
fn registered_mappings_copy(device: &Device, peer: &Device, random: &mut Random) {
    let len = 8_u64 << 20;
    let data = random.bytes(len);
    let mut file = tempfile_in_memory();
    file.write_all(&data).unwrap();
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new read-only mapping of an open file.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    // SAFETY: the mapping is removed only after the registration is gone.
    let register = || unsafe { device.register_host(mapped.cast(), len as usize) };
    where_capable(&device.capabilities().host_register_read_only, register, || {
        let registration = register().unwrap();
        assert!(registration.serves(device.id()));
        for user in [device, peer].into_iter().filter(|user| registration.serves(user.id())) {
            let (stream, memory) = (user.create_stream().unwrap(), user.alloc(len).unwrap());
            poison(&stream, memory.slice());
            // SAFETY: registration and memory live until the download has synchronised the stream.
            unsafe { stream.copy_to_device(memory.slice(), registration.as_ptr()).unwrap() };
            assert!(download(&stream, memory.slice()) == data);
        }
    });
    // SAFETY: the registration was dropped inside the check.
    unsafe { libc::munmap(mapped, len as usize) };
}

/// A file in a temporary folder, already unlinked.
fn tempfile_in_memory() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("bifolio-conformance-{}-{}", std::process::id(), fresh_seed()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

fn direct_storage_is_honest(device: &Device, _: &mut Random) {
    where_capable(
        &device.capabilities().direct_storage,
        || device.direct_storage(),
        || drop(device.direct_storage().unwrap()),
    );
}

fn energy_grows(device: &Device, _: &mut Random) {
    where_capable(
        &device.capabilities().energy,
        || device.energy_meter(),
        || {
            let meter = device.energy_meter().unwrap();
            let (watts, before) = (meter.watts(), meter.joules());
            assert!(watts.is_ok() || before.is_ok(), "a meter reads something");
            for refused in [&watts, &before].into_iter().filter_map(|reading| reading.as_ref().err()) {
                assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            }
            println!("  {watts:?} watts, {before:?} joules");
            assert!(watts.is_err() || watts.is_ok_and(|watts| (0.0..1e5).contains(&watts)));
            if let Ok(before) = before {
                let after = meter.joules().unwrap();
                assert!(before >= 0.0 && after >= before, "the counter went from {before} to {after} joules");
            }
        },
    );
}

fn reasons_are_given(device: &Device, _: &mut Random) {
    for (name, capability) in device.capabilities().iter() {
        let reasoned = capability.is_yes() || capability.reason().is_some_and(|reason| reason.len() > 10);
        assert!(reasoned, "{name} is absent without a reason");
    }
}
