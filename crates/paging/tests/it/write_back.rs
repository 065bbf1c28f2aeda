//! What write-back mode promises, and what it does not.

use crate::support::{CHUNK, backing, cache, faulty_device, host};
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_block::{BlockDevice, ErrorKind};
use bifolio_device::backend::fault::Faults as DeviceFaults;
use bifolio_device::{Device, HostOptions};
use bifolio_paging::header::HEADER_BYTES;
use bifolio_paging::{Mode, Options, PagingCache};
use bifolio_testing::{noise, seed};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CONTENT: usize = 4 << 20;

fn reopen(backing: FaultyDevice) -> bifolio_block::Result<PagingCache> {
    PagingCache::open(Options::new(Arc::new(backing), host(), CHUNK))
}

#[test]
fn a_loss_of_power_takes_only_what_was_not_flushed() {
    let draw = &mut fastrand::Rng::with_seed(seed());
    let backing = backing(CONTENT as u64);
    let cache = cache(&backing, host(), Mode::WriteBack, 2);
    let (flushed, newer) = (noise(CONTENT, draw.u64(..)), noise(CONTENT, draw.u64(..)));
    cache.write(0, &flushed).unwrap();
    cache.flush().unwrap();
    let mut pages: Vec<usize> = (0..CONTENT / 4096).collect();
    draw.shuffle(&mut pages);
    for page in &pages[..200] {
        let at = page * 4096;
        cache.write(at as u64, &newer[at..at + 4096]).unwrap();
    }
    let after = backing.after_power_loss(|_| draw.bool()).content();
    let content = &after[after.len() - CONTENT..];
    for (page, seen) in content.chunks(512).enumerate() {
        let at = page * 512;
        let was_rewritten = pages[..200].contains(&(at / 4096));
        assert!(seen == &flushed[at..at + 512] || (was_rewritten && seen == &newer[at..at + 512]), "offset {at}");
    }
    let error = reopen(FaultyDevice::new("swap.img", after)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
    assert!(error.to_string().contains("newest writes are missing"), "{error}");
}

#[test]
fn a_settled_cache_is_opened_again_with_all_that_was_written() {
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let backing = backing(CONTENT as u64);
        let cache = cache(&backing, host(), mode, 2);
        let bytes = noise(CONTENT, seed());
        cache.write(0, &bytes).unwrap();
        cache.settle().unwrap();
        let again = reopen(backing.after_power_loss(|_| false)).unwrap();
        let mut seen = vec![0; CONTENT];
        again.read(0, &mut seen).unwrap();
        assert!(seen == bytes, "{mode}");
    }
}

#[test]
fn a_write_through_cache_that_was_killed_is_opened_with_every_acknowledged_write() {
    let backing = backing(CONTENT as u64);
    let cache = cache(&backing, host(), Mode::WriteThrough, 2);
    let bytes = noise(CONTENT, seed());
    cache.write(0, &bytes).unwrap();
    let again = reopen(FaultyDevice::new("swap.img", backing.content())).unwrap();
    let mut seen = vec![0; CONTENT];
    again.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
}

#[test]
fn writes_beyond_the_dirty_limit_go_through_and_the_background_cleans() {
    let backing = backing(CONTENT as u64);
    let options = Options::new(Arc::<FaultyDevice>::clone(&backing), host(), CHUNK);
    let options = Options { mode: Mode::WriteBack, flush_interval: Duration::ZERO, ..options };
    let cache = PagingCache::open(options).unwrap();
    cache.write(0, &vec![1; CHUNK as usize / 2]).unwrap();
    let before = backing.requests();
    cache.write(CHUNK, &vec![2; 65536]).unwrap();
    assert_eq!(backing.requests(), before + 1, "half of the slots are dirty, so this one went through");
    cache.tick();
    let after = backing.requests();
    assert!(after >= before + 1 + CHUNK / 2 / 65536, "the background wrote back");
    cache.tick();
    assert_eq!(backing.requests(), after, "there is nothing left to write back");
    cache.write(CHUNK, &vec![3; 65536]).unwrap();
    assert_eq!(backing.requests(), after, "there is room again");
}

#[test]
fn a_backing_that_fails_keeps_dirty_pages_and_is_told_once() {
    let backing = backing(CONTENT as u64);
    let options = Options::new(Arc::<FaultyDevice>::clone(&backing), host(), CHUNK);
    let options = Options { mode: Mode::WriteBack, flush_interval: Duration::ZERO, ..options };
    let cache = PagingCache::open(options).unwrap();
    cache.write(0, &vec![1; 65536]).unwrap();
    backing.set_faults(Faults { is_full: true, ..Faults::default() });
    cache.tick();
    cache.tick();
    assert_eq!(cache.complaints().len(), 1);
    assert_eq!(cache.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(cache.resize(0).is_err() && cache.memory_bytes() == CHUNK, "memory with dirty pages stays");
    let mut seen = vec![0; 65536];
    cache.read(0, &mut seen).unwrap();
    assert!(seen == vec![1; 65536]);
    backing.set_faults(Faults::default());
    cache.resize(0).unwrap();
    cache.read(0, &mut seen).unwrap();
    assert!(seen == vec![1; 65536]);
}

/// One bad sector held up the write-back of everything behind it, for as long as it was bad.
#[test]
fn a_bad_sector_of_the_backing_keeps_nothing_else_from_being_written_back() {
    let backing = backing(CONTENT as u64);
    let cache = cache(&backing, host(), Mode::WriteBack, 2);
    let bytes = noise(1 << 20, seed());
    cache.write(0, &bytes).unwrap();
    let bad = 65536 + 5000;
    backing.set_faults(Faults { bad_byte: Some(HEADER_BYTES + bad), ..Faults::default() });
    assert_eq!(cache.flush().unwrap_err().kind(), ErrorKind::Write, "who flushes hears of it");
    let content = || backing.content().split_off(HEADER_BYTES as usize);
    assert!(content()[2 * 65536..1 << 20] == bytes[2 * 65536..], "what lies behind it is there");
    // Memory is given back, but for the chunk with the pages that have to stay.
    cache.write(0, &bytes[..65536]).unwrap();
    assert!(cache.resize(0).is_err());
    assert_eq!(cache.memory_bytes(), CHUNK);
    let mut seen = vec![0; 1 << 20];
    cache.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    backing.set_faults(Faults::default());
    cache.settle().unwrap();
    assert!(content()[..1 << 20] == bytes);
}

/// A flush that told of lost pages wrote nothing back, and the second end of a cache marked its backing as whole.
#[test]
fn pages_that_were_lost_leave_a_backing_that_is_not_whole_however_often_it_ends() {
    let faults = Arc::<DeviceFaults>::default();
    let backing = backing(CONTENT as u64);
    let mut devices = vec![Device::host(&HostOptions::default()), faulty_device(&faults, 1 << 30)];
    let next = Mutex::new(move || if devices.len() > 1 { devices.pop().unwrap() } else { devices[0].clone() });
    let open = Box::new(move || Ok((next.lock().unwrap())()));
    let cache = cache(&backing, open, Mode::WriteBack, 2);
    cache.write(0, &[1; 8192]).unwrap();
    faults.life.store(0, Ordering::SeqCst);
    assert!(cache.read(0, &mut [0; 4096]).is_err());
    cache.tick();
    cache.retry_now();
    cache.tick();
    assert!(cache.is_serving());
    cache.write(1 << 20, &[2; 4096]).unwrap();
    assert_eq!(cache.flush().unwrap_err().kind(), ErrorKind::Write);
    let at = (HEADER_BYTES + (1 << 20)) as usize;
    assert_eq!(backing.content()[at..at + 4096], [2; 4096], "what can be written back is");
    for _ in 0..2 {
        assert_eq!(cache.settle().unwrap_err().kind(), ErrorKind::BadState);
        assert_eq!(reopen(FaultyDevice::new("swap.img", backing.content())).unwrap_err().kind(), ErrorKind::BadState);
    }
    cache.write(0, &[3; 4096]).unwrap();
    cache.discard(4096, 4096).unwrap();
    cache.settle().unwrap();
    reopen(FaultyDevice::new("swap.img", backing.content())).unwrap();
}

#[test]
fn a_damaged_header_is_refused() {
    let backing = backing(CONTENT as u64);
    backing.corrupt(20, |bytes| bytes[0] ^= 4, 1);
    let error = PagingCache::open(Options::new(backing, host(), CHUNK)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("checksum of its header at offset 0"), "{error}");
}
