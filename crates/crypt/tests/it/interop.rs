//! gocryptfs reads what we write, and we read what it writes.

use crate::support::{PASSPHRASE, Place, can_mount};
use bifolio_crypt::config::Features;
use bifolio_crypt::{CipherDir, ErrorKind, Key};
use bifolio_testing::{has, noise};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// Sizes around the bounds of blocks, of pieces and of requests.
const SIZES: [usize; 12] = [0, 1, 15, 4095, 4096, 4097, 8191, 8192, 65_536 + 17, 262_144, 1_048_576 + 1, 3_000_001];

/// What a tree holds: for each path its kind, mode, and content or target.
type Content = BTreeMap<Vec<u8>, (char, u32, Vec<u8>)>;

fn look(root: &Path) -> Content {
    fn walk(root: &Path, folder: &Path, content: &mut Content) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let state = fs::symlink_metadata(&path).unwrap();
            let (kind, bytes) = if state.is_dir() {
                walk(root, &path, content);
                ('d', vec![])
            } else if state.is_symlink() {
                let target = fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec();
                assert_eq!(state.len(), target.len() as u64, "a link's size is its target's length");
                ('l', target)
            } else if state.is_file() {
                let bytes = fs::read(&path).unwrap();
                assert_eq!(state.len(), bytes.len() as u64);
                ('f', bytes)
            } else {
                ('o', vec![])
            };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            assert!(content.insert(name, (kind, state.mode() & 0o7777, bytes)).is_none(), "listed twice");
        }
    }
    let mut content = Content::new();
    walk(root, root, &mut content);
    content
}

/// Makes a tree with everything in it, and changes it; returns what it must hold.
fn build(root: &Path, name_bytes_max: usize) -> Content {
    let long = |letter: char| letter.to_string().repeat(name_bytes_max);
    for (index, size) in SIZES.into_iter().enumerate() {
        fs::write(root.join(format!("size-{size}")), noise(size, index as u64)).unwrap();
    }
    for name in [" ", "-", "gocryptfs.diriv", "gocryptfs.longname.x", "Grüße-日本-🦀", "new\nline", "a.name", "."]
    {
        if name != "." {
            fs::write(root.join("x").with_file_name(name), name).unwrap();
        }
    }
    for len in [1, 15, 16, 17, 31, 32, 111, 143, 144, 159, 160, 175, 176, 254, 255] {
        if len <= name_bytes_max {
            fs::write(root.join("n".repeat(len)), len.to_string()).unwrap();
        }
    }
    // A long folder with a long file, renamed within, out of it and over another.
    let folder = root.join(long('d'));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(long('f')), "one").unwrap();
    fs::rename(folder.join(long('f')), folder.join(long('g'))).unwrap();
    fs::write(root.join(long('h')), "old").unwrap();
    fs::rename(folder.join(long('g')), root.join(long('h'))).unwrap();
    fs::rename(root.join(long('h')), folder.join("short")).unwrap();
    fs::write(folder.join(long('i')), "goes").unwrap();
    fs::remove_file(folder.join(long('i'))).unwrap();
    fs::create_dir(folder.join(long('j'))).unwrap();
    fs::remove_dir(folder.join(long('j'))).unwrap();
    // A directory renamed over an empty one, and one that is not empty.
    for name in ["from", "to", "full"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    fs::write(root.join("from/file"), "moved").unwrap();
    fs::write(root.join("full/file"), "stays").unwrap();
    fs::rename(root.join("from"), root.join("to")).unwrap();
    assert_eq!(fs::rename(root.join("to"), root.join("full")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    assert_eq!(fs::remove_dir(root.join("full")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    let mut deep = root.to_owned();
    for level in 0..40 {
        deep = deep.join(format!("level-{level}"));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), "deep").unwrap();
    symlink("/absolute/target", root.join("link")).unwrap();
    symlink("t".repeat(1000), root.join("long-link")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    fs::hard_link(root.join("size-4097"), root.join("hard")).unwrap();
    fs::set_permissions(root.join("size-15"), fs::Permissions::from_mode(0o640)).unwrap();
    // Cut, made longer, holes, appended, overwritten in the middle.
    let mut changed = noise(20_000, 99);
    let path = root.join("changed");
    fs::write(&path, &changed).unwrap();
    let mut file = fs::File::options().write(true).read(true).open(&path).unwrap();
    for len in [12_289, 12_288, 5000, 60_000, 61_441, 61_440, 50_000] {
        file.set_len(len).unwrap();
        changed.resize(len as usize, 0);
    }
    file.write_all_at(b"far away", 200_001).unwrap();
    changed.resize(200_001, 0);
    changed.extend_from_slice(b"far away");
    file.write_all_at(&noise(10_000, 5), 6000).unwrap();
    changed[6000..16_000].copy_from_slice(&noise(10_000, 5));
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"end").unwrap();
    changed.extend_from_slice(b"end");
    drop(file);
    assert!(fs::read(&path).unwrap() == changed, "the file is not what was written");
    look(root)
}

#[track_caller]
fn assert_same(one: &Content, other: &Content) {
    for (path, held) in one {
        let found = other.get(path);
        let name = String::from_utf8_lossy(path);
        let found = found.unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((held.0, held.1, held.2.len()), (found.0, found.1, found.2.len()), "{name}");
        assert!(held.2 == found.2, "{name}: other bytes");
    }
    assert_eq!(one.len(), other.len());
}

/// Both ways, for a variant of the format: we write and they read, they write and we read.
fn both_ways(place: &Place, name_bytes_max: usize) {
    let ours = place.mount();
    fs::create_dir(place.ours().join("by us")).unwrap();
    let written = build(&place.ours().join("by us"), name_bytes_max);
    drop(ours);
    let theirs = place.mount_theirs();
    assert_same(&written, &look(&place.theirs().join("by us")));
    fs::create_dir(place.theirs().join("by them")).unwrap();
    let written = build(&place.theirs().join("by them"), name_bytes_max);
    drop(theirs);
    place.gocryptfs(&["-fsck"], &[&place.cipher()]);
    let _ours = place.mount();
    assert_same(&written, &look(&place.ours().join("by them")));
    assert_eq!(fs::read_dir(place.ours()).unwrap().count(), 2);
    // Without the mount as well.
    let dir = place.open();
    for (path, (kind, _, bytes)) in &written {
        let plain = Path::new("by them").join(std::ffi::OsStr::from_bytes(path));
        let cipher = dir.lookup(&plain).unwrap();
        assert_eq!(dir.plain_path(&cipher).unwrap(), plain);
        if *kind == 'f' {
            let file = dir.open_file(&plain, false).unwrap();
            let mut content = vec![0xaa; bytes.len() + 10];
            assert_eq!(file.read_at(&mut content, 0).unwrap(), bytes.len());
            assert!(content[..bytes.len()] == **bytes, "{}", plain.display());
        }
    }
}

#[test]
fn trees_are_the_same_in_directories_that_gocryptfs_made() {
    if !can_mount() || !has("gocryptfs") {
        return;
    }
    both_ways(&Place::of_gocryptfs(&[]), 255);
}

#[test]
fn trees_are_the_same_in_directories_that_we_made() {
    if !can_mount() || !has("gocryptfs") {
        return;
    }
    both_ways(&Place::new(Features::DEFAULT), 255);
}

#[test]
fn trees_are_the_same_with_hashes_for_shorter_names() {
    if !can_mount() || !has("gocryptfs") {
        return;
    }
    both_ways(&Place::new(Features { long_name_max: 62, ..Features::DEFAULT }), 255);
}

#[test]
fn trees_are_the_same_in_older_variants() {
    if !can_mount() || !has("gocryptfs") {
        return;
    }
    both_ways(&Place::of_gocryptfs(&["-hkdf=false", "-raw64=false"]), 255);
    both_ways(&Place::of_gocryptfs(&["-longnames=false"]), 175);
    both_ways(&Place::of_gocryptfs(&["-deterministic-names"]), 255);
}

#[test]
fn trees_are_the_same_with_plain_names() {
    if !can_mount() || !has("gocryptfs") {
        return;
    }
    both_ways(&Place::of_gocryptfs(&["-plaintextnames"]), 255);
    both_ways(&Place::new(Features::PLAINTEXT_NAMES), 255);
}

#[test]
fn variants_that_are_not_implemented_are_named() {
    if !has("gocryptfs") {
        return;
    }
    for (option, name) in [("-aessiv", "AES-SIV"), ("-xchacha", "XChaCha20"), ("-reverse", "reverse mode")] {
        let place = Place::of_gocryptfs(&[option]);
        let error = CipherDir::open(&place.cipher(), &Key::Passphrase(PASSPHRASE)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotACipherDir), "{error}");
    }
}

#[test]
fn a_changed_passphrase_is_gocryptfs_s_too_and_the_master_key_stays() {
    if !can_mount() || !has("gocryptfs") {
        return;
    }
    let place = Place::of_gocryptfs(&[]);
    place.open().create_file(Path::new("file")).unwrap().write_at(b"content", 0).unwrap();
    let master = CipherDir::master_key(&place.cipher(), PASSPHRASE).unwrap();
    CipherDir::change_passphrase(&place.cipher(), &Key::Passphrase(PASSPHRASE), b"another").unwrap();
    let error = CipherDir::open(&place.cipher(), &Key::Passphrase(PASSPHRASE)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    fs::write(place.dir.path().join("passphrase"), "another\n").unwrap();
    let theirs = place.mount_theirs();
    assert_eq!(fs::read(place.theirs().join("file")).unwrap(), b"content");
    drop(theirs);
    // The configuration is lost: the master key opens it, and makes a new one.
    fs::remove_file(place.cipher().join("gocryptfs.conf")).unwrap();
    let by_master = CipherDir::open(&place.cipher(), &Key::Master(master.clone())).unwrap();
    assert_eq!(by_master.open_file(Path::new("file"), false).unwrap().len().unwrap(), 7);
    let mut wrong = master.clone();
    wrong[31] ^= 1;
    let error = CipherDir::open(&place.cipher(), &Key::Master(wrong)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    CipherDir::change_passphrase(&place.cipher(), &Key::Master(master), b"another").unwrap();
    let theirs = place.mount_theirs();
    assert_eq!(fs::read(place.theirs().join("file")).unwrap(), b"content");
    drop(theirs);
}
