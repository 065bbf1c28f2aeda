//! From places to commands for the device: neighbours are one copy, and chunks at equal distances
//! are one copy of rows. A command costs 2 to 3 us, and a copy of 512 KiB by itself reaches 80 %
//! of the link's rate.

use super::batch::Piece;
use super::job::Job;
use bifolio_device::{DeviceSlice, Result, Rows, Stream};

/// Shorter rows stay copies of their own: the `scatter` kernel is better at many short places.
const ROW_BYTES_MIN: u64 = 128 << 10;

/// Host memory from `from` on, relative to some start, and where on the device it goes to or comes
/// from: from its first row to its last.
#[derive(Debug)]
pub(super) struct Copy<'a> {
    pub(super) from: u64,
    pub(super) place: DeviceSlice<'a>,
    pub(super) rows: Rows,
}

impl<'a> Copy<'a> {
    fn one(from: u64, place: DeviceSlice<'a>) -> Self {
        Self { from, place, rows: Rows { bytes: place.len(), pitch: place.len(), count: 1 } }
    }

    /// Bytes that it moves.
    pub(super) fn bytes(&self) -> u64 {
        self.rows.bytes * self.rows.count
    }

    /// Takes in what follows in host memory, if that makes no second command.
    fn take_in(&mut self, from: u64, place: DeviceSlice<'a>, as_rows: bool) -> bool {
        let (first, next, rows) = (self.place.ptr().0, place.ptr().0, &mut self.rows);
        if from != self.from + rows.bytes * rows.count || next < first {
            return false;
        }
        let distance = next - first;
        if rows.count == 1 && distance == rows.bytes {
            *rows = Rows { bytes: rows.bytes + place.len(), pitch: rows.bytes + place.len(), count: 1 };
        } else if as_rows
            && rows.bytes >= ROW_BYTES_MIN
            && place.len() == rows.bytes
            && rows.count == 1
            && distance > rows.bytes
        {
            *rows = Rows { pitch: distance, count: 2, ..*rows };
        } else if rows.count > 1 && place.len() == rows.bytes && distance == rows.count * rows.pitch {
            rows.count += 1;
        } else {
            return false;
        }
        // SAFETY: both are places of one job, behind one another or rows of its one destination, what
        // lies between them included; that is never touched.
        self.place = unsafe { DeviceSlice::from_raw_ordered(self.place.ptr(), rows.span()) };
        true
    }

    /// Enqueues it, to the device.
    ///
    /// # Safety
    /// `start`, plus `from`, has its bytes; they stay valid and unwritten until the work completes.
    pub(super) unsafe fn to_device(&self, stream: &Stream, start: *const u8) -> Result<()> {
        let from = start.wrapping_add(self.from as usize);
        if self.rows.count == 1 {
            // SAFETY: the caller's promise.
            return unsafe { stream.copy_to_device(self.place, from) };
        }
        // SAFETY: as above.
        unsafe { stream.copy_rows_to_device(self.place, from, self.rows) }
    }

    /// Enqueues it, to the host.
    ///
    /// # Safety
    /// `start`, plus `from`, has room for its bytes; nobody touches them until the work completes.
    pub(super) unsafe fn to_host(&self, stream: &Stream, start: *mut u8) -> Result<()> {
        let to = start.wrapping_add(self.from as usize);
        if self.rows.count == 1 {
            // SAFETY: the caller's promise.
            return unsafe { stream.copy_to_host(to, self.place) };
        }
        // SAFETY: as above.
        unsafe { stream.copy_rows_to_host(to, self.place, self.rows) }
    }
}

/// Copies being collected, as rows only where their job says so: a command of rows spans what lies
/// between them, which must be one allocation.
#[derive(Debug, Default)]
pub(super) struct Copies<'a> {
    pub(super) list: Vec<Copy<'a>>,
    rows: bool,
}

impl<'a> Copies<'a> {
    /// An empty collection for a job.
    pub(super) fn of(job: &Job, capacity: usize) -> Self {
        Self { list: Vec::with_capacity(capacity), rows: job.lands_in_rows() }
    }

    /// Adds bytes; those that lie behind one another in host memory must come in that order.
    pub(super) fn push(&mut self, from: u64, place: DeviceSlice<'a>) {
        if !self.list.last_mut().is_some_and(|last| last.take_in(from, place, self.rows)) {
            self.list.push(Copy::one(from, place));
        }
    }

    /// Bytes of a file, as far as they land in one place after the other; `from` is where the first
    /// of them lies.
    pub(super) fn push_range(
        &mut self,
        job: &'a Job,
        segment: usize,
        (mut at, end): (u64, u64),
        from: u64,
    ) -> crate::Result<()> {
        let first = at;
        while at < end {
            let place = job.place(segment, at, end - at)?;
            self.push(from + (at - first), place);
            at += place.len();
        }
        Ok(())
    }
}

/// The copies for the pieces in a slot.
pub(super) fn copies_of<'a>(job: &'a Job, pieces: &[Piece]) -> crate::Result<Vec<Copy<'a>>> {
    let mut copies = Copies::of(job, pieces.len());
    for piece in pieces {
        copies.push_range(job, piece.segment, (piece.offset, piece.offset + piece.len), piece.wanted_at())?;
    }
    Ok(copies.list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::DevicePtr;
    use proptest::prelude::*;

    /// A place that is never touched.
    fn place(at: u64, len: u64) -> DeviceSlice<'static> {
        // SAFETY: the tests only look at addresses.
        unsafe { DeviceSlice::from_raw_ordered(DevicePtr(at), len) }
    }

    fn rows_of(chunks: &[(u64, u64, u64)]) -> Vec<Rows> {
        let mut copies = Copies { rows: true, ..Copies::default() };
        for (from, at, len) in chunks {
            copies.push(*from, place(*at, *len));
        }
        copies.list.iter().map(|copy| copy.rows).collect()
    }

    #[test]
    fn chunks_of_a_striped_member_are_one_copy() {
        let chunk = 512 << 10;
        // A part of a chunk, five whole ones of four members, and a part.
        let mut chunks = vec![(0, 0, 1000)];
        let ahead = 1000 + 3 * chunk;
        chunks.extend((0..5).map(|row| (1000 + row * chunk, ahead + row * 4 * chunk, chunk)));
        chunks.push((1000 + 5 * chunk, ahead + 20 * chunk, 77));
        let rows = rows_of(&chunks);
        assert_eq!(rows.iter().map(|rows| rows.count).collect::<Vec<_>>(), [1, 5, 1]);
        assert_eq!(rows[1], Rows { bytes: chunk, pitch: 4 * chunk, count: 5 });
    }

    #[test]
    fn places_in_several_allocations_are_not_spanned() {
        let mut copies = Copies::default();
        for number in 0..4 {
            copies.push(number << 20, place(number << 30, 1 << 20));
        }
        assert_eq!(copies.list.len(), 4);
    }

    #[test]
    fn neighbours_are_one_copy_and_short_rows_stay_apart() {
        assert_eq!(rows_of(&[(0, 0, 10), (10, 10, 5), (15, 15, 1)]), [Rows { bytes: 16, pitch: 16, count: 1 }]);
        assert_eq!(rows_of(&[(0, 0, 4096), (4096, 8192, 4096), (8192, 16_384, 4096)]).len(), 3);
        // Backwards, and with a gap in host memory.
        let mib = 1 << 20;
        assert_eq!(rows_of(&[(0, 8 * mib, mib), (mib, 0, mib)]).len(), 2);
        assert_eq!(rows_of(&[(0, 0, mib), (2 * mib, 8 * mib, mib)]).len(), 2);
    }

    /// Half of the shortest row.
    const UNIT: u64 = ROW_BYTES_MIN / 2;

    /// Host and device addresses of every unit of rows.
    fn units(from: u64, at: u64, rows: Rows) -> impl Iterator<Item = (u64, u64)> {
        (0..rows.count).flat_map(move |row| {
            let (from, at) = (from + row * rows.bytes, at + row * rows.pitch);
            (0..rows.bytes / UNIT).map(move |unit| (from + unit * UNIT, at + unit * UNIT))
        })
    }

    proptest! {
        /// Whatever is pushed, the commands move exactly those bytes to exactly those places.
        #[test]
        fn commands_move_what_was_pushed(
            chunks in proptest::collection::vec((prop_oneof![6 => Just(0_u64), 1 => 1_u64..3], 0_u64..3, 1_u64..4), 1..40)
        ) {
            // Places never overlap: each begins behind the end of the one before.
            let (mut from, mut at, mut expected, mut copies) = (0, 0, vec![], Copies { rows: true, ..Copies::default() });
            for (gap, skip, len) in chunks {
                (from, at) = (from + gap * UNIT, at + skip * UNIT);
                copies.push(from, place(at, len * UNIT));
                expected.extend(units(from, at, Rows { bytes: len * UNIT, pitch: len * UNIT, count: 1 }));
                (from, at) = (from + len * UNIT, at + len * UNIT);
            }
            let moved: Vec<_> =
                copies.list.iter().flat_map(|copy| units(copy.from, copy.place.ptr().0, copy.rows)).collect();
            prop_assert_eq!(moved, expected);
            prop_assert!(copies.list.iter().all(|copy| copy.place.len() == copy.rows.span()));
        }
    }
}
