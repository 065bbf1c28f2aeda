//! Packets: bytes with room before and behind them, and annotations beside them.
//!
//! A clone is cheap and has the same bytes; whoever writes gets bytes of his own first (copy on write). Annotations are
//! each packet's own. Offsets of annotations and their meaning are Click's (`packet_anno.hh`), so that configurations which
//! name them by number mean the same.
//!
//! ```text
//!   buffer:  | headroom | data ............ | tailroom |
//!             ^low ^mac    ^network   ^transport           offsets into the buffer, which pull and push leave alone
//! ```
//!
//! Buffers are used again, with what an earlier packet left in them. From `low` on, bytes are the packet's own; whoever
//! uncovers earlier ones without writing them finds zeroes.

mod annotations;
mod buffer;
mod headers;
mod pool;
#[cfg(test)]
mod tests;

use crate::Timestamp;
use buffer::Buffer;
pub(crate) use buffer::Slab;
use pool::{Depot, Pool};
use std::cell::RefCell;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};

pub use annotations::{ANNO_BYTES, PacketType, anno};

/// Bytes before the data of a new packet, as in Click.
pub const DEFAULT_HEADROOM: usize = 64;

/// Packets that go the same way together, in their order.
pub type Batch = Vec<Packet>;

/// Bytes that move no data out of alignment.
const ALIGNMENT: isize = 8;

const NOWHERE: u32 = u32::MAX;

/// In two lines of the cache: what every element looks at is in the first one, with the first 22 bytes of annotations.
#[derive(Clone)]
#[repr(C, align(64))]
struct Meta {
    buffer: Buffer,
    /// Where the data begins, in the buffer.
    start: u32,
    len: u32,
    mac: u32,
    network: u32,
    transport: u32,
    /// Where the packet's own bytes begin: what lies before is another's.
    low: u32,
    /// The packet's place among those of its burst, and how many places it has for packets that come of it.
    place_at: u64,
    place_bits: u8,
    kind: PacketType,
    anno: [u8; ANNO_BYTES],
    timestamp: Timestamp,
}

const _: () = assert!(size_of::<Meta>() == 128 && std::mem::offset_of!(Meta, anno) + 22 <= 64);

/// Where a packet stands among those of one burst: the order in which packets would pass one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) at: u64,
    /// It has so many places, as a power of two.
    pub(crate) bits: u8,
}

/// Chunks of packets that no thread keeps: a quarter of a gigabyte with their buffers.
const CHUNKS: usize = 128;

/// Packets with their buffers.
static WHOLE: Depot<Box<Meta>> = Depot::new(CHUNKS);
/// Memory for packets. Boxed: what is kept is the memory, at its address.
static BARE: Depot<Box<MaybeUninit<Meta>>> = Depot::new(CHUNKS);

thread_local! {
    static POOL: RefCell<Pool<Box<Meta>>> = const { RefCell::new(Pool::new(&WHOLE)) };
    static BARE_POOL: RefCell<Pool<Box<MaybeUninit<Meta>>>> = const { RefCell::new(Pool::new(&BARE)) };
}

/// Has the processor load a line of the cache, whose bytes will be written; nothing where that is no memory.
#[inline]
fn fetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Something that is kept, with its buffer. Packets that were on their way for long have left the processor's caches, so those
/// that come soon are loaded meanwhile.
#[inline]
fn get(pool: &mut Pool<Box<Meta>>) -> Option<Box<Meta>> {
    if let Some(meta) = pool.later(8) {
        let lines: *const Meta = &raw const **meta;
        fetch(lines);
        fetch(lines.wrapping_byte_add(64));
    }
    if let Some(meta) = pool.later(4) {
        meta.buffer.fetch();
    }
    pool.get()
}

/// Keeps a packet that is gone, with its buffer.
#[inline]
fn keep(pool: &mut Pool<Box<Meta>>, mut meta: Box<Meta>) {
    if meta.buffer.is_reusable() {
        pool.put(meta);
    } else {
        keep_bare(meta);
    }
}

/// Drops what a packet has, and keeps its memory.
fn keep_bare(meta: Box<Meta>) {
    let raw = Box::into_raw(meta);
    // SAFETY: what was in the box is dropped in place, once; the memory is that of a `MaybeUninit` then.
    let bare: Box<MaybeUninit<Meta>> = unsafe {
        std::ptr::drop_in_place(raw);
        Box::from_raw(raw.cast())
    };
    pool::with(&BARE_POOL, |pool| pool.put(bare));
}

/// Drops packets: faster than one by one.
#[inline]
pub fn release(batch: &mut Batch) {
    if !batch.is_empty() {
        release_some(batch);
    }
}

fn release_some(batch: &mut Batch) {
    pool::with(&POOL, |pool| batch.drain(..).for_each(|packet| keep(pool, packet.into_meta())));
    batch.clear();
}

/// A packet. As big as a pointer.
pub struct Packet(ManuallyDrop<Box<Meta>>);

impl Packet {
    #[inline]
    #[expect(clippy::unnecessary_box_returns, reason = "the memory is what counts")]
    fn into_meta(self) -> Box<Meta> {
        // SAFETY: taken once: `self` is forgotten.
        unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).0) }
    }

    fn of(meta: Meta) -> Self {
        let pooled = pool::with(&BARE_POOL, Pool::get).flatten();
        let boxed = pooled.unwrap_or_else(|| Box::new(MaybeUninit::uninit()));
        Self(ManuallyDrop::new(Box::write(boxed, meta)))
    }

    /// A packet with these bytes, and at least so much room before and behind them.
    pub fn new(headroom: usize, data: &[u8], tailroom: usize) -> Self {
        let mut packet = Self::with_room(headroom, data.len(), tailroom);
        packet.bytes_mut().copy_from_slice(data);
        packet
    }

    /// A packet with these bytes, and the usual room before them.
    pub fn from_slice(data: &[u8]) -> Self {
        Self::new(DEFAULT_HEADROOM, data, 0)
    }

    /// A packet of `len` bytes, whose content is whatever lay there: the caller writes all of it.
    pub fn with_room(headroom: usize, len: usize, tailroom: usize) -> Self {
        let total = headroom.saturating_add(len).saturating_add(tailroom);
        assert!(total < 1 << 30, "a packet of a gigabyte");
        if total <= buffer::STANDARD
            && let Some(mut meta) = pool::with(&POOL, get).flatten()
        {
            #[cfg(debug_assertions)]
            meta.buffer.spoil();
            (meta.start, meta.len, meta.low) = (headroom as u32, len as u32, headroom as u32);
            (meta.mac, meta.network, meta.transport) = (NOWHERE, NOWHERE, NOWHERE);
            (meta.kind, meta.anno) = (PacketType::default(), [0; ANNO_BYTES]);
            (meta.place_at, meta.place_bits, meta.timestamp) = (0, 0, Timestamp::default());
            return Self(ManuallyDrop::new(meta));
        }
        Self::of(Meta {
            buffer: Buffer::new(total),
            start: headroom as u32,
            len: len as u32,
            mac: NOWHERE,
            network: NOWHERE,
            transport: NOWHERE,
            low: headroom as u32,
            kind: PacketType::default(),
            place_at: 0,
            place_bits: 0,
            timestamp: Timestamp::default(),
            anno: [0; ANNO_BYTES],
        })
    }

    /// Bytes of data.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The data.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let meta = &**self.0;
        meta.buffer.part(meta.start, meta.len)
    }

    /// The data, for writing: bytes that others have, too, are copied first.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.own();
        let meta = &mut **self.0;
        meta.buffer.part_mut(meta.start, meta.len)
    }

    /// Has the processor load what is known of the packet.
    #[inline]
    pub(crate) fn fetch(&self) {
        let lines: *const Meta = &raw const **self.0;
        fetch(lines);
    }

    /// Has the processor load the first of its bytes.
    #[inline]
    pub(crate) fn fetch_headers(&self) {
        self.0.buffer.fetch();
    }

    /// Whether its bytes lie in a [`Slab`].
    #[inline]
    pub(crate) fn is_lasting(&self) -> bool {
        self.0.buffer.is_lasting()
    }

    /// Whether others have the same bytes.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.0.buffer.is_shared()
    }

    /// Gets bytes of its own, if others have them, too.
    #[inline]
    pub fn own(&mut self) {
        if self.is_shared() {
            self.resize(self.headroom(), self.tailroom());
        }
    }

    /// Room before the data, in bytes.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.0.start as usize
    }

    /// Room behind the data, in bytes.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.0.buffer.capacity() - self.0.start as usize - self.len()
    }

    /// Moves the data to a buffer of its own with at least so much room.
    #[cold]
    fn resize(&mut self, headroom: usize, tailroom: usize) {
        let meta = &mut **self.0;
        let (start, len) = (meta.start as usize, meta.len as usize);
        let mut buffer = Buffer::new(headroom + len + tailroom);
        // Headers that were pulled lie before the data, and stay readable there.
        let before = headroom.min(start - meta.low as usize);
        let from = &meta.buffer.bytes()[start - before..start + len];
        buffer.bytes_mut()[headroom - before..headroom + len].copy_from_slice(from);
        let moved = |at: u32| match at {
            NOWHERE => NOWHERE,
            at if (at as usize) + before < start => NOWHERE,
            at => at + headroom as u32 - start as u32,
        };
        (meta.mac, meta.network, meta.transport) = (moved(meta.mac), moved(meta.network), moved(meta.transport));
        (meta.start, meta.low) = (headroom as u32, (headroom - before) as u32);
        meta.buffer = buffer;
    }

    /// Makes the data `n` bytes longer at its beginning, and gives all of it for writing; what the new bytes have is
    /// whatever lay there.
    #[inline]
    pub fn push(&mut self, n: usize) -> &mut [u8] {
        if self.headroom() < n || self.is_shared() {
            self.resize(self.headroom().max(n + DEFAULT_HEADROOM), self.tailroom());
        }
        let meta = &mut **self.0;
        meta.start -= n as u32;
        meta.len += n as u32;
        meta.low = meta.low.min(meta.start);
        meta.buffer.part_mut(meta.start, meta.len)
    }

    /// The same without a change of bytes: what was pulled is data again, and where nothing was pulled, new bytes are zero.
    pub fn push_back_pulled(&mut self, n: usize) {
        if self.headroom() < n {
            self.resize(n + DEFAULT_HEADROOM, self.tailroom());
        }
        let start = self.0.start - n as u32;
        if start < self.0.low {
            self.uncover(start);
        }
        self.0.start = start;
        self.0.len += n as u32;
    }

    /// Makes the bytes from here on the packet's own: those that were not are zero.
    #[cold]
    fn uncover(&mut self, from: u32) {
        self.own();
        let meta = &mut **self.0;
        meta.buffer.part_mut(from, meta.low - from).fill(0);
        meta.low = from;
    }

    /// Takes `n` bytes off the beginning, at most all.
    #[inline]
    pub fn pull(&mut self, n: usize) {
        let meta = &mut **self.0;
        let n = (n as u64).min(u64::from(meta.len)) as u32;
        meta.start += n;
        meta.len -= n;
    }

    /// Makes the data `n` bytes longer at its end, and gives all of it for writing; what the new bytes have is whatever lay
    /// there.
    pub fn put(&mut self, n: usize) -> &mut [u8] {
        if self.tailroom() < n || self.is_shared() {
            self.resize(self.headroom(), self.tailroom().max(n));
        }
        self.0.len += n as u32;
        self.bytes_mut()
    }

    /// Takes `n` bytes off the end, at most all.
    #[inline]
    pub fn take(&mut self, n: usize) {
        let meta = &mut **self.0;
        meta.len -= (n as u64).min(u64::from(meta.len)) as u32;
    }

    /// Moves the data, for `delta` bytes, within its buffer, such as for alignment: headers move with it, and so does what was
    /// pulled. Where there is no room for these, it is moved for as many bytes as are as good for alignment.
    pub fn shift(&mut self, delta: isize) {
        let pulled = (self.0.start - self.0.low) as isize;
        let headroom = self.headroom() as isize + delta;
        let missing = (pulled - headroom).max(0);
        let headroom = headroom + (missing + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        let tailroom = self.tailroom().saturating_add_signed(-delta);
        self.resize(headroom as usize, tailroom);
    }

    #[inline]
    pub(crate) fn place(&self) -> Place {
        Place { at: self.0.place_at, bits: self.0.place_bits }
    }

    #[inline]
    pub(crate) fn set_place(&mut self, place: Place) {
        (self.0.place_at, self.0.place_bits) = (place.at, place.bits);
    }
}

impl Clone for Packet {
    fn clone(&self) -> Self {
        Self::of(Meta::clone(&self.0))
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, as `self` is not used again.
        let meta = unsafe { ManuallyDrop::take(&mut self.0) };
        // The closure has it to itself: where the pool has ended, it ends with the closure.
        pool::with(&POOL, move |pool| keep(pool, meta));
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes:", self.len())?;
        self.bytes().iter().take(32).try_for_each(|byte| write!(f, " {byte:02x}"))?;
        f.write_str(")")
    }
}
