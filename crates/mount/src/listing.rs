//! Reading a directory: the source's own order and positions, so that a program may go back to any of them.

use crate::nodes::ROOT;
use crate::openings::OpenFolder;
use crate::replicas::FileKey;
use crate::server::Server;
use crate::sync::lock;
use crate::sys;
use std::io;
use std::os::fd::AsFd;

/// What is read at once.
const ROOM: usize = 32 << 10;
/// Where an entry's name begins (`linux_dirent64`).
const NAME_AT: usize = 19;

/// An entry of a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed<'a> {
    pub(crate) inode: u64,
    /// The position behind it.
    pub(crate) next: u64,
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
}

impl Listed<'_> {
    pub(crate) fn is_dot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// Lists a directory from a position on until `add` says that it has enough.
pub(crate) fn read(
    folder: &OpenFolder,
    from: u64,
    mut add: impl FnMut(&Listed<'_>) -> io::Result<bool>,
) -> io::Result<()> {
    let _turn = lock(&folder.reading);
    sys::seek(folder.file.as_fd(), from as i64, libc::SEEK_SET)?;
    let mut room = vec![0; ROOM];
    loop {
        let len = sys::entries(folder.file.as_fd(), &mut room)?;
        let mut rest = &room[..len];
        if rest.is_empty() {
            return Ok(());
        }
        while let Some((entry, behind)) = first(rest) {
            if add(&entry)? {
                return Ok(());
            }
            rest = behind;
        }
    }
}

/// The first entry of what the kernel has written, and what follows it.
fn first(bytes: &[u8]) -> Option<(Listed<'_>, &[u8])> {
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let len = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
    let name = bytes.get(NAME_AT..len)?;
    let name = &name[..name.iter().position(|byte| *byte == 0)?];
    let entry = Listed { inode: number(0)?, next: number(8)?, kind: *bytes.get(18)?, name };
    Some((entry, bytes.get(len..)?))
}

impl Server {
    /// The number of an entry, as the kernel knows or would know it.
    pub(crate) fn id_of_entry(&self, folder: &OpenFolder, entry: &Listed<'_>) -> u64 {
        let of_folder = |inode| self.nodes.id_of(FileKey { device: folder.node.key.device, inode });
        match entry.name {
            // Nothing above the source is named.
            b"." | b".." if folder.node.id == ROOT => folder.node.key.inode,
            _ => of_folder(entry.inode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_apart_and_nothing_is_read_behind_them() {
        let mut bytes = vec![];
        for (inode, name) in [(7_u64, &b"one"[..]), (8, b"\xff\n")] {
            bytes.extend(inode.to_ne_bytes());
            bytes.extend((inode * 10).to_ne_bytes());
            bytes.extend(24_u16.to_ne_bytes());
            bytes.push(libc::DT_REG);
            bytes.extend(name);
            bytes.resize(bytes.len().next_multiple_of(24), 0);
        }
        let (one, rest) = first(&bytes).unwrap();
        assert_eq!((one.inode, one.next, one.name), (7, 70, &b"one"[..]));
        let (two, rest) = first(rest).unwrap();
        assert_eq!((two.inode, two.name, rest.len()), (8, &b"\xff\n"[..], 0));
        for len in 0..48 {
            let _ = first(&bytes[..len]);
        }
    }
}
