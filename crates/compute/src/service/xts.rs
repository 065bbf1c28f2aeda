//! AES-XTS over sectors.

use super::{Batch, Data, Entry, Launch, Output, Prepared, STEP_BYTES, Service, Shape};
use crate::cpu;
use crate::kernels::{Kernels, Loaded};
use crate::keyed::SecretMemory;
use crate::{Error, Result};
use bifolio_device::{Device, DeviceSlice};
use bifolio_kernels::aes::{Direction, KeySize};
use bifolio_kernels::aes_xts::{self, IvUnit, Operands, Sectors, TWEAK_BYTES};
use std::sync::Arc;

/// A key and a direction, for sectors of one size.
#[derive(Debug)]
pub struct AesXts {
    name: &'static str,
    cpu: cpu::Xts,
    direction: Direction,
    size: KeySize,
    sector_bytes: u32,
    iv_unit: IvUnit,
    device: Result<(Loaded, SecretMemory), String>,
}

/// The number of a request's first sector, in units of the service's `iv_unit`.
pub type FirstIv = u64;

impl AesXts {
    /// The data key and the tweak key one after the other, 32 or 64 bytes; sectors of 512 to 4096 bytes.
    ///
    /// # Errors
    /// `BadArgument` for a key or a sector that is none, and the device's.
    pub fn new(
        kernels: &Kernels,
        key: &[u8],
        direction: Direction,
        sector_bytes: u32,
        iv_unit: IvUnit,
    ) -> Result<Arc<Self>> {
        let cpu = cpu::Xts::new(key).map_err(|bad| Error::bad(bad.to_string()))?;
        Sectors { bytes: sector_bytes, first_iv: 0, iv_unit }.count(0)?;
        let schedules = aes_xts::schedules(key)?;
        let size = schedules.size();
        let device = kernels.keyed(&aes_xts::AesXts, schedules.bytes())?;
        let name = match (size, direction) {
            (KeySize::Aes128, Direction::Encrypt) => "aes-128-xts-encrypt",
            (KeySize::Aes128, Direction::Decrypt) => "aes-128-xts-decrypt",
            (KeySize::Aes192, _) => return Err(Error::bad("AES-XTS has no keys of 192 bits")),
            (KeySize::Aes256, Direction::Encrypt) => "aes-256-xts-encrypt",
            (KeySize::Aes256, Direction::Decrypt) => "aes-256-xts-decrypt",
        };
        Ok(Arc::new(Self { name, cpu, direction, size, sector_bytes, iv_unit, device }))
    }

    fn sectors(&self, first_iv: u64) -> Sectors {
        Sectors { bytes: self.sector_bytes, first_iv, iv_unit: self.iv_unit }
    }

    /// The number of the sector that begins `bytes` further on.
    fn number_at(&self, first_iv: u64, bytes: u64) -> u64 {
        let unit = match self.iv_unit {
            IvUnit::Bytes512 => 512,
            IvUnit::Sector => u64::from(self.sector_bytes),
        };
        first_iv.wrapping_add(bytes / unit)
    }

    /// The entries as runs of sectors with consecutive numbers in consecutive memory.
    fn runs<'a>(&self, entries: &[Entry<'a, FirstIv>]) -> Vec<(FirstIv, DeviceSlice<'a>, DeviceSlice<'a>)> {
        let mut runs: Vec<(FirstIv, DeviceSlice<'a>, DeviceSlice<'a>)> = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some((first, input, output)) = runs.last_mut()
                && self.number_at(*first, input.len()) == *entry.params
                && input.ptr().offset_by(input.len()) == entry.input.ptr()
                && output.ptr().offset_by(output.len()) == entry.output.ptr()
            {
                // SAFETY: two ranges of one batch that touch are a range of it.
                unsafe {
                    *input = DeviceSlice::from_raw_ordered(input.ptr(), input.len() + entry.input.len());
                    *output = DeviceSlice::from_raw_ordered(output.ptr(), output.len() + entry.output.len());
                }
            } else {
                runs.push((*entry.params, entry.input, entry.output));
            }
        }
        runs
    }

    fn scratch_bytes(&self, run_bytes: u64) -> u64 {
        (run_bytes / u64::from(self.sector_bytes) * TWEAK_BYTES).next_multiple_of(256)
    }
}

impl Service for AesXts {
    type Params = FirstIv;

    fn name(&self) -> &'static str {
        self.name
    }

    fn shape(&self, _first: &FirstIv, input: u64) -> Result<Shape> {
        self.sectors(0).count(input)?;
        Ok(Shape { output: Output::Same, results: 0 })
    }

    fn cut(&self, _first: &FirstIv, at_most: u64) -> u64 {
        at_most / u64::from(self.sector_bytes) * u64::from(self.sector_bytes)
    }

    fn split(&self, first: &FirstIv, at: u64) -> (FirstIv, FirstIv) {
        (*first, self.number_at(*first, at))
    }

    fn refusal(&self) -> Option<String> {
        self.device.as_ref().err().cloned()
    }

    fn sample(&self, about_bytes: u64) -> (FirstIv, Vec<u8>) {
        (7, vec![0x5a; about_bytes.next_multiple_of(u64::from(self.sector_bytes)) as usize])
    }

    fn on_cpu(&self, first: &FirstIv, data: Data<'_>, _results: &mut [u8]) -> Result<()> {
        data.each(STEP_BYTES, |at, part| {
            let first = self.number_at(*first, at as u64);
            self.cpu.run(self.direction, self.sectors(first), part).map_err(Error::from)
        })
    }

    fn prepare(&self, _device: &Device, entries: &[Entry<'_, FirstIv>], _batch: Batch<'_>) -> Result<Prepared> {
        let scratch_bytes = self.runs(entries).iter().map(|(_, input, _)| self.scratch_bytes(input.len())).sum();
        Ok(Prepared { table: vec![], scratch_bytes })
    }

    unsafe fn launch(&self, entries: &[Entry<'_, FirstIv>], launch: &Launch<'_>) -> Result<()> {
        let Ok((loaded, schedules)) = &self.device else { return Err(Error::bad("the kernels are not loaded")) };
        let mut at = 0;
        for (first, src, dst) in self.runs(entries) {
            let tweaks_bytes = self.scratch_bytes(src.len());
            let tweaks = launch.scratch.part(at, tweaks_bytes)?;
            at += tweaks_bytes;
            let operands = Operands { schedules: schedules.slice(), tweaks, src, dst };
            let (module, sectors) = (loaded.module(), self.sectors(first));
            // SAFETY: the caller's promise; module and schedules are this key's.
            unsafe { aes_xts::launch(launch.stream, module, self.direction, self.size, sectors, operands) }?;
        }
        Ok(())
    }
}
