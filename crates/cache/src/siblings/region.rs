//! The memory with the list: made by the first copy of this crate in a process that needs it, and found by all others.
//!
//! It is a memfd's, mapped privately, whose name the kernel shows in `/proc/self/maps`. So nothing has to be exported or
//! looked up by the loader, whatever was linked, preloaded or opened with `RTLD_LOCAL`, and in which order; it needs no
//! descriptor, which a program might close, and no environment. A private mapping is the process's own: a child of
//! `fork` has a copy of it, which says nothing to its parent. It stays when the library that made it is unloaded. Two copies that look for it at the same moment do so one after the other, under the
//! loader's lock, which is one in a process.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// Files that can be listed at a time.
const PLACES: usize = 8192;
const BYTES: usize = size_of::<Head>() + PLACES * size_of::<Place>();

const NAME: &CStr = c"bifolio-caches";
/// As it ends a line of `/proc/self/maps`.
const SHOWN: &[u8] = b" /memfd:bifolio-caches (deleted)";
const MAGIC: u64 = u64::from_le_bytes(*b"bifolio\x01");
/// Of the places. Who finds another one counts his files in the head, and lists none.
const VERSION: u64 = 1;

/// What all versions have in common.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Head {
    magic: AtomicU64,
    version: AtomicU64,
    /// Files that were opened without a place, and how many of them were closed.
    pub(super) unlisted_came: AtomicU64,
    pub(super) unlisted_left: AtomicU64,
    /// The functions of the library whose cache is the process's (`process::shared`). They begin with their version.
    pub(super) offered: AtomicPtr<c_void>,
    /// Places that have ever been used.
    used: AtomicU64,
}

/// One open file of one cache.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Place {
    /// 0 if it is free, else twice the number of the process, and one more once the file is there.
    owner: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    /// How often somebody else has come with the same file.
    pub(super) met: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Region {
    pub(super) head: &'static Head,
    /// None of another version.
    places: &'static [Place],
}

impl Region {
    /// That of this process; none where it can be neither found nor made.
    pub(super) fn of_the_process() -> Option<Self> {
        static REGION: OnceLock<Option<Region>> = OnceLock::new();
        *REGION.get_or_init(|| {
            let mut start = std::ptr::null_mut::<c_void>();
            // SAFETY: the callback gets the place for its answer. Nothing in it unwinds, allocates, or asks the loader.
            unsafe { libc::dl_iterate_phdr(Some(find_or_make), (&raw mut start).cast()) };
            // SAFETY: a region is never unmapped, and its numbers are atomics.
            (!start.is_null()).then(|| unsafe { Self::at(start) })
        })
    }

    /// # Safety
    /// The memory is there for good and holds a region, of at least a head, and of all places in this version.
    unsafe fn at(start: *mut c_void) -> Self {
        // SAFETY: the caller's promise.
        let head = unsafe { &*start.cast::<Head>() };
        let places = if head.version.load(SeqCst) == VERSION { PLACES } else { 0 };
        // SAFETY: as above; they follow the head.
        let places = unsafe { std::slice::from_raw_parts(start.byte_add(size_of::<Head>()).cast(), places) };
        Self { head, places }
    }

    /// A place for a file, from which others know of it before this returns; none if all are taken.
    pub(super) fn list(&self, device: u64, inode: u64) -> Option<&'static Place> {
        let process = std::process::id();
        let claim = |place: &Place| place.owner.compare_exchange(0, claimed_by(process), SeqCst, SeqCst).is_ok();
        let number = self.places.iter().position(claim)?;
        self.head.used.fetch_max(number as u64 + 1, SeqCst);
        self.places[number].list(process, device, inode);
        Some(&self.places[number])
    }

    /// The places of a file in caches of this process.
    pub(super) fn places_of(self, device: u64, inode: u64) -> impl Iterator<Item = &'static Place> {
        let (used, listed) = (self.head.used.load(SeqCst) as usize, listed_by(std::process::id()));
        let used = &self.places[..used.min(self.places.len())];
        used.iter().filter(move |place| place.owner.load(SeqCst) == listed && place.file() == (device, inode))
    }
}

impl Place {
    fn list(&self, process: u32, device: u64, inode: u64) {
        self.device.store(device, SeqCst);
        self.inode.store(inode, SeqCst);
        self.owner.store(listed_by(process), SeqCst);
    }

    /// Device and inode.
    pub(super) fn file(&self) -> (u64, u64) {
        (self.device.load(SeqCst), self.inode.load(SeqCst))
    }

    /// Tells its owner that somebody else has come with the same file.
    pub(super) fn meet(&self) {
        self.met.fetch_add(1, SeqCst);
    }

    pub(super) fn leave(&self) {
        self.owner.store(0, SeqCst);
    }
}

fn claimed_by(process: u32) -> u64 {
    u64::from(process) << 1
}

fn listed_by(process: u32) -> u64 {
    claimed_by(process) | 1
}

/// Called for the first object that is loaded, with the loader's lock. System calls are made without the C library's
/// functions, which the shim replaces, and which look for those that they replace.
extern "C" fn find_or_make(_: *mut libc::dl_phdr_info, _: usize, answer: *mut c_void) -> c_int {
    let start = find().or_else(make).unwrap_or(std::ptr::null_mut());
    // SAFETY: the caller's place for it.
    unsafe { answer.cast::<*mut c_void>().write(start) };
    1
}

/// A region in the list of mappings of this process.
fn find() -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/proc/self/maps".as_ptr(), libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // Longer than any line: a path has 4096 bytes at most.
    let (mut buffer, mut held, mut found) = ([0_u8; 8192], 0, None);
    while found.is_none() {
        let room = &mut buffer[held..];
        // SAFETY: the room may be written.
        let read = unsafe { libc::syscall(libc::SYS_read, fd, room.as_mut_ptr(), room.len()) };
        if read <= 0 {
            break;
        }
        held += read as usize;
        let whole = buffer[..held].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        found = buffer[..whole].split(|byte| *byte == b'\n').filter_map(start_of).find(|start| {
            // SAFETY: a mapping with the region's name, which nobody unmaps, has at least its head.
            unsafe { (*start.cast::<Head>()).magic.load(SeqCst) == MAGIC }
        });
        buffer.copy_within(whole..held, 0);
        held -= whole;
    }
    // SAFETY: opened above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    found
}

/// The first address of a mapping, if its line says that it is a region.
fn start_of(line: &[u8]) -> Option<*mut c_void> {
    let addresses = line.strip_suffix(SHOWN)?.split(|byte| *byte == b' ');
    let mut fields = addresses.filter(|field| !field.is_empty());
    let (range, access) = (fields.next()?, fields.next()?);
    let hyphen = range.iter().position(|byte| *byte == b'-')?;
    let number = |digits: &[u8]| usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let (start, end) = (number(&range[..hyphen])?, number(&range[hyphen + 1..])?);
    let is_region = access.starts_with(b"rw") && end.checked_sub(start)? >= size_of::<Head>();
    is_region.then(|| std::ptr::with_exposed_provenance_mut(start))
}

fn make() -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let (access, flags) =
        (libc::c_long::from(libc::PROT_READ | libc::PROT_WRITE), libc::c_long::from(libc::MAP_PRIVATE));
    // SAFETY: a new mapping of a file that was made as long before; the descriptor is closed once.
    let start = unsafe {
        let sized = libc::syscall(libc::SYS_ftruncate, fd, BYTES) == 0;
        let start = if sized { libc::syscall(libc::SYS_mmap, 0_usize, BYTES, access, flags, fd, 0_usize) } else { -1 };
        libc::syscall(libc::SYS_close, fd);
        start
    };
    let start = (start != -1).then(|| std::ptr::with_exposed_provenance_mut::<c_void>(start as usize))?;
    // SAFETY: it is that long, and zeroes are a valid head.
    let head = unsafe { &*start.cast::<Head>() };
    head.version.store(VERSION, SeqCst);
    head.magic.store(MAGIC, SeqCst);
    Some(start)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// One that nobody else finds; it stays.
    pub(in crate::siblings) fn region() -> Region {
        let start = vec![0_u64; BYTES / 8].leak().as_mut_ptr().cast::<c_void>();
        // SAFETY: memory for a region that stays, and zeroes are a valid head.
        unsafe {
            (*start.cast::<Head>()).version.store(VERSION, SeqCst);
            Region::at(start)
        }
    }

    impl Region {
        /// As another version finds it, or has made it.
        pub(in crate::siblings) fn as_another_version(self) -> Self {
            Self { places: &[], ..self }
        }

        /// What a process lists that this one was forked from.
        pub(in crate::siblings) fn list_for(&self, process: u32, device: u64, inode: u64) {
            self.list(device, inode).unwrap().list(process, device, inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_of_the_process_is_found_again() {
        let region = Region::of_the_process().unwrap();
        let start = std::ptr::from_ref(region.head);
        assert_eq!(find().unwrap().cast_const().cast(), start);
        // As a copy finds it that has statics of its own.
        let mut answer = std::ptr::null_mut::<c_void>();
        find_or_make(std::ptr::null_mut(), 0, (&raw mut answer).cast());
        assert_eq!(answer.cast_const().cast(), start);
    }

    #[test]
    fn lines_of_the_list_of_mappings_are_told_apart() {
        let line = |access: &str, name: &str| format!("7f12000-7f15000 {access} 00000000 00:01 1034        {name}");
        let start = |line: String| start_of(line.as_bytes()).map(<*mut c_void>::addr);
        assert_eq!(start(line("rw-p", "/memfd:bifolio-caches (deleted)")), Some(0x7f1_2000));
        for (access, name) in [
            ("r--p", "/memfd:bifolio-caches (deleted)"),
            ("rw-p", "/memfd:bifolio-fenced (deleted)"),
            ("rw-p", "/tmp/memfd:bifolio-caches (deleted)"),
            ("rw-p", ""),
        ] {
            assert_eq!(start(line(access, name)), None, "{access} {name}");
        }
        for broken in ["", " /memfd:bifolio-caches (deleted)", "7f-6f rw-p 0 /memfd:bifolio-caches (deleted)"] {
            assert_eq!(start(broken.to_owned()), None, "{broken}");
        }
    }
}
