//! Demand mode against an oracle that reads the file: random questions, little memory, files that change, and
//! what must be refused.

#[path = "../../../kernels/tests/demand/mod.rs"]
mod probe;

use crate::frames::{assert_clean, other, world_with_secrets};
use crate::support::{Draw, FRAME, PAGE, World, random, sets};
use bifolio_cache::{CacheOptions, CachedFile, Demand, DemandReport, Error, ErrorKind};
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{Device, DeviceSlice, KernelArg};
use bifolio_testing::until;
use fastrand::Rng;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The embedded device, and a GPU if there is one.
fn devices() -> Vec<Device> {
    sets(1).into_iter().flatten().collect()
}

/// A cache that has the device twice.
fn world(device: &Device, page_bytes: u64, budget_bytes: u64, content: &[u8]) -> World {
    let options = CacheOptions { page_bytes, budget_bytes, ..CacheOptions::default() };
    World::new(&[device.clone(), device.clone()], options, content)
}

/// Items that ask for bytes and sum them, as the probe's kernel does.
struct Work {
    /// By item, as many for each.
    questions: Vec<Vec<(u64, u64)>>,
    goes_on: bool,
}

const POISON: u64 = 0xabab_abab_abab_abab;

impl Work {
    fn draw(random: &mut Rng, items: u64, per_item: u64, len: u64, longest: u64) -> Self {
        let question = |random: &mut Rng| {
            let offset = random.below(len + 1);
            (offset, random.below((len - offset).min(longest) + 1))
        };
        let questions = (0..items).map(|_| (0..per_item).map(|_| question(random)).collect()).collect();
        Self { questions, goes_on: random.below(2) == 0 }
    }

    fn sums(&self, content: &[u8]) -> Vec<u64> {
        let sum = |item: &Vec<(u64, u64)>| {
            let bytes = item.iter().flat_map(|(offset, len)| &content[*offset as usize..(offset + len) as usize]);
            bytes.fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
        };
        self.questions.iter().map(sum).collect()
    }

    /// The file's pages that are needed, for a mapping that begins at `start`.
    fn pages(&self, start: u64, page_bytes: u64) -> BTreeSet<u64> {
        let questions = self.questions.iter().flatten().filter(|(_, len)| *len > 0);
        questions
            .flat_map(|(offset, len)| (start + offset) / page_bytes..=(start + offset + len - 1) / page_bytes)
            .collect()
    }

    /// The sums that the items stored, and what became of the session. `at` is called before each
    /// launch, and with none when the session is over.
    fn run(&self, demand: &mut Demand<'_>, device: &Device, mut at: impl FnMut(Option<u32>)) -> (Outcome, Vec<u64>) {
        let (module, stream) = (device.load_module(&probe::PROBE).unwrap(), device.create_stream().unwrap());
        let words: Vec<u64> = self.questions.iter().flatten().flat_map(|(offset, len)| [*offset, *len]).collect();
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let count = self.questions.len();
        let (questions, sums) = (device.alloc(bytes.len() as u64).unwrap(), device.alloc(count as u64 * 8).unwrap());
        stream.upload(questions.slice(), &bytes).unwrap();
        stream.upload(sums.slice(), &vec![0xab; count * 8]).unwrap();
        let per_item = self.questions[0].len() as u32;
        let params: Vec<u8> = [per_item, u32::from(self.goes_on)].into_iter().flat_map(u32::to_ne_bytes).collect();
        let outcome = demand.run(count as u32, |launch| {
            at(Some(launch.round));
            let args = [
                KernelArg::Buffer(launch.table),
                KernelArg::Buffer(launch.file),
                KernelArg::Buffer(questions.ptr()),
                KernelArg::Buffer(sums.ptr()),
                KernelArg::Bytes(&params),
            ];
            // SAFETY: the arguments are those of the kernel; all memory lives until the session has ended.
            unsafe { launch.stream.launch(&module, probe::KERNEL, launch.items.div_ceil(64), 64, &args) }
        });
        at(None);
        let mut found = vec![0; count * 8];
        stream.download(&mut found, sums.slice()).unwrap();
        let (words, _) = found.as_chunks::<8>();
        (outcome, words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// The report of a session that goes well and has the right sums.
    fn check(&self, demand: &mut Demand<'_>, device: &Device, content: &[u8]) -> DemandReport {
        let (outcome, sums) = self.run(demand, device, |_| {});
        let report = outcome.unwrap();
        let wrong = sums.iter().zip(self.sums(content)).position(|(found, expected)| *found != expected);
        assert_eq!(wrong, None, "an item has a wrong sum after {report:?}");
        report
    }
}

type Outcome = Result<DemandReport, Error>;

/// Symptom: a kernel read the bytes of another file. Cause: of a frame only the pages are fetched that somebody asks for,
/// and what another file had left in the others was still there.
#[test]
fn kernels_that_ask_for_pages_see_nothing_of_other_files() {
    for device in devices() {
        let world = world_with_secrets(std::slice::from_ref(&device), 4);
        let content = vec![7; 3 * PAGE as usize];
        let mut mapping = other(&world, &content).map_on(0, 0..u64::MAX, false).unwrap();
        let (start, stream) = (mapping.ptr(), device.create_stream().unwrap());
        let (mut frame, mut rounds) = (vec![0x5a; FRAME as usize], 0);
        let work = Work { questions: vec![vec![(10, 40)]], goes_on: false };
        let look = |round: Option<u32>| {
            if round.is_some_and(|round| round > 0) {
                // SAFETY: the frame has memory since a page of it was asked for.
                stream.download(&mut frame, unsafe { DeviceSlice::from_raw(start, FRAME) }).unwrap();
                rounds += 1;
            }
        };
        let (outcome, sums) = work.run(&mut mapping.demand().unwrap(), &device, look);
        outcome.unwrap();
        assert_eq!((rounds, sums), (1, work.sums(&content)));
        assert_clean(&frame, &content, PAGE as usize, "what was not asked for");
    }
}

#[test]
fn items_get_what_they_ask_for_and_nothing_else_moves() {
    for device in devices() {
        let mut random = random();
        for page_bytes in [4096, 64 << 10, FRAME] {
            let content = {
                let len = 1 + random.below(20 << 20);
                random.bytes(len)
            };
            let world = world(&device, page_bytes, 64 << 20, &content);
            let file = world.open();
            let start = random.below(content.len() as u64);
            let mut mapping = file.map(device.id(), start..u64::MAX, false).unwrap();
            let mapped = &content[start as usize..];
            let mut demand = mapping.demand().unwrap();
            let mut seen = BTreeSet::new();
            for (items, per_item) in [(1, 1), (50, 1), (20, 4), (300, 2)] {
                let work = Work::draw(&mut random, items, per_item, mapped.len() as u64, 20_000);
                let report = work.check(&mut demand, &device, mapped);
                let pages = work.pages(start, page_bytes);
                let fresh: Vec<u64> = pages.difference(&seen).copied().collect();
                let bytes = |page: &u64| (content.len() as u64 - page * page_bytes).min(page_bytes);
                assert_eq!(report.asked, pages.len() as u64);
                assert_eq!((report.fetched, report.fetched_bytes), (fresh.len() as u64, fresh.iter().map(bytes).sum()));
                assert_eq!((report.rounds_short, report.evicted), (0, 0));
                seen.extend(fresh);
            }
        }
    }
}

#[test]
fn a_launch_is_needed_for_each_step_and_none_for_what_is_there() {
    for device in devices() {
        let content = random().bytes(40 * 4096);
        let world = world(&device, 4096, 64 << 20, &content);
        let file = world.open();
        let mut mapping = file.map(device.id(), 0..u64::MAX, false).unwrap();
        let mut demand = mapping.demand().unwrap();
        let steps = |first: u64, goes_on| Work {
            questions: vec![(first..first + 5).map(|page| (page * 4096, 9)).collect()],
            goes_on,
        };
        assert_eq!(steps(0, false).check(&mut demand, &device, &content).rounds, 6);
        assert_eq!(steps(10, true).check(&mut demand, &device, &content).rounds, 2);
        // Once nobody can have changed it unseen.
        until("one launch is enough for what is there", || {
            let again = steps(0, false).check(&mut demand, &device, &content);
            assert_eq!((again.asked, again.fetched), (5, 0));
            again.rounds == 1
        });
        assert_eq!(demand.run(0, |_| panic!("there is nothing to launch")).unwrap().rounds, 0);
    }
}

#[test]
fn little_memory_makes_it_slow_and_not_wrong() {
    for device in devices() {
        let mut random = random();
        let content = random.bytes(48 << 20);
        for frames in [3, 5, 9] {
            let world = world(&device, 64 << 10, frames * FRAME, &content);
            let file = world.open();
            let mut mapping = file.map(device.id(), 0..u64::MAX, false).unwrap();
            let mut demand = mapping.demand().unwrap();
            // Three questions of an item are in three frames at most, as none is longer than a page by much.
            for per_item in [1, 2, 3] {
                let mut work = Work::draw(&mut random, 200, per_item, content.len() as u64 - 64, 60);
                for (offset, len) in work.questions.iter_mut().flatten() {
                    // Not over the end of a frame.
                    *offset -= (*offset + *len).saturating_sub(offset.next_multiple_of(FRAME)).min(64).min(*offset);
                    *len = (*len).min(FRAME - *offset % FRAME);
                }
                let report = work.check(&mut demand, &device, &content);
                assert_eq!(report.asked, work.pages(0, 64 << 10).len() as u64);
                assert!(report.rounds_short > 0 && report.evicted > 0, "{report:?}");
                if per_item == 1 {
                    // Items that need one frame each cost no more than what they need.
                    assert!(
                        report.fetched <= report.asked && report.rounds <= 2 + 24_u32.div_ceil(frames as u32),
                        "{report:?}"
                    );
                }
                assert!(world.cache.stats()[0].used_bytes <= frames * FRAME);
            }
        }
    }
}

#[test]
fn what_others_write_is_seen_by_the_next_session() {
    for device in devices() {
        let mut random = random();
        let mut content = random.bytes(5_000_000);
        let world = world(&device, 4096, 64 << 20, &content);
        let file = world.open();
        let mut mapping = file.map_on(0, 0..u64::MAX, false).unwrap();
        let mut demand = mapping.demand().unwrap();
        let mut other = file.map_on(1, 0..u64::MAX, true).unwrap();
        for round in 0..12 {
            let work = Work::draw(&mut random, 40, 2, content.len() as u64, 30_000);
            work.check(&mut demand, &device, &content);
            let at = random.below(4_900_000) as usize;
            let len = 1 + random.below(90_000);
            let bytes = random.bytes(len);
            match round % 3 {
                0 => File::options().write(true).open(&world.path).unwrap().write_all_at(&bytes, at as u64).unwrap(),
                1 => file.write(at as u64, &bytes).unwrap(),
                _ => {
                    let part = at as u64..at as u64 + bytes.len() as u64;
                    other.acquire(part.clone()).unwrap();
                    // SAFETY: the part is acquired.
                    let slice = unsafe { DeviceSlice::from_raw(other.ptr().offset_by(part.start), bytes.len() as u64) };
                    device.create_stream().unwrap().upload(slice, &bytes).unwrap();
                    other.release(part).unwrap();
                }
            }
            content[at..at + bytes.len()].copy_from_slice(&bytes);
            work.check(&mut demand, &device, &content);
            // A process that writes over what a device has released, and home lacks yet, would race with it.
            file.sync().unwrap();
        }
    }
}

#[test]
fn a_device_that_fails_at_any_copy_ends_the_session_and_harms_nothing() {
    for plain in devices() {
        let mut random = random();
        let content = random.bytes(7 << 20);
        for is_download in [false, true] {
            let faults = Arc::new(Faults::default());
            let device = Device::from_backend(FaultBackend::new(plain.backend(), &faults));
            let mut failures = 0;
            loop {
                let world = world(&device, 4096, 3 * FRAME, &content);
                let file = world.open();
                let mut mapping = file.map_on(0, 0..u64::MAX, false).unwrap();
                let work = Work::draw(&mut random, 6, 2, content.len() as u64, 9000);
                let mut demand = mapping.demand().unwrap();
                let switch = if is_download { &faults.downloads } else { &faults.copies };
                let (outcome, _) = work.run(&mut demand, &device, |round| match round {
                    Some(0) => switch.store(failures, Ordering::SeqCst),
                    Some(_) => {}
                    None => switch.store(-1, Ordering::SeqCst),
                });
                if let Err(error) = &outcome {
                    assert!(matches!(error.kind(), ErrorKind::Device | ErrorKind::Read), "{error}");
                    assert!(error.to_string().contains("failed on purpose"), "{error}");
                }
                work.check(&mut demand, &device, &content);
                all_is_free(&world, &file);
                if outcome.is_ok() {
                    break;
                }
                failures += 1;
            }
            assert!(failures > 1, "a session downloads and uploads a table after each launch");
        }
    }
}

/// After whatever error, nothing stays pinned: all of the budget can be had.
fn all_is_free(world: &World, file: &CachedFile) {
    let mut whole = file.map_on(0, 0..u64::MAX, false).unwrap();
    let frames = world.cache.stats()[0].budget_bytes / FRAME;
    let len = whole.len();
    assert!(len > frames * FRAME, "the file is larger than the budget");
    for start in [0, len - frames * FRAME + len % FRAME] {
        let start = start / FRAME * FRAME;
        let part = start..(start + frames * FRAME).min(len);
        whole.acquire(part.clone()).unwrap();
        whole.release(part).unwrap();
    }
}

#[test]
fn questions_beyond_the_end_are_errors_and_not_faults() {
    for device in devices() {
        let mut random = random();
        let content = random.bytes(9 << 20);
        let world = world(&device, 64 << 10, 4 * FRAME, &content);
        let file = world.open();
        let mut mapping = file.map(device.id(), 0..(9 << 20) - 5, false).unwrap();
        let len = mapping.len();
        for (offset, length) in [(len - 3, 4), (len + 1, 0), (u64::MAX, 2), (7, u64::MAX), (len, 5)] {
            let mut work = Work::draw(&mut random, 30, 1, len, 100);
            let expected = work.sums(&content);
            let wrong = random.below(30) as usize;
            work.questions[wrong][0] = (offset, length);
            let mut demand = mapping.demand().unwrap();
            let (outcome, sums) = work.run(&mut demand, &device, |_| {});
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadRange);
            let said = format!("an item asks for {length} bytes at {offset}, and {len} bytes are mapped");
            assert!(error.to_string().contains(&said) && error.to_string().contains("data"), "{error}");
            assert_eq!(sums[wrong], POISON);
            assert!(sums.iter().zip(&expected).all(|(found, expected)| found == expected || *found == POISON));
            all_is_free(&world, &file);
        }
    }
}

#[test]
fn an_item_that_needs_more_than_the_budget_is_named() {
    for device in devices() {
        let mut random = random();
        let content = random.bytes(20 << 20);
        let world = world(&device, 64 << 10, 4 * FRAME, &content);
        let file = world.open();
        let mut mapping = file.map(device.id(), 0..u64::MAX, false).unwrap();
        for goes_on in [true, false] {
            let mut work = Work::draw(&mut random, 30, 5, FRAME - 100, 100);
            let greedy = random.below(30);
            work.questions[greedy as usize] = (0..5).map(|frame| (frame * FRAME + 77, 100)).collect();
            work.goes_on = goes_on;
            let mut demand = mapping.demand().unwrap();
            let (outcome, sums) = work.run(&mut demand, &device, |_| {});
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            let said = format!("item {greedy} asks for more of the file than there is memory for");
            assert!(
                error.to_string().contains(&said) && error.to_string().contains("the budget of 8388608 bytes"),
                "{error}"
            );
            let expected = work.sums(&content);
            let others = sums.iter().zip(&expected).zip(0..).filter(|(_, item)| *item != greedy);
            assert!(others.into_iter().all(|((found, expected), _)| found == expected || *found == POISON));
            assert_eq!(sums[greedy as usize], POISON);
            all_is_free(&world, &file);
            // One fewer is no problem.
            for item in &mut work.questions {
                item.truncate(4);
            }
            work.check(&mut mapping.demand().unwrap(), &device, &content);
        }
    }
}

#[test]
fn kernels_that_neither_finish_nor_ask_end_the_session() {
    for device in devices() {
        let world = world(&device, 4096, 2 * FRAME, &random().bytes(5 << 20));
        let file = world.open();
        let mut mapping = file.map(device.id(), 0..u64::MAX, false).unwrap();
        let error = mapping.demand().unwrap().run(7, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadUse);
        assert!(error.to_string().contains("none of 7 items, item 0 the first of them, finishes"), "{error}");
        let refused = |_: &bifolio_cache::Launch<'_>| {
            Err(bifolio_device::Error::new(bifolio_device::ErrorKind::Kernel, "no kernel today"))
        };
        let error = mapping.demand().unwrap().run(7, refused).unwrap_err();
        assert!(error.kind() == ErrorKind::Device && error.to_string().contains("no kernel today"), "{error}");
        all_is_free(&world, &file);
    }
}

#[test]
fn mappings_that_are_writable_or_closed_are_refused() {
    for device in devices() {
        let world = world(&device, 4096, 2 * FRAME, &[1; 10_000]);
        let file = world.open();
        let error = file.map(device.id(), 0..u64::MAX, true).unwrap().demand().map(|_| ()).unwrap_err();
        assert!(error.kind() == ErrorKind::BadUse && error.to_string().contains("map the file read-only"), "{error}");
        let mut closed = file.map(device.id(), 0..u64::MAX, false).unwrap();
        closed.close().unwrap();
        assert_eq!(closed.demand().map(|_| ()).unwrap_err().kind(), ErrorKind::BadUse);
    }
}

#[test]
fn a_file_that_is_cut_short_meanwhile_ends_the_session() {
    for device in devices() {
        for is_noticed in [false, true] {
            let world = world(&device, 4096, 2 * FRAME, &random().bytes(9 << 20));
            let file = world.open();
            let mut mapping = file.map(device.id(), 0..u64::MAX, false).unwrap();
            let questions = vec![vec![(100, 10), (8 << 20, 10)], vec![(5 << 20, 1), (200, 7)]];
            let work = Work { questions, goes_on: false };
            let mut demand = mapping.demand().unwrap();
            let (outcome, sums) = work.run(&mut demand, &device, |round| {
                if round == Some(1) {
                    File::options().write(true).open(&world.path).unwrap().set_len(6 << 20).unwrap();
                    if is_noticed {
                        file.read(0, &mut [0; 10]).unwrap();
                    }
                }
            });
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Read);
            let said = if is_noticed { "has become shorter" } else { "beyond the end of the file" };
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(sums[0], POISON);
            all_is_free(&world, &file);
        }
    }
}
