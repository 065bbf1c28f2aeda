//! Measures the kernels on one device: `cargo run --release -p bifolio-kernels --example kernel_rates -- cuda:0`.
//!
//! Each row is the best and the median of some runs; a run is several launches in a row and a wait,
//! so that the time to launch does not count. The rival is the device's own copy of as many bytes.

use bifolio_device::{Allocation, Device, DeviceChoice, DeviceSlice, Stream, open};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::scatter::{self, Extent};
use bifolio_kernels::{Kernels, page_diff};
use std::time::Instant;

const SEED: u64 = 1;
const RUNS: usize = 10;
const LAUNCHES: u32 = 5;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let choice = std::env::args().nth(1).map_or(Ok(DeviceChoice::Auto), |name| name.parse())?;
    let device = open(choice)?;
    let (stream, kernels) = (device.create_stream()?, Kernels::load(&device)?);
    // Both buffers of the largest case fit beside whatever else is there.
    let bytes = (device.memory()?.free / 4).min(if device.info().is_accelerator { 4 << 30 } else { 64 << 20 });
    println!("{}: {}, {}; seed {SEED}, {RUNS} runs", device.id(), device.info().name, device.info().driver);
    kernels.report().iter().for_each(|status| println!("{status}"));
    let (a, b) = (device.alloc(bytes)?, device.alloc(bytes)?);
    copy(&stream, &a, &b)?;
    compare(&device, &stream, &kernels, &a, &b)?;
    for (what, len, shift) in
        [("aligned", 512, 0), ("1 byte off", 512, 1), ("aligned", 65536, 0), ("1 byte off", 65536, 1)]
    {
        spread(&stream, &kernels, (what, len, shift), &a, &b)?;
    }
    Ok(())
}

fn copy(stream: &Stream, a: &Allocation, b: &Allocation) -> Outcome {
    // SAFETY: both allocations outlive the measurement, which waits for its work.
    measure("copy on the device", a.len(), stream, || unsafe { stream.copy_on_device(b.slice(), a.slice()) })
}

fn compare(device: &Device, stream: &Stream, kernels: &Kernels, a: &Allocation, b: &Allocation) -> Outcome {
    let bitmap = device.alloc(page_diff::bitmap_words(a.len()) * 4)?;
    for (what, value) in [("clean", 1), ("dirty", 2)] {
        // SAFETY: as in `copy`.
        unsafe {
            stream.fill(a.slice(), 1)?;
            stream.fill(b.slice(), value)?;
        }
        // SAFETY: as in `copy`.
        let launch = || unsafe { kernels.page_diff(stream, a.slice(), b.slice(), bitmap.slice()) };
        measure(&format!("page_diff, all pages {what}"), a.len(), stream, launch)?;
    }
    Ok(())
}

/// Extents of one length in random order.
fn spread(
    stream: &Stream,
    kernels: &Kernels,
    (what, len, shift): (&str, u64, u64),
    a: &Allocation,
    b: &Allocation,
) -> Outcome {
    let count = (a.len().min(1 << 30) - shift) / len;
    let mut extents: Vec<_> = (0..count).map(|i| Extent { src: i * len, dst: i * len + shift, len }).collect();
    let mut draw = Draw::from_seed(SEED);
    for i in (1..extents.len()).rev() {
        let other = draw.below(i as u64 + 1) as usize;
        (extents[i].dst, extents[other].dst) = (extents[other].dst, extents[i].dst);
    }
    let array = stream.device().alloc(count * scatter::EXTENT_BYTES)?;
    stream.upload(array.slice(), &scatter::encode(&extents))?;
    let (from, to): (DeviceSlice, DeviceSlice) = (a.slice(), b.slice());
    // SAFETY: as in `copy`; the extents lie inside both buffers and are permuted places of one grid.
    let launch = || unsafe { kernels.scatter(stream, from, array.slice(), to) };
    measure(&format!("scatter, {len} bytes, {what}"), count * len, stream, launch)
}

fn measure(what: &str, bytes: u64, stream: &Stream, launch: impl Fn() -> bifolio_device::Result<()>) -> Outcome {
    let mut rates = Vec::new();
    for _ in 0..=RUNS {
        stream.synchronize()?;
        let start = Instant::now();
        (0..LAUNCHES).try_for_each(|_| launch())?;
        stream.synchronize()?;
        rates.push(bytes as f64 * f64::from(LAUNCHES) / start.elapsed().as_secs_f64() / 1e9);
    }
    rates.remove(0); // The first run warms up.
    rates.sort_by(f64::total_cmp);
    println!("{what:32} {:9.1} GB/s best {:9.1} median", rates[RUNS - 1], rates[RUNS / 2]);
    Ok(())
}
