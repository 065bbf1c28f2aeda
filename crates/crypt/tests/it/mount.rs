//! The mounted file system, as programs see it: what is not the same on every file system, damage, and the end.

use crate::support::{Ours, PASSPHRASE, Place, can_mount};
use bifolio_crypt::config::Features;
use bifolio_crypt::content::layout;
use bifolio_crypt::{MountOptions, Unmounted};
use bifolio_testing::{noise, skip, until};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap()
}

fn name(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (name(from), name(to));
    // SAFETY: the paths end with zero bytes.
    let done = unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounted with sentences about damage kept.
fn mount_listening(place: &Place) -> (Ours, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(vec![]));
    let ears = Arc::clone(&said);
    let warn = Arc::new(move |sentence: &str| ears.lock().unwrap().push(sentence.to_owned()));
    (place.mount_with(&MountOptions { warn, ..MountOptions::default() }), said)
}

#[test]
fn files_that_were_removed_live_until_they_are_closed() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let _ours = place.mount();
    for long in ["short".to_owned(), "l".repeat(255)] {
        let path = place.ours().join(&long);
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"before", 0).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!path.exists());
        file.write_all_at(&noise(10_000, 1), 100).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 10_100);
        file.set_len(5000).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        let mut content = vec![0; 5000];
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(content[100..] == noise(10_000, 1)[..4900] && content.starts_with(b"before\0"));
        // Another of this name is another file.
        fs::write(&path, "new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        file.read_exact_at(&mut content[..6], 0).unwrap();
        assert_eq!(&content[..6], b"before");
        // Replaced by a rename while it is open.
        let replaced = File::open(&path).unwrap();
        fs::write(place.ours().join("other"), "other").unwrap();
        fs::rename(place.ours().join("other"), &path).unwrap();
        assert_eq!(io::read_to_string(replaced).unwrap(), "new");
        assert_eq!(fs::read(&path).unwrap(), b"other");
    }
    // Of hashed names no file stays behind.
    fs::remove_file(place.ours().join("l".repeat(255))).unwrap();
    let left: Vec<_> = fs::read_dir(place.cipher()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("longname")), "{left:?}");
}

#[test]
fn numbers_that_are_used_again_are_other_files() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let _ours = place.mount();
    for round in 0..200_u64 {
        let path = place.ours().join(format!("f{}", round % 3));
        let content = noise(5000 + round as usize, round);
        if round % 7 == 3 {
            fs::create_dir(place.ours().join("d")).unwrap();
            fs::remove_dir(place.ours().join("d")).unwrap();
        }
        fs::write(&path, &content).unwrap();
        assert!(fs::read(&path).unwrap() == content, "round {round}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn states_are_changed_and_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let ours = place.mount();
    let at = |name: &str| place.ours().join(name);
    fs::write(at("f"), "content").unwrap();
    fs::create_dir(at("d")).unwrap();
    symlink("f", at("l")).unwrap();
    fs::set_permissions(at("f"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("d"), fs::Permissions::from_mode(0o1711)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_001, 123_456_789);
    File::options().write(true).open(at("f")).unwrap().set_modified(time).unwrap();
    fs::hard_link(at("f"), at("hard")).unwrap();
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    // SAFETY: takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root {
        std::os::unix::fs::lchown(at("l"), Some(5), Some(6)).unwrap();
        std::os::unix::fs::chown(at("d"), Some(7), Some(8)).unwrap();
    } else {
        skip("owners, as this is not run as root");
    }
    let check = || {
        let file = fs::metadata(at("f")).unwrap();
        assert_eq!((file.mode() & 0o7777, file.nlink(), file.len()), (0o4751, 2, 7));
        assert_eq!(file.modified().unwrap(), time);
        assert_eq!(fs::metadata(at("hard")).unwrap().ino(), file.ino());
        assert_eq!(fs::metadata(at("d")).unwrap().mode() & 0o7777, 0o1711);
        assert!(fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
        if is_root {
            let (link, folder) = (fs::symlink_metadata(at("l")).unwrap(), fs::metadata(at("d")).unwrap());
            assert_eq!((link.uid(), link.gid(), folder.uid(), folder.gid()), (5, 6, 7, 8));
        }
    };
    check();
    drop(ours);
    let _ours = place.mount();
    check();
    // Over an entry only if there is none; two entries in each other's place.
    fs::write(at("g"), "other").unwrap();
    assert_eq!(errno(&rename_with(&at("g"), &at("f"), libc::RENAME_NOREPLACE).unwrap_err()), libc::EEXIST);
    rename_with(&at("g"), &at("d"), libc::RENAME_EXCHANGE).unwrap();
    assert!(at("g").is_dir());
    assert_eq!(fs::read(at("d")).unwrap(), b"other");
    fs::write(at("g").join("inside"), "x").unwrap();
    // A name of 255 bytes takes more than is left for one in a hash's file, and 256 are too many.
    assert_eq!(errno(&fs::write(at(&"x".repeat(256)), "").unwrap_err()), libc::ENAMETOOLONG);
    // Attributes are refused, and room can be reserved.
    let (path, key) = (name(&at("f")), c"user.key");
    // SAFETY: the strings end with zero bytes, and the value is given with its length.
    let done = unsafe { libc::setxattr(path.as_ptr(), key.as_ptr(), c"v".as_ptr().cast(), 1, 0) };
    assert_eq!((done, errno(&io::Error::last_os_error())), (-1, libc::EOPNOTSUPP));
    let file = File::options().read(true).write(true).open(at("d")).unwrap();
    let allocate = |mode, offset, len| {
        // SAFETY: takes no memory.
        let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) };
        if done == 0 { 0 } else { errno(&io::Error::last_os_error()) }
    };
    assert_eq!(allocate(libc::FALLOC_FL_KEEP_SIZE, 0, 100_000), 0);
    assert_eq!(fs::read(at("d")).unwrap(), b"other");
    assert_eq!(allocate(0, 0, 10_000), 0);
    assert_eq!(fs::read(at("d")).unwrap(), [&b"other"[..], &[0; 9995]].concat());
    assert_eq!(allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 5), libc::EOPNOTSUPP);
}

#[test]
fn what_is_changed_through_a_mapping_is_in_the_file() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let _ours = place.mount();
    let path = place.ours().join("f");
    let mut content = noise(50_000, 1);
    fs::write(&path, &content).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let (len, protection) = (content.len(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, of a file that stays as long as it is.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping has this length, and nobody else uses it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
    assert!(mapped == content);
    for at in (0..len).step_by(4999) {
        mapped[at] ^= 0xff;
        content[at] ^= 0xff;
    }
    // SAFETY: the mapping is the one from above, and is not used after.
    unsafe {
        assert_eq!(libc::msync(at, len, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(at, len), 0);
    }
    let below = place.open().open_file(Path::new("f"), false).unwrap();
    let mut stored = vec![0; len];
    assert_eq!(below.read_at(&mut stored, 0).unwrap(), len);
    assert!(stored == content);
}

#[test]
fn a_damaged_block_is_an_error_and_the_others_are_read() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let content = noise(4 << 20, 2);
    let file = place.open().create_file(Path::new("f")).unwrap();
    file.write_at(&content, 0).unwrap();
    let cipher = place.open().lookup(Path::new("f")).unwrap();
    let bad = 700;
    let at = layout::cipher_offset(bad) + 1000;
    let on_disk = File::options().read(true).write(true).open(&cipher).unwrap();
    let mut byte = [0];
    on_disk.read_exact_at(&mut byte, at).unwrap();
    on_disk.write_all_at(&[!byte[0]], at).unwrap();
    let (_ours, said) = mount_listening(&place);
    let mounted = File::open(place.ours().join("f")).unwrap();
    // SAFETY: takes no memory.
    unsafe { libc::posix_fadvise(mounted.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    for block in (0..1024).step_by(50).chain([bad - 1, bad, bad + 1]) {
        let mut buffer = vec![0xaa; 4096];
        let offset = layout::plain_offset(block);
        match mounted.read_at(&mut buffer, offset) {
            Ok(4096) if block != bad => assert!(buffer == content[offset as usize..][..4096], "block {block}"),
            Err(error) if block == bad => assert_eq!(errno(&error), libc::EIO),
            other => panic!("block {block}: {other:?}"),
        }
    }
    assert_eq!(errno(&fs::read(place.ours().join("f")).unwrap_err()), libc::EIO);
    let said = said.lock().unwrap();
    assert!(said.iter().any(|sentence| sentence.contains(&format!("block {bad} (offset"))), "{said:?}");
}

#[test]
fn what_somebody_put_into_the_encrypted_directory_is_neither_followed_nor_fatal() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let dir = place.open();
    for folder in ["a", "b", "c", "d", "e"] {
        dir.create_dir(Path::new(folder)).unwrap();
        for file in ["one", "two", "three"] {
            dir.create_file(&Path::new(folder).join(file)).unwrap().write_at(b"content", 0).unwrap();
        }
        dir.create_file(&Path::new(folder).join("l".repeat(200))).unwrap();
    }
    let cipher = |path: &str| dir.lookup(Path::new(path)).unwrap();
    let outside = place.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    // Names: noise, another directory's, and what belongs to the format.
    let folder = cipher("a");
    for name in ["noise", "AAAA", "gocryptfs.longname.AAAA", "gocryptfs.longname.AAAA.name", "gocryptfs.diriv.rmdir.1"]
    {
        fs::write(folder.join(name), "x").unwrap();
    }
    fs::copy(cipher("b/one"), folder.join(cipher("b/one").file_name().unwrap())).unwrap();
    let whole = |path: &str| format!("{}.name", cipher(path).display());
    let long = |folder: &str| format!("{folder}/{}", "l".repeat(200));
    fs::remove_file(whole(&long("a"))).unwrap();
    fs::set_permissions(whole(&long("b")), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(whole(&long("b")), "A".repeat(100_000)).unwrap();
    fs::remove_file(whole(&long("c"))).unwrap();
    assert!(Command::new("mkfifo").arg(whole(&long("c"))).status().unwrap().success());
    // Instead of files: links, a FIFO, a folder. Instead of a folder, a link.
    for (path, target) in [("a/one", outside.join("secret")), ("a/two", "/etc/passwd".into()), ("e", outside.clone())] {
        let at = cipher(path);
        fs::rename(&at, place.dir.path().join(path.replace('/', "-"))).unwrap();
        symlink(target, at).unwrap();
    }
    fs::remove_file(cipher("b/one")).unwrap();
    assert!(Command::new("mkfifo").arg(cipher("b/one")).status().unwrap().success());
    // IVs: none, a link, a FIFO.
    fs::remove_file(cipher("c").join("gocryptfs.diriv")).unwrap();
    let iv = cipher("d").join("gocryptfs.diriv");
    fs::rename(&iv, outside.join("iv")).unwrap();
    symlink(outside.join("iv"), &iv).unwrap();

    let (_ours, said) = mount_listening(&place);
    let at = |path: &str| place.ours().join(path);
    let list = |path: &str| -> io::Result<Vec<String>> {
        let entries: io::Result<Vec<_>> = fs::read_dir(at(path))?.collect();
        let mut names: Vec<_> = entries?.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        Ok(names)
    };
    assert_eq!(list("").unwrap(), ["a", "b", "c", "d", "e"]);
    assert_eq!(list("a").unwrap(), ["one", "three", "two"]);
    let sentences = said.lock().unwrap().join("\n");
    assert!(sentences.contains("noise: ") && sentences.contains("not listed"), "{sentences}");
    assert_eq!(list("b").unwrap(), ["one", "three", "two"]);
    for damaged in ["c", "d"] {
        assert_eq!(errno(&list(damaged).unwrap_err()), libc::EIO);
        assert_eq!(errno(&fs::read(at(damaged).join("one")).unwrap_err()), libc::EIO);
        assert!(at(damaged).metadata().unwrap().is_dir());
    }
    // A link's target is what it decrypts to, and these do not.
    for link in ["a/one", "a/two", "e"] {
        assert_eq!(errno(&fs::read_link(at(link)).unwrap_err()), libc::EIO);
        assert_eq!(errno(&fs::read(at(link)).unwrap_err()), libc::EIO);
    }
    assert!(fs::symlink_metadata(at("b/one")).unwrap().file_type().is_fifo());
    assert_eq!(fs::read(at("a/three")).unwrap(), b"content");
    // It can still be cleared away, and replaced.
    fs::remove_file(at("a/one")).unwrap();
    fs::write(at("a/one"), "new").unwrap();
    assert_eq!(fs::read(at("a/one")).unwrap(), b"new");
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
}

#[test]
fn a_mount_for_reading_changes_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    place.open().create_file(Path::new("f")).unwrap().write_at(b"content", 0).unwrap();
    let _ours = place.mount_with(&MountOptions { is_read_only: true, ..MountOptions::default() });
    let path = place.ours().join("f");
    assert_eq!(fs::read(&path).unwrap(), b"content");
    assert_eq!(errno(&fs::write(&path, "x").unwrap_err()), libc::EROFS);
    assert_eq!(errno(&fs::remove_file(&path).unwrap_err()), libc::EROFS);
}

#[test]
fn many_threads_at_once_do_not_disturb_each_other() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let ours = place.mount();
    let root = place.ours();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let root = &root;
            scope.spawn(move || {
                let folder = root.join(format!("folder-{thread}-{}", "l".repeat(200)));
                fs::create_dir(&folder).unwrap();
                for round in 0..30 {
                    let (one, two) = (folder.join("one"), root.join(format!("moved-{thread}")));
                    let content = noise(round * 1500, round as u64);
                    fs::write(&one, &content).unwrap();
                    fs::rename(&one, &two).unwrap();
                    assert!(fs::read(&two).unwrap() == content);
                    assert_eq!(fs::read_dir(&folder).unwrap().count(), round);
                    assert!(fs::read_dir(root).unwrap().count() >= 2);
                    fs::rename(&two, folder.join(format!("kept-{round}"))).unwrap();
                }
            });
        }
    });
    drop(ours);
    let _ours = place.mount();
    for thread in 0..4 {
        let folder = root.join(format!("folder-{thread}-{}", "l".repeat(200)));
        for round in 0..30 {
            let content = fs::read(folder.join(format!("kept-{round}"))).unwrap();
            assert!(content == noise(round * 1500, round as u64));
        }
        // Short names and long ones, in more than one answer of the kernel's.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 30);
        fs::remove_dir_all(&folder).unwrap();
    }
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
}

#[test]
fn large_directories_are_listed_whole_and_once() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let _ours = place.mount();
    let names: std::collections::BTreeSet<String> =
        (0..1500).map(|number| format!("{number}-{}", "n".repeat(number % 200))).collect();
    for name in &names {
        File::create(place.ours().join(name)).unwrap();
    }
    let listed: Vec<_> = fs::read_dir(place.ours()).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(listed.len(), names.len());
    for entry in listed {
        assert!(names.contains(entry.file_name().to_str().unwrap()));
        assert_eq!(entry.metadata().unwrap().ino(), std::os::unix::fs::DirEntryExt::ino(&entry));
    }
}

#[test]
fn a_full_disk_is_said_to_the_writer() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let small = Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "t"]).arg(place.theirs()).output();
    if !small.is_ok_and(|output| output.status.success()) {
        skip("a small file system cannot be mounted here");
        return;
    }
    let options = bifolio_crypt::InitOptions { features: Features::DEFAULT, scrypt_log_n: 10 };
    bifolio_crypt::CipherDir::init(&place.theirs(), PASSPHRASE, options).unwrap();
    let dir = bifolio_crypt::CipherDir::open(&place.theirs(), &bifolio_crypt::Key::Passphrase(PASSPHRASE)).unwrap();
    let mounted = bifolio_crypt::mount(&dir, &place.ours(), &MountOptions::default()).unwrap();
    drop(dir);
    fs::write(place.ours().join("f"), noise(100_000, 1)).unwrap();
    let mut file = File::options().append(true).open(place.ours().join("f")).unwrap();
    let error = loop {
        if let Err(error) = file.write_all(&noise(50_000, 2)) {
            break error;
        }
    };
    assert_eq!(errno(&error), libc::ENOSPC);
    drop(file);
    let content = fs::read(place.ours().join("f")).unwrap();
    assert!(content.starts_with(&noise(100_000, 1)), "what was there before is as it was");
    mounted.unmount().unwrap();
    mounted.wait().unwrap();
    assert!(Command::new("umount").arg(place.theirs()).status().unwrap().success());
}

/// Opens a name in a directory, which may be deeper than a path can be long.
fn open_in(folder: &File, entry: &str, flags: i32) -> io::Result<File> {
    let entry = CString::new(entry).unwrap();
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::openat(folder.as_raw_fd(), entry.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    // SAFETY: the descriptor is new, and nobody else has it.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(fd) }) }
}

/// A directory was opened by way of at most 512 others, and the ones above it are not kept open in a large tree: what
/// is in it then failed with ELOOP.
#[test]
fn trees_are_as_deep_as_they_are_made() {
    const DEPTH: usize = 2500;
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let ours = place.mount();
    let folder = |parent: &File, name: &str| open_in(parent, name, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    let root = File::open(place.ours()).unwrap();
    let mut kept = vec![];
    let mut here = root.try_clone().unwrap();
    for depth in 0..DEPTH {
        // SAFETY: the name ends with a zero byte.
        assert_eq!(unsafe { libc::mkdirat(here.as_raw_fd(), c"d".as_ptr(), 0o700) }, 0, "depth {depth}");
        here = folder(&here, "d");
        if [100, 700, 1400, 2400].contains(&depth) {
            kept.push(here.try_clone().unwrap());
        }
    }
    kept.push(here);
    for (number, folder) in kept.iter().enumerate() {
        let name = format!("file-{number}");
        let file = open_in(folder, &name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL).unwrap();
        file.write_all_at(name.as_bytes(), 0).unwrap();
    }
    drop((kept, root));
    drop(ours);
    let _ours = place.mount();
    let mut way = vec![File::open(place.ours()).unwrap()];
    let mut found = 0;
    for _ in 0..DEPTH {
        let next = folder(&way[way.len() - 1], "d");
        if let Ok(file) = open_in(&next, &format!("file-{found}"), libc::O_RDONLY) {
            assert_eq!(io::read_to_string(file).unwrap(), format!("file-{found}"));
            found += 1;
        }
        // Few descriptors, and the parents of all.
        way = vec![next];
    }
    assert_eq!(found, 5);
    // Away with it, from below.
    let mut here = way.remove(0);
    for depth in (0..DEPTH).rev() {
        for number in 0..5 {
            let name = CString::new(format!("file-{number}")).unwrap();
            // SAFETY: the name ends with a zero byte.
            unsafe { libc::unlinkat(here.as_raw_fd(), name.as_ptr(), 0) };
        }
        here = folder(&here, "..");
        // SAFETY: the name ends with a zero byte.
        assert_eq!(unsafe { libc::unlinkat(here.as_raw_fd(), c"d".as_ptr(), libc::AT_REMOVEDIR) }, 0, "depth {depth}");
    }
    assert_eq!(fs::read_dir(place.ours()).unwrap().count(), 0);
}

#[test]
fn unmounting_from_outside_ends_it_and_unmounting_in_use_detaches_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new(Features::DEFAULT);
    let mounted = bifolio_crypt::mount(&place.open(), &place.ours(), &MountOptions::default()).unwrap();
    fs::write(place.ours().join("f"), "content").unwrap();
    // Whatever watches mounts may look at it for a moment.
    let unmount = || Command::new("fusermount3").arg("-u").arg(place.ours()).status().unwrap().success();
    until("it is unmounted", unmount);
    mounted.wait().unwrap();
    assert!(!place.ours().join("f").exists());

    let mounted = bifolio_crypt::mount(&place.open(), &place.ours(), &MountOptions::default()).unwrap();
    let mut file = File::options().append(true).read(true).open(place.ours().join("f")).unwrap();
    let (begun, wait) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut written = 7;
        for round in 0..200 {
            file.write_all(&noise(10_000, round)).unwrap();
            written += 10_000;
            if round == 10 {
                begun.send(()).unwrap();
            }
        }
        file.sync_all().unwrap();
        written
    });
    wait.recv().unwrap();
    let outcome = mounted.unmount().unwrap();
    let written = writer.join().unwrap();
    if outcome == Unmounted::Detached {
        assert!(!place.ours().join("f").exists(), "it is out of sight");
    }
    until("it ends when the last file is closed", || mounted.is_over());
    mounted.wait().unwrap();
    let _ours = place.mount();
    let mut content = vec![];
    File::open(place.ours().join("f")).unwrap().read_to_end(&mut content).unwrap();
    assert_eq!(content.len(), written);
    for round in 0..200_u64 {
        assert!(content[7 + round as usize * 10_000..][..10_000] == noise(10_000, round)[..]);
    }
}

#[test]
fn mount_points_that_cannot_be_are_refused_with_a_sentence() {
    let place = Place::new(Features::DEFAULT);
    let refused =
        |path: &Path| bifolio_crypt::mount(&place.open(), path, &MountOptions::default()).unwrap_err().to_string();
    assert!(refused(&place.cipher()).contains("itself"));
    assert!(refused(&place.dir.path().join("passphrase")).contains("not a directory"));
    assert!(refused(&place.dir.path().join("none")).contains("none"));
    fs::write(place.ours().join("file"), "").unwrap();
    assert!(refused(&place.ours()).contains("not empty"));
}
