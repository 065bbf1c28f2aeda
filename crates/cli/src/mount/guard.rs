//! Who unmounts what nobody serves any more.
//!
//! Programs on a mount whose keeper was killed get errors, and nothing can be mounted or read there until it is unmounted.
//! The guard is this program, started once more: it is told the number of the mount's device by a pipe, waits for the end of
//! the pipe or of its parent, the keeper, and unmounts what is still there then.
//!
//! A killed server may have a thread that waits in the kernel for pages which only a server takes, and that has the pipe and
//! the connection open. So the connection is ended first, by which all that wait get errors.

use super::table;
use crate::background;
use crate::exit::Failure;
use bifolio_block::fuse;
use std::ffi::CString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// How soon the end of the keeper is noticed where the pipe does not tell.
const LOOK_MS: i32 = 200;
/// How often it is looked then for the pipe's end.
const LOOKS_MAX: u32 = 5;

/// What the guard is told when there is nothing left to do for it.
const REST: u8 = b'.';

/// The process, from the keeper's side. It is left alone, and ends after it.
pub struct Guard(Option<Child>);

impl Drop for Guard {
    /// All has ended as it should: what is mounted there from now on is somebody else's, whatever its number.
    fn drop(&mut self) {
        if let Some(input) = self.0.as_mut().and_then(|child| child.stdin.as_mut()) {
            let _ = input.write_all(&[REST]);
        }
    }
}

impl Guard {
    /// Starts one for a mount point, before anything is mounted. Without one the mount stays when its keeper is killed.
    pub fn start(place: &Path) -> Self {
        let started = || {
            let mut command: Command = background::program().ok()?;
            command.args(["mount", "--guard", "--", "/"]).arg(place).current_dir("/");
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
        };
        Self(started())
    }

    /// It is mounted.
    pub fn tell(&self, place: &Path) {
        let input = self.0.as_ref().and_then(|child| child.stdin.as_ref());
        if let (Some(mut input), Ok(Some(device))) = (input, table::ours(place)) {
            // One that has ended is missed when the keeper is killed, and not before.
            let _ = input.write_all(device.as_bytes());
        }
    }
}

/// In that process.
pub fn run(place: &Path) -> Result<(), Failure> {
    // SAFETY: takes nothing; it fails for the leader of a group only. Signals for the server's group are not for this one.
    unsafe { libc::setsid() };
    let told = until_the_end();
    if told.bytes().any(|byte| byte == REST) {
        return Ok(());
    }
    match table::ours(place)? {
        // The end may have come between the mount and the word of it.
        Some(device) if device == told || (told.is_empty() && is_dead(place)) => {
            abort(place, &device);
            fuse::unmount(place).map(drop).map_err(Failure::from)
        }
        _ => Ok(()),
    }
}

/// Whether nobody serves what is mounted there. The kernel lists a folder by no answer from before.
fn is_dead(place: &Path) -> bool {
    let error = std::fs::read_dir(place).err().and_then(|error| error.raw_os_error());
    matches!(error, Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// What it was told, when nobody is there any more who would tell: at the pipe's end, which is waited for a little longer
/// than the keeper's.
fn until_the_end() -> String {
    // SAFETY: takes nothing and cannot fail.
    let parent = || unsafe { libc::getppid() };
    let (keeper, mut told, mut looks) = (parent(), vec![], LOOKS_MAX);
    let mut poll = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    while looks > 0 {
        looks -= u32::from(parent() != keeper);
        // SAFETY: one structure, which is ours.
        if unsafe { libc::poll(&raw mut poll, 1, LOOK_MS) } > 0 {
            let mut room = [0; 64];
            match std::io::stdin().read(&mut room) {
                Ok(len @ 1..) => told.extend(&room[..len]),
                _ => break,
            }
        }
    }
    String::from_utf8_lossy(&told).into_owned()
}

/// Has the kernel answer everything with errors from now on: by its own list of connections, which the user who mounted may
/// use, or as root by force.
fn abort(place: &Path, device: &str) {
    let minor = device.rsplit(':').next().unwrap_or_default();
    let Ok(name) = CString::new(place.as_os_str().as_bytes()) else { return };
    if std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1").is_err() {
        // SAFETY: the path ends with a zero byte. That it is in use afterwards is no matter: it is unmounted by other means.
        unsafe { libc::umount2(name.as_ptr(), libc::MNT_FORCE | libc::UMOUNT_NOFOLLOW) };
    }
}
