//! Which members make up an array, and which are refused or left out.

use super::support::{CHUNK, blank, content, created, members_of, open, without};
use bifolio_block::faults::FaultyDevice;
use bifolio_io::Cancel;
use bifolio_volume::md::{ArrayState, Content, CreateOptions, Options, Raid6, Rotation};
use bifolio_volume::{BlockDevice, ErrorKind, Overwrite};
use std::sync::Arc;

#[test]
fn members_come_in_any_order() {
    let devices = created(Rotation::LeftSymmetric, 5, 4);
    let array = open(&devices).unwrap();
    let data: Vec<u8> = (0..array.geometry().size).map(|i| (i / 13) as u8).collect();
    array.write(0, &data).unwrap();
    array.close().unwrap();
    let mut turned = devices.clone();
    turned.rotate_left(2);
    turned.swap(0, 1);
    let array = open(&turned).unwrap();
    assert!(content(&array) == data);
    for (role, device) in devices.iter().enumerate() {
        assert_eq!(array.member(role).unwrap().device.name(), device.name());
    }
    assert!(Raid6::is_member(&*devices[0]).unwrap());
    assert!(!Raid6::is_member(&*blank(1, 4)[0]).unwrap());
}

#[test]
fn too_few_members_are_counted() {
    let devices = created(Rotation::LeftSymmetric, 6, 4);
    let error = open(&devices[..3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooFewMembers);
    assert!(error.to_string().contains("3 of its 6 members are present, and it needs at least 4"), "{error}");
    assert_eq!(open(&blank(4, 4)).unwrap_err().kind(), ErrorKind::NotAVolume);
    assert_eq!(open(&[]).unwrap_err().kind(), ErrorKind::NotAVolume);
}

#[test]
fn members_of_other_arrays_and_copies_are_named() {
    let devices = created(Rotation::LeftSymmetric, 5, 4);
    let mut mixed = devices.clone();
    mixed[1] = Arc::new(FaultyDevice::new("stranger", created(Rotation::LeftSymmetric, 5, 4)[1].content()));
    let error = open(&mixed).unwrap_err();
    assert_eq!((error.kind(), error.subject()), (ErrorKind::BadMembers, "stranger"), "{error}");
    mixed[1] = Arc::new(FaultyDevice::new("copy", devices[3].content()));
    let error = open(&mixed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadMembers);
    assert!(error.to_string().contains("copy"), "{error}");
}

#[test]
fn what_fell_behind_is_left_out_and_listed() {
    let devices = created(Rotation::LeftSymmetric, 5, 4);
    let old = Arc::new(FaultyDevice::new("old", devices[2].content()));
    let array = open(&without(&devices, &[2])).unwrap();
    array.write(100, &[9; 5000]).unwrap();
    array.close().unwrap();
    let mut all = without(&devices, &[2]);
    all.insert(0, old);
    let array = open(&all).unwrap();
    assert_eq!((array.health(), array.missing()), (ArrayState::Degraded, vec![2]));
    let left_out = array.left_out();
    assert_eq!(left_out[0].member, "old");
    assert!(left_out[0].reason.contains("out of date"), "{left_out:?}");
    let mut back = [0; 5000];
    array.read(100, &mut back).unwrap();
    assert_eq!(back, [9; 5000]);
    drop(array);
    // With two more gone it is one too many, and the sentence says which was left out.
    let error = open(&all[..3]).unwrap_err();
    assert!(error.to_string().contains("old (it is out of date"), "{error}");
}

#[test]
fn a_damaged_superblock_costs_one_member() {
    let devices = created(Rotation::RightSymmetric, 5, 4);
    devices[4].corrupt(4096 + 80, |bytes| bytes[0] ^= 1, 1);
    let array = open(&devices).unwrap();
    assert_eq!(array.missing(), [4]);
    assert!(array.left_out()[0].reason.contains("checksum"), "{:?}", array.left_out());
}

#[test]
fn sides_that_were_written_apart_are_refused() {
    let devices = created(Rotation::LeftSymmetric, 4, 4);
    let apart: Vec<_> =
        devices.iter().map(|device| Arc::new(FaultyDevice::new(device.name() + "'", device.content()))).collect();
    for side in [&devices[..2], &apart[2..]] {
        let array = open(side).unwrap();
        array.write(0, &[1; 100]).unwrap();
        array.close().unwrap();
    }
    let error = open(&[Arc::clone(&devices[0]), Arc::clone(&devices[1]), Arc::clone(&apart[2])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadMembers);
    assert!(error.to_string().contains("written separately"), "{error}");
}

#[test]
fn members_are_not_overwritten_unasked() {
    let devices = created(Rotation::LeftSymmetric, 4, 4);
    let options = CreateOptions { content: Content::Zeroes, ..CreateOptions::default() };
    let error = Raid6::create(members_of(&devices), CHUNK, Rotation::LeftSymmetric, &options).unwrap_err();
    assert_eq!((error.kind(), error.subject()), (ErrorKind::Exists, "member-0"));
    let overwrite = CreateOptions { overwrite: Overwrite::Named(vec!["md".to_owned()]), ..options.clone() };
    assert!(Raid6::create(members_of(&devices), CHUNK, Rotation::LeftSymmetric, &overwrite).is_ok());
    let few = Raid6::create(members_of(&blank(3, 4)), CHUNK, Rotation::LeftSymmetric, &options).unwrap_err();
    assert!(few.to_string().contains("4 to"), "{few}");
    let small = Raid6::create(members_of(&blank(4, 0)), CHUNK, Rotation::LeftSymmetric, &options).unwrap_err();
    assert!(small.to_string().contains("needed"), "{small}");
    let array = open(&without(&devices, &[3])).unwrap();
    let other = created(Rotation::LeftSymmetric, 4, 4);
    let error = array.rebuild(Arc::clone(&other[0]) as _, &mut |_, _| {}, &Cancel::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
}

#[test]
fn reading_only_writes_nothing() {
    let devices = created(Rotation::LeftSymmetric, 5, 4);
    let before: Vec<_> = devices.iter().map(|device| device.content()).collect();
    let array = Raid6::open(members_of(&without(&devices, &[1])), Options::default()).unwrap();
    content(&array);
    assert_eq!(array.write(0, &[1]).unwrap_err().kind(), bifolio_block::ErrorKind::ReadOnly);
    array.flush().unwrap();
    array.close().unwrap();
    assert!(devices.iter().zip(before).all(|(device, before)| device.content() == before));
}

/// The others do not say that it has failed: it was there when they were written, and somebody put an old copy of it back.
#[test]
fn a_copy_of_a_member_from_before_the_last_session_is_left_out() {
    let devices = created(Rotation::LeftSymmetric, 5, 4);
    let old = Arc::new(FaultyDevice::new("copy", devices[2].content()));
    let array = open(&devices).unwrap();
    array.write(0, &vec![7; array.geometry().size as usize]).unwrap();
    array.close().unwrap();
    let mut given = devices;
    given[2] = old;
    let array = open(&given).unwrap();
    assert_eq!(array.missing(), [2]);
    assert!(array.left_out()[0].reason.contains("it is out of date"), "{:?}", array.left_out());
    assert!(content(&array).iter().all(|byte| *byte == 7), "nothing of the old copy is read");
}
