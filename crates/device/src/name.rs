//! The names of devices, read: `host`, `host:N`, `cuda:N`, `opencl:N`, and the choice `auto`.

use crate::{BackendKind, DeviceChoice, DeviceId, Error, ErrorKind};
use serde::Deserialize;
use std::str::FromStr;

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || {
            Error::new(
                ErrorKind::BadName,
                format!("\"{text}\" is not a device name: use auto, host, host:N, cuda:N or opencl:N"),
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

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Exactly) }
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
