//! RAID-6 in device memory.

use super::{Cut, Workspace, on_device};
use crate::cpu;
use bifolio_device::{Device, DevicePtr, DeviceSlice, Error, ErrorKind, Module, Result, Stream};
use bifolio_kernels::raid6::{self, Geometry, LOSS_BYTES, Loss};
use bifolio_kernels::{Addressing, KernelStatus, LoadedKernel};

/// The kernels of one device.
#[derive(Debug)]
pub struct DeviceRaid6 {
    pub(super) module: Option<Module>,
    status: KernelStatus,
}

impl DeviceRaid6 {
    /// Loads them.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device) -> Result<Self> {
        let (module, status) = on_device(LoadedKernel::load(&raid6::Raid6, device)?.into_parts());
        Ok(Self { module, status })
    }

    /// Where it is computed, and why.
    pub fn status(&self) -> &KernelStatus {
        &self.status
    }

    /// Writes what each stripe has lost. A stripe's row has the places of its data chunks, of P and of Q, which
    /// [`raid6::encode`] describes; `losses` has an entry for each.
    ///
    /// # Errors
    /// `BadArgument` for what does not pass [`raid6::check`], and the device's.
    ///
    /// # Safety
    /// The memory is of the workspace's device and nobody else uses it until this returns; no two chunks overlap.
    pub unsafe fn recover(
        &self,
        workspace: &mut Workspace,
        geometry: Geometry,
        base: Addressing<'_>,
        stripes: &[Vec<u64>],
        losses: &[Loss],
    ) -> Result<()> {
        raid6::check(stripes, losses, geometry, base)?;
        if stripes.len() != losses.len() {
            let detail = format!("{} losses for {} stripes", losses.len(), stripes.len());
            return Err(Error::new(ErrorKind::BadArgument, detail));
        }
        let Some(module) = &self.module else {
            let pairs = stripes.iter().zip(losses);
            let stream = workspace.stream();
            return pairs.into_iter().try_for_each(|(stripe, loss)| by_cpu(stream, geometry, base, stripe, *loss));
        };
        let (table_bytes, losses_bytes) = (raid6::encode(stripes), raid6::encode_losses(losses, geometry));
        debug_assert_eq!(losses_bytes.len() as u64, losses.len() as u64 * LOSS_BYTES);
        let lens = [table_bytes.len() as u64, losses_bytes.len() as u64];
        let (stream, rest, _) = workspace.parts(Cut::room(&lens))?;
        let mut cut = Cut { rest };
        let (table, lost) = (cut.take(lens[0])?, cut.take(lens[1])?);
        stream.upload(table, &table_bytes)?;
        stream.upload(lost, &losses_bytes)?;
        // SAFETY: the caller's promise; what is computed passed the check, and the work is waited for.
        let launched = unsafe { raid6::recover(stream, module, geometry, base, table, lost) };
        launched.and(stream.synchronize())
    }
}

fn by_cpu(stream: &Stream, geometry: Geometry, base: Addressing<'_>, stripe: &[u64], loss: Loss) -> Result<()> {
    let chunk = |member: usize| match base {
        Addressing::Relative(memory) => memory.part(stripe[member], geometry.chunk_bytes),
        Addressing::Absolute => {
            // SAFETY: `recover`'s caller vouches for the chunks.
            Ok(unsafe { DeviceSlice::from_raw_ordered(DevicePtr(stripe[member]), geometry.chunk_bytes) })
        }
    };
    let mut chunks = vec![vec![0; geometry.chunk_bytes as usize]; stripe.len()];
    let lost: Vec<usize> = loss.members().map(|member| member as usize).collect();
    for member in (0..stripe.len()).filter(|member| !lost.contains(member)) {
        stream.download(&mut chunks[member], chunk(member)?)?;
    }
    let mut views: Vec<&mut [u8]> = chunks.iter_mut().map(Vec::as_mut_slice).collect();
    cpu::pq::recover(&mut views, loss);
    lost.iter().try_for_each(|member| stream.upload(chunk(*member)?, &chunks[*member]))
}
