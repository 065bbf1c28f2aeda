//! Random requests, discards, sizes and faults, with every byte compared.

use crate::support::{CHUNK, backing, cache, faulty_device, host, opens};
use bifolio_block::BlockDevice;
use bifolio_block::faults::Faults;
use bifolio_device::backend::fault::Faults as DeviceFaults;
use bifolio_paging::{Mode, PagingCache};
use bifolio_testing::seed;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// More than device memory has room for.
const CONTENT: usize = 6 << 20;

/// A request as paging makes them mostly, and any other now and then.
fn request(draw: &mut fastrand::Rng) -> (usize, usize) {
    let (unit, len_max) = match draw.u8(..10) {
        0 => (1, 9000),
        1 => (4096, 1 << 20),
        _ => (4096, 32 << 10),
    };
    let offset = draw.usize(..CONTENT / unit) * unit;
    let len = draw.usize(1..=len_max / unit) * unit;
    (offset, len.min(CONTENT - offset))
}

fn check(cache: &PagingCache, oracle: &[u8], offset: usize, len: usize) {
    let mut seen = vec![0xee; len];
    cache.read(offset as u64, &mut seen).unwrap();
    let expected = &oracle[offset..offset + len];
    if let Some(at) = seen.iter().zip(expected).position(|(seen, expected)| seen != expected) {
        panic!("offset {}: {} was read, and {} written", offset + at, seen[at], expected[at]);
    }
}

/// Writes or discards, and changes the oracle as well.
fn change(cache: &PagingCache, oracle: &mut [u8], draw: &mut fastrand::Rng) {
    let (offset, len) = request(draw);
    if draw.u8(..8) == 0 {
        let (start, end) = (offset.next_multiple_of(4096), (offset + len) / 4096 * 4096);
        cache.discard(offset as u64, len as u64).unwrap();
        if start < end {
            oracle[start..end].fill(0);
        }
    } else {
        draw.fill(&mut oracle[offset..offset + len]);
        cache.write(offset as u64, &oracle[offset..offset + len]).unwrap();
    }
}

fn steps(cache: &PagingCache, oracle: &mut [u8], draw: &mut fastrand::Rng, count: usize) {
    for _ in 0..count {
        match draw.u8(..100) {
            0..=1 => cache.resize(draw.u64(..5) * CHUNK).unwrap(),
            2..=4 => cache.flush().unwrap(),
            5..=9 => cache.tick(),
            10..=54 => change(cache, oracle, draw),
            _ => {
                let (offset, len) = request(draw);
                check(cache, oracle, offset, len);
            }
        }
    }
}

#[test]
fn every_byte_is_what_was_written_last() {
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let draw = &mut fastrand::Rng::with_seed(seed());
        let (backing, mut oracle) = (backing(CONTENT as u64), vec![0; CONTENT]);
        let cache = cache(&backing, host(), mode, 1);
        steps(&cache, &mut oracle, draw, 4000);
        check(&cache, &oracle, 0, CONTENT);
        assert_eq!(cache.complaints(), Vec::<String>::new());
    }
}

#[test]
fn a_write_through_cache_on_a_device_that_fails_now_and_then_loses_nothing() {
    let draw = &mut fastrand::Rng::with_seed(seed());
    let faults = Arc::<DeviceFaults>::default();
    let (backing, mut oracle) = (backing(CONTENT as u64), vec![0; CONTENT]);
    let cache = cache(&backing, opens(faulty_device(&faults, 1 << 30)), Mode::WriteThrough, 2);
    let mut told = 0;
    for round in 0..12 {
        let kind = [&faults.copies, &faults.downloads][round % 2];
        kind.store(draw.i64(0..200), Ordering::SeqCst);
        steps(&cache, &mut oracle, draw, 300);
        kind.store(-1, Ordering::SeqCst);
        told += cache.complaints().len();
        // Long enough ago for another attempt.
        cache.retry_now();
        cache.tick();
        assert!(cache.is_serving(), "round {round}");
        steps(&cache, &mut oracle, draw, 100);
    }
    check(&cache, &oracle, 0, CONTENT);
    assert!((1..=12).contains(&told), "each failure is told once: {told}");
}

/// A request waited for the device once for each of its blocks.
#[test]
fn what_lies_in_several_blocks_is_waited_for_once() {
    let faults = Arc::<DeviceFaults>::default();
    let backing = backing(CONTENT as u64);
    let cache = cache(&backing, opens(faulty_device(&faults, 1 << 30)), Mode::WriteThrough, 4);
    let bytes = bifolio_testing::noise(CONTENT, seed());
    cache.write(0, &bytes).unwrap();
    let draw = &mut fastrand::Rng::with_seed(seed());
    for round in 0..50 {
        let len = if round == 0 { 1 << 20 } else { draw.usize(65537..=1 << 20) };
        let at = draw.usize(..=CONTENT - len);
        let blocks = (at + len).div_ceil(65536) - at / 65536;
        faults.life.store(1000, Ordering::SeqCst);
        let mut seen = vec![0; len];
        cache.read(at as u64, &mut seen).unwrap();
        assert!(seen == bytes[at..at + len], "offset {at}, {len} bytes");
        let calls = 1000 - faults.life.load(Ordering::SeqCst);
        assert_eq!(calls, blocks as i64 + 1, "a copy for each block, and one wait");
    }
    assert_eq!(cache.complaints(), Vec::<String>::new());
}

#[test]
fn writes_that_the_backing_refuses_are_errors_and_leave_either_content() {
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let draw = &mut fastrand::Rng::with_seed(seed());
        let (backing, mut oracle) = (backing(CONTENT as u64), vec![0; CONTENT]);
        let cache = cache(&backing, host(), mode, 1);
        steps(&cache, &mut oracle, draw, 500);
        for round in 0..200 {
            let faults = Faults { writes_fail: round % 2 == 0, is_full: round % 2 == 1, ..Faults::default() };
            backing.set_faults(faults);
            let (page, mut new) = (draw.usize(..CONTENT / 4096) * 4096, vec![0; 4096]);
            draw.fill(&mut new);
            let written = cache.write(page as u64, &new);
            assert!(written.is_err() || mode == Mode::WriteBack);
            backing.set_faults(Faults::default());
            let mut seen = vec![0; 4096];
            cache.read(page as u64, &mut seen).unwrap();
            let old = &oracle[page..page + 4096];
            assert!(seen == new || (written.is_err() && seen == old), "page {page}: neither old nor new");
            oracle[page..page + 4096].copy_from_slice(&seen);
        }
        steps(&cache, &mut oracle, draw, 500);
        check(&cache, &oracle, 0, CONTENT);
    }
}

/// Each thread owns every eighth page, and pages of all lie in the same blocks.
#[test]
fn threads_do_not_disturb_each_other() {
    const THREADS: usize = 8;
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let seed = seed();
        let backing = backing(CONTENT as u64);
        let cache = cache(&backing, host(), mode, 2);
        std::thread::scope(|scope| {
            for own in 0..THREADS {
                let cache = &cache;
                scope.spawn(move || {
                    let draw = &mut fastrand::Rng::with_seed(seed.wrapping_add(own as u64));
                    let mut values = [0_u8; CONTENT / 4096 / THREADS];
                    for _ in 0..3000 {
                        let number = draw.usize(..values.len());
                        let at = ((number * THREADS + own) * 4096) as u64;
                        if draw.bool() {
                            values[number] = draw.u8(..);
                            cache.write(at, &[values[number]; 4096]).unwrap();
                        } else {
                            let mut seen = [0xee; 4096];
                            cache.read(at, &mut seen).unwrap();
                            assert!(seen == [values[number]; 4096], "page at {at}");
                        }
                    }
                });
            }
            scope.spawn(|| {
                for round in 0..200_u64 {
                    cache.resize(round % 4 * CHUNK).unwrap();
                    cache.tick();
                    cache.flush().unwrap();
                }
            });
        });
        assert_eq!(cache.complaints(), Vec::<String>::new());
    }
}
