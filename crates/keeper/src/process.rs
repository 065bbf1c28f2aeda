//! What a process does so that it can serve while the system has no memory.

use crate::{Error, Result};

/// `PR_SET_IO_FLUSHER` (Linux 5.6).
const SET_IO_FLUSHER: libc::c_int = 57;

/// Locks everything that this process has, and will have, in memory.
///
/// # Errors
/// The system's, where the limit of locked memory (`ulimit -l`) is too low.
pub fn lock_memory() -> Result<()> {
    // SAFETY: takes flags.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } == 0 {
        return Ok(());
    }
    Err(Error::last_os("locking the process in memory (mlockall)"))
}

/// Says that this thread, and those that it starts, write out memory: what they ask of the kernel does not wait for
/// memory to be written out.
///
/// # Errors
/// `Permission` without `CAP_SYS_RESOURCE`, as in many containers.
pub fn become_flusher() -> Result<()> {
    // SAFETY: takes numbers.
    if unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) } == 0 {
        return Ok(());
    }
    Err(Error::last_os("asking to be a writer of memory (PR_SET_IO_FLUSHER)"))
}

/// Has this thread, and those that it starts, run before others: somebody waits for memory.
///
/// # Errors
/// `Permission` without `CAP_SYS_NICE`.
pub fn run_before_others() -> Result<()> {
    // SAFETY: takes numbers.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } == 0 {
        return Ok(());
    }
    Err(Error::last_os("asking to run before others (setpriority)"))
}

/// Has this process go on when its keeper ends, which would end it otherwise.
pub fn outlive_parent() {
    // SAFETY: takes numbers, and cannot fail with these.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
}

/// Whether [`become_flusher`] would be permitted; nothing stays changed.
///
/// # Errors
/// As there.
pub fn can_become_flusher() -> Result<()> {
    /// `PR_GET_IO_FLUSHER`, which takes the same permission.
    const GET_IO_FLUSHER: libc::c_int = 58;
    // SAFETY: takes numbers.
    if unsafe { libc::prctl(GET_IO_FLUSHER, 0, 0, 0, 0) } >= 0 {
        return Ok(());
    }
    Err(Error::last_os("asking to be a writer of memory (PR_SET_IO_FLUSHER)"))
}

/// Whether [`lock_memory`] would be permitted; nothing stays changed.
///
/// # Errors
/// As there.
pub fn can_lock_memory() -> Result<()> {
    // SAFETY: locks and unlocks memory of ours.
    unsafe {
        if libc::mlockall(libc::MCL_CURRENT) != 0 {
            return Err(Error::last_os("locking the process in memory (mlockall)"));
        }
        libc::munlockall();
    }
    Ok(())
}

/// Asks the kernel to end any other process first when memory runs out.
///
/// # Errors
/// The system's.
pub fn refuse_oom_kill() -> Result<()> {
    let written = std::fs::write("/proc/self/oom_score_adj", "-1000");
    written.map_err(|error| Error::system("asking not to be killed when memory runs out", error))
}
