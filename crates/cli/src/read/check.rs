//! Looking at what is in device memory after a read: its SHA-256, and a comparison with the file.

use crate::exit::{Code, Failure};
use crate::progress::Progress;
use bifolio_bench::harness::verify::{Checker, Content, FileContent};
use bifolio_device::{Device, DeviceSlice};
use bifolio_io::{Cancel, OpenFile, Router};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;

/// What to look at.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The SHA-256 of device memory.
    pub sha256: bool,
    /// A comparison with the file.
    pub compare: bool,
}

/// What was found.
#[derive(Debug)]
pub struct Checked {
    /// The SHA-256, as hexadecimal digits.
    pub sha256: Option<String>,
}

/// Reads device memory back; `memory` should hold the file's bytes from `offset`.
///
/// # Errors
/// Exit code 4 with the first offset at which they differ.
pub fn check(
    router: &Router,
    file: &OpenFile,
    memory: DeviceSlice<'_>,
    offset: u64,
    wanted: Wanted,
    cancel: &Cancel,
) -> Result<Checked, Failure> {
    check_content(router.device(), FileContent::new(router, file), memory, offset, wanted, cancel)
}

/// The same for content of any kind.
///
/// # Errors
/// As [`check`].
pub fn check_content(
    device: &Device,
    content: impl Content,
    memory: DeviceSlice<'_>,
    offset: u64,
    wanted: Wanted,
    cancel: &Cancel,
) -> Result<Checked, Failure> {
    if !wanted.sha256 && !wanted.compare {
        return Ok(Checked { sha256: None });
    }
    let progress = Progress::of_bytes("checking device memory", memory.len());
    let mut hash = Sha256::new();
    let mut checker = Checker::of(device, content)?;
    checker.look(memory, |checker, at, len| {
        if cancel.is_cancelled() {
            return Err(bifolio_bench::Error::interrupted());
        }
        if wanted.sha256 {
            hash.update(checker.seen(len));
        }
        if wanted.compare {
            checker.compare(offset + at, len)?;
        }
        progress.advance(len as u64);
        Ok(())
    })?;
    Ok(Checked { sha256: wanted.sha256.then(|| hexadecimal(&hash.finalize())) })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What changes when somebody writes to a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Stamp(Option<(u64, i64, i64)>);

impl Stamp {
    /// The file's stamp now.
    pub fn of(file: &OpenFile) -> Self {
        Self(file.buffered().metadata().ok().map(|metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec())))
    }

    /// Adds to a failed verification that the file has changed since the stamp was taken.
    pub fn explain(&self, file: &OpenFile, failure: Failure) -> Failure {
        if failure.code() == Code::Wrong && *self != Self::of(file) {
            return Failure::new(
                Code::Wrong,
                format!("{} (somebody changed the file during the read)", failure.message()),
            );
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::HostOptions;
    use bifolio_io::RouterOptions;

    fn checked(change: impl FnOnce(&mut Vec<u8>)) -> Result<Checked, Failure> {
        let content: Vec<u8> = (0..9_000_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        let temporary = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(temporary.path(), &content).unwrap();
        let device = Device::host(&HostOptions::default());
        let router = Router::new(&device, RouterOptions::default());
        let file = router.open(temporary.path()).unwrap();
        let mut landed = content[1000..].to_vec();
        change(&mut landed);
        let memory = device.alloc(landed.len() as u64).unwrap();
        device.create_stream().unwrap().upload(memory.slice(), &landed).unwrap();
        check(&router, &file, memory.slice(), 1000, Wanted { sha256: true, compare: true }, &Cancel::default())
    }

    #[test]
    fn one_wrong_byte_is_found_and_named_by_its_offset_in_the_file() {
        let failure = checked(|landed| landed[5_000_000] ^= 1).unwrap_err();
        assert_eq!(failure.code(), Code::Wrong);
        assert!(failure.message().contains("offset 5001000"), "{}", failure.message());
    }

    #[test]
    fn memory_that_goes_on_beyond_the_file_is_found() {
        assert!(checked(|landed| landed.push(0)).unwrap_err().message().contains("the content ends there"));
    }

    #[test]
    fn right_bytes_have_the_hash_of_the_file() {
        let content: Vec<u8> = (1000..9_000_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        assert_eq!(checked(|_| {}).unwrap().sha256, Some(hexadecimal(&Sha256::digest(&content))));
    }
}
