//! The launches, and the parameters that they carry.

use super::stripe::{DATA_MAX, Geometry, LOSS_BYTES};
use crate::addressing::{self, Addressing};
use crate::launch::{bad, grid, is_aligned};
use bifolio_device::{DeviceSlice, KernelArg, Module, Result, Stream};

/// The kernel that computes P and Q.
pub(super) const GENERATE: &str = "raid6_generate";
/// The kernel that recovers lost members.
pub(super) const RECOVER: &str = "raid6_recover";
/// The kernel that looks for wrong members.
pub(super) const SCRUB: &str = "raid6_scrub";

const GROUP_SIZE: u32 = 256;

/// Enqueues writing P and Q of the stripes in `table`, see [`super::encode`], at an 8-byte boundary.
///
/// # Safety
/// `module` is that of [`super::Raid6`] on the stream's device; the memory is of that device, stays valid and is
/// not used by others until the work completes; the table passes [`super::check`], and no two chunks that
/// it names overlap.
pub unsafe fn generate(
    stream: &Stream,
    module: &Module,
    geometry: Geometry,
    base: Addressing<'_>,
    table: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, GENERATE, geometry, base, table, None) }
}

/// Enqueues writing what the stripes of `table` have lost; `losses`, see [`super::encode_losses`], has an
/// entry for each at a 4-byte boundary.
///
/// # Safety
/// As for [`generate`]; the losses pass [`super::check`].
pub unsafe fn recover(
    stream: &Stream,
    module: &Module,
    geometry: Geometry,
    base: Addressing<'_>,
    table: DeviceSlice<'_>,
    losses: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, RECOVER, geometry, base, table, Some((losses, LOSS_BYTES))) }
}

/// Enqueues a scrub of the stripes of `table`; `verdicts` gets a u32 for each of their pieces at a
/// 4-byte boundary, see [`super::decode_verdicts`].
///
/// # Safety
/// As for [`generate`]; the members are only read.
pub unsafe fn scrub(
    stream: &Stream,
    module: &Module,
    geometry: Geometry,
    base: Addressing<'_>,
    table: DeviceSlice<'_>,
    verdicts: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, SCRUB, geometry, base, table, Some((verdicts, 4 * geometry.pieces()))) }
}

/// # Safety
/// As for the three faces; `third` has so many bytes for each stripe.
unsafe fn launch(
    stream: &Stream,
    module: &Module,
    kernel: &str,
    geometry: Geometry,
    base: Addressing<'_>,
    table: DeviceSlice<'_>,
    third: Option<(DeviceSlice<'_>, u64)>,
) -> Result<()> {
    let stripes = stripes(geometry, table)?;
    if let Some((range, bytes)) = third
        && (range.len() < stripes * bytes || !is_aligned(range, 4))
    {
        return Err(bad(format!(
            "{kernel} of {stripes} stripes needs {} bytes at a 4-byte boundary, got {} at {}",
            stripes * bytes,
            range.len(),
            range.ptr()
        )));
    }
    let groups = grid(stripes * geometry.pieces())?;
    if groups == 0 {
        return Ok(());
    }
    let (base, members_at) = base.argument(stream.device())?;
    let params = Params { members_at, geometry }.to_bytes();
    let mut args = vec![KernelArg::Buffer(base), KernelArg::Buffer(table.ptr())];
    args.extend(third.map(|(range, _)| KernelArg::Buffer(range.ptr())));
    args.push(KernelArg::Bytes(&params));
    // SAFETY: the arguments are those of the kernels, with room for every group, and the caller
    // vouches for the module, the memory and the tables.
    unsafe { stream.launch(module, kernel, groups, GROUP_SIZE, &args) }
}

/// The number of stripes in a table, or what is wrong with it.
fn stripes(geometry: Geometry, table: DeviceSlice<'_>) -> Result<u64> {
    let Geometry { data, chunk_bytes } = geometry;
    if !(1..=DATA_MAX).contains(&data) {
        return Err(bad(format!("RAID-6 has 1 to {DATA_MAX} data members, got {data}")));
    }
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(16) || chunk_bytes > u64::from(u32::MAX) {
        return Err(bad(format!("a chunk has a multiple of 16 bytes, less than 4 GiB, got {chunk_bytes}")));
    }
    addressing::rows(table, u64::from(geometry.members()) * 8)
}

/// `Raid6Params` of `raid6.h`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Params {
    pub(super) members_at: u64,
    pub(super) geometry: Geometry,
}

impl Params {
    fn to_bytes(self) -> Vec<u8> {
        let words = [self.members_at, self.geometry.chunk_bytes].map(u64::to_ne_bytes).concat();
        let halves = [self.geometry.data, self.geometry.pieces() as u32].map(u32::to_ne_bytes).concat();
        [words, halves].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 24] = bytes.try_into().ok()?;
        let [members_at, chunk_bytes] = [0, 1].map(|i: usize| u64::from_ne_bytes(bytes.as_chunks().0[i]));
        let data = u32::from_ne_bytes(bytes.as_chunks().0[4]);
        Some(Self { members_at, geometry: Geometry { data, chunk_bytes } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid6::stripe::{Loss, check};
    use bifolio_device::DevicePtr;

    #[test]
    fn stripes_of_wrong_shape_are_refused() {
        let geometry = Geometry { data: 3, chunk_bytes: 4096 };
        let stripes = |geometry, len| {
            // SAFETY: nothing is read or written at the address.
            stripes(geometry, unsafe { DeviceSlice::from_raw_ordered(DevicePtr(4096), len) })
        };
        assert_eq!(stripes(geometry, 80).unwrap(), 2);
        assert!(stripes(geometry, 81).unwrap_err().to_string().contains("rows of 40 bytes"));
        assert!(stripes(Geometry { data: 256, ..geometry }, 0).unwrap_err().to_string().contains("256"));
        assert!(stripes(Geometry { chunk_bytes: 8, ..geometry }, 0).is_err());
        let refused = check(&[], &[Loss::one(5)], geometry, Addressing::Absolute).unwrap_err();
        assert!(refused.to_string().contains("beyond the 5"), "{refused}");
    }
}
