//! The kernels as the `host` device runs them.

use super::launch::{GENERATE, Params, RECOVER, SCRUB};
use super::oracle::{oracle_generate, oracle_recover, oracle_scrub};
use super::stripe::Loss;
use bifolio_device::{DevicePtr, HostLaunch, KernelArg};
use std::slice;

/// The stripes of a launch on the host.
struct HostStripes<'a> {
    base: DevicePtr,
    places: &'a [u64],
    params: Params,
}

impl<'a> HostStripes<'a> {
    /// # Safety
    /// The arguments are those of one of the kernels, with host addresses.
    unsafe fn new(base: DevicePtr, places: DevicePtr, params: &[u8], groups: u32) -> Self {
        let Some(params) = Params::from_bytes(params) else { unreachable!("RAID-6 has 24 bytes of parameters") };
        let stripes = u64::from(groups) / params.geometry.pieces();
        let count = stripes as usize * params.geometry.members() as usize;
        // SAFETY: the caller's promise; the table has a place for each member of each stripe.
        let places = unsafe { slice::from_raw_parts(places.0 as *const u64, count) };
        Self { base, places, params }
    }

    fn stripes(&self) -> impl Iterator<Item = &'a [u64]> {
        self.places.chunks_exact(self.params.geometry.members() as usize)
    }

    fn address(&self, place: u64) -> u64 {
        self.base.offset_by(self.params.members_at + place).0
    }

    /// # Safety
    /// The chunks are host memory that nobody writes as long as the slices live.
    unsafe fn chunks(&self, places: &[u64]) -> Vec<&'a [u8]> {
        let len = self.params.geometry.chunk_bytes as usize;
        // SAFETY: the caller's promise.
        places.iter().map(|place| unsafe { slice::from_raw_parts(self.address(*place) as *const u8, len) }).collect()
    }

    /// # Safety
    /// The chunk is host memory that nobody else uses and no slice covers.
    unsafe fn write(&self, place: u64, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(place) as *mut u8, bytes.len()) };
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn generate_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(base), KernelArg::Buffer(places), KernelArg::Bytes(params)] = launch.args else {
        unreachable!("{GENERATE} has two buffers and one parameter struct");
    };
    // SAFETY: the caller's promise.
    let stripes = unsafe { HostStripes::new(*base, *places, params, launch.groups) };
    for places in stripes.stripes() {
        let (data, parity) = places.split_at(stripes.params.geometry.data as usize);
        // SAFETY: as above; data is read and parity, which overlaps none of it, written.
        unsafe {
            let [p, q] = oracle_generate(&stripes.chunks(data));
            stripes.write(parity[0], &p);
            stripes.write(parity[1], &q);
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn recover_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(base), KernelArg::Buffer(places), KernelArg::Buffer(losses), KernelArg::Bytes(params)] =
        launch.args
    else {
        unreachable!("{RECOVER} has three buffers and one parameter struct");
    };
    // SAFETY: the caller's promise.
    let stripes = unsafe { HostStripes::new(*base, *places, params, launch.groups) };
    for (i, places) in stripes.stripes().enumerate() {
        // SAFETY: as above, of four words for each stripe at a 4-byte boundary.
        let [first, second, ..] = unsafe { *(losses.0 as *const [u32; 4]).add(i) };
        let loss = Loss { first, second };
        // SAFETY: as above; what is lost is written after the others were read.
        unsafe {
            let found = oracle_recover(&stripes.chunks(places), loss);
            for (member, chunk) in loss.members().zip(found) {
                stripes.write(places[member as usize], &chunk);
            }
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn scrub_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(base), KernelArg::Buffer(places), KernelArg::Buffer(verdicts), KernelArg::Bytes(params)] =
        launch.args
    else {
        unreachable!("{SCRUB} has three buffers and one parameter struct");
    };
    // SAFETY: the caller's promise.
    let stripes = unsafe { HostStripes::new(*base, *places, params, launch.groups) };
    // SAFETY: as above, of a word for each group at a 4-byte boundary that nobody else uses.
    let words = unsafe { slice::from_raw_parts_mut(verdicts.0 as *mut u32, launch.groups as usize) };
    for (places, words) in stripes.stripes().zip(words.chunks_exact_mut(stripes.params.geometry.pieces() as usize)) {
        // SAFETY: as above; the members are only read.
        let found = oracle_scrub(&unsafe { stripes.chunks(places) });
        for (word, verdict) in words.iter_mut().zip(found) {
            *word = verdict.to_word();
        }
    }
}
