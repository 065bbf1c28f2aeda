//! How near file transfers come to plain copies, over the four patterns and fourteen
//! request sizes of the `GPUdrive` paper (figures 6 and 8).
//!
//! The 100 % are plain copies between page-locked memory and the device, of the same size and as many
//! at a time. The simple program beside us is one thread with `pread` or `pwrite` of pageable memory
//! and a copy, one request at a time.

use crate::error::{Error, ErrorKind, Result};
use crate::harness::cache_state::CacheState;
use crate::harness::machine::{self, Machine};
use crate::harness::page::{card, legend, quiet};
use crate::harness::plots::{Series, colour_of, percent_by_size};
use crate::harness::report::{Measured, Page, Report};
use crate::harness::router::{RouterSettings, open_file};
use crate::harness::scratch::Scratch;
use crate::harness::session::Session;
use crate::harness::table::Table;
use crate::harness::usage::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use crate::harness::verify::{Checker, poison};
use bifolio_device::{Allocation, Device, DeviceSlice, EnergyMeter};
use bifolio_io::cache_state::write_incompressible;
use bifolio_io::stripe::create;
use bifolio_io::{OpenFile, ReadOptions, Router, WriteOptions, size};
use fastrand::Rng;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The paper's sizes: 4 KiB to 32 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 12..=25;

/// Energy counters move some ten times a second: what they say of shorter runs is left out.
const ENERGY_SECONDS_MIN: f64 = 0.4;

/// What the paper's text says of its figures; their curves are not given as numbers.
const PAPER: &str = "The paper (text of sections 3 and 4): a RAID-0 of hard disks reaches 1 to 4 % of the copy rate at 4K to \
256K, and 20 and 25 % (random and sequential upload) at large sizes; GPUdrive takes away 90 and 92 % of the upload disparity \
with large requests. Download: the disks reach 1 to 30 %; GPUdrive closes the gap for sequential requests of 32M, and less \
for random ones.";

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// A folder in which a set is made and removed, or a striped set or file; downloads overwrite it.
    pub target: PathBuf,
    /// Let downloads overwrite a set or file that exists.
    pub overwrite: bool,
    /// Members of the set that is made.
    pub members: u16,
    /// Its size.
    pub bytes: u64,
    /// Its chunks.
    pub chunk_bytes: u64,
    /// Requests at a time.
    pub in_flight: u16,
    /// Cache states.
    pub states: Vec<CacheState>,
    /// Patterns of the paper.
    pub patterns: Vec<Pattern>,
    /// Runs of each; the best counts.
    pub repetitions: u32,
    /// The time of a run at most.
    pub run_time: Duration,
    /// Seed of content and places.
    pub seed: u64,
    /// The router.
    pub router: RouterSettings,
}

/// A pattern of the paper (section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Random upload, bench-rdrd.
    Rdrd,
    /// Sequential upload, bench-sqrd.
    Sqrd,
    /// Random download, bench-rdwr.
    Rdwr,
    /// Sequential download, bench-sqwr.
    Sqwr,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "rdrd" => Ok(Self::Rdrd),
            "sqrd" => Ok(Self::Sqrd),
            "rdwr" => Ok(Self::Rdwr),
            "sqwr" => Ok(Self::Sqwr),
            _ => Err(format!("\"{text}\" is not a pattern: use rdrd, sqrd, rdwr or sqwr")),
        }
    }
}

impl Pattern {
    const ALL: [Self; 4] = [Self::Rdrd, Self::Sqrd, Self::Rdwr, Self::Sqwr];

    fn name(self) -> &'static str {
        match self {
            Self::Rdrd => "random upload",
            Self::Sqrd => "sequential upload",
            Self::Rdwr => "random download",
            Self::Sqwr => "sequential download",
        }
    }

    fn is_upload(self) -> bool {
        matches!(self, Self::Rdrd | Self::Sqrd)
    }

    fn is_random(self) -> bool {
        matches!(self, Self::Rdrd | Self::Rdwr)
    }
}

#[derive(Debug, Serialize)]
struct Row {
    pattern: Pattern,
    state: CacheState,
    bytes: u64,
    plain_gb_per_s: f64,
    gb_per_s: f64,
    /// Percent of the plain copy rate.
    reached: f64,
    /// What is missing to 100 %, 0 where nothing is.
    disparity: f64,
    simple_reached: f64,
    cpu_s_per_gb: f64,
    joules_per_gb: Option<f64>,
    watts: Option<f64>,
    verified: bool,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    machine: Machine,
    file: String,
    bytes: u64,
    layout: String,
    in_flight: u16,
    repetitions: u32,
    seed: u64,
    /// Why there is no energy; none where there is.
    no_energy: Option<String>,
    rows: Vec<Row>,
}

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let is_folder = options.target.is_dir();
    let writes = options.patterns.iter().any(|pattern| !pattern.is_upload());
    if writes && !options.overwrite && !is_folder {
        let detail = "downloads would overwrite it; name a folder, add --overwrite, or choose --patterns rdrd,sqrd";
        return Err(Error::new(ErrorKind::BadUse, options.target.display(), detail));
    }
    let mut scratch = Scratch::default();
    let name = if is_folder { make_set(options, &mut scratch)? } else { options.target.clone() };
    let file = open_file(&name, device)?;
    let router = options.router.router(device, &file, session.cancel())?;
    let bytes = file.size()?;
    let layout = file.layout().map_or_else(
        || "a plain file".to_owned(),
        |layout| format!("{} members, chunks of {}", layout.members(), size::exact(layout.chunk_bytes())),
    );
    drop(file);
    let meter = device.energy_meter();
    let no_energy = meter.as_ref().err().map(ToString::to_string);
    let mut rows = vec![];
    let ended = measure(&name, device, &router, (options, meter.ok().as_ref()), session, &mut rows);
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(device),
        file: name.display().to_string(),
        bytes,
        layout,
        in_flight: options.in_flight,
        repetitions: options.repetitions,
        seed: options.seed,
        no_energy,
        rows,
    })
}

fn measure(
    name: &Path,
    device: &Device,
    router: &Router,
    (options, meter): (&Options, Option<&EnergyMeter>),
    session: &Session,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let largest = 1_u64 << SIZES.end();
    let memory = device.alloc(largest * u64::from(options.in_flight))?;
    session.begin("starting", (options.patterns.len() * options.states.len() * SIZES.count()) as u64);
    for &pattern in &options.patterns {
        // While it is open for writing, nothing of it is kept registered.
        let file = if pattern.is_upload() { OpenFile::open(name)? } else { OpenFile::open_for_writing(name, false)? };
        let bytes = file.size()?;
        for &state in &options.states {
            for shift in SIZES {
                let request = 1_u64 << shift;
                session.say(&format!("{}, {state}, {}", pattern.name(), size::exact(request)));
                if request <= bytes && state.is_possible(&file) {
                    let bench = Bench { session, options, device, router, file: &file, memory: &memory, meter, bytes };
                    rows.push(bench.measure(pattern, state, request)?);
                }
                session.advance(1);
            }
        }
    }
    Ok(())
}

fn make_set(options: &Options, scratch: &mut Scratch) -> Result<PathBuf> {
    let at = |name: &str| options.target.join(format!(".bifolio-disparity-{}-{name}", std::process::id()));
    let members: Vec<_> = (0..options.members).map(|number| at(&number.to_string())).collect();
    let row = options.chunk_bytes * u64::from(options.members);
    let bytes = options.bytes.next_multiple_of(row.max(1));
    let name = create(&at("set.toml"), options.chunk_bytes, bytes, &members)?;
    members.iter().cloned().chain([at("set.toml")]).for_each(|path| scratch.add(path));
    for (number, path) in members.iter().enumerate() {
        let file = File::options().write(true).open(path);
        let file = file.map_err(|error| Error::system(path.display(), "opening it", error))?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        write_incompressible(&file, path, bytes, options.seed + number as u64, &mut |_| {})?;
    }
    Ok(name.into())
}

struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    device: &'a Device,
    router: &'a Router,
    file: &'a OpenFile,
    memory: &'a Allocation,
    meter: Option<&'a EnergyMeter>,
    bytes: u64,
}

/// One run: bytes and seconds.
#[derive(Clone, Copy)]
struct Taken {
    bytes: u64,
    seconds: f64,
    cpu_s: f64,
    joules: Option<f64>,
}

impl Bench<'_> {
    fn measure(&self, pattern: Pattern, state: CacheState, request: u64) -> Result<Row> {
        let places = self.places(pattern, request);
        let rate = |taken: &Taken| gb_per_s(taken.bytes, taken.seconds);
        let better = |one: Option<Taken>, two: Taken| match one {
            Some(one) if rate(&one) >= rate(&two) => Some(one),
            _ => Some(two),
        };
        let (mut ours, mut simple, mut plain) = (None, None, 0.0_f64);
        for repetition in 0..self.options.repetitions {
            self.session.check()?;
            plain = plain.max(self.plain(pattern, request)?);
            state.set_up(self.file)?;
            ours = better(ours, self.ours(pattern, state, request, &places)?);
            if repetition == 0 {
                self.verify(pattern, request, &places)?;
            }
            state.set_up(self.file)?;
            simple = better(simple, self.simple(pattern, request, &places)?);
        }
        let none = Taken { bytes: 0, seconds: 0.0, cpu_s: 0.0, joules: None };
        let (ours, simple) = (ours.unwrap_or(none), simple.unwrap_or(none));
        let reached = rate(&ours) / plain * 100.0;
        Ok(Row {
            pattern,
            state,
            bytes: request,
            plain_gb_per_s: plain,
            gb_per_s: rate(&ours),
            reached,
            disparity: (100.0 - reached).max(0.0),
            simple_reached: rate(&simple) / plain * 100.0,
            cpu_s_per_gb: cpu_s_per_gb(ours.bytes, ours.cpu_s),
            joules_per_gb: ours.joules.map(|joules| joules / (ours.bytes as f64 / 1e9)),
            watts: ours.joules.map(|joules| joules / ours.seconds),
            verified: true,
        })
    }

    /// Where requests are: all of the file, or as many as a run makes.
    fn places(&self, pattern: Pattern, request: u64) -> Vec<u64> {
        let mut places: Vec<u64> = (0..(self.bytes / request).min(1 << 16)).map(|number| number * request).collect();
        if pattern.is_random() {
            Rng::with_seed(self.options.seed).shuffle(&mut places);
        }
        places
    }

    /// Plain copies of the same size, as many at a time: GB/s.
    fn plain(&self, pattern: Pattern, request: u64) -> Result<f64> {
        let count = (self.bytes.max(request) / request).clamp(16, 4096);
        let mut pinned = self.device.alloc_pinned(request as usize * usize::from(self.options.in_flight))?;
        let streams = (0..self.options.in_flight).map(|_| self.device.create_stream());
        let streams: Vec<_> = streams.collect::<Result<_, _>>()?;
        let mut best = 0.0_f64;
        for _ in 0..2 {
            let started = Instant::now();
            for number in 0..count {
                let stream = (number % streams.len() as u64) as usize;
                let place = self.place(stream, request)?;
                let host = pinned.as_mut_ptr().wrapping_add(stream * request as usize);
                // SAFETY: buffer and memory outlive the synchronisation; every stream has its part.
                unsafe {
                    if pattern.is_upload() {
                        streams[stream].copy_to_device(place, host)?;
                    } else {
                        streams[stream].copy_to_host(host, place)?;
                    }
                }
            }
            streams.iter().try_for_each(bifolio_device::Stream::synchronize)?;
            best = best.max(gb_per_s(count * request, started.elapsed().as_secs_f64()));
        }
        Ok(best)
    }

    /// The part of device memory of one of the requests in flight.
    fn place(&self, number: usize, request: u64) -> Result<DeviceSlice<'_>> {
        let largest = 1_u64 << SIZES.end();
        Ok(self.memory.slice().part(number as u64 * largest, request)?)
    }

    /// As many requests at a time as asked for, each by a thread of its own.
    fn ours(&self, pattern: Pattern, state: CacheState, request: u64, places: &[u64]) -> Result<Taken> {
        poison(self.device, self.memory.slice())?;
        let next = AtomicUsize::new(0);
        let limit = self.options.run_time;
        let joules = || self.meter.and_then(|meter| meter.joules().ok());
        let (energy, cpu, started) = (joules(), cpu_seconds(), Instant::now());
        // What is warm stays so, and is gone over until the time is up.
        let again = state == CacheState::Warm && places.len() > 2 * usize::from(self.options.in_flight);
        let requests = |number: usize| -> Result<u64> {
            let place = self.place(number, request)?;
            let mut done = 0;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= places.len() && !again {
                    break;
                }
                self.one(pattern, places[number % places.len()], place)?;
                done += request;
                if started.elapsed() > limit {
                    break;
                }
            }
            Ok(done)
        };
        let done = std::thread::scope(|scope| {
            let requests = &requests;
            let threads: Vec<_> =
                (0..usize::from(self.options.in_flight)).map(|number| scope.spawn(move || requests(number))).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.sum::<Result<u64>>()
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let joules = joules().zip(energy).map(|(after, before)| after - before);
        let joules = joules.filter(|_| seconds >= ENERGY_SECONDS_MIN);
        Ok(Taken { bytes: done, seconds, cpu_s: cpu_seconds() - cpu, joules })
    }

    fn one(&self, pattern: Pattern, offset: u64, place: DeviceSlice<'_>) -> Result<()> {
        if pattern.is_upload() {
            self.router.read(self.file, offset, Some(place.len()), place, &ReadOptions::default())?;
        } else {
            self.router.write(self.file, offset, place, &WriteOptions::default())?;
        }
        Ok(())
    }

    /// One more request of each kind, compared with the file byte by byte.
    fn verify(&self, pattern: Pattern, request: u64, places: &[u64]) -> Result<()> {
        let place = self.place(0, request)?;
        for &offset in &places[..places.len().min(4)] {
            if pattern.is_upload() {
                poison(self.device, place)?;
            }
            self.one(pattern, offset, place)?;
            Checker::new(self.router, self.file)?.compare_all(place, offset)?;
        }
        Ok(())
    }

    /// What a program without a library does.
    fn simple(&self, pattern: Pattern, request: u64, places: &[u64]) -> Result<Taken> {
        let stream = self.device.create_stream()?;
        let mut host = vec![0x5a_u8; request as usize];
        let place = self.place(0, request)?;
        let limit = self.options.run_time;
        let (cpu, started) = (cpu_seconds(), Instant::now());
        let mut done = 0;
        for &offset in places {
            if pattern.is_upload() {
                self.each_piece(offset, &mut host, FileExt::read_exact_at)?;
                stream.upload(place, &host)?;
            } else {
                stream.download(&mut host, place)?;
                self.each_piece(offset, &mut host, |file, part, at| file.write_all_at(part, at))?;
            }
            done += request;
            if started.elapsed() > limit {
                break;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Taken { bytes: done, seconds, cpu_s: cpu_seconds() - cpu, joules: None })
    }

    /// Calls `with` for the members' pieces of a request.
    fn each_piece(
        &self,
        offset: u64,
        host: &mut [u8],
        with: impl Fn(&File, &mut [u8], u64) -> std::io::Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < host.len() {
            let (member, place, run) = match self.file.layout() {
                None => (0, offset + at as u64, u64::MAX),
                Some(layout) => {
                    let (member, place) = layout.locate(offset + at as u64);
                    (member, place, layout.run_at(place))
                }
            };
            let end = host.len().min(at.saturating_add(usize::try_from(run).unwrap_or(usize::MAX)));
            let member = &self.file.members()[member];
            with(member.buffered(), &mut host[at..end], place).map_err(|error| {
                Error::system(format!("{}, offset {place}", member.path().display()), "moving bytes", error)
            })?;
            at = end;
        }
        Ok(())
    }
}

fn head(results: &Results) -> String {
    format!(
        "{}\n{}: {}, {}; {} requests at a time, best of {} runs, seed {}; the first of every line compared with the file\n{}",
        results.machine,
        results.file,
        size::human(results.bytes),
        results.layout,
        results.in_flight,
        results.repetitions,
        results.seed,
        results.no_energy.as_ref().map_or_else(String::new, |reason| format!("no energy: {reason}\n"))
    )
}

const HEAD: [&str; 10] =
    ["pattern", "state", "request", "plain GB/s", "GB/s", "reached", "disparity", "simple program", "CPU s/GB", "W"];

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.pattern.name().to_owned(),
        row.state.to_string(),
        size::exact(row.bytes),
        format!("{:.2}", row.plain_gb_per_s),
        format!("{:.3}", row.gb_per_s),
        format!("{:.1} %", row.reached),
        format!("{:.1} %", row.disparity),
        format!("{:.1} %", row.simple_reached),
        format!("{:.3}", row.cpu_s_per_gb),
        row.watts.map_or_else(|| "n/a".to_owned(), |watts| format!("{watts:.0}")),
    ]
}

impl Results {
    fn table(&self) -> Table {
        Table::new(HEAD, &[0, 1]).with(self.rows.iter().map(cells))
    }
}

impl Report for Results {
    fn text(&self) -> String {
        format!("{}{}{PAPER}\n", head(self), self.table().text())
    }
}

impl Page for Results {
    const TITLE: &'static str = "bifolio bench disparity";

    fn body(&self) -> Result<String, Box<dyn std::error::Error>> {
        let mut body = format!("<h1>File transfers beside plain copies</h1>\n{}", quiet(head(self).lines()));
        body.push_str("<div class=\"pair\">\n");
        for pattern in Pattern::ALL {
            for state in [CacheState::Warm, CacheState::Cold] {
                let rows = || self.rows.iter().filter(move |row| row.pattern == pattern && row.state == state);
                if rows().next().is_none() {
                    continue;
                }
                let series = |engine: &str, value: fn(&Row) -> f64| Series {
                    engine: engine.to_owned(),
                    points: rows().map(|row| (row.bytes, value(row))).collect(),
                };
                let both = [series("cached", |row| row.simple_reached), series("auto", |row| row.reached)];
                let colours = [("bifolio", colour_of("auto")), ("simple program", colour_of("cached"))];
                let title = format!("{}, {state}", pattern.name());
                let plot = percent_by_size("% of plain copies", &both)?;
                body.push_str(&card(&title, &legend(colours, Some("plain copies")), &plot));
            }
        }
        body.push_str("</div>\n");
        body.push_str(&card("All numbers", "", &self.table().html()));
        Ok(body + &quiet([PAPER]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_was_made_is_whole_and_goes_again() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            target: folder.path().to_owned(),
            overwrite: false,
            members: 3,
            bytes: 1 << 20,
            chunk_bytes: 64 << 10,
            in_flight: 1,
            states: vec![],
            patterns: vec![],
            repetitions: 1,
            run_time: Duration::ZERO,
            seed: 1,
            router: RouterSettings::default(),
        };
        let mut scratch = Scratch::default();
        let name = make_set(&options, &mut scratch).unwrap();
        let file = OpenFile::open(&name).unwrap();
        assert!(file.size().unwrap() >= 1 << 20 && file.members().len() == 3);
        drop(scratch);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
