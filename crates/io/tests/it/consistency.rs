//! What concurrent writers do is seen as `pread` would see it: every word of a result was in the file
//! at some moment between the call and its return.
//!
//! A file is made of words that name their place and a generation. A writer takes blocks to higher
//! generations and says when it begins and when it is done; a reader looks at what was done before
//! its call and at what had begun when it returned, and no word may be older or newer. Tearing inside
//! a block is what `pread` does, too.
//!
//! On ext4, xfs, btrfs and tmpfs, through loop devices where this machine may mount them, and on the
//! file system of the build folder in any case.

use crate::support::{Random, choices, content_of, folder, host, is_settled, poisoned, random};
use bifolio_io::{EngineChoice, EngineKind, OpenFile, ReadExtent, ReadOptions, Router, RouterOptions};
use bifolio_testing::{command, has, skip};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 512;
const SIZE: u64 = BLOCK * BLOCKS;

/// What each reader of a pair does beside the writer.
const READS: u64 = 60;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Writes {
    Pwrite,
    Stores,
    StoresAndSync,
    Direct,
}

/// What writer and readers share: for each block, the generation begun and the one done; and the reads so far.
struct Ledger {
    reads: AtomicU64,
    begun: Vec<AtomicU32>,
    done: Vec<AtomicU32>,
}

impl Ledger {
    fn new() -> Self {
        let zeroes = || (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
        Self { reads: AtomicU64::new(0), begun: zeroes(), done: zeroes() }
    }
}

fn word(index: u64, generation: u32) -> [u8; 8] {
    (u64::from(generation) << 32 | index).to_le_bytes()
}

fn block_of(block: u64, generation: u32) -> Vec<u8> {
    (0..BLOCK / 8).flat_map(|word_in| word(block * (BLOCK / 8) + word_in, generation)).collect()
}

/// A page-aligned buffer for `O_DIRECT`.
#[repr(align(4096))]
struct Page([u8; BLOCK as usize]);

struct Writer<'a> {
    file: File,
    mapping: *mut u8,
    ledger: &'a Ledger,
    writes: Writes,
}

impl<'a> Writer<'a> {
    /// None where the file system does not have this way of writing.
    fn new(path: &Path, ledger: &'a Ledger, writes: Writes) -> Option<Self> {
        let flags = if writes == Writes::Direct { libc::O_DIRECT } else { 0 };
        let file = File::options().read(true).write(true).custom_flags(flags).open(path).ok()?;
        let mut mapping = std::ptr::null_mut::<u8>();
        if matches!(writes, Writes::Stores | Writes::StoresAndSync) {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping of an open file.
            let mapped =
                unsafe { libc::mmap(mapping.cast(), SIZE as usize, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            mapping = mapped.cast();
        }
        Some(Self { file, mapping, ledger, writes })
    }

    /// Takes a block to its next generation.
    #[allow(clippy::cast_ptr_alignment, reason = "blocks of a mapping begin at pages, words at words")]
    fn step(&self, block: u64) {
        let generation = self.ledger.done[block as usize].load(Ordering::SeqCst) + 1;
        let bytes = block_of(block, generation);
        self.ledger.begun[block as usize].store(generation, Ordering::SeqCst);
        match self.writes {
            // In two odd parts: what is between is a state of the file, too.
            Writes::Pwrite => {
                self.file.write_all_at(&bytes[..1000], block * BLOCK).unwrap();
                self.file.write_all_at(&bytes[1000..], block * BLOCK + 1000).unwrap();
            }
            Writes::Direct => {
                let mut page = Box::new(Page([0; BLOCK as usize]));
                page.0.copy_from_slice(&bytes);
                self.file.write_all_at(&page.0, block * BLOCK).unwrap();
            }
            Writes::Stores | Writes::StoresAndSync => {
                for (number, eight) in bytes.chunks_exact(8).enumerate() {
                    // SAFETY: the word lies inside the mapping, at its boundary; readers are the kernel.
                    unsafe {
                        let place = self.mapping.add((block * BLOCK) as usize + number * 8).cast::<u64>();
                        place.write_volatile(u64::from_le_bytes(eight.try_into().unwrap()));
                    }
                }
                if self.writes == Writes::StoresAndSync {
                    // SAFETY: a whole page of our mapping.
                    let page = unsafe { self.mapping.add((block * BLOCK) as usize) };
                    // SAFETY: as above.
                    assert_eq!(unsafe { libc::msync(page.cast(), BLOCK as usize, libc::MS_SYNC) }, 0);
                }
            }
        }
        self.ledger.done[block as usize].store(generation, Ordering::SeqCst);
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if !self.mapping.is_null() {
            // SAFETY: our own mapping.
            unsafe { libc::munmap(self.mapping.cast(), SIZE as usize) };
        }
    }
}

fn generations(of: &[AtomicU32], offset: u64, length: u64) -> Vec<u32> {
    let blocks = offset / BLOCK..(offset + length).div_ceil(BLOCK);
    blocks.map(|block| of[block as usize].load(Ordering::SeqCst)).collect()
}

/// Checks the whole words of what was read at `offset`.
fn check(bytes: &[u8], offset: u64, done_before: &[u32], begun_after: &[u32], how: &str) {
    let first = offset.next_multiple_of(8);
    for at in (first..(offset + bytes.len() as u64).saturating_sub(7)).step_by(8) {
        let place = (at - offset) as usize;
        let value = u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap());
        let (index, generation) = (value & 0xffff_ffff, (value >> 32) as u32);
        let block = (at / BLOCK - offset / BLOCK) as usize;
        let possible = done_before[block]..=begun_after[block];
        assert!(
            index == at / 8 && possible.contains(&generation),
            "{how}: word {} at offset {at} is word {index} of generation {generation}; possible is {possible:?}",
            at / 8
        );
    }
}

/// Reads at random and in sequence by every engine.
fn read_many_times(path: &Path, ledger: &Ledger, mut random: Random, how: &str) {
    let router = Router::new(&host(), RouterOptions::default());
    let file = router.open(path).unwrap();
    let choices: Vec<_> = choices()
        .into_iter()
        .filter(|choice| *choice != EngineChoice::Only(EngineKind::Direct) || can_read_unbuffered(&router, &file))
        .collect();
    let mut sequential = 0;
    for _ in 0..READS {
        let engine = choices[random.below(choices.len() as u64) as usize];
        let options = ReadOptions { engine, ..ReadOptions::default() };
        match random.below(4) {
            0 => {
                // A sequence of short reads, which is read ahead.
                for _ in 0..random.below(30) {
                    let length = 4096.min(SIZE - sequential);
                    read_and_check(&router, &file, sequential, length, &ReadOptions::default(), ledger, how);
                    sequential = (sequential + length) % SIZE;
                }
            }
            1 => {
                let offset = random.below(SIZE - 1);
                let length = (1 + random.below(300_000)).min(SIZE - offset);
                read_and_check(&router, &file, offset, length, &options, ledger, how);
            }
            2 => read_and_check(&router, &file, 0, SIZE, &options, ledger, how),
            _ => read_batch_and_check(&router, &file, &mut random, engine, ledger, how),
        }
        ledger.reads.fetch_add(1, Ordering::SeqCst);
    }
}

fn can_read_unbuffered(router: &Router, file: &OpenFile) -> bool {
    router.explain(file, 0, Some(1), EngineChoice::Only(EngineKind::Direct)).is_ok()
}

fn read_and_check(
    router: &Router,
    file: &OpenFile,
    offset: u64,
    length: u64,
    options: &ReadOptions,
    ledger: &Ledger,
    how: &str,
) {
    let memory = poisoned(router.device(), length);
    let before = generations(&ledger.done, offset, length);
    let report = router.read(file, offset, Some(length), memory.slice(), options).unwrap();
    let after = generations(&ledger.begun, offset, length);
    assert_eq!(report.bytes, length);
    let how = format!("{how}, {} ({}), {length} bytes at {offset}", options.engine, report.reason);
    check(&content_of(&memory), offset, &before, &after, &how);
}

fn read_batch_and_check(
    router: &Router,
    file: &OpenFile,
    random: &mut Random,
    engine: EngineChoice,
    ledger: &Ledger,
    how: &str,
) {
    let engine = if engine == EngineChoice::Only(EngineKind::Mapped) { EngineChoice::Auto } else { engine };
    let extents: Vec<_> = (0..60)
        .map(|number| ReadExtent { offset: random.below(SIZE - 6000), length: 6000, place: number * 6000 })
        .collect();
    let memory = poisoned(router.device(), 360_000);
    let before: Vec<_> = extents.iter().map(|extent| generations(&ledger.done, extent.offset, extent.length)).collect();
    let options = ReadOptions { engine, ..ReadOptions::default() };
    router.read_batch(file, &extents, memory.slice(), &options).unwrap();
    let bytes = content_of(&memory);
    for (extent, before) in extents.iter().zip(&before) {
        let after = generations(&ledger.begun, extent.offset, extent.length);
        let part = &bytes[extent.place as usize..(extent.place + extent.length) as usize];
        check(part, extent.offset, before, &after, &format!("{how}, a batch by {engine}"));
    }
}

/// Nobody writes until the readers have read some more of a file that is older than a clock tick: of such a file they
/// keep what they have read ahead.
fn pause(path: &Path, ledger: &Ledger, stop: &AtomicBool) {
    let mut read = None;
    while !stop.load(Ordering::SeqCst) {
        let reads = ledger.reads.load(Ordering::SeqCst);
        if is_settled(path) && reads > *read.get_or_insert(reads) + 3 {
            return;
        }
        std::thread::yield_now();
    }
}

fn check_folder(folder: &Path, file_system: &str) {
    let mut random = random();
    for writes in [Writes::Pwrite, Writes::Stores, Writes::StoresAndSync, Writes::Direct] {
        let path = folder.join("data");
        let content: Vec<u8> = (0..BLOCKS).flat_map(|block| block_of(block, 0)).collect();
        std::fs::write(&path, content).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let ledger = Ledger::new();
        let how = format!("{file_system}, {writes:?}");
        let Some(writer) = Writer::new(&path, &ledger, writes) else {
            skip(format_args!("{file_system} has no unbuffered writes"));
            continue;
        };
        drop(writer);
        let (stop, mut places) = (AtomicBool::new(false), Random::of(random.below(u64::MAX)));
        let seeds = [(); 2].map(|()| Random::of(random.below(u64::MAX)));
        std::thread::scope(|scope| {
            let (stop, ledger, path, how) = (&stop, &ledger, &path, &how);
            let writing = scope.spawn(move || {
                let mut steps = 0;
                while !stop.load(Ordering::SeqCst) {
                    // Opened anew from time to time: readers may keep more when nobody writes.
                    let writer = Writer::new(path, ledger, writes).unwrap();
                    for _ in 0..20 + places.below(200) {
                        writer.step(places.below(BLOCKS));
                        steps += 1;
                    }
                    drop(writer);
                    if places.below(2) == 0 {
                        pause(path, ledger, stop);
                    }
                }
                steps
            });
            let readers = seeds.map(|seed| scope.spawn(move || read_many_times(path, ledger, seed, how)));
            let reads = readers.map(std::thread::ScopedJoinHandle::join);
            // Also when a reader has failed: the writer must end.
            stop.store(true, Ordering::SeqCst);
            let steps: u64 = writing.join().unwrap();
            assert!(steps > 0);
            for reader in reads {
                reader.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
    }
}

/// A file system of its own, mounted from an image; gone when dropped.
struct Mounted {
    folder: tempfile::TempDir,
    place: PathBuf,
}

impl Mounted {
    /// None, with a printed reason, where this machine cannot.
    fn new(file_system: &str) -> Option<Self> {
        let skip = |why: &str| skip(format_args!("{file_system} is not tested: {why}"));
        // SAFETY: a question to the C library.
        if unsafe { libc::geteuid() } != 0 {
            skip("mounting takes root");
            return None;
        }
        let folder = folder();
        let place = folder.path().join("mounted");
        std::fs::create_dir(&place).unwrap();
        let mut mount = command("mount");
        if file_system == "tmpfs" {
            mount.args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(&place);
        } else {
            let image = folder.path().join("image");
            File::create(&image).unwrap().set_len(400 << 20).unwrap();
            let make = format!("mkfs.{file_system}");
            if !has(&make) {
                return None;
            }
            let make = command(&make).arg("-q").arg(&image).stdout(Stdio::null()).status();
            match make {
                Ok(status) if status.success() => {}
                Ok(status) => {
                    skip(&format!("mkfs.{file_system} ended with {status}"));
                    return None;
                }
                Err(_) => return None,
            }
            mount.args(["-t", file_system, "-o", "loop"]).arg(&image).arg(&place);
        }
        match mount.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => Some(Self { folder, place }),
            _ => {
                skip("this kernel or container does not mount it");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = command("umount").arg(&self.place).stderr(Stdio::null()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            // Somebody still has a file open, as after a failed test.
            let _ = command("umount").arg("-l").arg(&self.place).status();
        }
        debug_assert!(self.folder.path().exists());
    }
}

#[test]
fn on_the_build_folder_s_file_system() {
    let folder = folder();
    check_folder(folder.path(), "the build folder");
}

#[test]
fn on_ext4() {
    if let Some(mounted) = Mounted::new("ext4") {
        check_folder(&mounted.place, "ext4");
    }
}

#[test]
fn on_xfs() {
    if let Some(mounted) = Mounted::new("xfs") {
        check_folder(&mounted.place, "xfs");
    }
}

#[test]
fn on_btrfs() {
    if let Some(mounted) = Mounted::new("btrfs") {
        check_folder(&mounted.place, "btrfs");
    }
}

#[test]
fn on_tmpfs() {
    if let Some(mounted) = Mounted::new("tmpfs") {
        check_folder(&mounted.place, "tmpfs");
    }
}
