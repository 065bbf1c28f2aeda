//! Whether a file has changed: what tells, and when that can be relied on.

use super::file_system::Times;
use super::plain::PlainFile;
use crate::{Error, Result};
use std::fs::Metadata;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Kernels before 6.13 stamp changes with the time of the latest tick, 10 ms at the coarsest.
const CHANGE_GRANULARITY: Duration = Duration::from_millis(20);

/// File systems without room for nanoseconds (ext4 with inodes of 128 bytes) have whole seconds, or two (FAT).
const WHOLE_SECONDS: Duration = Duration::from_secs(2);

/// The block layer gives a request up after this time, where nobody has set another.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// At which rate a file is compared with what it was, at best.
const LOOK_BYTES_PER_NS: u64 = 20;
/// Which share of that time, and how long at most, is waited for those who have it open for writing.
const MOMENT_SHARE: u64 = 4;
const MOMENT_MAX: Duration = Duration::from_millis(20);
const MOMENT_STEP: Duration = Duration::from_micros(50);

/// `fcntl(2)`: which signal tells that a lease is to be given back (`asm-generic/fcntl.h`).
const F_SETSIG: i32 = 10;

/// What tells that a file may have been cut and written anew: size, and times of the latest
/// change of content and of the inode (always 0 for block devices, which cannot be cut).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    changed: [i64; 4],
}

impl Stamp {
    /// That of a file with content.
    fn of(metadata: &Metadata) -> Self {
        let changed = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        Self { size: metadata.len(), changed }
    }

    /// Whether it is older than the coarsest clock tick, so that a later change has another stamp.
    pub(crate) fn is_settled(&self) -> bool {
        let coarsest = if self.has_nanoseconds() { Duration::ZERO } else { WHOLE_SECONDS };
        self.age() > coarsest + CHANGE_GRANULARITY
    }

    /// Whether it may be told from one of the same second. The time of the inode tells, as programs may set the other to
    /// anything.
    fn has_nanoseconds(&self) -> bool {
        self.changed[3] != 0
    }

    /// Since the latest change.
    fn age(&self) -> Duration {
        let changed = Duration::new(self.changed[2].max(0) as u64, self.changed[3].max(0) as u32);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        now.saturating_sub(changed)
    }
}

/// What a file looked like at some moment.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    stamp: Stamp,
    /// Whether a later change would show.
    is_sure: bool,
}

impl Observation {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }
}

impl PlainFile {
    /// Size and times of change at this moment.
    pub(crate) fn stamp(&self) -> Result<Stamp> {
        if self.is_block_device() {
            return Ok(Stamp { size: self.size()?, changed: [0; 4] });
        }
        let metadata = self.buffered().metadata();
        Ok(Stamp::of(&metadata.map_err(|error| Error::system(self.path(), "reading its size", error))?))
    }

    /// Whether registrations of it may be kept. A block device has no times that tell of a write
    /// past the page cache by somebody else, which replaces its pages. Times of change have the
    /// granularity of a clock tick, so a state that is younger may be two; and such a write moves them
    /// when it begins, and the pages when it ends. So either nobody has the file open for writing,
    /// or its latest write began so long ago that a disk has done it or given up.
    pub(crate) fn may_keep_registrations(&self, stamp: &Stamp) -> bool {
        !self.is_block_device() && (stamp.age() > WRITE_TIME_MAX || stamp.is_settled() && self.has_no_writers())
    }

    /// Whether nobody can change the file without its stamp telling: it is not open for writing
    /// anywhere, and `stamp` is older than a clock tick. A store into a mapping moves the times of
    /// change when it first touches a page, so only mappings that exist already would escape.
    pub(crate) fn is_unchanging(&self, stamp: &Stamp) -> bool {
        self.is_observable() && stamp.is_settled() && self.has_no_writers()
    }

    /// Whether its times and a lease together tell of every change. A block device has neither.
    pub(crate) fn is_observable(&self) -> bool {
        !self.is_block_device() && self.times() != Times::Incomplete
    }

    /// What it looks like now, to be asked later whether it has changed.
    pub(crate) fn observe(&self) -> Result<Observation> {
        let stamp = self.stamp()?;
        let has_own_times = self.times() == Times::Apart && stamp.has_nanoseconds();
        let would_show = self.is_observable() && (has_own_times || stamp.is_settled());
        let is_sure = would_show && self.has_no_writers_in_a_moment(stamp.size);
        Ok(Observation { stamp, is_sure })
    }

    /// Whether it is certain that nobody has changed it since: size and times are the same, and nobody had it
    /// open for writing, mapped included, then or has now. Times move with every write, and with the first
    /// store to a page through a mapping, for which it must have been open; where that was not shown
    /// (`file_system.rs`), nothing is certain.
    pub(crate) fn is_unchanged_since(&self, then: &Observation) -> Result<bool> {
        // In this order: who opens, writes and closes in between has moved the times by then.
        Ok(then.is_sure && self.has_no_writers_in_a_moment(then.stamp.size) && self.stamp()? == then.stamp)
    }

    /// The same with the size now, by one question; none if the descriptor names another file by now.
    pub(crate) fn size_and_whether_unchanged_since(&self, then: &Observation) -> Option<(u64, bool)> {
        let has_no_writers = then.is_sure && self.has_no_writers_in_a_moment(then.stamp.size);
        let now = self.buffered().metadata().ok().filter(|metadata| self.is_intact(metadata))?;
        if self.is_block_device() {
            return Some((self.size().ok()?, false));
        }
        Some((now.len(), has_no_writers && Stamp::of(&now) == then.stamp))
    }

    /// The same within a moment. Processes open files for writing that they never write to, as to prove that they may, and
    /// close them at once. Whoever asks is to look at all of the file if there is doubt, and waits for a share of the time that
    /// takes. Later is as good: who has written and closed it by then has moved the times.
    fn has_no_writers_in_a_moment(&self, size: u64) -> bool {
        let most = Duration::from_nanos(size / LOOK_BYTES_PER_NS / MOMENT_SHARE).min(MOMENT_MAX);
        let begun = Instant::now();
        while !self.has_no_writers() {
            // Where it may not be asked at all, that is no conflict.
            let may_pass = io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            if !may_pass || begun.elapsed() >= most {
                return false;
            }
            std::thread::sleep(MOMENT_STEP);
        }
        true
    }

    /// Asks by taking a read lease, which the kernel grants only on files that nobody has open for
    /// writing, and giving it back. False also where it may not be asked: the lease of a file of
    /// somebody else, file systems without leases.
    fn has_no_writers(&self) -> bool {
        let fd = self.probe().as_raw_fd();
        // SAFETY: requests on an open descriptor of ours. If somebody opens the file for writing in
        // between, the kernel tells by a signal; SIGURG is one that is ignored by default, where
        // its usual SIGIO would end the process.
        unsafe {
            libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
        }
    }
}
