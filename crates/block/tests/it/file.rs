//! Files as devices.

use bifolio_block::{BlockDevice, ErrorKind, FileDevice};
use bifolio_testing::{noise, seed};
use std::path::Path;

fn file(len: usize, seed: u64) -> (tempfile::NamedTempFile, Vec<u8>) {
    let (file, content) = (tempfile::NamedTempFile::new().unwrap(), noise(len, seed));
    std::fs::write(file.path(), &content).unwrap();
    (file, content)
}

#[test]
fn bytes_are_read_and_written_at_any_offset_and_never_beyond_the_end() {
    let (file, mut content) = file(10_007, seed());
    let device = FileDevice::open(file.path(), true).unwrap();
    assert_eq!((device.geometry().size, device.is_read_only()), (10_007, false));
    device.write(4095, b"across blocks").unwrap();
    content[4095..4108].copy_from_slice(b"across blocks");
    device.flush().unwrap();
    let mut seen = vec![0xa5; 10_007];
    device.read(0, &mut seen).unwrap();
    assert!(seen == content);
    for (offset, len) in [(10_007, 1), (10_000, 8), (u64::MAX, 1)] {
        assert_eq!(device.read(offset, &mut vec![0; len]).unwrap_err().kind(), ErrorKind::BadRange, "{offset}");
        assert_eq!(device.write(offset, &vec![0; len]).unwrap_err().kind(), ErrorKind::BadRange, "{offset}");
        assert_eq!(device.discard(offset, len as u64).unwrap_err().kind(), ErrorKind::BadRange, "{offset}");
    }
    device.read(10_007, &mut []).unwrap();
    assert!(std::fs::read(file.path()).unwrap() == content, "nothing was stored of what was refused");
}

#[test]
fn what_is_opened_for_reading_is_not_written() {
    let (file, content) = file(4096, seed());
    let device = FileDevice::open(file.path(), false).unwrap();
    assert!(device.is_read_only());
    assert_eq!(device.write(0, b"x").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(device.discard(0, 4096).unwrap_err().kind(), ErrorKind::ReadOnly);
    device.flush().unwrap();
    assert!(std::fs::read(file.path()).unwrap() == content);
}

#[test]
fn what_is_no_device_and_what_was_truncated_are_errors_that_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let kind = |path: &Path| FileDevice::open(path, false).unwrap_err().kind();
    assert_eq!(kind(folder.path()), ErrorKind::NotADevice);
    assert_eq!(kind(&folder.path().join("none")), ErrorKind::NotFound);
    assert_eq!(kind(Path::new("/dev/null")), ErrorKind::NotADevice);
    let (file, _) = file(8192, seed());
    let device = FileDevice::open(file.path(), false).unwrap();
    file.as_file().set_len(5000).unwrap();
    let error = device.read(4096, &mut [0; 4096]).unwrap_err();
    assert_eq!((error.kind(), error.subject()), (ErrorKind::Read, &*file.path().display().to_string()));
    assert!(error.detail().contains("4096 bytes at offset 4096") && error.detail().contains("truncated"), "{error}");
    let none = FileDevice::open(folder.path().join("none"), false).unwrap_err();
    assert_eq!(none.os_code(), Some(2));
}

#[test]
fn a_claim_keeps_other_writers_out_as_long_as_the_file_is_open() {
    let (file, _) = file(4096, seed());
    let open = || FileDevice::open(file.path(), true).unwrap();
    let (first, second) = (open(), open());
    assert!(!second.is_claimed());
    first.claim().unwrap();
    assert!(second.is_claimed() && !first.is_claimed(), "its own claim is not another's");
    assert_eq!(second.claim().unwrap_err().kind(), ErrorKind::InUse);
    drop(first);
    second.claim().unwrap();
}
