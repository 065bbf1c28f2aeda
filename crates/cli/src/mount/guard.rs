//! Who unmounts what nobody serves any more.
//!
//! Programs on a mount whose server was killed get errors, and nothing can be mounted or read there until it is unmounted.
//! The guard is this program, started once more: it waits for the end of a pipe that the server has, and unmounts what is
//! still there then.

use super::table;
use crate::background;
use crate::exit::Failure;
use bifolio_block::fuse;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Starts one for a mount; without one the mount stays when its server is killed. It ends with the server.
pub fn start(place: &Path) -> Option<Child> {
    let device = table::ours(place).ok()??;
    let mut command: Command = background::program().ok()?;
    command.args(["mount", "--guard", &device, "--", "/"]).arg(place).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

/// In that process.
pub fn run(place: &Path, device: &str) -> Result<(), Failure> {
    // SAFETY: takes nothing; it fails for the leader of a group only. Signals for the server's group are not for this one.
    unsafe { libc::setsid() };
    let _ = std::io::stdin().read_to_end(&mut vec![]);
    if table::ours(place)?.as_deref() == Some(device) {
        fuse::unmount(place)?;
    }
    Ok(())
}
