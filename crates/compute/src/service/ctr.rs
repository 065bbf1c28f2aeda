//! AES-CTR: a key stream over a stream of bytes.

use super::{Batch, Data, Entry, Launch, Output, Prepared, STEP_BYTES, Service, Shape, offset_in};
use crate::cpu;
use crate::kernels::{Kernels, Loaded};
use crate::keyed::SecretMemory;
use crate::{Error, Result};
use bifolio_device::Device;
use bifolio_kernels::Addressing;
use bifolio_kernels::aes::KeySize;
use bifolio_kernels::aes_ctr::{self, Extent};
use std::sync::Arc;

/// A key; both directions are the same.
#[derive(Debug)]
pub struct AesCtr {
    cpu: cpu::Ctr,
    size: KeySize,
    device: Result<(Loaded, SecretMemory), String>,
}

/// The counter of a request's first block, the most significant byte first.
pub type Counter = [u8; 16];

impl AesCtr {
    /// 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// `BadArgument` for a key that is none, and the device's.
    pub fn new(kernels: &Kernels, key: &[u8]) -> Result<Arc<Self>> {
        let cpu = cpu::Ctr::new(key).map_err(|bad| Error::bad(bad.to_string()))?;
        let schedules = aes_ctr::schedules(key)?;
        let device = kernels.keyed(&aes_ctr::AesCtr, schedules.bytes())?;
        Ok(Arc::new(Self { cpu, size: schedules.size(), device }))
    }
}

fn counter_at(first: &Counter, bytes: u64) -> Counter {
    u128::from_be_bytes(*first).wrapping_add(u128::from(bytes / 16)).to_be_bytes()
}

impl Service for AesCtr {
    type Params = Counter;

    fn name(&self) -> &'static str {
        match self.size {
            KeySize::Aes128 => "aes-128-ctr",
            KeySize::Aes192 => "aes-192-ctr",
            KeySize::Aes256 => "aes-256-ctr",
        }
    }

    fn shape(&self, _first: &Counter, _input: u64) -> Result<Shape> {
        Ok(Shape { output: Output::Same, results: 0 })
    }

    fn cut(&self, _first: &Counter, at_most: u64) -> u64 {
        at_most / 16 * 16
    }

    fn split(&self, first: &Counter, at: u64) -> (Counter, Counter) {
        (*first, counter_at(first, at))
    }

    fn refusal(&self) -> Option<String> {
        self.device.as_ref().err().cloned()
    }

    fn sample(&self, about_bytes: u64) -> (Counter, Vec<u8>) {
        ([7; 16], vec![0x5a; about_bytes as usize])
    }

    fn on_cpu(&self, first: &Counter, data: Data<'_>, _results: &mut [u8]) -> Result<()> {
        data.each(STEP_BYTES, |at, part| {
            self.cpu.apply(&counter_at(first, at as u64), part);
            Ok(())
        })
    }

    fn prepare(&self, _device: &Device, entries: &[Entry<'_, Counter>], batch: Batch<'_>) -> Result<Prepared> {
        let pieces = |entry: &Entry<'_, Counter>| {
            let (src, dst) = (offset_in(batch.inputs, entry.input), offset_in(batch.outputs, entry.output));
            aes_ctr::extents(Extent::new(src, dst, entry.input.len(), *entry.params))
        };
        let pieces: Vec<Extent> = entries.iter().flat_map(pieces).collect();
        Ok(Prepared { table: aes_ctr::encode(&pieces), scratch_bytes: 0 })
    }

    unsafe fn launch(&self, _entries: &[Entry<'_, Counter>], launch: &Launch<'_>) -> Result<()> {
        let Ok((loaded, schedules)) = &self.device else { return Err(Error::bad("the kernels are not loaded")) };
        let Batch { inputs, outputs } = launch.batch;
        let operands = aes_ctr::Operands { src: Addressing::Relative(inputs), dst: Addressing::Relative(outputs) };
        let (module, schedules) = (loaded.module(), schedules.slice());
        // SAFETY: the caller's promise; module and schedules are this key's, and the table this batch's.
        unsafe { aes_ctr::launch(launch.stream, module, self.size, schedules, operands, launch.table) }?;
        Ok(())
    }
}
