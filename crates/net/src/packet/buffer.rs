//! Memory of packets: bytes behind a count of who uses them.
//!
//! Buffers of the usual size come from a pool of their thread and go back to the pool of whichever thread lets go of them
//! last, so that a packet in flight costs no allocation. They lie together in slabs of huge pages: packets on their way
//! through a device are many, and the processor's table of pages is small. Slabs stay: their number is that of the most packets
//! that there were at a time, with those that pools keep. All bytes of a buffer are initialised when it is made; what an
//! earlier packet left stays in it until somebody writes there. Builds with debug assertions put nonsense there instead,
//! another one each time: whoever shows it is found by tests that run twice.

use super::pool::{self, Depot, Pool};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// Bytes of a pooled buffer: a frame of 1,518 bytes with VLAN tags, and room before and behind it.
pub(super) const STANDARD: usize = 2048;

/// Bytes of a slab, and of a huge page.
const SLAB: usize = 2 << 20;

/// What lies before the bytes; a cache line, so that they begin at one.
#[repr(C, align(64))]
struct Header {
    users: AtomicU32,
    capacity: u32,
}

/// Counted bytes: clones are the same bytes.
///
/// The address of the header, with marks in the bits that its alignment leaves. Whoever has the only one of usual size needs no
/// look at the header, which is a line of the cache of its own: of packets that were on their way for long, each line costs a
/// wait for memory.
///
/// Bytes change only through `bytes_mut` and `part_mut`, whose caller is the only user, and the count is atomic: so buffers may
/// go to other threads, and be looked at by several.
pub(super) struct Buffer(AtomicPtr<Header>);

/// The mark of one that was ever cloned, or is a clone: only then the count may be another one than 1.
const COUNTED: usize = 1;
/// The mark of one of the standard size.
const USUAL: usize = 2;

/// A buffer of the standard size that nobody uses.
struct Spare(NonNull<Header>);

// SAFETY: nobody else knows of it.
unsafe impl Send for Spare {}

static DEPOT: Depot<Spare> = Depot::new(usize::MAX);

thread_local! {
    static POOL: RefCell<Pool<Spare>> = const { RefCell::new(Pool::new(&DEPOT)) };
}

/// Where slabs begin, in the order in which they were made.
static SLABS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// How many there are.
static SLAB_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Memory in which buffers of the standard size lie: it stays where it is as long as the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slab(usize);

impl Slab {
    /// Bytes of each; it begins at a multiple of that.
    pub(crate) const BYTES: usize = SLAB;

    /// How many there are. Buffers that somebody has lie in one of these.
    pub(crate) fn count() -> usize {
        SLAB_COUNT.load(Ordering::Acquire)
    }

    /// Those that were made after so many others.
    pub(crate) fn after(others: usize) -> Vec<Self> {
        let slabs = SLABS.lock().unwrap_or_else(PoisonError::into_inner);
        slabs.get(others..).unwrap_or_default().iter().map(|at| Self(*at)).collect()
    }

    pub(crate) fn as_ptr(self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.0)
    }
}

fn layout(capacity: usize) -> Layout {
    let size = size_of::<Header>() + capacity;
    Layout::from_size_align(size, align_of::<Header>()).expect("a buffer of less than half the address space")
}

#[expect(clippy::cast_ptr_alignment, reason = "the layout has the alignment of a header")]
fn make(capacity: usize) -> NonNull<Header> {
    let layout = layout(capacity);
    // SAFETY: the layout is not empty: it has a header.
    let Some(header) = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<Header>()) else {
        handle_alloc_error(layout)
    };
    // SAFETY: fresh memory for a header, which nobody else knows.
    unsafe { header.write(Header { users: AtomicU32::new(1), capacity: capacity as u32 }) };
    header
}

fn free(header: NonNull<Header>) {
    // SAFETY: it was made by `make` with the layout of its capacity, and has no user any more.
    unsafe { dealloc(header.as_ptr().cast(), layout(header.as_ref().capacity as usize)) };
}

/// The buffers of a new slab.
#[cold]
fn make_slab() -> Vec<Spare> {
    let slab = Layout::from_size_align(SLAB, SLAB).expect("a size that is its own alignment");
    // SAFETY: the layout is not empty.
    let Some(start) = NonNull::new(unsafe { alloc(slab) }) else { handle_alloc_error(slab) };
    // SAFETY: fresh memory of whole pages, of which none has been touched; where the system has no huge pages, small ones serve.
    unsafe {
        libc::madvise(start.as_ptr().cast(), SLAB, libc::MADV_HUGEPAGE);
        start.write_bytes(0, SLAB);
    }
    let mut slabs = SLABS.lock().unwrap_or_else(PoisonError::into_inner);
    slabs.push(start.as_ptr().expose_provenance());
    SLAB_COUNT.store(slabs.len(), Ordering::Release);
    drop(slabs);
    let size = layout(STANDARD).pad_to_align().size();
    let buffers = (0..SLAB / size).map(|number| {
        // SAFETY: all of the buffer lies in the slab.
        let header = unsafe { start.add(number * size) }.cast::<Header>();
        // SAFETY: memory for a header, which nobody else knows.
        unsafe { header.write(Header { users: AtomicU32::new(0), capacity: STANDARD as u32 }) };
        Spare(header)
    });
    buffers.collect()
}

/// A buffer of the standard size, all of which lie in slabs.
fn spare() -> NonNull<Header> {
    let get = |pool: &mut Pool<Spare>| {
        pool.get().or_else(|| {
            pool.fill(make_slab());
            pool.get()
        })
    };
    let alone = || {
        // The thread is about to end: it keeps no others.
        let mut spares = DEPOT.take().unwrap_or_else(make_slab);
        let one = spares.pop().expect("slabs have several buffers, and chunks some");
        DEPOT.give(spares);
        one
    };
    pool::with(&POOL, get).flatten().unwrap_or_else(alone).0
}

impl Buffer {
    /// A buffer with at least `capacity` bytes.
    pub(super) fn new(capacity: usize) -> Self {
        if capacity > STANDARD {
            return Self::of(make(capacity));
        }
        let header = spare();
        // SAFETY: a header of the pool, which has no user.
        unsafe { header.as_ref() }.users.store(1, Ordering::Relaxed);
        #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "written in builds for tests"))]
        let mut buffer = Self::of(header);
        #[cfg(debug_assertions)]
        buffer.spoil();
        buffer
    }

    /// Fills it with a byte that it did not have the last time.
    #[cfg(debug_assertions)]
    pub(super) fn spoil(&mut self) {
        static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
        self.bytes_mut().fill(NEXT.fetch_add(2, Ordering::Relaxed));
    }

    /// The only one of these bytes.
    fn of(header: NonNull<Header>) -> Self {
        // SAFETY: a header that nobody else knows.
        let is_usual = unsafe { header.as_ref() }.capacity as usize == STANDARD;
        let mark = if is_usual { USUAL } else { 0 };
        Self(AtomicPtr::new(header.as_ptr().map_addr(|at| at | mark)))
    }

    #[inline]
    fn has(&self, mark: usize) -> bool {
        self.0.load(Ordering::Relaxed).addr() & mark != 0
    }

    #[inline]
    fn at(&self) -> *mut Header {
        self.0.load(Ordering::Relaxed).map_addr(|at| at & !(COUNTED | USUAL))
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: alive as long as there is a user, which `self` is.
        unsafe { &*self.at() }
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        if self.has(USUAL) { STANDARD } else { self.header().capacity as usize }
    }

    /// Whether it lies in a [`Slab`].
    #[inline]
    pub(super) fn is_lasting(&self) -> bool {
        self.has(USUAL)
    }

    /// Whether others use the same bytes.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.has(COUNTED) && self.header().users.load(Ordering::Acquire) != 1
    }

    /// Whether nobody else uses it, and it is as large as the usual ones; then it counts as never cloned again.
    #[inline]
    pub(super) fn is_reusable(&mut self) -> bool {
        let is_reusable = self.has(USUAL) && !self.is_shared();
        if is_reusable {
            let at = self.0.get_mut();
            *at = at.map_addr(|at| at & !COUNTED);
        }
        is_reusable
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        // SAFETY: the bytes lie behind the header in the same allocation.
        unsafe { self.at().add(1).cast() }
    }

    /// Has the processor load some of the first bytes, for writing: those behind the usual headroom.
    #[inline]
    pub(super) fn fetch(&self) {
        super::fetch(self.start().wrapping_add(super::DEFAULT_HEADROOM));
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `capacity` initialised bytes, which change only while there is one user.
        unsafe { std::slice::from_raw_parts(self.start(), self.capacity()) }
    }

    /// Some of the bytes, which are there.
    #[inline]
    pub(super) fn part(&self, start: u32, len: u32) -> &[u8] {
        assert!(u64::from(start) + u64::from(len) <= self.capacity() as u64, "bytes of the buffer");
        // SAFETY: within `bytes`.
        unsafe { std::slice::from_raw_parts(self.start().add(start as usize), len as usize) }
    }

    /// Some of the bytes, for the only user.
    #[inline]
    pub(super) fn part_mut(&mut self, start: u32, len: u32) -> &mut [u8] {
        assert!(u64::from(start) + u64::from(len) <= self.capacity() as u64, "bytes of the buffer");
        assert!(!self.is_shared(), "bytes that others use are not written");
        // SAFETY: within `bytes_mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start().add(start as usize), len as usize) }
    }

    /// The bytes, for the only user.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_shared(), "bytes that others use are not written");
        // SAFETY: as `bytes`; nobody else has them, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.capacity()) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        let before = self.header().users.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a buffer with two thousand million users");
        // Whoever has `self` for writing has seen this: both are of one thread, or were handed over.
        let counted = self.0.load(Ordering::Relaxed).map_addr(|at| at | COUNTED);
        self.0.store(counted, Ordering::Relaxed);
        Self(AtomicPtr::new(counted))
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.is_shared() && self.header().users.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Whatever the others did with the bytes is done before somebody gets them anew.
        fence(Ordering::Acquire);
        let Some(header) = NonNull::new(self.at()) else { return };
        if !self.has(USUAL) {
            free(header);
        } else if pool::with(&POOL, |pool| pool.put(Spare(header))).is_none() {
            // The thread's pool has ended before its last packets.
            DEPOT.give(vec![Spare(header)]);
        }
    }
}
