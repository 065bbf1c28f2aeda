//! Throughput of single requests, one after the other at drawn places, by their size.

use super::metric::Rate;
use crate::error::{Error, Result};
use crate::harness::session::Session;
use fastrand::Rng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// A buffer that direct I/O takes.
struct Buffer {
    memory: Vec<u8>,
    at: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE];
        let at = memory.as_ptr().align_offset(PAGE);
        Self { memory, at, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.at..self.at + self.len]
    }
}

/// What is asked.
#[derive(Debug, Clone)]
pub(super) struct Asked<'a> {
    /// Sizes of a request.
    pub(super) sizes: &'a [u64],
    /// Time for each size and direction.
    pub(super) point: Duration,
    /// Bytes that are read and written.
    pub(super) span: u64,
    /// Seed of places and data.
    pub(super) seed: u64,
}

/// Reads and writes of a disk or file, past the page cache.
///
/// # Errors
/// The system's.
pub(super) fn of_disk(path: &Path, asked: &Asked<'_>, session: &Session) -> Result<[Vec<Rate>; 2]> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
    let file = file.map_err(|error| Error::system(path.display(), "opening it for direct I/O", error))?;
    let mut random = Rng::with_seed(asked.seed);
    let step = asked.sizes.iter().max().copied().unwrap_or(PAGE as u64);
    // Everything has been written once, with data that looks like a program's.
    let mut buffer = Buffer::new(step as usize);
    for place in (0..asked.span / step).map(|at| at * step) {
        session.check()?;
        fill(buffer.bytes(), &mut random);
        write(&file, path, buffer.bytes(), place)?;
    }
    let mut rates = [vec![], vec![]];
    for &size in asked.sizes {
        let places = (asked.span / size).max(1);
        let mut buffer = Buffer::new(size as usize);
        for (at, are_writes) in [false, true].into_iter().enumerate() {
            session.check()?;
            fill(buffer.bytes(), &mut random);
            let mut one = || {
                let place = random.u64(..places) * size;
                if are_writes {
                    return write(&file, path, buffer.bytes(), place);
                }
                let read = file.read_exact_at(buffer.bytes(), place);
                read.map_err(|error| Error::system(path.display(), format!("reading offset {place}"), error))
            };
            rates[at].push(Rate { bytes: size, mb_per_s: rate(size, asked.point, &mut one)? });
            session.advance(1);
        }
    }
    Ok(rates)
}

/// The same of copies within memory.
///
/// # Errors
/// An interruption.
pub(super) fn of_memory(asked: &Asked<'_>, session: &Session) -> Result<[Vec<Rate>; 2]> {
    let mut random = Rng::with_seed(asked.seed);
    let mut memory = vec![0; asked.span as usize];
    fill(&mut memory, &mut random);
    let mut rates = [vec![], vec![]];
    for &size in asked.sizes {
        let places = (asked.span / size).max(1);
        let mut own = vec![1; size as usize];
        for (at, are_writes) in [false, true].into_iter().enumerate() {
            session.check()?;
            let mut one = || {
                let place = (random.u64(..places) * size) as usize;
                let range = place..place + size as usize;
                if are_writes {
                    memory[range].copy_from_slice(&own);
                } else {
                    own.copy_from_slice(&memory[range]);
                }
                std::hint::black_box(&mut own);
                Ok(())
            };
            rates[at].push(Rate { bytes: size, mb_per_s: rate(size, asked.point, &mut one)? });
            session.advance(1);
        }
    }
    Ok(rates)
}

fn rate(size: u64, time: Duration, one: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    let mut done = 0_u64;
    while begin.elapsed() < time || done < 4 {
        one()?;
        done += 1;
    }
    Ok((done * size) as f64 / 1e6 / begin.elapsed().as_secs_f64())
}

fn write(file: &File, path: &Path, bytes: &[u8], place: u64) -> Result<()> {
    let written = file.write_all_at(bytes, place);
    written.map_err(|error| Error::system(path.display(), format!("writing offset {place}"), error))
}

/// Half drawn, half small numbers.
fn fill(bytes: &mut [u8], random: &mut Rng) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = if at % 2 == 0 { random.u64(..) } else { at as u64 & 7 };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}
