//! An encrypted file, read and written by plain offsets.
//!
//! A lock covers the system calls that move encrypted bytes, never the cipher where that can be avoided: a read
//! decrypts what it has read after it let the lock go, and a write of whole blocks encrypts before it takes it.
//!
//! ```text
//!   read   lock shared    [ file's id, pread  ]   decrypt
//!   write  encrypt        [ lock: check, join partial blocks, pwrite ]
//! ```
//!
//! Only the first and the last block of a write are read before, where they are partial. A write is done in parts. One
//! that fails leaves the file's length as it was before it, and the last block that it had; what it overwrote in the
//! middle is in the state that the file system left it in. A process that ends amid a write can leave a block that is half old and half new,
//! and reads of that block then fail.

use crate::content::layout::{self, CIPHER_BLOCK_BYTES, HEADER_BYTES, PLAIN_BLOCK_BYTES, PLAIN_BYTES_MAX};
use crate::content::{ContentCipher, FileId, is_hole, new_header, parse_header, sealed_bytes};
use crate::error::{Error, ErrorKind, Result};
use crate::holes::{self, Sought};
use crate::sys;
use bifolio_compute::ThreadPool;
use std::cell::RefCell;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const PLAIN: usize = PLAIN_BLOCK_BYTES as usize;
const CIPHER: usize = CIPHER_BLOCK_BYTES as usize;
/// Plain bytes that are read or written by one system call: few enough to stay in a processor's cache.
const PIECE_BYTES: usize = 256 << 10;
/// From here on a thread more pays for being woken up.
const THREAD_BYTES_MIN: u64 = 1 << 20;
/// Plain bytes that are encrypted before they are written.
const WRITE_BYTES_MAX: usize = 4 << 20;

/// An encrypted file. All methods can be called by several threads at a time; a read sees of a concurrent write
/// whole blocks.
#[derive(Debug)]
pub struct CryptFile {
    content: Arc<ContentCipher>,
    subject: String,
    backing: RwLock<Backing>,
    /// Whether a hole was read, of which the kernel may have pages since then.
    has_read_holes: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Backing {
    file: File,
    is_writable: bool,
    id: Mutex<Option<FileId>>,
}

impl CryptFile {
    pub(crate) fn new(content: Arc<ContentCipher>, file: File, is_writable: bool, subject: String) -> Self {
        let backing = RwLock::new(Backing { file, is_writable, id: Mutex::default() });
        Self { content, subject, backing, has_read_holes: Arc::default() }
    }

    /// Remembers in `mark` that holes were read, for longer than this file is open.
    pub(crate) fn with_mark_of_holes(self, mark: Arc<AtomicBool>) -> Self {
        Self { has_read_holes: mark, ..self }
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.shared().is_writable
    }

    /// Takes a descriptor of the same file that can also be written.
    pub(crate) fn make_writable(&self, file: File) {
        let mut backing = self.exclusive();
        if !backing.is_writable {
            backing.file = file;
            backing.is_writable = true;
        }
    }

    /// Calls `work` with the encrypted file.
    pub(crate) fn with_file<T>(&self, work: impl FnOnce(&File) -> T) -> T {
        work(&self.shared().file)
    }

    /// Plain bytes of the file.
    ///
    /// # Errors
    /// If the file's state cannot be read.
    pub fn len(&self) -> Result<u64> {
        self.plain_len(&self.shared())
    }

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// If the file's state cannot be read.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The file's id, which every block's tag covers; none while the file is empty.
    ///
    /// # Errors
    /// If the header cannot be read, or is none.
    pub fn file_id(&self) -> Result<Option<FileId>> {
        self.id(&self.shared())
    }

    /// Reads from a plain offset on, and returns how many bytes there were: fewer than asked for at the end of the
    /// file only. Large requests are shared out to threads.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if any block of the range is not what was encrypted, with the first such block's
    /// number; nothing of such a block is in `buffer`. [`ErrorKind::Read`] and others from the system.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let threads = threads_for(buffer.len());
        if threads < 2 {
            return self.read_part(buffer, offset);
        }
        let part_bytes = buffer.len().div_ceil(threads).next_multiple_of(PLAIN);
        let first = part_bytes - (offset % PLAIN_BLOCK_BYTES) as usize;
        let (head, rest) = buffer.split_at_mut(first);
        let starts = (offset + first as u64..).step_by(part_bytes);
        let others = starts.zip(rest.chunks_mut(part_bytes));
        let parts: Vec<_> = std::iter::once((offset, head)).chain(others).collect();
        let wanted: Vec<usize> = parts.iter().map(|(_, part)| part.len()).collect();
        let mut outcomes: Vec<_> = parts.iter().map(|_| Ok(0)).collect();
        let parts: Vec<_> = parts.into_iter().zip(&mut outcomes).collect();
        let Ok(()) = ThreadPool::of_process().divide(threads, parts, |((at, part), outcome)| {
            *outcome = self.read_part(part, at);
            Ok::<(), Infallible>(())
        });
        let mut done = 0;
        for (wanted, outcome) in wanted.into_iter().zip(outcomes) {
            let read = outcome?;
            done += read;
            if read < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// The first offset from `offset` on where there is data, or a hole; none where there is none, and behind the end of
    /// the file, which counts as a hole. Holes that the file system below does not tell as such are data.
    ///
    /// Pages of a mapping that were changed are not known here until the kernel writes them. It has read them before,
    /// so that nothing of a file is called a hole that can be written and of which holes were read.
    pub(crate) fn seek(&self, sought: Sought, offset: u64) -> Result<Option<u64>> {
        let backing = self.shared();
        let cipher_len = self.state(&backing)?.len();
        if backing.is_writable && self.has_read_holes.load(Ordering::Acquire) {
            let len = layout::plain_len(cipher_len);
            let found = if sought == Sought::Data { offset } else { len };
            return Ok((offset < len).then_some(found));
        }
        holes::next(sought, offset, cipher_len, |sought, at| sys::seek(backing.file.as_fd(), sought, at))
            .map_err(|error| Error::system(&self.subject, format!("seeking data or holes from offset {offset}"), error))
    }

    /// Writes all of `data` at a plain offset. A gap between the end of the file and the offset becomes zeroes that
    /// take no room. Large requests are encrypted by several threads.
    ///
    /// # Errors
    /// A part from the beginning on may have been written then.
    /// [`ErrorKind::ReadOnly`] if it was opened for reading, [`ErrorKind::NoSpace`] and others from the system, and
    /// [`ErrorKind::Corrupt`] if a block of which only a part is written is not what was encrypted.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_until(data, offset).1
    }

    /// Writes as much as it can, and says how much that was.
    pub(crate) fn write_some(&self, data: &[u8], offset: u64) -> Result<usize> {
        match self.write_until(data, offset) {
            (0, Err(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    fn write_until(&self, data: &[u8], offset: u64) -> (usize, Result<()>) {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > PLAIN_BYTES_MAX) {
            let error = io::Error::from_raw_os_error(libc::EFBIG);
            return (0, Err(Error::writing(&self.subject, format!("writing at offset {offset}"), error)));
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            // Many threads need much at a time, and one is quickest with what stays in the processor's cache.
            let at_once = if threads_for(data.len()) < 2 { PIECE_BYTES } else { WRITE_BYTES_MAX };
            let room = at_once - (at % PLAIN_BLOCK_BYTES) as usize;
            let part = &data[done..data.len().min(done + room)];
            if let Err(error) = self.write_part(part, at) {
                return (done, Err(error));
            }
            done += part.len();
        }
        (done, Ok(()))
    }

    /// Cuts the file, or makes it longer by zeroes that take no room.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at): the block that is cut is read before.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.resize(len, false)
    }

    /// Makes the file at least so long, as [`set_len`](Self::set_len) does; never cuts it.
    ///
    /// # Errors
    /// As `set_len`.
    pub fn extend_to(&self, len: u64) -> Result<()> {
        self.resize(len, true)
    }

    fn resize(&self, len: u64, only_longer: bool) -> Result<()> {
        if len > PLAIN_BYTES_MAX {
            let error = io::Error::from_raw_os_error(libc::EFBIG);
            return Err(Error::writing(&self.subject, format!("making it {len} bytes long"), error));
        }
        let mut backing = self.exclusive();
        self.check_writable(&backing)?;
        let old = self.plain_len(&backing)?;
        if only_longer && len <= old {
            return Ok(());
        }
        if len == 0 {
            // Also what is too short to have a header.
            self.truncate(&backing, 0)?;
            *id_of(&mut backing) = None;
            return Ok(());
        }
        match len.cmp(&old) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => self.cut(&backing, len),
            std::cmp::Ordering::Greater => {
                let undo = self.undo(&backing, old)?;
                let grown = self.grow(&backing, old, len);
                undo.settle(&backing, grown)
            }
        }
    }

    /// Makes what was written durable; `data_only` leaves out times that do not matter for reading it.
    ///
    /// # Errors
    /// From the system. What was written before may be lost then.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        // Without the lock: writing back takes long.
        let file = self.shared().file.try_clone().map_err(|error| self.failed("syncing", error))?;
        let synced = if data_only { file.sync_data() } else { file.sync_all() };
        synced.map_err(|error| self.failed("syncing", error))
    }

    /// Reserves room for a range, without a change of the length.
    pub(crate) fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        let backing = self.exclusive();
        self.check_writable(&backing)?;
        let range = layout::cipher_range(layout::blocks(offset, len));
        reserve(&backing.file, range.start, range.end - range.start)
            .map_err(|error| self.failed(&format!("reserving {len} bytes at offset {offset}"), error))
    }

    fn read_part(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let room = PIECE_BYTES - (at % PLAIN_BLOCK_BYTES) as usize;
            let wanted = (buffer.len() - done).min(room);
            let read = self.read_piece(&mut buffer[done..done + wanted], at)?;
            done += read;
            if read < wanted {
                break;
            }
        }
        Ok(done)
    }

    fn read_piece(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let blocks = layout::blocks(offset, buffer.len() as u64);
        let range = layout::cipher_range(blocks.clone());
        with_scratch((range.end - range.start) as usize, |scratch| {
            let backing = self.shared();
            let len = read_fully(&backing.file, scratch, range.start)
                .map_err(|error| self.failed_at("reading", range.start, error))?;
            if len == 0 {
                return Ok(0);
            }
            let id = self.id(&backing)?.ok_or_else(|| self.without_header())?;
            drop(backing);
            self.open_blocks(&id, blocks.start, &scratch[..len], buffer, offset)
        })
    }

    /// Decrypts the blocks from `first` on into a buffer for bytes from a plain offset on, within the first block.
    fn open_blocks(&self, id: &FileId, first: u64, cipher: &[u8], buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        for (number, cipher) in (first..).zip(cipher.chunks(CIPHER)) {
            let skip = (offset + done as u64 - layout::plain_offset(number)) as usize;
            let held = cipher.len().saturating_sub(sealed_bytes(1) - 1);
            let rest = &mut buffer[done..];
            if is_hole(cipher) {
                self.has_read_holes.store(true, Ordering::Release);
            }
            if skip == 0 && rest.len() >= held {
                self.open(id, number, cipher, &mut rest[..held])?;
                done += held;
            } else {
                let mut plain = [0; PLAIN];
                self.open(id, number, cipher, &mut plain[..held])?;
                let part = plain[..held].get(skip..).unwrap_or_default();
                let part = &part[..part.len().min(rest.len())];
                rest[..part.len()].copy_from_slice(part);
                done += part.len();
            }
        }
        Ok(done)
    }

    fn open(&self, id: &FileId, number: u64, cipher: &[u8], plain: &mut [u8]) -> Result<()> {
        self.content.open(id, number, cipher, plain).map_err(|bad| {
            let (at, offset) = (layout::cipher_offset(number), layout::plain_offset(number));
            let detail = format!(
                "block {number} (offset {offset}, in the encrypted file {at}) {bad}; none of it was returned; restore \
                 the encrypted file from a backup"
            );
            Error::new(ErrorKind::Corrupt, &self.subject, detail)
        })
    }

    fn write_part(&self, data: &[u8], offset: u64) -> Result<()> {
        let known = if offset.is_multiple_of(PLAIN_BLOCK_BYTES) { self.file_id().ok().flatten() } else { None };
        with_scratch(sealed_bytes(data.len() + 2 * PLAIN), |scratch| {
            let sealed = known.inspect(|id| {
                let room = &mut scratch[..sealed_bytes(data.len())];
                self.seal(id, layout::block_of(offset), data, room);
            });
            let mut backing = self.exclusive();
            self.check_writable(&backing)?;
            let old = self.plain_len(&backing)?;
            let end = offset + data.len() as u64;
            let undo = if end > old { Some(self.undo(&backing, old)?) } else { None };
            let written = self.write_locked(&backing, data, offset, old, sealed, scratch);
            let outcome = match &undo {
                Some(undo) => undo.settle(&backing, written),
                None => written,
            };
            if outcome.is_err() && old == 0 {
                *id_of(&mut backing) = None;
            }
            outcome
        })
    }

    /// Writes with the lock held. `sealed` is the id of which the blocks are in `scratch` already.
    fn write_locked(
        &self,
        backing: &Backing,
        data: &[u8],
        offset: u64,
        old: u64,
        sealed: Option<FileId>,
        scratch: &mut [u8],
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let id = self.id_or_new(backing)?;
        if offset > old {
            // The last block so far is made whole, or ends where this begins.
            self.pad(backing, &id, old, offset)?;
        }
        let blocks = layout::blocks(offset, data.len() as u64);
        let at = layout::cipher_offset(blocks.start);
        // The file's end, or a block's, or a part of the last block stays.
        let last_is_whole = end >= old || end.is_multiple_of(PLAIN_BLOCK_BYTES);
        let len = if sealed == Some(id) && last_is_whole {
            sealed_bytes(data.len())
        } else {
            let joined = self.join(backing, &id, data, offset, old)?;
            let len = sealed_bytes(joined.len());
            self.seal(&id, blocks.start, &joined, &mut scratch[..len]);
            len
        };
        if end <= old && self.is_sparse(backing)? {
            // What fills a hole can find the disk full, in the middle of a block.
            match reserve(&backing.file, at, len as u64) {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                    return Err(self.failed_at("reserving room", at, error));
                }
                _ => {}
            }
        }
        self.write_fully(backing, &scratch[..len], at)
    }

    /// The data as whole blocks, joined with what the first and the last one hold beside it.
    fn join(&self, backing: &Backing, id: &FileId, data: &[u8], offset: u64, old: u64) -> Result<Vec<u8>> {
        let end = offset + data.len() as u64;
        let blocks = layout::blocks(offset, data.len() as u64);
        let skip = (offset - layout::plain_offset(blocks.start)) as usize;
        let mut joined = vec![0; skip + data.len()];
        if skip > 0 {
            let before = self.block(backing, id, blocks.start, old)?;
            let held = before.len().min(skip);
            joined[..held].copy_from_slice(&before[..held]);
        }
        joined[skip..].copy_from_slice(data);
        if end < old && !end.is_multiple_of(PLAIN_BLOCK_BYTES) {
            let behind = self.block(backing, id, blocks.end - 1, old)?;
            let kept = (end - layout::plain_offset(blocks.end - 1)) as usize;
            joined.extend_from_slice(behind.get(kept..).unwrap_or_default());
        }
        Ok(joined)
    }

    /// A block's content, of a file of `len` bytes; empty behind its end.
    fn block(&self, backing: &Backing, id: &FileId, number: u64, len: u64) -> Result<Vec<u8>> {
        let start = layout::plain_offset(number);
        if start >= len {
            return Ok(vec![]);
        }
        let mut cipher = [0; CIPHER];
        let at = layout::cipher_offset(number);
        let read = read_fully(&backing.file, &mut cipher, at).map_err(|error| self.failed_at("reading", at, error))?;
        let mut plain = vec![0; read.saturating_sub(sealed_bytes(1) - 1)];
        self.open(id, number, &cipher[..read], &mut plain)?;
        Ok(plain)
    }

    /// Makes the last block longer by zeroes, if it is partial, up to its own end or `end`.
    fn pad(&self, backing: &Backing, id: &FileId, old: u64, end: u64) -> Result<()> {
        if old.is_multiple_of(PLAIN_BLOCK_BYTES) {
            return Ok(());
        }
        let number = layout::block_of(old);
        let mut plain = self.block(backing, id, number, old)?;
        let whole = end.min(layout::plain_offset(number + 1)) - layout::plain_offset(number);
        plain.resize(whole as usize, 0);
        self.write_sealed(backing, id, number, &plain)
    }

    fn write_sealed(&self, backing: &Backing, id: &FileId, number: u64, plain: &[u8]) -> Result<()> {
        let mut cipher = vec![0; sealed_bytes(plain.len())];
        self.content.seal(id, number, plain, &mut cipher);
        self.write_fully(backing, &cipher, layout::cipher_offset(number))
    }

    fn grow(&self, backing: &Backing, old: u64, len: u64) -> Result<()> {
        let id = self.id_or_new(backing)?;
        self.pad(backing, &id, old, len)?;
        let last = layout::block_of(len);
        let in_last = (len - layout::plain_offset(last)) as usize;
        if in_last == 0 {
            return self.truncate(backing, layout::cipher_len(len));
        }
        // A hole is a whole block, so that a partial one has to be written. If it is the one that was padded, it was.
        if layout::plain_offset(last) >= old {
            self.write_sealed(backing, &id, last, &vec![0; in_last])
        } else {
            Ok(())
        }
    }

    fn cut(&self, backing: &Backing, len: u64) -> Result<()> {
        let last = layout::block_of(len);
        let in_last = (len - layout::plain_offset(last)) as usize;
        if in_last == 0 {
            return self.truncate(backing, layout::cipher_len(len));
        }
        let id = self.id(backing)?.ok_or_else(|| self.without_header())?;
        let mut plain = self.block(backing, &id, last, u64::MAX)?;
        plain.truncate(in_last);
        let at = layout::cipher_offset(last);
        let mut whole = vec![0; CIPHER];
        let read = read_fully(&backing.file, &mut whole, at).map_err(|error| self.failed_at("reading", at, error))?;
        whole.truncate(read);
        // In this order the file is whole at every moment; between the two it is shorter. Where the second step fails,
        // the block stays as it was, so that the file ends behind it.
        self.truncate(backing, at)?;
        let undo = Undo { cipher_len: at + read as u64, at, tail: whole };
        undo.settle(backing, self.write_sealed(backing, &id, last, &plain))
    }

    /// Encrypts blocks, by several threads if they are many.
    fn seal(&self, id: &FileId, first: u64, plain: &[u8], cipher: &mut [u8]) {
        let threads = threads_for(plain.len());
        if threads < 2 {
            return self.content.seal(id, first, plain, cipher);
        }
        let blocks = plain.len().div_ceil(threads).div_ceil(PLAIN);
        let parts = plain.chunks(blocks * PLAIN).zip(cipher.chunks_mut(blocks * CIPHER));
        let parts: Vec<_> = (first..).step_by(blocks).zip(parts).collect();
        let Ok(()) = ThreadPool::of_process().divide(threads, parts, |(first, (plain, cipher))| {
            self.content.seal(id, first, plain, cipher);
            Ok::<(), Infallible>(())
        });
    }

    fn id(&self, backing: &Backing) -> Result<Option<FileId>> {
        let mut known = lock(&backing.id);
        if known.is_none() {
            let mut header = [0; HEADER_BYTES as usize];
            match read_fully(&backing.file, &mut header, 0).map_err(|error| self.failed_at("reading", 0, error))? {
                0 => return Ok(None),
                18 => {}
                _ => return Err(self.without_header()),
            }
            let detail = |sentence| Error::new(ErrorKind::Damaged, &self.subject, sentence);
            *known = Some(parse_header(&header).map_err(detail)?);
        }
        Ok(*known)
    }

    fn id_or_new(&self, backing: &Backing) -> Result<FileId> {
        if let Some(id) = self.id(backing)? {
            return Ok(id);
        }
        let (header, id) = new_header();
        self.write_fully(backing, &header, 0)?;
        *lock(&backing.id) = Some(id);
        Ok(id)
    }

    fn without_header(&self) -> Error {
        let detail =
            "the encrypted file is shorter than its header; restore it from a backup, or truncate it to 0 bytes";
        Error::new(ErrorKind::Damaged, &self.subject, detail)
    }

    fn plain_len(&self, backing: &Backing) -> Result<u64> {
        Ok(layout::plain_len(self.state(backing)?.len()))
    }

    fn is_sparse(&self, backing: &Backing) -> Result<bool> {
        let state = self.state(backing)?;
        Ok(state.blocks() * 512 < state.len())
    }

    fn state(&self, backing: &Backing) -> Result<std::fs::Metadata> {
        backing.file.metadata().map_err(|error| Error::system(&self.subject, "asking for its size", error))
    }

    fn check_writable(&self, backing: &Backing) -> Result<()> {
        if backing.is_writable {
            return Ok(());
        }
        Err(Error::new(ErrorKind::ReadOnly, &self.subject, "the file was opened for reading only"))
    }

    fn undo(&self, backing: &Backing, old: u64) -> Result<Undo> {
        let cipher_len = self.state(backing)?.len();
        if old.is_multiple_of(PLAIN_BLOCK_BYTES) {
            return Ok(Undo { cipher_len, at: 0, tail: vec![] });
        }
        let at = layout::cipher_offset(layout::block_of(old));
        let mut tail = vec![0; (cipher_len - at) as usize];
        let read = read_fully(&backing.file, &mut tail, at).map_err(|error| self.failed_at("reading", at, error))?;
        tail.truncate(read);
        Ok(Undo { cipher_len, at, tail })
    }

    fn truncate(&self, backing: &Backing, cipher_len: u64) -> Result<()> {
        let cut = backing.file.set_len(cipher_len);
        cut.map_err(|error| self.failed(&format!("making it {cipher_len} bytes long"), error))
    }

    fn write_fully(&self, backing: &Backing, data: &[u8], at: u64) -> Result<()> {
        backing.file.write_all_at(data, at).map_err(|error| self.failed_at("writing", at, error))
    }

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        Error::writing(&self.subject, doing, error)
    }

    fn failed_at(&self, doing: &str, at: u64, error: io::Error) -> Error {
        let doing = format!("{doing} at offset {at} of the encrypted file");
        if doing.starts_with("reading") {
            Error::system(&self.subject, doing, error)
        } else {
            Error::writing(&self.subject, doing, error)
        }
    }

    fn shared(&self) -> RwLockReadGuard<'_, Backing> {
        self.backing.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Backing> {
        self.backing.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a failed write is undone with.
struct Undo {
    cipher_len: u64,
    at: u64,
    tail: Vec<u8>,
}

impl Undo {
    /// After a failure, brings back the length and the last block.
    fn settle(&self, backing: &Backing, outcome: Result<()>) -> Result<()> {
        if outcome.is_err() {
            // The first failure is the one to report; a second one changes nothing about it.
            let _ = backing.file.set_len(self.cipher_len);
            let _ = backing.file.write_all_at(&self.tail, self.at);
            if self.cipher_len == 0 {
                *lock(&backing.id) = None;
            }
        }
        outcome
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id_of(backing: &mut Backing) -> &mut Option<FileId> {
    backing.id.get_mut().unwrap_or_else(PoisonError::into_inner)
}

fn threads_for(bytes: usize) -> usize {
    ThreadPool::of_process().width(bytes as u64, THREAD_BYTES_MIN)
}

fn reserve(file: &File, at: u64, len: u64) -> io::Result<()> {
    // SAFETY: takes no memory, and the descriptor is open.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, at as i64, len as i64) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_fully(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Lends memory that a thread keeps, so that requests need none of their own.
fn with_scratch<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < len {
            scratch.resize(len, 0);
        }
        work(&mut scratch[..len])
    })
}
