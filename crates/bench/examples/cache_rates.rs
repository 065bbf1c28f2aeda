//! What the cache's operations cost on a device: `cache_rates DEVICE FOLDER [GiB]` prints a line for each.
//!
//! The file is made of incompressible bytes in FOLDER and removed.

use bifolio_bench::harness::usage::{Taken, gb_per_s};
use bifolio_cache::{Cache, CacheOptions, CachedFile, Mapping, Report};
use bifolio_device::{Access, Device, DeviceSlice, FRAME_BYTES, open};
use bifolio_io::cache_state::write_incompressible;
use bifolio_io::{ReadExtent, ReadOptions, Router, RouterOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

const ROUNDS: usize = 7;
const SEED: u64 = 1;

/// Bytes of a page, as the cache has it where nobody chooses.
const PAGE: u64 = 64 << 10;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The best of some rounds, in seconds.
fn best(mut round: impl FnMut(usize) -> Outcome<f64>) -> Outcome<f64> {
    (0..ROUNDS).map(&mut round).try_fold(f64::INFINITY, |best, time| Ok(best.min(time?)))
}

fn timed<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<f64> {
    let mut done = Ok(());
    let taken = Taken::by(|| {
        done = work().map(drop);
        Ok(())
    })?;
    done.map(|()| taken.seconds)
}

fn store(device: &Device, mapping: &Mapping, at: u64, bytes: &[u8]) -> Outcome<()> {
    // SAFETY: the part is acquired.
    let slice = unsafe { DeviceSlice::from_raw_ordered(mapping.ptr().offset_by(at), bytes.len() as u64) };
    Ok(device.create_stream()?.upload(slice, bytes)?)
}

fn file_of(folder: &str, bytes: u64) -> Outcome<tempfile::TempPath> {
    let file = tempfile::NamedTempFile::new_in(folder)?;
    write_incompressible(file.as_file(), file.path(), bytes, SEED, &mut |_| {})?;
    file.as_file().set_len(bytes)?;
    file.as_file().sync_all()?;
    Ok(file.into_temp_path())
}

/// What memory costs, by the threads that ask for it.
fn frames(device: &Device, bytes: u64) -> Outcome<()> {
    let count = bytes / FRAME_BYTES;
    for threads in [1, 2, 4] {
        let range = device.reserve(bytes)?;
        let made = std::sync::Mutex::new(Vec::new());
        let map = &|thread: u64| -> bifolio_device::Result<()> {
            for number in (thread..count).step_by(threads as usize) {
                let frame = device.create_frame()?;
                range.map(number * FRAME_BYTES, &frame, Access::ReadWrite)?;
                made.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
            }
            Ok(())
        };
        let started = Instant::now();
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || map(thread))).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
        })?;
        let each = started.elapsed().as_secs_f64() / count as f64;
        println!(
            "a new frame of 2 MiB, {threads} threads                   {:9.3} us  {:7.1} GB/s",
            each * 1e6,
            FRAME_BYTES as f64 / each / 1e9
        );
    }
    Ok(())
}

/// Until nobody can have changed the file unseen.
fn settle(file: &CachedFile, mapping: &mut Mapping) -> Outcome<()> {
    file.sync()?;
    std::thread::sleep(std::time::Duration::from_millis(60));
    let len = mapping.len();
    mapping.acquire(0..len)?;
    mapping.release(0..len)?;
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, device, folder, rest @ ..] = &arguments[..] else {
        return Err("usage: cache_rates DEVICE FOLDER [GiB]".into());
    };
    let gib: f64 = rest.first().map_or(Ok(1.0), |text| text.parse())?;
    let bytes = ((gib * f64::from(1 << 30)) as u64).next_multiple_of(2 << 20);
    let device = open(device.parse()?)?;
    let path = file_of(folder, bytes)?;
    println!("{} ({}), {:.2} GB, best of {ROUNDS}, seed {SEED}", device.id(), device.info().name, bytes as f64 / 1e9);

    let router = Arc::new(Router::new(&device, RouterOptions::default()));
    let options = CacheOptions { budget_bytes: bytes * 4, ..CacheOptions::default() };
    let cache = Cache::new(&[Arc::clone(&router), Arc::clone(&router)], options)?;
    let rate = |seconds| gb_per_s(bytes, seconds);

    // What only the device has, against storage.
    let mut buffer = vec![1; bytes as usize];
    let uncached = std::fs::File::open(&path)?;
    uncached.sync_all()?;
    let forget = || {
        // SAFETY: advice on an open descriptor.
        unsafe { libc::posix_fadvise(uncached.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    };
    let storage = best(|_| {
        forget();
        timed(|| Ok(uncached.read_exact_at(&mut buffer, 0)?))
    })?;
    println!("a CPU's read of the file from storage           {:9.3} ms  {:7.1} GB/s", storage * 1e3, rate(storage));
    // Without registrations, which keep pages in the page cache.
    let options_of_router = RouterOptions { mapped_bytes: 0, ..RouterOptions::default() };
    let by_itself = Cache::new(&[Arc::new(Router::new(&device, options_of_router))], options)?;
    let cached = by_itself.open(&path)?;
    let mut holder = cached.map_on(0, 0..bytes, false)?;
    settle(&cached, &mut holder)?;
    let served = best(|_| {
        forget();
        timed(|| Ok(cached.read(0, &mut buffer)?))
    })?;
    println!("the same, from the device                       {:9.3} ms  {:7.1} GB/s", served * 1e3, rate(served));
    println!("                                                {} pages were served", by_itself.counts().served);
    drop((holder, cached, by_itself));
    // Back into the page cache, where the reads below find it.
    uncached.read_exact_at(&mut buffer, 0)?;
    drop(buffer);

    // The rival: one copy of everything, by the router.
    let memory = device.alloc(bytes)?;
    let plain = router.open(&path)?;
    let copy = best(|_| timed(|| Ok(router.read(&plain, 0, None, memory.slice(), &ReadOptions::default())?)))?;
    println!("full copy by the router                        {:9.3} ms  {:7.1} GB/s", copy * 1e3, rate(copy));
    // The same for some of its pages, at random.
    for percent in [1, 10] {
        let count = bytes / PAGE * percent / 100;
        let extent = |number| {
            let offset = number * 7919 % (bytes / PAGE) * PAGE;
            ReadExtent { offset, length: PAGE, place: offset }
        };
        let extents: Vec<_> = (0..count).map(extent).collect();
        let batch =
            best(|_| timed(|| Ok(router.read_batch(&plain, &extents, memory.slice(), &ReadOptions::default())?)))?;
        println!(
            "{percent:3} % of its pages by a batch of the router        {:9.3} ms  {:7.1} GB/s",
            batch * 1e3,
            (count * PAGE) as f64 / 1e9 / batch
        );
    }
    drop((memory, plain));
    frames(&device, bytes)?;

    for (name, writable) in [("acquire, nothing there       ", false), ("the same with twins          ", true)] {
        // The first round has new frames, the others those of the round before.
        let mut first = None;
        let others = best(|_| {
            let file = cache.open(&path)?;
            let mut mapping = file.map_on(0, 0..bytes, writable)?;
            let time = timed(|| Ok(mapping.acquire(0..bytes)?))?;
            first.get_or_insert(time);
            Ok(time)
        })?;
        let first = first.unwrap_or(others);
        println!(
            "{name}                  {:9.3} ms  {:7.1} GB/s, first {:.1}",
            others * 1e3,
            rate(others),
            rate(first)
        );
    }

    let file = cache.open(&path)?;
    let mut mapping = file.map_on(0, 0..bytes, true)?;
    mapping.acquire(0..bytes)?;
    mapping.release(0..bytes)?;
    settle(&file, &mut mapping)?;
    let mut last: Option<Report> = None;
    let again = best(|_| {
        let time = timed(|| {
            last = Some(mapping.acquire(0..bytes)?);
            Ok(())
        })?;
        mapping.release(0..bytes)?;
        Ok(time)
    })?;
    let moved = last.map_or(0, |report| report.fetched + report.compared);
    println!("acquire, nothing changed                       {:9.3} us  {moved} pages moved", again * 1e6);
    let quiet = best(|_| {
        mapping.acquire(0..bytes)?;
        timed(|| Ok(mapping.release(0..bytes)?))
    })?;
    println!("release, nothing changed                       {:9.3} ms  {:7.1} GB/s", quiet * 1e3, rate(quiet));

    for percent in [1_u64, 10, 25, 50, 100] {
        let pages = bytes / PAGE;
        let time = best(|round| {
            settle(&file, &mut mapping)?;
            // Page by page known: a byte in each of them, spread over the file.
            for number in 0..pages * percent / 100 {
                let page = number * 7919 % pages;
                let page = if percent == 100 { number } else { page };
                file.write(page * PAGE + 5, &[round as u8])?;
            }
            let time = timed(|| Ok(mapping.acquire(0..bytes)?))?;
            mapping.release(0..bytes)?;
            Ok(time)
        })?;
        println!(
            "acquire, a CPU has changed {percent:3} % of the pages    {:9.3} ms  {:7.2} of a full copy",
            time * 1e3,
            time / copy
        );
    }

    // What a copy of everything costs then, as registrations are made of files that have not changed lately.
    let memory = device.alloc(bytes)?;
    let plain = router.open(&path)?;
    let anew = best(|round| {
        for page in 0..bytes / PAGE {
            file.write(page * PAGE + 5, &[round as u8])?;
        }
        timed(|| Ok(router.read(&plain, 0, None, memory.slice(), &ReadOptions::default())?))
    })?;
    println!("full copy, a CPU has just changed all pages    {:9.3} ms  {:7.1} GB/s", anew * 1e3, rate(anew));
    drop((memory, plain));

    // A second replica on the same device has what the first released.
    let mut other = file.map_on(1, 0..bytes, true)?;
    other.acquire(0..bytes)?;
    other.release(0..bytes)?;
    settle(&file, &mut mapping)?;
    let pages = (bytes / PAGE).min(4096);
    let conflict = best(|round| {
        mapping.acquire(0..bytes)?;
        other.acquire(0..bytes)?;
        for page in 0..pages {
            store(&device, &mapping, page * PAGE + 1, &[round as u8])?;
            store(&device, &other, page * PAGE + 2, &[round as u8 + 100])?;
        }
        mapping.release(0..bytes)?;
        timed(|| Ok(other.acquire(0..bytes)?))
    })?;
    println!(
        "acquire of {pages} pages that both have changed       {:9.3} ms  {:7.3} us for 4 KiB, home and merge",
        conflict * 1e3,
        conflict * 1e6 / (pages * 16) as f64
    );
    for stats in cache.stats() {
        println!("{stats:?}");
    }
    Ok(())
}
