//! Regions beside ordinary memory with the same content.

use super::{BUDGET_MIN, BYTES_MAX, Region, RegionOptions};
use crate::pages::BLOCK_BYTES;
use bifolio_device::backend::fault::{FaultBackend, Faults};
use bifolio_device::{Capability, Device, DeviceChoice, DeviceId, ErrorKind, open};
use bifolio_testing::{seed, skip, until};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: usize = BLOCK_BYTES as usize;

fn host() -> Device {
    open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap()
}

fn options(blocks: usize, budget: usize, on_device: usize) -> RegionOptions {
    let [bytes, budget, device_bytes] = [blocks, budget, on_device].map(|blocks| (blocks * BLOCK) as u64);
    RegionOptions { bytes, budget, device_bytes }
}

/// A region; nothing, said aloud, where the kernel hands no page faults over.
fn region(device: &Device, options: RegionOptions) -> Option<Region> {
    region_of(device, options, true)
}

/// The same as of a kernel that can move pages, if this one can, or as of one that cannot.
fn region_of(device: &Device, options: RegionOptions, may_move: bool) -> Option<Region> {
    match Region::of_kernel(device, options, may_move) {
        Ok(region) => Some(region),
        Err(error) if error.os_code() == Some(libc::EPERM) || error.kind() == ErrorKind::Unsupported => {
            skip(error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_is_written_is_read_whatever_leaves_meanwhile() {
    [true, false].into_iter().for_each(what_is_written_is_read);
}

fn what_is_written_is_read(may_move: bool) {
    let mut random = fastrand::Rng::with_seed(seed());
    let (blocks, budget) = (60, 8);
    let Some(mut region) = region_of(&host(), options(blocks, budget, blocks), may_move) else { return };
    let mut expected = vec![0_u8; blocks * BLOCK];
    for _ in 0..4000 {
        let at = random.usize(..expected.len());
        let len = random.usize(..3 * 4096).min(expected.len() - at);
        match random.u8(..8) {
            0..3 => {
                random.fill(&mut expected[at..at + len]);
                region.bytes_mut()[at..at + len].copy_from_slice(&expected[at..at + len]);
            }
            // Blocks of zeroes need nothing of the device.
            3 => {
                let at = at / BLOCK * BLOCK;
                expected[at..at + BLOCK].fill(0);
                region.bytes_mut()[at..at + BLOCK].fill(0);
            }
            4 => region.set_budget(random.u64(..20) * BLOCK_BYTES),
            _ => assert!(region.bytes()[at..at + len] == expected[at..at + len], "bytes {at} and {len} more"),
        }
    }
    assert!(region.bytes() == expected);
    let found = region.statistics();
    assert!(found.stored > 100 && found.fetched > 100 && found.zeroes > 0, "{found:?}");
    assert!(if region.shared.uffd.can_move { found.dropped == 0 } else { found.dropped > 100 }, "{found:?}");
    assert_eq!((found.lost, found.refused, region.take_trouble()), (0, 0, None));
    region.set_budget(BUDGET_MIN);
    until("the rest has left", || region.statistics().resident_bytes <= BUDGET_MIN);
}

#[test]
fn threads_write_to_the_same_blocks() {
    [true, false].into_iter().for_each(threads_write);
}

fn threads_write(may_move: bool) {
    let blocks = 40;
    let Some(region) = region_of(&host(), options(blocks, 8, blocks), may_move) else { return };
    let threads = 4;
    let start = region.as_ptr() as usize;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let mut random = fastrand::Rng::with_seed(seed());
            scope.spawn(move || {
                // Each has every fourth word of each page.
                let mut words = vec![0_u64; blocks * BLOCK / 4096];
                for round in 1..4000_u64 {
                    let page = random.usize(..words.len());
                    let word = (start + page * 4096 + thread * 8) as *mut u64;
                    // SAFETY: the region lives, and nobody else has this word.
                    unsafe {
                        assert_eq!(word.read_volatile(), words[page], "page {page}");
                        word.write_volatile(round);
                    }
                    words[page] = round;
                }
            });
        }
    });
    let found = region.statistics();
    assert!(found.stored > 100 && found.fetched > 100, "{found:?}");
}

#[test]
fn system_calls_read_and_write_it() {
    let Some(mut region) = region(&host(), options(20, 8, 20)) else { return };
    if !region.serves_system_calls() {
        skip("system calls may not meet pages of a region that are not in memory");
        return;
    }
    let mut content = vec![0; region.len()];
    fastrand::Rng::with_seed(seed()).fill(&mut content);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(region.bytes_mut()).unwrap();
    assert!(region.bytes() == content);
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(region.bytes()).unwrap();
    let mut written = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut written).unwrap();
    assert!(written == content);
}

/// Direct I/O wrote to pages of blocks that had left since they were pinned: what it read was lost, with success.
#[test]
fn direct_reads_land_in_blocks_that_are_to_leave() {
    let Some(mut region) = region(&host(), options(256, 8, 256)) else { return };
    if !region.serves_system_calls() || !region.shared.uffd.can_move {
        return skip("the kernel does not move pages (Linux 6.8), or system calls may not meet those of a region");
    }
    let mut content = vec![0; region.len()];
    fastrand::Rng::with_seed(seed()).fill(&mut content);
    // Temporary folders may be in memory, which knows no direct I/O.
    let mut file = tempfile::NamedTempFile::new_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    file.write_all(&content).unwrap();
    file.as_file().sync_all().unwrap();
    let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file.path());
    let Ok(mut direct) = direct else { return skip("the file system has no direct I/O") };
    for round in 0..4 {
        region.bytes_mut().fill(round);
        direct.seek(SeekFrom::Start(0)).unwrap();
        direct.read_exact(region.bytes_mut()).unwrap();
        assert!(region.bytes() == content, "round {round}: {:?}", region.statistics());
    }
    until("what was pinned has left", || region.statistics().resident_bytes <= 8 * BLOCK_BYTES);
    assert_eq!(region.take_trouble(), None);
}

/// Whoever touched such a page waited for ever, and so did who copied its block.
#[test]
fn pages_that_the_program_discards_are_zeroes() {
    [true, false].into_iter().for_each(discarded_pages_are_zeroes);
}

fn discarded_pages_are_zeroes(may_move: bool) {
    let blocks = 40;
    let Some(mut region) = region_of(&host(), options(blocks, 16, blocks), may_move) else { return };
    let mut random = fastrand::Rng::with_seed(seed());
    let mut expected = vec![0; region.len()];
    for _ in 0..2000 {
        let page = random.usize(..blocks * 16) * 4096;
        match random.u8(..4) {
            0 => {
                // SAFETY: a page of the region, which nobody has borrowed.
                unsafe { libc::madvise(region.as_ptr().add(page).cast(), 4096, libc::MADV_DONTNEED) };
                // It may have been on the device, where it stays as it was.
                let found = region.bytes()[page..page + 4096].to_vec();
                assert!(found == expected[page..page + 4096] || found.iter().all(|byte| *byte == 0));
                expected[page..page + 4096].copy_from_slice(&found);
                region.bytes_mut()[page..page + 4096].copy_from_slice(&found);
            }
            1 => assert!(region.bytes()[page..page + 4096] == expected[page..page + 4096]),
            _ => {
                random.fill(&mut expected[page..page + 4096]);
                region.bytes_mut()[page..page + 4096].copy_from_slice(&expected[page..page + 4096]);
            }
        }
    }
    assert!(region.bytes() == expected);
}

/// The thread that answers page faults copied from a place from which the program had just discarded a page, and waited for
/// itself for ever.
#[test]
fn pages_that_are_discarded_while_their_block_leaves_hold_nobody_up() {
    [true, false].into_iter().for_each(discarded_at_any_moment);
}

fn discarded_at_any_moment(may_move: bool) {
    let (blocks, page) = (24, 4096);
    let Some(mut region) = region_of(&host(), options(blocks, 8, blocks), may_move) else { return };
    let (base, len) = (region.bytes_mut().as_mut_ptr() as usize, region.len());
    let draw = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let at = base + random.usize(..len / page) * page;
            // SAFETY: a page of the region, of which both threads use single bytes, atomically.
            unsafe {
                if random.bool() {
                    libc::madvise(at as *mut libc::c_void, page, libc::MADV_DONTNEED);
                } else {
                    std::sync::atomic::AtomicU8::from_ptr(at as *mut u8).store(random.u8(..), Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| draw(seed()));
        draw(seed().wrapping_add(1));
    });
    assert_eq!((region.statistics().lost, region.take_trouble()), (0, None));
}

#[test]
fn what_a_device_does_not_take_stays() {
    for (on_device, device_fails, may_move) in
        [(10, false, true), (10, false, false), (40, true, true), (40, true, false)]
    {
        let faults = Arc::new(Faults::default());
        let device = Device::from_backend(FaultBackend::new(host().backend(), &faults));
        let Some(mut region) = region_of(&device, options(40, 8, on_device), may_move) else { return };
        if device_fails {
            faults.frames.store(0, Ordering::SeqCst);
            faults.allocations.store(0, Ordering::SeqCst);
        }
        let mut expected = vec![0; region.len()];
        fastrand::Rng::with_seed(seed()).fill(&mut expected);
        region.bytes_mut().copy_from_slice(&expected);
        assert!(region.bytes() == expected);
        assert!(region.statistics().refused > 0);
        let trouble = region.take_trouble().unwrap();
        assert!(trouble.contains("takes no more of a region"), "{trouble}");
    }
}

#[test]
fn sizes_that_cannot_be_are_told() {
    let refused = |bytes, budget| {
        let wrong = RegionOptions { bytes, budget, device_bytes: 0 };
        let error = Region::new(&host(), wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
    };
    refused(0, BUDGET_MIN);
    refused(1, BUDGET_MIN - 1);
    refused(BYTES_MAX + 1, BUDGET_MIN);
    refused(u64::MAX, BUDGET_MIN);
}

#[test]
fn a_large_region_takes_no_memory_for_what_is_not_touched() {
    let large = RegionOptions { bytes: BYTES_MAX, budget: BUDGET_MIN, device_bytes: 1 << 20 };
    let mut region = match Region::new(&host(), large) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return skip(error.to_string()),
        _ => match region(&host(), large) {
            Some(region) => region,
            None => return,
        },
    };
    let (last, before) = (region.len() - 1, resident_bytes());
    region.bytes_mut()[last] = 7;
    assert_eq!((region.bytes()[last], region.bytes()[0]), (7, 0));
    assert!(resident_bytes() < before + (64 << 20));
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_child_drops_it_without_a_wait_and_the_parent_goes_on() {
    let Some(mut region) = region(&host(), options(40, 8, 40)) else { return };
    let mut expected = vec![0; region.len()];
    fastrand::Rng::with_seed(seed()).fill(&mut expected);
    region.bytes_mut().copy_from_slice(&expected);
    // SAFETY: the child drops what a child may drop, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: an alarm for a wait that must not be, and the end of the child.
        unsafe {
            libc::alarm(10);
            drop(std::ptr::read(&raw const region));
            libc::_exit(0);
        }
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert!(region.bytes() == expected);
}

/// A device whose memory the CPU does not use by its addresses, and whose operations may fail.
fn apart(faults: &Arc<Faults>) -> Device {
    let mut info = host().info().clone();
    info.capabilities.host_addressable = Capability::no("a test says so");
    Device::from_backend(FaultBackend::presented_as(info, host().backend(), faults))
}

/// Whether a system call can read a byte; no signal tells.
fn is_readable(at: &[u8]) -> bool {
    let (_reader, mut writer) = std::io::pipe().unwrap();
    writer.write(&at[..1]).is_ok()
}

#[test]
fn nobody_is_shown_other_bytes_than_were_written() {
    let faults = Arc::new(Faults::default());
    let blocks = 30;
    let Some(mut region) = region(&apart(&faults), options(blocks, 8, blocks)) else { return };
    let mut expected = vec![0; region.len()];
    fastrand::Rng::with_seed(seed()).fill(&mut expected);
    region.bytes_mut().copy_from_slice(&expected);
    until("some have left", || region.statistics().stored > 10);
    // A failure is no loss while the second try succeeds.
    assert!(region.bytes() == expected);
    if !region.serves_system_calls() {
        skip("system calls may not meet pages of a region that are not in memory");
        return;
    }
    faults.downloads.store(0, Ordering::SeqCst);
    let lost: Vec<_> = (0..blocks).filter(|block| !is_readable(&region.bytes()[block * BLOCK..])).collect();
    assert!(!lost.is_empty() && region.statistics().lost == lost.len() as u64, "{lost:?}, {:?}", region.statistics());
    faults.downloads.store(-1, Ordering::SeqCst);
    for block in 0..blocks {
        let at = block * BLOCK + 77;
        assert_eq!(is_readable(&region.bytes()[at..]), !lost.contains(&block));
        assert!(lost.contains(&block) || region.bytes()[at] == expected[at]);
    }
    let trouble = region.take_trouble().unwrap();
    assert!(trouble.starts_with("bytes ") && trouble.contains("of a region are lost: "), "{trouble}");
}

/// A block counted as here although the system had no memory for bringing it: what was missing of it were zeroes then.
#[test]
fn where_the_system_has_no_memory_for_a_block_nobody_is_shown_zeroes() {
    [true, false].into_iter().for_each(no_memory_for_a_block);
}

fn no_memory_for_a_block(may_move: bool) {
    let mut random = fastrand::Rng::with_seed(seed());
    let blocks = 30;
    let Some(mut region) = region_of(&host(), options(blocks, 8, blocks), may_move) else { return };
    let mut expected = vec![0; region.len()];
    random.fill(&mut expected);
    region.bytes_mut().copy_from_slice(&expected);
    until("some have left", || region.statistics().stored > 10);
    let failing = &Arc::clone(&region.shared).uffd.failing;
    // A few failures in a row are no loss, wherever they come: while a block is brought, or moved away and back.
    for _ in 0..300 {
        failing.store(random.u32(..4), Ordering::Release);
        let at = random.usize(..expected.len() - 4096);
        if random.bool() {
            assert!(region.bytes()[at..at + 4096] == expected[at..at + 4096], "offset {at}");
        } else {
            random.fill(&mut expected[at..at + 4096]);
            region.bytes_mut()[at..at + 4096].copy_from_slice(&expected[at..at + 4096]);
        }
    }
    failing.store(0, Ordering::Release);
    assert!(region.bytes() == expected);
    assert_eq!(region.statistics().lost, 0);
    if !region.serves_system_calls() {
        return skip("system calls may not meet pages of a region that are not in memory");
    }
    until("there are not more than permitted", || region.statistics().resident_bytes <= 8 * BLOCK_BYTES);
    failing.store(u32::MAX, Ordering::Release);
    let readable: Vec<bool> = (0..blocks).map(|block| is_readable(&region.bytes()[block * BLOCK..])).collect();
    failing.store(0, Ordering::Release);
    assert!(readable.contains(&false), "some were not here");
    for (block, was_readable) in readable.into_iter().enumerate() {
        let at = block * BLOCK + random.usize(..BLOCK);
        let is = is_readable(&region.bytes()[at..]);
        assert!(is || !was_readable, "what was read stays");
        assert!(!is || region.bytes()[at] == expected[at], "block {block}");
    }
    assert!(region.statistics().lost > 0 && region.take_trouble().is_some());
}
