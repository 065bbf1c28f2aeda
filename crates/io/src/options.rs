//! What callers choose for a request, and say of a file.

use crate::kind::EngineChoice;
use bifolio_device::Cancel;
use bifolio_device::{DeviceSlice, Event};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Choices for one request.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Who chooses the engine.
    pub engine: EngineChoice,
    /// Look at the residency even where the plan does not need it (an engine was chosen).
    pub report_residency: bool,
    /// Stops the request.
    pub cancel: Cancel,
    /// Counts bytes on their way to the device while the request runs.
    pub progress: Arc<AtomicU64>,
    /// What work of the program's on the destination comes first.
    pub after: After,
    /// Is told of bytes as they arrive: of one request, of one range of a plain file to one place. Others tell nobody.
    pub on_arrival: Option<Arc<dyn OnArrival>>,
}

/// Choices for one write.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Who chooses the engine: `cached` and `direct` write.
    pub engine: EngineChoice,
    /// Return only when the data would survive a loss of power (`fdatasync(2)`).
    pub durable: bool,
    /// Allocate what lies beyond the end of the file before anything is written.
    pub preallocate: bool,
    /// Stops the request.
    pub cancel: Cancel,
    /// Counts bytes that were handed to the kernel while the request runs.
    pub progress: Arc<AtomicU64>,
    /// What work of the program's on the source comes first.
    pub after: After,
}

impl Default for WriteOptions {
    fn default() -> Self {
        let (cancel, progress) = (Cancel::default(), Arc::default());
        let after = After::default();
        Self { engine: EngineChoice::Auto, durable: false, preallocate: true, cancel, progress, after }
    }
}

/// What a request begins after.
#[derive(Debug, Clone, Default)]
pub enum After {
    /// What the default streams hold when the request is made, if its memory is foreign.
    #[default]
    DefaultStreams,
    /// This event, which the caller has recorded on a stream of its own.
    Event(Arc<Event>),
    /// Nothing: the caller has waited for whatever used the memory.
    Nothing,
}

/// Work on the bytes of a request that have arrived on the device, while others are still on their way.
pub trait OnArrival: Send + Sync + std::fmt::Debug {
    /// The engines of the request begin; short requests have none. They begin a second time where the first could not go
    /// on, and bring all bytes again: what was done with those of the first must be over when this returns.
    fn begin(&self);

    /// The bytes of `place`, a part of the destination, will be there when `event` is done. Any thread calls this, once
    /// for each byte after each beginning at most: some bytes come by ways that have no events, and are there when the
    /// request ends.
    ///
    /// # Errors
    /// They end the request.
    fn copied(&self, place: DeviceSlice<'_>, event: &Event) -> bifolio_device::Result<()>;
}

/// One extent of a batch: bytes of the file, and where they go in the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadExtent {
    /// First byte, in the file.
    pub offset: u64,
    /// Bytes; what lies beyond the end of the file is not read.
    pub length: u64,
    /// First byte, in the destination.
    pub place: u64,
}

/// What the program said about its accesses, as with `posix_fadvise(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Advice {
    /// Nothing: sequences are detected.
    #[default]
    Normal,
    /// Requests follow each other: reading ahead begins with the first.
    Sequential,
    /// They do not: nothing is read ahead.
    Random,
}
