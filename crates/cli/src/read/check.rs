//! Looking at what is in device memory after a read: its SHA-256, and a comparison with the file.

use crate::exit::{Code, Failure};
use crate::progress::Progress;
use crate::signals;
use bifolio_device::{Device, DeviceSlice, PinnedBuffer, Stream};
use bifolio_io::{Cancel, OpenFile, Router};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;

/// Bytes looked at at a time: two buffers of it are all the host memory that checking needs.
const CHUNK: u64 = 4 << 20;

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

/// What device memory is compared with.
pub trait Content {
    /// What to call it in a sentence.
    fn name(&self) -> String;

    /// Fills the buffer with its bytes from `offset` on, by way of the CPU; how many there are.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure>;
}

/// A file, as a router reads it.
#[derive(Debug, Clone, Copy)]
pub struct FileContent<'a> {
    router: &'a Router,
    file: &'a OpenFile,
}

impl Content for FileContent<'_> {
    fn name(&self) -> String {
        self.file.path().display().to_string()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        Ok(self.router.read_to_host(self.file, buffer, offset)?)
    }
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
    check_content(router.device(), FileContent { router, file }, memory, offset, wanted, cancel)
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
        signals::check(cancel)?;
        if wanted.sha256 {
            hash.update(&checker.seen.bytes()[..len]);
        }
        if wanted.compare {
            checker.compare(offset + at, len)?;
        }
        progress.advance(len as u64);
        Ok(())
    })?;
    Ok(Checked { sha256: wanted.sha256.then(|| hexadecimal(&hash.finalize())) })
}

/// Compares device memory with content in many small places; the buffers are made once.
#[derive(Debug)]
pub struct Checker<C> {
    content: C,
    stream: Stream,
    /// What is in device memory. Pinned, where the device pins memory.
    seen: PinnedBuffer,
    /// What it should be.
    expected: Vec<u8>,
}

impl<'a> Checker<FileContent<'a>> {
    /// For a file; makes the buffers.
    pub fn new(router: &'a Router, file: &'a OpenFile) -> Result<Self, Failure> {
        Self::of(router.device(), FileContent { router, file })
    }
}

impl<C: Content> Checker<C> {
    /// Makes the buffers.
    pub fn of(device: &Device, content: C) -> Result<Self, Failure> {
        let (stream, seen) = (device.create_stream()?, device.alloc_pinned(CHUNK as usize)?);
        Ok(Self { content, stream, seen, expected: vec![0; CHUNK as usize] })
    }

    /// Compares `memory` with the file's bytes from `offset`.
    pub fn compare_all(&mut self, memory: DeviceSlice<'_>, offset: u64) -> Result<(), Failure> {
        self.look(memory, |checker, at, len| checker.compare(offset + at, len))
    }

    /// Calls `with` for every chunk of `memory`, read back into `seen`, with its place and length.
    fn look(
        &mut self,
        memory: DeviceSlice<'_>,
        mut with: impl FnMut(&mut Self, u64, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut at = 0;
        while at < memory.len() {
            let len = CHUNK.min(memory.len() - at);
            self.stream.download(&mut self.seen.bytes_mut()[..len as usize], memory.part(at, len)?)?;
            with(self, at, len as usize)?;
            at += len;
        }
        Ok(())
    }

    /// Compares the chunk in `seen` with the content.
    fn compare(&mut self, offset: u64, len: usize) -> Result<(), Failure> {
        let got = self.content.read(&mut self.expected[..len], offset)?;
        let (seen, expected) = (&self.seen.bytes()[..len], &self.expected[..got]);
        if seen == expected {
            return Ok(());
        }
        let same = seen.iter().zip(expected).take_while(|(one, two)| one == two).count();
        let at = offset + same as u64;
        let what = match expected.get(same) {
            Some(byte) => format!("device memory holds {:#04x} where the content has {byte:#04x}", seen[same]),
            None => "the content ends there now, and device memory goes on".to_owned(),
        };
        let (name, device) = (self.content.name(), self.stream.device().id());
        let message = format!("{name}, offset {at}, into {device}: verification failed: {what}");
        Err(Failure::new(Code::Wrong, message))
    }
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
