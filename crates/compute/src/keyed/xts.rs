//! AES-XTS in device memory.

use super::{Lane, SecretMemory, on_device, through_host};
use crate::cpu;
use bifolio_device::{Device, DeviceSlice, Error, ErrorKind, Module, Result};
use bifolio_kernels::aes::{Direction, KeySize};
use bifolio_kernels::aes_xts::{self, Operands, Sectors, TWEAK_BYTES};
use bifolio_kernels::{KernelStatus, Service};

/// A key on a device.
#[derive(Debug)]
pub struct DeviceXts {
    pub(super) module: Option<Module>,
    status: KernelStatus,
    schedules: SecretMemory,
    size: KeySize,
    cpu: cpu::Xts,
}

impl DeviceXts {
    /// Puts a key into the memory of a device: 32 or 64 bytes, as [`cpu::Xts::new`].
    ///
    /// # Errors
    /// `BadArgument` for a key that is none, and the device's.
    pub fn new(device: &Device, key: &[u8]) -> Result<Self> {
        let cpu = cpu::Xts::new(key).map_err(|bad| Error::new(ErrorKind::BadArgument, bad.to_string()))?;
        let schedules = aes_xts::schedules(key)?;
        let (module, status) = on_device(Service::AesXts.load(device)?);
        let memory = SecretMemory::of(&device.create_stream()?, schedules.bytes())?;
        Ok(Self { module, status, schedules: memory, size: schedules.size(), cpu })
    }

    /// Where it is computed, and why.
    pub fn status(&self) -> &KernelStatus {
        &self.status
    }

    /// Encrypts or decrypts whole sectors, from `src` to `dst`, which is the same memory or apart. Both begin at a
    /// 16-byte boundary.
    ///
    /// # Errors
    /// `BadArgument` for what are no sectors, and the device's. After an error the destination's content is of no use.
    ///
    /// # Safety
    /// Both are memory of the lane's device, which is the key's, and nobody else uses them until this returns; `dst`
    /// is `src` or overlaps it nowhere.
    pub unsafe fn run(
        &self,
        lane: &mut Lane,
        direction: Direction,
        sectors: Sectors,
        (src, dst): (DeviceSlice<'_>, DeviceSlice<'_>),
    ) -> Result<()> {
        let tweaks_bytes = sectors.count(src.len())? * TWEAK_BYTES;
        let Some(module) = &self.module else {
            return through_host(&lane.stream, src, dst, |at, bytes| {
                self.cpu.run(direction, sectors.behind(at), bytes)
            });
        };
        let (stream, scratch, _) = lane.parts(tweaks_bytes)?;
        let tweaks = scratch.part(0, tweaks_bytes)?;
        let operands = Operands { schedules: self.schedules.slice(), tweaks, src, dst };
        // SAFETY: the caller's promise; the module and the schedules are this key's, and the work is waited for.
        let launched = unsafe { aes_xts::launch(stream, module, direction, self.size, sectors, operands) };
        launched.and(stream.synchronize())
    }
}
