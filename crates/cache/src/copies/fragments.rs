//! Many short runs of bytes into a file.
//!
//! A `pwrite` for each run costs more than a microsecond, and what lies between two runs must not be written: it is
//! other writers'. So the runs are laid one behind the other in memory that has a descriptor, and one `preadv` lets
//! the kernel copy a thousand of them to their places in a mapping of the file. The kernel's copy, and not ours, as a
//! file that is cut at that moment, or a full disk, is then an error of the call and no SIGBUS.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};

/// Places of one call.
const PLACES_MAX: usize = 1024;

/// Mappings of files begin and end with huge pages. File systems that keep long runs of a file as one (ext4 and XFS of
/// current kernels) have such a run mapped by one fault then, and by one for each page of 4 KiB otherwise, each of which
/// looks at the whole run: 64 MiB take a second so.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Memory with a descriptor, for the runs on their way.
#[derive(Debug)]
pub(crate) struct Fragments {
    memory: File,
    mapped: Mapped,
}

/// A shared mapping that ends itself.
#[derive(Debug)]
struct Mapped {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping has one owner, and is not tied to a thread.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset as i64) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made above; nobody uses it any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

impl Fragments {
    /// Memory for runs of `bytes` bytes in all, at a time.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: the name is a C string.
        let raw = unsafe { libc::memfd_create(c"bifolio-fragments".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        let memory = unsafe { File::from_raw_fd(raw) };
        memory.set_len(bytes as u64)?;
        let mapped = Mapped::new(&memory, 0, bytes)?;
        Ok(Self { memory, mapped })
    }

    /// Writes runs of `content`, which begins at `offset` of a file that is open for reading and writing, in
    /// ascending order. `written` is told up to where they are in the file.
    ///
    /// # Errors
    /// Of the mapping or a call; `written` says how far it came.
    pub(crate) fn write(
        &mut self,
        file: &File,
        offset: u64,
        content: &[u8],
        runs: impl Iterator<Item = Range<usize>>,
        mut written: impl FnMut(usize),
    ) -> io::Result<()> {
        let start = offset - offset % HUGE_PAGE_BYTES;
        let before = (offset - start) as usize;
        let there = Mapped::new(file, start, (before + content.len()).next_multiple_of(HUGE_PAGE_BYTES as usize))?;
        let mut group = Group { places: Vec::with_capacity(PLACES_MAX), bytes: 0, end: 0 };
        for run in runs {
            // Longer runs than there is memory for come in pieces.
            let mut at = run.start;
            while at < run.end {
                let len = (run.end - at).min(self.mapped.len - group.bytes);
                // SAFETY: the memory has room for the piece behind the others of the group.
                unsafe {
                    let place = self.mapped.start.add(group.bytes);
                    std::ptr::copy_nonoverlapping(content[at..at + len].as_ptr(), place, len);
                }
                // SAFETY: inside the mapping; only the kernel follows the address.
                let place = unsafe { there.start.add(before + at) };
                group.places.push(libc::iovec { iov_base: place.cast(), iov_len: len });
                (group.bytes, group.end, at) = (group.bytes + len, at + len, at + len);
                if group.places.len() == PLACES_MAX || group.bytes == self.mapped.len {
                    self.send(&mut group, there.start as usize + before, &mut written)?;
                }
            }
        }
        self.send(&mut group, there.start as usize + before, &mut written)
    }

    /// One call, for places in memory that begins at an address.
    fn send(&self, group: &mut Group, first: usize, written: &mut impl FnMut(usize)) -> io::Result<()> {
        while group.bytes > 0 {
            let (places, count) = (group.places.as_ptr(), group.places.len() as i32);
            // SAFETY: the places lie in a mapping that is there until the runs are written; the kernel checks them.
            let copied = unsafe { libc::preadv(self.memory.as_raw_fd(), places, count, 0) };
            if copied == group.bytes as isize {
                group.bytes = 0;
                group.places.clear();
                written(group.end);
            } else if copied >= 0 {
                // Where it stopped.
                let mut left = copied as usize;
                let stopped = group.places.iter().find(|place| {
                    let is_whole = place.iov_len <= left;
                    left -= if is_whole { place.iov_len } else { 0 };
                    !is_whole
                });
                if let Some(place) = stopped {
                    written(place.iov_base as usize - first + left);
                }
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            } else {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Runs of one call.
struct Group {
    places: Vec<libc::iovec>,
    bytes: usize,
    end: usize,
}

/// The runs of set bits of a mask for `len` bytes.
pub(crate) fn runs_of(mask: &[u8], len: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = find(mask, len, at, true);
        at = find(mask, len, start, false);
        (start < at).then_some(start..at)
    })
}

/// How many runs a mask has.
pub(crate) fn count_runs(mask: &[u8], len: usize) -> usize {
    let mut last = 0;
    let begins = |number: usize| {
        let word = word(mask, len, number);
        let count = (word & !(word << 1 | last)).count_ones() as usize;
        last = word >> 63;
        count
    };
    (0..len.div_ceil(64)).map(begins).sum()
}

/// The first bit from `at` on that is set, or is not; `len` if there is none.
fn find(mask: &[u8], len: usize, at: usize, is_set: bool) -> usize {
    let turned = if is_set { 0 } else { u64::MAX };
    let mut number = at / 64;
    let mut from = u64::MAX << (at % 64);
    while number * 64 < len {
        let found = (word(mask, len, number) ^ turned) & from;
        if found != 0 {
            return len.min(number * 64 + found.trailing_zeros() as usize);
        }
        (number, from) = (number + 1, u64::MAX);
    }
    len
}

/// Bits `64 * number` and on, zeroes beyond `len`.
fn word(mask: &[u8], len: usize, number: usize) -> u64 {
    let bytes = &mask[number * 8..];
    let word = bytes.first_chunk().map_or_else(
        || bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        |word| u64::from_le_bytes(*word),
    );
    let bits = len - number * 64;
    if bits < 64 { word & ((1 << bits) - 1) } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_testing::{noise, seed};
    use fastrand::Rng;
    use std::os::unix::fs::FileExt;

    /// Runs of random lengths, and the mask that has them.
    fn mask_of(random: &mut Rng, len: usize) -> (Vec<u8>, Vec<Range<usize>>) {
        let (mut mask, mut runs, mut at) = (vec![0; len.div_ceil(8)], vec![], random.usize(..3));
        let longest = [2, 5, 70, 3000][random.usize(..4)];
        while at < len {
            let end = (at + 1 + random.usize(..longest)).min(len);
            (at..end).for_each(|bit| mask[bit / 8] |= 1 << (bit % 8));
            runs.push(at..end);
            at = end + 1 + random.usize(..longest);
        }
        (mask, runs)
    }

    #[test]
    fn runs_are_those_of_the_mask() {
        let runs = |mask: &[u8], len| runs_of(mask, len).collect::<Vec<_>>();
        assert_eq!(runs(&[0, 0], 16), vec![]);
        assert_eq!(runs(&[0xff, 0xff], 13), [0..13]);
        assert_eq!(runs(&[0b0110_0001, 0b1000_0000, 0b1], 24), [0..1, 5..7, 15..17]);
        let mut random = Rng::with_seed(seed());
        for _ in 0..300 {
            let len = random.usize(..5000);
            let (mask, expected) = mask_of(&mut random, len);
            assert_eq!(runs(&mask, len), expected);
            assert_eq!(count_runs(&mask, len), expected.len());
        }
    }

    #[test]
    fn runs_come_to_their_places_and_what_is_between_them_stays() {
        let mut random = Rng::with_seed(seed());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        // Less memory than some runs need.
        let mut fragments = Fragments::new(8192).unwrap();
        for _ in 0..60 {
            let size = 40_000;
            let mut expected = noise(size, random.u64(..));
            std::fs::write(&path, &expected).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let offset = random.usize(..10_000);
            let len = 1 + random.usize(..size - 10_000);
            let content = noise(len, random.u64(..));
            let (mask, runs) = mask_of(&mut random, content.len());
            let mut told = 0;
            let outcome =
                fragments.write(&file, offset as u64, &content, runs_of(&mask, content.len()), |end| told = end);
            outcome.unwrap();
            for run in &runs {
                expected[offset + run.start..offset + run.end].copy_from_slice(&content[run.clone()]);
            }
            assert!(std::fs::read(&path).unwrap() == expected);
            assert_eq!(told, runs.last().map_or(0, |run| run.end));
        }
    }

    #[test]
    fn a_file_that_is_cut_is_an_error_and_no_signal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![1; 20_000]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        let runs = (0..20_000).step_by(100).map(|at| at..at + 3);
        let mut told = 0;
        let mut fragments = Fragments::new(300).unwrap();
        let outcome = fragments.write(&file, 0, &vec![9; 20_000], runs, |end| told = end);
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!((told, file.metadata().unwrap().len()), (4100, 4096), "all before the first run that is cut off");
        let mut there = [0; 4096];
        file.read_exact_at(&mut there, 0).unwrap();
        assert_eq!(&there[..4], [9, 9, 9, 1]);
    }
}
