//! `bifolio volume`: encrypted and redundant volumes.

mod cat;
mod create;
mod export;
mod info;
mod nbd;
mod raid;

pub use info::describe;

use crate::args::Args;
use crate::exit::{self, Code, Failure, eprintln_quietly};
use crate::{output, secret, size};
use bifolio_io::Cancel;
use bifolio_volume::{BlockDevice, ErrorKind, Layer, OpenOptions, Opened, Unlock};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// What to do with a volume.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Print what a volume is made of: layers, sizes, ciphers, keyslots. No key is needed.
    #[command(after_help = exit::CODES)]
    Info(InfoArgs),
    /// Write a volume's plain content to standard output.
    #[command(after_help = exit::CODES)]
    Cat(CatArgs),
    /// Make a new volume.
    #[command(subcommand)]
    Create(CreateCommand),
    /// Offer a volume's plain content to other programs until interrupted.
    #[command(after_help = exit::CODES)]
    Export(ExportArgs),
    /// Check that P and Q of a RAID-6 fit its data, and name the members that are wrong.
    #[command(after_help = exit::CODES)]
    Scrub(raid::ScrubArgs),
    /// Rebuild a missing member of a RAID-6 onto a new one.
    #[command(after_help = exit::CODES)]
    Rebuild(raid::RebuildArgs),
}

/// What to make.
#[derive(Debug, Subcommand)]
pub enum CreateCommand {
    /// A LUKS2 volume in a file or on a block device, as cryptsetup makes them.
    #[command(after_help = exit::CODES)]
    Luks2(Box<Luks2Args>),
    /// A RAID-6 over files or block devices, as Linux's md has them.
    #[command(after_help = exit::CODES)]
    Raid6(raid::Raid6Args),
}

/// Choices for `volume info`.
#[derive(Debug, ClapArgs)]
pub struct InfoArgs {
    /// Image file or block device; several are members of one volume.
    #[arg(required = true, value_name = "IMG")]
    pub images: Vec<PathBuf>,
}

/// How a volume is unlocked.
#[derive(Debug, Clone, ClapArgs)]
pub struct KeyArgs {
    /// The file's content is the passphrase, all bytes of it (of an encrypted directory its first line); - is standard
    /// input [default: ask].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Also try keyslots that need more than 4 GiB of memory, or ten minutes.
    #[arg(long)]
    pub any_cost: bool,
}

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
    pub force: create::ForceArgs,
}

/// Choices for `volume export`.
#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// Image file or block device; several are members of one volume.
    #[arg(required = true, value_name = "IMG")]
    pub images: Vec<PathBuf>,
    /// The key.
    #[command(flatten)]
    pub key: KeyArgs,
    /// Where to.
    #[command(flatten)]
    pub to: ExportTo,
    /// Refuse writes.
    #[arg(long)]
    pub read_only: bool,
    /// Pass discards through, which shows whoever sees the image which of its sectors are in use.
    #[arg(long)]
    pub discard: bool,
}

/// Where a volume is offered.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct ExportTo {
    /// As an NBD server on this socket; needs nbdkit.
    #[arg(long, value_name = "unix:PATH", value_parser = nbd::parse_socket)]
    pub nbd: Option<PathBuf>,
    /// As the only file in this empty folder, by FUSE.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// As a block device of this kernel.
    #[arg(long)]
    pub ublk: bool,
}

/// Carries the command out.
pub fn run(args: &Args, command: &VolumeCommand, cancel: &Cancel) -> Result<(), Failure> {
    match command {
        VolumeCommand::Info(options) => info::run(args, options),
        VolumeCommand::Cat(options) => cat::run(options, cancel),
        VolumeCommand::Create(CreateCommand::Luks2(options)) => create::run(args, options, cancel),
        VolumeCommand::Create(CreateCommand::Raid6(options)) => raid::create(args, options, cancel),
        VolumeCommand::Export(options) => export::run(options, cancel),
        VolumeCommand::Scrub(options) => raid::scrub(args, options, cancel),
        VolumeCommand::Rebuild(options) => raid::rebuild(args, options, cancel),
    }
}

/// A number among a few.
fn one_of(allowed: &'static [&'static str]) -> impl TypedValueParser<Value = u32> {
    PossibleValuesParser::new(allowed).map(|text| text.parse().expect("all are numbers"))
}

/// Opens a volume with the key of the command line, or of whoever sits at the terminal.
pub fn open(images: &[PathBuf], key: &KeyArgs, writable: bool, cancel: &Cancel) -> Result<Opened, Failure> {
    open_with(images, key, writable, false, cancel)
}

fn open_with(
    images: &[PathBuf],
    key: &KeyArgs,
    writable: bool,
    discard: bool,
    cancel: &Cancel,
) -> Result<Opened, Failure> {
    let ask = |name: &str| {
        ask(key.key_file.as_deref(), name).map_err(|failure| {
            // Its sentence leads with the file, where it is about one.
            let text = failure.message();
            let (subject, detail) = text.split_once(": ").unwrap_or(("key", text));
            let kind = match failure.code() {
                Code::Interrupted => ErrorKind::Cancelled,
                Code::Usage => ErrorKind::BadUse,
                _ => ErrorKind::Read,
            };
            bifolio_volume::Error::new(kind, subject, detail)
        })
    };
    let unlock = Unlock { any_cost: key.any_cost, discard };
    let is_encrypted = key.key_file.is_some();
    let options = OpenOptions { writable, unlock, key: &ask, is_encrypted, cancel: Some(cancel.clone()) };
    let opened = bifolio_volume::open(images, &options)?;
    warn(&opened.layers);
    Ok(opened)
}

/// Says what has failed since it was opened, or since this was called.
pub fn complain(device: &dyn BlockDevice) {
    device.complaints().iter().for_each(|text| eprintln_quietly(&format!("bifolio: {text}")));
}

/// Says what is wrong with arrays whose content can be had all the same.
fn warn(layers: &[Layer]) {
    for layer in layers {
        let Layer::Raid6(array) = layer else { continue };
        let name = format!("array {}", array.uuid);
        if let Some(replay) = &array.replay {
            eprintln_quietly(&format!("bifolio: {name}: {}", info::replayed(replay)));
        }
        if !array.missing.is_empty() {
            let doubt = if array.is_unsynced {
                ", but it was not closed cleanly: what is computed may be wrong where it was being written"
            } else {
                ""
            };
            let gone: Vec<_> = array.missing.iter().map(usize::to_string).collect();
            let gone = gone.join(" and ");
            eprintln_quietly(&format!(
                "bifolio: {name}: no member {gone} that can be used; what it held is computed from the others{doubt}"
            ));
        } else if array.is_unsynced {
            eprintln_quietly(&format!(
                "bifolio: {name}: it was not closed cleanly, so that its parity may be wrong; `volume scrub --repair` puts \
                 that right"
            ));
        }
        array.left_out.iter().for_each(|left| eprintln_quietly(&format!("bifolio: {name}: left out: {left}")));
    }
}

fn ask(key_file: Option<&Path>, name: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    secret::key(key_file, &format!("Passphrase of {}", output::printable(name)))
}
