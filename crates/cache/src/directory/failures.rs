//! What everybody who holds the file is told once, by his next sync: what was released and will never be in the file, or
//! perhaps not on its disk.

use crate::error::{Error, Result};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

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
        let sentences: Vec<String> = lost.chain(undurable.map(describe)).collect();
        if sentences.is_empty() { Ok(()) } else { Err(Error::gone(path, &sentences, undurable)) }
    }
}

fn describe(error: &io::Error) -> String {
    format!("sync failed: {error}; some of what was written may be lost, and another sync cannot tell: write it again")
}

#[cfg(test)]
mod tests {
    use super::*;

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
