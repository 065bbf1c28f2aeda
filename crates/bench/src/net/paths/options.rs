//! What is measured: applications, frames, loads.

use super::ways::Who;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An application of Snap's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum App {
    /// Header checks, TTL and routes.
    Route,
    /// Header checks, TTL, routes, flow rules: a forwarding path.
    Forward,
    /// Flow rules.
    Sdn,
    /// Routes, and literals searched in payloads.
    Dpi,
    /// Literals alone.
    Ids,
    /// Header checks, flow rules, literals and routes.
    Full,
    /// Flow rules, and one search for all packets: what the next one is to be compared with.
    United,
    /// Flow rules send packets to one of two searches for the same literals: each packet is still searched once.
    Diverging,
}

const APPS: [(&str, App); 8] = [
    ("route", App::Route),
    ("forward", App::Forward),
    ("sdn", App::Sdn),
    ("dpi", App::Dpi),
    ("ids", App::Ids),
    ("full", App::Full),
    ("united", App::United),
    ("diverging", App::Diverging),
];

impl fmt::Display for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(APPS.iter().find(|(_, app)| app == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for App {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = APPS.iter().find(|(name, _)| *name == text).map(|(_, app)| *app);
        found.ok_or_else(|| {
            format!("'{text}' is no application: route, forward, sdn, dpi, ids, full, united or diverging")
        })
    }
}

/// What is behind headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Text {
    /// Requests and answers that look like HTTP.
    Http,
    /// Random bytes.
    Random,
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Http => "http",
            Self::Random => "random",
        })
    }
}

impl FromStr for Text {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "http" => Ok(Self::Http),
            "random" => Ok(Self::Random),
            _ => Err(format!("'{text}' is neither http nor random")),
        }
    }
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which applications.
    pub apps: Vec<App>,
    /// Bytes of frames, without the checksum that a network appends; 0: IMIX.
    pub frames: Vec<usize>,
    /// What is behind the headers.
    pub text: Text,
    /// Bytes of frames of a run and thread.
    pub bytes: u64,
    /// Rules of Snort or Suricata; without them literals are drawn.
    pub ids_rules: Option<std::path::PathBuf>,
    /// How many literals are drawn.
    pub literals: usize,
    /// Rules of the flow table in `ClassBench`'s form; without them they are drawn.
    pub flow_rules: Option<std::path::PathBuf>,
    /// How many are drawn.
    pub flows: usize,
    /// How many routes are drawn.
    pub routes: usize,
    /// Numbers of threads.
    pub cores: Vec<usize>,
    /// Who computes: ways that are compared, as far as the device is one.
    pub by: Vec<Who>,
    /// The most packets of a batch: sizes that are compared.
    pub sizes: Vec<usize>,
    /// The most batches of a path at a time.
    pub batches: usize,
    /// Latencies at these parts of the highest rate, in percent.
    pub loads: Vec<f64>,
    /// Runs of each way.
    pub repetitions: u32,
    /// Seed of everything that is drawn.
    pub seed: u64,
}
