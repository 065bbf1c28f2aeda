//! Opening a volume with the key of the command line, and saying what is wrong with it.

use super::info;
use crate::exit::{Code, Failure, eprintln_quietly};
use crate::output::printable;
use crate::secret;
use bifolio_io::Cancel;
use bifolio_volume::{BlockDevice, ErrorKind, Layer, OpenOptions, Opened, Unlock};
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

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

/// Opens a volume with the key of the command line, or of whoever sits at the terminal.
pub fn open(images: &[PathBuf], key: &KeyArgs, writable: bool, cancel: &Cancel) -> Result<Opened, Failure> {
    open_with(images, key, writable, false, cancel)
}

/// The same; discards are passed through if that is asked for.
pub fn open_with(
    images: &[PathBuf],
    key: &KeyArgs,
    writable: bool,
    discard: bool,
    cancel: &Cancel,
) -> Result<Opened, Failure> {
    let ask = |name: &str| {
        ask(key.key_file.as_deref(), name).map_err(|failure| {
            let kind = match failure.code() {
                Code::Interrupted => ErrorKind::Cancelled,
                Code::Usage => ErrorKind::BadUse,
                _ => ErrorKind::Read,
            };
            let subject = if failure.subject().is_empty() { "key" } else { failure.subject() };
            bifolio_volume::Error::new(kind, subject, failure.detail())
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
pub fn warn(layers: &[Layer]) {
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
                "bifolio: {name}: no usable member {gone}; what it held is computed from the others{doubt}"
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

/// The key of a file, or of whoever sits at the terminal.
pub fn ask(key_file: Option<&Path>, name: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    secret::key(key_file, &format!("Passphrase of {}", printable(name)))
}
