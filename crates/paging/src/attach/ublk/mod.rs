//! ublk (`drivers/block/ublk_drv.c`): a disk whose requests a worker takes from the kernel through `io_uring`, with nothing
//! between.
//!
//! ```text
//!   abi       structures and commands of the kernel's      control   adding, starting, recovering, deleting
//!   queue     requests in, answers out                     buffers   memory that requests and answers lie in
//! ```
//!
//! The device outlives its server: when a worker dies, the kernel holds requests back, and gives those that it had not
//! answered to the successor (`UBLK_F_USER_RECOVERY_REISSUE`). The device can be opened once only, so no keeper holds
//! anything of it.
//!
//! **Killed at any moment.** A predecessor may have ended anywhere, so the order of a recovery matters: requests are fetched,
//! in one call of the system's, before descriptors are mapped. The kernel remembers who has mapped them, forgets it at the
//! start of a recovery only, and refuses that start when nobody has fetched since the last one. A device that was
//! never started is made anew.

mod abi;
mod buffers;
mod control;
mod queue;

use super::{Attachment, Disk, DiskServer, Seat, Served};
use abi::{DEAD, QUIESCED};
use bifolio_block::{BlockDevice, Error, ErrorKind, Result};
use control::{Control, NEEDED, NewDevice, PATH};
use queue::{Desk, Queue};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Requests at a time.
const DEPTH: u16 = 64;
/// Bytes of a request at most; so much memory is locked for each of them.
const REQUEST_BYTES_MAX: u32 = 256 << 10;
/// Numbers that are looked at for a free one.
const NUMBERS: u32 = 1024;
/// How long a killed process may take to be gone.
const GONE_MAX: Duration = Duration::from_secs(60);
/// How long the device's nodes may take to appear.
const NODE_MAX: Duration = Duration::from_secs(10);
const DISK_PREFIX: &str = "/dev/ublkb";

/// Disks by ublk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ublk;

impl Attachment for Ublk {
    fn name(&self) -> &'static str {
        "ublk"
    }

    fn why_not(&self) -> Option<String> {
        if !Path::new(PATH).exists() {
            return Some(format!("this kernel has no ublk ({PATH} is missing; load the module ublk_drv)"));
        }
        let features = Control::open().and_then(|mut control| control.features());
        match features {
            Ok(features) if features & NEEDED == NEEDED => None,
            Ok(_) => Some("this kernel's ublk does not give requests of a killed worker to another one".to_owned()),
            Err(error) => Some(format!("this kernel's ublk cannot be asked what it can do (Linux 6.5 can): {error}")),
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
        let about = |doing, error| Error::system(disk.display(), doing, error);
        let Ok(mut control) = Control::open() else { return Ok(()) };
        // It may be somebody else's by now.
        let Ok(info) = control.info(number) else { return Ok(()) };
        if info.server_flags != mark(&served.file) {
            return Ok(());
        }
        let alone = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(disk);
        if alone.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            let detail = "somebody uses it (it is mounted, or swapped to); end that, and repeat this";
            return Err(Error::new(ErrorKind::InUse, disk.display(), detail));
        }
        match control.end(number) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                Err(about("taking the ublk device apart", error))
            }
            _ => Ok(()),
        }
    }
}

impl DiskServer for Ublk {
    fn free_disk(&self) -> Result<PathBuf> {
        let mut control = Control::open().map_err(|error| Error::system(PATH, "opening it", error))?;
        let free = (0..NUMBERS).find(|number| control.info(*number).is_err());
        let free = free.ok_or_else(|| Error::new(ErrorKind::NoSpace, PATH, "every ublk device is in use"))?;
        Ok(PathBuf::from(format!("{DISK_PREFIX}{free}")))
    }

    fn is_orphan(&self, disk: &Path, owner: &Path) -> bool {
        let Ok(info) = number_of(disk).and_then(|number| {
            let info = Control::open().and_then(|mut control| control.info(number));
            info.map_err(|error| Error::system(disk.display(), "asking for its state", error))
        }) else {
            return false;
        };
        info.server_flags == mark(owner) && info.state == QUIESCED
    }

    fn serve(&self, seat: &Seat<'_>, ready: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        let number = number_of(seat.disk)?;
        let about = |doing: &str, error| Error::system(seat.disk.display(), doing, error);
        let mut control = Control::open().map_err(|error| about("opening /dev/ublk-control", error))?;
        let begin = begin(&mut control, number, seat)?;
        if begin == Begin::Gone {
            return Ok(());
        }
        let device = open_when_there(number).map_err(|error| about("opening it to serve", error))?;
        let desk = Desk::new(DEPTH).map_err(|error| about("making what wakes its server up", error))?;
        let desk = &desk;
        std::thread::scope(|scope| {
            let (fetched, has_fetched) = mpsc::sync_channel(1);
            // The kernel takes answers from the thread that has fetched, and from no other.
            let serving = scope.spawn(move || {
                let queue = Queue::new(device, DEPTH, REQUEST_BYTES_MAX).and_then(|mut queue| {
                    queue.fetch_all()?;
                    queue.map_descriptors()?;
                    Ok(queue)
                });
                match queue {
                    Ok(mut queue) => {
                        let _ = fetched.send(Ok(()));
                        queue.serve(seat.cache, desk, seat.threads)
                    }
                    Err(error) => fetched.send(Err(error)).or(Ok(())),
                }
            });
            let begun = has_fetched.recv().unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EIO)));
            let begun = begun.and_then(|()| match begin {
                Begin::Anew => control.start(number),
                Begin::Again | Begin::Gone => control.end_recovery(number),
            });
            let begun =
                begun.map_err(|error| about("having requests sent to this worker", error)).and_then(|()| ready());
            if begun.is_err() {
                desk.end();
            }
            let served = serving.join().unwrap_or_else(|_| Err(io::Error::other("the serving thread panicked")));
            if begun.is_err() && begin == Begin::Anew {
                // Nobody uses it yet. One that has users stays for a successor.
                let _ = control.delete(number);
            }
            begun.and(served.map_err(|error| about("taking requests", error)))
        })
    }
}

/// How a worker begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// With a new device.
    Anew,
    /// With a predecessor's.
    Again,
    /// Not at all: the device was taken apart.
    Gone,
}

/// What to do about what is there: the state of a device with our mark, if there is one.
fn decide(ours: Option<u16>, is_first: bool) -> Begin {
    match ours {
        Some(DEAD) => Begin::Anew,
        Some(_) => Begin::Again,
        None if is_first => Begin::Anew,
        None => Begin::Gone,
    }
}

fn begin(control: &mut Control, number: u32, seat: &Seat<'_>) -> Result<Begin> {
    let about = |doing: &str, error| Error::system(seat.disk.display(), doing, error);
    let mark = mark(seat.owner);
    let found = control.info(number).ok().filter(|info| info.server_flags == mark);
    let begin = decide(found.map(|info| info.state), seat.is_first);
    match begin {
        Begin::Gone => {}
        Begin::Anew => {
            if found.is_some() {
                control.delete(number).map_err(|error| about("removing what was never started", error))?;
            }
            let bytes = seat.cache.geometry().size;
            let new = NewDevice { number, bytes, depth: DEPTH, request_bytes_max: REQUEST_BYTES_MAX, mark };
            control.add(&new).map_err(|error| about("making a ublk device", error))?;
        }
        Begin::Again => {
            recover(control, number).map_err(|error| about("taking a killed worker's requests over", error))?;
        }
    }
    Ok(begin)
}

/// Starts a recovery, as soon as the predecessor is gone whole.
fn recover(control: &mut Control, number: u32) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match control.start_recovery(number) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < GONE_MAX => {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The predecessor had started one, and was killed before it had fetched anything.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
            done => return done,
        }
    }
}

/// The device's own node is made by another process, when the kernel has told it.
fn open_when_there(number: u32) -> io::Result<File> {
    let begin = Instant::now();
    loop {
        match File::options().read(true).write(true).open(format!("/dev/ublkc{number}")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && begin.elapsed() < NODE_MAX => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

fn number_of(disk: &Path) -> Result<u32> {
    let number = disk.to_str().and_then(|path| path.strip_prefix(DISK_PREFIX)).and_then(|number| number.parse().ok());
    number.ok_or_else(|| Error::new(ErrorKind::BadUse, disk.display(), "it is not a ublk device"))
}

/// An owner in 64 bits (FNV-1a), never 0, which devices of others have.
fn mark(owner: &Path) -> u64 {
    let bytes = owner.as_os_str().as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_was_taken_apart_is_not_made_again() {
        assert_eq!(decide(None, true), Begin::Anew);
        assert_eq!(decide(None, false), Begin::Gone);
        for is_first in [true, false] {
            assert_eq!(decide(Some(DEAD), is_first), Begin::Anew, "it was never started");
            assert_eq!(decide(Some(1), is_first), Begin::Again, "its server is about to be gone");
            assert_eq!(decide(Some(2), is_first), Begin::Again);
        }
    }

    #[test]
    fn disks_have_numbers_and_owners_have_marks() {
        assert_eq!(number_of(Path::new("/dev/ublkb17")).unwrap(), 17);
        for other in ["/dev/ublkc1", "/dev/loop1", "/dev/ublkb", "/dev/ublkb-1"] {
            assert_eq!(number_of(Path::new(other)).unwrap_err().kind(), ErrorKind::BadUse, "{other}");
        }
        let marks = ["/run/bifolio/swap/0/disk", "/run/bifolio/swap/1/disk", ""].map(|owner| mark(Path::new(owner)));
        assert!(marks.iter().all(|mark| *mark != 0) && marks[0] != marks[1]);
    }
}
