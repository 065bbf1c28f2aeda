//! Reading and writing, with and without all members.

use super::support::{CHUNK, DATA_OFFSET, break_down, content, created, members_of, open, range, without};
use crate::support::Draw;
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_io::Cancel;
use bifolio_testing::until;
use bifolio_volume::md::{ArrayState, Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, ErrorKind, Load, Overwrite};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Writes at random to the array and to a plain copy, and compares now and then.
fn exercise(array: &Raid6, expected: &mut [u8], draw: &mut Draw, rounds: usize) {
    for round in 0..rounds {
        let (offset, len) = range(draw, expected.len() as u64);
        let data = draw.bytes(len as usize);
        array.write(offset, &data).unwrap();
        expected[offset as usize..][..data.len()].copy_from_slice(&data);
        let (offset, len) = range(draw, expected.len() as u64);
        let mut found = vec![0xa5; len as usize];
        array.read(offset, &mut found).unwrap();
        let wanted = &expected[offset as usize..][..found.len()];
        assert!(found == wanted, "round {round}, {len} bytes at {offset}, seed {}", draw.seed());
    }
    assert!(content(array) == expected, "seed {}", draw.seed());
}

#[test]
fn what_is_written_is_read_whatever_is_missing() {
    let mut draw = Draw::afresh();
    for rotation in Rotation::ALL {
        let count = 4 + draw.below(5) as usize;
        let devices = created(rotation, count, 9);
        let array = open(&devices).unwrap();
        let mut expected = vec![0; array.geometry().size as usize];
        exercise(&array, &mut expected, &mut draw, 30);
        let scrubbed = array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap();
        assert_eq!((scrubbed.stripes, scrubbed.wrong), (9, 0), "{rotation}, seed {}", draw.seed());
        array.close().unwrap();
        // Each pair is left out, read, and written to.
        let (a, b) = (draw.below(count as u64) as usize, draw.below(count as u64) as usize);
        let array = open(&without(&devices, &[a, b])).unwrap();
        assert_eq!(array.health(), ArrayState::Degraded);
        assert!(content(&array) == expected, "{rotation} without {a} and {b}, seed {}", draw.seed());
        exercise(&array, &mut expected, &mut draw, 30);
        array.close().unwrap();
        // The members that were left out are stale now, and come back by being rebuilt.
        let array = open(&devices).unwrap();
        let gone = array.missing();
        assert_eq!(array.left_out().len(), gone.len());
        for role in gone {
            array.rebuild(Arc::clone(&devices[role]) as _, &mut |_, _| {}, &Cancel::default()).unwrap();
        }
        assert_eq!(array.health(), ArrayState::Healthy);
        exercise(&array, &mut expected, &mut draw, 10);
        assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0);
    }
}

#[test]
fn members_may_fail_one_after_the_other_while_it_is_used() {
    let mut draw = Draw::afresh();
    for round in 0..12 {
        let devices = created(Rotation::LeftSymmetric, 6, 8);
        let array = open(&devices).unwrap();
        let mut expected = vec![0; array.geometry().size as usize];
        exercise(&array, &mut expected, &mut draw, 5);
        let first = draw.below(6) as usize;
        let second = (first + 1 + draw.below(5) as usize) % 6;
        for (i, member) in [first, second].into_iter().enumerate() {
            let kind = (round + i) % 3;
            devices[member].set_faults(Faults {
                reads_fail: kind == 0,
                writes_fail: kind == 1,
                flushes_fail: kind == 2,
                ..Faults::default()
            });
            exercise(&array, &mut expected, &mut draw, 10);
            array.flush().unwrap();
            assert!(array.missing().contains(&member) || kind == 0, "kind {kind}, seed {}", draw.seed());
        }
        array.close().unwrap();
        for device in &devices {
            device.set_faults(Faults::default());
        }
        // The others' superblocks say who failed, so that nothing stale is used.
        let array = open(&devices).unwrap();
        assert!(content(&array) == expected, "round {round}, seed {}", draw.seed());
    }
}

#[test]
fn a_third_failure_ends_writing_and_says_so() {
    let devices = created(Rotation::LeftSymmetric, 5, 6);
    let array = open(&devices).unwrap();
    let data = vec![7; array.geometry().size as usize];
    array.write(0, &data).unwrap();
    for member in [0, 3] {
        break_down(&devices[member]);
        array.write(0, &data).unwrap();
    }
    break_down(&devices[1]);
    let error = array.write(0, &data).unwrap_err();
    assert_eq!(error.kind(), bifolio_block::ErrorKind::TooFewMembers);
    assert!(error.to_string().contains("3 of 5 members"), "{error}");
    assert_eq!(array.health(), ArrayState::Failed);
    assert!(array.write(0, &data).unwrap_err().to_string().contains("read-only"));
    assert_eq!(array.read(0, &mut vec![0; data.len()]).unwrap_err().kind(), bifolio_block::ErrorKind::TooFewMembers);
}

#[test]
fn threads_that_write_one_stripe_leave_p_and_q_right() {
    let devices = created(Rotation::LeftSymmetric, 7, 3);
    for gone in [&[][..], &[2], &[2, 5]] {
        let array = open(&without(&devices, gone)).unwrap();
        let size = array.geometry().size;
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let array = &array;
                // Each has bytes of its own: every fourth run of 500.
                scope.spawn(move || {
                    let mut draw = Draw::from_seed(thread);
                    // So many that the log begins again while others are writing.
                    for _ in 0..250 {
                        let at = (draw.below(size / 2000) * 4 + thread) * 500;
                        array.write(at, &vec![thread as u8 + 1; 500]).unwrap();
                        let mut back = vec![0; 500];
                        array.read(at, &mut back).unwrap();
                        assert!(back == vec![thread as u8 + 1; 500]);
                    }
                });
            }
        });
        let found = content(&array);
        for (i, run) in found.chunks(500).enumerate() {
            let own = (i % 4) as u8 + 1;
            assert!(run.iter().all(|byte| *byte == own) || run.iter().all(|byte| *byte == 0), "run {i}");
        }
        if gone.is_empty() {
            assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0);
        }
        array.close().unwrap();
        // As stale members would be left out.
        for role in open(&devices).unwrap().missing() {
            let array = open(&devices).unwrap();
            array.rebuild(Arc::clone(&devices[role]) as _, &mut |_, _| {}, &Cancel::default()).unwrap();
        }
    }
}

#[test]
fn members_may_fail_while_threads_write() {
    let mut draw = Draw::afresh();
    for _ in 0..6 {
        let devices = created(Rotation::RightSymmetric, 6, 12);
        let array = open(&devices).unwrap();
        let size = array.geometry().size;
        let share = size / 4;
        let seed = draw.next_u64();
        let rounds = AtomicUsize::new(0);
        let written: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let writer = |thread: u64| {
                let (array, rounds) = (&array, &rounds);
                scope.spawn(move || {
                    let mut draw = Draw::from_seed(seed ^ thread);
                    let mut own = vec![0; share as usize];
                    for _ in 0..80 {
                        let (offset, len) = range(&mut draw, share);
                        let data = draw.bytes(len as usize);
                        array.write(thread * share + offset, &data).unwrap();
                        own[offset as usize..][..data.len()].copy_from_slice(&data);
                        let (offset, len) = range(&mut draw, share);
                        let mut back = vec![0xa5; len as usize];
                        array.read(thread * share + offset, &mut back).unwrap();
                        assert!(back == own[offset as usize..][..back.len()], "thread {thread}, seed {seed}");
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    own
                })
            };
            let threads: Vec<_> = (0..4).map(writer).collect();
            for (member, after) in [(1, 60), (4, 160)] {
                let goes_on = || {
                    rounds.load(Ordering::Relaxed) >= after
                        || threads.iter().all(std::thread::ScopedJoinHandle::is_finished)
                };
                until("the threads write", goes_on);
                break_down(&devices[member]);
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        array.flush().unwrap();
        assert!(content(&array) == written.concat(), "seed {seed}");
        array.close().unwrap();
        for device in &devices {
            device.set_faults(Faults::default());
        }
        let array = open(&devices).unwrap();
        assert_eq!(array.missing(), [1, 4]);
        for role in [1, 4] {
            array.rebuild(Arc::clone(&devices[role]) as _, &mut |_, _| {}, &Cancel::default()).unwrap();
        }
        assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0);
        assert!(content(&array) == written.concat(), "seed {seed}");
    }
}

#[test]
fn an_array_is_written_while_a_member_is_rebuilt() {
    let mut draw = Draw::afresh();
    let devices = created(Rotation::LeftAsymmetric, 5, 120);
    let array = open(&without(&devices, &[0])).unwrap();
    let mut expected = vec![0; array.geometry().size as usize];
    std::thread::scope(|scope| {
        let rebuild = scope.spawn(|| array.rebuild(Arc::clone(&devices[0]) as _, &mut |_, _| {}, &Cancel::default()));
        exercise(&array, &mut expected, &mut draw, 60);
        rebuild.join().unwrap().unwrap();
    });
    assert_eq!(array.health(), ArrayState::Healthy);
    exercise(&array, &mut expected, &mut draw, 20);
    assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0, "seed {}", draw.seed());
}

#[test]
fn long_requests_are_divided_among_threads() {
    let mut draw = Draw::afresh();
    let len = DATA_OFFSET + (4 << 20);
    let devices: Vec<Arc<FaultyDevice>> =
        (0..5).map(|i| Arc::new(FaultyDevice::new(format!("m{i}"), vec![0; len]))).collect();
    let options = CreateOptions { content: Content::Zeroes, ..CreateOptions::default() };
    let array = Raid6::create(members_of(&devices), 65536, Rotation::RightAsymmetric, &options).unwrap();
    let size = array.geometry().size as usize;
    let data = draw.bytes(size - 3000);
    array.write(1234, &data).unwrap();
    for gone in [&[][..], &[0], &[0, 1]] {
        for member in gone {
            break_down(&devices[*member]);
        }
        let mut found = vec![0xa5; data.len()];
        array.read(1234, &mut found).unwrap();
        assert!(found == data, "without {gone:?}, seed {}", draw.seed());
    }
    let data = draw.bytes(size - 3000);
    array.write(1234, &data).unwrap();
    assert!(content(&array)[1234..][..data.len()] == data);
}

#[test]
fn a_scrub_names_the_member_and_repairs_it() {
    let mut draw = Draw::afresh();
    let devices = created(Rotation::LeftAsymmetric, 6, 8);
    let array = open(&devices).unwrap();
    let data = draw.bytes(array.geometry().size as usize);
    array.write(0, &data).unwrap();
    let layout = array.layout();
    for stripe in 0..8_u64 {
        let member = draw.below(6) as usize;
        let at = DATA_OFFSET + (stripe * CHUNK) as usize + draw.below(4000) as usize;
        devices[member].corrupt(at, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x5a), 90);
        let report = array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap();
        let finding = &report.findings[0];
        assert_eq!((report.wrong, finding.stripe, finding.member), (1, stripe, Some(member)), "seed {}", draw.seed());
        assert_eq!(finding.name.as_deref(), Some(&*format!("member-{member}")));
        let what = if member == layout.p(stripe) {
            "P"
        } else if member == layout.q(stripe) {
            "Q"
        } else {
            "data"
        };
        assert_eq!((finding.what, finding.offset.is_some()), (what, what == "data"));
        let repaired = array.scrub(true, &mut |_, _| {}, &Cancel::default()).unwrap();
        assert_eq!((repaired.wrong, repaired.repaired), (1, 1));
        assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0);
    }
    assert!(content(&array) == data);
    // Two wrong members cannot be told apart, and nothing is changed.
    for member in [1, 2] {
        devices[member].corrupt(DATA_OFFSET + 100, |bytes| bytes.fill(member as u8), 50);
    }
    let before: Vec<_> = devices.iter().map(|device| device.content()).collect();
    let report = array.scrub(true, &mut |_, _| {}, &Cancel::default()).unwrap();
    assert_eq!((report.wrong, report.unknown, report.repaired), (1, 1, 0));
    assert!(devices.iter().zip(before).all(|(device, before)| device.content() == before));
}

#[test]
fn an_interrupted_rebuild_goes_on_where_it_was() {
    let mut draw = Draw::afresh();
    let devices = created(Rotation::LeftSymmetric, 5, 100);
    let array = open(&without(&devices, &[3])).unwrap();
    let mut expected = vec![0; array.geometry().size as usize];
    exercise(&array, &mut expected, &mut draw, 20);
    let new = Arc::new(FaultyDevice::new("new", vec![0xee; DATA_OFFSET + 100 * CHUNK as usize]));
    let cancel = Cancel::default();
    let slow = SlowDevice { below: Arc::clone(&new), cancel: cancel.clone(), writes: 30.into() };
    let slow = Arc::new(slow);
    let error = array.rebuild(Arc::clone(&slow) as _, &mut |_, _| {}, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "it is not empty: {error}");
    let error = array.rebuild_over(slow, &Overwrite::Anything, &mut |_, _| {}, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    // Writes go to the new member, too.
    exercise(&array, &mut expected, &mut draw, 20);
    array.close().unwrap();
    let mut all = without(&devices, &[3]);
    all.push(Arc::clone(&new));
    let array = open(&all).unwrap();
    assert_eq!((array.health(), array.missing()), (ArrayState::Degraded, vec![3]));
    exercise(&array, &mut expected, &mut draw, 20);
    let mut first = None;
    array.rebuild(new, &mut |done, _| _ = first.get_or_insert(done), &Cancel::default()).unwrap();
    assert!(first.is_some_and(|first| first > 0), "{first:?}");
    exercise(&array, &mut expected, &mut draw, 20);
    array.close().unwrap();
    // It carries the array with any two others gone.
    let array = open(&without(&all, &[0, 1])).unwrap();
    assert!(content(&array) == expected, "seed {}", draw.seed());
}

/// Interrupts after some writes.
#[derive(Debug)]
struct SlowDevice {
    below: Arc<FaultyDevice>,
    cancel: Cancel,
    writes: AtomicUsize,
}

impl BlockDevice for SlowDevice {
    fn name(&self) -> String {
        self.below.name()
    }

    fn geometry(&self) -> bifolio_volume::Geometry {
        self.below.geometry()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> bifolio_block::Result<()> {
        self.below.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> bifolio_block::Result<()> {
        if self.writes.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.cancel.cancel();
        }
        self.below.write(offset, data)
    }

    fn flush(&self) -> bifolio_block::Result<()> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> bifolio_block::Result<()> {
        self.below.discard(offset, len)
    }
}

impl Load for SlowDevice {}

#[test]
fn parity_of_unknown_content_is_computed() {
    let mut draw = Draw::afresh();
    let len = DATA_OFFSET + 20 * CHUNK as usize;
    let devices: Vec<Arc<FaultyDevice>> =
        (0..6).map(|i| Arc::new(FaultyDevice::new(format!("m{i}"), draw.bytes(len)))).collect();
    let used = CreateOptions::default();
    let refused = Raid6::create(members_of(&devices), CHUNK, Rotation::LeftSymmetric, &used).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
    let options = CreateOptions { overwrite: Overwrite::Anything, ..used };
    let array = Raid6::create(members_of(&devices), CHUNK, Rotation::LeftSymmetric, &options).unwrap();
    assert_eq!(array.unsynced(), Some(0));
    assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap_err().kind(), ErrorKind::BadState);
    let mut expected = content(&array);
    exercise(&array, &mut expected, &mut draw, 10);
    array.close().unwrap();
    let array = open(&devices).unwrap();
    assert_eq!(array.unsynced(), Some(0), "closing does not make it clean");
    array.resync(&mut |_, _| {}, &Cancel::default()).unwrap();
    assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0);
    array.close().unwrap();
    let array = open(&without(&devices, &[2, 4])).unwrap();
    assert!(content(&array) == expected, "seed {}", draw.seed());
}

/// Symptom: an array that was exported by NBD and written to was never closed, and did not open for writing without
/// one of its members. Cause: the server's device is not dropped.
#[test]
fn an_array_that_was_settled_is_clean_though_it_was_not_closed() {
    let room = (1 << 20) + (64 << 10);
    let members: Vec<Arc<FaultyDevice>> =
        (0..5).map(|number| Arc::new(FaultyDevice::new(format!("m{number}"), vec![0; room]))).collect();
    let all = members.iter().map(|member| Arc::clone(member) as Arc<dyn Load>).collect();
    let options = CreateOptions { content: Content::Zeroes, ..CreateOptions::default() };
    let array = Raid6::create(all, 4096, Rotation::LeftSymmetric, &options).unwrap();
    let content: Vec<u8> = (0..50_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let without_one = || -> bifolio_volume::Result<Raid6> {
        let left = members[1..].iter().map(|member| Arc::new(member.after_power_loss(|_| false)) as Arc<dyn Load>);
        Raid6::assemble(left.collect(), true)
    };
    array.write(100, &content).unwrap();
    array.flush().unwrap();
    assert_eq!(without_one().unwrap_err().kind(), ErrorKind::BadState, "it is being written");
    array.settle().unwrap();
    let mut seen = vec![0xa5; content.len()];
    without_one().unwrap().read(100, &mut seen).unwrap();
    assert!(seen == content);
    // And it goes on.
    array.write(0, &content).unwrap();
    array.flush().unwrap();
    assert_eq!(without_one().unwrap_err().kind(), ErrorKind::BadState);
}

#[test]
fn a_member_that_fails_on_the_way_is_complained_about_once() {
    let devices = created(Rotation::LeftSymmetric, 5, 4);
    let array = open(&devices).unwrap();
    assert!(array.complaints().is_empty());
    break_down(&devices[2]);
    let mut some = vec![0xa5; array.geometry().size as usize];
    array.read(0, &mut some).unwrap();
    assert!(some.iter().all(|byte| *byte == 0));
    let said = array.complaints();
    assert!(said.len() == 1 && said[0].contains("without member-2: it failed"), "{said:?}");
    assert!(array.complaints().is_empty(), "it was said");
}
