//! What the checks fill memory with, and how they look at it.

use crate::{AddressRange, Capability, DeviceSlice, ErrorKind, Result, Stream};
use fastrand::Rng;

/// What outputs are filled with before a check, so that an unwritten byte is seen.
pub(super) const POISON: u8 = 0xa5;

/// `len` bytes without a pattern.
pub(super) fn noise(random: &mut Rng, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    random.fill(&mut bytes);
    bytes
}

pub(super) fn poison(stream: &Stream, memory: DeviceSlice<'_>) {
    stream.upload(memory, &vec![POISON; memory.len() as usize]).unwrap();
}

pub(super) fn download(stream: &Stream, memory: DeviceSlice<'_>) -> Vec<u8> {
    let mut bytes = vec![!POISON; memory.len() as usize];
    stream.download(&mut bytes, memory).unwrap();
    bytes
}

/// Runs `check` where the device has `capability`; otherwise shows that `refused` is refused.
pub(super) fn where_capable<T: std::fmt::Debug>(
    capability: &Capability,
    refused: impl FnOnce() -> Result<T>,
    check: impl FnOnce(),
) {
    match capability.reason() {
        None => check(),
        Some(reason) => {
            println!("  not on this device: {reason}");
            assert_eq!(refused().unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}

/// A range whose mapped frames alone are used by the checks.
pub(super) fn all_of(range: &AddressRange) -> DeviceSlice<'_> {
    // SAFETY: the checks below take the parts in which they have mapped frames.
    unsafe { range.slice() }
}
