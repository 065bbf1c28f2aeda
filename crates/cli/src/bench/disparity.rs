//! `bifolio bench disparity`: how near file transfers come to plain copies, over the four patterns and fourteen
//! request sizes of the `GPUdrive` paper (figures 6 and 8).
//!
//! The 100 % are plain copies between page-locked memory and the device, of the same size and as many
//! at a time. The simple program beside us is one thread with `pread` or `pwrite` of pageable memory
//! and a copy, one request at a time.

use super::html::{STYLE, escape};
use super::plots::{Series, percent_by_size};
use crate::args::{Args, RouterArgs};
use crate::exit::{Code, Failure};
use crate::progress::Progress;
use crate::read::{self, Checker, poison};
use crate::resources::{cpu_s_per_gb, cpu_seconds, gb_per_s};
use crate::{output, signals, size};
use bifolio_device::{Allocation, Device, DeviceSlice, EnergyMeter, open};
use bifolio_io::cache_state::{evict, load, look, write_incompressible};
use bifolio_io::stripe::create;
use bifolio_io::{Cancel, OpenFile, ReadOptions, Router, WriteOptions};
use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
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

/// Choices for `bench disparity`.
#[derive(Debug, ClapArgs)]
pub struct DisparityArgs {
    /// A folder in which a set is made and removed, or a striped set or file; downloads OVERWRITE it.
    pub target: PathBuf,
    /// Let downloads overwrite a set or file that exists.
    #[arg(long)]
    pub overwrite: bool,
    /// Members of the set that is made.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub members: u16,
    /// Its size.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Its chunks.
    #[arg(long, default_value = "512K", value_parser = size::parse, value_name = "SIZE")]
    pub chunk: u64,
    /// Requests at a time.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub in_flight: u16,
    /// Cache states.
    #[arg(long, value_delimiter = ',', default_value = "warm,cold", value_name = "LIST")]
    pub states: Vec<State>,
    /// Patterns of the paper: random and sequential upload, random and sequential download.
    #[arg(long, value_delimiter = ',', default_value = "rdrd,sqrd,rdwr,sqwr", value_name = "LIST")]
    pub patterns: Vec<Pattern>,
    /// Runs of each; the best counts.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Seconds of a run at most.
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    pub run_time: f64,
    /// Seed of content and places.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a report with plots, one self-contained HTML file.
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

/// What of the file is cached before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All of it.
    Warm,
    /// Nothing.
    Cold,
}

/// A pattern of the paper (section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
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

impl Pattern {
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
    state: State,
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

#[derive(Debug, Serialize)]
struct Results {
    machine: super::machine::Machine,
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

/// Files that remove themselves.
struct Scratch(Vec<PathBuf>);

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Measures and prints.
pub fn run(args: &Args, options: &DisparityArgs, cancel: &Cancel) -> Result<(), Failure> {
    let writes = options.patterns.iter().any(|pattern| !pattern.is_upload());
    if writes && !options.overwrite && !options.target.is_dir() {
        let detail = format!(
            "{}: downloads would overwrite it; name a folder, add --overwrite, or choose --patterns rdrd,sqrd",
            options.target.display()
        );
        return Err(Failure::new(Code::Usage, detail));
    }
    let device = open(args.device()?)?;
    let mut scratch = Scratch(vec![]);
    let name = if options.target.is_dir() { make_set(options, &mut scratch)? } else { options.target.clone() };
    let for_profile = read::open_file(&name, &device)?;
    let router = read::router(&device, &for_profile, &options.router, cancel)?;
    let bytes = for_profile.size()?;
    drop(for_profile);
    let largest = 1_u64 << SIZES.end();
    let memory = device.alloc(largest * u64::from(options.in_flight))?;
    let meter = device.energy_meter();
    let no_energy = meter.as_ref().err().map(ToString::to_string);
    let meter = meter.ok();
    let steps = options.patterns.len() * options.states.len() * SIZES.count();
    let progress = Progress::of_steps("starting", steps as u64);
    let mut rows = vec![];
    let mut layout = "a plain file".to_owned();
    for &pattern in &options.patterns {
        // While it is open for writing, nothing of it is kept registered.
        let file = if pattern.is_upload() { OpenFile::open(&name)? } else { OpenFile::open_for_writing(&name, false)? };
        if let Some(striping) = file.layout() {
            layout = format!("{} members, chunks of {}", striping.members(), size::exact(striping.chunk_bytes()));
        }
        for &state in &options.states {
            for shift in SIZES {
                signals::check(cancel)?;
                let request = 1_u64 << shift;
                progress.say(&format!("{}, {state:?}, {}", pattern.name(), size::exact(request)));
                progress.advance(1);
                if request > bytes || state == State::Cold && file.is_in_memory() {
                    continue;
                }
                let bench = Bench { options, device: &device, router: &router, file: &file, memory: &memory, bytes };
                rows.push(bench.measure(pattern, state, request, meter.as_ref())?);
            }
        }
    }
    drop(progress);
    let results = Results {
        machine: super::machine::describe(&device),
        file: name.display().to_string(),
        bytes,
        layout,
        in_flight: options.in_flight,
        repetitions: options.repetitions,
        seed: options.seed,
        no_energy,
        rows,
    };
    if let Some(out) = &options.html {
        let page = page(&results).map_err(|error| Failure::failed(format!("drawing the report failed: {error}")))?;
        std::fs::write(out, page)
            .map_err(|error| Failure::failed(format!("{}: writing the report failed: {error}", out.display())))?;
    }
    if args.json { output::json(&results) } else { output::text(&describe(&results)) }
}

fn make_set(options: &DisparityArgs, scratch: &mut Scratch) -> Result<PathBuf, Failure> {
    let at = |name: &str| options.target.join(format!(".bifolio-disparity-{}-{name}", std::process::id()));
    let members: Vec<_> = (0..options.members).map(|number| at(&number.to_string())).collect();
    let row = options.chunk * u64::from(options.members);
    let name = create(&at("set.toml"), options.chunk, options.size.next_multiple_of(row.max(1)), &members)?;
    scratch.0.extend(members.iter().cloned().chain([at("set.toml")]));
    for (number, path) in members.iter().enumerate() {
        let file = File::options().write(true).open(path);
        let file = file.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        write_incompressible(&file, path, bytes, options.seed + number as u64, &mut |_| {})?;
    }
    Ok(name.into())
}

struct Bench<'a> {
    options: &'a DisparityArgs,
    device: &'a Device,
    router: &'a Router,
    file: &'a OpenFile,
    memory: &'a Allocation,
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
    fn measure(
        &self,
        pattern: Pattern,
        state: State,
        request: u64,
        meter: Option<&EnergyMeter>,
    ) -> Result<Row, Failure> {
        let places = self.places(pattern, request);
        let rate = |taken: &Taken| gb_per_s(taken.bytes, taken.seconds);
        let better = |one: Option<Taken>, two: Taken| match one {
            Some(one) if rate(&one) >= rate(&two) => Some(one),
            _ => Some(two),
        };
        let (mut ours, mut simple, mut plain) = (None, None, 0.0_f64);
        for repetition in 0..self.options.repetitions {
            plain = plain.max(self.plain(pattern, request)?);
            self.set_up(state)?;
            ours = better(ours, self.ours(pattern, state, request, &places, meter)?);
            if repetition == 0 {
                self.verify(pattern, request, &places)?;
            }
            self.set_up(state)?;
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
            let mut state = self.options.seed;
            for last in (1..places.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                places.swap(last, ((state >> 20) % (last as u64 + 1)) as usize);
            }
        }
        places
    }

    fn set_up(&self, state: State) -> Result<(), Failure> {
        match state {
            State::Warm if look(self.file, 0..self.bytes)?.cached_bytes() < self.bytes => {
                load(self.file, 0..self.bytes)?;
            }
            State::Warm => {}
            State::Cold => evict(self.file, 0..self.bytes)?,
        }
        Ok(())
    }

    /// Plain copies of the same size, as many at a time: GB/s.
    fn plain(&self, pattern: Pattern, request: u64) -> Result<f64, Failure> {
        let count = (self.bytes.max(request) / request).clamp(16, 4096);
        let mut pinned = self.device.alloc_pinned(request as usize * usize::from(self.options.in_flight))?;
        let streams = (0..self.options.in_flight).map(|_| self.device.create_stream());
        let streams: Vec<_> = streams.collect::<Result<_, _>>()?;
        let mut best = 0.0_f64;
        for _ in 0..2 {
            let started = Instant::now();
            for number in 0..count {
                let lane = (number % streams.len() as u64) as usize;
                let place = self.lane(lane, request)?;
                let host = pinned.as_mut_ptr().wrapping_add(lane * request as usize);
                // SAFETY: buffer and memory outlive the synchronisation; every lane has its part.
                unsafe {
                    if pattern.is_upload() {
                        streams[lane].copy_to_device(place, host)?;
                    } else {
                        streams[lane].copy_to_host(host, place)?;
                    }
                }
            }
            streams.iter().try_for_each(bifolio_device::Stream::synchronize)?;
            best = best.max(gb_per_s(count * request, started.elapsed().as_secs_f64()));
        }
        Ok(best)
    }

    /// The part of device memory of one of the requests in flight.
    fn lane(&self, lane: usize, request: u64) -> Result<DeviceSlice<'_>, Failure> {
        let largest = 1_u64 << SIZES.end();
        Ok(self.memory.slice().part(lane as u64 * largest, request)?)
    }

    /// As many requests at a time as asked for, each by a thread of its own.
    fn ours(
        &self,
        pattern: Pattern,
        state: State,
        request: u64,
        places: &[u64],
        meter: Option<&EnergyMeter>,
    ) -> Result<Taken, Failure> {
        poison(self.device, self.memory.slice())?;
        let next = AtomicUsize::new(0);
        let limit = Duration::from_secs_f64(self.options.run_time.clamp(0.01, 60.0));
        let joules = || meter.and_then(|meter| meter.joules().ok());
        let (energy, cpu, started) = (joules(), cpu_seconds(), Instant::now());
        // What is warm stays so, and is gone over until the time is up.
        let again = state == State::Warm && places.len() > 2 * usize::from(self.options.in_flight);
        let lane = |lane: usize| -> Result<u64, Failure> {
            let place = self.lane(lane, request)?;
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
            let lane = &lane;
            let lanes: Vec<_> =
                (0..usize::from(self.options.in_flight)).map(|number| scope.spawn(move || lane(number))).collect();
            let panicked = || Failure::failed("a thread of the benchmark panicked");
            lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err(panicked()))).sum::<Result<u64, _>>()
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let joules = joules().zip(energy).map(|(after, before)| after - before);
        let joules = joules.filter(|_| seconds >= ENERGY_SECONDS_MIN);
        Ok(Taken { bytes: done, seconds, cpu_s: cpu_seconds() - cpu, joules })
    }

    fn one(&self, pattern: Pattern, offset: u64, place: DeviceSlice<'_>) -> Result<(), Failure> {
        if pattern.is_upload() {
            self.router.read(self.file, offset, Some(place.len()), place, &ReadOptions::default())?;
        } else {
            self.router.write(self.file, offset, place, &WriteOptions::default())?;
        }
        Ok(())
    }

    /// One more request of each kind, compared with the file byte by byte.
    fn verify(&self, pattern: Pattern, request: u64, places: &[u64]) -> Result<(), Failure> {
        let place = self.lane(0, request)?;
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
    fn simple(&self, pattern: Pattern, request: u64, places: &[u64]) -> Result<Taken, Failure> {
        let stream = self.device.create_stream()?;
        let mut host = vec![0x5a_u8; request as usize];
        let place = self.lane(0, request)?;
        let limit = Duration::from_secs_f64(self.options.run_time.clamp(0.01, 60.0));
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
    ) -> Result<(), Failure> {
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
            with(member.buffered(), &mut host[at..end], place)
                .map_err(|error| Failure::failed(format!("{}, offset {place}: {error}", member.path().display())))?;
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
        format!("{:?}", row.state).to_lowercase(),
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

fn describe(results: &Results) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(results.rows.iter().map(cells));
    format!("{}{}{PAPER}\n", head(results), output::columns(&rows, &[0, 1]))
}

fn page(results: &Results) -> Result<String, Box<dyn std::error::Error>> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>bifolio bench disparity</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>File transfers beside plain copies</h1>\n"
    );
    for line in head(results).lines() {
        let _ = writeln!(page, "<p class=\"quiet\">{}</p>", escape(line));
    }
    page.push_str("<div class=\"pair\">\n");
    for pattern in [Pattern::Rdrd, Pattern::Sqrd, Pattern::Rdwr, Pattern::Sqwr] {
        for state in [State::Warm, State::Cold] {
            let rows = || results.rows.iter().filter(move |row| row.pattern == pattern && row.state == state);
            if rows().next().is_none() {
                continue;
            }
            let series = |engine: &str, value: fn(&Row) -> f64| Series {
                engine: engine.to_owned(),
                points: rows().map(|row| (row.bytes, value(row))).collect(),
            };
            let both = [series("cached", |row| row.simple_reached), series("auto", |row| row.reached)];
            let state = format!("{state:?}").to_lowercase();
            let _ = write!(
                page,
                "<div class=\"card\"><h3>{}, {state}</h3>\n<p class=\"legend\"><span><i style=\"background:#d63c4a\"></i>\
                 bifolio</span><span><i style=\"background:#8fb8de\"></i>simple program</span><span>\
                 <i class=\"limit\"></i>plain copies</span></p>\n{}</div>\n",
                pattern.name(),
                percent_by_size("% of plain copies", &both)?
            );
        }
    }
    page.push_str("</div>\n<div class=\"card scroll\"><table>\n<tr>");
    for name in HEAD {
        let _ = write!(page, "<th>{name}</th>");
    }
    page.push_str("</tr>\n");
    for row in &results.rows {
        page.push_str("<tr>");
        for cell in cells(row) {
            let _ = write!(page, "<td>{}</td>", escape(&cell));
        }
        page.push_str("</tr>\n");
    }
    let _ = write!(page, "</table></div>\n<p class=\"quiet\">{}</p>\n</body>\n</html>\n", escape(PAPER));
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: DisparityArgs,
    }

    #[test]
    fn a_set_that_was_made_is_whole_and_goes_again() {
        let folder = tempfile::tempdir().unwrap();
        let line = ["x", folder.path().to_str().unwrap(), "--size", "1M", "--chunk", "64K", "--members", "3"];
        let options = Line::parse_from(line).options;
        let mut scratch = Scratch(vec![]);
        let name = make_set(&options, &mut scratch).unwrap();
        let file = OpenFile::open(&name).unwrap();
        assert!(file.size().unwrap() >= 1 << 20 && file.members().len() == 3);
        drop(scratch);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
