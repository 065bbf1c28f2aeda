//! `bifolio read --volume IMG...`: the plain content of a volume into device memory. What is stored crosses the
//! link, and is decrypted and recovered where it lands. So are files of encrypted directories.

use super::args::ReadArgs;
use super::check::{Wanted, check_content};
use super::run::{Run, describe_runs};
use crate::exit::Failure;
use crate::global::Global;
use crate::progress::Progress;
use crate::{secret, signals, volume};
use bifolio_bench::harness::usage::cpu_seconds;
use bifolio_bench::harness::verify::{Content, poison};
use bifolio_crypt::{CryptDevice, Key};
use bifolio_device::{DeviceId, DeviceSlice};
use bifolio_io::{Cancel, OpenFile, Router};
use bifolio_volume::{BlockDevice, Layer, Load, Loader, Sealed};
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

/// The whole answer, as JSON: the best run, and what was checked after the last.
#[derive(Debug, Serialize)]
struct Answer {
    volume: String,
    device: DeviceId,
    bytes: u64,
    #[serde(flatten)]
    best: Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    layers: Vec<Layer>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs: Vec<Run>,
}

/// What device memory is compared with: the same volume, decrypted by the CPU.
struct ByCpu<'a>(&'a dyn BlockDevice);

impl Content for ByCpu<'_> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> bifolio_bench::Result<usize> {
        self.0.read(offset, buffer)?;
        Ok(buffer.len())
    }
}

/// Reads, checks, and prints.
pub fn run(global: &Global, options: &ReadArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = global.device()?;
    let Source { content, layers, costs_of } = open_content(options, cancel)?;
    let router = Arc::new(options.router.settings().router(&device, &costs_of, cancel)?);
    let length = length_of(&*content, options)?;
    let memory = device.alloc(length)?;
    let mut runs = vec![];
    for _ in 0..options.repeat {
        signals::check(cancel)?;
        poison(&device, memory.slice())?;
        runs.push(load_once(&router, &*content, options, memory.slice(), cancel)?);
    }
    let wanted = Wanted { sha256: options.sha256, compare: options.verify };
    let checked = check_content(&device, ByCpu(&*content), memory.slice(), options.offset, wanted, cancel)?;
    let Some(best) = runs.iter().copied().min_by(|one, other| one.seconds.total_cmp(&other.seconds)) else {
        return Err(Failure::failed("nothing was read"));
    };
    let answer = Answer {
        volume: content.name(),
        device: device.id(),
        bytes: length,
        best,
        sha256: checked.sha256,
        verified: options.verify.then_some(true),
        layers,
        runs: if runs.len() > 1 { runs } else { vec![] },
    };
    global.answer(&answer, || describe(&answer, options.explain))
}

/// What is read.
struct Source {
    content: Arc<dyn Load>,
    layers: Vec<Layer>,
    /// A file whose costs stand for those of all that the content lies in.
    costs_of: OpenFile,
}

fn open_content(options: &ReadArgs, cancel: &Cancel) -> Result<Source, Failure> {
    if let Some(first) = options.volume.first() {
        let opened = volume::open(&options.volume, &options.key, false, cancel)?;
        let costs_of = OpenFile::open(first)?;
        return Ok(Source { content: opened.device, layers: opened.layers, costs_of });
    }
    let passphrase = match &options.key.key_file {
        Some(file) => secret::first_line(file)?,
        None => secret::ask("Passphrase")?,
    };
    let path = options.file().to_owned();
    let open = move || CryptDevice::open_path(&path, &Key::Passphrase(&passphrase));
    let file = signals::until_interrupted(cancel, open)??;
    let costs_of = OpenFile::open(file.stored_at())?;
    Ok(Source { content: Arc::new(Sealed::of(file)?), layers: vec![], costs_of })
}

/// Bytes that the request means, which is refused if it begins behind the end.
fn length_of(content: &dyn BlockDevice, options: &ReadArgs) -> Result<u64, Failure> {
    let size = content.geometry().size;
    let Some(left) = size.checked_sub(options.offset) else {
        let detail = format!("its content has {size} bytes, none at offset {}", options.offset);
        return Err(Failure::failed(format!("{}: {detail}", content.name())));
    };
    Ok(options.length.unwrap_or(left).min(left))
}

fn load_once(
    router: &Arc<Router>,
    content: &dyn Load,
    options: &ReadArgs,
    memory: DeviceSlice<'_>,
    cancel: &Cancel,
) -> Result<Run, Failure> {
    let progress = Progress::of_bytes("reading", memory.len());
    let loader = Loader::new(Arc::clone(router), options.request(&progress, cancel));
    let (before, started) = (cpu_seconds(), Instant::now());
    let loaded = content.load(&loader, options.offset, memory);
    volume::complain(content);
    loaded?;
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - before);
    Ok(Run::new(memory.len(), seconds, cpu))
}

fn describe(answer: &Answer, with_layers: bool) -> String {
    let mut text = describe_runs(&answer.volume, (answer.bytes, answer.device), answer.best, &answer.runs);
    if let Some(sha256) = &answer.sha256 {
        let _ = writeln!(text, "sha256 {sha256} (of device memory)");
    }
    if answer.verified.is_some() {
        let _ = writeln!(text, "verified: device memory and what the CPU decrypts are the same");
    }
    if with_layers {
        answer.layers.iter().for_each(|layer| text.push_str(&volume::describe(layer)));
    }
    text
}
