//! The driver session: how often it is open, and how many requests are under way.
//!
//! It knows nothing of what is registered during a session. The last close, which ends all of that, is in
//! [`driver`](crate::driver), above the modules that keep it.

use crate::abi::CUfileOpError::{CU_FILE_DRIVER_CLOSING, CU_FILE_DRIVER_NOT_INITIALIZED};
use crate::status::{Failure, Outcome};
use std::ffi::c_long;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often the session is open.
static USERS: Mutex<c_long> = Mutex::new(0);
/// Requests under way.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

fn users() -> MutexGuard<'static, c_long> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the session once more.
pub(crate) fn open() {
    *users() += 1;
}

/// Opens the session where nobody has: what registers files and memory does it by itself.
pub(crate) fn open_if_closed() {
    let mut users = users();
    *users = (*users).max(1);
}

/// Whether the session is open.
pub(crate) fn is_open() -> bool {
    *users() > 0
}

/// How often the session is open.
pub(crate) fn use_count() -> c_long {
    *users()
}

/// Closes the session once; the last close calls `forget_all` before anybody can open it again, and is refused while
/// requests are under way.
pub(crate) fn close(forget_all: impl FnOnce()) -> Outcome<()> {
    let mut users = users();
    match *users {
        0 => return Err(Failure::new(CU_FILE_DRIVER_NOT_INITIALIZED, "the driver session is not open")),
        1 => {
            let active = ACTIVE.load(Ordering::Acquire);
            if active > 0 {
                let text = format!("{active} requests are under way; wait for them before closing");
                return Err(Failure::new(CU_FILE_DRIVER_CLOSING, text));
            }
            forget_all();
        }
        _ => {}
    }
    *users -= 1;
    Ok(())
}

/// A request under way; the session does not close meanwhile.
#[derive(Debug)]
pub(crate) struct Active(());

impl Active {
    pub(crate) fn begin() -> Self {
        ACTIVE.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::AcqRel);
    }
}
