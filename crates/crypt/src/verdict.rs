//! Whether a master key is a directory's. Nothing on disk says so by itself: what is in the directory has to open.
//!
//! A block of a file, or a link's target, opens with a wrong key once in 2^128, so that one is enough. A name does once
//! in some 250, since only its padding can be wrong; so of names more have to open than not.

use crate::config::CONFIG_NAME;
use crate::content::layout::{self, CIPHER_BLOCK_BYTES};
use crate::content::{is_hole, parse_header};
use crate::file::read_fully;
use crate::folder::Folder;
use crate::format::Format;
use crate::holes::{self, Sought};
use crate::sys;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Directories that are looked into at most.
const FOLDERS_MAX: usize = 16;
/// Files and links that are tried at most.
const CONTENTS_MAX: u32 = 32;
/// So many names do not open by chance.
const NAMES_SURE: u32 = 3;

/// What a directory says about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    Wrong,
    /// There is nothing in it that was encrypted, or too little.
    Unknown,
}

/// What opened, and what did not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Evidence {
    names_opened: u32,
    names_refused: u32,
    contents_opened: u32,
    contents_refused: u32,
}

impl Evidence {
    fn verdict(self) -> Verdict {
        let Self { names_opened, names_refused, contents_opened, contents_refused } = self;
        if contents_opened > 0 {
            return Verdict::Right;
        }
        if names_opened + names_refused + contents_refused == 0 {
            return Verdict::Unknown;
        }
        if names_opened <= names_refused {
            return Verdict::Wrong;
        }
        // Contents can be damaged where names are whole, and a name or two open by chance.
        if contents_refused == 0 || names_opened >= NAMES_SURE { Verdict::Right } else { Verdict::Unknown }
    }

    fn add_content(&mut self, opens: Option<bool>) {
        match opens {
            Some(true) => self.contents_opened += 1,
            Some(false) => self.contents_refused += 1,
            None => {}
        }
    }

    fn is_enough(self) -> bool {
        self.contents_opened > 0
    }
}

/// Tries a key on what is in a directory: its names, then the contents of some files, from the root down.
///
/// # Errors
/// If the root cannot be listed, or its IV is damaged.
pub(crate) fn verdict(root: &Folder, format: &Format) -> crate::Result<Verdict> {
    if !format.features.plaintext_names {
        root.iv(format)?;
    }
    let mut evidence = Evidence::default();
    let mut found = VecDeque::new();
    look_into(root, format, &mut evidence, &mut found)
        .map_err(|error| crate::Error::system("the directory", "listing it", error))?;
    let mut left = FOLDERS_MAX;
    while let (false, Some(folder), 1..) = (evidence.is_enough(), found.pop_front(), left) {
        left -= 1;
        // One that cannot be read says nothing.
        let _ = look_into(&folder, format, &mut evidence, &mut found);
    }
    Ok(evidence.verdict())
}

/// Adds what a directory's entries say, and the directories in it to `found`.
fn look_into(
    folder: &Folder,
    format: &Format,
    evidence: &mut Evidence,
    found: &mut VecDeque<Folder>,
) -> io::Result<()> {
    let has_names = !format.features.plaintext_names && folder.iv(format).is_ok();
    for entry in sys::entries(folder.fd())? {
        if evidence.is_enough() {
            break;
        }
        if folder.is_of_format(format, &entry.name) || entry.name.starts_with(CONFIG_NAME.as_bytes()) {
            continue;
        }
        if has_names && folder.may_decrypt(format, &entry.name) {
            match folder.plain_name(format, &entry.name) {
                Ok(_) => evidence.names_opened += 1,
                Err(_) => evidence.names_refused += 1,
            }
        }
        let is_room = evidence.contents_opened + evidence.contents_refused < CONTENTS_MAX;
        match sys::stat(folder.fd(), &entry.name).map(|state| state.st_mode & libc::S_IFMT) {
            Ok(libc::S_IFDIR) if found.len() < FOLDERS_MAX => found.extend(folder.child(&entry.name)),
            Ok(libc::S_IFREG) if is_room => evidence.add_content(file_opens(folder, format, &entry.name)),
            Ok(libc::S_IFLNK) if is_room => evidence.add_content(link_opens(folder, format, &entry.name)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether the first, the middle or the last block that was written of a file opens; none if nothing was, if it cannot
/// be read, and if it is no encrypted file for any key.
fn file_opens(folder: &Folder, format: &Format, entry: &[u8]) -> Option<bool> {
    let fd = sys::open(folder.fd(), entry, libc::O_RDONLY | libc::O_NONBLOCK, 0).ok()?;
    let state = sys::stat_of(fd.as_fd()).ok()?;
    if state.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let (file, cipher_len) = (File::from(fd), state.st_size as u64);
    let mut header = [0; layout::HEADER_BYTES as usize];
    if read_fully(&file, &mut header, 0).ok()? < header.len() {
        return None;
    }
    let id = parse_header(&header).ok()?;
    let plain_len = layout::plain_len(cipher_len);
    let below = |sought, at| sys::seek(file.as_fd(), sought, at);
    let first = holes::next(Sought::Data, 0, cipher_len, below).ok()??;
    let mut outcome = None;
    for offset in [first, plain_len / 2, plain_len - 1] {
        let block = layout::block_of(offset);
        let mut cipher = [0; CIPHER_BLOCK_BYTES as usize];
        let read = read_fully(&file, &mut cipher, layout::cipher_offset(block)).ok()?;
        let cipher = &cipher[..read];
        if is_hole(cipher) {
            continue;
        }
        let mut plain = vec![0; read.saturating_sub(layout::OVERHEAD_BYTES as usize)];
        if format.content.open(&id, block, cipher, &mut plain).is_ok() {
            return Some(true);
        }
        outcome = Some(false);
    }
    outcome
}

fn link_opens(folder: &Folder, format: &Format, entry: &[u8]) -> Option<bool> {
    let stored = sys::readlink(folder.fd(), entry).ok()?;
    if format.features.plaintext_names || stored.is_empty() {
        return None;
    }
    Some(format.open_target(&stored).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_content_decides_and_names_do_by_number() {
        let cases = [
            // Names that opened and did not, contents that opened and did not.
            ((0, 0, 0, 0), Verdict::Unknown),
            ((1, 0, 0, 0), Verdict::Right),
            ((0, 1, 0, 0), Verdict::Wrong),
            ((1, 1, 0, 0), Verdict::Wrong),
            // What a wrong key does to a large directory.
            ((4, 1000, 0, 32), Verdict::Wrong),
            ((1, 300, 0, 0), Verdict::Wrong),
            // What damage does with the right one.
            ((0, 1000, 1, 31), Verdict::Right),
            ((900, 100, 0, 32), Verdict::Right),
            ((1, 0, 0, 1), Verdict::Unknown),
            // Without encrypted names.
            ((0, 0, 1, 0), Verdict::Right),
            ((0, 0, 0, 1), Verdict::Wrong),
        ];
        for ((names_opened, names_refused, contents_opened, contents_refused), expected) in cases {
            let evidence = Evidence { names_opened, names_refused, contents_opened, contents_refused };
            assert_eq!(evidence.verdict(), expected, "{evidence:?}");
        }
    }
}
