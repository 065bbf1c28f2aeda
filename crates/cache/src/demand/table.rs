//! The table through which kernels ask, on the device, and as the host writes and reads it.

use bifolio_device::{Allocation, DevicePtr, PinnedBuffer, Stream};
use bifolio_kernels::demand::{Answer, Layout, PagedRange};

#[derive(Debug)]
pub(super) struct Table {
    layout: Layout,
    items_max: u32,
    on_device: Allocation,
    on_host: PinnedBuffer,
}

impl Table {
    /// For so many items on a mapping.
    pub(super) fn new(extent: PagedRange, items: u32, stream: &Stream) -> bifolio_device::Result<Self> {
        let layout = Layout::new(extent, items);
        let device = stream.device();
        let on_device = device.alloc(layout.bytes())?;
        let on_host = device.alloc_pinned(layout.bytes() as usize)?;
        Ok(Self { layout, items_max: items, on_device, on_host })
    }

    /// Items that it has room for.
    pub(super) fn items_max(&self) -> u32 {
        self.items_max
    }

    /// One launch, from the table's upload to its answer. `there` are the pages that kernels may read; `launch` is
    /// given the table's address.
    pub(super) fn ask(
        &mut self,
        items: &[u32],
        there: impl Iterator<Item = u64>,
        stream: &Stream,
        launch: impl FnOnce(DevicePtr) -> bifolio_device::Result<()>,
    ) -> bifolio_device::Result<Answer> {
        let (layout, count) = (self.layout, items.len() as u32);
        layout.write(self.on_host.bytes_mut(), items, there);
        let bytes = layout.bytes_to_upload(count);
        stream.upload(self.on_device.slice().part(0, bytes)?, &self.on_host.bytes()[..bytes as usize])?;
        let launched = launch(self.on_device.ptr());
        let done = stream.synchronize();
        launched.and(done)?;
        let bytes = layout.bytes_to_download(count);
        let from = self.on_device.slice().part(0, bytes)?;
        stream.download(&mut self.on_host.bytes_mut()[..bytes as usize], from)?;
        Ok(layout.read(self.on_host.bytes(), count))
    }
}
