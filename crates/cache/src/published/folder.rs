//! The folder for small files of this user's processes: `$XDG_RUNTIME_DIR/bifolio`, `/run/user/UID/bifolio`, or
//! `/tmp/bifolio-UID`. In a folder that everybody may write to, anybody may have come first: it must be a folder,
//! not a link to one, of this user, and nobody else's to enter. Everything in it is named relative to the open
//! folder, so that nobody can put another in its place.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// While it is used; what is kept for long is opened anew, as a program may close descriptors that are not its.
    identity: (u64, u64),
}

impl Folder {
    /// The first that there is, or that can be made.
    pub(super) fn for_writing() -> Option<Self> {
        candidates().into_iter().find_map(|path| {
            // SAFETY: the name is a C string.
            let made = unsafe { libc::mkdir(c_path(&path)?.as_ptr(), 0o700) };
            let exists = made == 0 || io::Error::last_os_error().kind() == io::ErrorKind::AlreadyExists;
            exists.then(|| Self::at(path))?
        })
    }

    /// All that there are: a process may have been started with another environment.
    pub(super) fn all() -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for folder in candidates().into_iter().filter_map(Self::at) {
            if found.iter().all(|known| known.identity != folder.identity) {
                found.push(folder);
            }
        }
        found
    }

    pub(super) fn at(path: PathBuf) -> Option<Self> {
        let metadata = File::from(open_folder(&path).ok()?).metadata().ok()?;
        // SAFETY: asks for a number.
        let own = metadata.uid() == unsafe { libc::geteuid() } && metadata.mode() & 0o7777 == 0o700;
        own.then_some(Self { path, identity: (metadata.dev(), metadata.ino()) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder itself, if it is the one that was looked at.
    fn open_self(&self) -> io::Result<OwnedFd> {
        let file = File::from(open_folder(&self.path)?);
        let metadata = file.metadata()?;
        if (metadata.dev(), metadata.ino()) == self.identity {
            Ok(file.into())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    fn open_with(&self, name: &CStr, flags: i32) -> io::Result<File> {
        let folder = self.open_self()?;
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the name is a C string, and the descriptor that comes back is ours alone.
        unsafe {
            match libc::openat(folder.as_raw_fd(), name.as_ptr(), flags, 0o600) {
                fd if fd >= 0 => Ok(File::from_raw_fd(fd)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// Opens a regular file of this user's for reading.
    pub(super) fn open(&self, name: &CStr) -> io::Result<File> {
        let file = self.open_with(name, libc::O_RDONLY)?;
        let metadata = file.metadata()?;
        // SAFETY: asks for a number.
        let own = metadata.is_file() && metadata.uid() == unsafe { libc::geteuid() };
        if own { Ok(file) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Makes a file; what has the name already is removed.
    pub(super) fn create(&self, name: &CStr) -> io::Result<File> {
        self.remove(name);
        self.open_with(name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)
    }

    pub(super) fn rename(&self, from: &CStr, to: &CStr) -> io::Result<()> {
        let folder = self.open_self()?;
        let fd = folder.as_raw_fd();
        // SAFETY: both names are C strings.
        let renamed = unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) };
        if renamed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: &CStr) {
        if let Ok(folder) = self.open_self() {
            // SAFETY: the name is a C string.
            unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), 0) };
        }
    }

    pub(super) fn names(&self) -> io::Result<Vec<CString>> {
        let folder = self.open_self()?;
        let mut names = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
            names.extend(CString::new(entry?.file_name().as_bytes()));
        }
        Ok(names)
    }
}

/// Where to look, the best first.
fn candidates() -> Vec<PathBuf> {
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let given = given.map(|path| path.join("bifolio"));
    let usual = [format!("/run/user/{user}/bifolio"), format!("/tmp/bifolio-{user}")].map(PathBuf::from);
    given.into_iter().chain(usual).collect()
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let name = c_path(path).ok_or(io::ErrorKind::InvalidInput)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name is a C string, and the descriptor that comes back is ours alone.
    unsafe {
        match libc::open(name.as_ptr(), flags) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}
