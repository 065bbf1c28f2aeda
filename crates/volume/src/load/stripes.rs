//! RAID-6: every member's chunks to their places at the same time, and what is lost computed there.
//!
//! Whole stripes are recovered in the destination: the surviving data is there anyway, and only the parity that is
//! needed takes memory besides. Pieces of stripes, and devices whose kernels know no addresses, get each lost
//! piece by itself, from the rows of all other members in scratch memory.

use super::device::Load;
use super::loader::Loader;
use super::parts::in_parts;
use crate::{Error, ErrorKind, Result};
use bifolio_compute::ThreadPool;
use bifolio_compute::keyed::DeviceRaid6;
use bifolio_device::DeviceSlice;
use bifolio_io::ReadExtent;
use bifolio_kernels::Addressing;
use bifolio_kernels::raid6::{Geometry, Loss};
use std::ops::Range;

/// The boundary that kernels want.
const WORD_BYTES: u64 = 16;
/// Rows of a lost piece that are recovered at a time.
const SLICE_BYTES: u64 = 1 << 20;
/// Rows are read in multiples of this.
const ROW_BYTES: u64 = 512;

/// An array at one moment: which members are there does not change while it is used.
pub(crate) trait ArraySnapshot: Sync {
    /// What to call it.
    fn name(&self) -> String;

    /// Data members, and bytes of a chunk.
    fn geometry(&self) -> Geometry;

    /// Which member has each chunk of a stripe: data in the order of their coefficients in Q, then P, then Q.
    fn slots(&self, stripe: u64) -> Vec<usize>;

    /// Where the stripe's data chunk with this number, in the order of the content, is among the slots.
    fn slot_of(&self, stripe: u64, number: u32) -> u32;

    /// A member, and where its first stripe begins. None if it is not there.
    fn member(&self, number: usize) -> Option<(&dyn Load, u64)>;
}

/// A failure, and the member that it was of.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) member: Option<usize>,
    pub(crate) error: Error,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { member: None, error }
    }
}

/// Bytes of one data chunk of a stripe, and where they go in the destination.
#[derive(Debug, Clone, Copy)]
struct Piece {
    stripe: u64,
    number: u32,
    /// In the chunk.
    row: u64,
    len: u64,
    place: u64,
}

/// Loads a range of an array's content.
pub(crate) fn load_stripes(
    array: &dyn ArraySnapshot,
    service: &DeviceRaid6,
    loader: &Loader,
    offset: u64,
    destination: DeviceSlice<'_>,
) -> Result<(), Failed> {
    let transfer = Transfer { array, service, loader, geometry: array.geometry() };
    in_parts(&(offset..offset + destination.len()), transfer.stripe_bytes(), &|part| {
        loader.check_cancel(&array.name())?;
        let len = part.end - part.start;
        let place = destination.part(part.start - offset, len).map_err(|error| loader.failed(error))?;
        transfer.part(&part, place)
    })
}

struct Transfer<'a> {
    array: &'a dyn ArraySnapshot,
    service: &'a DeviceRaid6,
    loader: &'a Loader,
    geometry: Geometry,
}

impl Transfer<'_> {
    fn stripe_bytes(&self) -> u64 {
        u64::from(self.geometry.data) * self.geometry.chunk_bytes
    }

    fn part(&self, part: &Range<u64>, place: DeviceSlice<'_>) -> Result<(), Failed> {
        let unit = self.stripe_bytes();
        let whole = part.start.next_multiple_of(unit)..part.end / unit * unit;
        let is_degraded = (0..self.geometry.members() as usize).any(|member| self.array.member(member).is_none());
        let has_addresses = self.loader.device().capabilities().virtual_memory.reason().is_none();
        let at_boundary = place.ptr().offset_by(whole.start.saturating_sub(part.start)).0.is_multiple_of(WORD_BYTES)
            && self.geometry.chunk_bytes.is_multiple_of(WORD_BYTES);
        if !is_degraded || whole.start >= whole.end || !has_addresses || !at_boundary {
            return self.pieces(part, place);
        }
        let slice = |range: &Range<u64>| {
            place.part(range.start - part.start, range.end - range.start).map_err(|error| self.failed(error))
        };
        self.whole(whole.start / unit..whole.end / unit, slice(&whole)?)?;
        for edge in [part.start..whole.start, whole.end..part.end] {
            if !edge.is_empty() {
                self.pieces(&edge, slice(&edge)?)?;
            }
        }
        Ok(())
    }

    /// Whole stripes of an array that has lost members.
    fn whole(&self, stripes: Range<u64>, place: DeviceSlice<'_>) -> Result<(), Failed> {
        let Geometry { data, chunk_bytes: chunk } = self.geometry;
        let mut to_place = self.nothing();
        let mut to_scratch = self.nothing();
        let (mut rows, mut losses) = (vec![], vec![]);
        let mut scratch_bytes = 0;
        for stripe in stripes.clone() {
            let slots = self.array.slots(stripe);
            let mut places = vec![0; slots.len()];
            let mut lost_data = vec![];
            for number in 0..data {
                let slot = self.array.slot_of(stripe, number);
                let at = (stripe - stripes.start) * self.stripe_bytes() + u64::from(number) * chunk;
                places[slot as usize] = place.ptr().0 + at;
                match self.array.member(slots[slot as usize]) {
                    Some((_, first)) => to_place[slots[slot as usize]].push(extent(first + stripe * chunk, chunk, at)),
                    None => lost_data.push(slot),
                }
            }
            if lost_data.is_empty() {
                continue;
            }
            let (loss, wanted) = self.loss(&slots, &lost_data)?;
            for parity in [self.geometry.p(), self.geometry.q()] {
                // A place of its own also where it is only written, or not touched at all.
                places[parity as usize] = scratch_bytes;
                if wanted.contains(&parity) {
                    let member = slots[parity as usize];
                    let (_, first) = self.array.member(member).expect("parity that is there");
                    to_scratch[member].push(extent(first + stripe * chunk, chunk, scratch_bytes));
                }
                scratch_bytes += chunk;
            }
            rows.push(places);
            losses.push(loss);
        }
        if rows.is_empty() {
            return self.fetch(&to_place, place, &[], None);
        }
        self.loader.with_scratch(scratch_bytes, |scratch| {
            self.fetch(&to_place, place, &to_scratch, Some(scratch))?;
            for places in &mut rows {
                for parity in [self.geometry.p(), self.geometry.q()] {
                    places[parity as usize] += scratch.ptr().0;
                }
            }
            self.recover(Addressing::Absolute, self.geometry, &rows, &losses)
        })
    }

    /// Any range: what is there goes to its place, and what is lost is computed piece by piece.
    fn pieces(&self, part: &Range<u64>, place: DeviceSlice<'_>) -> Result<(), Failed> {
        let mut to_place = self.nothing();
        let mut lost = vec![];
        for piece in pieces_of(self.geometry, part) {
            let slots = self.array.slots(piece.stripe);
            let member = slots[self.array.slot_of(piece.stripe, piece.number) as usize];
            match self.array.member(member) {
                Some((_, first)) => {
                    let at = first + piece.stripe * self.geometry.chunk_bytes + piece.row;
                    to_place[member].push(extent(at, piece.len, piece.place));
                }
                None => lost.push(piece),
            }
        }
        self.fetch(&to_place, place, &[], None)?;
        lost.iter().flat_map(slices).try_for_each(|piece| self.lost_piece(&piece, place))
    }

    /// One piece by the rows of the others.
    fn lost_piece(&self, piece: &Piece, place: DeviceSlice<'_>) -> Result<(), Failed> {
        let chunk = self.geometry.chunk_bytes;
        let rows = piece.row / ROW_BYTES * ROW_BYTES..(piece.row + piece.len).next_multiple_of(ROW_BYTES).min(chunk);
        let len = rows.end - rows.start;
        let slots = self.array.slots(piece.stripe);
        let lost_data: Vec<u32> =
            (0..self.geometry.data).filter(|slot| self.array.member(slots[*slot as usize]).is_none()).collect();
        let (loss, wanted) = self.loss(&slots, &lost_data)?;
        let mut extents = self.nothing();
        let places: Vec<u64> = (0..slots.len() as u64).map(|slot| slot * len).collect();
        for (slot, &member) in slots.iter().enumerate() {
            let is_wanted = slot < self.geometry.data as usize || wanted.contains(&(slot as u32));
            if let (true, Some((_, first))) = (is_wanted, self.array.member(member)) {
                extents[member].push(extent(first + piece.stripe * chunk + rows.start, len, places[slot]));
            }
        }
        let geometry = Geometry { chunk_bytes: len, ..self.geometry };
        self.loader.with_scratch(len * slots.len() as u64, |scratch| {
            self.fetch(&[], scratch, &extents, Some(scratch))?;
            let target = places[self.array.slot_of(piece.stripe, piece.number) as usize] + piece.row - rows.start;
            self.recover(Addressing::Relative(scratch), geometry, &[places], &[loss])?;
            self.loader.with_workspace(|workspace| {
                let copied = scratch.part(target, piece.len).and_then(|from| {
                    let to = place.part(piece.place, piece.len)?;
                    // SAFETY: both are there until the stream has been waited for, and apart.
                    unsafe { workspace.stream().copy_on_device(to, from) }
                });
                copied.and(workspace.stream().synchronize()).map_err(|error| self.failed(error))
            })?;
            Ok(())
        })
    }

    /// The loss to compute, and the parity that takes.
    fn loss(&self, slots: &[usize], lost_data: &[u32]) -> Result<(Loss, Vec<u32>)> {
        let (p, q) = (self.geometry.p(), self.geometry.q());
        let has = |slot: u32| self.array.member(slots[slot as usize]).is_some();
        match *lost_data {
            [a] if has(p) => Ok((Loss::one(a), vec![p])),
            [a] if has(q) => Ok((Loss::two(a, p), vec![q])),
            [a, b] if has(p) && has(q) => Ok((Loss::two(a, b), vec![p, q])),
            _ => {
                let detail = "more than two members are missing; RAID-6 tolerates two";
                Err(Error::new(ErrorKind::TooFewMembers, self.array.name(), detail))
            }
        }
    }

    fn recover(
        &self,
        base: Addressing<'_>,
        geometry: Geometry,
        rows: &[Vec<u64>],
        losses: &[Loss],
    ) -> Result<(), Failed> {
        self.loader.with_workspace(|workspace| {
            // SAFETY: the caller lent the destination to this request, and the scratch is its own; both wait here. The
            // chunks are different ranges of both.
            unsafe { self.service.recover(workspace, geometry, base, rows, losses) }.map_err(|error| self.failed(error))
        })?;
        Ok(())
    }

    /// Every member's extents at the same time.
    fn fetch(
        &self,
        to_place: &[Vec<ReadExtent>],
        place: DeviceSlice<'_>,
        to_scratch: &[Vec<ReadExtent>],
        scratch: Option<DeviceSlice<'_>>,
    ) -> Result<(), Failed> {
        let one = |member: usize| {
            let read =
                |extents: Option<&Vec<ReadExtent>>, to: DeviceSlice<'_>| match (extents, self.array.member(member)) {
                    (Some(extents), Some((device, _))) if !extents.is_empty() => {
                        device.load_extents(self.loader, extents, to)
                    }
                    _ => Ok(()),
                };
            read(to_place.get(member), place)
                .and_then(|()| scratch.map_or(Ok(()), |scratch| read(to_scratch.get(member), scratch)))
                .map_err(|error| Failed { member: Some(member), error })
        };
        let is_busy = |member: &usize| {
            [to_place, to_scratch].iter().any(|of| of.get(*member).is_some_and(|extents| !extents.is_empty()))
        };
        let busy: Vec<usize> = (0..self.geometry.members() as usize).filter(is_busy).collect();
        ThreadPool::of_process().divide(busy.len(), busy, one)
    }

    fn nothing(&self) -> Vec<Vec<ReadExtent>> {
        vec![vec![]; self.geometry.members() as usize]
    }

    fn failed(&self, error: bifolio_device::Error) -> Error {
        self.loader.failed(error)
    }
}

/// A piece in slices that bound the memory of its recovery.
fn slices(piece: &Piece) -> impl Iterator<Item = Piece> + use<> {
    let Piece { stripe, number, row, len, place } = *piece;
    (0..len).step_by(SLICE_BYTES as usize).map(move |at| {
        let len = SLICE_BYTES.min(len - at);
        Piece { stripe, number, row: row + at, len, place: place + at }
    })
}

fn extent(offset: u64, length: u64, place: u64) -> ReadExtent {
    ReadExtent { offset, length, place }
}

/// The pieces of a range of the content, in its order; places count from its beginning.
fn pieces_of(geometry: Geometry, range: &Range<u64>) -> impl Iterator<Item = Piece> + use<> {
    let Geometry { data, chunk_bytes } = geometry;
    let (start, end) = (range.start, range.end);
    let mut at = start;
    std::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|left| *left > 0)?;
        let (chunk, row) = (at / chunk_bytes, at % chunk_bytes);
        let len = left.min(chunk_bytes - row);
        let (stripe, number) = (chunk / u64::from(data), (chunk % u64::from(data)) as u32);
        let piece = Piece { stripe, number, row, len, place: at - start };
        at += len;
        Some(piece)
    })
}
