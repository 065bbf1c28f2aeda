//! Any header of LUKS: what it says is refused, or lies inside of the volume. Keys are not tried, as what that costs is
//! the header's to say.

#![no_main]

use bifolio_block::faults::FaultyDevice;
use bifolio_volume::{BlockDevice, ErrorKind, FormatOptions, Luks, Pbkdf};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use sha2::Digest;
use std::sync::{Arc, OnceLock};

/// Bytes of a copy of the header.
const COPY: usize = 0x4000;

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    /// The volume is cut there, or longer than it was.
    size: u32,
    copies: [Copy<'a>; 2],
}

#[derive(Debug, Arbitrary)]
struct Copy<'a> {
    /// Bytes at places in the binary header, and whether its checksum is made right again.
    binary: Vec<(u16, u8)>,
    /// The JSON from one place to another is replaced.
    json: Option<(u16, u16, &'a [u8])>,
    is_signed: bool,
}

/// A good volume. None without libcryptsetup.
fn good() -> Option<&'static Vec<u8>> {
    static GOOD: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let make = || {
        let device = Arc::new(FaultyDevice::new("good", vec![0; 17 << 20]));
        let pbkdf = Pbkdf { iterations: Some(4), memory_kib: 32, threads: 1, ..Pbkdf::default() };
        let options = FormatOptions { pbkdf, ..FormatOptions::default() };
        Luks::format(Arc::clone(&device) as _, b"a key", &options).ok()?;
        // The keyslots are not looked at.
        let mut bytes = device.content();
        bytes.truncate(64 << 10);
        Some(bytes)
    };
    GOOD.get_or_init(make).as_ref()
}

fuzz_target!(|input: Input<'_>| {
    let Some(good) = good() else { return };
    let mut bytes = good.clone();
    for (number, copy) in input.copies.iter().enumerate() {
        let header = &mut bytes[number * COPY..(number + 1) * COPY];
        for (at, byte) in &copy.binary {
            header[usize::from(*at) % 4096] = *byte;
        }
        if let Some((from, to, with)) = copy.json {
            let json = &mut header[4096..];
            let end = json.iter().position(|byte| *byte == 0).unwrap_or(json.len());
            let from = usize::from(from) % (end + 1);
            let to = from + usize::from(to) % (end - from + 1);
            let changed = [&json[..from], with, &json[to..end]].concat();
            let len = changed.len().min(json.len());
            json.fill(0);
            json[..len].copy_from_slice(&changed[..len]);
        }
        if copy.is_signed {
            header[448..512].fill(0);
            let digest = sha2::Sha256::digest(&*header);
            header[448..480].copy_from_slice(&digest);
        }
    }
    let size = (input.size as usize % (40 << 20)).next_multiple_of(FaultyDevice::BLOCK_BYTES);
    bytes.resize(size.max(FaultyDevice::BLOCK_BYTES), 0);
    let device = FaultyDevice::new("volume", bytes.clone());
    let _ = Luks::is_luks(&device);
    match Luks::info_of(&device) {
        Ok(info) => {
            let payload = info.payload_bytes.unwrap_or(0);
            assert!(payload <= device.geometry().size, "a payload beyond the volume");
        }
        Err(error) => assert!(error.kind() != ErrorKind::Missing && error.to_string().len() > 10, "{error}"),
    }
    assert!(device.content() == bytes, "looking has changed something");
});
