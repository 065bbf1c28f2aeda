//! Power lost at every boundary between two writes, in arrays with and without all members: what was flushed
//! is read afterwards, blocks of writes under way are old or new, and P and Q fit.

use super::support::{DATA_OFFSET, Devices, content, created, open, range, without};
use crate::support::Draw;
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_io::Cancel;
use bifolio_volume::md::{Options, Raid6, Rotation};
use bifolio_volume::{BlockDevice, ErrorKind, Geometry, Load, Overwrite};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// One supply for all members: after so many writes and flushes of any of them, power is gone for all.
#[derive(Debug)]
struct Powered {
    below: Arc<FaultyDevice>,
    left: Arc<AtomicI64>,
}

impl Powered {
    fn spend(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.below.set_faults(Faults { power_for: Some(0), ..Faults::default() });
        }
    }
}

impl BlockDevice for Powered {
    fn name(&self) -> String {
        self.below.name()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> bifolio_block::Result<()> {
        if self.left.load(Ordering::Relaxed) < 0 {
            self.below.set_faults(Faults { power_for: Some(0), ..Faults::default() });
        }
        self.below.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> bifolio_block::Result<()> {
        self.spend();
        self.below.write(offset, data)
    }

    fn flush(&self) -> bifolio_block::Result<()> {
        self.spend();
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> bifolio_block::Result<()> {
        self.below.discard(offset, len)
    }
}

impl Load for Powered {}

/// What the array may hold: what was flushed, and for each byte what was written since, oldest first.
struct Model {
    flushed: Vec<u8>,
    since: Vec<(usize, Vec<u8>)>,
}

impl Model {
    /// A block of the smallest size is as one of the writes left it.
    fn check(&self, found: &[u8], about: &str) {
        for (block, found) in found.chunks(FaultyDevice::BLOCK_BYTES).enumerate() {
            let at = block * FaultyDevice::BLOCK_BYTES;
            let mut now = self.flushed[at..at + found.len()].to_vec();
            let mut is_possible = now == found;
            for (offset, data) in &self.since {
                let (start, end) = ((*offset).max(at), (offset + data.len()).min(at + found.len()));
                if start < end {
                    now[start - at..end - at].copy_from_slice(&data[start - offset..end - offset]);
                    is_possible |= now == found;
                }
            }
            assert!(is_possible, "block {block} is neither old nor new; {about}");
        }
    }
}

/// The same members behind a supply for so many requests.
fn powered(devices: &Devices, left: i64) -> Vec<Arc<dyn Load>> {
    let left = Arc::new(AtomicI64::new(left));
    let behind = |below: &Arc<FaultyDevice>| -> Arc<dyn Load> {
        Arc::new(Powered { below: Arc::clone(below), left: Arc::clone(&left) })
    };
    devices.iter().map(behind).collect()
}

/// Writes, flushes and loses power after `left` requests; what the model expects, and whether power was lost.
fn run(devices: &Devices, left: i64, steps: usize, draw: &mut Draw, base: &[u8]) -> (Model, bool) {
    let mut model = Model { flushed: base.to_vec(), since: vec![] };
    let Ok(array) = Raid6::assemble(powered(devices, left), true) else { return (model, true) };
    for step in 0..steps {
        let (offset, len) = range(draw, base.len() as u64);
        let data = draw.bytes(len as usize);
        // Also one that fails may have stored some of its blocks.
        model.since.push((offset as usize, data.clone()));
        if array.write(offset, &data).is_err() {
            return (model, true);
        }
        if step % 2 == 1 {
            if array.flush().is_err() {
                return (model, true);
            }
            for (offset, data) in std::mem::take(&mut model.since) {
                model.flushed[offset..offset + data.len()].copy_from_slice(&data);
            }
        }
    }
    let closed = array.close();
    if closed.is_ok() {
        for (offset, data) in std::mem::take(&mut model.since) {
            model.flushed[offset..offset + data.len()].copy_from_slice(&data);
        }
    }
    (model, closed.is_err())
}

/// What a loss of power leaves: nothing of what was not flushed, all of it, or any part.
fn survivors(devices: &Devices, kind: usize, draw: &mut Draw) -> Devices {
    let mut survives = |_| match kind {
        0 => false,
        1 => true,
        _ => draw.below(2) == 0,
    };
    devices.iter().map(|device| Arc::new(device.after_power_loss(&mut survives))).collect()
}

/// The members that are left of an array with content, which were written without the others.
fn start(gone: &[usize], stripes: u64, draw: &mut Draw) -> (Devices, Vec<u8>) {
    let whole = created(Rotation::LeftSymmetric, 5, stripes);
    let array = open(&whole).unwrap();
    let base = draw.bytes(array.geometry().size as usize);
    array.write(0, &base).unwrap();
    array.close().unwrap();
    // So that the missing members are known to be missing.
    let start = without(&whole, gone);
    let array = open(&start).unwrap();
    array.write(0, &base).unwrap();
    array.close().unwrap();
    (start, base)
}

fn copies(devices: &Devices) -> Devices {
    devices.iter().map(|device| Arc::new(FaultyDevice::new(device.name(), device.content()))).collect()
}

fn lose_power_everywhere(gone: &[usize]) {
    let mut draw = Draw::afresh();
    let (start, base) = start(gone, 4, &mut draw);
    let seed = draw.next_u64();
    for left in 0.. {
        let devices = copies(&start);
        let (model, was_lost) = run(&devices, left, 6, &mut Draw::from_seed(seed), &base);
        let about = format!("without {gone:?}, power for {left} requests, seed {} and {seed}", draw.seed());
        for kind in 0..4 {
            let after = survivors(&devices, kind, &mut draw);
            let array = open(&after).unwrap_or_else(|error| panic!("{error}; {about}"));
            assert_eq!(array.unsynced(), None, "{about}");
            let found = content(&array);
            model.check(&found, &about);
            if gone.is_empty() {
                let report = array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap();
                assert_eq!(report.wrong, 0, "{about}");
            }
            array.close().unwrap();
            // Putting it right was durable, and is done once.
            let again = open(&after).unwrap();
            assert!(content(&again) == found, "{about}");
        }
        if !was_lost {
            assert!(left > 20, "power was lost often enough");
            return;
        }
    }
}

#[test]
fn with_all_members() {
    lose_power_everywhere(&[]);
}

#[test]
fn with_one_member_missing() {
    lose_power_everywhere(&[1]);
}

#[test]
fn with_two_members_missing() {
    lose_power_everywhere(&[0, 3]);
}

/// What is written while a member is missing is logged twice, so that another one may be lost with the power.
#[test]
fn with_one_member_missing_and_another_lost_with_the_power() {
    let mut draw = Draw::afresh();
    let (start, base) = start(&[1], 4, &mut draw);
    let seed = draw.next_u64();
    for left in 0.. {
        let devices = copies(&start);
        let (model, was_lost) = run(&devices, left, 6, &mut Draw::from_seed(seed), &base);
        for kind in 0..3 {
            let lost = draw.below(4) as usize;
            let after = without(&survivors(&devices, kind, &mut draw), &[lost]);
            let about = format!("and {lost}, power for {left} requests, seed {} and {seed}", draw.seed());
            let array = open(&after).unwrap_or_else(|error| panic!("{error}; {about}"));
            model.check(&content(&array), &about);
        }
        if !was_lost {
            return;
        }
    }
}

/// A member refuses every write, so that it is taken out in the midst of storing superblocks, which begins anew.
#[test]
fn while_a_member_that_fails_is_taken_out() {
    let mut draw = Draw::afresh();
    for (gone, failing) in [(&[][..], 2), (&[0], 3)] {
        let (start, base) = start(gone, 4, &mut draw);
        let seed = draw.next_u64();
        for left in 0.. {
            let devices = copies(&start);
            devices[failing].set_faults(Faults { writes_fail: true, ..Faults::default() });
            let (model, was_lost) = run(&devices, left, 6, &mut Draw::from_seed(seed), &base);
            let about = format!("without {gone:?}, power for {left} requests, seed {} and {seed}", draw.seed());
            // Dead afterwards, too.
            let after = without(&survivors(&devices, draw.below(4) as usize, &mut draw), &[failing]);
            match open(&after) {
                Ok(array) => model.check(&content(&array), &about),
                // Power and a member lost at the same moment from an array that had all: it is for reading only.
                Err(error) => {
                    assert!(gone.is_empty() && error.kind() == ErrorKind::BadState, "{error}; {about}");
                    let members = after.iter().map(|device| Arc::clone(device) as Arc<dyn Load>).collect();
                    Raid6::open(members, Options { writable: false, force: false })
                        .unwrap_or_else(|error| panic!("{error}; {about}"));
                }
            }
            if !was_lost {
                assert!(left > 20, "power was lost often enough");
                break;
            }
        }
    }
}

/// Power goes once more while the array is put right after the first time.
#[test]
fn twice_in_a_row() {
    let mut draw = Draw::afresh();
    for gone in [&[][..], &[1], &[0, 3]] {
        let (start, base) = start(gone, 4, &mut draw);
        for _ in 0..6 {
            let devices = copies(&start);
            let (first, seed) = (draw.below(60) as i64, draw.next_u64());
            let (model, _) = run(&devices, first, 6, &mut Draw::from_seed(seed), &base);
            let (kind, before) = (draw.below(4) as usize, draw.next_u64());
            for left in 0.. {
                let once = survivors(&devices, kind, &mut Draw::from_seed(before));
                let about = format!("without {gone:?}, power for {first} and {left} requests, seed {}", draw.seed());
                let was_lost = Raid6::assemble(powered(&once, left), true).is_err();
                let twice = survivors(&once, draw.below(4) as usize, &mut draw);
                let array = open(&twice).unwrap_or_else(|error| panic!("{error}; {about}"));
                model.check(&content(&array), &about);
                if gone.is_empty() {
                    assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0, "{about}");
                }
                if !was_lost {
                    break;
                }
            }
        }
    }
}

#[test]
fn while_a_member_is_rebuilt() {
    let mut draw = Draw::afresh();
    for gone in [&[2][..], &[1, 4]] {
        let (start, base) = start(gone, 6, &mut draw);
        let size = start[0].geometry().size as usize;
        for left in 0.. {
            let (devices, onto) = (copies(&start), Arc::new(FaultyDevice::new("new", draw.bytes(size))));
            let all: Devices = devices.iter().chain([&onto]).cloned().collect();
            let about = format!("without {gone:?}, power for {left} requests, seed {}", draw.seed());
            let mut with_power = powered(&all, left);
            let new = with_power.pop().unwrap();
            let rebuild = |array: Raid6, new| {
                // What it held before may be lost.
                let rebuilt = array.rebuild_over(new, &Overwrite::Anything, &mut |_, _| {}, &Cancel::default());
                rebuilt.and_then(|()| array.close())
            };
            let was_lost = Raid6::assemble(with_power, true).and_then(|array| rebuild(array, new)).is_err();
            let mut after = survivors(&all, draw.below(4) as usize, &mut draw);
            // It may have become a member, or be one that is half done, or nobody's.
            let onto = after.pop().unwrap();
            let with_onto: Devices = after.iter().chain([&onto]).cloned().collect();
            let array = open(&with_onto).or_else(|_| open(&after));
            let array = array.unwrap_or_else(|error| panic!("{error}; {about}"));
            assert!(content(&array) == base, "{about}");
            let missing = array.missing().len();
            assert!(was_lost || missing == gone.len() - 1, "{about}");
            drop(array);
            // And once more, with power: onto the same one where it is not a member yet.
            if missing == gone.len() {
                let found = bifolio_volume::md::superblock::find(&*onto).unwrap();
                let is_partial = found.is_ok_and(|superblock| superblock.recovered_bytes.is_some());
                let array = open(if is_partial { &with_onto } else { &after }).unwrap();
                rebuild(array, Arc::clone(&onto) as _).unwrap_or_else(|error| panic!("{error}; {about}"));
            }
            for lost in 0..with_onto.len() {
                // With one of two rebuilt, one more may go; with all, two.
                let mut lost = vec![lost];
                if gone.len() == 1 {
                    lost.push((lost[0] + 1) % with_onto.len());
                }
                let left: Devices = with_onto
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| !lost.contains(at))
                    .map(|(_, one)| one.clone())
                    .collect();
                let array =
                    open(&copies(&left)).unwrap_or_else(|error| panic!("{error}; {about}, then without {lost:?}"));
                assert!(content(&array) == base, "{about}, then without {lost:?}");
            }
            if !was_lost {
                assert!(left > 10, "power was lost often enough");
                break;
            }
        }
    }
}

#[test]
fn while_what_is_wrong_is_repaired() {
    let mut draw = Draw::afresh();
    let (start, base) = start(&[], 6, &mut draw);
    for left in 0.. {
        let devices = copies(&start);
        for (member, stripe) in [(1, 1), (3, 4), (0, 5)] {
            devices[member].corrupt(
                DATA_OFFSET + stripe * 4096,
                |bytes| bytes.iter_mut().for_each(|b| *b ^= 0x5a),
                700,
            );
        }
        let about = format!("power for {left} requests, seed {}", draw.seed());
        let repair = |array: Raid6| {
            array.scrub(true, &mut |_, _| {}, &Cancel::default()).and_then(|report| array.close().map(|()| report))
        };
        let was_lost = Raid6::assemble(powered(&devices, left), true).and_then(repair).is_err();
        let after = survivors(&devices, draw.below(4) as usize, &mut draw);
        let array = open(&after).unwrap_or_else(|error| panic!("{error}; {about}"));
        assert!(array.missing().is_empty(), "{about}");
        let report = repair(array).unwrap_or_else(|error| panic!("{error}; {about}"));
        assert_eq!(report.wrong, report.repaired, "{about}");
        assert!(content(&open(&after).unwrap()) == base, "{about}");
        if !was_lost {
            assert!(left > 3, "power was lost often enough, but {left}");
            return;
        }
    }
}

/// Long enough for the log to begin again several times.
#[test]
fn at_any_moment_of_a_long_run() {
    let mut draw = Draw::afresh();
    for gone in [&[][..], &[4], &[2, 3]] {
        let (start, base) = start(gone, 40, &mut draw);
        for _ in 0..12 {
            let devices = copies(&start);
            let left = draw.below(900) as i64;
            let seed = draw.next_u64();
            let (model, _) = run(&devices, left, 60, &mut Draw::from_seed(seed), &base);
            let about = format!("without {gone:?}, power for {left} requests, seed {} and {seed}", draw.seed());
            let after = survivors(&devices, 2, &mut draw);
            let array = open(&after).unwrap_or_else(|error| panic!("{error}; {about}"));
            model.check(&content(&array), &about);
            if gone.is_empty() {
                assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0, "{about}");
            }
        }
    }
}

/// Symptom: a degraded array whose server was killed could not be looked at (`info`, `cat`) until it was opened for
/// writing. Cause: its log could only be carried out on the members themselves.
#[test]
fn reading_only_gives_what_opening_for_writing_would_leave_and_writes_nothing() {
    let mut draw = Draw::afresh();
    for gone in [&[1][..], &[0, 3]] {
        let (start, base) = start(gone, 4, &mut draw);
        let seed = draw.next_u64();
        let (mut replayed, mut of_members) = (0, 0);
        for left in 0.. {
            let devices = copies(&start);
            let (model, was_lost) = run(&devices, left, 6, &mut Draw::from_seed(seed), &base);
            let about = format!("without {gone:?}, power for {left} requests, seed {} and {seed}", draw.seed());
            let after = survivors(&devices, draw.below(4) as usize, &mut draw);
            let before: Vec<_> = after.iter().map(|device| device.content()).collect();
            let members = after.iter().map(|device| Arc::clone(device) as Arc<dyn Load>).collect();
            let reading = Raid6::open(members, Options::default()).unwrap_or_else(|error| panic!("{error}; {about}"));
            let seen = content(&reading);
            model.check(&seen, &about);
            let mut some = vec![0xa5; seen.len() / 3];
            reading.read(777, &mut some).unwrap();
            assert!(some == seen[777..777 + some.len()], "{about}");
            let replay = reading.replay();
            assert!(replay.is_none_or(|replay| replay.in_memory && replay.writes > 0 && replay.bytes > 0), "{about}");
            assert_eq!(reading.write(0, &[1]).unwrap_err().kind(), bifolio_block::ErrorKind::ReadOnly);
            drop(reading);
            assert!(after.iter().zip(&before).all(|(device, before)| device.content() == *before), "{about}");
            let array = open(&after).unwrap_or_else(|error| panic!("{error}; {about}"));
            assert!(content(&array) == seen, "{about}");
            let written = array.replay().map(|replay| (replay.writes, replay.bytes));
            assert_eq!(written, replay.map(|replay| (replay.writes, replay.bytes)), "{about}");
            replayed += u64::from(replay.is_some());
            of_members += u64::from(after.iter().zip(&before).any(|(device, before)| device.content() != *before));
            if !was_lost {
                break;
            }
        }
        assert!(replayed > 5 && of_members > 5, "{replayed} logs had something to say, seed {}", draw.seed());
    }
}

/// What was being written when power was lost cannot be compared without computing it again, and is counted.
#[test]
fn a_scrub_that_only_reads_leaves_out_what_was_being_written() {
    let mut draw = Draw::afresh();
    let (start, _) = start(&[], 4, &mut draw);
    let array = open(&start).unwrap();
    array.write(100, &[1; 3000]).unwrap();
    let after = survivors(&start, 1, &mut draw);
    drop(array);
    let members = || after.iter().map(|device| Arc::clone(device) as Arc<dyn Load>).collect();
    let array = Raid6::open(members(), Options::default()).unwrap();
    assert!(array.is_in_doubt() && array.replay().is_none());
    let report = array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap();
    assert_eq!((report.stripes, report.in_doubt, report.wrong), (4, 4, 0), "they are of one region");
    drop(array);
    let array = open(&after).unwrap();
    assert_eq!(array.replay().map(|replay| (replay.writes, replay.stripes, replay.in_memory)), Some((0, 4, false)));
    assert!(!array.is_in_doubt());
    let report = array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap();
    assert_eq!((report.stripes, report.in_doubt, report.wrong), (4, 0, 0));
}

/// The one case that a log does not cover is refused, unless forced.
#[test]
fn a_member_that_is_lost_with_the_power_of_a_whole_array_is_a_refusal() {
    let mut draw = Draw::afresh();
    let (start, base) = start(&[], 4, &mut draw);
    let array = open(&start).unwrap();
    array.write(100, &[1; 3000]).unwrap();
    let after = without(&survivors(&start, 1, &mut draw), &[2]);
    drop(array);
    let error = open(&after).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
    assert!(error.to_string().contains("give all members"), "{error}");
    // It stays one: what was refused has changed nothing.
    let before: Vec<_> = after.iter().map(|device| device.content()).collect();
    assert_eq!(open(&after).unwrap_err().kind(), ErrorKind::BadState);
    assert!(after.iter().zip(&before).all(|(device, before)| device.content() == *before));
    let members = || after.iter().map(|device| Arc::clone(device) as Arc<dyn Load>).collect();
    let array = Raid6::open(members(), Options { writable: false, force: false }).unwrap();
    assert!(content(&array)[8192..] == base[8192..]);
    drop(array);
    let array = Raid6::open(members(), Options { writable: true, force: true }).unwrap();
    array.write(0, &[2; 100]).unwrap();
    array.close().unwrap();
    assert!(open(&after).is_ok());
}

/// Symptom: a full file system below two members took both out of the array, which then had none to spare.
#[test]
fn a_member_without_room_is_no_member_that_failed() {
    let mut draw = Draw::afresh();
    let (start, base) = start(&[], 6, &mut draw);
    let array = open(&start).unwrap();
    start[1].set_faults(Faults { is_full: true, ..Faults::default() });
    start[3].set_faults(Faults { is_full: true, ..Faults::default() });
    let stripe = array.layout().stripe_bytes();
    let error = array.write(stripe, &draw.bytes(2 * stripe as usize)).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (bifolio_block::ErrorKind::NoSpace, libc::ENOSPC), "{error}");
    assert!(array.missing().is_empty(), "it is whole, and can be read");
    let error = array.write(0, &[1; 512]).unwrap_err();
    assert!(error.to_string().contains("has no space left"), "{error}");
    assert!(content(&array)[3 * stripe as usize..] == base[3 * stripe as usize..]);
    drop(array);
    // With room again it is put right, and none is missing.
    for member in &start {
        member.set_faults(Faults::default());
    }
    let array = open(&start).unwrap();
    assert!(array.missing().is_empty() && array.unsynced().is_none());
    let seen = content(&array);
    assert!(seen[..stripe as usize] == base[..stripe as usize]);
    assert!(seen[3 * stripe as usize..] == base[3 * stripe as usize..]);
    array.close().unwrap();
    for gone in [[0, 1], [1, 3], [2, 4]] {
        let array = open(&without(&copies(&start), &gone)).unwrap();
        assert!(content(&array) == seen, "P and Q fit the data, without {gone:?}");
    }
}

/// A member that fails while an array is put right leaves the rest in doubt, and that is not forgotten.
#[test]
fn a_member_that_fails_while_it_is_put_right_is_a_refusal() {
    let mut draw = Draw::afresh();
    let (start, _) = start(&[], 4, &mut draw);
    let array = open(&start).unwrap();
    array.write(100, &[1; 3000]).unwrap();
    let (first, second) = (survivors(&start, 1, &mut draw), survivors(&start, 1, &mut draw));
    drop(array);
    // Its superblock cannot be read either, so that it is missing from the beginning.
    first[1].set_faults(Faults { reads_fail: true, ..Faults::default() });
    assert_eq!(open(&first).unwrap_err().kind(), ErrorKind::BadState);
    // P of the first stripe has to be written again, and cannot be.
    second[2].corrupt(DATA_OFFSET, |bytes| bytes.fill(0x11), 4096);
    second[4].set_faults(Faults { writes_fail: true, ..Faults::default() });
    let error = open(&second).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    second[4].set_faults(Faults::default());
    let error = open(&second).unwrap_err();
    assert!(error.to_string().contains("not closed cleanly"), "{error}");
}
