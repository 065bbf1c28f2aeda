//! `SEEK_DATA` and `SEEK_HOLE` through a mount: what is called a hole is zeroes, and what was never written is called one.

use crate::support::{Place, can_mount};
use bifolio_crypt::config::Features;
use bifolio_testing::{noise, skip};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const BLOCK: usize = 4096;

fn seek(file: &File, whence: i32, from: u64) -> Option<u64> {
    // SAFETY: takes no memory.
    let at = unsafe { libc::lseek(file.as_raw_fd(), from as i64, whence) };
    if at < 0 {
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENXIO), "from {from}");
    }
    u64::try_from(at).ok()
}

/// The holes of a file, from beginning to end. Between them is data, and the two kinds of answers fit together.
fn holes(file: &File) -> Vec<(usize, usize)> {
    let len = file.metadata().unwrap().len();
    let mut holes = vec![];
    let mut at = 0;
    while at < len {
        let data = seek(file, libc::SEEK_DATA, at).unwrap_or(len);
        if data > at {
            assert_eq!(seek(file, libc::SEEK_HOLE, at), Some(at));
            holes.push((at as usize, data as usize));
        }
        at = data;
        if at < len {
            let hole = seek(file, libc::SEEK_HOLE, at).unwrap();
            assert!(hole > at && hole <= len, "{at} {hole} {len}");
            assert_eq!(seek(file, libc::SEEK_DATA, hole - 1), Some(hole - 1));
            at = hole;
        }
    }
    for behind in [len, len + 1, len + 100_000] {
        assert_eq!((seek(file, libc::SEEK_DATA, behind), seek(file, libc::SEEK_HOLE, behind)), (None, None));
    }
    holes
}

/// Whether the file system that the encrypted files are on has holes.
fn has_holes(folder: &Path) -> bool {
    let file = File::create_new(folder.join("sparse")).unwrap();
    file.set_len(1 << 20).unwrap();
    let has = seek(&file, libc::SEEK_DATA, 0).is_none();
    if !has {
        skip(format_args!("the file system of {} has no holes", folder.display()));
    }
    has
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        offset: usize,
        len: usize,
    },
    SetLen(usize),
    /// Refused, and nothing is changed.
    Punch {
        offset: usize,
        len: usize,
    },
    Read {
        offset: usize,
        len: usize,
    },
}

fn place_in_file() -> impl Strategy<Value = usize> {
    let near = (0..200_usize, 0..5_usize).prop_map(|(block, by)| (block * BLOCK + by).saturating_sub(2));
    prop_oneof![near, 0..800_000_usize]
}

fn step() -> impl Strategy<Value = Step> {
    let short = || prop_oneof![1..100_usize, 1..20_000_usize];
    prop_oneof![
        4 => (place_in_file(), short()).prop_map(|(offset, len)| Step::Write { offset, len }),
        3 => place_in_file().prop_map(Step::SetLen),
        1 => (place_in_file(), short()).prop_map(|(offset, len)| Step::Punch { offset, len }),
        1 => (place_in_file(), short()).prop_map(|(offset, len)| Step::Read { offset, len }),
    ]
}

/// A file's content as it should be, and which of its blocks a request has ever touched.
#[derive(Default)]
struct Oracle {
    content: Vec<u8>,
    touched: Vec<bool>,
}

impl Oracle {
    fn set_len(&mut self, len: usize) {
        // The last block is written where it is not whole, before and after.
        for end in [self.content.len(), len] {
            if end > 0 && !end.is_multiple_of(BLOCK) {
                self.touch(end - 1, end);
            }
        }
        self.content.resize(len, 0);
        // What was cut off stays touched: it shares a block below with what is before it.
        self.touched.resize(self.touched.len().max(len.div_ceil(BLOCK)), false);
    }

    fn write(&mut self, data: &[u8], offset: usize) {
        if offset > self.content.len() {
            self.set_len(offset);
        }
        let end = offset + data.len();
        self.touch(offset, end);
        self.content.resize(self.content.len().max(end), 0);
        self.content[offset..end].copy_from_slice(data);
    }

    fn touch(&mut self, begin: usize, end: usize) {
        let blocks = begin / BLOCK..end.div_ceil(BLOCK);
        self.touched.resize(self.touched.len().max(blocks.end), false);
        self.touched[blocks].fill(true);
    }

    fn check_zeroes(&self, holes: &[(usize, usize)]) -> Result<(), TestCaseError> {
        for (begin, end) in holes {
            let data = self.content[*begin..*end].iter().position(|byte| *byte != 0);
            prop_assert_eq!(data, None, "data in the hole from {} to {}", begin, end);
        }
        Ok(())
    }

    /// A block between two that were never written is in a hole of any file system with blocks of up to 4096 bytes.
    fn check_found(&self, holes: &[(usize, usize)]) -> Result<(), TestCaseError> {
        for (before, three) in self.touched.windows(3).enumerate() {
            let at = (before + 1) * BLOCK;
            if at < self.content.len() && !three.iter().any(|touched| *touched) {
                let is_in = holes.iter().any(|(begin, end)| (*begin..*end).contains(&at));
                prop_assert!(is_in, "the hole at {} is not found: {:?}", at, holes);
            }
        }
        Ok(())
    }
}

#[test]
fn data_and_holes_are_where_a_plain_file_has_them() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let _ours = place.mount();
    let has_holes = has_holes(place.dir.path());
    let path = place.ours().join("f");
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(64) });
    let outcome = runner.run(&proptest::collection::vec(step(), 1..25), |steps| {
        let _ = fs::remove_file(&path);
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        let mut oracle = Oracle::default();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write { offset, len } => {
                    let data = noise(len, number as u64);
                    file.write_all_at(&data, offset as u64).unwrap();
                    oracle.write(&data, offset);
                }
                Step::SetLen(len) => {
                    file.set_len(len as u64).unwrap();
                    oracle.set_len(len);
                }
                Step::Punch { offset, len } => {
                    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    // SAFETY: takes no memory.
                    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) };
                    prop_assert_eq!(done, -1);
                }
                Step::Read { offset, len } => {
                    let mut buffer = vec![0; len];
                    let read = file.read_at(&mut buffer, offset as u64).unwrap();
                    let expected = oracle.content.get(offset..).unwrap_or_default();
                    prop_assert!(buffer[..read] == expected[..expected.len().min(len)]);
                }
            }
            // What was written a moment ago, by who has it open.
            oracle.check_zeroes(&holes(&file))?;
        }
        drop(file);
        // The kernel tells the file system of a close some time after it; whoever writes is told of fewer holes.
        let mut file = File::open(&path).unwrap();
        let finds = |file: &File| oracle.check_found(&holes(file)).is_ok();
        bifolio_testing::until("the holes are found once nobody writes", || {
            file = File::open(&path).unwrap();
            !has_holes || finds(&file)
        });
        let found = holes(&file);
        oracle.check_zeroes(&found)?;
        prop_assert!(fs::read(&path).unwrap() == oracle.content);
        prop_assert_eq!(holes(&file), found);
        Ok(())
    });
    if let Err(TestError::Fail(reason, steps)) = outcome {
        panic!("{reason}: {steps:?}");
    }
}

/// Without `SEEK_DATA` a copy read every byte of a sparse file: 5.7 s for 3 GiB.
#[test]
fn a_sparse_file_says_where_its_data_is_and_is_copied_sparse() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let _ours = place.mount();
    if !has_holes(place.dir.path()) {
        return;
    }
    let (from, to) = (place.ours().join("from"), place.ours().join("to"));
    let len = 3_u64 << 30;
    let file = File::create_new(&from).unwrap();
    file.set_len(len).unwrap();
    // The first block shares one below with the header.
    assert_eq!(holes(&file), [(BLOCK, len as usize)]);
    file.write_all_at(&noise(100_000, 1), 2 << 30).unwrap();
    // Also for the one who writes it.
    let found = holes(&file);
    assert!(
        matches!(found[..], [(BLOCK, data), (behind, _)] if data <= 2 << 30 && behind - data < 120_000),
        "{found:?}"
    );
    drop(file);
    assert!(Command::new("cp").arg("--sparse=auto").args([&from, &to]).status().unwrap().success());
    let copy = File::open(&to).unwrap();
    let state = copy.metadata().unwrap();
    assert_eq!(state.len(), len);
    assert!(state.blocks() * 512 < 1 << 20, "{} blocks", state.blocks());
    let mut content = vec![0; 100_000];
    copy.read_exact_at(&mut content, 2 << 30).unwrap();
    assert!(content == noise(100_000, 1));
    assert_eq!(holes(&copy), found);
}

/// The kernel asks where data is without writing the pages of mappings before.
#[test]
fn what_a_mapping_has_changed_is_data_before_it_is_written() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let _ours = place.mount();
    let path = place.ours().join("f");
    let len = 1 << 20;
    File::create_new(&path).unwrap().set_len(len as u64).unwrap();
    // Its pages are in memory before anybody can write it.
    let mut content = vec![];
    let reader = File::open(&path).unwrap();
    (&reader).read_to_end(&mut content).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, of a file that stays as long as it is.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    drop(file);
    // SAFETY: the mapping has this length, and nobody else uses it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
    for offset in [123_456, 700_000] {
        mapped[offset] = 1;
        let holes = holes(&reader);
        assert!(!holes.iter().any(|(begin, end)| (*begin..*end).contains(&offset)), "{offset} in {holes:?}");
    }
    // SAFETY: the mapping is the one from above, and is not used after. It is written before, as removing a mapping
    // that is not keeps the threads that serve it, which are this process's, from their memory.
    unsafe {
        assert_eq!(libc::msync(at, len, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(at, len), 0);
    }
    drop(reader);
    let file = File::open(&path).unwrap();
    let holes = holes(&file);
    assert!(!holes.iter().any(|(begin, end)| [123_456, 700_000].iter().any(|at| (*begin..*end).contains(at))));
}

/// A last block that is not whole is no hole, also where it is in one below: reading it is an error, not zeroes.
#[test]
fn what_was_cut_off_below_is_data() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let file = place.open().create_file(Path::new("f")).unwrap();
    file.write_at(b"content", 0).unwrap();
    file.set_len(100 * BLOCK as u64).unwrap();
    drop(file);
    let cipher = place.open().lookup(Path::new("f")).unwrap();
    let below = File::options().write(true).open(cipher).unwrap();
    let cut = below.metadata().unwrap().len() - 1000;
    below.set_len(cut).unwrap();
    let _ours = place.mount();
    let file = File::open(place.ours().join("f")).unwrap();
    let last = 99 * BLOCK;
    let found = holes(&file);
    assert!(found.iter().all(|(_, end)| *end <= last), "{found:?}");
    assert_eq!(seek(&file, libc::SEEK_DATA, last as u64), Some(last as u64));
    assert!(file.read_at(&mut [0; 10], last as u64).is_err());
}
