//! Encrypted files as block devices.

use crate::support::{PASSPHRASE, Place};
use bifolio_block::{BlockDevice, SealedDevice};
use bifolio_crypt::config::Features;
use bifolio_crypt::content::layout;
use bifolio_crypt::{CryptDevice, ErrorKind, Key};
use bifolio_testing::noise;
use std::path::Path;

#[test]
fn a_path_leads_through_its_directory() {
    let place = Place::new(Features::DEFAULT);
    let dir = place.open();
    dir.create_dir(Path::new("models")).unwrap();
    dir.create_file(Path::new("models/tiny")).unwrap().write_at(b"weights", 0).unwrap();
    let (path, key) = (place.cipher().join("models/tiny"), Key::Passphrase(PASSPHRASE));
    let file = CryptDevice::open_path(&path, &key).unwrap();
    let mut bytes = [0; 7];
    file.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"weights");
    let wrong = CryptDevice::open_path(&path, &Key::Passphrase(b"no")).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongKey);
    let nowhere = CryptDevice::open_path(Path::new("/nowhere/at/all"), &key).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotACipherDir);
}

#[test]
fn a_device_has_the_files_bytes_of_when_it_was_opened_and_says_where_they_are_stored() {
    let place = Place::new(Features::DEFAULT);
    let dir = place.open();
    let content = noise(10_000, 3);
    let written = dir.create_file(Path::new("file")).unwrap();
    let empty = CryptDevice::open(&dir, Path::new("file")).unwrap();
    assert_eq!((empty.geometry().size, empty.blocks().id), (0, [0; 16]));
    written.write_at(&content, 0).unwrap();
    let file = CryptDevice::open(&dir, Path::new("file")).unwrap();
    let mut bytes = vec![0xa5; 9000];
    file.read(1000, &mut bytes).unwrap();
    assert!(bytes == content[1000..]);
    assert_eq!(file.read(1001, &mut bytes).unwrap_err().kind(), bifolio_block::ErrorKind::BadRange);
    assert_eq!(file.write(0, b"x").unwrap_err().kind(), bifolio_block::ErrorKind::ReadOnly);
    let stored = file.stored().unwrap();
    assert_eq!(stored.geometry().size, layout::cipher_len(10_000));
    let mut header = [0; 18];
    stored.read(0, &mut header).unwrap();
    assert_eq!(header[2..], file.blocks().id);
    // A changed block is damage, and a shorter file one that cannot be read.
    let disk = std::fs::File::options().write(true).open(file.stored_at()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, &[1, 2, 3], 100).unwrap();
    assert_eq!(file.read(0, &mut bytes[..10]).unwrap_err().kind(), bifolio_block::ErrorKind::Damaged);
    disk.set_len(layout::cipher_offset(1)).unwrap();
    let error = file.read(8000, &mut bytes[..2000]).unwrap_err();
    assert_eq!(error.kind(), bifolio_block::ErrorKind::Read, "{error}");
}
