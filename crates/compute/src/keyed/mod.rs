//! Services on one device, with keys in its memory: for those who have data there and want it decrypted,
//! verified or recovered in place.
//!
//! Calls wait for their work, but for those that say that they enqueue it; callers that want several at a time have a
//! [`Workspace`] for each. Where a kernel does not work on the device (see [`bifolio_kernels::LoadedKernel`]), and on
//! `host`, which has none, the data takes the way through the caches of the CPU and back, by the CPU paths, and
//! `status` says so.

mod gcm;
mod per_device;
mod raid6;
#[cfg(test)]
mod tests;
mod xts;

pub use gcm::{DeviceGcm, Operands as GcmOperands};
pub use per_device::PerDevice;
pub use raid6::DeviceRaid6;
pub use xts::DeviceXts;

use bifolio_device::fork::Birth;
use bifolio_device::{Allocation, Device, DeviceSlice, Module, Result, Stream};
use bifolio_kernels::{KernelPath, KernelStatus};
use std::mem::ManuallyDrop;
use zeroize::Zeroizing;

/// Device memory with secrets, which is cleared before it is freed.
#[derive(Debug)]
pub struct SecretMemory {
    memory: ManuallyDrop<Allocation>,
    birth: Birth,
}

impl SecretMemory {
    /// Memory with whatever is in it.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device, len: u64) -> Result<Self> {
        Ok(Self { memory: ManuallyDrop::new(device.alloc(len)?), birth: Birth::here() })
    }

    /// A copy of `bytes`.
    pub(crate) fn of(stream: &Stream, bytes: &[u8]) -> Result<Self> {
        let memory = Self::new(stream.device(), bytes.len() as u64)?;
        stream.upload(memory.slice(), bytes)?;
        Ok(memory)
    }

    /// All of it.
    pub fn slice(&self) -> DeviceSlice<'_> {
        self.memory.slice()
    }
}

impl Drop for SecretMemory {
    fn drop(&mut self) {
        // A child's copy is not its own. Of a context that is gone, memory and address may be somebody else's.
        if self.birth.was_elsewhere() || !self.memory.device().is_alive() {
            return;
        }
        // A device that fails here is lost, and its memory with it.
        let _ = wipe(self.memory.slice(), self.memory.device());
        // SAFETY: nobody uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// Clears memory of a device that nobody uses.
fn wipe(memory: DeviceSlice<'_>, device: &Device) -> Result<()> {
    let stream = device.create_stream()?;
    // SAFETY: nobody else uses it until the fill is waited for.
    unsafe { stream.fill(memory, 0) }?;
    stream.synchronize()
}

/// A stream with memory for what goes along with the data: tweaks, tables and flags. One call at a time uses it.
#[derive(Debug)]
pub struct Workspace {
    stream: Stream,
    scratch: Option<SecretMemory>,
    table: Vec<u8>,
}

impl Workspace {
    /// A workspace of a device.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { stream: device.create_stream()?, scratch: None, table: Vec::new() })
    }

    /// Its stream, in which all work is done when a call returns that waits.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes scratch of so many bytes now, rather than when the first work wants it.
    ///
    /// # Errors
    /// The device's.
    pub fn reserve(&mut self, scratch_bytes: u64) -> Result<()> {
        self.parts(scratch_bytes).map(drop)
    }

    /// The stream, scratch of at least so many bytes, and a vector for a table.
    fn parts(&mut self, scratch_bytes: u64) -> Result<(&Stream, DeviceSlice<'_>, &mut Vec<u8>)> {
        if self.scratch.as_ref().is_none_or(|scratch| scratch.slice().len() < scratch_bytes) {
            // What is too small goes first, when nothing uses it any more.
            self.stream.synchronize()?;
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

/// Bytes that the CPU changes at a time: what stays in a core's cache on the way there and back.
const BOUNCE_BYTES: usize = 128 << 10;

/// Changes device memory by the CPU, piece by piece; `change` gets a piece and where it begins.
fn through_host(
    stream: &Stream,
    src: DeviceSlice<'_>,
    dst: DeviceSlice<'_>,
    mut change: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut bounce = Zeroizing::new(vec![0; BOUNCE_BYTES.min(src.len() as usize)]);
    for at in (0..src.len()).step_by(BOUNCE_BYTES) {
        let len = (src.len() - at).min(BOUNCE_BYTES as u64);
        let bytes = &mut bounce[..len as usize];
        stream.download(bytes, src.part(at, len)?)?;
        change(at, bytes)?;
        stream.upload(dst.part(at, len)?, bytes)?;
    }
    Ok(())
}

/// The module, where it is the device that runs its kernels.
fn on_device((module, status): (Option<Module>, KernelStatus)) -> (Option<Module>, KernelStatus) {
    (module.filter(|_| status.path == KernelPath::Device), status)
}
