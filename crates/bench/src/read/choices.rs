//! The words for what can be measured, as they are written on the command line.

use bifolio_io::size;
use serde::{Serialize, Serializer};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

/// What of a region of a file is in the page cache before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionState {
    /// All of it.
    Warm,
    /// All of it, and the file has been read several times through the same handle.
    Again,
    /// Nothing.
    Cold,
    /// Every second stripe.
    Half,
    /// So many of a hundred cells, drawn at random.
    Percent(u8),
}

impl RegionState {
    /// The percentage, of a state that is one.
    pub fn percent(self) -> Option<u8> {
        if let Self::Percent(percent) = self { Some(percent) } else { None }
    }
}

impl Display for RegionState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warm => f.write_str("warm"),
            Self::Again => f.write_str("again"),
            Self::Cold => f.write_str("cold"),
            Self::Half => f.write_str("half"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for RegionState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One item of a list of states: a name, a percentage, or a range of percentages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct States(pub Vec<RegionState>);

impl FromStr for States {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [RegionState::Warm, RegionState::Again, RegionState::Cold, RegionState::Half];
        if let Some(state) = named.into_iter().find(|state| state.to_string() == text) {
            return Ok(Self(vec![state]));
        }
        let percents = percents(text).ok_or_else(|| {
            format!(
                "\"{text}\" is not a cache state: use warm, again, cold, half, a percentage from 0% to 100%, \
                 or percentages in steps such as 0-100%/10"
            )
        })?;
        Ok(Self(percents.into_iter().map(RegionState::Percent).collect()))
    }
}

/// Reads `30%`, or `0-100%/10`.
fn percents(text: &str) -> Option<Vec<u8>> {
    let percent = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u8>().ok().filter(|percent| digits && *percent <= 100)
    };
    if let Some(text) = text.strip_suffix('%') {
        return Some(vec![percent(text)?]);
    }
    let (ends, step) = text.split_once("%/")?;
    let (first, last) = ends.split_once('-')?;
    let (first, last, step) = (percent(first)?, percent(last)?, percent(step)?);
    (first <= last && step > 0).then(|| (first..=last).step_by(step.into()).collect())
}

/// How much one request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestSize {
    /// The whole file.
    File,
    /// So many bytes.
    Bytes(u64),
}

impl FromStr for RequestSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "file" => Ok(Self::File),
            _ => match size::parse(text)? {
                0 => Err("a request has at least one byte".to_owned()),
                bytes => Ok(Self::Bytes(bytes)),
            },
        }
    }
}

impl Display for RequestSize {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("file"),
            Self::Bytes(bytes) => f.write_str(&size::exact(*bytes)),
        }
    }
}

/// The order of a run's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Shuffled, at places all over the region.
    Random,
    /// In file order, from the region's start.
    Sequential,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [Self::Random, Self::Sequential].into_iter().find(|pattern| pattern.name() == text);
        named.ok_or_else(|| format!("\"{text}\" is not a pattern: use random or sequential"))
    }
}

impl Pattern {
    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }
}

/// What else the machine does while requests are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Contention {
    /// Nothing of ours.
    None,
    /// One thread for each processor does arithmetic.
    Cpu,
    /// Threads read a scratch file beside the measured file, past the page cache.
    Disk,
}

impl FromStr for Contention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [Self::None, Self::Cpu, Self::Disk].into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| format!("\"{text}\" is not a contention: use none, cpu or disk"))
    }
}

impl Contention {
    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cpu => "cpu",
            Self::Disk => "disk",
        }
    }
}

/// Reads seconds: a run takes some time, and no more than an hour.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("\"{text}\" is not a time: write 0.001 to 3600 seconds"))
}

/// Reads the size of a cell: whole pages.
pub fn parse_cell(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes > 0 && bytes.is_multiple_of(4096) => Ok(bytes),
        _ => Err(format!("\"{text}\" is not the size of a cell: write a multiple of 4K")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn states(text: &str) -> Result<Vec<String>, String> {
        text.parse().map(|States(states)| states.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn states_are_names_percentages_and_steps_of_them() {
        for text in ["warm", "again", "cold", "half", "0%", "7%", "100%"] {
            assert_eq!(states(text).unwrap(), [text]);
        }
        let tens = states("0-100%/10").unwrap();
        assert_eq!((tens.len(), &*tens[0], &*tens[3], &*tens[10]), (11, "0%", "30%", "100%"));
        assert_eq!(states("5-30%/10").unwrap(), ["5%", "15%", "25%"]);
        for text in ["", "hot", "%", "101%", "-1%", "+5%", "5", "1.5%", "0-100%", "0-100%/0", "50-40%/5", "0%-10%/5"] {
            assert!(states(text).unwrap_err().contains("0-100%/10"), "{text}");
        }
    }

    #[test]
    fn times_and_cells_outside_their_limits_are_refused() {
        assert_eq!(parse_seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["", "0", "-1", "nan", "inf", "1e9", "2s"] {
            assert!(parse_seconds(text).unwrap_err().contains("seconds"), "{text}");
        }
        assert_eq!(parse_cell("64K"), Ok(65536));
        assert!(parse_cell("0").is_err() && parse_cell("6000").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_a_percentage(text in "[0-9%/-]{0,9}") {
            for state in text.parse::<States>().map(|states| states.0).unwrap_or_default() {
                prop_assert!(state.percent().is_some_and(|percent| percent <= 100));
            }
        }
    }
}
