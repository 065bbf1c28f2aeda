//! Names of devices: `host`, `host:N`, `cuda:N`, `opencl:N`, and the choice `auto`.

use crate::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Which driver stands behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BackendKind {
    /// NVIDIA's driver API.
    Cuda,
    /// Any OpenCL 1.2 device.
    OpenCl,
    /// The embedded device in host memory.
    Host,
}

impl BackendKind {
    /// All backends, in the order in which `auto` prefers them.
    pub const ALL: [Self; 3] = [Self::Cuda, Self::OpenCl, Self::Host];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::OpenCl => "opencl",
            Self::Host => "host",
        }
    }
}

/// One device: a backend and an index in that backend's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The backend.
    pub backend: BackendKind,
    /// The index that the backend's driver gives the device.
    pub index: u32,
}

impl DeviceId {
    /// The embedded device.
    pub const HOST: Self = Self { backend: BackendKind::Host, index: 0 };

    /// A device of `backend`.
    pub const fn new(backend: BackendKind, index: u32) -> Self {
        Self { backend, index }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend.name(), self.index)
    }
}

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || {
            Error::new(
                ErrorKind::BadName,
                format!("\"{text}\" does not name a device: use auto, host, host:N, cuda:N or opencl:N"),
            )
        };
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => {
                let digits = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
                (name, if digits { index.parse().map_err(|_| bad())? } else { return Err(bad()) })
            }
            None => (text, 0),
        };
        let backend = BackendKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(bad)?;
        Ok(Self { backend, index })
    }
}

impl Serialize for DeviceId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a user asked for: the best device found, or one by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first CUDA device, else the first OpenCL GPU, else `host:0`.
    #[default]
    Auto,
    /// Exactly this device; an error where it is missing.
    Exactly(DeviceId),
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Exactly) }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Exactly(id) => id.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bare_backend_name_is_its_first_device() {
        assert_eq!("cuda".parse::<DeviceId>().unwrap(), DeviceId::new(BackendKind::Cuda, 0));
        assert_eq!("host:3".parse::<DeviceId>().unwrap(), DeviceId::new(BackendKind::Host, 3));
    }

    proptest! {
        #[test]
        fn names_round_trip_and_garbage_never_panics(text in "\\PC{0,24}", index in any::<u32>(), kind in 0_usize..3) {
            let id = DeviceId::new(BackendKind::ALL[kind], index);
            prop_assert_eq!(id.to_string().parse::<DeviceId>().unwrap(), id);
            if let Ok(parsed) = text.parse::<DeviceId>() {
                prop_assert!(text.starts_with(parsed.backend.name()));
            }
        }
    }

    #[test]
    fn half_names_are_refused_with_the_right_spelling() {
        for text in ["", ":", "cuda:", "cuda:-1", "cuda:+1", "cuda:99999999999", "gpu:0", "CUDA:0", "auto:1"] {
            let error = text.parse::<DeviceChoice>().unwrap_err();
            assert!(error.to_string().contains("opencl:N"), "{text}: {error}");
        }
    }
}
