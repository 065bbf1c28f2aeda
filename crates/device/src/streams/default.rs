//! The streams of programs that name none, and the work that they hold on memory of the program's.

use super::event::Event;
use super::stream::Stream;
use crate::{Device, DeviceSlice, Result};

impl Device {
    /// The stream that programs use which name none: on CUDA the legacy default stream, whose work begins after that
    /// of all streams that did not opt out (`cudaStreamNonBlocking`), the default streams of all threads included; on
    /// `host` a queue that stands for it. OpenCL has none (`Unsupported`).
    pub fn default_stream(&self) -> Result<Stream> {
        let raw = self.backend().default_stream().map_err(|error| self.name(error))?;
        Ok(Stream::new(self, raw))
    }

    /// The work that the default streams of this device hold at this moment; none where they are idle, or the device
    /// has none. What the default stream of another device does with this one's memory is not asked for.
    ///
    /// # Errors
    /// `Execution` if the work has failed, `Capturing` while a stream is being recorded into a graph that would draw
    /// the default stream into it.
    pub(crate) fn default_work(&self) -> Result<Option<Event>> {
        let work = self.backend().default_work().map_err(|error| self.name(error))?;
        Ok(work.map(|raw| Event::new(self, raw)))
    }

    /// The work that comes before a request with `memory` that names no stream: what the default streams hold for foreign
    /// memory, none for what is not.
    pub fn work_on(&self, memory: DeviceSlice<'_>) -> Result<Option<Event>> {
        if memory.is_foreign() && !memory.is_empty() { self.default_work() } else { Ok(None) }
    }

    /// Waits for [`Self::work_on`] a range: the same range, which needs no further wait.
    pub fn settle<'a>(&self, memory: DeviceSlice<'a>) -> Result<DeviceSlice<'a>> {
        self.work_on(memory)?.map_or(Ok(()), |work| work.wait())?;
        Ok(memory.ordered())
    }
}
