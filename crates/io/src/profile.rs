//! Calibration profiles: measured costs of one file system and one device, on disk as JSON.
//!
//! A profile names what it was measured on. One that is damaged, of another version, or of
//! another device or file system is refused with a sentence: plans made from wrong numbers would
//! be wrong without anybody noticing.

use crate::cost::{Costs, Fit, Point};
use crate::file::OpenFile;
use crate::kind::EngineKind;
use crate::{Error, ErrorKind, Result};
use bifolio_device::Device;
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of the format; others are refused.
pub const VERSION: u32 = 1;

/// Measured costs, and what they were measured on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The version of the format.
    pub version: u32,
    /// The device's identity.
    pub device: String,
    /// The file system's identity.
    pub file_system: String,
    /// Seconds since 1970.
    pub measured_at: u64,
    /// The costs.
    pub costs: Costs,
    /// The measurements behind them.
    pub curves: Vec<Curve>,
}

/// The measurements of one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// What was measured, such as `direct`.
    pub name: String,
    /// The engine.
    pub engine: EngineKind,
    /// Median times by size.
    pub points: Vec<Point>,
    /// The model fitted to them.
    pub fit: Fit,
}

impl Profile {
    /// Where the profile of a device and the file system that holds `file` is kept:
    /// `$BIFOLIO_CACHE_DIR/profiles`, else `$XDG_CACHE_HOME/bifolio/profiles`, else
    /// `~/.cache/bifolio/profiles`. None without a home.
    pub fn path_for(device: &Device, file: &OpenFile) -> Option<PathBuf> {
        stored_at(&device.info().identity, &file_system_of(file))
    }

    /// Where this profile is kept, from what it was measured on; none without a home.
    pub fn default_path(&self) -> Option<PathBuf> {
        stored_at(&self.device, &self.file_system)
    }

    /// The stored profile for a device and the file system that holds `file`; none if it was
    /// never measured.
    pub fn find(device: &Device, file: &OpenFile) -> Result<Option<Self>> {
        match Self::path_for(device, file) {
            Some(path) if path.exists() => Self::load(&path, device, file).map(Some),
            _ => Ok(None),
        }
    }

    /// Reads a profile and checks that it belongs to the device and to the file's file system.
    pub fn load(path: &Path, device: &Device, file: &OpenFile) -> Result<Self> {
        let bad = |detail: String| {
            let detail = format!("{detail}; measure anew with `bifolio calibrate`, or read with `--profile none`");
            Error::new(ErrorKind::Profile, path, detail).into_device(device.id())
        };
        let profile = Self::parse(&read(path).map_err(|error| error.into_device(device.id()))?).map_err(bad)?;
        if profile.device != device.info().identity {
            return Err(bad(format!("the calibration profile belongs to another device ({})", profile.device)));
        }
        if profile.file_system != file_system_of(file) {
            return Err(bad(format!(
                "the calibration profile belongs to another file system ({})",
                profile.file_system
            )));
        }
        Ok(profile)
    }

    /// Reads a profile, whatever it belongs to.
    pub fn load_any(path: &Path) -> Result<Self> {
        Self::parse(&read(path)?).map_err(|detail| Error::new(ErrorKind::Profile, path, detail))
    }

    /// The newest profile that is stored for a device, of any file system; what cannot be used is
    /// passed over.
    pub fn newest_of(device: &Device) -> Option<Self> {
        let files = std::fs::read_dir(bifolio_device::cache_folder()?.join("profiles")).ok()?;
        let profiles = files.flatten().filter_map(|file| Self::load_any(&file.path()).ok());
        profiles.filter(|profile| profile.device == device.info().identity).max_by_key(|profile| profile.measured_at)
    }

    /// Reads a profile that plans could be made with.
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let profile: Self =
            serde_json::from_str(text).map_err(|error| format!("the calibration profile is damaged: {error}"))?;
        if profile.version != VERSION {
            return Err(format!("the calibration profile has version {}, not {VERSION}", profile.version));
        }
        if !profile.costs.are_sane() {
            return Err("the calibration profile holds impossible costs".to_owned());
        }
        Ok(profile)
    }

    /// Writes the profile, whole or not at all.
    pub fn store(&self, path: &Path) -> Result<()> {
        let fail = |error| Error::system(path, "storing the calibration profile", error);
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(fail)?;
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let text = serde_json::to_string_pretty(self).map_err(|error| fail(error.into()))?;
        let written = std::fs::write(&temporary, text + "\n").and_then(|()| std::fs::rename(&temporary, path));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            fail(error)
        })
    }
}

/// The file for the profile of one device and one file system, in the user's cache folder.
fn stored_at(device: &str, file_system: &str) -> Option<PathBuf> {
    let root = bifolio_device::cache_folder()?;
    let plain = |text: &str| text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>();
    Some(root.join("profiles").join(format!("{}-{}.json", plain(device), plain(file_system))))
}

/// Identifies the file system that holds a file: its type, and the device below it. Block devices
/// identify themselves.
pub fn file_system_of(file: &OpenFile) -> String {
    // SAFETY: `statfs` is plain old data, for which zeroes are a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    unsafe { libc::fstatfs(file.buffered().as_raw_fd(), &raw mut stat) };
    let device = file
        .buffered()
        .metadata()
        .map_or(0, |metadata| if metadata.rdev() != 0 { metadata.rdev() } else { metadata.dev() });
    format!("type {:x} on {}:{}", stat.f_type, libc::major(device), libc::minor(device))
}
fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        let detail = format!("the calibration profile cannot be read: {error}");
        Error::new(ErrorKind::Profile, path, detail).with_cause(error)
    })
}
