//! Measures the kernels on one device: `cargo run --release -p bifolio-bench --example kernel_rates -- cuda:0`.
//!
//! With `literals` behind the device only the search for literals is measured; with a file of rules behind that, with its
//! literals. With `reload`, and perhaps a file of rules behind that, it is measured how long an exchange of rules takes. With
//! `headers` it is header checks, routes and rules over many fields; with files of `ClassBench` behind that, with
//! theirs.
//!
//! Each row is the best and the median of some runs; a run is several launches in a row and a wait,
//! so that the time to launch does not count. The rival is the device's own copy of as many bytes.
//! A rate counts every byte of the file or of the extents once; "moved" is what the memory reads and
//! writes for it, by the median.

mod headers;
mod literals;
mod reload;
mod storage;

use bifolio_bench::harness::machine;
use bifolio_bench::harness::usage::{Rates, Taken};
use bifolio_device::{Allocation, Device, DeviceChoice, DeviceSlice, Stream, open};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::scatter::{self, Extent};
use bifolio_kernels::{Addressing, KERNELS, Kernels, byte_mask, fold, merge, page_diff};
use std::cell::Cell;

const SEED: u64 = 1;
const RUNS: usize = 10;
const LAUNCHES: u64 = 5;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let choice = std::env::args().nth(1).map_or(Ok(DeviceChoice::Auto), |name| name.parse())?;
    let device = open(choice)?;
    let (stream, kernels) = (device.create_stream()?, Kernels::load(&device, KERNELS)?);
    let more: Vec<String> = std::env::args().skip(2).collect();
    let rules = more.get(1).map(String::as_str);
    match more.first().map(String::as_str) {
        Some("literals") => {
            println!("{}; seed {SEED}, {RUNS} runs", machine::describe(&device));
            return literals::measure_all(&stream, rules);
        }
        Some("reload") => {
            println!("{}; seed {SEED}, {RUNS} runs", machine::describe(&device));
            return reload::measure_all(rules);
        }
        Some("headers") => {
            println!("{}; seed {SEED}, {RUNS} runs", machine::describe(&device));
            return headers::measure_all(&stream, &more[1..]);
        }
        Some(other) => return Err(format!("{other}: only literals, reload and headers can be named").into()),
        None => {}
    }
    // Both buffers of the largest case fit beside whatever else is there.
    let bytes = (device.memory()?.free / 4).min(if device.info().is_accelerator { 4 << 30 } else { 64 << 20 });
    println!("{}; seed {SEED}, {RUNS} runs", machine::describe(&device));
    kernels.report().iter().for_each(|status| println!("{status}"));
    let (a, b) = (device.alloc(bytes)?, device.alloc(bytes)?);
    copy(&stream, &a, &b)?;
    compare(&device, &stream, &kernels, &a, &b)?;
    for (what, len, shift) in
        [("aligned", 512, 0), ("1 byte off", 512, 1), ("aligned", 65536, 0), ("1 byte off", 65536, 1)]
    {
        spread(&stream, &kernels, (what, len, shift), &a, &b)?;
    }
    for page in [4096, 65536] {
        merge_pages(&stream, &kernels, page, &a, &b)?;
        mask_bytes(&stream, &kernels, page, &a, &b)?;
        fold_pages(&stream, &kernels, page, &a)?;
    }
    storage::measure_all(&stream, &a, &b)?;
    drop((a, b));
    headers::measure_all(&stream, &[])?;
    literals::measure_all(&stream, rules)
}

fn copy(stream: &Stream, a: &Allocation, b: &Allocation) -> Outcome {
    // SAFETY: both allocations outlive the measurement, which waits for its work.
    measure("copy on the device", a.len(), 2.0, stream, || unsafe { stream.copy_on_device(b.slice(), a.slice()) })
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
        measure(&format!("page_diff, all pages {what}"), a.len(), 2.0, stream, launch)?;
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
    measure(&format!("scatter, {len} bytes, {what}"), count * len, 2.0, stream, launch)
}

/// Pages in order; the four quarters of memory are filled with one value each. Launches take turns
/// with two incoming versions: after a merge with the same one again, nothing is new.
fn merge_pages(stream: &Stream, kernels: &Kernels, page: u64, a: &Allocation, b: &Allocation) -> Outcome {
    let half = a.len() / 2 / page * page;
    let [(current, twin), versions] = [
        (a.slice().part(0, half)?, a.slice().part(half, half)?),
        (b.slice().part(0, half)?, b.slice().part(half, half)?),
    ];
    let entry = |at| merge::Entry { current: at, twin: at, incoming: at, len: page };
    let entries: Vec<_> = (0..half / page).map(|i| entry(i * page)).collect();
    let table = stream.device().alloc(entries.len() as u64 * merge::ENTRY_BYTES)?;
    stream.upload(table.slice(), &merge::encode(&entries))?;
    let flags = stream.device().alloc(entries.len() as u64 * 4)?;
    // What fills current, twin, and the two versions; what the memory moves for one byte.
    let cases = [
        ("nothing new", [1, 1, 1, 1], 3.0),
        ("all new", [1, 1, 2, 3], 5.0),
        ("all own, nothing new", [2, 1, 1, 1], 3.0),
        ("all own, all new", [4, 1, 2, 3], 4.0),
    ];
    for (what, values, moved) in cases {
        for (range, value) in [current, twin, versions.0, versions.1].into_iter().zip(values) {
            // SAFETY: as in `copy`.
            unsafe { stream.fill(range, value) }?;
        }
        let turn = Cell::new(false);
        let launch = || {
            turn.set(!turn.get());
            let incoming = Addressing::Relative(if turn.get() { versions.0 } else { versions.1 });
            let operands =
                merge::Operands { current: Addressing::Relative(current), twin: Addressing::Relative(twin), incoming };
            // SAFETY: as in `copy`; the pages lie beside each other inside the four ranges.
            unsafe { kernels.merge(stream, operands, table.slice(), flags.slice()) }
        };
        measure(&format!("merge, {page} bytes, {what}"), half, moved, stream, launch)?;
    }
    Ok(())
}

fn mask_bytes(stream: &Stream, kernels: &Kernels, page: u64, a: &Allocation, b: &Allocation) -> Outcome {
    let half = a.len() / 2 / page * page;
    let (current, twin, mask) = (a.slice().part(0, half)?, a.slice().part(half, half)?, b.slice());
    let entry = |at| byte_mask::Entry { current: at, twin: at, mask: byte_mask::mask_bytes(at), len: page };
    let entries: Vec<_> = (0..half / page).map(|i| entry(i * page)).collect();
    let table = stream.device().alloc(entries.len() as u64 * byte_mask::ENTRY_BYTES)?;
    stream.upload(table.slice(), &byte_mask::encode(&entries))?;
    let counts = stream.device().alloc(entries.len() as u64 * 4)?;
    let operands = byte_mask::Operands {
        current: Addressing::Relative(current),
        twin: Addressing::Relative(twin),
        mask: Addressing::Relative(mask),
    };
    for (what, value) in [("all bytes equal", 1), ("all bytes differ", 2)] {
        // SAFETY: as in `copy`.
        unsafe {
            stream.fill(current, 1)?;
            stream.fill(twin, value)?;
        }
        // SAFETY: as in `copy`; the pages and masks lie beside each other inside their ranges.
        let launch = || unsafe { kernels.byte_mask(stream, operands, table.slice(), counts.slice()) };
        measure(&format!("byte_mask, {page} bytes, {what}"), half, 2.125, stream, launch)?;
    }
    Ok(())
}

/// Pages in order, all parts in one allocation, each filled with one value. Launches take turns with two contents of
/// home's: with the same one again, nothing is new. The bytes moved are the least that it takes: every part is read once,
/// and what changes is written once, the base always.
fn fold_pages(stream: &Stream, kernels: &Kernels, page: u64, memory: &Allocation) -> Outcome {
    const PARTS: u64 = 8;
    let bytes = memory.len() / PARTS / page * page;
    let place = |part: u64, at: u64| part * bytes + at;
    let parts = (0..PARTS).map(|part| memory.slice().part(place(part, 0), bytes)).collect::<Result<Vec<_>, _>>()?;
    let entry = |donors: usize, version: u64, at: u64| {
        let donor = |twin: u64, base: u64| Some(fold::Donor { twin: place(twin, at), base: place(base, at) });
        // Another device, then what the page itself has released.
        let all = [donor(6, 7), donor(1, 2)];
        fold::Entry {
            current: place(0, at),
            twin: Some(place(1, at)),
            base: Some(place(2, at)),
            content: place(3 + version, at),
            origin: Some(place(5, at)),
            donors: [0, 1, 2].map(|i| if i < donors { all[i] } else { None }),
            len: page,
        }
    };
    let table = |donors: usize, version: u64| -> Outcome<Allocation> {
        let entries: Vec<_> = (0..bytes / page).map(|i| entry(donors, version, i * page)).collect();
        let table = stream.device().alloc(entries.len() as u64 * fold::ENTRY_BYTES)?;
        stream.upload(table.slice(), &fold::encode(&entries))?;
        Ok(table)
    };
    let flags = stream.device().alloc(bytes / page * 4)?;
    // Donors; what fills current, twin, base, both contents, origin, and the donor's twin and base; what the memory moves
    // for one byte.
    let cases = [
        ("no donor, nothing new", 0, [1; 8], 5.0),
        ("no donor, all new", 0, [1, 1, 1, 2, 3, 1, 1, 1], 7.0),
        ("one donor, nothing new", 1, [2, 2, 1, 1, 1, 1, 2, 1], 7.0),
        ("one donor, all new", 1, [1, 1, 1, 2, 3, 1, 1, 1], 9.0),
        ("one donor, all own", 1, [9, 2, 1, 1, 1, 1, 2, 1], 7.0),
        ("another and own", 2, [2, 2, 1, 1, 1, 1, 2, 1], 8.0),
    ];
    for (what, donors, values, moved) in cases {
        for (range, value) in parts.iter().zip(values) {
            // SAFETY: as in `copy`.
            unsafe { stream.fill(*range, value) }?;
        }
        let (tables, turn) = ([table(donors, 0)?, table(donors, 1)?], Cell::new(false));
        let launch = || {
            turn.set(!turn.get());
            let memory = Addressing::Relative(memory.slice());
            let table = &tables[usize::from(turn.get())];
            // SAFETY: as in `copy`; the pages lie beside each other inside the memory.
            unsafe { kernels.fold(stream, memory, table.slice(), flags.slice()) }
        };
        measure(&format!("fold, {page} bytes, {what}"), bytes, moved, stream, launch)?;
    }
    Ok(())
}

/// `moved`: what the memory reads and writes for one byte that counts.
fn measure(
    what: &str,
    bytes: u64,
    moved: f64,
    stream: &Stream,
    launch: impl Fn() -> bifolio_device::Result<()>,
) -> Outcome {
    let mut runs = vec![];
    for _ in 0..=RUNS {
        stream.synchronize()?;
        runs.push(Taken::by(|| {
            (0..LAUNCHES).try_for_each(|_| launch())?;
            Ok(stream.synchronize()?)
        })?);
    }
    // The first run warms up.
    let rates = Rates::of(bytes * LAUNCHES, &runs[1..]);
    let (best, median) = (rates.gb_per_s_best, rates.gb_per_s_median);
    println!(
        "{what:50} {best:9.1} GB/s best {median:9.1} median, {:7.3} TB/s moved, {:8.5} us for 4 KiB",
        median * moved / 1e3,
        4.096 / median
    );
    Ok(())
}
