//! One directory of an encrypted tree, by its descriptor: its IV, its names, and the files of the format in it.
//!
//! Whoever can write the encrypted directory can put anything there. So nothing is reached by a path of more than
//! one name, no symbolic link is followed, and files of the format are read only if they are regular and small.

use crate::error::{Error, ErrorKind, Result};
use crate::format::Format;
use crate::names::{BadName, CipherName, DIR_IV_BYTES, DIR_IV_NAME, DirIv, EntryKind, LONG_BYTES_MAX, LONG_SUFFIX};
use crate::{random, sys};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Who may read a directory's IV, and the whole of a hashed name: as gocryptfs writes them.
const FORMAT_FILE_MODE: u32 = 0o440;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    is_root: bool,
    iv: OnceLock<DirIv>,
}

/// A name in a directory.
pub(crate) struct Listed {
    pub(crate) plain: Vec<u8>,
    pub(crate) entry: sys::Entry,
}

impl Folder {
    pub(crate) fn new(fd: OwnedFd, is_root: bool) -> Self {
        Self { fd, is_root, iv: OnceLock::new() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A directory in this one.
    pub(crate) fn child(&self, entry: &[u8]) -> io::Result<Self> {
        let fd = sys::open(self.fd(), entry, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        Ok(Self::new(fd, false))
    }

    /// The IV that names in this directory depend on.
    pub(crate) fn iv(&self, format: &Format) -> Result<DirIv> {
        if !format.features.dir_iv {
            return Ok([0; DIR_IV_BYTES]);
        }
        if let Some(iv) = self.iv.get() {
            return Ok(*iv);
        }
        let bytes =
            self.read_small(DIR_IV_NAME.as_bytes(), DIR_IV_BYTES).map_err(|error| match error.raw_os_error() {
                // Nothing is wrong with the directory then.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                    Error::system(DIR_IV_NAME, "reading the directory's IV", error)
                }
                _ => damaged(DIR_IV_NAME, format!("the directory's IV cannot be read: {error}")),
            })?;
        let iv: DirIv = bytes.try_into().map_err(|bytes: Vec<u8>| {
            damaged(DIR_IV_NAME, format!("the directory's IV has {} bytes instead of {DIR_IV_BYTES}", bytes.len()))
        })?;
        if iv == [0; DIR_IV_BYTES] {
            return Err(damaged(DIR_IV_NAME, "the directory's IV is all zeroes".to_owned()));
        }
        Ok(*self.iv.get_or_init(|| iv))
    }

    /// Writes a new IV, into a directory that has none.
    pub(crate) fn create_iv(&self, format: &Format) -> io::Result<()> {
        if !format.features.dir_iv {
            return Ok(());
        }
        let mut iv = [0; DIR_IV_BYTES];
        random::fill(&mut iv);
        self.write_new(DIR_IV_NAME.as_bytes(), &iv)
    }

    /// The name on disk for a plain name.
    pub(crate) fn cipher_name(&self, format: &Format, plain: &[u8]) -> Result<CipherName> {
        let bad = |bad: BadName| {
            let kind = match bad {
                BadName::TooLong | BadName::Impossible => ErrorKind::BadName,
                BadName::Reserved => ErrorKind::Permission,
                BadName::Damaged => ErrorKind::Damaged,
            };
            Error::new(kind, String::from_utf8_lossy(plain), bad.to_string())
        };
        if format.features.plaintext_names {
            return format.names.encrypt(&[0; DIR_IV_BYTES], plain, self.is_root).map_err(bad);
        }
        format.names.encrypt(&self.iv(format)?, plain, self.is_root).map_err(bad)
    }

    /// Whether an entry belongs to the format, and has no plain name.
    pub(crate) fn is_of_format(&self, format: &Format, entry: &[u8]) -> bool {
        format.names.kind(entry, self.is_root) == EntryKind::Format
    }

    /// Whether an entry's name could be an encrypted one, whatever the key.
    pub(crate) fn may_decrypt(&self, format: &Format, entry: &[u8]) -> bool {
        format.names.kind(entry, self.is_root) == EntryKind::Hashed || format.names.may_decrypt(entry)
    }

    /// The plain name of an entry; none for what belongs to the format.
    pub(crate) fn plain_name(&self, format: &Format, entry: &[u8]) -> Result<Option<Vec<u8>>> {
        let detail = |text: String| damaged(&String::from_utf8_lossy(entry), text);
        let whole = match format.names.kind(entry, self.is_root) {
            EntryKind::Format => return Ok(None),
            EntryKind::Named => entry.to_vec(),
            EntryKind::Hashed => {
                let file = [entry, LONG_SUFFIX.as_bytes()].concat();
                let whole = self
                    .read_small(&file, LONG_BYTES_MAX)
                    .map_err(|error| detail(format!("the file with the whole name cannot be read: {error}")))?;
                if format.names.hashed(&whole) != entry {
                    return Err(detail("the file with the whole name holds another one".to_owned()));
                }
                whole
            }
        };
        let iv = if format.features.plaintext_names { [0; DIR_IV_BYTES] } else { self.iv(format)? };
        format.names.decrypt(&iv, &whole).map(Some).map_err(|bad| detail(bad.to_string()))
    }

    /// All names, and a sentence to `warn` for each entry that has none.
    pub(crate) fn list(&self, format: &Format, warn: &dyn Fn(&str)) -> Result<Vec<Listed>> {
        let entries = sys::entries(self.fd()).map_err(|error| Error::system("the directory", "listing it", error))?;
        // Without an IV nothing can be read, and one sentence is enough.
        if !format.features.plaintext_names {
            self.iv(format)?;
        }
        let mut listed = vec![];
        for entry in entries {
            match self.plain_name(format, &entry.name) {
                Ok(Some(plain)) => listed.push(Listed { plain, entry }),
                Ok(None) => {}
                Err(error) => warn(&format!("{error}; the entry is not listed")),
            }
        }
        Ok(listed)
    }

    /// Writes the file with the whole of a hashed name; says whether it was not there before.
    pub(crate) fn write_whole(&self, name: &CipherName) -> io::Result<bool> {
        let Some(whole) = &name.whole else { return Ok(false) };
        let file = name.whole_entry();
        match self.write_new(&file, whole) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match self.read_small(&file, LONG_BYTES_MAX) {
                    Ok(held) if held == *whole => return Ok(false),
                    // It may be whole; without it the entry would have no name.
                    Err(error) if !matches!(error.raw_os_error(), None | Some(libc::ELOOP)) => return Err(error),
                    // Left by a process that ended, or damaged; the entry that it is for may exist.
                    _ => {}
                }
                sys::unlink(self.fd(), &file, false)?;
                self.write_new(&file, whole)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the file with the whole of a hashed name. That it is not there is as good.
    pub(crate) fn remove_whole(&self, name: &CipherName) {
        if name.whole.is_some() {
            let _ = sys::unlink(self.fd(), &name.whole_entry(), false);
        }
    }

    /// Removes a directory that has no entries but those of the format.
    pub(crate) fn remove_dir(&self, format: &Format, entry: &[u8]) -> io::Result<()> {
        if !format.features.dir_iv {
            return sys::unlink(self.fd(), entry, true);
        }
        let child = self.child(entry)?;
        let entries = sys::entries(child.fd()).or_else(|error| {
            if error.kind() != io::ErrorKind::PermissionDenied {
                return Err(error);
            }
            // Removing an empty directory takes no right to it, only to the one that it is in.
            sys::chmod(child.fd(), 0o700)?;
            sys::entries(child.fd())
        })?;
        if entries.iter().any(|entry| entry.name != DIR_IV_NAME.as_bytes()) {
            return Err(io::Error::from_raw_os_error(libc::ENOTEMPTY));
        }
        if entries.is_empty() {
            return sys::unlink(self.fd(), entry, true);
        }
        // Moved and not removed, since what comes now can fail, and a directory without its IV is lost.
        let mut unique = [0; 8];
        random::fill(&mut unique);
        let aside = format!("{DIR_IV_NAME}.rmdir.{}", u64::from_ne_bytes(unique));
        let iv = (child.fd(), DIR_IV_NAME.as_bytes());
        let moved = sys::rename(iv, (self.fd(), aside.as_bytes()), libc::RENAME_NOREPLACE);
        if let Err(error) = moved {
            if error.kind() != io::ErrorKind::PermissionDenied {
                return Err(error);
            }
            sys::chmod(child.fd(), 0o700)?;
            sys::rename(iv, (self.fd(), aside.as_bytes()), libc::RENAME_NOREPLACE)?;
        }
        let removed = sys::unlink(self.fd(), entry, true);
        match removed {
            Ok(()) => sys::unlink(self.fd(), aside.as_bytes(), false),
            Err(error) => {
                sys::rename((self.fd(), aside.as_bytes()), iv, libc::RENAME_NOREPLACE)?;
                Err(error)
            }
        }
    }

    /// A regular file of at most `max` bytes.
    pub(crate) fn read_small(&self, entry: &[u8], max: usize) -> io::Result<Vec<u8>> {
        // Without waiting for the other end of what turns out to be a FIFO.
        let fd = sys::open(self.fd(), entry, libc::O_RDONLY | libc::O_NONBLOCK, 0)?;
        let state = sys::stat_of(fd.as_fd())?;
        if state.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = vec![];
        File::from(fd).take(max as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > max {
            return Err(io::Error::other(format!("it has more than {max} bytes")));
        }
        Ok(bytes)
    }

    fn write_new(&self, entry: &[u8], bytes: &[u8]) -> io::Result<()> {
        let fd = sys::open(self.fd(), entry, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, FORMAT_FILE_MODE)?;
        File::from(fd).write_all(bytes).inspect_err(|_| {
            let _ = sys::unlink(self.fd(), entry, false);
        })
    }
}

fn damaged(subject: &str, detail: String) -> Error {
    Error::new(ErrorKind::Damaged, subject, detail)
}
