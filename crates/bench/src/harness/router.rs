//! How the router that is measured is set up.

use bifolio_device::Device;
use bifolio_io::{Cancel, OpenFile, Profile, Result, Router, RouterOptions};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Where calibrated costs come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ProfileChoice {
    /// The stored profile, if there is one.
    #[default]
    Auto,
    /// Defaults.
    None,
    /// A file.
    File(PathBuf),
}

impl FromStr for ProfileChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Self::Auto,
            "none" => Self::None,
            file => Self::File(file.into()),
        })
    }
}

/// What may be chosen of a router; the rest depends on the device and the file.
#[derive(Debug, Clone, Default)]
pub struct RouterSettings {
    /// Calibrated costs.
    pub profile: ProfileChoice,
    /// Pinned host memory at most.
    pub pool_bytes: Option<u64>,
    /// Bytes of one pinned slot.
    pub slot_bytes: Option<u64>,
    /// Threads that copy out of the page cache.
    pub threads: Option<usize>,
    /// Page-cache bytes that may stay pinned for ranges that are read again and again.
    pub mapped_bytes: Option<u64>,
}

impl RouterSettings {
    /// A router for a file on a device.
    pub fn router(&self, device: &Device, file: &OpenFile, cancel: &Cancel) -> Result<Router> {
        Ok(Router::new(device, self.options(device, file, cancel)?))
    }

    /// Its options, with the profile for this file.
    pub fn options(&self, device: &Device, file: &OpenFile, cancel: &Cancel) -> Result<RouterOptions> {
        let profile = match &self.profile {
            ProfileChoice::Auto => Profile::find(device, file)?,
            ProfileChoice::None => None,
            ProfileChoice::File(path) => Some(Profile::load(path, device, file)?),
        };
        let defaults = RouterOptions::default();
        let as_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(RouterOptions {
            threads: self.threads.unwrap_or(defaults.threads),
            slot_bytes: self.slot_bytes.map_or(defaults.slot_bytes, as_usize),
            pool_bytes: self.pool_bytes.map_or(defaults.pool_bytes, as_usize),
            mapped_bytes: self.mapped_bytes.unwrap_or(defaults.mapped_bytes),
            costs: profile.map(|profile| profile.costs),
            cancel: cancel.clone(),
            ..defaults
        })
    }
}

/// Opens a file for a device, so that errors name both.
pub fn open_file(path: &Path, device: &Device) -> Result<Arc<OpenFile>> {
    Ok(Arc::new(OpenFile::open(path).map_err(|error| error.into_device(device.id()))?))
}
