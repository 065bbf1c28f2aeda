//! States of files, as the kernel wants them.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The state of a file with its id.
pub(crate) fn attr(id: u64, state: &libc::stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: state.st_size as u64,
        blocks: state.st_blocks as u64,
        atime: time(state.st_atime, state.st_atime_nsec),
        mtime: time(state.st_mtime, state.st_mtime_nsec),
        ctime: time(state.st_ctime, state.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: kind(state.st_mode),
        perm: (state.st_mode & 0o7777) as u16,
        nlink: state.st_nlink as u32,
        uid: state.st_uid,
        gid: state.st_gid,
        rdev: encode_device(state.st_rdev),
        blksize: state.st_blksize as u32,
        flags: 0,
    }
}

/// The kind of file that a mode names.
pub(crate) fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// The kind of file that a directory's entry names.
pub(crate) fn kind_of_entry(kind: u8) -> FileType {
    match kind {
        libc::DT_DIR => FileType::Directory,
        libc::DT_LNK => FileType::Symlink,
        libc::DT_FIFO => FileType::NamedPipe,
        libc::DT_SOCK => FileType::Socket,
        libc::DT_CHR => FileType::CharDevice,
        libc::DT_BLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// A device's number, in the kernel's 32 bits: 12 for the major one, 20 for the minor one, in three parts.
pub(crate) fn encode_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The other way.
pub(crate) fn decode_device(encoded: u32) -> u64 {
    libc::makedev(encoded >> 8 & 0xfff, encoded & 0xff | encoded >> 12 & 0xf_ff00)
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let fraction = Duration::from_nanos(nanoseconds.clamp(0, 999_999_999) as u64);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    at.and_then(|at| at.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
}

fn timespec(time: SystemTime) -> libc::timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => libc::timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) },
        Err(before) => {
            let before = before.duration();
            // Nanoseconds count forward from the second before.
            let nanoseconds = (1_000_000_000 - i64::from(before.subsec_nanos())) % 1_000_000_000;
            let seconds = before.as_secs() as i64 + i64::from(nanoseconds > 0);
            libc::timespec { tv_sec: -seconds, tv_nsec: nanoseconds }
        }
    }
}

/// A time to set, or none.
pub(crate) fn set_time(time: Option<TimeOrNow>) -> libc::timespec {
    match time {
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(TimeOrNow::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => timespec(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_devices_come_back() {
        for (seconds, nanoseconds) in [(0, 0), (1, 5), (-1, 0), (-1, 999_999_999), (-5, 1), (4_000_000_000, 7)] {
            let spec = timespec(time(seconds, nanoseconds));
            assert_eq!((spec.tv_sec, spec.tv_nsec), (seconds, nanoseconds));
        }
        for (major, minor) in [(1, 3), (259, 5), (8, 300), (0xfff, 0xf_ffff)] {
            let device = libc::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }
}
