//! NBD (`drivers/block/nbd.c`): a network disk of the kernel's whose other end is the worker, over a pair of sockets.
//!
//! ```text
//!   netlink      connecting, giving another socket, disconnecting      wire   requests and answers
//!   connection   requests in, answers out, by several threads
//! ```
//!
//! The disk outlives its worker: when the worker's socket closes, the kernel waits for another one, which the successor
//! brings. Requests that the killed worker had read are sent again after [`TIMEOUT_S`], since NBD cannot be asked for them. A
//! request that takes longer than that cuts the connection; the worker makes another one when everything of the old one is
//! done.
//!
//! Why not nbdkit: a plugin of its would be one process more that must not wait for memory, must be started again, and
//! would itself stand on the served file. The protocol of a connection that is set up by hand is two small structures.

mod connection;
mod netlink;
mod wire;

use super::{Attachment, Disk, DiskServer, Seat, Served};
use crate::pages::PAGE_BYTES;
use bifolio_block::{BlockDevice, Error, ErrorKind, Result};
use connection::{Buffers, Ended};
use netlink::{Netlink, NewDisk};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Seconds until an unanswered request is sent again, on another connection. One that is only slow cuts the connection as
/// well, so few seconds would cost more on a busy machine than a kill does.
const TIMEOUT_S: u64 = 5;
/// Seconds that requests wait for another worker before they fail.
const DEAD_TIMEOUT_S: u64 = 60;
/// Numbers that are looked at for a free one.
const NUMBERS: u32 = 1024;
/// How long the kernel may take to see that a socket is dead.
const SEEN_MAX: Duration = Duration::from_secs(30);
/// How long to wait for the kernel to let go of a disk, which it does when nobody has it open.
const LET_GO_MAX: Duration = Duration::from_secs(2);
const DISK_PREFIX: &str = "/dev/nbd";

/// Disks by NBD.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nbd;

impl Attachment for Nbd {
    fn name(&self) -> &'static str {
        "nbd"
    }

    fn why_not(&self) -> Option<String> {
        match Netlink::open() {
            Ok(_) => None,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                Some("this kernel has no network block devices (load the module nbd)".to_owned())
            }
            Err(error) => Some(format!("the kernel's NBD cannot be reached by netlink: {error}")),
        }
    }

    fn server(&self) -> Option<&'static dyn DiskServer> {
        Some(&Self)
    }

    fn attach(&self, served: &Served, _stays: bool) -> Result<Disk> {
        let path = served.disk.clone().unwrap_or_default();
        let open = OpenOptions::new().read(true).write(true).open(&path);
        let open = open.map_err(|error| Error::system(path.display(), "opening it", error))?;
        Ok(Disk { path, _open: open })
    }

    fn detach(&self, disk: &Path, served: &Served) -> Result<()> {
        let Ok(number) = number_of(disk) else { return Ok(()) };
        // It may be somebody else's by now.
        if !is_owned(number, &served.file) {
            return Ok(());
        }
        let alone = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(disk);
        if alone.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            let detail = "somebody uses it (it is mounted, or swapped to); end that, and repeat this";
            return Err(Error::new(ErrorKind::InUse, disk.display(), detail));
        }
        let done = Netlink::open().and_then(|netlink| netlink.disconnect(number));
        done.map_err(|error| Error::system(disk.display(), "disconnecting it", error))?;
        let begin = Instant::now();
        while is_owned(number, &served.file) && begin.elapsed() < LET_GO_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl DiskServer for Nbd {
    fn free_disk(&self) -> Result<PathBuf> {
        let free = (0..NUMBERS).find(|number| !attribute_of(*number, "pid").exists());
        let free = free.ok_or_else(|| Error::new(ErrorKind::NoSpace, "NBD", "every network block device is in use"))?;
        Ok(PathBuf::from(format!("{DISK_PREFIX}{free}")))
    }

    fn is_orphan(&self, _disk: &Path, _owner: &Path) -> bool {
        // Its requests fail by themselves after a while.
        false
    }

    fn serve(&self, seat: &Seat<'_>, ready: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        let about = |doing: &str, error| Error::system(seat.disk.display(), doing, error);
        let owner = owner_text(seat.owner);
        let disk = NewDisk {
            number: number_of(seat.disk)?,
            bytes: seat.cache.geometry().size,
            block_bytes: PAGE_BYTES,
            flags: wire::FLAGS,
            timeout_s: TIMEOUT_S,
            dead_timeout_s: DEAD_TIMEOUT_S,
            owner: &owner,
        };
        let mut buffers = Buffers::new(seat.threads);
        let netlink = Netlink::open().map_err(|error| about("reaching the kernel's NBD", error))?;
        let (mut is_new, mut has_told) = (seat.is_first, false);
        loop {
            let socket = if std::mem::take(&mut is_new) {
                first_socket(&netlink, &disk).map(Some)
            } else {
                next_socket(&netlink, &disk, seat.owner)
            };
            let Some(socket) = socket.map_err(|error| about("connecting it", error))? else { return Ok(()) };
            // What the kernel reads to find partitions is answered from here on.
            let ended = std::thread::scope(|scope| {
                let serving = scope.spawn(|| connection::serve(&socket, seat.cache, &mut buffers));
                let told = if std::mem::replace(&mut has_told, true) { Ok(()) } else { ready() };
                if told.is_err() {
                    let _ = socket.shutdown(std::net::Shutdown::Both);
                }
                let ended = serving.join().unwrap_or(Ended::Cut);
                told.map(|()| ended)
            })?;
            if ended == Ended::Well {
                return Ok(());
            }
        }
    }
}

/// Connects a disk that nobody has.
fn first_socket(netlink: &Netlink, disk: &NewDisk<'_>) -> io::Result<UnixStream> {
    let (own, kernels) = UnixStream::pair()?;
    netlink.connect(disk, kernels.as_fd())?;
    Ok(own)
}

/// Takes a predecessor's place, or that of a connection that was cut; none if the disk was taken apart.
fn next_socket(netlink: &Netlink, disk: &NewDisk<'_>, owner: &Path) -> io::Result<Option<UnixStream>> {
    let begin = Instant::now();
    while is_owned(disk.number, owner) && begin.elapsed() < SEEN_MAX {
        let (own, kernels) = UnixStream::pair()?;
        match netlink.reconnect(disk, kernels.as_fd()) {
            // It was disconnected meanwhile.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV | libc::EBUSY)) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                drop(kernels);
                // The kernel takes a socket only if it has seen that another one is dead.
                if !is_hung_up(&own) {
                    return Ok(Some(own));
                }
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if is_owned(disk.number, owner) { Err(io::Error::from_raw_os_error(libc::EBUSY)) } else { Ok(None) }
}

fn is_hung_up(socket: &UnixStream) -> bool {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure, which is ours.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLHUP != 0 }
}

/// Whether a disk is connected, and by this owner.
fn is_owned(number: u32, owner: &Path) -> bool {
    let backend = std::fs::read_to_string(attribute_of(number, "backend")).unwrap_or_default();
    attribute_of(number, "pid").exists() && backend.trim_end() == owner_text(owner)
}

fn attribute_of(number: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/sys/block/nbd{number}/{name}"))
}

/// An owner as the kernel keeps it: its path, in which no zero byte may be.
fn owner_text(owner: &Path) -> String {
    format!("bifolio {}", owner.to_string_lossy().replace(['\0', '\n'], " "))
}

fn number_of(disk: &Path) -> Result<u32> {
    let number = disk.to_str().and_then(|path| path.strip_prefix(DISK_PREFIX)).and_then(|number| number.parse().ok());
    number.ok_or_else(|| Error::new(ErrorKind::BadUse, disk.display(), "it is not a network block device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_have_numbers_and_owners_one_line() {
        assert_eq!(number_of(Path::new("/dev/nbd12")).unwrap(), 12);
        for other in ["/dev/nbd0p1", "/dev/loop0", "/dev/nbd"] {
            assert_eq!(number_of(Path::new(other)).unwrap_err().kind(), ErrorKind::BadUse, "{other}");
        }
        assert_eq!(owner_text(Path::new("/run/a\nb")), "bifolio /run/a b");
    }

    #[test]
    fn a_socket_whose_other_end_was_let_go_is_hung_up() {
        let (own, other) = UnixStream::pair().unwrap();
        assert!(!is_hung_up(&own));
        drop(other);
        assert!(is_hung_up(&own));
    }
}
