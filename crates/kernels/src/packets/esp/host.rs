//! The kernel as the `host` device runs it.

use super::oracle::oracle;
use super::params::Esp;
use crate::aes::{self, KeySize, SCHEDULE_BYTES};
use crate::packets::PacketRows;
use bifolio_device::{DevicePtr, HostLaunch, KernelArg};
use std::slice;

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(input), KernelArg::Buffer(keys), KernelArg::Buffer(output), KernelArg::Bytes(params)] =
        launch.args
    else {
        unreachable!("esp has three buffers and one parameter struct");
    };
    let Some((esp, rounds)) = Esp::from_bytes(params) else { unreachable!("the parameters are its own") };
    // SAFETY: the caller passes the host address of a schedule.
    let schedule = unsafe { slice::from_raw_parts(keys.0 as *const u8, SCHEDULE_BYTES) };
    let key = aes::key_of_schedule(schedule, KeySize::of_rounds(rounds));
    // SAFETY: the caller's promise.
    unsafe { run(&esp, &key, *input, *output) };
}

/// # Safety
/// The buffers are addresses of a batch's input and output.
unsafe fn run(esp: &Esp, key: &[u8], input: DevicePtr, output: DevicePtr) {
    // All lie in one allocation, perhaps: each is copied, so that there are no slices of it but these.
    let copy = |at: DevicePtr, len: u64| {
        // SAFETY: the caller passes host addresses of buffers that have these bytes, which nobody writes meanwhile.
        if len == 0 { Vec::new() } else { unsafe { slice::from_raw_parts(at.0 as *const u8, len as usize) }.to_vec() }
    };
    let rows = &esp.rows;
    let mut bytes = copy(input.offset_by(rows.input_at), rows.input_bytes());
    let span_at = bytes.len() as u64;
    bytes.extend(copy(input.offset_by(rows.span_at), rows.span_bytes));
    let mut out = copy(output.offset_by(rows.output_at), rows.output_bytes());
    let part_at = out.len() as u64;
    let part_bytes = Esp::part_bytes(rows.count.into(), rows.span_bytes);
    let part = output.offset_by(esp.part_at);
    out.extend(copy(part, part_bytes));
    let copied = Esp { rows: PacketRows { input_at: 0, span_at, output_at: 0, ..*rows }, part_at, ..*esp };
    oracle(&copied, key, &bytes, &mut out);
    if part_bytes > 0 {
        // SAFETY: as above, and nobody else uses this part of the output.
        unsafe { slice::from_raw_parts_mut(part.0 as *mut u8, part_bytes as usize) }
            .copy_from_slice(&out[part_at as usize..]);
    }
}
