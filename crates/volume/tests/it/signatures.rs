//! What is recognised on images that the formats' own programs have made, beside what blkid says of them.

use crate::support::{CHEAP_ARGON2, CHEAP_PBKDF2, Place, run, text};
use bifolio_testing::{command, skip};
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::signatures::{self, Overwrite};
use bifolio_volume::{ErrorKind, FileDevice, Load, RoutedFile};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn names(path: &Path) -> Vec<&'static str> {
    let found = signatures::look(&FileDevice::open(path, false).unwrap()).unwrap();
    found.iter().map(|found| found.name).collect()
}

/// The label of the only thing that is found.
fn label(path: &Path) -> Option<String> {
    let found = signatures::look(&FileDevice::open(path, false).unwrap()).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].label.clone()
}

/// Whether a program is there. Set-up installs none of them: what they make is also made by hand, in unit tests.
fn has(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        skip(format_args!("{program} is not installed"));
    }
    found
}

/// Blkid's own name of what is there.
fn by_blkid(path: &Path) -> Option<String> {
    if !has("blkid") {
        return None;
    }
    let output = command("blkid").args(["-p", "-o", "value", "-s", "TYPE"]).arg(path).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    Some(said.trim().to_owned()).filter(|said| !said.is_empty())
}

/// Makes an image with a program, if that is installed.
fn made(place: &Place, name: &str, size: u64, program: &str, args: &[&str]) -> Option<std::path::PathBuf> {
    if !has(program) {
        return None;
    }
    let path = place.empty(name, size);
    run(program, &[args, &[&text(&path)]].concat());
    Some(path)
}

#[test]
fn file_systems_and_swap_are_found_with_their_labels_and_as_blkid_finds_them() {
    let place = Place::new();
    for (name, size, program, args) in [
        ("ext2", 8 * MIB, "mkfs.ext4", &["-q", "-t", "ext2", "-L", "a label"][..]),
        ("ext3", 8 * MIB, "mkfs.ext4", &["-q", "-t", "ext3", "-L", "a label"]),
        ("ext4", 8 * MIB, "mkfs.ext4", &["-q", "-t", "ext4", "-L", "a label"]),
        ("xfs", 320 * MIB, "mkfs.xfs", &["-q", "-L", "a_label"]),
        ("btrfs", 128 * MIB, "mkfs.btrfs", &["-q", "-L", "a label"]),
        ("swap", 8 * MIB, "mkswap", &["-q", "-L", "a label"]),
        ("vfat", 8 * MIB, "mkfs.vfat", &["-n", "A LABEL"]),
        ("exfat", 8 * MIB, "mkfs.exfat", &["-n", "A LABEL"]),
        ("ntfs", 8 * MIB, "mkfs.ntfs", &["-q", "-F", "-L", "A LABEL"]),
        ("f2fs", 64 * MIB, "mkfs.f2fs", &["-q", "-l", "a label"]),
        ("minix", 8 * MIB, "mkfs.minix", &[]),
    ] {
        let Some(path) = made(&place, name, size, program, args) else { continue };
        assert_eq!(names(&path), [name]);
        if let Some(said) = by_blkid(&path) {
            assert_eq!(said, name);
        }
        if !args.is_empty() && !matches!(name, "exfat" | "ntfs") {
            assert!(label(&path).is_some_and(|label| label.to_lowercase().replace('_', " ") == "a label"), "{name}");
        }
        // It is data that would be lost, and nobody writes onto it unasked.
        let device = FileDevice::open(&path, true).unwrap();
        let error = signatures::check(&[&device], &Overwrite::Nothing).unwrap_err();
        assert!(
            error.kind() == bifolio_block::ErrorKind::Exists && error.to_string().contains(&format!("--force={name}")),
            "{error}"
        );
        signatures::erase(&device, |_| true).unwrap();
        assert_eq!(by_blkid(&path), None, "{name} is erased for blkid, too");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn volumes_and_members_are_found() {
    let place = Place::new();
    if has("cryptsetup") {
        let key = place.text("key");
        for (version, cheap) in [("luks1", &CHEAP_PBKDF2[..]), ("luks2", &CHEAP_ARGON2)] {
            let path = place.empty(version, 20 * MIB);
            run("cryptsetup", &[&["luksFormat", "-q", "--type", version], cheap, &[&text(&path), &key]].concat());
            assert_eq!(names(&path), ["luks"]);
            assert!(by_blkid(&path).is_none_or(|said| said == "crypto_LUKS"));
        }
        // The second copy alone.
        let path = place.path("luks2");
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&[0; 0x4000], 0).unwrap();
        assert_eq!(names(&path), ["luks"]);
    }
    if has("qemu-img") {
        // Nothing that is recognised: an image in somebody's format.
        let path = place.path("disk.qcow2");
        run("qemu-img", &["create", "-q", "-f", "qcow2", &text(&path), "8M"]);
        assert_eq!(names(&path), [signatures::DATA]);
    }
    if has("sfdisk") {
        for kind in ["dos", "gpt"] {
            let path = place.empty(kind, 8 * MIB);
            let script = format!("label: {kind}\n,4M\n");
            let folder = place.path("script");
            std::fs::write(&folder, script).unwrap();
            let done = command("sfdisk").arg("-q").arg(&path).stdin(std::fs::File::open(&folder).unwrap()).status();
            assert!(done.unwrap().success());
            assert!(names(&path).contains(if kind == "dos" { &"mbr" } else { &"gpt" }), "{kind}");
        }
    }
}

#[test]
fn members_of_arrays_are_found_and_a_new_array_is_all_that_is_found_afterwards() {
    let place = Place::new();
    let paths: Vec<_> = (0..4).map(|number| place.empty(&format!("m{number}"), 4 * MIB)).collect();
    let open = || paths.iter().map(|path| Arc::new(RoutedFile::open(path, true).unwrap()) as Arc<dyn Load>);
    let create = |overwrite| {
        let options = CreateOptions { name: "second".to_owned(), content: Content::Unknown, overwrite };
        Raid6::create(open().collect(), 16 << 10, Rotation::LeftSymmetric, &options).map(drop)
    };
    if has("mkfs.ext4") {
        run("mkfs.ext4", &["-q", "-L", "first", &text(&paths[1])]);
        let before = std::fs::read(&paths[1]).unwrap();
        let error = create(Overwrite::Nothing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
        assert!(error.to_string().contains("an ext4 file system \"first\" (at byte 1080)"), "{error}");
        assert!(create(Overwrite::Named(vec!["xfs".to_owned(), "md".to_owned()])).is_err());
        assert!(std::fs::read(&paths[1]).unwrap() == before && names(&paths[0]).is_empty(), "nothing was written");
    }
    create(Overwrite::Named(vec!["ext4".to_owned()])).unwrap();
    for path in &paths {
        assert_eq!(names(path), ["md"]);
        assert!(by_blkid(path).is_none_or(|said| said == "linux_raid_member"));
        assert_eq!(label(path).as_deref(), Some("second"));
    }
}

/// A block device that is mounted, or that anything else of the system uses, is not written to.
#[test]
fn a_block_device_that_the_system_uses_is_refused() {
    use std::os::unix::fs::OpenOptionsExt;
    let place = Place::new();
    let path = place.empty("disk", 4 * MIB);
    let attached = command("losetup").args(["--find", "--show"]).arg(&path).output();
    let Some(device) = attached.ok().filter(|output| output.status.success()) else {
        return skip("no loop device can be attached here");
    };
    let device = String::from_utf8(device.stdout).unwrap().trim().to_owned();
    // As the kernel holds one that it has mounted.
    let held = std::fs::File::options().read(true).write(true).custom_flags(libc::O_EXCL).open(&device);
    let refused = FileDevice::open(&device, true).map(drop);
    let reading = FileDevice::open(&device, false).map(drop);
    drop(held);
    let afterwards = FileDevice::open(&device, true).map(drop);
    run("losetup", &["--detach", &device]);
    assert_eq!(refused.unwrap_err().kind(), bifolio_block::ErrorKind::InUse);
    assert!(reading.is_ok() && afterwards.is_ok());
}
