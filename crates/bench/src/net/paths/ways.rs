//! How packets go through an application.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How packets go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The CPU's elements.
    Elements,
    /// A path that the CPU computes.
    Twins,
    /// A path that the device computes.
    Device,
    /// The same with whole packets.
    Whole,
    /// A path whose payloads the device fetches by itself.
    Fetch,
}

impl Who {
    /// Whether the device computes.
    pub(super) fn is_by_device(self) -> bool {
        matches!(self, Self::Device | Self::Whole | Self::Fetch)
    }
}

impl FromStr for Who {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "elements" => Ok(Self::Elements),
            "twins" => Ok(Self::Twins),
            "device" => Ok(Self::Device),
            "whole" => Ok(Self::Whole),
            "fetch" => Ok(Self::Fetch),
            _ => Err(format!("'{text}' is none of elements, twins, device, whole and fetch")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Way {
    pub(super) who: Who,
    pub(super) cores: usize,
    /// The most packets of a batch; 0 where there are none.
    pub(super) size: usize,
}

impl Way {
    pub(super) fn name(self) -> String {
        let who = match self.who {
            Who::Elements => "CPU elements",
            Who::Twins => "CPU twins",
            Who::Device => "device",
            Who::Whole => "device, whole packets",
            Who::Fetch => "device, which fetches payloads",
        };
        let cores = if self.cores == 1 { "core" } else { "cores" };
        let batches = if self.size == 0 { String::new() } else { format!(", batches of {}", self.size) };
        format!("{who}, {} {cores}{batches}", self.cores)
    }
}

pub(super) fn frame_name(bytes: usize) -> String {
    if bytes == 0 { "IMIX".to_owned() } else { bytes.to_string() }
}
