//! The master key: what a wrong one may change, and what is kept of a configuration that is replaced.

use crate::support::{PASSPHRASE, Place};
use bifolio_crypt::config::Features;
use bifolio_crypt::{CipherDir, ErrorKind, Key, MasterKey};
use bifolio_testing::noise;
use std::fs;
use std::path::Path;

/// The directory's master key, and one that differs from it by a bit.
fn keys(place: &Place) -> (MasterKey, MasterKey) {
    let right = CipherDir::master_key(&place.cipher(), PASSPHRASE).unwrap();
    let mut wrong = right.clone();
    wrong[31] ^= 1;
    (right, wrong)
}

fn config(place: &Place) -> Vec<u8> {
    fs::read(place.cipher().join("gocryptfs.conf")).unwrap()
}

fn names(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.cipher()).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with("gocryptfs.conf")).collect()
}

/// `passwd --masterkey WRONG` wrapped whatever it was given: the new passphrase opened a key that nothing in the
/// directory was encrypted with, and the old configuration was gone.
#[test]
fn a_wrong_master_key_does_not_change_the_passphrase() {
    for features in [Features::DEFAULT, Features::PLAINTEXT_NAMES] {
        let place = Place::new(features);
        let dir = place.open();
        dir.create_dir(Path::new("folder")).unwrap();
        dir.create_file(Path::new("folder/file")).unwrap().write_at(&noise(10_000, 1), 0).unwrap();
        let (right, wrong) = keys(&place);
        let before = config(&place);
        let error = CipherDir::change_passphrase(&place.cipher(), &Key::Master(wrong.clone()), b"new").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
        assert_eq!((config(&place), names(&place)), (before, vec!["gocryptfs.conf".to_owned()]));
        let error = CipherDir::open(&place.cipher(), &Key::Master(wrong)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
        CipherDir::change_passphrase(&place.cipher(), &Key::Master(right), b"new").unwrap();
        assert_eq!(names(&place), ["gocryptfs.conf"]);
        let opened = CipherDir::open(&place.cipher(), &Key::Passphrase(b"new")).unwrap();
        assert_eq!(opened.open_file(Path::new("folder/file"), false).unwrap().len().unwrap(), 10_000);
    }
}

/// A wrong key was taken for the right one as soon as one name decrypted, which of a thousand some do by chance.
#[test]
fn a_wrong_master_key_is_refused_in_a_large_directory() {
    let place = Place::new(Features::DEFAULT);
    let dir = place.open();
    for number in 0..2000 {
        dir.create_file(Path::new(&number.to_string())).unwrap();
    }
    let (right, wrong) = keys(&place);
    let error = CipherDir::open(&place.cipher(), &Key::Master(wrong)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    CipherDir::open(&place.cipher(), &Key::Master(right)).unwrap();
}

/// What is damaged is no proof against a key: whoever has nothing but the master key has to be able to save the rest.
#[test]
fn damage_does_not_make_the_right_key_a_wrong_one() {
    let place = Place::new(Features::DEFAULT);
    let dir = place.open();
    for file in ["one", "two", "three"] {
        dir.create_file(Path::new(file)).unwrap().write_at(b"content", 0).unwrap();
        let cipher = dir.lookup(Path::new(file)).unwrap();
        let mut bytes = fs::read(&cipher).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&cipher, bytes).unwrap();
    }
    let (right, wrong) = keys(&place);
    CipherDir::open(&place.cipher(), &Key::Master(right.clone())).unwrap();
    assert!(CipherDir::open(&place.cipher(), &Key::Master(wrong.clone())).is_err());
    // Names that are lost with the root's IV, and one file that is whole.
    for entry in fs::read_dir(place.cipher()).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_name().to_string_lossy().starts_with("gocryptfs.") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    for file in ["four", "five"] {
        dir.create_file(Path::new(file)).unwrap().write_at(b"content", 0).unwrap();
    }
    let iv = place.cipher().join("gocryptfs.diriv");
    fs::remove_file(&iv).unwrap();
    fs::write(&iv, [7; 16]).unwrap();
    CipherDir::open(&place.cipher(), &Key::Master(right)).unwrap();
    assert!(CipherDir::open(&place.cipher(), &Key::Master(wrong)).is_err());
}

/// With plain names, what an interrupted change was taken to have left could be somebody's file, and was removed.
#[test]
fn files_beside_the_configuration_stay() {
    let place = Place::new(Features::PLAINTEXT_NAMES);
    let dir = place.open();
    for name in ["gocryptfs.conf.tmp", "gocryptfs.conf.bak"] {
        dir.create_file(Path::new(name)).unwrap().write_at(name.as_bytes(), 0).unwrap();
    }
    let change = || CipherDir::change_passphrase(&place.cipher(), &Key::Passphrase(PASSPHRASE), b"new");
    let error = change().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    assert!(error.to_string().contains("gocryptfs.conf.bak"), "{error}");
    fs::rename(place.cipher().join("gocryptfs.conf.bak"), place.cipher().join("moved")).unwrap();
    change().unwrap();
    let dir = CipherDir::open(&place.cipher(), &Key::Passphrase(b"new")).unwrap();
    let mut content = [0; 18];
    dir.open_file(Path::new("gocryptfs.conf.tmp"), false).unwrap().read_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"gocryptfs.conf.tmp");
}

#[test]
fn where_nothing_tells_the_key_the_old_configuration_is_kept() {
    let place = Place::new(Features::DEFAULT);
    let (right, wrong) = keys(&place);
    let before = config(&place);
    let kept = CipherDir::change_passphrase(&place.cipher(), &Key::Master(wrong.clone()), b"new").unwrap();
    let backup = place.cipher().join("gocryptfs.conf.bak");
    assert_eq!(kept, Some(backup.clone()));
    assert_eq!(fs::read(&backup).unwrap(), before);
    // It is neither listed nor taken for a name that does not decrypt.
    let dir = CipherDir::open(&place.cipher(), &Key::Master(wrong)).unwrap();
    assert!(dir.list(Path::new(""), &|sentence| panic!("{sentence}")).unwrap().is_empty());
    let again = CipherDir::change_passphrase(&place.cipher(), &Key::Passphrase(b"new"), b"newer").unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Exists, "{again}");
    fs::rename(backup, place.cipher().join("gocryptfs.conf")).unwrap();
    assert!(*CipherDir::master_key(&place.cipher(), PASSPHRASE).unwrap() == *right);
}

#[test]
fn a_variant_is_told_only_where_there_is_no_configuration() {
    let place = Place::new(Features::DEFAULT);
    place.open().create_file(Path::new("file")).unwrap().write_at(b"content", 0).unwrap();
    let (right, _) = keys(&place);
    let plain = Key::MasterOf(right, Features::PLAINTEXT_NAMES);
    let error = CipherDir::open(&place.cipher(), &plain).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadUse, "{error}");
    let error = CipherDir::change_passphrase(&place.cipher(), &plain, b"new").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadUse, "{error}");
    let place = Place::new(Features::PLAINTEXT_NAMES);
    place.open().create_file(Path::new("file")).unwrap().write_at(b"content", 0).unwrap();
    let (right, wrong) = keys(&place);
    let plain = |key: &MasterKey| Key::MasterOf(key.clone(), Features::PLAINTEXT_NAMES);
    CipherDir::open(&place.cipher(), &plain(&right)).unwrap();
    fs::remove_file(place.cipher().join("gocryptfs.conf")).unwrap();
    CipherDir::open(&place.cipher(), &plain(&right)).unwrap();
    assert_eq!(CipherDir::open(&place.cipher(), &plain(&wrong)).unwrap_err().kind(), ErrorKind::WrongKey);
    CipherDir::change_passphrase(&place.cipher(), &plain(&right), b"new").unwrap();
    assert_eq!(CipherDir::read_config(&place.cipher()).unwrap().features, Features::PLAINTEXT_NAMES);
}
