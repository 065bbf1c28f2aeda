//! `bifolio volume cat`: plain content into a pipe or a file.

use super::open::{KeyArgs, complain, open};
use crate::exit::Failure;
use crate::signals;
use bifolio_io::{Cancel, size};
use clap::Args as ClapArgs;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Bytes of one read, which is shared out over the processors.
const READ_BYTES: u64 = 4 << 20;

/// Choices for `volume cat`.
#[derive(Debug, ClapArgs)]
pub struct CatArgs {
    /// Image file or block device; several are members of one volume.
    #[arg(required = true, value_name = "IMG")]
    pub images: Vec<PathBuf>,
    /// The key.
    #[command(flatten)]
    pub key: KeyArgs,
    /// First byte.
    #[arg(long, default_value = "0", value_parser = size::parse, value_name = "SIZE")]
    pub offset: u64,
    /// Bytes, at most to the end of the volume [default: to the end].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub length: Option<u64>,
}

/// Writes the range to standard output.
pub fn run(options: &CatArgs, cancel: &Cancel) -> Result<(), Failure> {
    let device = open(&options.images, &options.key, false, cancel)?.device;
    let size = device.geometry().size;
    if options.offset > size {
        let detail = format!("it has {size} bytes, none at offset {}", options.offset);
        return Err(Failure::failed(format!("{}: {detail}", device.name())));
    }
    let end = options.offset + options.length.unwrap_or(u64::MAX).min(size - options.offset);
    // Rust's own standard output looks for line ends.
    let mut out = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(|error| Failure::failed(format!("duplicating standard output failed: {error}")))?;
    let mut buffer = vec![0; READ_BYTES.min(end - options.offset) as usize];
    let mut at = options.offset;
    while at < end {
        signals::check(cancel)?;
        let part = &mut buffer[..READ_BYTES.min(end - at) as usize];
        let read = device.read(at, part);
        complain(&*device);
        read?;
        match out.write_all(part) {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::failed(format!("writing to standard output failed: {error}"))),
            Ok(()) => at += part.len() as u64,
        }
    }
    Ok(())
}
