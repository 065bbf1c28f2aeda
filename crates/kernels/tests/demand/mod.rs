//! A kernel that uses the header of demand mode, and what it computes, in Rust.

use bifolio_device::{HostLaunch, KernelArg, ModuleSource};
use bifolio_kernels::demand::{HEADER, Table};

pub(crate) const KERNEL: &str = "demand_probe";

pub(crate) const PROBE: ModuleSource = ModuleSource {
    name: KERNEL,
    source: include_str!("probe.cl"),
    headers: &[HEADER],
    kernels: &[(KERNEL, run_on_host)],
};

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn run_on_host(launch: &HostLaunch<'_>) {
    let [
        KernelArg::Buffer(table),
        KernelArg::Buffer(file),
        KernelArg::Buffer(questions),
        KernelArg::Buffer(sums),
        KernelArg::Bytes(params),
    ] = launch.args
    else {
        unreachable!("the probe has four buffers and one parameter struct");
    };
    let [per_item, goes_on] = [0, 4].map(|at| params[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)));
    // SAFETY: the test launches it with a table and the file that it is about.
    let table = unsafe { Table::at(*table, *file) };
    for (slot, &item) in table.items().iter().enumerate() {
        let (mut sum, mut missed) = (0_u64, false);
        for number in 0..per_item as usize {
            let at = (item as usize * per_item as usize + number) * 2;
            // SAFETY: every item has its questions.
            let (offset, length) = unsafe {
                let place = (questions.0 as *const u64).add(at);
                (place.read(), place.add(1).read())
            };
            match table.get(offset, length) {
                Some(bytes) => {
                    sum = bytes.iter().fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                }
                None => missed = true,
            }
            if missed && goes_on == 0 {
                break;
            }
        }
        if !missed {
            // SAFETY: every item has a sum.
            unsafe { (sums.0 as *mut u64).add(item as usize).write(sum) };
            table.finish(slot);
        }
    }
}
