//! Decryption that follows the bytes of one request: as soon as the copy of some sectors was enqueued, their decryption
//! is enqueued behind it, so that nothing is left to do when the last bytes have landed.
//!
//! Pieces begin and end where the router's buffers do. Of each, the whole sectors are decrypted; which ones those were
//! is remembered, and the caller does the rest. So it does not matter how the request was cut, nor by which ways its
//! bytes came.

use super::crypt::Cipher;
use bifolio_compute::keyed::{DeviceXts, SecretMemory};
use bifolio_device::{DeviceSlice, Result, Stream};
use bifolio_io::Follow;
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::TWEAK_BYTES;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are decrypted by one launch at most; their tweaks fit into a stream's scratch.
const LAUNCH_BYTES: u64 = 4 << 20;
/// The smallest sector's.
const SCRATCH_BYTES: u64 = LAUNCH_BYTES / 512 * TWEAK_BYTES;
/// Streams that get scratch; what lands by others is left to the caller.
const STREAMS_MAX: usize = 32;
/// The boundary that kernels want.
const WORD_BYTES: u64 = 16;

/// One request, whose destination begins with the byte `offset` of the data.
#[derive(Debug)]
pub(super) struct Decryption {
    xts: Arc<DeviceXts>,
    cipher: Cipher,
    offset: u64,
    /// The destination.
    start: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the address of the stream, which is one as long as the request runs.
    scratch: HashMap<usize, Arc<SecretMemory>>,
    /// Decrypted, as ranges of the data.
    done: Vec<Range<u64>>,
}

impl Decryption {
    pub(super) fn new(xts: Arc<DeviceXts>, cipher: Cipher, offset: u64, destination: DeviceSlice<'_>) -> Self {
        Self { xts, cipher, offset, start: destination.ptr().0, state: Mutex::default() }
    }

    /// What of a range of the data was not decrypted, once the request is over.
    pub(super) fn rest(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut done = self.lock().done.clone();
        done.sort_unstable_by_key(|range| range.start);
        gaps(range, &done)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scratch_of(&self, stream: &Stream) -> Result<Option<Arc<SecretMemory>>> {
        let address = std::ptr::from_ref(stream) as usize;
        let mut state = self.lock();
        if let Some(scratch) = state.scratch.get(&address) {
            return Ok(Some(Arc::clone(scratch)));
        }
        if state.scratch.len() == STREAMS_MAX {
            return Ok(None);
        }
        let scratch = Arc::new(SecretMemory::new(stream.device(), SCRATCH_BYTES)?);
        state.scratch.insert(address, Arc::clone(&scratch));
        Ok(Some(scratch))
    }
}

impl Follow for Decryption {
    fn begin(&self) {
        // What was decrypted by an earlier run is overwritten by this one.
        self.lock().done.clear();
    }

    fn landed(&self, stream: &Stream, place: DeviceSlice<'_>) -> Result<()> {
        let sector = self.cipher.sector_bytes();
        let first = self.offset + (place.ptr().0 - self.start);
        let whole = first.next_multiple_of(sector)..(first + place.len()) / sector * sector;
        if whole.start >= whole.end || !place.ptr().offset_by(whole.start - first).0.is_multiple_of(WORD_BYTES) {
            return Ok(());
        }
        let Some(scratch) = self.scratch_of(stream)? else { return Ok(()) };
        let mut at = whole.start;
        while at < whole.end {
            let len = LAUNCH_BYTES.min(whole.end - at);
            let data = place.part(at - first, len)?;
            // SAFETY: the place is the request's, which waits for the stream; the scratch is this stream's, and stays as
            // long as this.
            unsafe {
                let sectors = self.cipher.sectors_at(at);
                self.xts.enqueue(stream, scratch.slice(), Direction::Decrypt, sectors, (data, data))?;
            }
            at += len;
        }
        self.lock().done.push(whole);
        Ok(())
    }
}

/// What of a range is in none of the others, which are sorted by where they begin.
fn gaps(range: &Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut gaps, mut at) = (vec![], range.start);
    for other in others {
        if other.start > at {
            gaps.push(at..other.start.min(range.end));
        }
        at = at.max(other.end);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_nobody_has() {
        assert_eq!(gaps(&(0..10), &[]), [0..10]);
        assert_eq!(gaps(&(0..10), &[0..4, 4..10]), []);
        assert_eq!(gaps(&(0..10), &[0..4, 2..3, 6..8]), [4..6, 8..10]);
        assert_eq!(gaps(&(5..10), &[5..6]), [6..10]);
    }
}
