//! Any superblocks of members: refusals, or an array whose every byte lies inside of its members.

#![no_main]

use bifolio_block::faults::FaultyDevice;
use bifolio_volume::md::superblock::{FIXED_BYTES, Refusal, Role, Superblock, Version, find};
use bifolio_volume::md::{Layout, Options, Raid6, Rotation};
use bifolio_volume::{BlockDevice, Geometry, Load};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

/// Every member has so many bytes.
const SIZE: u64 = 64 << 10;

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    version: u8,
    writable: bool,
    /// Up to five members, each a good superblock with changes, or just bytes.
    members: Vec<Member<'a>>,
}

#[derive(Debug, Arbitrary)]
enum Member<'a> {
    Changed(Vec<(u16, u64)>),
    Bytes(&'a [u8]),
}

fuzz_target!(|input: Input<'_>| {
    let version = [Version::V1_0, Version::V1_1, Version::V1_2][usize::from(input.version % 3)];
    let mut devices: Vec<Arc<dyn Load>> = vec![];
    for (number, member) in input.members.iter().take(5).enumerate() {
        let bytes = match member {
            Member::Changed(changes) => changed(good(version, number as u8).encode(SIZE), changes),
            Member::Bytes(bytes) => bytes[..bytes.len().min(4096)].to_vec(),
        };
        match Superblock::parse(&bytes, version, SIZE) {
            Ok(superblock) => check(&superblock, version, SIZE),
            Err(Refusal::NotThere) => {}
            Err(Refusal::Damaged(text) | Refusal::Unsupported(text)) => {
                assert!(text.len() > 3 && !text.ends_with('.'), "{text:?}");
            }
        }
        let mut content = vec![0; SIZE as usize];
        let offset = version.offset(SIZE).expect("there is room") as usize;
        content[offset..offset + bytes.len()].copy_from_slice(&bytes);
        let device = FaultyDevice::new(format!("member-{number}"), content);
        let _ = find(&device).map(|found| found.map(|superblock| superblock.role()));
        devices.push(Arc::new(device));
    }
    if let Ok(array) = Raid6::open(devices, Options { writable: input.writable, force: input.writable }) {
        let Geometry { size, .. } = array.geometry();
        let mut some = vec![0x5a; size.min(1 << 16) as usize];
        let _ = array.read(size - some.len() as u64, &mut some);
        if input.writable {
            let at = size.min(1 << 16) / 3;
            array.write(at, &[1, 2, 3]).expect("memory does not fail");
            let mut back = [0; 3];
            array.read(at, &mut back).expect("memory does not fail");
            assert_eq!(back, [1, 2, 3]);
        }
    }
});

/// A member of a small array.
fn good(version: Version, number: u8) -> Superblock {
    let data_offset = if version == Version::V1_0 { 0 } else { 32 << 10 };
    Superblock {
        version,
        array: [7; 16],
        name: [0; 32],
        created: 1,
        updated: 2,
        layout: Layout::new(Rotation::LeftSymmetric, 5, 4096).expect("md has it"),
        stripes: 6,
        used_bytes: 24 << 10,
        data_offset,
        data_bytes: 24 << 10,
        bitmap_sectors: 0,
        recovered_bytes: None,
        is_behind: false,
        number: u32::from(number),
        device: [number; 16],
        corrected: 0,
        flags: 0,
        bad_blocks: (0, 0, 0),
        events: 3,
        in_sync_bytes: None,
        roles: (0..5).map(Role::Active).collect(),
    }
}

/// Words are changed, and the checksum is made right again, so that what is behind it is reached.
fn changed(mut bytes: Vec<u8>, changes: &[(u16, u64)]) -> Vec<u8> {
    for (at, word) in changes {
        let at = usize::from(*at) % (bytes.len() - 8);
        // Small fields are aimed at, too.
        let len = if word >> 32 == 0 { 4 } else { 8 };
        bytes[at..at + len].copy_from_slice(&word.to_le_bytes()[..len]);
    }
    let devices = bytes[220..224].try_into().map_or(0, u32::from_le_bytes) as usize;
    let end = (FIXED_BYTES + 2 * devices.min(4096)).min(bytes.len());
    bytes[216..220].fill(0);
    let words = bytes[..end].chunks_exact(4);
    let rest = words.remainder().to_vec();
    let mut sum: u64 = words.map(|word| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))).sum();
    if let [a, b] = rest[..] {
        sum += u64::from(u16::from_le_bytes([a, b]));
    }
    bytes[216..220].copy_from_slice(&(((sum & 0xffff_ffff) + (sum >> 32)) as u32).to_le_bytes());
    bytes
}

fn check(superblock: &Superblock, version: Version, size: u64) {
    let layout = superblock.layout;
    let used = superblock.stripes.checked_mul(layout.chunk_bytes()).expect("no overflow");
    assert!(superblock.data_offset + used <= size, "data beyond the device");
    let last = superblock.stripes * layout.stripe_bytes() - 1;
    for offset in [0, last / 2, last] {
        let place = layout.locate(offset);
        assert!(place.member < layout.members() && place.inside < layout.chunk_bytes());
        let at = layout.member_offset(place.stripe) + place.inside;
        assert!(at < used);
        assert_eq!(layout.offset_of(place.member, at), Some(offset));
    }
    if let Some((start, len)) = superblock.reserved() {
        assert!(len > 0 && start + len <= superblock.data_offset);
    }
    assert_eq!(Superblock::parse(&superblock.encode(size), version, size).as_ref(), Ok(superblock));
}
