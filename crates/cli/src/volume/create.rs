//! `bifolio volume create`: new volumes. What is there already is overwritten only where that is asked for.

use super::Luks2Args;
use crate::args::Args;
use crate::exit::{Code, Failure};
use crate::{output, secret, size};
use bifolio_io::Cancel;
use bifolio_volume::signatures::{self, Found};
use bifolio_volume::{BlockDevice, FileDevice, FormatOptions, Luks, LuksInfo, Overwrite, Pbkdf, RoutedFile};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, Serialize)]
struct Created<'a> {
    image: &'a Path,
    #[serde(flatten)]
    volume: &'a LuksInfo,
}

/// Makes a LUKS2 volume.
pub fn run(args: &Args, options: &Luks2Args, cancel: &Cancel) -> Result<(), Failure> {
    let is_new = prepare(options)?;
    let made = make(options, is_new, cancel);
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
        None => secret::ask_twice(&format!("New passphrase of {}", output::printable(&image)))?,
    };
    if secret.is_empty() {
        return Err(Failure::new(Code::Usage, "a passphrase of no bytes protects nothing; give another one"));
    }
    let before = device.geometry().size;
    let size = options.size.unwrap_or(before);
    let failed = |error| Failure::failed(format!("{}: giving it its size failed: {error}", options.image.display()));
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

/// What may be lost, by name.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ForceArgs {
    /// Overwrite what has these names, and lose it, such as --force=ext4 or --force=gpt,data. Without it only what is
    /// empty is written to; a refusal says the names.
    #[arg(long, value_name = "NAME,...", require_equals = true, value_delimiter = ',', value_parser = parse_name)]
    pub force: Vec<String>,
}

impl ForceArgs {
    /// As the library takes it.
    pub fn overwrite(&self) -> Overwrite {
        if self.force.is_empty() { Overwrite::Nothing } else { Overwrite::Named(self.force.clone()) }
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let names = signatures::names();
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("nothing that can be lost has this name; there are {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_refusal_can_say_are_taken() {
        for name in ["ext4", "luks", "md", "gpt", "mbr", "data", "cut"] {
            assert_eq!(parse_name(name).as_deref(), Ok(name));
        }
        assert!(parse_name("ext5").unwrap_err().contains("ext4"));
    }
}
