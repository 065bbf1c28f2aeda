//! `bifolio volume create`: new volumes. What is there already is overwritten only where that is asked for.

use super::Luks2Args;
use crate::args::Args;
use crate::exit::{Code, Failure};
use crate::{output, secret, size};
use bifolio_io::Cancel;
use bifolio_volume::{BlockDevice, FileDevice, FormatOptions, Luks, LuksInfo, Pbkdf};
use serde::Serialize;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// How much of the start is looked at: signatures of volumes, file systems and partitions lie there.
const LOOK_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize)]
struct Created<'a> {
    image: &'a Path,
    #[serde(flatten)]
    volume: &'a LuksInfo,
}

/// Makes a LUKS2 volume.
pub fn run(args: &Args, options: &Luks2Args, cancel: &Cancel) -> Result<(), Failure> {
    let is_new = prepare(options)?;
    let made = make(options, cancel);
    if made.is_err() && is_new {
        // Nothing of use is in it.
        let _ = std::fs::remove_file(&options.image);
    }
    let info = made?;
    if args.json {
        return output::json(&Created { image: &options.image, volume: &info });
    }
    let bytes = size::exact(info.payload_bytes.unwrap_or(0));
    let line = format!("{}: LUKS2 volume {} of {bytes}", options.image.display(), info.uuid);
    output::text(&output::printable(&line))
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
                return Err(failed("giving it its size", error));
            }
            Ok(true)
        }
        (true, size) => refuse_used(options, size).map(|()| false),
    }
}

fn refuse_used(options: &Luks2Args, size: Option<u64>) -> Result<(), Failure> {
    if options.force {
        return Ok(());
    }
    let device = FileDevice::open(&options.image, false)?;
    let what = if size.is_some_and(|size| size < device.geometry().size) {
        "it is longer than that, and would be cut"
    } else if Luks::is_luks(&device).unwrap_or(true) {
        "it is a LUKS volume already"
    } else {
        let mut start = vec![0; device.geometry().size.min(LOOK_BYTES) as usize];
        device.read(0, &mut start)?;
        if start.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        "its first bytes are not all zero, so that something may be in it"
    };
    Err(Failure::failed(format!("{}: {what}; --force does it all the same", options.image.display())))
}

fn make(options: &Luks2Args, cancel: &Cancel) -> Result<LuksInfo, Failure> {
    let device = FileDevice::open(&options.image, true)?;
    bifolio_volume::claim(&device)?;
    let secret = match &options.key_file {
        Some(file) => secret::key(Some(file), "")?,
        None => secret::ask_twice(&format!("New passphrase of {}", output::printable(&options.image.display().to_string())))?,
    };
    if secret.is_empty() {
        return Err(Failure::new(Code::Usage, "a passphrase of no bytes protects nothing; give another one"));
    }
    // Its size last: until here nothing was changed.
    let device = match options.size.filter(|size| *size != device.geometry().size) {
        None => device,
        Some(size) => {
            let failed =
                |error| Failure::failed(format!("{}: giving it its size failed: {error}", options.image.display()));
            device.file().set_len(size).map_err(failed)?;
            let file = device.file().try_clone().map_err(failed)?;
            FileDevice::of_file(file, &options.image, true)?
        }
    };
    let pbkdf = Pbkdf {
        time_ms: options.iter_time,
        iterations: options.pbkdf_force_iterations,
        memory_kib: options.pbkdf_memory,
        threads: options.pbkdf_parallel,
    };
    let format = FormatOptions {
        key_bits: options.key_size,
        sector_bytes: options.sector_size,
        pbkdf,
        label: options.label.clone(),
    };
    Ok(Luks::format_until(Arc::new(device), &secret, &format, Some(cancel))?.info().clone())
}
