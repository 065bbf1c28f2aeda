//! Decryption that follows the bytes of one request.
//!
//! ```text
//!   the engines' streams   copy copy copy copy copy copy ...
//!                                      | event of each copy
//!   a stream of its own                decrypt unit 0 ... decrypt unit 1 ...
//! ```
//!
//! The destination is divided into units. When the last bytes of one are on their way, its decryption is enqueued behind
//! all copies that were told so far, in a stream of its own: in the engines' streams it would keep the link waiting. Few
//! and long launches cost the thread that talks to the driver next to nothing. What is not decrypted at the end, since
//! its bytes came by ways that have no events, is the caller's.

use super::Loader;
use super::crypt::Cipher;
use crate::Result;
use bifolio_compute::keyed::{DeviceXts, Lane};
use bifolio_device::{DeviceSlice, Event, Result as DeviceResult};
use bifolio_io::Follow;
use bifolio_kernels::aes::Direction;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are decrypted at a time, a multiple of every sector: long beside a launch, and short beside the requests
/// for which this pays, since the last unit's decryption is waited for.
const UNIT_BYTES: u64 = 16 << 20;
/// Shorter requests are read first and decrypted then.
const BYTES_MIN: u64 = 2 * UNIT_BYTES;

/// One request. Dropping it waits for what was enqueued.
#[derive(Debug)]
pub(super) struct Decryption<'a> {
    behind: Arc<Behind>,
    loader: &'a Loader,
}

/// What the router knows of it.
#[derive(Debug)]
struct Behind {
    xts: Arc<DeviceXts>,
    cipher: Cipher,
    /// The destination, which begins with the byte `offset` of the data.
    place: DeviceSlice<'static>,
    offset: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Until the request is over.
    lane: Option<Lane>,
    /// Bytes of each unit that were told.
    told: Vec<u64>,
}

impl<'a> Decryption<'a> {
    /// Whether a request of so many bytes is worth it.
    pub(super) fn pays(bytes: u64) -> bool {
        bytes >= BYTES_MIN
    }

    /// For a request to `destination`, which begins with the byte `offset` of the data, a sector's first.
    ///
    /// # Errors
    /// `Device` without a stream.
    pub(super) fn new(
        loader: &'a Loader,
        (xts, cipher): (&Arc<DeviceXts>, &Cipher),
        offset: u64,
        destination: DeviceSlice<'a>,
    ) -> Result<Self> {
        let units = destination.len().div_ceil(UNIT_BYTES) as usize;
        let state = Mutex::new(State { lane: Some(loader.take_lane()?), told: vec![0; units] });
        let (xts, cipher) = (Arc::clone(xts), cipher.clone());
        // SAFETY: it is used by the stream only, and this waits for the stream before its borrow ends.
        let place = unsafe { DeviceSlice::from_raw(destination.ptr(), destination.len()) };
        Ok(Self { behind: Arc::new(Behind { xts, cipher, place, offset, state }), loader })
    }

    /// For the request.
    pub(super) fn follow(&self) -> Arc<dyn Follow> {
        Arc::clone(&self.behind) as _
    }

    /// Waits, once the request is over; which ranges of the destination are not decrypted.
    ///
    /// # Errors
    /// `Device` if the decryption failed.
    pub(super) fn finish(self) -> Result<Vec<Range<u64>>> {
        let told = self.behind.lock().told.clone();
        self.end()?;
        let units = told.iter().enumerate().map(|(number, told)| (self.behind.unit(number as u64), *told));
        Ok(units.filter(|(unit, told)| unit.end - unit.start != *told).map(|(unit, _)| unit).collect())
    }

    /// Takes the lane away, so that nobody enqueues any more, and waits for what is in it.
    fn end(&self) -> Result<()> {
        let Some(lane) = self.behind.lock().lane.take() else { return Ok(()) };
        // Blocks on an event, which does not spin, where a stream's own synchronisation may.
        let done = lane.stream().record().and_then(|event| event.wait());
        done.or_else(|first| lane.stream().synchronize().and(Err(first))).map_err(|error| self.loader.failed(error))?;
        self.loader.lock().push(lane);
        Ok(())
    }
}

impl Drop for Decryption<'_> {
    fn drop(&mut self) {
        // The request has failed already.
        let _ = self.end();
    }
}

impl Behind {
    /// A unit's bytes in the destination.
    fn unit(&self, number: u64) -> Range<u64> {
        number * UNIT_BYTES..((number + 1) * UNIT_BYTES).min(self.place.len())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follow for Behind {
    fn begin(&self) {
        let mut state = self.lock();
        if let Some(lane) = &state.lane {
            // Its failure stays on the stream, and is reported at the end.
            let _ = lane.stream().synchronize();
        }
        // What was decrypted by an earlier run is overwritten by this one.
        state.told.fill(0);
    }

    fn copied(&self, place: DeviceSlice<'_>, event: &Event) -> DeviceResult<()> {
        let mut state = self.lock();
        let State { lane: Some(lane), told } = &mut *state else { return Ok(()) };
        lane.stream().wait(event)?;
        let (mut at, end) = (place.ptr().0 - self.place.ptr().0, place.ptr().0 - self.place.ptr().0 + place.len());
        while at < end {
            let number = at / UNIT_BYTES;
            let unit = self.unit(number);
            let told = &mut told[number as usize];
            *told += unit.end.min(end) - at;
            debug_assert!(*told <= unit.end - unit.start, "a byte was told twice");
            if *told == unit.end - unit.start {
                let data = self.place.part(unit.start, unit.end - unit.start)?;
                let sectors = self.cipher.sectors_at(self.offset + unit.start);
                // SAFETY: the request's own memory, all of which was copied before the stream comes to this; the lane is
                // waited for before the borrow ends.
                unsafe { self.xts.enqueue(lane, Direction::Decrypt, sectors, (data, data)) }?;
            }
            at = unit.end;
        }
        Ok(())
    }
}
