//! Arrays that Linux's md made (`fixtures/make-md.sh`), and what mdadm says of ours.

use super::support::content;
use bifolio_block::faults::FaultyDevice;
use bifolio_io::Cancel;
use bifolio_testing::{command, has};
use bifolio_volume::md::{ArrayState, Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, Load, Overwrite, RoutedFile};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The members of an array that Linux made; None where gzip is missing.
fn fixture(name: &str, count: usize) -> Option<Vec<Arc<FaultyDevice>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/md/{name}.gz"));
    if !has("gzip") {
        return None;
    }
    let output = command("gzip").arg("-dc").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    let len = output.stdout.len() / count;
    let member = |(i, bytes): (usize, &[u8])| Arc::new(FaultyDevice::new(format!("{name}.{i}"), bytes.to_vec()));
    Some(output.stdout.chunks_exact(len).enumerate().map(member).collect())
}

fn assemble(devices: &[&Arc<FaultyDevice>], writable: bool) -> bifolio_volume::Result<Raid6> {
    Raid6::assemble(devices.iter().map(|device| Arc::clone(device) as Arc<dyn Load>).collect(), writable)
}

/// What the script writes to the sectors of an array.
fn filled(name: &str, first: usize, count: usize) -> Vec<u8> {
    (first..first + count).flat_map(|i| format!("{name} {i:08}\n").into_bytes().into_iter().cycle().take(512)).collect()
}

#[test]
fn arrays_of_linux_are_read_whatever_is_missing() {
    let layouts = Rotation::ALL.map(|rotation| (rotation.name(), rotation, 5, 4096));
    let others = [
        ("large", Rotation::LeftSymmetric, 5, 65536),
        ("six", Rotation::RightAsymmetric, 6, 16384),
        ("bitmap", Rotation::LeftSymmetric, 5, 65536),
    ];
    for (name, rotation, count, chunk) in layouts.into_iter().chain(others) {
        let Some(devices) = fixture(name, count) else { return };
        let all: Vec<_> = devices.iter().rev().collect();
        let array = assemble(&all, false).unwrap();
        assert_eq!((array.layout().rotation(), array.layout().chunk_bytes()), (rotation, chunk), "{name}");
        let expected = filled(name, 0, (array.geometry().size / 512) as usize);
        assert!(content(&array) == expected, "{name}");
        assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0, "{name}: P or Q");
        for (a, b) in (0..count).flat_map(|a| (a..count).map(move |b| (a, b))) {
            let left: Vec<_> = (0..count).filter(|i| ![a, b].contains(i)).map(|i| &devices[i]).collect();
            assert!(content(&assemble(&left, false).unwrap()) == expected, "{name} without {a} and {b}");
        }
    }
}

#[test]
fn arrays_of_linux_are_written_and_closed_clean() {
    for name in ["large", "bitmap", "left-asymmetric"] {
        let Some(devices) = fixture(name, 5) else { return };
        let all: Vec<_> = devices.iter().collect();
        let array = assemble(&all, true).unwrap();
        assert_eq!(array.has_log(), name != "bitmap", "{name}");
        let mut expected = filled(name, 0, (array.geometry().size / 512) as usize);
        let events = array.events();
        array.write(70_001, &vec![0x77; 100_000]).unwrap();
        expected[70_001..170_001].fill(0x77);
        array.close().unwrap();
        let array = assemble(&all[2..], false).unwrap();
        assert!(array.events() > events && content(&array) == expected, "{name}");
    }
}

#[test]
fn a_member_that_linux_failed_is_left_out() {
    let Some(devices) = fixture("stale", 5) else { return };
    let array = assemble(&devices.iter().collect::<Vec<_>>(), true).unwrap();
    assert_eq!((array.health(), array.missing(), array.left_out().len()), (ArrayState::Degraded, vec![0], 1));
    let mut expected = filled("stale", 0, (array.geometry().size / 512) as usize);
    expected[..64 * 512].copy_from_slice(&filled("later", 0, 64));
    assert!(content(&array) == expected);
    array.rebuild(Arc::clone(&devices[0]) as _, &mut |_, _| {}, &Cancel::default()).unwrap();
    assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0);
    array.close().unwrap();
    let array = assemble(&[&devices[0], &devices[2], &devices[4]], false).unwrap();
    assert!(content(&array) == expected);
}

#[test]
fn parity_of_what_linux_did_not_close_is_in_doubt() {
    let Some(devices) = fixture("unclean", 5) else { return };
    let all: Vec<_> = devices.iter().collect();
    let mut expected = filled("unclean", 0, (assemble(&all, false).unwrap().geometry().size / 512) as usize);
    expected[100 * 512..150 * 512].copy_from_slice(&filled("later", 100, 50));
    let error = assemble(&all[1..], true).unwrap_err();
    assert!(error.to_string().contains("not closed cleanly"), "{error}");
    let array = assemble(&all, true).unwrap();
    assert_eq!(array.unsynced(), Some(0));
    assert!(content(&array) == expected);
    array.resync(&mut |_, _| {}, &Cancel::default()).unwrap();
    assert_eq!(array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap().wrong, 0);
    array.close().unwrap();
    assert!(content(&assemble(&all[2..], false).unwrap()) == expected);
}

/// `mdadm --examine` as names and values.
fn examine(path: &Path) -> Option<BTreeMap<String, String>> {
    if !has("mdadm") {
        return None;
    }
    let output = command("mdadm").arg("--examine").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pairs = text.lines().filter_map(|line| line.split_once(" : "));
    Some(pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect())
}

#[test]
fn mdadm_reads_what_we_write() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (i, rotation) in Rotation::ALL.into_iter().enumerate() {
        let device = |member: usize| -> Arc<dyn Load> {
            let path = dir.path().join(format!("{i}-{member}"));
            std::fs::File::create(&path).unwrap().set_len(3 << 20).unwrap();
            Arc::new(RoutedFile::open(path, true).unwrap())
        };
        let options =
            CreateOptions { name: "ours".to_owned(), content: Content::Zeroes, overwrite: Overwrite::Nothing };
        let members: Vec<_> = (0..5).map(device).collect();
        let array = Raid6::create(members.clone(), 65536, rotation, &options).unwrap();
        array.write(5, &[1; 1000]).unwrap();
        let Some(open) = examine(&dir.path().join(format!("{i}-1"))) else { return };
        assert_eq!(open["State"], "active", "{rotation}");
        let uuid = array.uuid();
        array.close().unwrap();
        let found = examine(&dir.path().join(format!("{i}-1"))).unwrap();
        for (name, value) in [
            ("Magic", "a92b4efc"),
            ("Version", "1.2"),
            ("Feature Map", "0x0"),
            ("Array UUID", &uuid),
            ("Name", "ours"),
            ("Raid Level", "raid6"),
            ("Raid Devices", "5"),
            ("Array Size", "6144 KiB (6.00 MiB 6.29 MB)"),
            ("Avail Dev Size", "4096 sectors"),
            ("Data Offset", "2048 sectors"),
            ("Super Offset", "8 sectors"),
            ("State", "clean"),
            ("Events", "3"),
            ("Layout", rotation.name()),
            ("Chunk Size", "64K"),
            ("Device Role", "Active device 1"),
            ("Array State", "AAAAA ('A' == active, '.' == missing, 'R' == replacing)"),
        ] {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name} of {rotation}: {found:?}");
        }
        assert!(found["Checksum"].ends_with("correct"), "{found:?}");
        // Degraded.
        let array = Raid6::assemble(members[1..].to_vec(), true).unwrap();
        array.write(5, &[1; 1000]).unwrap();
        array.close().unwrap();
        let found = examine(&dir.path().join(format!("{i}-1"))).unwrap();
        assert!(found["Array State"].starts_with(".AAAA"), "{found:?}");
    }
}
