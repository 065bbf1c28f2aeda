//! Acting for whoever asks.
//!
//! The kernel has checked what a caller may do (`default_permissions`). What remains is to whom a new file belongs, what
//! his mask takes from its mode, and whether a change takes the bits away by which a program runs as another user. A
//! serving thread takes the caller's user and group for its accesses to files (which are the thread's own), keeps its
//! rights, and goes back when it is done.

use fuser::Request;
use std::cell::Cell;

/// Whoever asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    user: u32,
    group: u32,
    is_served_by_root: bool,
}

/// `CAP_FSETID`, by which a change leaves those bits of a mode.
const KEEPS_SET_ID: u32 = 1 << 4;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITIES_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilitiesOf {
    version: u32,
    thread: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

impl Caller {
    pub(crate) fn of(request: &Request, is_served_by_root: bool) -> Self {
        Self { user: request.uid(), group: request.gid(), is_served_by_root }
    }

    pub(crate) fn is_root(self) -> bool {
        self.user == 0
    }

    /// Makes a file: it belongs to the caller, and his mask counts unless the folder says what new files get (`default`
    /// access control lists).
    pub(crate) fn make<T>(self, mode: u32, mask: u32, make: impl FnOnce(u32) -> T) -> T {
        let mode = if thread_has_own_mask() {
            // SAFETY: changes the mask of this thread alone.
            unsafe { libc::umask(mask & 0o777) };
            mode
        } else {
            mode & !mask
        };
        if !self.is_served_by_root || (self.user == 0 && self.group == 0) {
            return make(mode);
        }
        let full = capabilities();
        // SAFETY: changes this thread alone; whose rights to files go with it are taken back at once.
        unsafe { (libc::setfsgid(self.group), libc::setfsuid(self.user)) };
        set_capabilities(full);
        let made = make(mode);
        // SAFETY: as above.
        unsafe { (libc::setfsuid(0), libc::setfsgid(0)) };
        set_capabilities(full);
        made
    }

    /// Changes a file's content: where the caller is not root, a program's bits that have it run as another user go.
    pub(crate) fn change<T>(self, change: impl FnOnce() -> T) -> T {
        if self.is_root() { change() } else { without_set_id(self.is_served_by_root, change) }
    }
}

/// Changes a file's content as somebody who has no right to leave those bits.
pub(crate) fn without_set_id<T>(is_served_by_root: bool, change: impl FnOnce() -> T) -> T {
    if !is_served_by_root {
        return change();
    }
    let full = capabilities();
    let mut less = full;
    less[0].effective &= !KEEPS_SET_ID;
    set_capabilities(less);
    let changed = change();
    set_capabilities(full);
    changed
}

/// Gives this thread a mask of its own, once. Without one the process's is 0, and modes are masked here.
fn thread_has_own_mask() -> bool {
    thread_local! {
        static IS_OWN: Cell<Option<bool>> = const { Cell::new(None) };
    }
    IS_OWN.get().unwrap_or_else(|| {
        // SAFETY: takes no memory; from then on this thread has a current directory of its own, too.
        let is_own = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
        if is_own {
            // SAFETY: the path ends with a zero byte. A folder that was current before is held no longer.
            unsafe { libc::chdir(c"/".as_ptr()) };
        }
        IS_OWN.set(Some(is_own));
        is_own
    })
}

fn capabilities() -> [Capabilities; 2] {
    let header = CapabilitiesOf { version: CAPABILITIES_VERSION, thread: 0 };
    let mut both = [Capabilities::default(); 2];
    // SAFETY: the header says which version the room is for.
    unsafe { libc::syscall(libc::SYS_capget, &raw const header, both.as_mut_ptr()) };
    both
}

fn set_capabilities(both: [Capabilities; 2]) {
    let header = CapabilitiesOf { version: CAPABILITIES_VERSION, thread: 0 };
    // SAFETY: the header says which version is given. They are ones that this thread had, or fewer.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, both.as_ptr()) };
}
