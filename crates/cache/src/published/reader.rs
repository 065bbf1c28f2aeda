//! The files of this user's processes, as anybody reads them.

use super::folder::Folder;
use super::format::{self, WORDS};
use super::identity::{Identity, file_name};
use crate::error::{Error, ErrorKind, Result};
use crate::stats::ProcessStats;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Times that a file is read before its writer is taken to be in the middle of it for ever.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_micros(500);

/// Statistics of this user's running processes that have a cache, by their numbers. Files of processes that have
/// ended are removed.
///
/// # Errors
/// `Read` if a folder for them is there, and cannot be listed.
pub fn list() -> Result<Vec<ProcessStats>> {
    let mut found = Vec::new();
    for folder in Folder::all() {
        let names = folder.names().map_err(|error| {
            Error::new(ErrorKind::Read, folder.path(), format!("cannot list: {error}")).with_cause(error)
        })?;
        for name in names.iter().filter(|name| name.to_bytes().starts_with(b"cache-")) {
            found.extend(read(&folder, name));
        }
    }
    found.sort_by_key(|process: &ProcessStats| process.pid);
    Ok(found)
}

/// What a file says, if its process runs.
fn read(folder: &Folder, name: &CString) -> Option<ProcessStats> {
    let file = folder.open(name).ok()?;
    let Some((identity, stats)) = read_file(&file) else {
        // Of another version, or of a process that was stopped or ended while it wrote.
        if !is_running(name) {
            folder.remove(name);
        }
        return None;
    };
    // One of another container's processes is not ours to judge.
    let here = Identity::own()?;
    if identity.namespace != here.namespace {
        return None;
    }
    if Identity::of(identity.pid) != Some(identity) || file_name(identity.pid) != *name {
        folder.remove(name);
        return None;
    }
    let command = std::fs::read_to_string(format!("/proc/{}/comm", identity.pid)).unwrap_or_default();
    Some(ProcessStats { name: command.trim_end().to_owned(), ..stats })
}

/// Whether the process that a file is named after may be there.
fn is_running(name: &CString) -> bool {
    let pid = name.to_str().ok().and_then(|name| name.strip_prefix("cache-")?.parse::<u32>().ok());
    pid.is_some_and(|pid| Identity::of(pid).is_some())
}

fn read_file(file: &File) -> Option<(Identity, ProcessStats)> {
    for _ in 0..TRIES {
        let mut bytes = [0; WORDS * size_of::<u64>()];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<_>>();
        if !format::is_ours(&words) {
            return None;
        }
        if let Some(decoded) = format::decode(&words) {
            return Some(decoded);
        }
        std::thread::sleep(PAUSE);
    }
    None
}
