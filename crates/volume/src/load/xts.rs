//! Encrypted volumes: ciphertext crosses the link, and is decrypted where it lands.

use super::device::Load;
use super::follow::{FOLLOWED_BYTES_MIN, Transform, UNIT_BYTES, load_followed};
use super::loader::Loader;
use super::parts::in_parts;
use crate::{Error, Result};
use bifolio_compute::keyed::{DeviceXts, PerDevice, SecretMemory, Workspace};
use bifolio_device::DeviceSlice;
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::Sectors;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The boundary that kernels want.
const WORD_BYTES: u64 = 16;

/// The cipher of a volume, as devices need it: a key, and on each device that was used a copy of it.
pub(crate) struct Cipher {
    key: Zeroizing<Vec<u8>>,
    /// The first sector of the data.
    first: Sectors,
    on_devices: PerDevice<DeviceXts>,
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cipher").field("first", &self.first).finish_non_exhaustive()
    }
}

impl Cipher {
    /// The data begins with the sector that `first` names.
    pub(crate) fn new(key: Zeroizing<Vec<u8>>, first: Sectors) -> Self {
        Self { key, first, on_devices: PerDevice::default() }
    }

    /// The key itself.
    pub(crate) fn key(&self) -> &Zeroizing<Vec<u8>> {
        &self.key
    }

    /// Bytes of a sector.
    fn sector_bytes(&self) -> u64 {
        u64::from(self.first.bytes)
    }

    /// The sectors from an offset in the data on, which is rounded down to one.
    pub(crate) fn sectors_at(&self, offset: u64) -> Sectors {
        self.first.behind(offset)
    }

    /// The key in the memory of a device, which is put there by the first request.
    fn on(&self, loader: &Loader) -> Result<Arc<DeviceXts>> {
        let made = self.on_devices.get(loader.device(), || DeviceXts::new(loader.device(), &self.key));
        made.map_err(|error| loader.failed(error))
    }
}

/// Loads decrypted bytes. `offset` counts in the data, which begins at `data_at` of the device below.
pub(crate) fn load_encrypted(
    (below, data_at): (&dyn Load, u64),
    cipher: &Cipher,
    loader: &Loader,
    offset: u64,
    destination: DeviceSlice<'_>,
) -> Result<()> {
    let xts = cipher.on(loader)?;
    let transfer = Transfer { below, data_at, cipher, xts: &xts, loader };
    let range = offset..offset + destination.len();
    if destination.len() >= FOLLOWED_BYTES_MIN && transfer.followed(&range, destination)? {
        return Ok(());
    }
    in_parts(&range, cipher.sector_bytes(), &|part| {
        loader.check_cancel(&below.name())?;
        let place =
            destination.part(part.start - offset, part.end - part.start).map_err(|error| loader.failed(error))?;
        transfer.part(&part, place)
    })
}

/// Decryption in place of sectors as they land.
#[derive(Debug)]
struct Decryption {
    xts: Arc<DeviceXts>,
    /// The first sector of the destination.
    first: Sectors,
    place: DeviceSlice<'static>,
}

impl Transform for Decryption {
    fn scratch_bytes(&self, unit: u64) -> u64 {
        DeviceXts::scratch_bytes(self.first, unit)
    }

    fn enqueue(&self, workspace: &mut Workspace, unit: Range<u64>) -> bifolio_device::Result<()> {
        let data = self.place.part(unit.start, unit.end - unit.start)?;
        // SAFETY: whoever made this keeps the memory, and waits for the workspace.
        unsafe { self.xts.enqueue(workspace, Direction::Decrypt, self.first.behind(unit.start), (data, data)) }
    }
}

struct Transfer<'a> {
    below: &'a dyn Load,
    data_at: u64,
    cipher: &'a Cipher,
    xts: &'a Arc<DeviceXts>,
    loader: &'a Loader,
}

impl Transfer<'_> {
    /// All of a range by one request with its decryption behind it, if there is such a way; whether there was.
    fn followed(&self, range: &Range<u64>, place: DeviceSlice<'_>) -> Result<bool> {
        if !self.xts.is_on_device() {
            return Ok(false);
        }
        self.cut(range, place, &|inner, middle| {
            // SAFETY: it is used as long as `load_followed` runs.
            let place = unsafe { DeviceSlice::from_raw_ordered(middle.ptr(), middle.len()) };
            let transform = Decryption { xts: Arc::clone(self.xts), first: self.cipher.sectors_at(inner.start), place };
            // SAFETY: the caller lent the memory to this request.
            let rest = unsafe {
                let transform = (Arc::new(transform) as Arc<dyn Transform>, UNIT_BYTES);
                load_followed(self.below, self.loader, self.data_at + inner.start, middle, transform)
            };
            let Some(rest) = rest? else { return Ok(false) };
            for rest in rest {
                let memory = middle.part(rest.start, rest.end - rest.start).map_err(|error| self.failed(error))?;
                self.decrypt(&(inner.start + rest.start..inner.start + rest.end), memory)?;
            }
            Ok(true)
        })
    }

    /// One part: its whole sectors in place, and the sectors that it begins and ends in by way of others.
    fn part(&self, part: &Range<u64>, place: DeviceSlice<'_>) -> Result<()> {
        let done = self.cut(part, place, &|inner, middle| {
            self.below.load(self.loader, self.data_at + inner.start, middle)?;
            self.decrypt(&inner, middle).map(|()| true)
        })?;
        if !done {
            self.apart(part, place)?;
        }
        Ok(())
    }

    /// Has the whole sectors of a range done in place by `work`, and then those that it begins and ends in apart. Says
    /// whether it was done: not where there are none, where kernels do not like the place, or where `work` says no.
    fn cut(
        &self,
        range: &Range<u64>,
        place: DeviceSlice<'_>,
        work: &dyn Fn(Range<u64>, DeviceSlice<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let sector = self.cipher.sector_bytes();
        let inner = range.start.next_multiple_of(sector)..range.end / sector * sector;
        let lead = inner.start - range.start;
        if inner.start >= inner.end || !place.ptr().offset_by(lead).0.is_multiple_of(WORD_BYTES) {
            return Ok(false);
        }
        let slice = |part: &Range<u64>| {
            place.part(part.start - range.start, part.end - part.start).map_err(|error| self.failed(error))
        };
        if !work(inner.clone(), slice(&inner)?)? {
            return Ok(false);
        }
        for edge in [range.start..inner.start, inner.end..range.end] {
            if !edge.is_empty() {
                self.apart(&edge, slice(&edge)?)?;
            }
        }
        Ok(true)
    }

    /// A range that begins or ends inside a sector, or whose place kernels do not like.
    fn apart(&self, range: &Range<u64>, place: DeviceSlice<'_>) -> Result<()> {
        let sector = self.cipher.sector_bytes();
        let whole = range.start / sector * sector..range.end.next_multiple_of(sector);
        // What is decrypted beyond the range is nobody's, and cleared.
        let memory = SecretMemory::new(self.loader.device(), whole.end - whole.start);
        let memory = memory.map_err(|error| self.failed(error))?;
        self.below.load(self.loader, self.data_at + whole.start, memory.slice())?;
        self.decrypt(&whole, memory.slice())?;
        self.loader.with_workspace(|workspace| {
            let wanted = memory.slice().part(range.start - whole.start, range.end - range.start);
            let copied = wanted.and_then(|wanted| {
                // SAFETY: both are there until the stream has been waited for; the memory is new, so apart.
                unsafe { workspace.stream().copy_on_device(place, wanted) }
            });
            copied.and(workspace.stream().synchronize()).map_err(|error| self.failed(error))
        })
    }

    fn decrypt(&self, range: &Range<u64>, memory: DeviceSlice<'_>) -> Result<()> {
        let sectors = self.cipher.sectors_at(range.start);
        self.loader.with_workspace(|workspace| {
            // SAFETY: the caller lent the memory to this request, which waits here.
            unsafe { self.xts.run(workspace, Direction::Decrypt, sectors, (memory, memory)) }
                .map_err(|error| self.failed(error))
        })
    }

    fn failed(&self, error: bifolio_device::Error) -> Error {
        self.loader.failed(error)
    }
}
