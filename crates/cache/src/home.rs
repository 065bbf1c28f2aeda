//! The file: writing bytes to it, and knowing whether somebody else has changed it.

use bifolio_io::{Observation, OpenFile};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file's home, and what is known of its state.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) file: std::sync::Arc<OpenFile>,
    seen: Option<Observation>,
}

/// Counts how often a file is opened, by whomever.
struct Watch(OwnedFd);

impl Home {
    pub(crate) fn new(file: std::sync::Arc<OpenFile>) -> Self {
        Self { file, seen: None }
    }

    /// Whether it is certain that nobody but this cache has changed the file since the last look; from now on
    /// this is the last look.
    pub(crate) fn look(&mut self) -> bifolio_io::Result<bool> {
        if let Some(seen) = &self.seen
            && self.file.is_unchanged_since(seen)?
        {
            return Ok(true);
        }
        self.seen = Some(self.file.observe()?);
        Ok(false)
    }

    /// Lets `work` write to the file. If nobody else has had it open for writing meanwhile, its new state is as
    /// well known as the old one was.
    pub(crate) fn write(&mut self, work: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let was_known = self.seen.as_ref().is_some_and(|seen| self.file.is_unchanged_since(seen).unwrap_or(false));
        let watch = was_known.then(|| Watch::of(self.file.buffered())).flatten();
        let link = format!("/proc/self/fd/{}", self.file.buffered().as_raw_fd());
        let outcome = File::options().write(true).open(link).and_then(|file| work(&file));
        self.seen = None;
        // The one opening is our own.
        if watch.is_some_and(|watch| watch.opened() == Some(1)) {
            self.seen = self.file.observe().ok();
        }
        outcome
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Watch {
    fn of(file: &File) -> Option<Self> {
        // SAFETY: makes a descriptor that is ours alone.
        let fd = unsafe {
            let raw = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            (raw >= 0).then(|| OwnedFd::from_raw_fd(raw))?
        };
        let link = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        // SAFETY: the name is a C string.
        let watched = unsafe { libc::inotify_add_watch(fd.as_raw_fd(), link.as_ptr(), libc::IN_OPEN) };
        (watched >= 0).then_some(Self(fd))
    }

    /// Openings so far; none if they cannot be known.
    fn opened(&self) -> Option<u32> {
        let mut count = 0;
        loop {
            let mut buffer = [0_u8; 4096];
            // SAFETY: the buffer is writable, and the descriptor does not block.
            let got = unsafe { libc::read(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
            if got <= 0 {
                return Some(count);
            }
            let mut at = 0;
            while at + size_of::<libc::inotify_event>() <= got as usize {
                // SAFETY: the kernel writes whole events.
                let event: libc::inotify_event =
                    unsafe { buffer.as_ptr().add(at).cast::<libc::inotify_event>().read_unaligned() };
                if event.mask & libc::IN_Q_OVERFLOW != 0 {
                    return None;
                }
                // Equal events that follow each other are one; then there were at least two.
                count += 1;
                at += size_of::<libc::inotify_event>() + event.len as usize;
            }
        }
    }
}

/// Writes those bytes of a page that a mask has, and no others. Bytes between them are other writers', who may
/// write them at any moment.
pub(crate) fn write_masked(file: &File, offset: u64, content: &[u8], mask: &[u8]) -> io::Result<()> {
    runs_of(mask, content.len()).try_for_each(|run| file.write_all_at(&content[run.clone()], offset + run.start as u64))
}

/// The runs of set bits of a mask for `len` bytes.
pub(crate) fn runs_of(mask: &[u8], len: usize) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let is_set = move |at: usize| at < len && mask[at / 8] >> (at % 8) & 1 == 1;
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < len && !is_set(at) {
            // Whole bytes of the mask without a bit.
            at = if at % 8 == 0 && mask[at / 8] == 0 { at + 8 } else { at + 1 };
        }
        let start = at.min(len);
        while is_set(at) {
            at = if at % 8 == 0 && mask[at / 8] == 0xff && at + 8 <= len { at + 8 } else { at + 1 };
        }
        (start < at.min(len)).then(|| start..at.min(len))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_the_mask() {
        let runs = |mask: &[u8], len| runs_of(mask, len).collect::<Vec<_>>();
        assert_eq!(runs(&[0, 0], 16), vec![]);
        assert_eq!(runs(&[0xff, 0xff], 16), [0..16]);
        assert_eq!(runs(&[0xff, 0xff], 13), [0..13]);
        assert_eq!(runs(&[0b0110_0001, 0b1000_0000, 0b1], 24), [0..1, 5..7, 15..17]);
    }

    #[test]
    fn openings_by_others_are_counted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let watch = Watch::of(file.as_file()).unwrap();
        assert_eq!(watch.opened(), Some(0));
        drop(File::open(file.path()).unwrap());
        assert_eq!(watch.opened(), Some(1));
    }
}
