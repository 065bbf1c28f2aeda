//! Calibration: measures every engine on a scratch file beside the user's data and fits the cost
//! model.
//!
//! Each size is read several times at places drawn at random, and the median counts. Cold paths
//! are measured on ranges dropped from the page cache just before, warm ones on ranges just read.

use crate::cache_state::{evict, load, write_incompressible};
use crate::cost::{Costs, Point, fit};
use crate::file::OpenFile;
use crate::kind::{EngineChoice, EngineKind};
use crate::options::ReadOptions;
use crate::plan::Segment;
use crate::profile::{Curve, Profile, VERSION, file_system_of};
use crate::router::Router;
use crate::{Error, ErrorKind, Result};
use bifolio_device::DeviceSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Choices for a calibration.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the scratch file, at least 64 MiB.
    pub bytes: u64,
    /// Reads of each size; their median counts.
    pub repetitions: u32,
    /// Seed of the scratch file's content and of the places read.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { bytes: 1 << 30, repetitions: 9, seed: 1 }
    }
}

/// The smallest scratch file: the largest size is measured at more than one place.
const BYTES_MIN: u64 = 64 << 20;

/// Extents of one request in the measurement of what an extent costs, and their size.
const EXTENTS: u64 = 256;
const EXTENT_BYTES: u64 = 4096;

/// Paths that are measured: name, engine, and whether the range is cached beforehand.
const PATHS: &[(&str, EngineKind, bool)] = &[
    ("cached", EngineKind::Cached, true),
    ("mapped", EngineKind::Mapped, true),
    ("direct", EngineKind::Direct, false),
    ("buffered", EngineKind::Cached, false),
    ("p2p", EngineKind::P2p, false),
];

/// Measures all engines that work between the file system of `near` (a folder, or a file in it)
/// and the router's device. `progress` is told what is being measured and the part done, 0 to 1.
/// Engines that do not work here are left out of the curves and keep their default costs.
pub fn calibrate(
    router: &Router,
    near: &Path,
    options: &Options,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Profile> {
    let scratch = Scratch::create(near, options, progress)?;
    let file = router.open(&scratch.path)?;
    let memory = router.device().alloc(largest(options)).map_err(|error| Error::device(near, error))?;
    let mut random = fastrand::Rng::with_seed(options.seed);
    let mut curves = Vec::new();
    for (number, &(name, engine, warm)) in PATHS.iter().enumerate() {
        progress(name, (number + 1) as f64 / (PATHS.len() + 2) as f64);
        match measure_path(router, &file, memory.slice(), (engine, warm), options, &mut random) {
            Ok(points) => curves.extend(fit(&points).map(|fit| Curve { name: name.to_owned(), engine, points, fit })),
            Err(error) if matches!(error.kind(), ErrorKind::NoEngine | ErrorKind::Calibration) => {}
            Err(error) => return Err(error),
        }
    }
    progress("extents", (PATHS.len() + 1) as f64 / (PATHS.len() + 2) as f64);
    let mut costs = costs_of(&curves);
    if curves.iter().any(|curve| curve.name == "direct") {
        costs.direct_extent_s = measure_extents(router, &file, memory.slice(), options)?;
    }
    progress("done", 1.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(Profile {
        version: VERSION,
        device: router.device().info().identity.clone(),
        file_system: file_system_of(&file),
        measured_at: now.map_or(0, |now| now.as_secs()),
        costs,
        curves,
    })
}

/// Fitted costs where there is a curve, defaults elsewhere.
fn costs_of(curves: &[Curve]) -> Costs {
    let mut costs = Costs::default();
    let slots = [
        ("cached", &mut costs.cached),
        ("mapped", &mut costs.mapped),
        ("direct", &mut costs.direct),
        ("buffered", &mut costs.buffered),
        ("p2p", &mut costs.p2p),
    ];
    for (name, slot) in slots {
        if let Some(curve) = curves.iter().find(|curve| curve.name == name) {
            *slot = curve.fit.cost;
        }
    }
    costs
}

/// Sizes from 4 KiB in steps of four.
fn sizes(options: &Options) -> impl Iterator<Item = u64> + use<> {
    let largest = largest(options);
    (0..).map(|step| 4096_u64 << (2 * step)).take_while(move |bytes| *bytes <= largest)
}

/// The largest size: big enough to show the bandwidth, with several places in the file.
fn largest(options: &Options) -> u64 {
    (options.bytes.max(BYTES_MIN) / 4).min(64 << 20)
}

fn measure_path(
    router: &Router,
    file: &Arc<OpenFile>,
    memory: DeviceSlice<'_>,
    (engine, warm): (EngineKind, bool),
    options: &Options,
    random: &mut fastrand::Rng,
) -> Result<Vec<Point>> {
    if warm {
        load(file, 0..options.bytes.max(BYTES_MIN))?;
    } else {
        evict(file, 0..options.bytes.max(BYTES_MIN))?;
    }
    let read = ReadOptions { engine: EngineChoice::Only(engine), ..ReadOptions::default() };
    let mut points = Vec::new();
    for bytes in sizes(options) {
        let mut times = Vec::new();
        for repetition in 0..=options.repetitions.max(1) {
            let range = place(bytes, options, random);
            if !warm && engine == EngineKind::Cached {
                evict(file, 0..options.bytes.max(BYTES_MIN))?;
            }
            let report = router.read(file, range.start, Some(bytes), memory, &read)?;
            // The first read of a size pays for what is set up once.
            if repetition > 0 {
                times.push(report.seconds);
            }
        }
        points.push(Point { bytes, seconds: median(&mut times) });
    }
    Ok(points)
}

/// A random place for a read, aligned to its size or to 4 KiB.
fn place(bytes: u64, options: &Options, random: &mut fastrand::Rng) -> Range<u64> {
    let places = (options.bytes.max(BYTES_MIN) / bytes).max(1);
    let start = random.u64(..places) * bytes;
    start..start + bytes
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Seconds that one more scattered extent adds to a direct request.
fn measure_extents(router: &Router, file: &Arc<OpenFile>, memory: DeviceSlice<'_>, options: &Options) -> Result<f64> {
    let stride = memory.len() / EXTENTS;
    let extent = |number| Segment {
        engine: EngineKind::Direct,
        offset: number * stride,
        length: EXTENT_BYTES,
        predicted_s: 0.0,
    };
    let many: Vec<_> = (0..EXTENTS).map(extent).collect();
    let time = |segments: &[Segment]| {
        let run = |_| {
            let started = Instant::now();
            router.run_segments(file.plain(), segments.to_vec(), memory)?;
            Ok(started.elapsed().as_secs_f64())
        };
        (0..options.repetitions.max(1)).map(run).collect::<Result<Vec<_>>>().map(|mut times| median(&mut times))
    };
    Ok(((time(&many)? - time(&many[..1])?) / (EXTENTS - 1) as f64).max(1e-7))
}

/// A scratch file that removes itself.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn create(near: &Path, options: &Options, progress: &mut dyn FnMut(&str, f64)) -> Result<Self> {
        let folder = if near.is_dir() {
            near
        } else {
            near.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
        };
        let path = folder.join(format!(".bifolio-calibrate-{}", std::process::id()));
        let create = std::fs::File::options().write(true).create_new(true).open(&path);
        let file = create.map_err(|error| Error::system(&path, "creating a scratch file", error))?;
        let scratch = Self { path };
        let bytes = options.bytes.max(BYTES_MIN);
        write_incompressible(&file, &scratch.path, bytes, options.seed, &mut |written| {
            progress("writing a scratch file", written as f64 / bytes as f64 / (PATHS.len() + 2) as f64);
        })?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
