//! `bifolio calibrate`: measures every engine beside the user's data, prints the fitted model and
//! stores it.

use crate::exit::Failure;
use crate::global::Global;
use crate::output::columns;
use crate::progress::Progress;
use bifolio_bench::Session;
use bifolio_io::calibrate::{Options, calibrate};
use bifolio_io::profile::Curve;
use bifolio_io::{Cancel, Profile, Router, RouterOptions, size};
use clap::Args as ClapArgs;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The progress bar's resolution.
const STEPS: f64 = 1000.0;

/// Characters of the chart.
const CHART_WIDTH: usize = 64;
const CHART_HEIGHT: usize = 16;

/// Choices for `calibrate`.
#[derive(Debug, ClapArgs)]
pub struct CalibrateArgs {
    /// A folder, or a file in it: a scratch file is written there and removed.
    pub path: PathBuf,
    /// Bytes of the scratch file, at least 64M.
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
    /// Reads of each size; their median counts.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// Seed of the content and of the places read.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Measures, prints and stores.
pub fn run(global: &Global, options: &CalibrateArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    std::fs::metadata(&options.path).map_err(|error| absent(&options.path, &error))?;
    let router = Router::new(&device, RouterOptions { cancel: cancel.clone(), ..RouterOptions::default() });
    let measure = Options { bytes: options.size, repetitions: options.repetitions, seed: options.seed };
    let profile = {
        let session = Session::new(cancel.clone());
        let _progress = Progress::of_session(&session);
        let mut tell = |doing: &str, part: f64| session.set(doing, (part * STEPS) as u64, STEPS as u64);
        calibrate(&router, &options.path, &measure, &mut tell)?
    };
    let no_home = "there is no place to store the profile: set HOME or BIFOLIO_CACHE_DIR";
    let path = profile.default_path().ok_or_else(|| Failure::failed(no_home))?;
    profile.store(&path)?;
    global.answer(&profile, || {
        let stored = format!("stored in {}", path.display());
        format!("{}\n{}\n{stored}", describe(&profile, options), chart(&profile.curves))
    })
}

/// There is nothing to measure.
fn absent(path: &Path, error: &std::io::Error) -> Failure {
    let why = match error.kind() {
        ErrorKind::NotFound => "no such file or folder: create the folder, or name another one".to_owned(),
        _ => format!("cannot be looked at: {error}"),
    };
    Failure::failed(format!("{}: {why}", path.display()))
}

fn describe(profile: &Profile, options: &CalibrateArgs) -> String {
    let mut rows = vec![["", "path", "overhead us", "cutoff", "GB/s", "R^2"].map(str::to_owned).to_vec()];
    for (number, curve) in profile.curves.iter().enumerate() {
        let cost = curve.fit.cost;
        rows.push(vec![
            mark(number).to_string(),
            curve.name.clone(),
            format!("{:.1}", cost.overhead_s * 1e6),
            size::exact(cost.cutoff_bytes),
            format!("{:.2}", cost.bytes_per_s / 1e9),
            format!("{:.4}", curve.fit.r_squared),
        ]);
    }
    let mut text = format!("{}, file system {}\n", profile.device, profile.file_system);
    let (file, runs) = (size::exact(options.size), options.repetitions);
    let _ = writeln!(text, "scratch file {file}, medians of {runs}, seed {}\n", options.seed);
    text.push_str(&columns(&rows, &[0, 1]));
    let _ = writeln!(text, "each further direct extent costs {:.1} us", profile.costs.direct_extent_s * 1e6);
    text
}

/// The letter of a curve in the chart.
fn mark(number: usize) -> char {
    char::from(b'A' + number as u8)
}

/// Measured points (letters) and fitted lines (dots), time over size, both logarithmic.
fn chart(curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let span = |value: &dyn Fn(&bifolio_io::cost::Point) -> f64| {
        points().map(value).fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (left, right) = span(&|point| (point.bytes as f64).log2());
    let (low, high) = span(&|point| point.seconds.max(1e-9).log10());
    if left >= right || low >= high {
        return String::new();
    }
    let mut cells = vec![vec![' '; CHART_WIDTH]; CHART_HEIGHT];
    let column = |bytes: f64| ((bytes.log2() - left) / (right - left) * (CHART_WIDTH - 1) as f64).round() as usize;
    let mut put = |bytes: f64, seconds: f64, letter: char| {
        let height = (seconds.max(1e-9).log10() - low) / (high - low);
        let row = (CHART_HEIGHT - 1) as f64 * (1.0 - height.clamp(0.0, 1.0));
        cells[row.round() as usize][column(bytes).min(CHART_WIDTH - 1)] = letter;
    };
    for curve in curves {
        for step in 0..CHART_WIDTH {
            let bytes = (left + (right - left) * step as f64 / (CHART_WIDTH - 1) as f64).exp2();
            put(bytes, curve.fit.cost.seconds(bytes as u64), '·');
        }
    }
    for (number, curve) in curves.iter().enumerate() {
        for point in &curve.points {
            put(point.bytes as f64, point.seconds, mark(number));
        }
    }
    framed(&cells, (left, right), (low, high))
}

fn framed(cells: &[Vec<char>], (left, right): (f64, f64), (low, high): (f64, f64)) -> String {
    let mut text = String::new();
    for (number, row) in cells.iter().enumerate() {
        let seconds = 10_f64.powf(high - (high - low) * number as f64 / (CHART_HEIGHT - 1) as f64);
        let label = if number % 5 == 0 { duration(seconds) } else { String::new() };
        let line: String = row.iter().collect();
        let _ = writeln!(text, "{label:>9} │{}", line.trim_end());
    }
    let _ = writeln!(text, "{:>9} └{}", "", "─".repeat(CHART_WIDTH));
    let ends = [left, right].map(|log| size::exact(log.exp2().round() as u64));
    let gap = CHART_WIDTH.saturating_sub(ends[0].len() + ends[1].len());
    let _ = writeln!(text, "{:>9}  {}{}{}", "", ends[0], " ".repeat(gap), ends[1]);
    text
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_io::EngineKind;
    use bifolio_io::cost::{Point, fit};

    #[test]
    fn what_is_not_there_is_no_matter_of_the_device() {
        let error = absent(Path::new("/data/gone"), &std::io::Error::from_raw_os_error(libc::ENOENT));
        let expected = "/data/gone: no such file or folder: create the folder, or name another one";
        assert!(error.message().contains(expected), "{}", error.message());
        let error = absent(Path::new("/data/file/in"), &std::io::Error::from_raw_os_error(libc::ENOTDIR));
        assert!(error.message().contains("/data/file/in: cannot be looked at: "), "{}", error.message());
    }

    #[test]
    fn a_chart_shows_every_curve_inside_its_frame() {
        let points: Vec<_> =
            (12..27).map(|log| Point { bytes: 1 << log, seconds: 1e-5 + (1_u64 << log) as f64 / 5e9 }).collect();
        let fit = fit(&points).unwrap();
        let curves = ["cached", "direct"].map(|name| Curve {
            name: name.to_owned(),
            engine: EngineKind::Cached,
            points: points.clone(),
            fit,
        });
        let text = chart(&curves);
        assert_eq!(text.lines().count(), CHART_HEIGHT + 2);
        assert!(text.contains('B') && text.lines().all(|line| line.chars().count() <= CHART_WIDTH + 11), "{text}");
        assert!(text.contains("4K") && text.contains("64M"));
        assert!(chart(&[]).is_empty());
    }
}
