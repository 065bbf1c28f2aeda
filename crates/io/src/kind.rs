//! The ways in which bytes travel, by name, and who chooses among them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Shorter pieces do not go through a registration: the driver copies up to 64 KiB with the CPU.
pub(crate) const MAPPED_BYTES_MIN: u64 = 128 << 10;

/// The ways in which bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Page cache, pinned slots, device.
    Cached,
    /// DMA straight out of registered page-cache pages.
    Mapped,
    /// Unbuffered reads, pinned slots, device.
    Direct,
    /// Storage to device without host memory.
    P2p,
}

impl EngineKind {
    /// All engines.
    pub const ALL: [Self; 4] = [Self::Cached, Self::Mapped, Self::Direct, Self::P2p];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Mapped => "mapped",
            Self::Direct => "direct",
            Self::P2p => "p2p",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|engine| engine.name() == text);
        known.ok_or_else(|| format!("\"{text}\" is not an engine: use cached, mapped, direct or p2p"))
    }
}

/// Who chooses the engine of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The planner.
    #[default]
    Auto,
    /// The caller: all bytes by this engine, or an error.
    Only(EngineKind),
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Only)
            .map_err(|_| format!("\"{text}\" is not an engine: use auto, cached, mapped, direct or p2p"))
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(engine) => engine.fmt(f),
        }
    }
}
