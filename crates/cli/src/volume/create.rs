//! `bifolio volume create`: new volumes. What is there already is overwritten only where that is asked for.

use super::force::ForceArgs;
use crate::exit::{Code, Failure};
use crate::global::Global;
use crate::output::printable;
use crate::secret;
use bifolio_io::{Cancel, size};
use bifolio_volume::signatures::{self, Found};
use bifolio_volume::{BlockDevice, FileDevice, FormatOptions, Luks, LuksInfo, Pbkdf, RoutedFile};
use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Choices for `volume create luks2`.
#[derive(Debug, ClapArgs)]
pub struct Luks2Args {
    /// Image file, or block device.
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// Bytes of a new image file, of which the header takes 16 MiB.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: Option<u64>,
    /// The file's content becomes the passphrase, all bytes of it; - is standard input [default: ask].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Bytes of an encrypted sector: 512, 1024, 2048 or 4096.
    #[arg(long, default_value = "4096", value_name = "BYTES", value_parser = one_of(&["512", "1024", "2048", "4096"]))]
    pub sector_size: u32,
    /// Bits of the volume key: 256 (AES-128) or 512 (AES-256).
    #[arg(long, default_value = "512", value_name = "BITS", value_parser = one_of(&["256", "512"]))]
    pub key_size: u32,
    /// A name, which can be read without the key.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Memory that a try of a passphrase takes, in KiB.
    #[arg(long, default_value_t = 1 << 20, value_name = "KIB", value_parser = clap::value_parser!(u32).range(32..=4 << 20))]
    pub pbkdf_memory: u32,
    /// Milliseconds that a try of a passphrase takes here.
    #[arg(long, default_value_t = 2000, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    pub iter_time: u32,
    /// Passes over the memory, instead of a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..))]
    pub pbkdf_force_iterations: Option<u32>,
    /// Threads that a try of a passphrase uses.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4))]
    pub pbkdf_parallel: u32,
    /// What may be lost.
    #[command(flatten)]
    pub force: ForceArgs,
}

#[derive(Debug, Serialize)]
struct Created<'a> {
    image: &'a Path,
    #[serde(flatten)]
    volume: &'a LuksInfo,
}

/// Makes a LUKS2 volume.
pub fn run(global: &Global, options: &Luks2Args, cancel: &Cancel) -> Result<(), Failure> {
    let is_new = prepare(options)?;
    let made = make(options, is_new, cancel);
    if made.is_err() && is_new {
        // Nothing of use is in it.
        let _ = std::fs::remove_file(&options.image);
    }
    let info = made?;
    global.answer(&Created { image: &options.image, volume: &info }, || {
        let bytes = size::exact(info.payload_bytes.unwrap_or(0));
        let line = format!("{}: LUKS2 volume {} of {bytes}", options.image.display(), info.uuid);
        printable(&line).into_owned()
    })
}

/// Makes the image file, if it is not there; whether it did.
fn prepare(options: &Luks2Args) -> Result<bool, Failure> {
    let image = &options.image;
    let failed = |doing: &str, error| Failure::failed(format!("{}: {doing} failed: {error}", image.display()));
    let exists = image.try_exists().map_err(|error| failed("looking for it", error))?;
    match (exists, options.size) {
        (false, None) => {
            let detail = "there is no such file; --size makes one";
            Err(Failure::new(Code::Usage, format!("{}: {detail}", image.display())))
        }
        (false, Some(size)) => {
            let file = File::create_new(image).map_err(|error| failed("creating it", error))?;
            if let Err(error) = file.set_len(size) {
                let _ = std::fs::remove_file(image);
                return Err(failed("setting its size", error));
            }
            Ok(true)
        }
        (true, _) => Ok(false),
    }
}

/// Refuses where something would be lost that was not named, be it by cutting the file.
fn refuse_losses(options: &Luks2Args, device: &FileDevice) -> Result<(), Failure> {
    let mut found = signatures::look(device)?;
    let size = device.geometry().size;
    found.extend(options.size.filter(|new| *new < size).map(|new| Found::beyond(new, size)));
    Ok(signatures::refuse(&[(device.name(), found)], &options.force.overwrite())?)
}

fn make(options: &Luks2Args, is_new: bool, cancel: &Cancel) -> Result<LuksInfo, Failure> {
    let device = FileDevice::open(&options.image, true)?;
    device.claim()?;
    if !is_new {
        refuse_losses(options, &device)?;
    }
    let image = options.image.display().to_string();
    let secret = match &options.key_file {
        Some(file) => secret::key(Some(file), "")?,
        None => secret::ask_twice(&format!("New passphrase of {}", printable(&image)))?,
    };
    if secret.is_empty() {
        return Err(Failure::new(Code::Usage, "the passphrase has no bytes; give another one"));
    }
    let before = device.geometry().size;
    let size = options.size.unwrap_or(before);
    let failed = |error| Failure::failed(format!("{}: setting its size failed: {error}", options.image.display()));
    let file = device.file().try_clone().map_err(failed)?;
    if size > before {
        file.set_len(size).map_err(failed)?;
    }
    let device = FileDevice::of_file(file.try_clone().map_err(failed)?, &options.image, true)?.cut_at(size);
    let made = Luks::format_until(Arc::new(RoutedFile::new(device)), &secret, &format_options(options), Some(cancel));
    // What is to be cut stays until there is something in its place; what was added goes if there is nothing.
    match &made {
        Ok(_) if size < before => file.set_len(size).map_err(failed)?,
        Err(_) if size > before => file.set_len(before).map_err(failed)?,
        _ => {}
    }
    Ok(made?.info().clone())
}

fn format_options(options: &Luks2Args) -> FormatOptions {
    let pbkdf = Pbkdf {
        time_ms: options.iter_time,
        iterations: options.pbkdf_force_iterations,
        memory_kib: options.pbkdf_memory,
        threads: options.pbkdf_parallel,
    };
    FormatOptions { key_bits: options.key_size, sector_bytes: options.sector_size, pbkdf, label: options.label.clone() }
}

/// A number among a few.
fn one_of(allowed: &'static [&'static str]) -> impl TypedValueParser<Value = u32> {
    PossibleValuesParser::new(allowed).map(|text| text.parse().expect("all are numbers"))
}
