//! The paging cache: a block device whose content is in a backing, with device memory in front of it.
//!
//! ```text
//!   read, write, flush, discard          requests, in parts of a block each
//!     ranges   who may touch which blocks: readers share, a writer or a discard is alone
//!     table    which block lies where; short turns, never held while bytes move
//!     store    device memory            backing   the file
//! ```
//!
//! Locks are taken in this order: ranges, store (shared, as long as bytes move), table. A thread holds one range.
//!
//! **Write-through** (the default): a write has ended when the backing has it, so every slot can be dropped at any moment,
//! and a device that fails costs nothing but speed. **Write-back**: a write has ended when device memory has it; what
//! [`Options::flush_interval`] and the time of writing leave unwritten goes with the power, or with the device. A flush
//! writes everything back in either mode.
//!
//! On a failure of the device the backing serves, the failure is told once ([`BlockDevice::complaints`]), and the device is
//! tried again later, at growing intervals. A page whose only copy went with the device reads as an error until it is
//! written again; it is never read as something older.
//!
//! A discarded page reads as zeroes from then on, for as long as the directory lives.
//!
//! Nothing allocates while requests succeed: tables, buffers and lanes are made once.

mod device;
mod housekeeper;
mod read;
mod trust;
mod write;
mod write_back;

pub use housekeeper::Housekeeper;
pub use trust::SleepClock;

use crate::backing::check_content;
use crate::buffers::Buffers;
use crate::directory::{Directory, Head, Shape};
use crate::header::{HEADER_BYTES, Header, Left};
use crate::health::Health;
use crate::pages::{BLOCK_BYTES, PAGE_BYTES};
use crate::stats::{Counter, Side};
use crate::store::Store;
use crate::table::Table;
use bifolio_block::ranges::Ranges;
use bifolio_block::{BlockDevice, Error, ErrorKind, Geometry, Result};
use bifolio_device::{Device, FRAME_BYTES};
use bifolio_keeper::SharedMemory;
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// Chunks are made longer rather than more.
const CHUNKS_MAX: u64 = 512;
/// Threads that find buffers without waiting.
const BUFFERS: usize = 8;
/// Threads whose ranges are noted without allocating.
const THREADS_MAX: usize = 256;

/// When a write has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// When the backing has it: device memory can be dropped at any moment.
    #[default]
    WriteThrough,
    /// When device memory has it: quicker, and lost with the device or the power until it is written back.
    WriteBack,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteThrough => "write-through",
            Self::WriteBack => "write-back",
        })
    }
}

/// Opens the device: at the start, and again after it was lost.
pub type OpenDevice = Box<dyn Fn() -> bifolio_device::Result<Device> + Send + Sync>;

/// What a cache stands on, and its sizes.
pub struct Options {
    /// The backing, with its header ([`format_backing`]).
    pub backing: Arc<dyn BlockDevice>,
    /// When a write has ended.
    pub mode: Mode,
    /// Opens the device.
    pub open_device: OpenDevice,
    /// Bytes of device memory to begin with; [`PagingCache::set_target`] changes them.
    pub memory_bytes: u64,
    /// Bytes of device memory at most, for which tables are made.
    pub memory_bytes_max: u64,
    /// In write-back mode: how long a write waits at most before writing it back begins.
    pub flush_interval: Duration,
    /// In write-back mode: the share of the slots, in percent, that may be dirty; a write beyond goes through.
    pub dirty_percent_max: u8,
    /// Tells how long the system has slept, after which device memory is not believed; tests bring their own.
    pub sleep_clock: SleepClock,
}

impl Options {
    /// Write-through on a backing, with this much device memory.
    pub fn new(backing: Arc<dyn BlockDevice>, open_device: OpenDevice, memory_bytes: u64) -> Self {
        Self {
            backing,
            mode: Mode::default(),
            open_device,
            memory_bytes,
            memory_bytes_max: memory_bytes,
            flush_interval: Duration::from_secs(1),
            dirty_percent_max: 50,
            sleep_clock: trust::slept,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("backing", &self.backing).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// What a process left that served before.
#[derive(Debug)]
pub struct Legacy {
    /// Its directory.
    pub directory: SharedMemory,
    /// Its chunks of device memory, by number.
    pub chunks: Vec<(u32, OwnedFd)>,
}

/// Who holds chunks of device memory, so that they outlive this process.
pub trait ChunkKeeper: Send + Sync + fmt::Debug {
    /// Holds a chunk from now on; returns when it does.
    ///
    /// # Errors
    /// If nobody holds it: the chunk is not used then.
    fn keep(&self, chunk: u32, memory: OwnedFd) -> Result<()>;

    /// Holds it no longer.
    fn release(&self, chunk: u32);
}

/// The cache. It serves while it is shared; [`Housekeeper`] does what has to be done now and then.
pub struct PagingCache {
    name: String,
    backing: Arc<dyn BlockDevice>,
    mode: Mode,
    size: u64,
    directory: Directory,
    ranges: Ranges,
    table: Mutex<Table>,
    store: RwLock<Option<Store>>,
    open_device: OpenDevice,
    keeper: Option<Box<dyn ChunkKeeper>>,
    buffers: Buffers,
    /// The device is used.
    serves: AtomicBool,
    /// The device's memory is gone, and what the table says of it is not true any more.
    is_lost: AtomicBool,
    /// Which memory slots are of ([`Pinned`](crate::table::Pinned)); changed with the store locked.
    opening: AtomicU32,
    /// What a predecessor left on a device that could not be opened yet.
    waiting: Mutex<Vec<(u32, OwnedFd)>>,
    /// The header says that the backing is in use.
    is_noted: AtomicBool,
    /// Writes that no flush had covered are lost.
    owes_error: AtomicBool,
    under_way: trust::UnderWay,
    upkeep: Mutex<device::Upkeep>,
    health: Mutex<Health>,
    complaints: Mutex<Vec<String>>,
    flush_interval: Duration,
    written_back_ms: AtomicU64,
    /// A failure to write back was told.
    has_told_write_back: AtomicBool,
    dirty_percent_max: u8,
    sleep_clock: SleepClock,
    begun: Instant,
}

impl fmt::Debug for PagingCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagingCache").field("name", &self.name).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// Makes a backing that has room for [`HEADER_BYTES`] and `content` bytes the backing of a cache. What was in it reads as
/// anything.
///
/// # Errors
/// `BadUse` for a size that cannot be, and those of writing.
pub fn format_backing(backing: &dyn BlockDevice, content: u64) -> Result<()> {
    check_content(&backing.name(), content)?;
    if backing.geometry().size < content + HEADER_BYTES {
        let detail = format!("it has no room for {content} bytes and a header of {HEADER_BYTES}; make it longer");
        return Err(Error::new(ErrorKind::NoSpace, backing.name(), detail));
    }
    Header { size: content, left: Left::Whole }.write(backing)
}

/// Bytes of a chunk when there is this much memory at most.
pub fn chunk_bytes(memory_bytes_max: u64) -> u64 {
    let frames = memory_bytes_max.div_ceil(FRAME_BYTES).div_ceil(CHUNKS_MAX).next_power_of_two();
    frames * FRAME_BYTES
}

/// The directory that a cache of these sizes keeps, for a keeper that makes it before the first worker.
///
/// # Errors
/// The system's.
pub fn new_directory(content: u64, memory_bytes_max: u64, mode: Mode) -> Result<SharedMemory> {
    Directory::create(shape(content, memory_bytes_max, mode)).map(Directory::into_memory)
}

/// The same with a name in a file system of memory, so that it outlives the keeper, too.
///
/// # Errors
/// The system's.
pub fn new_directory_at(path: &Path, content: u64, memory_bytes_max: u64, mode: Mode) -> Result<SharedMemory> {
    Directory::create_at(path, shape(content, memory_bytes_max, mode)).map(Directory::into_memory)
}

fn shape(content: u64, memory_bytes_max: u64, mode: Mode) -> Shape {
    let chunk = chunk_bytes(memory_bytes_max);
    Shape {
        blocks: content.div_ceil(BLOCK_BYTES) as u32,
        chunks: (memory_bytes_max / chunk).max(1) as u32,
        chunk_slots: (chunk / BLOCK_BYTES) as u32,
        writes_back: mode == Mode::WriteBack,
    }
}

impl PagingCache {
    /// Opens a cache on a backing. A device that cannot be opened, or that has no memory, is no error: the backing serves,
    /// and the reason is among the complaints.
    ///
    /// # Errors
    /// `Damaged` for a backing without a whole header, `BadState` for one whose newest writes a cache has lost, and those
    /// of reading.
    pub fn open(options: Options) -> Result<Self> {
        let header = Header::read(&*options.backing)?;
        if header.left == Left::OpenBack {
            let detail = "a cache that wrote back did not end well, so its newest writes are missing; have it made anew, or \
                          restore what it held";
            return Err(Error::new(ErrorKind::BadState, options.backing.name(), detail));
        }
        let directory = Directory::create(shape(header.size, options.memory_bytes_max, options.mode))?;
        let chunks = (options.memory_bytes / directory.chunk_bytes()).min(directory.shape().chunks.into());
        directory.head(Head::TargetChunks).store(chunks, Ordering::Relaxed);
        let cache = Self::with(options, directory, header.size, None);
        cache.start();
        Ok(cache)
    }

    /// Goes on where another process ended, whatever it was doing. Mode and sizes are the directory's.
    ///
    /// # Errors
    /// `Damaged` for what is no directory of this backing, and those of reading.
    pub fn adopt(options: Options, legacy: Legacy, keeper: Option<Box<dyn ChunkKeeper>>) -> Result<Self> {
        let cache = Self::take_over(options, legacy, keeper)?;
        cache.start();
        Ok(cache)
    }

    /// The same, but the device is opened by the first [`PagingCache::tick`], which may take for ever, and served from the
    /// backing until then: what only the device has reads as an error.
    ///
    /// # Errors
    /// As for [`PagingCache::adopt`].
    pub fn adopt_closed(options: Options, legacy: Legacy, keeper: Option<Box<dyn ChunkKeeper>>) -> Result<Self> {
        let cache = Self::take_over(options, legacy, keeper)?;
        cache.start_later();
        Ok(cache)
    }

    fn take_over(options: Options, legacy: Legacy, keeper: Option<Box<dyn ChunkKeeper>>) -> Result<Self> {
        let header = Header::read(&*options.backing)?;
        let directory = Directory::adopt(legacy.directory)?;
        if u64::from(directory.shape().blocks) != header.size.div_ceil(BLOCK_BYTES) {
            let detail = "the cache's directory is of a backing of another size; end the cache and start it anew";
            return Err(Error::new(ErrorKind::Damaged, options.backing.name(), detail));
        }
        let mode = if directory.shape().writes_back { Mode::WriteBack } else { Mode::WriteThrough };
        directory.repair();
        directory.head(Head::Generation).fetch_add(1, Ordering::Relaxed);
        let cache = Self::with(Options { mode, ..options }, directory, header.size, keeper);
        cache.is_noted.store(header.left != Left::Whole, Ordering::Relaxed);
        *cache.waiting.lock().unwrap_or_else(PoisonError::into_inner) = legacy.chunks;
        cache.directory.head(Head::Device).store(0, Ordering::Relaxed);
        Ok(cache)
    }

    fn with(options: Options, directory: Directory, size: u64, keeper: Option<Box<dyn ChunkKeeper>>) -> Self {
        Self {
            name: options.backing.name(),
            backing: options.backing,
            mode: options.mode,
            size,
            table: Mutex::new(Table::of(&directory)),
            directory,
            ranges: Ranges::for_threads(THREADS_MAX),
            store: RwLock::new(None),
            open_device: options.open_device,
            keeper,
            buffers: Buffers::new(BUFFERS),
            serves: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            opening: AtomicU32::new(0),
            waiting: Mutex::default(),
            is_noted: AtomicBool::new(false),
            owes_error: AtomicBool::new(false),
            under_way: trust::UnderWay::new(),
            upkeep: Mutex::default(),
            health: Mutex::default(),
            complaints: Mutex::default(),
            flush_interval: options.flush_interval,
            written_back_ms: AtomicU64::new(0),
            has_told_write_back: AtomicBool::new(false),
            dirty_percent_max: options.dirty_percent_max.min(100),
            sleep_clock: options.sleep_clock,
            begun: Instant::now(),
        }
    }

    /// When writes have ended.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The directory, for whoever shows or keeps it.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Why reads or writes may be slower than the device: none while it serves.
    pub fn is_serving(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> RwLockReadGuard<'_, Option<Store>> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(offset: u64, len: u64) -> Range<u64> {
        offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
    }

    /// Pages whose only copy went with the device and that were not written again.
    fn lost_pages(&self) -> u64 {
        (0..self.directory.shape().blocks).map(|block| self.directory.block(block).lost.count()).sum()
    }

    fn complain(&self, sentence: String) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(sentence);
    }

    fn failed(&self, kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error::new(kind, &self.name, detail)
    }
}

impl BlockDevice for PagingCache {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, block_bytes: PAGE_BYTES, optimal_bytes: BLOCK_BYTES }
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(offset, buffer.len() as u64)?;
        let begin = Instant::now();
        let side = if self.read_bytes(offset, buffer)? { Side::Miss } else { Side::Hit };
        let stats = self.directory.stats();
        stats.add(Counter::Reads, 1);
        stats.add(Counter::ReadBytes, buffer.len() as u64);
        stats.took(side, buffer.len() as u64, begin.elapsed());
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let begin = Instant::now();
        self.note_use()?;
        self.write_bytes(offset, data)?;
        let stats = self.directory.stats();
        stats.add(Counter::Writes, 1);
        stats.add(Counter::WrittenBytes, data.len() as u64);
        stats.took(Side::Write, data.len() as u64, begin.elapsed());
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        // What can be saved is, also where something was lost.
        let written = self.write_back_all();
        let flushed = self.backing.flush();
        if self.owes_error.swap(false, Ordering::AcqRel) {
            let detail =
                "writes since the last flush were lost with the device; they read as errors until written again";
            return Err(self.failed(ErrorKind::Write, detail));
        }
        written.and(flushed)
    }

    fn settle(&self) -> Result<()> {
        self.flush()?;
        let lost = self.lost_pages();
        if lost > 0 {
            let detail = format!(
                "{lost} pages that only the device had are lost, so the backing stays marked as one whose newest writes are \
                 missing"
            );
            return Err(self.failed(ErrorKind::BadState, detail));
        }
        let left = if self.table().dirty_pages() == 0 { Left::Whole } else { Left::OpenBack };
        if left == Left::Whole && self.is_noted.swap(false, Ordering::AcqRel) {
            Header { size: self.size, left }.write(&*self.backing)?;
        }
        Ok(())
    }

    fn complaints(&self) -> Vec<String> {
        let mut all = std::mem::take(&mut *self.complaints.lock().unwrap_or_else(PoisonError::into_inner));
        all.extend(self.backing.complaints());
        all
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        self.discard_pages(offset, len);
        self.directory.stats().add(Counter::DiscardedBytes, len);
        Ok(())
    }
}
