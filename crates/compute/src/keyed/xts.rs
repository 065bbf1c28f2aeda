//! AES-XTS in device memory.

use super::{Lane, SecretMemory, on_device, through_host};
use crate::cpu;
use bifolio_device::{Device, DeviceSlice, Error, ErrorKind, Module, Result, Stream};
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
        if self.module.is_none() {
            return through_host(&lane.stream, src, dst, |at, bytes| {
                self.cpu.run(direction, sectors.behind(at), bytes)
            });
        }
        let (stream, scratch, _) = lane.parts(tweaks_bytes)?;
        // SAFETY: the caller's promise; the work is waited for.
        let launched = unsafe { self.enqueue(stream, scratch, direction, sectors, (src, dst)) };
        launched.and(stream.synchronize())
    }

    /// Whether [`DeviceXts::enqueue`] can be used: the kernels work on the device.
    pub fn is_on_device(&self) -> bool {
        self.module.is_some()
    }

    /// The same as work of a stream, which is not waited for. `tweaks` is scratch of [`TWEAK_BYTES`] for each sector,
    /// and secret afterwards.
    ///
    /// # Errors
    /// As [`DeviceXts::run`], and `Unsupported` where the kernels do not work on the device.
    ///
    /// # Safety
    /// As for [`DeviceXts::run`], until the work completes; the scratch overlaps nothing else, and earlier work with it
    /// is in the same stream.
    pub unsafe fn enqueue(
        &self,
        stream: &Stream,
        tweaks: DeviceSlice<'_>,
        direction: Direction,
        sectors: Sectors,
        (src, dst): (DeviceSlice<'_>, DeviceSlice<'_>),
    ) -> Result<()> {
        let Some(module) = &self.module else {
            return Err(Error::new(ErrorKind::Unsupported, "the kernels of AES-XTS do not work on this device"));
        };
        let tweaks = tweaks.part(0, sectors.count(src.len())? * TWEAK_BYTES)?;
        let operands = Operands { schedules: self.schedules.slice(), tweaks, src, dst };
        // SAFETY: the caller's promise; the module and the schedules are this key's.
        unsafe { aes_xts::launch(stream, module, direction, self.size, sectors, operands) }
    }
}
