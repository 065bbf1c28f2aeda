//! What can be asked of `read`.

use crate::exit::Failure;
use crate::progress::Progress;
use crate::router::RouterArgs;
#[cfg(feature = "volumes")]
use crate::volume::KeyArgs;
use bifolio_io::{Cancel, EngineChoice, OpenFile, ReadOptions, Spread, size};
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};

/// Choices for `read`.
#[derive(Debug, ClapArgs)]
pub struct ReadArgs {
    /// The file, or block device. With --key-file, a plain path that leads through an encrypted directory: the file is
    /// verified and decrypted on the device.
    #[cfg_attr(feature = "volumes", arg(required_unless_present = "volume", conflicts_with = "volume"))]
    #[cfg_attr(not(feature = "volumes"), arg(required = true))]
    pub file: Option<PathBuf>,
    /// Read the plain content of a volume instead: one image file or block device, or the members of an
    /// array, decrypted or recovered on the device.
    #[cfg(feature = "volumes")]
    #[arg(long, num_args = 1.., value_name = "IMG")]
    pub volume: Vec<PathBuf>,
    /// The volume's key; of a directory its passphrase, the file's first line.
    #[cfg(feature = "volumes")]
    #[command(flatten)]
    pub key: KeyArgs,
    /// First byte.
    #[arg(long, default_value = "0", value_parser = size::parse, value_name = "SIZE")]
    pub offset: u64,
    /// Bytes, at most to the end of the file [default: to the end].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub length: Option<u64>,
    /// The engine; auto plans with all that work.
    #[arg(long, default_value = "auto", value_name = "auto|cached|mapped|direct|p2p")]
    pub engine: EngineChoice,
    /// Print the SHA-256 of what is in device memory afterwards.
    #[arg(long)]
    pub sha256: bool,
    /// Compare device memory with the file, byte by byte, after the last run.
    #[arg(long)]
    pub verify: bool,
    /// Print the plan: residency, segments, predicted and actual times.
    #[arg(long)]
    pub explain: bool,
    /// With several devices: give each a part of the file, or all of it.
    #[arg(long, default_value = "shard", value_name = "shard|replicate")]
    pub spread: Spread,
    /// Read N times.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repeat: u32,
    /// The router.
    #[command(flatten)]
    pub router: RouterArgs,
}

impl ReadArgs {
    /// The file to read, where it is no volume.
    pub fn file(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(""))
    }

    /// Bytes that the request means. None where it means nothing that exists; the router says why.
    pub fn length_in(&self, file: &OpenFile) -> Result<Option<u64>, Failure> {
        let left = file.size()?.checked_sub(self.offset);
        let fits = |length: &u64| self.offset.checked_add(*length).is_some_and(|end| i64::try_from(end).is_ok());
        Ok(match (left, self.length) {
            (Some(left), None) => Some(left),
            (Some(left), Some(length)) => Some(length).filter(fits).map(|length| length.min(left)),
            (None, _) => None,
        })
    }

    /// A request as it is asked for.
    pub fn request(&self, progress: &Progress, cancel: &Cancel) -> ReadOptions {
        ReadOptions {
            engine: self.engine,
            cancel: cancel.clone(),
            progress: progress.counter(),
            ..ReadOptions::default()
        }
    }
}
