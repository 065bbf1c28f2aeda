//! The file: writing bytes to it, and knowing whether somebody else has changed it.
//!
//! Who writes to it takes turns with others who do, as he would anyway: the kernel has a lock of the inode for that. Who
//! looks at the file in the midst of a write does not wait. He asks the same watch as the writer will in the end: if nobody
//! else has come, only this cache has changed it. If somebody has, or that cannot be known, he is in doubt. Somebody else is
//! another thread of this process, too, where the kernel tells threads apart; where it does not, whoever looks in the midst
//! of a write is in doubt.

use super::fragments::{Fragments, count_runs, runs_of};
use crate::fault::{Point, at};
use crate::siblings::{Alone, Listed};
use bifolio_io::{Observation, OpenFile};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Mutex;

/// Where there are more runs than one in so many bytes, they are written many at a time: a call for each costs as much
/// as a page fault, or twenty times that where the kernel keeps a long run of the file as one and looks at all of it.
const RUN_BYTES_MIN: usize = 16 << 10;

/// So few are written by a call each in any case.
const RUNS_FEW: usize = 4;

/// Memory for them at least, as it stays with the file.
const FRAGMENTS_BYTES_MIN: usize = 256 << 10;

/// A file's home, and what is known of its state.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) file: std::sync::Arc<OpenFile>,
    seen: Option<Observation>,
    /// Among the files that caches of this process have open; none if it cannot be said which file it is.
    listed: Option<Listed>,
    /// Made with the first write: giving one back takes the kernel milliseconds.
    watch: Option<Watch>,
    /// What was known when the write began that is under way.
    under_way: Option<Known>,
    pub(crate) turns: std::sync::Arc<Turns>,
}

/// What a look at the file has found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looked {
    pub(crate) size: u64,
    /// Whether it is certain that nobody but this cache has changed the file since the look before.
    pub(crate) is_unchanged: bool,
}

/// Whose turn it is, among those who wait for a disk by the file's descriptor.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Those who write, with what the one at work needs, made when it is first needed.
    pub(crate) writing: Mutex<Option<Fragments>>,
    /// Those who make it durable: the operating system tells one of them of a failure, who tells the others.
    pub(crate) syncing: Mutex<()>,
}

/// What is known of a file at the beginning of a write, and until it ends.
#[derive(Debug)]
struct Known {
    alone: Option<Alone>,
    /// Nobody but this cache had changed it, and it is watched whether somebody comes.
    is_certain: bool,
    /// Somebody came, or it cannot be known.
    others_came: bool,
    /// Who writes, as the watch names him.
    writer: i32,
}

/// Tells whether somebody else has opened a file, or cut it by its name, for which it need not open it (fanotify on
/// one inode, which any process may have since Linux 5.13). Events of several processes are kept apart, so that ours
/// hides nobody's, and those of threads where this process may administer the system (`CAP_SYS_ADMIN`, for
/// `FAN_REPORT_TID`); where not, those of several caches of this process are one (`siblings`).
#[derive(Debug)]
struct Watch {
    events: OwnedFd,
    knows_threads: bool,
}

impl Home {
    pub(crate) fn new(file: std::sync::Arc<OpenFile>) -> Self {
        let listed = file.buffered().metadata().ok().map(|metadata| Listed::of(metadata.dev(), metadata.ino()));
        Self { file, seen: None, listed, watch: None, under_way: None, turns: std::sync::Arc::default() }
    }

    /// What can be seen of the file; from now on this is the last look.
    pub(crate) fn look(&mut self) -> bifolio_io::Result<Looked> {
        if self.under_way.is_some() {
            // What the file is like in the midst of a write is nothing to compare with later.
            return Ok(Looked { size: self.size()?, is_unchanged: self.is_unchanged() });
        }
        if let Some(seen) = &self.seen {
            let (size, is_unchanged) = self.file.size_and_whether_unchanged_since(seen).ok_or_else(|| self.closed())?;
            if is_unchanged {
                return Ok(Looked { size, is_unchanged });
            }
        }
        self.size()?;
        let seen = self.file.observe()?;
        let size = seen.size();
        self.seen = Some(seen);
        Ok(Looked { size, is_unchanged: false })
    }

    /// Whether it is certain that nobody but this cache has changed the file since the last look.
    pub(crate) fn is_unchanged(&mut self) -> bool {
        if let Some(known) = &mut self.under_way {
            // Whoever opens the file is reported before he can change it.
            let watch = self.watch.as_ref().filter(|watch| watch.knows_threads);
            let Some(watch) = watch else { return false };
            known.others_came |= watch.others_came(known.writer) != Some(false);
            return known.is_certain && !known.others_came && known.is_alone(self.listed.as_ref());
        }
        self.seen.as_ref().is_some_and(|seen| self.file.is_unchanged_since(seen).unwrap_or(false))
    }

    /// The file's size now; an error if the descriptor names another file by now.
    pub(crate) fn size(&self) -> bifolio_io::Result<u64> {
        self.file.size_if_intact().ok_or_else(|| self.closed())
    }

    fn closed(&self) -> bifolio_io::Error {
        let detail =
            "its descriptor was closed by the program, though the cache had opened it: close only what you have opened";
        bifolio_io::Error::new(bifolio_io::ErrorKind::Read, self.path(), detail)
    }

    /// Somebody whose turn it is begins to write, by this thread. If nobody else opens or cuts the file until he ends, and
    /// no other cache of this process has it open, its new state is as well known as the old one was. (Where the watch
    /// does not know threads, one that opens the file, writes past the cache, and closes it, all within that time, is not
    /// noticed.)
    pub(crate) fn begin_write(&mut self) -> io::Result<()> {
        if self.under_way.take().is_some() {
            // The one before has panicked.
            self.seen = None;
        }
        if self.watch.is_none() && self.file.is_observable() {
            self.watch = Watch::of(self.file.buffered());
        }
        // Another file would get the bytes.
        if self.file.size_if_intact().is_none() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // From here on. Who had it open before and has it still, or has changed it, shows in the look.
        let alone = self.listed.as_ref().and_then(Listed::alone);
        let writer = self.watch.as_ref().map_or(0, Watch::own_number);
        let is_watched = self.watch.as_ref().is_some_and(|watch| watch.others_came(writer).is_some());
        let is_certain = is_watched && self.is_unchanged();
        self.under_way = Some(Known { alone, is_certain, others_came: false, writer });
        Ok(())
    }

    /// He has written.
    pub(crate) fn end_write(&mut self, has_succeeded: bool) {
        let known = self.under_way.take();
        self.seen = None;
        // What a write that failed has left is not known. The look comes before the question: whoever opens the
        // file after it changes its times, and whoever did before is reported.
        if let Some(known) = known.filter(|known| known.is_certain && !known.others_came && has_succeeded) {
            let seen = self.file.observe().ok();
            let looked = at(Point::HomeLooked);
            let others_came = self.watch.as_ref().and_then(|watch| watch.others_came(known.writer));
            if looked.is_ok() && known.is_alone(self.listed.as_ref()) && others_came == Some(false) {
                self.seen = seen;
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Known {
    fn is_alone(&self, listed: Option<&Listed>) -> bool {
        self.alone.is_some_and(|then| listed.is_some_and(|now| now.is_alone_since(then)))
    }
}

/// Reads bytes as CPU processes see them, as many as there are.
pub(crate) fn read(file: &OpenFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.buffered().read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Writes to a file by a descriptor of its own: so it is known that nobody has it open for writing afterwards.
pub(crate) fn write_by_itself(file: &OpenFile, work: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let link = format!("/proc/self/fd/{}", file.buffered().as_raw_fd());
    File::options().read(true).write(true).open(link).and_then(|file| work(&file))
}

impl Watch {
    fn of(file: &File) -> Option<Self> {
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_FID | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let open = |flags| {
            // SAFETY: makes a descriptor that is ours alone.
            unsafe {
                let raw = libc::fanotify_init(flags, libc::O_RDONLY as u32);
                (raw >= 0).then(|| OwnedFd::from_raw_fd(raw))
            }
        };
        let threads = open(flags | libc::FAN_REPORT_TID);
        let knows_threads = threads.is_some();
        let events = threads.or_else(|| open(flags))?;
        let link = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let (flags, what) = (libc::FAN_MARK_ADD, libc::FAN_OPEN | libc::FAN_MODIFY);
        // SAFETY: the name is a C string.
        let marked = unsafe { libc::fanotify_mark(events.as_raw_fd(), flags, what, libc::AT_FDCWD, link.as_ptr()) };
        (marked == 0).then_some(Self { events, knows_threads })
    }

    /// As whom it names this thread.
    fn own_number(&self) -> i32 {
        // SAFETY: asks for a number.
        if self.knows_threads { unsafe { libc::gettid() } } else { std::process::id().cast_signed() }
    }

    /// Whether somebody else has opened or changed the file since the last question; none if that cannot be known.
    fn others_came(&self, own: i32) -> Option<bool> {
        let mut others = false;
        loop {
            let mut buffer = [0_u64; 512];
            // SAFETY: the buffer is writable, and the descriptor does not block.
            let got = unsafe { libc::read(self.events.as_raw_fd(), buffer.as_mut_ptr().cast(), size_of_val(&buffer)) };
            if got < 0 {
                let blocks = io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
                return blocks.then_some(others);
            }
            let mut at = 0;
            while at + size_of::<libc::fanotify_event_metadata>() <= got as usize {
                let place = buffer.as_ptr().cast::<u8>().wrapping_add(at);
                // SAFETY: the kernel writes whole events.
                let event = unsafe { place.cast::<libc::fanotify_event_metadata>().read_unaligned() };
                if event.mask & libc::FAN_Q_OVERFLOW != 0 || event.event_len == 0 {
                    return None;
                }
                others |= event.pid != own;
                at += event.event_len as usize;
            }
        }
    }
}

/// Writes those bytes that a mask has, and no others. Bytes between them are other writers', who may write them at
/// any moment. Bytes of the mask before `done` are written, after a failure as well. Those behind the end of the file
/// are nobody's: whoever has cut it does not get it back longer.
pub(crate) fn write_masked(
    file: &File,
    offset: u64,
    content: &[u8],
    mask: &[u8],
    done: &mut usize,
    fragments: &mut Option<Fragments>,
) -> io::Result<()> {
    at(Point::HomeOpened)?;
    if count_runs(mask, content.len()) > (content.len() / RUN_BYTES_MIN).max(RUNS_FEW) {
        if fragments.is_none() {
            *fragments = Fragments::new(content.len().max(FRAGMENTS_BYTES_MIN)).ok();
        }
        let mut ended = Ok(());
        let runs = runs_of(mask, bytes_before_end(file, offset, content.len())?).take_while(|_| {
            ended = at(Point::HomeRun);
            ended.is_ok()
        });
        // What cannot be mapped, or was cut, is written, or left out, below.
        if let Some(fragments) = fragments
            && fragments.write(file, offset, content, runs, |end| *done = end).is_ok()
        {
            ended?;
            *done = content.len();
            return Ok(());
        }
    }
    let from = *done;
    for run in runs_of(mask, content.len()).filter(|run| run.end > from) {
        *done = run.start.max(from);
        while *done < run.end {
            at(Point::HomeRun)?;
            // Asked each time, as a write behind the end would make the file longer again. Nothing notices a cut
            // between the question and the write.
            let end = run.end.min(bytes_before_end(file, offset, content.len())?);
            if end <= *done {
                break;
            }
            match file.write_at(&content[*done..end], offset + *done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => *done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    *done = content.len();
    Ok(())
}

/// How many of some bytes from an offset on the file has at this moment.
fn bytes_before_end(file: &File, offset: u64, len: usize) -> io::Result<usize> {
    Ok(file.metadata()?.len().saturating_sub(offset).min(len as u64) as usize)
}

/// Writes bytes of a CPU's.
pub(crate) fn write_all(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    at(Point::WriteLooked)?;
    #[cfg(feature = "fault-injection")]
    {
        let half = &bytes[..bytes.len() / 2];
        file.write_all_at(half, offset)?;
        at(Point::WriteHalf)?;
    }
    file.write_all_at(bytes, offset)?;
    at(Point::Written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_do_is_told_from_our_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, b"x").unwrap();
        let file = File::open(&path).unwrap();
        let Some(watch) = Watch::of(&file) else {
            bifolio_testing::skip("this kernel or sandbox does not let a process watch a file (fanotify)");
            return;
        };
        assert_eq!(watch.others_came(watch.own_number()), Some(false));
        drop(File::open(&path).unwrap());
        assert_eq!(watch.others_came(watch.own_number()), Some(false));
        // Ours before and after theirs, so that nothing lies between.
        drop(File::open(&path).unwrap());
        let status = std::process::Command::new("cat").arg(&path).stdout(std::process::Stdio::null()).status();
        drop(File::open(&path).unwrap());
        assert!(status.unwrap().success());
        assert_eq!(watch.others_came(watch.own_number()), Some(true));
        // A thread.
        drop(File::open(&path).unwrap());
        std::thread::scope(|scope| scope.spawn(|| drop(File::open(&path).unwrap())).join().unwrap());
        drop(File::open(&path).unwrap());
        assert_eq!(watch.others_came(watch.own_number()), Some(watch.knows_threads));
        assert_eq!(watch.others_came(watch.own_number()), Some(false));
    }
}
