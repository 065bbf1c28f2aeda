//! What comes before a request: work of the program's that may still use its device memory.
//!
//! A request that names no stream begins after what the program's default streams hold, as `cudaMemcpy` does. A fill
//! that was enqueued there before a read would otherwise land on what was read, and a write would take what was there
//! before a kernel. Only foreign memory is asked about ([`DeviceSlice::is_foreign`]); of its own the caller knows.
//!
//! Short reads need no question: their one copy is enqueued on the default stream itself. Longer ones and writes ask
//! once, before their engines start on streams of their own. A request that is carried out later remembers an event
//! of the moment at which it was submitted; waiting for what came after could wait for itself.
//!
//! Where a stream holds work for long, the wait looks at the request's cancellation now and then; that of a short read
//! on the default stream does not.

use super::Router;
use crate::engine::streams::LentStream;
use crate::options::After;
use crate::{Error, ErrorKind, Result};
use bifolio_device::Cancel;
use bifolio_device::{DeviceSlice, Event, Stream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How a short read gets into device memory: on the default stream, behind whatever it holds, where nobody else is
/// about to copy there, as each would wait for the others' copies; else on a stream of the router's.
pub(super) struct Way<'a> {
    stream: Chosen<'a>,
    has_failed: bool,
    _short: Short<'a>,
}

enum Chosen<'a> {
    Default(&'a Stream),
    Own(LentStream),
}

impl Way<'_> {
    /// Copies `bytes` to `place`, which has their length, and waits for it.
    pub(super) fn copy(mut self, place: DeviceSlice<'_>, bytes: &[u8]) -> bifolio_device::Result<()> {
        assert_eq!(place.len(), bytes.len() as u64, "a fill has all of its range");
        let stream = match &self.stream {
            Chosen::Default(stream) => stream,
            Chosen::Own(stream) => &**stream,
        };
        // SAFETY: the bytes are borrowed beyond the call, which waits for the copy.
        let copied = unsafe { stream.copy_to_device_and_wait(place, bytes.as_ptr()) };
        self.has_failed = copied.is_err();
        copied
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        if let Chosen::Own(stream) = &self.stream
            && !self.has_failed
        {
            stream.declare_clean();
        }
    }
}

/// A short read among those that run.
struct Short<'a>(&'a AtomicUsize);

impl<'a> Short<'a> {
    fn begin(running: &'a AtomicUsize) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Self(running)
    }
}

impl Drop for Short<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// So long a wait polls without a pause.
const POLL_TIME: Duration = Duration::from_micros(30);
/// Pauses between two looks, which grow with the time waited: the end is met a little late, and the processor is free.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_micros(500);

impl Router {
    /// Waits for what comes before a request with `memory`: the memory, which needs no further wait.
    pub(crate) fn settle<'a>(
        &self,
        path: &Path,
        after: &After,
        cancel: &Cancel,
        memory: DeviceSlice<'a>,
    ) -> Result<DeviceSlice<'a>> {
        match after {
            After::Nothing => {}
            After::Event(event) => self.wait_for(path, event, cancel)?,
            After::DefaultStreams => {
                if let Some(work) = self.device.work_on(memory).map_err(|error| Error::device(path, error))? {
                    self.wait_for(path, &work, cancel)?;
                }
            }
        }
        Ok(memory.ordered())
    }

    /// What comes before a request with `memory` that is made now and carried out later.
    pub(super) fn remembered(&self, path: &Path, after: &After, memory: DeviceSlice<'_>) -> Result<After> {
        let After::DefaultStreams = after else { return Ok(after.clone()) };
        // A child of the process must not ask the driver, and its request is refused anyway.
        if self.birth.was_elsewhere() {
            return Ok(After::Nothing);
        }
        let work = self.device.work_on(memory).map_err(|error| Error::device(path, error))?;
        Ok(work.map_or(After::Nothing, |work| After::Event(Arc::new(work))))
    }

    /// The way into `memory` for the one copy of a short read. It may wait, so whoever holds a slot or a window that
    /// others want asks before.
    pub(super) fn way_for<'a>(
        &'a self,
        path: &Path,
        after: &After,
        cancel: &Cancel,
        memory: DeviceSlice<'_>,
    ) -> Result<Way<'a>> {
        let short = Short::begin(&self.shorts);
        let is_alone = self.shorts.load(Ordering::Relaxed) == 1;
        if memory.is_foreign() && matches!(after, After::DefaultStreams) && is_alone {
            let stream = self.default_stream.get_or_init(|| self.device.default_stream().ok());
            if let Some(stream) = stream {
                return Ok(Way { stream: Chosen::Default(stream), has_failed: false, _short: short });
            }
        }
        self.settle(path, after, cancel, memory)?;
        let stream = self.streams.take().map_err(|error| Error::device(path, error))?;
        Ok(Way { stream: Chosen::Own(stream), has_failed: false, _short: short })
    }

    pub(super) fn wait_for(&self, path: &Path, work: &Event, cancel: &Cancel) -> Result<()> {
        let started = Instant::now();
        loop {
            if work.query().map_err(|error| Error::device(path, error))? {
                return Ok(());
            }
            if self.cancel.is_cancelled() || cancel.is_cancelled() {
                let detail = "cancelled before the stream reached the request; no byte has moved";
                return Err(Error::new(ErrorKind::Cancelled, path, detail));
            }
            match started.elapsed() {
                waited if waited < POLL_TIME => std::hint::spin_loop(),
                waited => std::thread::sleep((waited / 8).clamp(PAUSE_MIN, PAUSE_MAX)),
            }
        }
    }
}
