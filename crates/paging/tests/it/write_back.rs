//! What write-back mode promises, and what it does not.

use crate::support::{CHUNK, backing, cache, host};
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_block::{BlockDevice, ErrorKind};
use bifolio_paging::{Mode, Options, PagingCache};
use bifolio_testing::{noise, seed};
use std::sync::Arc;
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

#[test]
fn a_damaged_header_is_refused() {
    let backing = backing(CONTENT as u64);
    backing.corrupt(20, |bytes| bytes[0] ^= 4, 1);
    let error = PagingCache::open(Options::new(backing, host(), CHUNK)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("checksum of its header at offset 0"), "{error}");
}
