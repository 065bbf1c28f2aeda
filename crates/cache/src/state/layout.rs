//! Where everything lies in a region, by numbers alone: each table has room for as many rows as there can ever be, and
//! takes memory for those that are used.

use crate::page::Device;

/// Tells a region from other memory.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"bifolio\x02");

/// Of the layout. Who finds another one leaves the region alone.
pub(crate) const VERSION: u64 = 2;

/// Most pages of a file that account is kept of, from its first one to the last that is mapped: of 16 TiB in pages of
/// 64 KiB, which takes some gigabytes of the host's memory.
pub(crate) const PAGES_MAX: u64 = 1 << 28;

/// Frames are no shorter than pages.
pub(crate) const FRAMES_MAX: u64 = PAGES_MAX;

pub(crate) const LEASES_MAX: u64 = 1 << 24;

pub(crate) const RECORDS_MAX: u64 = 1 << 10;

/// Of a device.
pub(crate) const WINDOWS_MAX: u64 = 1 << 12;

/// Numbers that stand for the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Magic,
    Version,
    PageBytes,
    Devices,
    /// Bytes of the file at the latest look.
    Size,
    Doubt,
    /// Which file it is.
    FileDevice,
    FileInode,
    FileBorn,
}

pub(crate) const WORDS: u64 = 64;

/// Bytes of rows, which those who have them hold to.
pub(crate) const PAGE_ROW: usize = 40;
pub(crate) const UPDATE_ROW: usize = 48;
pub(crate) const RECORD_ROW: usize = 40;
pub(crate) const LEASE_ROW: usize = 40;
pub(crate) const WINDOW_ROW: usize = 16;
pub(crate) const FRAME_ROW: usize = 16;

/// A table of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Words,
    /// The page that is being written.
    Update,
    Records,
    Leases,
    Pages,
    /// By page, which record is of it.
    Marks,
    /// By page, up to which doubt a device's content was compared with the file's.
    Compared(Device),
    /// Where a device has addresses.
    Windows(Device),
    /// By frame, what a device has there.
    Frames(Device),
}

impl Part {
    /// How many rows it has at most.
    pub(crate) fn rows_max(self) -> u64 {
        match self {
            Self::Words => WORDS,
            Self::Update => 1,
            Self::Records => RECORDS_MAX,
            Self::Windows(_) => WINDOWS_MAX,
            Self::Leases => LEASES_MAX,
            Self::Pages | Self::Marks | Self::Compared(_) => PAGES_MAX,
            Self::Frames(_) => FRAMES_MAX,
        }
    }

    /// Bytes, in whole pages of memory.
    fn bytes(self) -> u64 {
        let row = match self {
            Self::Words => size_of::<u64>(),
            Self::Update => UPDATE_ROW,
            Self::Records => RECORD_ROW,
            Self::Windows(_) => WINDOW_ROW,
            Self::Leases => LEASE_ROW,
            Self::Pages => PAGE_ROW,
            Self::Marks => size_of::<u16>(),
            Self::Compared(_) => size_of::<u32>(),
            Self::Frames(_) => FRAME_ROW,
        };
        // Of all machines' lengths of memory pages.
        (self.rows_max() * row as u64).next_multiple_of(64 << 10)
    }

    /// Where it begins.
    pub(crate) fn offset(self) -> u64 {
        let parts = [Self::Words, Self::Update, Self::Records, Self::Leases, Self::Pages, Self::Marks];
        let before = |end: usize| parts[..end].iter().map(|part| part.bytes()).sum::<u64>();
        match self {
            Self::Compared(device) => before(parts.len()) + device as u64 * per_device(),
            Self::Windows(device) => Self::Compared(device).offset() + Self::Compared(device).bytes(),
            Self::Frames(device) => Self::Windows(device).offset() + Self::Windows(device).bytes(),
            fixed => before(parts.iter().position(|part| *part == fixed).unwrap_or(0)),
        }
    }
}

fn per_device() -> u64 {
    Part::Compared(0).bytes() + Part::Windows(0).bytes() + Part::Frames(0).bytes()
}

/// Bytes of a region for so many devices, most of which never have memory.
pub(crate) fn region_bytes(devices: usize) -> u64 {
    Part::Compared(devices).offset()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::DEVICES_MAX;

    #[test]
    fn tables_do_not_overlap() {
        let mut parts = vec![Part::Words, Part::Update, Part::Records, Part::Leases, Part::Pages, Part::Marks];
        parts.extend(
            (0..DEVICES_MAX).flat_map(|device| [Part::Compared(device), Part::Windows(device), Part::Frames(device)]),
        );
        let mut end = 0;
        for part in parts {
            assert_eq!((part.offset(), part.offset() % (64 << 10)), (end, 0), "{part:?}");
            end += part.bytes();
        }
        assert_eq!(end, region_bytes(DEVICES_MAX));
        assert!(i64::try_from(end).is_ok());
    }
}
