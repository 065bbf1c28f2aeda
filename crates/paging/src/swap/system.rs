//! The system's side of swap.

use bifolio_block::{Error, ErrorKind, Result};
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `SWAP_FLAG_PREFER`; `SWAP_FLAG_DISCARD` with `SWAP_FLAG_DISCARD_PAGES`.
const PREFER: libc::c_int = 0x8000;
const DISCARD: libc::c_int = 0x1_0000 | 0x4_0000;
/// The highest priority.
pub const PRIORITY_MAX: u16 = 0x7fff;

/// A swap space of the system's, whoever made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// The file or disk.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Higher ones are used first.
    pub priority: i32,
}

/// All swap spaces.
pub fn swaps() -> Vec<Swap> {
    parse_swaps(&std::fs::read("/proc/swaps").unwrap_or_default())
}

/// The one on this disk.
pub fn swap_on(disk: &Path) -> Option<Swap> {
    swaps().into_iter().find(|swap| swap.path == disk)
}

fn parse_swaps(text: &[u8]) -> Vec<Swap> {
    let line = |line: &[u8]| {
        let text = String::from_utf8_lossy(line);
        let mut fields = text.split_whitespace().rev();
        let (priority, used, size) = (fields.next()?, fields.next()?, fields.next()?);
        let path = line.split(u8::is_ascii_whitespace).next()?;
        let kib = |field: &str| field.parse::<u64>().ok().map(|kib| kib << 10);
        Some(Swap { path: unescaped(path), size: kib(size)?, used: kib(used)?, priority: priority.parse().ok()? })
    };
    text.split(|byte| *byte == b'\n').skip(1).filter_map(line).collect()
}

/// A name in which the kernel wrote white space as three octal digits.
fn unescaped(name: &[u8]) -> PathBuf {
    let mut plain = vec![];
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(digits) = digits {
            plain.push(digits.iter().fold(0_u8, |value, digit| value.wrapping_shl(3) | (digit - b'0')));
            rest = &after[3..];
        } else {
            plain.push(*first);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// Bytes of memory, and those that can be had without swapping.
pub fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    (field("MemTotal:").unwrap_or(0), field("MemAvailable:").unwrap_or(0))
}

/// A memory cgroup that has more swapped than it could take back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crowded {
    /// Its folder.
    pub group: PathBuf,
    /// Bytes that it has swapped.
    pub swapped: u64,
    /// Bytes that it could take back.
    pub room: u64,
}

/// The first cgroup whose limit is too low for what it has swapped: bringing that back would end its programs.
pub fn crowded_group() -> Option<Crowded> {
    [("/sys/fs/cgroup/memory", true), ("/sys/fs/cgroup", false)]
        .into_iter()
        .find_map(|(root, is_old)| crowded_below(Path::new(root), is_old, 0))
}

fn crowded_below(folder: &Path, is_old: bool, depth: u32) -> Option<Crowded> {
    // Containers are nested a few levels deep.
    const DEPTH_MAX: u32 = 16;
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.memsw.usage_in_bytes"];
    let found = if is_old {
        let swapped = |used| number(names[2]).map(|both| both.saturating_sub(used));
        number(names[0]).zip(number(names[1])).and_then(|(limit, used)| Some((limit, used, swapped(used)?)))
    } else {
        number("memory.max")
            .zip(number("memory.current"))
            .zip(number("memory.swap.current"))
            .map(|((a, b), c)| (a, b, c))
    };
    if let Some((limit, used, swapped)) = found
        && swapped > limit.saturating_sub(used)
    {
        return Some(Crowded { group: folder.to_owned(), swapped, room: limit.saturating_sub(used) });
    }
    let entries = std::fs::read_dir(folder).ok().filter(|_| depth < DEPTH_MAX)?;
    let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.into_iter().find_map(|entry| crowded_below(&entry.path(), is_old, depth + 1))
}

/// Bytes that are free on the file system of a path.
pub fn free_space(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: plain old data, for which zeroes are a valid value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, and the structure is filled.
    let done = unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) } == 0;
    done.then(|| stat.f_bavail as u64 * stat.f_frsize as u64)
}

/// What kind of file system a path is on, where swap on it would need memory for writing memory out.
pub fn why_unfit(path: &Path) -> Option<&'static str> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: plain old data, for which zeroes are a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, and the structure is filled.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut stat) } != 0 {
        return None;
    }
    match stat.f_type as u64 {
        0x0102_1994 | 0x8584_58f6 => Some("it is on a file system in memory"),
        0x6969 | 0xff53_4d42 | 0xfe53_4d42 | 0x517b | 0x00c3_6400 => Some("it is on a file system of the network"),
        0x6573_5546 => Some("it is on a file system that a program serves"),
        _ => None,
    }
}

/// Makes a disk one for swap.
///
/// # Errors
/// `Missing` without `mkswap`, and what that says.
pub fn mkswap(disk: &Path) -> Result<()> {
    // Few users have its folder in their path.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let run = Command::new("mkswap").args(["-L", "bifolio"]).arg(disk).env("PATH", path).output();
    let output = run.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::new(ErrorKind::Missing, disk.display(), "mkswap is missing; install the package util-linux")
        }
        _ => Error::system(disk.display(), "starting mkswap", error),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(ErrorKind::Write, disk.display(), format!("mkswap failed: {}", said.trim())))
}

/// Has the system use a disk, and tell it of clusters that are not needed any more if it `discards`.
///
/// # Errors
/// The system's.
pub fn swapon(disk: &Path, priority: u16, discards: bool) -> Result<()> {
    let path = c_path(disk)?;
    let discard = if discards { DISCARD } else { 0 };
    let flags = PREFER | libc::c_int::from(priority.min(PRIORITY_MAX)) | discard;
    // SAFETY: the path is a C string.
    if unsafe { libc::swapon(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    Err(Error::system(disk.display(), "switching swap on (swapon)", io::Error::last_os_error()))
}

/// Brings everything on a disk back into memory. It stays on if that fails or is interrupted.
///
/// # Errors
/// The system's; `BadState` if memory does not suffice, or a signal came.
pub fn swapoff(disk: &Path) -> Result<()> {
    let path = c_path(disk)?;
    // SAFETY: the path is a C string.
    if unsafe { libc::swapoff(path.as_ptr()) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let why = match error.raw_os_error() {
        Some(libc::ENOMEM) => "there is too little memory for what is on it; it stays on",
        Some(libc::EINTR) => "it was interrupted; it stays on",
        _ => return Err(Error::system(disk.display(), "switching swap off (swapoff)", error)),
    };
    Err(Error::new(ErrorKind::BadState, disk.display(), why))
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::BadUse, path.display(), "it has a zero byte in its name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_are_read_as_the_kernel_writes_them() {
        let text = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/loop3                              partition\t1048572\t\t1024\t\t50\n\
            /swap\\040file\\011x                      file\t\t4\t\t0\t\t-2\n\nnonsense\n";
        let swaps = parse_swaps(text);
        assert_eq!(swaps.len(), 2);
        let first = Swap { path: "/dev/loop3".into(), size: 1_048_572 << 10, used: 1024 << 10, priority: 50 };
        assert_eq!(swaps[0], first);
        assert_eq!((swaps[1].path.to_str(), swaps[1].priority), (Some("/swap file\tx"), -2));
    }

    #[test]
    fn a_cgroup_that_could_not_take_back_what_it_has_swapped_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let group = |name: &str, [limit, used, swapped]: [&str; 3]| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            let files = [("memory.max", limit), ("memory.current", used), ("memory.swap.current", swapped)];
            for (file, text) in files {
                std::fs::write(path.join(file), text).unwrap();
            }
            path
        };
        group("free", ["max\n", "5000\n", "9000\n"]);
        group("roomy", ["10000\n", "5000\n", "5000\n"]);
        assert_eq!(crowded_below(folder.path(), false, 0), None);
        let crowded = group("free/inner", ["10000\n", "9000\n", "5000\n"]);
        let found = crowded_below(folder.path(), false, 0);
        assert_eq!(found, Some(Crowded { group: crowded, swapped: 5000, room: 1000 }));
    }

    #[test]
    fn memory_and_space_are_those_of_this_machine() {
        let (total, available) = memory();
        assert!(total >= available && available > 0);
        assert!(free_space(Path::new("/")).is_some() && free_space(Path::new("/none/such")).is_none());
        assert_eq!(why_unfit(Path::new("/dev/shm")).is_some(), Path::new("/dev/shm").exists());
    }
}
