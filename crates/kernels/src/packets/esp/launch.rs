//! The launch.

use super::ESP;
use super::params::Esp;
use crate::addressing::Addressing;
use crate::aes::{self, KeySize};
use crate::aes_gcm::SCHEDULES_BYTES;
use crate::launch::grid;
use crate::packets::Memory;
use bifolio_device::{DeviceSlice, KernelArg, Module, Result, Stream};

const GROUP_SIZE: u32 = 256;
/// Packets that a group takes.
const TEAMS: u64 = 64;

/// What a launch reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// The batch.
    pub memory: Memory<'a>,
    /// The size of the key.
    pub size: KeySize,
    /// What [`schedules`](crate::aes_gcm::schedules) made of it.
    pub schedules: DeviceSlice<'a>,
}

/// Enqueues the kernel over a batch.
///
/// # Safety
/// `module` is the kernel's on the stream's device; the memory is of that device, stays valid, and is not written by others
/// (the kernel's part of the output: nor read) until the work completes; that part overlaps nothing; `schedules` holds the
/// bytes of [`schedules`](crate::aes_gcm::schedules) for a key of this size.
pub unsafe fn launch(stream: &Stream, module: &Module, esp: &Esp, operands: Operands<'_>) -> Result<()> {
    let Operands { memory, size, schedules } = operands;
    esp.rows.check(memory.input.len(), memory.output.len())?;
    esp.check(memory.output.len())?;
    aes::check_schedules(schedules, SCHEDULES_BYTES)?;
    let count = u64::from(esp.rows.count);
    if count == 0 {
        return Ok(());
    }
    let device = stream.device();
    let (input, input_at) = Addressing::Relative(memory.input).argument(device)?;
    let (output, output_at) = Addressing::Relative(memory.output).argument(device)?;
    let mut esp = *esp;
    esp.rows.input_at += input_at;
    esp.rows.span_at += input_at;
    esp.rows.output_at += output_at;
    esp.part_at += output_at;
    let params = esp.to_bytes(size.rounds());
    let [input, keys, output] = [input, schedules.ptr(), output].map(KernelArg::Buffer);
    let args = [input, keys, output, KernelArg::Bytes(&params)];
    // SAFETY: the arguments are those of the kernel, what the parameters name lies inside of rows and buffers, and the caller
    // vouches for the module and the memory.
    unsafe { stream.launch(module, ESP, grid(count.div_ceil(TEAMS))?, GROUP_SIZE, &args) }
}
