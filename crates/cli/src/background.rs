//! Commands that go on in the background: this program, started once more, since a process with threads cannot be split in
//! two. Errors until it is ready are printed by it.

use crate::exit::{Code, Failure};
use crate::output::printable;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

/// What the process in the background says when it is ready.
const READY: &[u8] = b"mounted\n";

fn failed(error: &std::io::Error) -> Failure {
    Failure::failed(format!("starting a process in the background failed: {error}"))
}

/// This program, to be started once more.
pub fn program() -> Result<Command, Failure> {
    std::env::current_exe().map(Command::new).map_err(|error| failed(&error))
}

/// Starts it with something on its standard input, and returns when it is ready. If it ends before, so does this process.
pub fn start(mut command: Command, input: &[u8]) -> Result<(), Failure> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| failed(&error))?;
    if let Some(mut standard_input) = child.stdin.take() {
        // If it has ended already, it has said why.
        let _ = standard_input.write_all(input);
    }
    let mut said = vec![];
    if let Some(mut output) = child.stdout.take() {
        let _ = output.read_to_end(&mut said);
    }
    if said == READY {
        return Ok(());
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    // Its own sentence is on stderr.
    std::process::exit(status.code().unwrap_or(Code::Failed as i32));
}

/// In that process: says that it is ready, and lets go of the terminal, of pipes and of the current directory.
pub fn leave_terminal() -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("going to the background failed: {error}"));
    // SAFETY: takes nothing; it fails for the leader of a group only, which a child is not.
    unsafe { libc::setsid() };
    std::env::set_current_dir("/").map_err(failed)?;
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    let mut out = std::io::stdout().lock();
    out.write_all(READY).and_then(|()| out.flush()).map_err(failed)?;
    for number in 0..=2 {
        // SAFETY: both are descriptors of this process; what was open under the number is closed.
        if unsafe { libc::dup2(null.as_raw_fd(), number) } < 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// A sentence for the system's log.
pub fn log(text: &str) {
    let Ok(text) = CString::new(printable(text).to_string()) else { return };
    // SAFETY: the format takes one string, and both end with a zero byte.
    unsafe { libc::syslog(libc::LOG_DAEMON | libc::LOG_WARNING, c"bifolio: %s".as_ptr(), text.as_ptr()) };
}
