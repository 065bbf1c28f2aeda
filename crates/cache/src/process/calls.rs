//! What a copy of this crate lets other copies in its process call: a table of C functions, and the plain data that
//! they take and give.
//!
//! The first number of a table is its version, which is the crate's and the table's: layouts of two versions are never
//! mixed. Panics stay where they happen, and errors go over by their parts, so that the sentence and the number of the
//! operating system are those that a caller beside the cache has.

use super::address;
use super::own::cache;
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::published::format;
use crate::stats::Snapshot;
use bifolio_device::{DeviceChoice, DevicePtr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Counted up with every change of what is below.
const LAYOUT: u64 = 2;

/// Of this table: FNV-1a over the crate's version and the layout's.
pub(super) const VERSION: u64 = {
    let (text, mut sum, mut at) = (env!("CARGO_PKG_VERSION").as_bytes(), 0xcbf2_9ce4_8422_2325 ^ LAYOUT, 0);
    while at < text.len() {
        sum = (sum ^ text[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    sum
};

/// Bytes of a subject, which may be a path, and of a detail; what is longer is cut.
const TEXT_BYTES: usize = 4096;

/// The functions of a copy.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) version: u64,
    map: extern "C" fn(&Wanted, &mut u64, &mut Failure) -> bool,
    operate: extern "C" fn(u32, u64, u64, &mut Failure) -> bool,
    holds: extern "C" fn(u64) -> bool,
    statistics: extern "C" fn(&mut [u64; format::SNAPSHOT], &mut Failure) -> bool,
}

/// The arguments of `mmap`.
#[repr(C)]
struct Wanted {
    len: u64,
    offset: u64,
    protection: i32,
    flags: i32,
    fd: i32,
    device: Text<64>,
}

/// What is done with a part of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Acquire,
    Release,
    Sync,
    Unmap,
    Advise(Advice),
}

/// By number.
const OPERATIONS: [Operation; 8] = [
    Operation::Acquire,
    Operation::Release,
    Operation::Sync,
    Operation::Unmap,
    Operation::Advise(Advice::Normal),
    Operation::Advise(Advice::Random),
    Operation::Advise(Advice::WillNeed),
    Operation::Advise(Advice::DontNeed),
];

impl Operation {
    fn perform(self, ptr: DevicePtr, len: u64) -> Result<()> {
        match self {
            Self::Acquire => address::acquire(ptr, len).map(drop),
            Self::Release => address::release(ptr, len).map(drop),
            Self::Sync => address::sync(ptr, len),
            Self::Unmap => address::unmap(ptr, len),
            Self::Advise(advice) => address::advise(ptr, len, advice),
        }
    }
}

/// The parts of an error.
#[repr(C)]
struct Failure {
    kind: u32,
    /// Of the request for a file that failed; [`NONE`] without one.
    cause: u32,
    /// 0 without one.
    os_code: i32,
    subject: Text<TEXT_BYTES>,
    detail: Text<TEXT_BYTES>,
}

const NONE: u32 = u32::MAX;

#[repr(C)]
struct Text<const BYTES: usize> {
    len: u32,
    bytes: [u8; BYTES],
}

/// Those of this copy.
pub(super) static OWN: Calls = Calls { version: VERSION, map, operate, holds, statistics };

impl Calls {
    /// As [`address::mmap`].
    pub(super) fn mmap(
        &self,
        len: u64,
        protection: i32,
        flags: i32,
        fd: i32,
        offset: u64,
        device: DeviceChoice,
    ) -> Result<DevicePtr> {
        if self.is_own() {
            return address::mmap(len, protection, flags, fd, offset, device);
        }
        let wanted = Wanted { len, offset, protection, flags, fd, device: Text::of(&device.to_string()) };
        let mut address = 0;
        ask(|failure| (self.map)(&wanted, &mut address, failure))?;
        Ok(DevicePtr(address))
    }

    /// As the function of [`address`] that has the operation's name.
    pub(super) fn operate(&self, operation: Operation, ptr: DevicePtr, len: u64) -> Result<()> {
        if self.is_own() {
            return operation.perform(ptr, len);
        }
        let number = OPERATIONS.iter().position(|known| *known == operation).expect("every operation has a number");
        ask(|failure| (self.operate)(number as u32, ptr.0, len, failure))
    }

    /// Beside the cache nothing has to be taken apart and put together again.
    pub(super) fn is_own(&self) -> bool {
        std::ptr::eq(self, &raw const OWN)
    }

    /// As [`address::holds`].
    pub(super) fn holds(&self, address: u64) -> bool {
        (self.holds)(address)
    }

    /// What has happened, and what there is by device.
    pub(super) fn statistics(&self) -> Result<Snapshot> {
        let mut found = [0; format::SNAPSHOT];
        ask(|failure| (self.statistics)(&mut found, failure))?;
        format::snapshot_in(&mut found.into_iter()).ok_or_else(|| broken("statistics that cannot be read"))
    }
}

extern "C" fn map(wanted: &Wanted, address: &mut u64, failure: &mut Failure) -> bool {
    answer(failure, || {
        let Wanted { len, offset, protection, flags, fd, .. } = *wanted;
        let device =
            wanted.device.text().parse::<DeviceChoice>().map_err(|error| Error::bad_use(format!("{error}")))?;
        *address = address::mmap(len, protection, flags, fd, offset, device)?.0;
        Ok(())
    })
}

extern "C" fn operate(number: u32, ptr: u64, len: u64, failure: &mut Failure) -> bool {
    answer(failure, || {
        let operation = OPERATIONS.get(number as usize).ok_or_else(|| broken("an unknown operation"))?;
        operation.perform(DevicePtr(ptr), len)
    })
}

extern "C" fn holds(address: u64) -> bool {
    address::holds(address)
}

extern "C" fn statistics(found: &mut [u64; format::SNAPSHOT], failure: &mut Failure) -> bool {
    answer(failure, || {
        let cache = cache()?;
        let snapshot = Snapshot { counts: cache.counts(), devices: cache.stats() };
        found.iter_mut().zip(format::of_snapshot(&snapshot)).for_each(|(place, word)| *place = word);
        Ok(())
    })
}

/// Runs a call of another copy's; whether it has succeeded.
fn answer(failure: &mut Failure, call: impl FnOnce() -> Result<()>) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(broken("the call panicked")));
    outcome.inspect_err(|error| *failure = Failure::of(error)).is_ok()
}

/// Calls another copy.
fn ask(call: impl FnOnce(&mut Failure) -> bool) -> Result<()> {
    let mut failure = Failure { kind: NONE, cause: NONE, os_code: 0, subject: Text::of(""), detail: Text::of("") };
    if call(&mut failure) { Ok(()) } else { Err(failure.error()) }
}

fn broken(detail: &str) -> Error {
    Error::new(ErrorKind::Device, "the cache", format!("another library of this process keeps it: {detail}"))
}

impl Failure {
    fn of(error: &Error) -> Self {
        let cause = error.cause().and_then(|cause| cause.downcast_ref::<bifolio_io::Error>());
        let place =
            |cause: &bifolio_io::Error| bifolio_io::ErrorKind::ALL.iter().position(|kind| *kind == cause.kind());
        Self {
            kind: ErrorKind::ALL.iter().position(|kind| *kind == error.kind()).map_or(NONE, |at| at as u32),
            cause: cause.and_then(place).map_or(NONE, |at| at as u32),
            os_code: error.os_code().unwrap_or(0),
            subject: Text::of(error.subject()),
            detail: Text::of(error.detail()),
        }
    }

    fn error(&self) -> Error {
        let (subject, detail) = (self.subject.text(), self.detail.text());
        let Some(kind) = ErrorKind::ALL.get(self.kind as usize) else { return broken("it failed and did not say why") };
        let error = Error::new(*kind, subject, detail);
        let system = (self.os_code != 0).then(|| std::io::Error::from_raw_os_error(self.os_code));
        match (bifolio_io::ErrorKind::ALL.get(self.cause as usize), system) {
            (Some(kind), system) => {
                let cause = bifolio_io::Error::new(*kind, Path::new(subject), detail);
                error.with_cause(match system {
                    Some(system) => cause.with_cause(system),
                    None => cause,
                })
            }
            (None, Some(system)) => error.with_cause(system),
            (None, None) => error,
        }
    }
}

impl<const BYTES: usize> Text<BYTES> {
    fn of(text: &str) -> Self {
        let len = (0..=text.len().min(BYTES)).rev().find(|len| text.is_char_boundary(*len)).unwrap_or(0);
        let mut bytes = [0; BYTES];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { len: len as u32, bytes }
    }

    fn text(&self) -> &str {
        self.bytes.get(..self.len as usize).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(error: &Error) -> Error {
        ask(|failure| {
            *failure = Failure::of(error);
            false
        })
        .unwrap_err()
    }

    #[test]
    fn an_error_is_the_same_on_both_sides() {
        let path = Path::new("/data/ä file");
        let system = || std::io::Error::from_raw_os_error(libc::EACCES);
        let cases = [
            Error::bad_use("flags 0x7 cannot be used"),
            Error::new(ErrorKind::Forked, "the cache", ""),
            Error::flushing(path, std::io::Error::from_raw_os_error(libc::ENOSPC)),
            Error::reading(bifolio_io::Error::system(path, "open", system())),
            Error::reading(bifolio_io::Error::new(bifolio_io::ErrorKind::NotAFile, path, "is a directory")),
        ];
        let io_kind = |error: &Error| error.cause()?.downcast_ref::<bifolio_io::Error>().map(bifolio_io::Error::kind);
        for error in cases {
            let other = sent(&error);
            assert_eq!(other.to_string(), error.to_string());
            assert_eq!(
                (other.kind(), other.os_code(), io_kind(&other)),
                (error.kind(), error.os_code(), io_kind(&error))
            );
        }
        let long = Error::bad_use("ü".repeat(TEXT_BYTES));
        assert_eq!(sent(&long).detail(), "ü".repeat(TEXT_BYTES / 2));
    }

    #[test]
    fn what_panics_or_is_unknown_is_an_error() {
        let error = ask(|failure| answer(failure, || panic!("a test"))).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        let error = ask(|failure| (OWN.operate)(99, 1, 1, failure)).unwrap_err();
        assert!(error.to_string().contains("unknown operation"), "{error}");
        assert!(ask(|_| false).unwrap_err().to_string().contains("did not say why"));
    }

    #[test]
    fn calls_do_what_their_names_say() {
        let folder = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let flags = libc::MAP_SHARED | address::MAP_ONGPU;
        let device = "host:1".parse().unwrap();
        // As another copy calls it.
        let table = Calls { version: VERSION, map, operate, holds, statistics };
        let ptr = table.mmap(5000, libc::PROT_READ, flags, fd, 0, device).unwrap();
        assert!(table.holds(ptr.0) && table.holds(ptr.0 + 4999) && !table.holds(0));
        table.operate(Operation::Acquire, ptr, 5000).unwrap();
        let Snapshot { counts, devices } = table.statistics().unwrap();
        let there = devices.iter().find(|stats| stats.device.index == 1).unwrap();
        assert!(counts.fetched >= 2 && there.pages >= 1, "{counts:?} {there:?}");
        for operation in [Operation::Sync, Operation::Advise(Advice::WillNeed), Operation::Release, Operation::Unmap] {
            table.operate(operation, ptr, 5000).unwrap();
        }
        assert_eq!(table.operate(Operation::Release, ptr, 5000).unwrap_err().kind(), ErrorKind::BadRange);
        let error = table.mmap(5000, libc::PROT_READ, 0, fd, 0, DeviceChoice::Auto).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadUse);
    }
}
