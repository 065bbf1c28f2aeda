//! Rows of plain numbers, in memory of the process or in a part of a memory with a descriptor.
//!
//! Addresses are given to the rows up to the last one that is used, and memory to those that somebody has asked for:
//! what lies between is never looked at, so that a table may begin far behind where it is used. A row that nobody has
//! written is all zeroes. Memory is taken where it is asked for, and an error there: touching a row takes none that
//! could be missing (of a memory with a descriptor that would be a SIGBUS).

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// What may lie in a table: numbers, so that any bytes are a value, and zeroes are nothing.
///
/// # Safety
/// Every pattern of bytes is a value of the type, it has no padding, and nothing to drop.
pub(crate) unsafe trait Row: Copy + 'static {}

// SAFETY: numbers.
unsafe impl Row for u16 {}
// SAFETY: numbers.
unsafe impl Row for u32 {}
// SAFETY: numbers.
unsafe impl Row for u64 {}
// SAFETY: arrays of numbers.
unsafe impl Row for [u32; 4] {}
// SAFETY: arrays of numbers.
unsafe impl Row for [u64; 2] {}

#[derive(Debug)]
pub(crate) struct Table<T: Row> {
    /// None for memory of the process.
    file: Option<Arc<File>>,
    /// Where it begins there.
    offset: u64,
    rows_max: u64,
    start: NonNull<u8>,
    mapped_bytes: usize,
    /// Rows that have memory, in ascending order.
    rows: Vec<Range<u64>>,
    of: PhantomData<T>,
}

// SAFETY: the memory has one owner, and is not tied to a thread.
unsafe impl<T: Row> Send for Table<T> {}
// SAFETY: shared, it is only read.
unsafe impl<T: Row> Sync for Table<T> {}

impl<T: Row> Table<T> {
    const ROW: usize = size_of::<T>();

    /// Of at most so many rows, none of which has memory. `offset` is a multiple of a memory page.
    pub(crate) fn new(file: Option<Arc<File>>, offset: u64, rows_max: u64) -> Self {
        Self { file, offset, rows_max, start: NonNull::dangling(), mapped_bytes: 0, rows: vec![], of: PhantomData }
    }

    /// Gives rows memory, which hold what they held where they had some before, here or in another process.
    ///
    /// # Errors
    /// There is no memory, or the table has no such rows; then nothing has changed.
    pub(crate) fn reserve(&mut self, rows: &Range<u64>) -> io::Result<()> {
        if rows.end > self.rows_max {
            let detail = format!("{} rows at most, and {} are needed", self.rows_max, rows.end);
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, detail));
        }
        if rows.is_empty() || self.rows.iter().any(|had| had.start <= rows.start && rows.end <= had.end) {
            return Ok(());
        }
        let bytes = rows.start * Self::ROW as u64..rows.end * Self::ROW as u64;
        if let Some(file) = &self.file {
            let (at, len) = ((self.offset + bytes.start) as i64, (bytes.end - bytes.start) as i64);
            // SAFETY: a plain call on an open descriptor. What is there stays.
            if unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, at, len) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        self.map(bytes.end as usize)?;
        self.rows.push(rows.clone());
        self.rows.sort_unstable_by_key(|had| had.start);
        self.rows.dedup_by(|next, had| {
            let is_beside = next.start <= had.end;
            had.end = if is_beside { had.end.max(next.end) } else { had.end };
            is_beside
        });
        Ok(())
    }

    /// Gives addresses to the first bytes.
    fn map(&mut self, bytes: usize) -> io::Result<()> {
        if bytes <= self.mapped_bytes {
            return Ok(());
        }
        let start = match &self.file {
            // SAFETY: grows the mapping that this table alone has; there are no references into it now.
            _ if self.mapped_bytes > 0 => unsafe {
                libc::mremap(self.start.as_ptr().cast(), self.mapped_bytes, bytes, libc::MREMAP_MAYMOVE)
            },
            Some(file) => {
                let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
                // SAFETY: a new mapping.
                unsafe { libc::mmap(std::ptr::null_mut(), bytes, ACCESS, flags, fd, self.offset as i64) }
            }
            None => {
                // What lies between rows is not touched, and takes no memory.
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                // SAFETY: a new mapping.
                unsafe { libc::mmap(std::ptr::null_mut(), bytes, ACCESS, flags, -1, 0) }
            }
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        self.mapped_bytes = bytes;
        Ok(())
    }

    /// A row, if it has memory.
    pub(crate) fn get(&self, row: u64) -> Option<&T> {
        // SAFETY: rows with memory lie in the mapping, and any bytes are a value; who writes has the table alone.
        self.has(row).then(|| unsafe { self.place(row).as_ref() })
    }

    /// Writes a row. What has no memory stays nothing.
    pub(crate) fn set(&mut self, row: u64, value: T) {
        if self.has(row) {
            // SAFETY: as above. It is not left out and not put off: another process may see the memory.
            unsafe { self.place(row).write_volatile(value) };
        }
    }

    /// Makes rows nothing.
    pub(crate) fn clear(&mut self, rows: &Range<u64>) {
        for had in self.rows.clone() {
            let (start, end) = (had.start.max(rows.start), had.end.min(rows.end));
            if start < end {
                // SAFETY: rows with memory lie in the mapping.
                unsafe { self.place(start).as_ptr().write_bytes(0, (end - start) as usize) };
            }
        }
    }

    /// Those of some rows that have memory.
    pub(crate) fn rows_in<'a>(&'a self, rows: &Range<u64>) -> impl Iterator<Item = u64> + use<'a, T> {
        let rows = rows.clone();
        self.rows.iter().flat_map(move |had| had.start.max(rows.start)..had.end.min(rows.end))
    }

    fn has(&self, row: u64) -> bool {
        self.rows.iter().any(|had| had.contains(&row))
    }

    fn place(&self, row: u64) -> NonNull<T> {
        debug_assert!((row as usize + 1) * Self::ROW <= self.mapped_bytes);
        // SAFETY: callers ask for rows with memory.
        unsafe { self.start.cast::<T>().add(row as usize) }
    }
}

const ACCESS: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

impl<T: Row> Drop for Table<T> {
    fn drop(&mut self) {
        if self.mapped_bytes > 0 {
            // SAFETY: the mapping made above; nobody uses it any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_memory_where_it_was_asked_for_and_keep_what_they_hold() {
        let mut table = Table::<u64>::new(None, 0, 1 << 30);
        assert_eq!(table.get(0), None);
        // Far behind the beginning: a gigabyte of addresses, and a page of memory.
        for rows in [1 << 20..(1 << 20) + 10, 0..5, 5..7, 1 << 27..(1 << 27) + 1] {
            table.reserve(&rows).unwrap();
            table.set(rows.start, rows.end);
        }
        assert_eq!((table.get(1 << 20), table.get(0), table.get(5)), (Some(&((1 << 20) + 10)), Some(&5), Some(&7)));
        assert_eq!((table.get(6), table.get(7), table.get(1 << 27)), (Some(&0), None, Some(&((1 << 27) + 1))));
        assert_eq!(table.rows_in(&(4..1 << 21)).collect::<Vec<_>>().len(), 3 + 10);
        table.set(7, 1);
        table.clear(&(5..1 << 21));
        assert_eq!(
            (table.get(0), table.get(5), table.get(1 << 20), table.get(7)),
            (Some(&5), Some(&0), Some(&0), None)
        );
        assert_eq!(table.reserve(&(0..(1 << 30) + 1)).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn where_there_is_no_memory_is_an_error_and_nothing_changes() {
        let mut table = Table::<u64>::new(None, 0, u64::MAX);
        table.reserve(&(0..1)).unwrap();
        table.set(0, 7);
        table.reserve(&(0..1 << 59)).unwrap_err();
        assert_eq!((table.get(0), table.get(1)), (Some(&7), None));
    }
}
