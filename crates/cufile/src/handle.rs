//! Registered files: a number for the program, and for us the file, opened anew.
//!
//! The program's descriptor is looked at once, while it is registered. It may be closed afterwards, and its
//! `O_DIRECT` is of no concern here: which bytes go past the page cache is decided for each request.
//!
//! A file refuses writes after one of the router's has failed, since what the kernel had of it may be lost. A
//! program that was told so may go on as after a failed `pwrite`, so the file is then opened once more.

use crate::abi::CUfileOpError::{
    CU_FILE_GETNEWFD_FAILED, CU_FILE_HANDLE_ALREADY_REGISTERED, CU_FILE_INVALID_FILE_OPEN_FLAG,
    CU_FILE_INVALID_FILE_TYPE, CU_FILE_IO_ERROR, CU_FILE_IO_NOT_SUPPORTED, CU_FILE_PLATFORM_NOT_SUPPORTED,
};
use crate::abi::{
    CU_FILE_HANDLE_TYPE_OPAQUE_FD, CU_FILE_HANDLE_TYPE_OPAQUE_WIN32, CU_FILE_HANDLE_TYPE_USERSPACE_FS, CUfileDescr_t,
    CUfileError_t, CUfileHandle_t,
};
use crate::numbered::Numbered;
use crate::range::Direction;
use crate::session;
use crate::stats::{self, Call};
use crate::status::{Failure, Outcome, nothing, status, store};
use bifolio_io::OpenFile;
use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

/// A file as it was opened by us.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: OpenFile,
    /// Writes return when the data are on the disk (`O_SYNC`, `O_DSYNC`).
    pub(crate) is_durable: bool,
}

/// A registered file.
#[derive(Debug)]
pub(crate) struct Registered {
    opened: RwLock<Arc<Opened>>,
    is_readable: bool,
    is_writable: bool,
    descriptor: c_int,
    /// Device and inode.
    identity: (u64, u64),
}

static FILES: Numbered<Registered> = Numbered::new();

/// The file behind a handle. The original sets `errno` to `EINVAL` for one that it does not know.
fn find(handle: CUfileHandle_t) -> Outcome<Arc<Registered>> {
    let unknown = || {
        let text = format!("the handle {handle:?} is not registered (cuFileHandleRegister)");
        Failure::system(libc::EINVAL, text)
    };
    FILES.get(handle).ok_or_else(unknown)
}

/// The file behind a handle, which its descriptor has to allow to be read or written.
pub(crate) fn find_for(handle: CUfileHandle_t, direction: Direction) -> Outcome<Arc<Registered>> {
    let file = find(handle)?;
    let (is_allowed, access) = match direction {
        Direction::Read => (file.is_readable, "reading"),
        Direction::Write => (file.is_writable, "writing"),
    };
    if is_allowed {
        return Ok(file);
    }
    let text = format!("{}: the descriptor was not opened for {access}", file.path().display());
    Err(Failure::system(libc::EBADF, text))
}

/// Forgets every file.
pub(crate) fn forget_all() {
    FILES.clear();
}

impl Registered {
    /// Opens the file behind a descriptor anew.
    pub(crate) fn open(descriptor: c_int) -> Outcome<Self> {
        if descriptor < 0 {
            return Err(Failure::argument(format!("{descriptor} is not a file descriptor")));
        }
        // SAFETY: asks for the flags of a number that may or may not be open.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
        if flags < 0 {
            let text = format!("the descriptor {descriptor} is not open");
            return Err(Failure::new(CU_FILE_INVALID_FILE_TYPE, text));
        }
        if flags & (libc::O_PATH | libc::O_APPEND) != 0 {
            let text = format!(
                "the descriptor {descriptor} was opened with O_APPEND or O_PATH and cannot be written at offsets"
            );
            return Err(Failure::new(CU_FILE_INVALID_FILE_OPEN_FLAG, text));
        }
        // SAFETY: it was open just now; a program that closes it meanwhile gets another file or an error.
        let file = OpenFile::of_descriptor(unsafe { BorrowedFd::borrow_raw(descriptor) }).map_err(of_opening)?;
        let metadata = file.buffered().metadata();
        let metadata = metadata.map_err(|error| Failure::new(CU_FILE_INVALID_FILE_TYPE, error.to_string()))?;
        let access = flags & libc::O_ACCMODE;
        Ok(Self {
            opened: RwLock::new(Arc::new(Opened { file, is_durable: flags & libc::O_DSYNC != 0 })),
            is_readable: access != libc::O_WRONLY,
            is_writable: access != libc::O_RDONLY,
            descriptor,
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    /// The file as requests that begin now use it.
    pub(crate) fn opened(&self) -> Arc<Opened> {
        Arc::clone(&self.opened.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The file opened once more after a write to `failed`, if nobody else has done that. Closing the former
    /// ends the process's record locks on the file.
    pub(crate) fn renewed(&self, failed: &Arc<Opened>) -> Outcome<Arc<Opened>> {
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        let mut former = None;
        if Arc::ptr_eq(&opened, failed) {
            let file = OpenFile::of_descriptor(failed.file.buffered().as_fd())?;
            let anew = Opened { file, is_durable: failed.is_durable };
            former = Some(std::mem::replace(&mut *opened, Arc::new(anew)));
        }
        let now = Arc::clone(&opened);
        drop(opened);
        drop(former);
        Ok(now)
    }

    /// For messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.opened().file.path().to_owned()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.descriptor == other.descriptor && self.identity == other.identity
    }
}

/// Why a file could not be opened anew.
fn of_opening(error: bifolio_io::Error) -> Failure {
    let failure = Failure::from(error);
    match failure.error {
        // What the system refused: most likely there are no descriptors left.
        CU_FILE_IO_ERROR => Failure::new(CU_FILE_GETNEWFD_FAILED, failure.text),
        _ => failure,
    }
}

/// Registers the file behind an open descriptor; the session is opened where it is not.
///
/// # Safety
/// `fh` is NULL or may be written; `descr` is NULL or a descriptor of a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileHandleRegister(fh: *mut CUfileHandle_t, descr: *mut CUfileDescr_t) -> CUfileError_t {
    // SAFETY: the caller's promise.
    let register = || unsafe { register(fh, descr) };
    status("cuFileHandleRegister", || stats::counted(Call::HandleRegister, register))
}

unsafe fn register(fh: *mut CUfileHandle_t, descr: *mut CUfileDescr_t) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let Some(description) = (unsafe { descr.as_ref() }).filter(|_| !fh.is_null()) else {
        return Err(Failure::argument("the handle or the descriptor struct is NULL"));
    };
    match description.kind {
        CU_FILE_HANDLE_TYPE_OPAQUE_FD => {}
        CU_FILE_HANDLE_TYPE_OPAQUE_WIN32 => {
            return Err(Failure::new(CU_FILE_PLATFORM_NOT_SUPPORTED, "Windows handles are not supported"));
        }
        CU_FILE_HANDLE_TYPE_USERSPACE_FS => {
            let text = "user-space file systems are not supported: register a file descriptor";
            return Err(Failure::new(CU_FILE_IO_NOT_SUPPORTED, text));
        }
        kind => return Err(Failure::argument(format!("{kind} is not a kind of handle"))),
    }
    // SAFETY: the kind says which member it is; all of its bytes are a number.
    let registered = Registered::open(unsafe { description.handle.fd })?;
    session::open_if_closed();
    // The same number may be another file by now, whose predecessor was never deregistered.
    let handle = FILES.insert_unless(registered, Registered::is_same).map_err(|registered| {
        let text = format!("{}: the descriptor is already registered", registered.path().display());
        Failure::new(CU_FILE_HANDLE_ALREADY_REGISTERED, text)
    })?;
    // SAFETY: as above.
    unsafe { store(fh, handle) }
}

/// Gives a file up; requests under way go on to their end. A descriptor of it is closed, which ends the process's
/// record locks on the file (`fcntl`).
#[unsafe(no_mangle)]
pub extern "C" fn cuFileHandleDeregister(fh: CUfileHandle_t) {
    let deregister = || {
        let removed = FILES.remove(fh);
        removed.map(drop).ok_or_else(|| Failure::argument(format!("the handle {fh:?} is not registered")))
    };
    nothing("cuFileHandleDeregister", || stats::counted(Call::HandleDeregister, deregister));
}
