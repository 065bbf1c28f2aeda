//! One file into several devices at once.
//!
//! *Shard*: each device gets a part of the file. *Replicate*: each gets all of it; every device
//! reads its part over its own link and the parts are exchanged over the peer link, block by block
//! while the next block is being read. Links between host and devices are the narrow ones, so the
//! file crosses each of them once and not once for every device.

use crate::file::OpenFile;
use crate::options::{After, ReadOptions};
use crate::report::ReadReport;
use crate::router::{Router, clamp};
use crate::workers;
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Device, DeviceSlice, Stream};
use serde::Serialize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Parts meet at multiples of this many bytes, which suits unbuffered reads and device pages.
const BOUNDARY_BYTES: u64 = 2 << 20;

/// Blocks of a part that are exchanged while the next is read: a few, as each is a request.
const BLOCKS: u64 = 4;

/// Shorter blocks cost more than their overlap gains.
const BLOCK_BYTES_MIN: u64 = 64 << 20;

/// What a device is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// A part of the file, each device another.
    Shard,
    /// All of it.
    Replicate,
}

impl std::str::FromStr for Spread {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shard" => Ok(Self::Shard),
            "replicate" => Ok(Self::Replicate),
            _ => Err(format!("\"{text}\" is not a way to spread a file: use shard or replicate")),
        }
    }
}

/// What a spread did.
#[derive(Debug, Clone, Serialize)]
pub struct SpreadReport {
    /// Seconds from the call until everything was in place.
    pub seconds: f64,
    /// How each device's copy came about.
    pub exchange: Exchange,
    /// The part that each device read, in bytes of the file, and its latest request.
    pub parts: Vec<(Range<u64>, ReadReport)>,
}

/// How devices get what others have read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exchange {
    /// There is nothing to exchange.
    None,
    /// Straight from device to device.
    Peers,
    /// Not at all: the devices cannot copy from each other, so each read everything.
    EachReadAll,
}

/// The part of `range` for device `number` of `count`; later parts may be empty.
pub fn part_of(range: &Range<u64>, number: usize, count: usize) -> Range<u64> {
    let even = (range.end - range.start).div_ceil(count as u64).next_multiple_of(BOUNDARY_BYTES);
    let start = range.start.saturating_add(even.saturating_mul(number as u64)).min(range.end);
    start..start.saturating_add(even).min(range.end)
}

/// Reads `length` bytes at `offset` (to the end without a length) into the memories of several
/// devices, one router and one destination each. With [`Spread::Shard`] a destination gets its part
/// ([`part_of`]), with [`Spread::Replicate`] everything.
///
/// # Errors
/// As [`Router::read`], with the device in question; the first failure stops the others.
///
/// # Panics
/// If the numbers of routers and destinations differ, or are 0.
pub fn read_spread(
    routers: &[&Router],
    file: &OpenFile,
    offset: u64,
    length: Option<u64>,
    destinations: &[DeviceSlice<'_>],
    spread: Spread,
    options: &ReadOptions,
) -> Result<SpreadReport> {
    assert!(!routers.is_empty() && routers.len() == destinations.len(), "a destination for each router");
    let started = Instant::now();
    let room = destinations.iter().map(|destination| destination.len()).min().unwrap_or(0);
    let size = file.size()?;
    let range = match spread {
        Spread::Replicate => clamp(file.path(), size, offset, length, room)?,
        Spread::Shard => clamp(file.path(), size, offset, length, u64::MAX)?,
    };
    let can_exchange = || routers.windows(2).all(|pair| can_copy(pair[0].device(), pair[1].device()));
    let exchange = match spread {
        Spread::Shard => Exchange::None,
        Spread::Replicate if routers.len() == 1 => Exchange::None,
        Spread::Replicate if can_exchange() => Exchange::Peers,
        Spread::Replicate => Exchange::EachReadAll,
    };
    // Before any device reads: others copy from it and to it.
    let settle = |(router, memory): (&&Router, &DeviceSlice<'_>)| -> Result<()> {
        router.settle(file.path(), &options.after, &options.cancel, *memory).map(drop)
    };
    routers.iter().zip(destinations).try_for_each(settle)?;
    let destinations: Vec<_> = destinations.iter().map(|memory| memory.ordered()).collect();
    let (destinations, options) = (&destinations[..], &ReadOptions { after: After::Nothing, ..options.clone() });
    let stop = AtomicBool::new(false);
    let read_one = |number: usize| {
        let part =
            if exchange == Exchange::EachReadAll { range.clone() } else { part_of(&range, number, routers.len()) };
        let lands_at = if spread == Spread::Shard { part.start } else { range.start };
        let task = Task { routers, file, destinations, number, lands_at, options, stop: &stop };
        let outcome = task.run(&part, exchange == Exchange::Peers);
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        outcome.map(|report| (part, report))
    };
    let panicked =
        || Error::new(ErrorKind::Panicked, file.path(), "a reader panicked, which is a bug; please report it");
    let outcomes = workers::at_once(routers.len(), read_one);
    let outcomes = outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(panicked())));
    // A device that was stopped for another's failure is not the one to blame.
    let is_stopped = |error: &Error| error.kind() == ErrorKind::Cancelled && !options.cancel.is_cancelled();
    let (mut parts, mut failure) = (Vec::new(), None);
    for outcome in outcomes {
        match outcome {
            Ok(part) => parts.push(part),
            Err(error) if failure.as_ref().is_none_or(is_stopped) => failure = Some(error),
            Err(_) => {}
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    Ok(SpreadReport { seconds: started.elapsed().as_secs_f64(), exchange, parts })
}

/// Whether one device can copy out of another's memory, both ways being the same.
fn can_copy(one: &Device, other: &Device) -> bool {
    one.id().backend == other.id().backend && one.capabilities().peer_access.is_yes()
}

/// One device's share of the work.
struct Task<'a> {
    routers: &'a [&'a Router],
    file: &'a OpenFile,
    destinations: &'a [DeviceSlice<'a>],
    number: usize,
    /// The byte of the file that lies at the start of every destination.
    lands_at: u64,
    options: &'a ReadOptions,
    stop: &'a AtomicBool,
}

impl Task<'_> {
    /// Reads a part, and lets the other devices fetch each block of it once it is there.
    fn run(&self, part: &Range<u64>, exchange: bool) -> Result<ReadReport> {
        let router = self.routers[self.number];
        let streams = if exchange { self.streams()? } else { vec![] };
        let block = if exchange {
            ((part.end - part.start) / BLOCKS).max(BLOCK_BYTES_MIN).next_multiple_of(BOUNDARY_BYTES)
        } else {
            u64::MAX
        };
        let mut at = part.start;
        let outcome = loop {
            let end = at.saturating_add(block).min(part.end);
            let read = self.read_block(router, at..end).and_then(|report| {
                self.enqueue_copies(&streams, at..end)?;
                Ok(report)
            });
            at = end;
            match read {
                Ok(_) if at < part.end => {}
                outcome => break outcome,
            }
        };
        // Also after a failure: nothing may be in flight when this returns.
        let landed: Vec<_> = streams.iter().map(|(_, stream)| stream.synchronize()).collect();
        let landed = landed.into_iter().collect::<bifolio_device::Result<()>>();
        let report = outcome?;
        landed.map_err(|error| Error::device(self.file.path(), error).at(part.start))?;
        Ok(report)
    }

    fn read_block(&self, router: &Router, range: Range<u64>) -> Result<ReadReport> {
        let length = range.end - range.start;
        if self.stop.load(Ordering::Relaxed) {
            let detail = "stopped because the read into another device failed";
            return Err(Error::new(ErrorKind::Cancelled, self.file.path(), detail).into_device(router.device().id()));
        }
        let place = self.place(self.number, &range)?;
        let report = router.read(self.file, range.start, Some(length), place, self.options)?;
        if report.bytes < length {
            let detail = "the file was truncated during the read";
            let error = Error::new(ErrorKind::Truncated, self.file.path(), detail).at(range.start + report.bytes);
            return Err(error.into_device(router.device().id()));
        }
        Ok(report)
    }

    /// A stream on each of the other devices, with its number.
    fn streams(&self) -> Result<Vec<(usize, Stream)>> {
        let others = self.routers.iter().enumerate().filter(|(number, _)| *number != self.number);
        let stream = |(number, router): (usize, &&Router)| Ok((number, router.device().create_stream()?));
        others
            .map(stream)
            .collect::<bifolio_device::Result<_>>()
            .map_err(|error| Error::device(self.file.path(), error))
    }

    fn enqueue_copies(&self, streams: &[(usize, Stream)], block: Range<u64>) -> Result<()> {
        let from = self.place(self.number, &block)?;
        for (number, stream) in streams {
            let to = self.place(*number, &block)?;
            // SAFETY: the destinations are borrowed until the streams are synchronised (`run`).
            let copied = unsafe { stream.copy_from_peer(to, self.routers[self.number].device(), from) };
            copied.map_err(|error| Error::device(self.file.path(), error).at(block.start))?;
        }
        Ok(())
    }

    fn place(&self, number: usize, range: &Range<u64>) -> Result<DeviceSlice<'_>> {
        let place = self.destinations[number].part(range.start - self.lands_at, range.end - range.start);
        place.map_err(|error| {
            Error::new(ErrorKind::BadDestination, self.file.path(), error.detail())
                .at(range.start)
                .into_device(self.routers[number].device().id())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_cover_the_range_exactly_once_in_order(start in 0_u64..1 << 40, len in 0_u64..1 << 40, count in 1_usize..9) {
            let range = start..start + len;
            let mut at = start;
            for number in 0..count {
                let part = part_of(&range, number, count);
                prop_assert_eq!(part.start, at);
                prop_assert!(part.start <= part.end);
                at = part.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
