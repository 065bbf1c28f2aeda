//! Processes, and the names of their files.

use std::ffi::CString;

/// A process, told from others that have had its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) pid: u32,
    /// When it was started, in the kernel's ticks since the machine was.
    pub(super) started: u64,
    /// The namespace of its number.
    pub(super) namespace: u64,
}

impl Identity {
    pub(super) fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// The process that has a number now.
    pub(super) fn of(pid: u32) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        Some(Self { pid, started: started(&stat)?, namespace })
    }
}

/// The 22nd field of `/proc/PID/stat`; the second may have blanks and brackets. None for one that has ended and was
/// not waited for.
pub(super) fn started(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18)?.parse().ok()
}

/// The file of the process with a number.
pub(super) fn file_name(pid: u32) -> CString {
    CString::new(format!("cache-{pid}")).unwrap_or_default()
}
