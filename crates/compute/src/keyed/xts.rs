//! AES-XTS in device memory.

use super::{SecretMemory, Workspace, on_device, through_host};
use crate::cpu;
use bifolio_device::{Device, DeviceSlice, Error, ErrorKind, Module, Result};
use bifolio_kernels::aes::{Direction, KeySize};
use bifolio_kernels::aes_xts::{self, Operands, Sectors, TWEAK_BYTES};
use bifolio_kernels::{KernelStatus, LoadedKernel};

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
        let (module, status) = on_device(LoadedKernel::load(&aes_xts::AesXts, device)?.into_parts());
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
    /// Both are memory of the workspace's device, which is the key's, and nobody else uses them until this returns; `dst`
    /// is `src` or overlaps it nowhere.
    pub unsafe fn run(
        &self,
        workspace: &mut Workspace,
        direction: Direction,
        sectors: Sectors,
        (src, dst): (DeviceSlice<'_>, DeviceSlice<'_>),
    ) -> Result<()> {
        // SAFETY: the caller's promise; the work is waited for.
        let enqueued = unsafe { self.enqueue(workspace, direction, sectors, (src, dst)) };
        enqueued.and(workspace.stream.synchronize())
    }

    /// The same as work of the workspace's stream, which is not waited for where kernels do it.
    ///
    /// # Errors
    /// As for [`DeviceXts::run`].
    ///
    /// # Safety
    /// As for [`DeviceXts::run`], until the stream has done the work; the workspace and the key are there until then.
    pub unsafe fn enqueue(
        &self,
        workspace: &mut Workspace,
        direction: Direction,
        sectors: Sectors,
        (src, dst): (DeviceSlice<'_>, DeviceSlice<'_>),
    ) -> Result<()> {
        let tweaks_bytes = sectors.count(src.len())? * TWEAK_BYTES;
        let Some(module) = &self.module else {
            return through_host(&workspace.stream, src, dst, |at, bytes| {
                self.cpu.run(direction, sectors.behind(at), bytes)
            });
        };
        let (stream, scratch, _) = workspace.parts(tweaks_bytes)?;
        let tweaks = scratch.part(0, tweaks_bytes)?;
        let operands = Operands { schedules: self.schedules.slice(), tweaks, src, dst };
        // SAFETY: the caller's promise; the module and the schedules are this key's, and the scratch is the stream's.
        unsafe { aes_xts::launch(stream, module, direction, self.size, sectors, operands) }
    }

    /// Scratch of a workspace that so many bytes of sectors take.
    pub fn scratch_bytes(sectors: Sectors, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(sectors.bytes)) * TWEAK_BYTES
    }

    /// Whether kernels do the work, so that [`DeviceXts::enqueue`] returns before it is done.
    pub fn is_on_device(&self) -> bool {
        self.module.is_some()
    }
}
