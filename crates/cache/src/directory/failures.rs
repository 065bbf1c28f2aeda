//! What everybody who holds the file is told once, by his next sync: what was released and will never be in the file, or
//! perhaps not on its disk. And what who closes it is told: what cannot be written.

use super::versions::Versions;
use crate::error::{Error, Result};
use crate::ranges::runs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ranges that a sentence names at most.
const RANGES_MAX: usize = 4;

/// Numbered as they come, so that a holder remembers up to which he was told.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: u64,
    /// Making the file durable: the latest of all.
    undurable: Option<(u64, io::Error)>,
    /// Losses of devices, as sentences. There are no more than devices.
    lost: Vec<(u64, String)>,
}

impl Failures {
    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The disk has failed. The operating system tells of bytes that it could not write once, and takes them for written
    /// from then on.
    pub(super) fn note_undurable(&mut self, error: io::Error) {
        self.count += 1;
        self.undurable = Some((self.count, error));
    }

    /// Something is gone with a device.
    pub(super) fn note_lost(&mut self, sentence: String) {
        self.count += 1;
        self.lost.push((self.count, sentence));
    }

    /// Tells a holder, who notes in `told` up to which he was.
    pub(super) fn tell(&self, path: &Path, told: &AtomicU64) -> Result<()> {
        let before = told.swap(self.count, Ordering::Relaxed);
        let undurable = self.undurable.as_ref().filter(|(number, _)| before < *number).map(|(_, error)| error);
        let lost = self.lost.iter().filter(|(number, _)| before < *number).map(|(_, sentence)| sentence.clone());
        let sentences: Vec<String> = lost.chain(undurable.map(undurable_as)).collect();
        if sentences.is_empty() { Ok(()) } else { Err(Error::gone(path, &sentences, undurable)) }
    }
}

fn undurable_as(error: &io::Error) -> String {
    format!("sync failed: {error}; some of what was written may be lost, and another sync cannot tell: write it again")
}

/// What was released and cannot be written.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// The bytes.
    what: String,
    /// Of the write.
    error: Error,
}

impl Unwritten {
    /// Of some pages.
    pub(super) fn new(versions: &Versions, pages: &[u64], error: Error) -> Self {
        Self { what: describe(versions, pages), error }
    }

    /// For who closes the file.
    pub(crate) fn told(self) -> Error {
        let detail = format!(
            "what was released of {} cannot be written: {}; it stays in the cache, which goes on trying until the program \
             ends",
            self.what,
            self.reason()
        );
        self.error.saying(detail)
    }

    /// Where nothing is tried any more.
    pub(crate) fn lament(&self) -> String {
        let subject = self.error.subject();
        format!("{subject}: what was released of {} is lost: it could not be written: {}", self.what, self.reason())
    }

    fn reason(&self) -> String {
        self.error.cause().map_or_else(|| self.error.detail().to_owned(), ToString::to_string)
    }
}

/// The bytes of some pages.
pub(super) fn describe(versions: &Versions, pages: &[u64]) -> String {
    let bytes: Vec<_> = runs(pages.iter().copied()).iter().map(|run| versions.bytes_of(run)).collect();
    list(&bytes, pages.len())
}

/// Some bytes, and how many pages these are.
fn list(bytes: &[Range<u64>], pages: usize) -> String {
    let name = |bytes: &Range<u64>| format!("{} to {}", bytes.start, bytes.end);
    let mut named: Vec<String> = bytes.iter().take(RANGES_MAX).map(name).collect();
    if let Some(more) = bytes.len().checked_sub(RANGES_MAX).filter(|more| *more > 0) {
        named.push(format!("{more} more ranges"));
    }
    let last = named.pop().unwrap_or_default();
    let list = if named.is_empty() { last } else { format!("{} and {last}", named.join(", ")) };
    format!("bytes {list} ({pages} {})", if pages == 1 { "page" } else { "pages" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranges_are_named_and_many_are_counted() {
        let ranges: Vec<_> = (0..6).map(|at| 10 * at..10 * at + 5).collect();
        assert_eq!(list(&ranges[..1], 1), "bytes 0 to 5 (1 page)");
        assert_eq!(list(&ranges[..3], 4), "bytes 0 to 5, 10 to 15 and 20 to 25 (4 pages)");
        assert_eq!(list(&ranges, 9), "bytes 0 to 5, 10 to 15, 20 to 25, 30 to 35 and 2 more ranges (9 pages)");
    }

    #[test]
    fn everybody_is_told_everything_once() {
        let (mut failures, path) = (Failures::default(), Path::new("/data/file"));
        let [one, two] = [AtomicU64::new(0), AtomicU64::new(0)];
        failures.tell(path, &one).unwrap();
        failures.note_lost("host:1 is lost".to_owned());
        failures.note_undurable(io::Error::from_raw_os_error(libc::EIO));
        let told = failures.tell(path, &one).unwrap_err();
        assert!(["host:1 is lost", "sync failed"].iter().all(|part| told.to_string().contains(part)), "{told}");
        assert_eq!((told.os_code(), failures.tell(path, &one).is_ok()), (Some(libc::EIO), true));
        failures.note_undurable(io::Error::from_raw_os_error(libc::ENOSPC));
        let told = failures.tell(path, &one).unwrap_err();
        assert_eq!((told.os_code(), told.to_string().contains("lost)")), (Some(libc::ENOSPC), false));
        let told = failures.tell(path, &two).unwrap_err();
        assert!(told.to_string().contains("host:1 is lost"), "{told}");
        assert!(failures.tell(path, &two).is_ok());
    }
}
