//! From paths to an open volume: files, what several of them are members of, and LUKS in it.

use crate::md::{self, Raid6};
use crate::{Error, ErrorKind, Load, Luks, LuksInfo, Result, RoutedFile, Unlock};
use bifolio_block::BlockDevice;
use bifolio_io::Cancel;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Asks for the passphrase, or the content of the key file, of the volume that it is given the name of.
pub type AskKey<'a> = dyn Fn(&str) -> Result<Zeroizing<Vec<u8>>> + 'a;

/// How volumes are opened.
pub struct OpenOptions<'a> {
    /// Whether anything may be written.
    pub writable: bool,
    /// Of LUKS volumes.
    pub unlock: Unlock,
    /// Called only where a key is needed.
    pub key: &'a AskKey<'a>,
    /// It has to be encrypted: somebody gave a key. Without its header a volume looks like any file, and what is written
    /// to it then is not encrypted.
    pub is_encrypted: bool,
    /// Ends a key derivation that is under way, which takes seconds.
    pub cancel: Option<Cancel>,
}

impl fmt::Debug for OpenOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions").field("writable", &self.writable).finish_non_exhaustive()
    }
}

/// An open volume.
#[derive(Debug)]
pub struct Opened {
    /// Its content.
    pub device: Arc<dyn Load>,
    /// What it is made of, from the files up.
    pub layers: Vec<Layer>,
}

/// One layer of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "layer", rename_all = "lowercase")]
pub enum Layer {
    /// A file or block device.
    File {
        /// As it was given.
        path: PathBuf,
        /// Bytes.
        size: u64,
    },
    /// An array of the files.
    Raid6(Box<ArrayInfo>),
    /// A LUKS volume.
    Luks(Box<LuksInfo>),
}

/// An array, and how its members are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArrayInfo {
    /// As mdadm writes it.
    pub uuid: String,
    /// md's name of the layout.
    pub layout: &'static str,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Members, P and Q included.
    pub members: usize,
    /// Bytes of content.
    pub size: u64,
    /// Events of the superblocks.
    pub events: u64,
    /// `healthy`, `degraded` or `failed`.
    pub health: &'static str,
    /// Places without a member that can be read.
    pub missing: Vec<usize>,
    /// Members that were given and are not used, each with the reason.
    pub left_out: Vec<String>,
    /// Parity may not fit the data: the array was not closed cleanly.
    pub is_unsynced: bool,
    /// What opening has made good, where the array was not closed cleanly.
    pub replay: Option<md::Replay>,
    /// A log closes the write hole.
    pub has_log: bool,
}

impl ArrayInfo {
    fn of(array: &Raid6) -> Self {
        let health = match array.health() {
            md::ArrayState::Healthy => "healthy",
            md::ArrayState::Degraded => "degraded",
            md::ArrayState::Failed => "failed",
        };
        let layout = array.layout();
        Self {
            uuid: array.uuid(),
            layout: layout.rotation().name(),
            chunk_bytes: layout.chunk_bytes(),
            members: layout.members(),
            size: array.geometry().size,
            events: array.events(),
            health,
            missing: array.missing(),
            left_out: array.left_out().iter().map(|left| format!("{}: {}", left.member, left.reason)).collect(),
            is_unsynced: array.is_in_doubt(),
            replay: array.replay(),
            has_log: array.has_log(),
        }
    }
}

/// Opens what the paths make up, down to its plain content.
///
/// # Errors
/// Those of [`RoutedFile::open`] and [`Luks::open_until`], `InUse` for an array whose log somebody else is writing, `BadUse`
/// for no path, `NotAVolume` for several that are no members, and those of `options.key`.
pub fn open(paths: &[PathBuf], options: &OpenOptions<'_>) -> Result<Opened> {
    let (device, mut layers) = below(paths, options.writable)?;
    if !Luks::is_luks(&*device)? {
        if options.is_encrypted {
            return Err(unencrypted(&device.name()));
        }
        return Ok(Opened { device, layers });
    }
    let secret = (options.key)(&device.name())?;
    let luks = Luks::open_until(device, &secret, options.unlock, options.cancel.as_ref())?;
    layers.push(Layer::Luks(Box::new(luks.info().clone())));
    Ok(Opened { device: Arc::new(luks), layers })
}

/// What is said where a key is given for what is not encrypted.
pub fn unencrypted(name: &str) -> Error {
    let detail = "a key was given, but it has no LUKS header: it is not encrypted, or its header is lost (see the threat model on copies of headers); without the key it is read as it is";
    Error::new(ErrorKind::NotAVolume, name, detail)
}

/// What the paths make up, as far as it can be said without a key. Nothing is written, unless it is to be opened as for
/// writing: then an array that was not closed cleanly is put right.
///
/// # Errors
/// Those of [`open`] but for the key's; a LUKS volume that cannot be opened here is no error.
pub fn describe(paths: &[PathBuf], writable: bool) -> Result<Vec<Layer>> {
    let (device, mut layers) = below(paths, writable)?;
    if Luks::is_luks(&*device)? {
        layers.push(Layer::Luks(Box::new(Luks::info_of(&*device)?)));
    }
    Ok(layers)
}

/// Files, and what they are members of.
fn below(paths: &[PathBuf], writable: bool) -> Result<(Arc<dyn Load>, Vec<Layer>)> {
    let mut files = Vec::new();
    let mut layers = Vec::new();
    let mut claimed = None;
    for path in paths {
        let file = RoutedFile::open(path, writable)?;
        if writable {
            file.claim()?;
        } else if file.is_claimed() {
            claimed.get_or_insert_with(|| file.name());
        }
        layers.push(Layer::File { path: path.clone(), size: file.geometry().size });
        files.push(Arc::new(file) as Arc<dyn Load>);
    }
    let device = assemble(files, writable, &mut layers)?;
    let is_replayed = layers.iter().any(|layer| matches!(layer, Layer::Raid6(array) if array.replay.is_some()));
    if let Some(name) = claimed.filter(|_| is_replayed) {
        // What the log has would hide what is written from now on.
        let detail = "another bifolio has its array open for writing, without all of its members; read it through that one, or \
                      when that has ended";
        return Err(Error::new(ErrorKind::InUse, name, detail));
    }
    Ok((device, layers))
}

/// The device that members make up; one file is its own.
fn assemble(files: Vec<Arc<dyn Load>>, writable: bool, layers: &mut Vec<Layer>) -> Result<Arc<dyn Load>> {
    let Some(first) = files.first() else {
        return Err(Error::new(ErrorKind::BadUse, "volume", "no file was given"));
    };
    let mut is_member = false;
    for file in &files {
        is_member |= Raid6::is_member(&**file)?;
    }
    if is_member {
        let array = Raid6::assemble(files, writable)?;
        layers.push(Layer::Raid6(Box::new(ArrayInfo::of(&array))));
        return Ok(Arc::new(array));
    }
    if files.len() > 1 {
        let detail = "several files were given, and none of them is a member of an array";
        return Err(Error::new(ErrorKind::NotAVolume, first.name(), detail));
    }
    Ok(Arc::clone(first))
}
