//! The file system that holds a file: what it is, and what its times and leases tell of changes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// `f_type` of file systems that libc does not name alike everywhere (`linux/magic.h`).
const RAMFS: u32 = 0x8584_58f6;
const XFS: u32 = 0x5846_5342;
const BTRFS: u32 = 0x9123_683e;
/// ext2, ext3 and ext4 share one.
const EXT: u32 = 0xef53;

/// What the times of a file tell of changes to it by whoever had it open for writing after they were looked at, and has
/// it open no more. (Who has it open still refuses a read lease.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// A change that follows a look has other times than were seen.
    Apart,
    /// Changes within a tick of a clock share their times.
    Ticks,
    /// Some changes have no times of their own, or some writers refuse no lease.
    Incomplete,
}

/// What the times and leases of a file system are worth: by its `f_type`, the driver's name where several share one,
/// and the kernel's version. Trusted are those for which both halves were shown, by their source and by experiment:
/// *whoever has the file open or mapped for writing refuses the lease*, and *whoever had it has moved the times*.
///
/// - ext4, xfs, btrfs: a mapping holds the file that was opened, also when its descriptor is closed, so it refuses the
///   lease. Writes, cuts and holes move the times, and so does the first store of every mapping to each page, even where
///   the page is dirty or was loaded before (`page_mkwrite`). Later stores do not; their mapping is there, or its end
///   came after a first store. Since Linux 6.13 a change has times of its own if the file was looked at before
///   (`FS_MGTIME`), before that those of the latest tick.
/// - ext2 and ext3, which the driver of ext4 serves, too: the same, in ticks. The version alone does not tell.
/// - tmpfs, ramfs, hugetlbfs: a store to a page that was loaded through the same mapping before moves no time: once the
///   mapping has ended, nothing tells of it.
/// - overlayfs: a mapping holds the file below, in the upper or the lower layer, and nothing of the overlay's own: with
///   the descriptor closed the lease is given while somebody stores into a page that is dirty already, which moves no
///   time either.
/// - FUSE, NFS, CIFS, 9p, cluster file systems: a lease knows of openings on this machine only, and times are the
///   server's, who may be told late.
/// - Everything else was not shown, so it is not trusted.
pub(crate) fn times_of(magic: u32, driver: Option<&str>, kernel: (u32, u32)) -> Times {
    let has_apart = match magic {
        XFS | BTRFS => true,
        EXT => driver == Some("ext4"),
        _ => return Times::Incomplete,
    };
    if has_apart && kernel >= (6, 13) { Times::Apart } else { Times::Ticks }
}

/// The same for an open file.
pub(super) fn times(file: &File) -> Times {
    let Some(magic) = magic(file) else { return Times::Incomplete };
    // The only ones whose driver matters.
    let driver = (magic == EXT).then(|| driver(file)).flatten();
    times_of(magic, driver.as_deref(), kernel())
}

/// Whether its content is in the page cache and nowhere else.
pub(super) fn lives_in_memory(file: &File) -> bool {
    let in_memory = [libc::TMPFS_MAGIC as u32, libc::HUGETLBFS_MAGIC as u32, RAMFS];
    magic(file).is_some_and(|kind| in_memory.contains(&kind))
}

/// Whether it is one of the kernel's settings.
pub(super) fn is_sysfs(file: &File) -> bool {
    magic(file) == Some(libc::SYSFS_MAGIC as u32)
}

/// `f_type` of the file system that holds a file.
fn magic(file: &File) -> Option<u32> {
    // SAFETY: `statfs` is plain old data, for which zeroes are a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) } == 0;
    known.then_some(stat.f_type as u32)
}

/// The name of the driver of a file's file system; none where the file came from a mount that this process cannot see.
fn driver(file: &File) -> Option<String> {
    let device = file.metadata().ok()?.dev();
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").ok()?;
    driver_in(&mounts, (libc::major(device), libc::minor(device))).map(str::to_owned)
}

/// The driver of a device in the text of `/proc/PID/mountinfo`: the third field is the device, and the driver follows a
/// lone hyphen.
fn driver_in(mounts: &str, (major, minor): (u32, u32)) -> Option<&str> {
    let device = format!("{major}:{minor}");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    mount.split(' ').skip_while(|field| *field != "-").nth(1)
}

/// The first two numbers of the kernel's version.
fn kernel() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_shown_to_tell_of_every_change_is_not_trusted() {
        let (old, new) = ((6, 12), (6, 13));
        for (magic, driver, before, since) in [
            (EXT, Some("ext4"), Times::Ticks, Times::Apart),
            (XFS, None, Times::Ticks, Times::Apart),
            (BTRFS, None, Times::Ticks, Times::Apart),
            (EXT, Some("ext3"), Times::Ticks, Times::Ticks),
            (EXT, Some("ext2"), Times::Ticks, Times::Ticks),
            (EXT, None, Times::Ticks, Times::Ticks),
        ] {
            assert_eq!((times_of(magic, driver, old), times_of(magic, driver, new)), (before, since), "{driver:?}");
        }
        let others = [
            ("tmpfs", 0x0102_1994),
            ("ramfs", RAMFS),
            ("overlayfs", 0x794c_7630),
            ("FUSE", 0x6573_5546),
            ("NFS", 0x6969),
            ("SMB", 0xff53_4d42),
            ("9p", 0x0102_1997),
            ("FAT", 0x4d44),
            ("one that is not known", 0x1234_5678),
        ];
        for (name, magic) in others {
            for driver in [None, Some("ext4")] {
                assert_eq!(times_of(magic, driver, (7, 1)), Times::Incomplete, "{name}");
            }
        }
    }

    #[test]
    fn the_driver_of_a_device_is_found_among_the_mounts() {
        let mounts = "27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw\n\
                      28 27 7:0 / /mnt/a\\040-\\040b rw - ext2 /dev/loop0 rw\n\
                      29 27 0:31 / /run rw,nosuid - tmpfs tmpfs rw\n";
        for (device, driver) in [((254, 0), Some("ext4")), ((7, 0), Some("ext2")), ((25, 4), None), ((7, 1), None)] {
            assert_eq!(driver_in(mounts, device), driver, "{device:?}");
        }
        assert_eq!(driver_in("", (7, 0)), None);
        assert_eq!(driver_in("28 27 7:0 / /mnt rw", (7, 0)), None);
    }
}
