//! The superblock of versions 1.0, 1.1 and 1.2: Linux's `struct mdp_superblock_1`, little-endian, of 256 bytes and
//! a role of 2 bytes for each device. The versions differ in where it lies only.
//!
//! Everything that is read is checked before it is believed: sizes and offsets against each other and against
//! the device, so that no later arithmetic overflows.

use super::layout::{Layout, Rotation};
use crate::{BlockDevice, Error, ErrorKind, Result};

/// Bytes before the roles.
pub const FIXED_BYTES: usize = 256;
/// What the roles leave of 4 KiB.
pub(super) const DEVICES_MAX: usize = (4096 - FIXED_BYTES) / 2;
/// So many devices' roles fit with the rest into one sector, which no loss of power tears.
pub(super) const DEVICES_IN_SECTOR: usize = (SECTOR as usize - FIXED_BYTES) / 2;
/// The unit of all sizes and offsets on disk.
pub(super) const SECTOR: u64 = 512;

const MAGIC: u32 = 0xa92b_4efc;
const LEVEL: u32 = 6;
/// Beyond, sums of offsets could overflow: 2^61 bytes.
const SECTORS_MAX: u64 = 1 << 52;
/// What Linux writes where everything is in sync.
const ALL: u64 = u64::MAX;

/// What a member is in its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This one of the array's places.
    Active(u16),
    /// None at the moment.
    Spare,
    /// It failed, or nothing is known of it.
    Faulty,
    /// The array's journal.
    Journal,
}

impl Role {
    fn of_word(word: u16) -> Self {
        match word {
            0xffff => Self::Spare,
            0xfffe => Self::Faulty,
            0xfffd => Self::Journal,
            role => Self::Active(role),
        }
    }

    fn to_word(self) -> u16 {
        match self {
            Self::Spare => 0xffff,
            Self::Faulty => 0xfffe,
            Self::Journal => 0xfffd,
            Self::Active(role) => role,
        }
    }
}

/// Where the superblock lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Near the end of the device.
    V1_0,
    /// At its beginning.
    V1_1,
    /// 4 KiB behind its beginning.
    V1_2,
}

impl Version {
    /// The offset in bytes on a device of a size; None where there is no room.
    pub fn offset(self, size: u64) -> Option<u64> {
        match self {
            Self::V1_1 => Some(0),
            Self::V1_2 => Some(4096),
            Self::V1_0 => Some(((size / SECTOR).checked_sub(16)? & !7) * SECTOR),
        }
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1_0 => "1.0",
            Self::V1_1 => "1.1",
            Self::V1_2 => "1.2",
        }
    }
}

/// Bits of the feature map.
mod feature {
    pub(super) const BITMAP: u32 = 1;
    pub(super) const RECOVERY_OFFSET: u32 = 2;
    pub(super) const RESHAPE: u32 = 4 | 32 | 64;
    pub(super) const BAD_BLOCKS: u32 = 8;
    pub(super) const REPLACEMENT: u32 = 16;
    pub(super) const RECOVERY_BITMAP: u32 = 128;
    pub(super) const CLUSTERED: u32 = 256;
    pub(super) const JOURNAL: u32 = 512;
    pub(super) const PPL: u32 = 1024 | 2048;
}

/// One member's superblock of a RAID-6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Where it lies.
    pub version: Version,
    /// The array's identity.
    pub array: [u8; 16],
    /// The array's name, padded with zeroes.
    pub name: [u8; 32],
    /// When the array was made: seconds in the low 40 bits, microseconds above.
    pub created: u64,
    /// When the superblock was written, alike.
    pub updated: u64,
    /// Where data and parity lie in stripes.
    pub layout: Layout,
    /// Stripes of the array.
    pub stripes: u64,
    /// Bytes of the member that the array uses, as they are on disk: a multiple of sectors, maybe not of chunks.
    pub used_bytes: u64,
    /// Where they begin.
    pub data_offset: u64,
    /// How many there are.
    pub data_bytes: u64,
    /// The sectors from the superblock to a write-intent bitmap, 0: there is none.
    pub bitmap_sectors: i32,
    /// Stripes below are whole on this member, which is being rebuilt. None: all are.
    pub recovered_bytes: Option<u64>,
    /// A rebuild that only a bitmap knows about.
    pub is_behind: bool,
    /// Its number among all devices that the array ever had.
    pub number: u32,
    /// The member's identity.
    pub device: [u8; 16],
    /// Corrected reads so far; kept as it is.
    pub corrected: u32,
    /// Flags of the device; kept as they are.
    pub flags: u8,
    /// Shift, sectors and offset of a list of bad blocks, which is empty; kept as they are.
    pub bad_blocks: (u8, u16, u32),
    /// Grows by one whenever the state of the array changes.
    pub events: u64,
    /// P and Q fit the data below this byte of each member. None: everywhere, the array was closed cleanly.
    pub in_sync_bytes: Option<u64>,
    /// The roles of all devices, by number.
    pub roles: Vec<Role>,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(word(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(word(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(word(bytes, at))
}

/// The sum of all words, the checksum's own left out.
fn checksum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum = words.iter().enumerate().filter(|(i, _)| *i != 54);
    let mut sum: u64 = sum.map(|(_, word)| u64::from(u32::from_le_bytes(*word))).sum();
    if let [a, b] = rest {
        sum += u64::from(u16::from_le_bytes([*a, *b]));
    }
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

/// What is wrong with a superblock: not one at all, or a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is none.
    NotThere,
    /// It is one, and damaged.
    Damaged(String),
    /// It is one, of something that is not implemented.
    Unsupported(String),
}

impl Refusal {
    /// As an error about a member.
    pub fn about(self, member: &dyn BlockDevice) -> Error {
        let (kind, detail) = match self {
            Self::NotThere => {
                let detail = "it has no md superblock of version 1.0, 1.1 or 1.2, so it is not a member of an array";
                (ErrorKind::NotAVolume, detail.to_owned())
            }
            Self::Damaged(detail) => (
                ErrorKind::Damaged,
                format!("its md superblock is damaged: {detail}; assemble the array without it, then rebuild it"),
            ),
            Self::Unsupported(detail) => (ErrorKind::Unsupported, detail),
        };
        Error::new(kind, member.name(), detail)
    }
}

fn damaged(detail: impl Into<String>) -> Refusal {
    Refusal::Damaged(detail.into())
}

fn unsupported(detail: impl Into<String>) -> Refusal {
    Refusal::Unsupported(detail.into())
}

/// Bytes of sectors, if they are not absurdly many.
fn sectors(what: &str, count: u64) -> Result<u64, Refusal> {
    if count > SECTORS_MAX {
        return Err(damaged(format!("{what} of {count} sectors is beyond every device")));
    }
    Ok(count * SECTOR)
}

impl Superblock {
    /// Reads a superblock in up to 4 KiB that were found at an offset of a device of `size` bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8], version: Version, size: u64) -> Result<Self, Refusal> {
        if bytes.len() < FIXED_BYTES || u32_at(bytes, 0) != MAGIC {
            return Err(Refusal::NotThere);
        }
        let major = u32_at(bytes, 4);
        if major != 1 {
            return Err(unsupported(format!("its md superblock has the major version {major}, not 1")));
        }
        let devices = u32_at(bytes, 220) as usize;
        let end = FIXED_BYTES + 2 * devices.min(DEVICES_MAX + 1);
        if devices > DEVICES_MAX || end > bytes.len() {
            return Err(damaged(format!("it lists {devices} devices, which do not fit")));
        }
        let (stored, computed) = (u32_at(bytes, 216), checksum(&bytes[..end]));
        if stored != computed {
            return Err(damaged(format!("its checksum is {stored:08x} and should be {computed:08x}")));
        }
        if Some(sectors("the superblock's own offset", u64_at(bytes, 144))?) != version.offset(size) {
            return Err(damaged("it records another offset"));
        }
        let features = u32_at(bytes, 8);
        check_features(features)?;
        let (layout, used_bytes, stripes) = shape(bytes)?;
        let (data_offset, data_bytes) = extent(bytes, version, size, used_bytes)?;
        let number = u32_at(bytes, 160);
        if number as usize >= devices {
            return Err(damaged(format!("it is device {number} of {devices}")));
        }
        let roles: Vec<Role> = (0..devices).map(|i| Role::of_word(u16_at(bytes, FIXED_BYTES + 2 * i))).collect();
        if let Some(Role::Active(role)) =
            roles.iter().find(|role| matches!(role, Role::Active(role) if usize::from(*role) >= layout.members()))
        {
            return Err(damaged(format!("a device has the role {role} among {}", layout.members())));
        }
        let in_sync = u64_at(bytes, 208);
        let recovered = (features & feature::RECOVERY_OFFSET != 0).then(|| u64_at(bytes, 152));
        let chunk = layout.chunk_bytes();
        let whole = |sectors: u64| sectors.min(SECTORS_MAX) * SECTOR / chunk * chunk;
        Ok(Self {
            version,
            array: word(bytes, 16),
            name: word(bytes, 32),
            created: u64_at(bytes, 64),
            updated: u64_at(bytes, 192),
            layout,
            stripes,
            used_bytes,
            data_offset,
            data_bytes,
            bitmap_sectors: if features & feature::BITMAP == 0 { 0 } else { i32::from_le_bytes(word(bytes, 96)) },
            recovered_bytes: recovered.map(whole),
            is_behind: features & feature::RECOVERY_BITMAP != 0,
            number,
            device: word(bytes, 168),
            corrected: u32_at(bytes, 164),
            flags: bytes[184],
            bad_blocks: (bytes[185], u16_at(bytes, 186), u32_at(bytes, 188)),
            events: u64_at(bytes, 200),
            in_sync_bytes: (in_sync != ALL && in_sync < used_bytes / SECTOR).then(|| whole(in_sync)),
            roles,
        })
    }

    /// As it is stored, padded to whole sectors.
    pub fn encode(&self, size: u64) -> Vec<u8> {
        let end = FIXED_BYTES + 2 * self.roles.len();
        let mut bytes = vec![0; end.next_multiple_of(SECTOR as usize)];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let mut features = 0;
        if self.bitmap_sectors != 0 {
            features |= feature::BITMAP;
            put(96, &self.bitmap_sectors.to_le_bytes());
        }
        if let Some(recovered) = self.recovered_bytes {
            features |= feature::RECOVERY_OFFSET;
            put(152, &(recovered / SECTOR).to_le_bytes());
        }
        if self.is_behind {
            features |= feature::RECOVERY_BITMAP;
        }
        put(0, &MAGIC.to_le_bytes());
        put(4, &1_u32.to_le_bytes());
        put(8, &features.to_le_bytes());
        put(16, &self.array);
        put(32, &self.name);
        put(64, &self.created.to_le_bytes());
        put(72, &LEVEL.to_le_bytes());
        put(76, &self.layout.rotation().number().to_le_bytes());
        put(80, &(self.used_bytes / SECTOR).to_le_bytes());
        put(88, &((self.layout.chunk_bytes() / SECTOR) as u32).to_le_bytes());
        put(92, &(self.layout.members() as u32).to_le_bytes());
        put(128, &(self.data_offset / SECTOR).to_le_bytes());
        put(136, &(self.data_bytes / SECTOR).to_le_bytes());
        put(144, &(self.version.offset(size).unwrap_or(0) / SECTOR).to_le_bytes());
        put(160, &self.number.to_le_bytes());
        put(164, &self.corrected.to_le_bytes());
        put(168, &self.device);
        put(184, &[self.flags, self.bad_blocks.0]);
        put(186, &self.bad_blocks.1.to_le_bytes());
        put(188, &self.bad_blocks.2.to_le_bytes());
        put(192, &self.updated.to_le_bytes());
        put(200, &self.events.to_le_bytes());
        put(208, &self.in_sync_bytes.map_or(ALL, |bytes| bytes / SECTOR).to_le_bytes());
        put(220, &(self.roles.len() as u32).to_le_bytes());
        for (i, role) in self.roles.iter().enumerate() {
            put(FIXED_BYTES + 2 * i, &role.to_word().to_le_bytes());
        }
        let sum = checksum(&bytes[..end]);
        bytes[216..220].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The role that this superblock gives to its own device.
    pub fn role(&self) -> Role {
        self.roles[self.number as usize]
    }

    /// The bytes between the superblock (and what md keeps behind it) and the data, which nothing uses: offset
    /// and length. None where a bitmap may lie anywhere there.
    pub fn reserved(&self) -> Option<(u64, u64)> {
        if self.bitmap_sectors != 0 {
            return None;
        }
        let own = match self.version {
            Version::V1_0 => 0,
            Version::V1_1 => 4096,
            Version::V1_2 => 8192,
        };
        let (_, sectors, offset) = self.bad_blocks;
        let start = match self.version {
            Version::V1_0 => 0,
            // The offset of the list is from the superblock, and signed; before it there is nothing to keep.
            version if sectors > 0 && offset.cast_signed() > 0 => {
                let from = version.offset(0)?;
                own.max(from + (u64::from(offset) + u64::from(sectors)) * SECTOR)
            }
            _ => own,
        };
        let start = start.next_multiple_of(4096);
        let end = self.data_offset / 4096 * 4096;
        (start < end).then(|| (start, end - start))
    }
}

fn check_features(features: u32) -> Result<(), Refusal> {
    let refused = [
        (feature::RESHAPE, "is being reshaped; let Linux finish that first (mdadm --assemble, then wait)"),
        (feature::BAD_BLOCKS, "has a list of bad blocks; replace the member, or see --update=force-no-bbl of mdadm"),
        (feature::REPLACEMENT, "has a member that is being replaced; let Linux finish that first"),
        (feature::CLUSTERED, "is shared by a cluster, which is not implemented"),
        (feature::JOURNAL, "has a journal device, which is not implemented; see --update in mdadm(8)"),
        (feature::PPL, "has a partial parity log, which RAID-6 does not have"),
    ];
    if let Some((_, why)) = refused.iter().find(|(bits, _)| features & bits != 0) {
        return Err(unsupported(format!("the array {why}")));
    }
    let known = feature::BITMAP | feature::RECOVERY_OFFSET | feature::RECOVERY_BITMAP;
    if features & !known != 0 {
        return Err(unsupported(format!(
            "its md superblock has the features {features:#x}, not all of which are known"
        )));
    }
    Ok(())
}

fn shape(bytes: &[u8]) -> Result<(Layout, u64, u64), Refusal> {
    let (level, rotation, chunk, members) =
        (u32_at(bytes, 72), u32_at(bytes, 76), u32_at(bytes, 88), u32_at(bytes, 92));
    if level != LEVEL {
        return Err(unsupported(format!("it is a member of an array of level {}, not 6", level.cast_signed())));
    }
    let rotation = Rotation::of_number(rotation)
        .ok_or_else(|| unsupported(format!("the array has layout {rotation}, which is not implemented")))?;
    let layout = Layout::new(rotation, members as usize, u64::from(chunk) * SECTOR).map_err(damaged)?;
    let used = sectors("the size", u64_at(bytes, 80))?;
    let stripes = used / layout.chunk_bytes();
    if stripes == 0 {
        return Err(damaged(format!("it uses {used} bytes of the member, less than a chunk")));
    }
    if stripes.checked_mul(layout.stripe_bytes()).is_none_or(|size| size > SECTORS_MAX * SECTOR) {
        return Err(damaged("the array is larger than every device"));
    }
    Ok((layout, used, stripes))
}

/// Where the data is, which neither leaves the device nor covers the superblock.
fn extent(bytes: &[u8], version: Version, size: u64, used: u64) -> Result<(u64, u64), Refusal> {
    let offset = sectors("the data's offset", u64_at(bytes, 128))?;
    let len = sectors("the data", u64_at(bytes, 136))?;
    if len < used {
        return Err(damaged(format!("the array uses {used} of {len} bytes")));
    }
    if offset + used > size {
        return Err(damaged(format!(
            "the data ends at {}, beyond the end of the device at {size}; it was truncated, or copied in part",
            offset + used
        )));
    }
    let own = version.offset(size).unwrap_or(0);
    if offset < own + 4096 && own < offset + used {
        return Err(damaged("the data covers the superblock"));
    }
    Ok((offset, len))
}

/// Looks for the superblock of a member, at the places of all versions.
///
/// # Errors
/// Those of reading.
pub fn find(device: &dyn BlockDevice) -> Result<Result<Superblock, Refusal>> {
    let size = device.geometry().size;
    let mut refusal = Refusal::NotThere;
    for version in [Version::V1_2, Version::V1_1, Version::V1_0] {
        let Some(offset) = version.offset(size).filter(|offset| offset + FIXED_BYTES as u64 <= size) else { continue };
        let mut bytes = vec![0; (size - offset).min(4096) as usize];
        device.read(offset, &mut bytes)?;
        match Superblock::parse(&bytes, version, size) {
            Ok(superblock) => return Ok(Ok(superblock)),
            Err(Refusal::NotThere) => {}
            Err(other) if refusal == Refusal::NotThere => refusal = other,
            Err(_) => {}
        }
    }
    Ok(Err(refusal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(rotation: Rotation, members: usize, version: Version) -> Superblock {
        let data_offset = if version == Version::V1_0 { 0 } else { 1 << 20 };
        Superblock {
            version,
            array: [7; 16],
            name: [b'n'; 32],
            created: 1,
            updated: 2,
            layout: Layout::new(rotation, members, 65536).unwrap(),
            stripes: 12,
            used_bytes: 12 * 65536 + 4096,
            data_offset,
            data_bytes: 12 * 65536 + 8192,
            bitmap_sectors: 0,
            recovered_bytes: None,
            is_behind: false,
            number: 1,
            device: [9; 16],
            corrected: 3,
            flags: 0,
            bad_blocks: (0, 8, 16),
            events: 44,
            in_sync_bytes: None,
            roles: vec![Role::Active(0), Role::Active(2), Role::Faulty, Role::Spare, Role::Journal],
        }
    }

    const SIZE: u64 = 2 << 20;

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed(
            rotation in prop::sample::select(Rotation::ALL.to_vec()), members in 4_usize..200,
            version in prop::sample::select(vec![Version::V1_0, Version::V1_1, Version::V1_2]),
            events in any::<u64>(), in_sync in prop::option::of(0_u64..12), recovered in prop::option::of(0_u64..12),
            bitmap in any::<i32>(),
        ) {
            let mut superblock = sample(rotation, members, version);
            superblock.events = events;
            superblock.in_sync_bytes = in_sync.map(|chunks| chunks * 65536);
            superblock.recovered_bytes = recovered.map(|chunks| chunks * 65536);
            superblock.bitmap_sectors = bitmap;
            prop_assert_eq!(Superblock::parse(&superblock.encode(SIZE), version, SIZE), Ok(superblock));
        }

        /// With the checksum made right, so that the checks behind it are reached.
        #[test]
        fn hostile_fields_are_refused_or_make_sense(at in 0_usize..266, bytes in any::<[u8; 8]>(), size in 0_u64..1 << 22) {
            let mut encoded = sample(Rotation::LeftSymmetric, 5, Version::V1_2).encode(SIZE);
            encoded[at..at + 8].copy_from_slice(&bytes);
            let devices = (u32_at(&encoded, 220) as usize).min(128);
            let sum = checksum(&encoded[..FIXED_BYTES + 2 * devices]);
            encoded[216..220].copy_from_slice(&sum.to_le_bytes());
            if let Ok(parsed) = Superblock::parse(&encoded, Version::V1_2, size) {
                prop_assert!(parsed.data_offset + parsed.stripes * parsed.layout.chunk_bytes() <= size);
                let _ = (parsed.reserved(), parsed.role());
                prop_assert_eq!(Superblock::parse(&parsed.encode(size), Version::V1_2, size), Ok(parsed));
            }
        }
    }

    #[test]
    fn what_is_not_implemented_is_said_in_a_sentence() {
        let mut encoded = sample(Rotation::LeftSymmetric, 5, Version::V1_2).encode(SIZE);
        for (bits, word) in
            [(4, "reshaped"), (8, "bad blocks"), (16, "replaced"), (512, "journal"), (1 << 20, "features")]
        {
            encoded[8..12].copy_from_slice(&u32::to_le_bytes(bits));
            let sum = checksum(&encoded[..FIXED_BYTES + 10]);
            encoded[216..220].copy_from_slice(&sum.to_le_bytes());
            match Superblock::parse(&encoded, Version::V1_2, SIZE) {
                Err(Refusal::Unsupported(text)) => assert!(text.contains(word), "{text}"),
                other => panic!("{bits}: {other:?}"),
            }
        }
    }
}
