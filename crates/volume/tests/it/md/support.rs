//! Members in memory, and arrays of them.

use crate::support::Draw;
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, Load, Result};
use std::sync::Arc;

/// A small chunk, so that small members have many stripes.
pub(crate) const CHUNK: u64 = 4096;
/// The data of such small members begins here.
pub(crate) const DATA_OFFSET: usize = 1 << 20;

pub(crate) type Devices = Vec<Arc<FaultyDevice>>;

pub(crate) fn members_of(devices: &[Arc<FaultyDevice>]) -> Vec<Arc<dyn Load>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Load>).collect()
}

/// Empty members with room for so many stripes.
pub(crate) fn blank(count: usize, stripes: u64) -> Devices {
    let len = DATA_OFFSET + (stripes * CHUNK) as usize;
    (0..count).map(|i| Arc::new(FaultyDevice::new(format!("member-{i}"), vec![0; len]))).collect()
}

/// A new array that was closed again.
pub(crate) fn created(rotation: Rotation, count: usize, stripes: u64) -> Devices {
    let devices = blank(count, stripes);
    let options = CreateOptions { name: "test".to_owned(), content: Content::Zeroes, ..CreateOptions::default() };
    Raid6::create(members_of(&devices), CHUNK, rotation, &options).unwrap().close().unwrap();
    devices
}

pub(crate) fn open(devices: &[Arc<FaultyDevice>]) -> Result<Raid6> {
    Raid6::assemble(members_of(devices), true)
}

/// The whole array, over poison.
pub(crate) fn content(array: &Raid6) -> Vec<u8> {
    let mut content = vec![0xa5; array.geometry().size as usize];
    array.read(0, &mut content).unwrap();
    content
}

/// All but some members.
pub(crate) fn without(devices: &[Arc<FaultyDevice>], gone: &[usize]) -> Devices {
    devices.iter().enumerate().filter(|(i, _)| !gone.contains(i)).map(|(_, device)| Arc::clone(device)).collect()
}

pub(crate) fn break_down(device: &FaultyDevice) {
    device.set_faults(Faults { reads_fail: true, writes_fail: true, flushes_fail: true, ..Faults::default() });
}

/// A range inside `size`, short or long, with odd ends.
pub(crate) fn range(draw: &mut Draw, size: u64) -> (u64, u64) {
    let offset = draw.below(size);
    let longest = match draw.below(3) {
        0 => 700,
        1 => 3 * CHUNK,
        _ => size,
    };
    (offset, 1 + draw.below(longest.min(size - offset)))
}
