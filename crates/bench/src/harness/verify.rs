//! Device memory beside what it should hold, byte by byte, in chunks: no content is ever in host memory as a whole.

use crate::error::{Error, ErrorKind, Result};
use bifolio_device::{Device, DeviceSlice, PinnedBuffer, Stream};
use bifolio_io::{OpenFile, Router};

/// Bytes looked at at a time: two buffers of it are all the host memory that checking needs.
const CHUNK: u64 = 4 << 20;

/// What device memory holds before a run, so that bytes that it did not write are seen.
const POISON: u8 = 0xa5;

/// Overwrites device memory with a pattern.
pub fn poison(device: &Device, memory: DeviceSlice<'_>) -> Result<()> {
    let stream = device.create_stream()?;
    // SAFETY: the caller's memory stays valid until the synchronisation.
    unsafe { stream.fill(memory, POISON) }.and_then(|()| stream.synchronize())?;
    Ok(())
}

/// What device memory is compared with.
pub trait Content {
    /// What to call it in a sentence.
    fn name(&self) -> String;

    /// Fills the buffer with its bytes from `offset` on, by way of the CPU; how many there are.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
}

/// A file, as a router reads it.
#[derive(Debug, Clone, Copy)]
pub struct FileContent<'a> {
    router: &'a Router,
    file: &'a OpenFile,
}

impl<'a> FileContent<'a> {
    /// What `router` reads of `file`.
    pub fn new(router: &'a Router, file: &'a OpenFile) -> Self {
        Self { router, file }
    }
}

impl Content for FileContent<'_> {
    fn name(&self) -> String {
        self.file.path().display().to_string()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.router.read_to_host(self.file, buffer, offset)?)
    }
}

/// Compares device memory with content in many small places; the buffers are made once.
#[derive(Debug)]
pub struct Checker<C> {
    content: C,
    stream: Stream,
    /// What is in device memory. Pinned, where the device pins memory.
    seen: PinnedBuffer,
    /// What it should be.
    expected: Vec<u8>,
}

impl<'a> Checker<FileContent<'a>> {
    /// For a file; makes the buffers.
    pub fn new(router: &'a Router, file: &'a OpenFile) -> Result<Self> {
        Self::of(router.device(), FileContent::new(router, file))
    }
}

impl<C: Content> Checker<C> {
    /// Makes the buffers.
    pub fn of(device: &Device, content: C) -> Result<Self> {
        let (stream, seen) = (device.create_stream()?, device.alloc_pinned(CHUNK as usize)?);
        Ok(Self { content, stream, seen, expected: vec![0; CHUNK as usize] })
    }

    /// Compares `memory` with the content's bytes from `offset`.
    ///
    /// # Errors
    /// [`ErrorKind::Wrong`] with the first offset at which they differ.
    pub fn compare_all(&mut self, memory: DeviceSlice<'_>, offset: u64) -> Result<()> {
        self.look(memory, |checker, at, len| checker.compare(offset + at, len))
    }

    /// Calls `with` for every chunk of `memory`, which is then [`Self::seen`], with its place and length.
    pub fn look(
        &mut self,
        memory: DeviceSlice<'_>,
        mut with: impl FnMut(&mut Self, u64, usize) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < memory.len() {
            let len = CHUNK.min(memory.len() - at);
            self.stream.download(&mut self.seen.bytes_mut()[..len as usize], memory.part(at, len)?)?;
            with(self, at, len as usize)?;
            at += len;
        }
        Ok(())
    }

    /// The first bytes of the chunk that is looked at.
    pub fn seen(&self, len: usize) -> &[u8] {
        &self.seen.bytes()[..len]
    }

    /// Compares the chunk that is looked at with the content from `offset`.
    pub fn compare(&mut self, offset: u64, len: usize) -> Result<()> {
        let got = self.content.read(&mut self.expected[..len], offset)?;
        let (seen, expected) = (&self.seen.bytes()[..len], &self.expected[..got]);
        if seen == expected {
            return Ok(());
        }
        let same = seen.iter().zip(expected).take_while(|(one, two)| one == two).count();
        let at = offset + same as u64;
        let what = match expected.get(same) {
            Some(byte) => format!("device memory holds {:#04x} where the content has {byte:#04x}", seen[same]),
            None => "the content ends there, and device memory goes on".to_owned(),
        };
        let subject = format!("{}, offset {at}, into {}", self.content.name(), self.stream.device().id());
        Err(Error::new(ErrorKind::Wrong, subject, format!("verification failed: {what}")))
    }
}
