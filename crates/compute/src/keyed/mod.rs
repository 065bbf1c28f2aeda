//! Services on one device, with keys in its memory: for those who have data there and want it decrypted,
//! verified or recovered in place.
//!
//! Every call waits for its work; callers that want several at a time have a [`Lane`] for each. Where a
//! kernel does not work on the device (see [`bifolio_kernels::Service::load`]) the data takes the way
//! through host memory and back, by the CPU paths, and `status` says so.

mod gcm;
mod raid6;
#[cfg(test)]
mod tests;
mod xts;

pub use gcm::DeviceGcm;
pub use raid6::DeviceRaid6;
pub use xts::DeviceXts;

use bifolio_device::{Allocation, Device, DeviceSlice, Result, Stream};
use zeroize::Zeroizing;

/// Device memory with secrets, which is cleared before it is freed.
#[derive(Debug)]
pub(crate) struct SecretMemory(Allocation);

impl SecretMemory {
    pub(crate) fn new(device: &Device, len: u64) -> Result<Self> {
        Ok(Self(device.alloc(len)?))
    }

    /// A copy of `bytes`.
    pub(crate) fn of(stream: &Stream, bytes: &[u8]) -> Result<Self> {
        let memory = Self::new(stream.device(), bytes.len() as u64)?;
        stream.upload(memory.slice(), bytes)?;
        Ok(memory)
    }

    pub(crate) fn slice(&self) -> DeviceSlice<'_> {
        self.0.slice()
    }
}

impl Drop for SecretMemory {
    fn drop(&mut self) {
        // A device that fails here is lost, and its memory with it.
        let _ = self.0.device().create_stream().and_then(|stream| {
            // SAFETY: the memory is this one's until the fill is waited for.
            unsafe { stream.fill(self.0.slice(), 0) }?;
            stream.synchronize()
        });
    }
}

/// A stream with memory for what goes along with the data: tweaks, tables and flags. One call at a time uses it.
#[derive(Debug)]
pub struct Lane {
    stream: Stream,
    scratch: Option<SecretMemory>,
    table: Vec<u8>,
}

impl Lane {
    /// A lane of a device.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { stream: device.create_stream()?, scratch: None, table: Vec::new() })
    }

    /// Its stream, in which all work is done when a call returns.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The stream, scratch of at least so many bytes, and a vector for a table.
    fn parts(&mut self, scratch_bytes: u64) -> Result<(&Stream, DeviceSlice<'_>, &mut Vec<u8>)> {
        if self.scratch.as_ref().is_none_or(|scratch| scratch.slice().len() < scratch_bytes) {
            // What is too small goes first.
            self.scratch = None;
            let room = scratch_bytes.max(64 << 10).next_power_of_two();
            self.scratch = Some(SecretMemory::new(self.stream.device(), room)?);
        }
        let scratch = self.scratch.as_ref().expect("just made").slice();
        Ok((&self.stream, scratch, &mut self.table))
    }
}

/// One range after the other in a scratch, each at a boundary of 256 bytes, where kernels on every device find it.
struct Cut<'a> {
    rest: DeviceSlice<'a>,
}

impl<'a> Cut<'a> {
    const BOUNDARY: u64 = 256;

    fn room(lens: &[u64]) -> u64 {
        lens.iter().map(|len| len.next_multiple_of(Self::BOUNDARY)).sum()
    }

    fn take(&mut self, len: u64) -> Result<DeviceSlice<'a>> {
        let taken = self.rest.part(0, len)?;
        let whole = len.next_multiple_of(Self::BOUNDARY);
        self.rest = self.rest.part(whole, self.rest.len() - whole)?;
        Ok(taken)
    }
}

/// Changes device memory by the CPU.
fn through_host(
    stream: &Stream,
    src: DeviceSlice<'_>,
    dst: DeviceSlice<'_>,
    change: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut bytes = Zeroizing::new(vec![0; src.len() as usize]);
    stream.download(&mut bytes, src)?;
    change(&mut bytes)?;
    stream.upload(dst, &bytes)
}
