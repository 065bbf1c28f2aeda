//! Openings of files and directories, by the numbers that the kernel has for them.
//!
//! Each has a row that outlives a server that is killed ([`crate::state`]), with the descriptor and with the request that it
//! is the answer to: a request that comes again gets the opening that it has already.

use crate::fault::{Point, at};
use crate::given::Shared;
use crate::nodes::{Node, Nodes};
use crate::state::{Before, RESENT, State, Turn, Word};
use crate::sync::lock;
use crate::sys;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Words of a row; handles are never 0, and the descriptor is one more.
const HANDLE: usize = 0;
const KIND: usize = 1;
const NODE: usize = 2;
const GENERATION: usize = 3;
pub(crate) const HANDLE_DESCRIPTOR: usize = 4;
const REQUEST: usize = 5;

/// Kinds: a directory, else how a file is open.
const IS_FOLDER: u64 = 1;
const IS_PAST: u64 = 2;
const IS_DIRECT: u64 = 4;

/// How much others may append while a server is replaced for what it has appended to be found.
const OTHERS_BYTES: usize = 1 << 20;

/// Where bytes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    At(u64),
    End,
    /// These are pages that the kernel has kept.
    Back(u64),
}

/// An opening.
#[derive(Clone)]
pub(crate) enum Handle {
    File(Arc<OpenFile>),
    Folder(Arc<OpenFolder>),
}

/// An opening of a file.
pub(crate) struct OpenFile {
    pub(crate) node: Arc<Node>,
    /// The source's, for what the program may do; for reading where devices share the file.
    pub(crate) file: std::fs::File,
    pub(crate) is_past: bool,
    /// The kernel keeps nothing of what is written by it.
    pub(crate) is_direct: bool,
}

/// An opening of a directory.
pub(crate) struct OpenFolder {
    pub(crate) node: Arc<Node>,
    pub(crate) file: OwnedFd,
    /// Held by who reads it, as it has one position.
    pub(crate) reading: Mutex<()>,
}

/// All of them.
pub(crate) struct Openings {
    state: Arc<State>,
    table: RwLock<HashMap<u64, (Handle, u32)>>,
}

fn number(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Openings {
    /// Those that predecessors had.
    pub(crate) fn adopt(state: Arc<State>, nodes: &Nodes) -> Self {
        let mut table = HashMap::new();
        for row in state.handles.all() {
            let word = |at| state.handles.get(row, at);
            // SAFETY: it is open, as rows name what is, and nobody else of this process has it.
            let file = unsafe { OwnedFd::from_raw_fd((word(HANDLE_DESCRIPTOR) - 1) as i32) };
            // Of a file whose number another one has by now the kernel wants nothing any more.
            let node = nodes.get(word(NODE)).ok().filter(|node| node.generation == word(GENERATION));
            let Some(node) = node else {
                state.handles.give_back(row);
                continue;
            };
            let handle = Handle::of(node, file, word(KIND));
            table.insert(word(HANDLE), (handle, row));
        }
        Self { state, table: RwLock::new(table) }
    }

    /// A new opening, by a request.
    pub(crate) fn hold(&self, handle: Handle, unique: u64) -> io::Result<u64> {
        let rows = &self.state.handles;
        at(Point::Opened);
        let (number, row) = (self.state.next(Word::Handle), rows.take()?);
        let (node, descriptor) = match &handle {
            Handle::File(file) => (&file.node, file.as_fd()),
            Handle::Folder(folder) => (&folder.node, folder.file.as_fd()),
        };
        let descriptor = descriptor.as_raw_fd() as u64 + 1;
        rows.fill(row, &[number, handle.kind(), node.id, node.generation, descriptor, unique & !RESENT]);
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(number, (handle, row));
        at(Point::Noted);
        Ok(number)
    }

    /// What a predecessor has opened for a request that comes again.
    pub(crate) fn before(&self, unique: u64) -> Option<(u64, Handle)> {
        if unique & RESENT == 0 {
            return None;
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let is_its = |row: u32| self.state.handles.get(row, REQUEST) == unique & !RESENT;
        table.iter().find(|(_, (_, row))| is_its(*row)).map(|(number, (handle, _))| (*number, handle.clone()))
    }

    /// It is closed.
    pub(crate) fn release(&self, handle: u64) -> Option<Handle> {
        let (handle, row) = self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)?;
        self.state.handles.give_back(row);
        at(Point::Released);
        Some(handle)
    }

    /// All openings of files.
    pub(crate) fn files(&self) -> Vec<Arc<OpenFile>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let file = |(handle, _): &(Handle, u32)| match handle {
            Handle::File(file) => Some(Arc::clone(file)),
            Handle::Folder(_) => None,
        };
        table.values().filter_map(file).collect()
    }

    fn get(&self, handle: u64) -> io::Result<Handle> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&handle).map(|(handle, _)| handle.clone()).ok_or_else(|| number(libc::EBADF))
    }

    pub(crate) fn file(&self, handle: u64) -> io::Result<Arc<OpenFile>> {
        match self.get(handle)? {
            Handle::File(file) => Ok(file),
            Handle::Folder(_) => Err(number(libc::EISDIR)),
        }
    }

    pub(crate) fn folder(&self, handle: u64) -> io::Result<Arc<OpenFolder>> {
        match self.get(handle)? {
            Handle::Folder(folder) => Ok(folder),
            Handle::File(_) => Err(number(libc::ENOTDIR)),
        }
    }
}

impl Handle {
    pub(crate) fn of_folder(node: Arc<Node>, file: OwnedFd) -> Self {
        Self::Folder(Arc::new(OpenFolder { node, file, reading: Mutex::default() }))
    }

    fn of(node: Arc<Node>, file: OwnedFd, kind: u64) -> Self {
        if kind & IS_FOLDER != 0 {
            return Self::of_folder(node, file);
        }
        let (is_past, is_direct) = (kind & IS_PAST != 0, kind & IS_DIRECT != 0);
        Self::File(Arc::new(OpenFile { node, file: file.into(), is_past, is_direct }))
    }

    fn kind(&self) -> u64 {
        match self {
            Self::Folder(_) => IS_FOLDER,
            Self::File(file) => (if file.is_past { IS_PAST } else { 0 }) | if file.is_direct { IS_DIRECT } else { 0 },
        }
    }
}

impl OpenFolder {
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl OpenFile {
    pub(crate) fn shared(&self) -> Option<Arc<Shared>> {
        lock(&self.node.opens).shared.clone()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads; `is_kept` says that the kernel keeps the pages.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8], is_kept: bool) -> io::Result<usize> {
        match self.shared() {
            Some(shared) if is_kept => shared.give(offset, buffer),
            Some(shared) => shared.read(offset, buffer),
            None => {
                let mut read = 0;
                while read < buffer.len() {
                    match self.file.read_at(&mut buffer[read..], offset + read as u64) {
                        Ok(0) => break,
                        Ok(more) => read += more,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) if read > 0 => break,
                        Err(error) => return Err(error),
                    }
                }
                Ok(read)
            }
        }
    }

    /// Writes what a predecessor that was killed has not written.
    pub(crate) fn write(&self, to: To, bytes: &[u8], turn: &Turn<'_>) -> io::Result<usize> {
        match (self.shared(), to) {
            (Some(shared), To::Back(offset)) => shared.take_back(offset, bytes, turn)?,
            (Some(shared), To::End) => {
                let _order = lock(&shared.appending);
                let end = turn.begun_with().map_or_else(|| self.file.metadata().map(|of| of.len()), Ok)?;
                if turn.before().is_none() {
                    turn.begin(end, 0);
                }
                shared.write(end, bytes, !self.is_direct, turn)?;
            }
            (Some(shared), To::At(offset)) => shared.write(offset, bytes, !self.is_direct, turn)?,
            (None, To::End) => return self.append(bytes, turn),
            (None, To::At(offset) | To::Back(offset)) => {
                if !turn.was_done(|| false)? {
                    let written = self.file.write_at(bytes, offset)?;
                    if written < bytes.len() {
                        return Ok(written);
                    }
                    turn.done(Ok(()))?;
                }
            }
        }
        Ok(bytes.len())
    }

    /// Writes at the end, wherever that is, among programs beside the mount that do the same. What a predecessor has written
    /// there before it was killed is found behind what was the end.
    fn append(&self, bytes: &[u8], turn: &Turn<'_>) -> io::Result<usize> {
        if let Some(Before::Begun(end, _)) = turn.before() {
            let reader = std::fs::File::from(sys::reopen(self.file.as_fd(), libc::O_RDONLY)?);
            let mut behind = vec![0; 2 * bytes.len() + OTHERS_BYTES];
            let mut len = 0;
            while let more @ 1.. = reader.read_at(&mut behind[len..], end + len as u64)? {
                len += more;
            }
            if let Some(written) = found_behind(&behind[..len], bytes) {
                return Ok(written);
            }
        }
        turn.begin(self.file.metadata()?.len(), 0);
        sys::append(self.file.as_fd(), bytes)
    }

    pub(crate) fn sync(&self, is_data_only: bool) -> io::Result<()> {
        if let Some(shared) = self.shared() {
            shared.sync()?;
        }
        sys::sync(self.file.as_fd(), is_data_only)
    }

    /// Where data begins, or a hole.
    pub(crate) fn seek(&self, offset: i64, whence: i32) -> io::Result<i64> {
        if let Some(shared) = self.shared() {
            shared.sync()?;
        }
        sys::seek(self.file.as_fd(), offset, whence)
    }

    pub(crate) fn allocate(&self, nodes: &Nodes, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let Some(shared) = self.shared() else { return sys::allocate(self.file.as_fd(), mode, offset, len) };
        // What devices have released of it must not come after it.
        shared.sync()?;
        let file = sys::reopen(nodes.file(&self.node)?.as_fd(), libc::O_RDWR)?;
        sys::allocate(file.as_fd(), mode, offset, len)?;
        shared.changed(None)
    }

    /// Copies inside the source; other files are copied by reading and writing.
    pub(crate) fn copy(&self, offset: u64, to: &Self, to_offset: u64, len: u64) -> io::Result<usize> {
        if self.shared().is_some() || to.shared().is_some() {
            return Err(number(libc::EXDEV));
        }
        sys::copy((self.file.as_fd(), offset), (to.file.as_fd(), to_offset), len.min(1 << 30))
    }
}

/// How much of some bytes was written behind what was the end of a file: all or, if nothing else is there, a part of them.
fn found_behind(behind: &[u8], bytes: &[u8]) -> Option<usize> {
    if !behind.is_empty() && bytes.starts_with(behind) {
        return Some(behind.len());
    }
    (!bytes.is_empty() && behind.windows(bytes.len()).any(|part| part == bytes)).then_some(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_at_the_end_is_found_there_also_beside_what_others_have_written() {
        assert_eq!(found_behind(b"", b"mine"), None);
        assert_eq!(found_behind(b"mine", b"mine"), Some(4));
        assert_eq!(found_behind(b"mi", b"mine"), Some(2));
        assert_eq!(found_behind(b"theirsmine", b"mine"), Some(4));
        assert_eq!(found_behind(b"mineand theirs", b"mine"), Some(4));
        assert_eq!(found_behind(b"theirs", b"mine"), None);
        assert_eq!(found_behind(b"theirs", b""), None);
    }
}
