//! Sweeps the router's settings on one machine, for choosing defaults.
//!
//! `tune FILE [GiB]` creates FILE if it is missing (incompressible, seed 1) and prints, for the
//! best device found: warm rates by threads and slot size, cold rates, and times of short reads.

use bifolio_device::{DeviceChoice, Stream};
use bifolio_io::cache_state::{evict, load, write_incompressible};
use bifolio_io::{EngineChoice, EngineKind, OpenFile, ReadOptions, Router, RouterOptions};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: tune FILE [GiB]");
    let gib: u64 = args.next().map_or(8, |text| text.parse().expect("a number of GiB"));
    let device = bifolio_device::open(DeviceChoice::Auto).expect("a device");
    println!("{} {}", device.info().name, device.info().driver);
    if !std::path::Path::new(&path).exists() {
        let started = Instant::now();
        let file = std::fs::File::create(&path).expect("the file");
        write_incompressible(&file, path.as_ref(), gib << 30, 1, &mut |_| {}).expect("data");
        println!("written in {:.1} s", started.elapsed().as_secs_f64());
    }
    let started = Instant::now();
    let memory = device.alloc(gib << 30).expect("device memory");
    println!("device memory in {:.3} s", started.elapsed().as_secs_f64());
    let size = std::fs::metadata(&path).expect("the file").len();
    link_rate(&device.create_stream().expect("a stream"), &memory);
    let read = |router: &Router, file: &Arc<OpenFile>, engine| {
        let options = ReadOptions { engine, ..ReadOptions::default() };
        let (cpu, started) = (cpu_seconds(), Instant::now());
        let report = router.read(file, 0, None, memory.slice(), &options).expect("a read");
        let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        (size as f64 / seconds / 1e9, cpu / (size as f64 / 1e9), report)
    };
    let cached = EngineChoice::Only(EngineKind::Cached);
    load(&OpenFile::open(&path).expect("the file"), 0..size).expect("warm");
    for slot in [1 << 20, 2 << 20, 4 << 20] {
        for threads in [4, 6, 8, 10, 12, 16] {
            let options = RouterOptions { threads, slot_bytes: slot, mapped_bytes: 0, ..RouterOptions::default() };
            let router = Router::new(&device, options);
            let file = router.open(&path).expect("the file");
            let mut runs: Vec<_> =
                (0..5).map(|_| read(&router, &file, cached)).map(|(rate, cpu, _)| (rate, cpu)).collect();
            runs.sort_by(|one, two| two.0.total_cmp(&one.0));
            println!(
                "warm slot {:>4} KiB threads {threads:>2}: best {:.1} GB/s {:.3} s/GB, median {:.1}",
                slot >> 10,
                runs[0].0,
                runs[0].1,
                runs[2].0
            );
        }
    }
    let router = Router::new(&device, RouterOptions::default());
    let file = router.open(&path).expect("the file");
    for run in 0..8 {
        let (rate, cpu, report) = read(&router, &file, EngineChoice::Auto);
        let engines: Vec<_> = report.plan.iter().map(|segment| segment.engine.name()).collect();
        println!("again {run}: {rate:.1} GB/s {cpu:.3} s/GB {engines:?} plan {:.1} us", report.plan_seconds * 1e6);
        std::thread::sleep(std::time::Duration::from_millis(if run == 1 { 1500 } else { 0 }));
    }
    short_reads(&router, &file, &memory, "warm");
    for run in 0..2 {
        evict(&file, 0..size).expect("cold");
        let (rate, cpu, _) = read(&router, &file, EngineChoice::Only(EngineKind::Direct));
        println!("cold direct {run}: {rate:.2} GB/s {cpu:.3} s/GB");
    }
    evict(&file, 0..size).expect("cold");
    short_reads(&router, &file, &memory, "cold");
    evict(&file, 0..size).expect("cold");
    for stripe in (0..size >> 25).step_by(2) {
        load(&file, stripe << 25..(stripe + 1) << 25).expect("warm");
    }
    let (rate, cpu, report) = read(&router, &file, EngineChoice::Auto);
    println!(
        "half auto: {rate:.2} GB/s {cpu:.3} s/GB, {} segments, plan {:.0} us",
        report.plan.len(),
        report.plan_seconds * 1e6
    );
}

/// Pinned host memory to device, 64 MiB at a time.
fn link_rate(stream: &Stream, memory: &bifolio_device::Allocation) {
    let pinned = stream.device().alloc_pinned(64 << 20).expect("pinned memory");
    let place = memory.slice().part(0, 64 << 20).expect("a range");
    let started = Instant::now();
    for _ in 0..32 {
        // SAFETY: `pinned` lives until the synchronisation.
        unsafe { stream.copy_to_device(place, pinned.as_ptr()) }.expect("a copy");
    }
    stream.synchronize().expect("the copies");
    println!("link {:.1} GB/s", 32.0 * f64::from(64 << 20) / started.elapsed().as_secs_f64() / 1e9);
}

/// Median times of reads at shuffled places.
fn short_reads(router: &Router, file: &Arc<OpenFile>, memory: &bifolio_device::Allocation, state: &str) {
    let size = file.size().expect("a size");
    for shift in [12, 14, 16, 18, 20, 22, 24, 26] {
        let bytes = 1_u64 << shift;
        let count = (1 << 28 >> shift).clamp(10, 2000);
        let mut line = format!("{state} {:>6} KiB:", bytes >> 10);
        for (lane, engine) in ["auto", "cached", "direct"].into_iter().enumerate() {
            let options = ReadOptions { engine: engine.parse().expect("an engine"), ..ReadOptions::default() };
            let time = |number: u64| {
                // Each engine has places of its own: what one leaves in the cache helps no other.
                let place = (number.wrapping_mul(2_654_435_761) % (size / bytes / 3) * 3 + lane as u64) * bytes;
                let report = router.read(file, place, Some(bytes), memory.slice(), &options).expect("a read");
                (report.seconds, report.plan_seconds)
            };
            let mut times: Vec<_> = (0..count).map(time).collect();
            let total: f64 = times.iter().map(|time| time.0).sum();
            times.sort_by(|one, two| one.0.total_cmp(&two.0));
            let median = times[times.len() / 2];
            line += &format!(
                "  {engine} {:.1} us ({:.2} GB/s, plan {:.1} us)",
                median.0 * 1e6,
                bytes as f64 * count as f64 / total / 1e9,
                median.1 * 1e6
            );
        }
        println!("{line}");
    }
}

/// CPU seconds of this process, all threads.
fn cpu_seconds() -> f64 {
    // SAFETY: `rusage` is plain old data, and `getrusage` fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
