//! The trait of devices whose content can be brought into device memory.

use super::loader::Loader;
use crate::Result;
use bifolio_block::BlockDevice;
use bifolio_block::faults::FaultyDevice;
use bifolio_device::{DeviceSlice, PinnedBuffer};
use bifolio_io::{OnArrival, ReadExtent};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that go through host memory at a time, where they have to.
const BOUNCE_BYTES: usize = 1 << 20;

/// A [`BlockDevice`] with a way into device memory.
///
/// What has no way of its own is read by the CPU and copied: `impl Load for MyDevice {}` is enough for that. So nothing
/// that is a volume, or a member of one, is refused as a source; and nothing is loaded slowly unawares, as a plain
/// [`FileDevice`](bifolio_block::FileDevice) is no `Load`: a [`RoutedFile`](crate::RoutedFile) is.
pub trait Load: BlockDevice {
    /// Puts the bytes from `offset` on into memory of the loader's device, as many as the destination has.
    ///
    /// # Errors
    /// Those of a read, `Device` and `Cancelled`. After an error the destination's content is of no use, and nothing is
    /// in flight.
    fn load(&self, loader: &Loader, offset: u64, destination: DeviceSlice<'_>) -> Result<()> {
        through_host(self, loader, offset, destination)
    }

    /// The same by one request of the router, with somebody who follows its bytes; whether there is such a way. If not,
    /// nothing was done.
    ///
    /// # Errors
    /// As for [`Load::load`].
    fn load_followed(
        &self,
        loader: &Loader,
        offset: u64,
        destination: DeviceSlice<'_>,
        follow: &Arc<dyn OnArrival>,
    ) -> Result<bool> {
        let _ = (loader, offset, destination, follow);
        Ok(false)
    }

    /// The same for many extents, whose places count in the destination.
    ///
    /// # Errors
    /// As for [`Load::load`].
    fn load_extents(&self, loader: &Loader, extents: &[ReadExtent], destination: DeviceSlice<'_>) -> Result<()> {
        extents.iter().try_for_each(|extent| {
            let place = destination.part(extent.place, extent.length).map_err(|error| loader.failed(error))?;
            self.load(loader, extent.offset, place)
        })
    }
}

impl Load for FaultyDevice {}

/// Reads a device by the CPU, and copies: for what has no better way.
pub(crate) fn through_host<D: BlockDevice + ?Sized>(
    device: &D,
    loader: &Loader,
    offset: u64,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    device.check_range(offset, destination.len())?;
    let destination = loader.settled(destination)?;
    let failed = |error| loader.failed(error);
    let mut bounce: PinnedBuffer = loader.device().alloc_pinned(BOUNCE_BYTES).map_err(failed)?;
    let outcome = loader.with_workspace(|workspace| {
        let mut at = 0;
        while at < destination.len() {
            loader.check_cancel(&device.name())?;
            let len = (BOUNCE_BYTES as u64).min(destination.len() - at);
            let bytes = &mut bounce.bytes_mut()[..len as usize];
            device.read(offset + at, bytes)?;
            workspace.stream().upload(destination.part(at, len).map_err(failed)?, bytes).map_err(failed)?;
            loader.options().progress.fetch_add(len, Ordering::Relaxed);
            at += len;
        }
        Ok(())
    });
    // It held what may be a secret.
    zeroize::Zeroize::zeroize(bounce.bytes_mut());
    outcome
}
