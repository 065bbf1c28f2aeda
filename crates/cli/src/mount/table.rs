//! The kernel's list of mounts.

use crate::exit::Failure;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Which of a place's mounts is ours, by the number of its device; none if the last one is another's.
pub fn ours(place: &Path) -> Result<Option<String>, Failure> {
    let mounts = std::fs::read("/proc/self/mountinfo")
        .map_err(|error| Failure::failed(format!("reading /proc/self/mountinfo failed: {error}")))?;
    Ok(ours_of(&mounts, place))
}

fn ours_of(mounts: &[u8], place: &Path) -> Option<String> {
    let mut lines = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let kind = words.iter().position(|word| *word == b"-")? + 1;
        Some((unescaped(words.get(4)?), *words.get(2)?, *words.get(kind)?))
    });
    let (_, device, kind) = lines.rfind(|(at, ..)| at == place)?;
    let is_ours = OsStr::from_bytes(kind) == "fuse.bifolio-mount";
    is_ours.then(|| String::from_utf8_lossy(device).into_owned())
}

/// Spaces, tabs, ends of lines and backslashes are three octal digits each in the kernel's list.
fn unescaped(text: &[u8]) -> PathBuf {
    let (mut plain, mut rest) = (vec![], text);
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                plain.push(byte);
                rest = &behind[3..];
            }
            _ => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    std::ffi::OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_path_and_kind() {
        let mounts = b"22 1 0:40 / /mnt/two\\040words rw,nosuid shared:2 - fuse.bifolio-mount /a rw\n\
            23 1 0:41 / /mnt/b rw - fuse.bifolio-mount /b rw\n24 23 8:1 / /mnt/b rw shared:1 - ext4 c rw\n";
        assert_eq!(ours_of(mounts, Path::new("/mnt/two words")).as_deref(), Some("0:40"));
        assert_eq!(ours_of(mounts, Path::new("/mnt/b")), None);
        assert_eq!(ours_of(mounts, Path::new("/mnt")), None);
    }
}
