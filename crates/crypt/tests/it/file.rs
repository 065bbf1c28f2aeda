//! `CryptFile` beside a vector of bytes, with damage done to the encrypted file, and with a disk that is full.

use crate::support::Place;
use bifolio_crypt::config::Features;
use bifolio_crypt::content::layout;
use bifolio_crypt::{CipherDir, CryptFile, ErrorKind};
use bifolio_testing::{noise, skip};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = layout::PLAIN_BLOCK_BYTES as usize;

fn place() -> (Place, CipherDir) {
    let place = Place::new(Features::DEFAULT);
    let dir = place.open();
    (place, dir)
}

/// A file with content, and its encrypted file.
fn file(dir: &CipherDir, name: &str, content: &[u8]) -> (CryptFile, PathBuf) {
    let file = dir.create_file(Path::new(name)).unwrap();
    file.write_at(content, 0).unwrap();
    (file, dir.lookup(Path::new(name)).unwrap())
}

/// All that is read, into memory that held something else.
fn whole(file: &CryptFile) -> Vec<u8> {
    let mut content = vec![0xaa; file.len().unwrap() as usize + 1];
    let read = file.read_at(&mut content, 0).unwrap();
    assert_eq!(read, content.len() - 1);
    content.truncate(read);
    content
}

#[derive(Debug, Clone)]
enum Step {
    Write { offset: usize, len: usize },
    Read { offset: usize, len: usize },
    SetLen(usize),
    ExtendTo(usize),
    Reopen,
}

/// Offsets and lengths near the bounds of blocks as often as anywhere.
fn place_in_file() -> impl Strategy<Value = usize> {
    let near = (0..20_usize, 0..5_usize).prop_map(|(block, by)| (block * BLOCK + by).saturating_sub(2));
    prop_oneof![near, 0..80_000_usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (place_in_file(), place_in_file()).prop_map(|(offset, len)| Step::Write { offset, len: len / 2 }),
        3 => (place_in_file(), place_in_file()).prop_map(|(offset, len)| Step::Read { offset, len }),
        2 => place_in_file().prop_map(Step::SetLen),
        1 => place_in_file().prop_map(Step::ExtendTo),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_sequence_of_requests_is_as_on_a_vector(steps in proptest::collection::vec(step(), 1..40)) {
        let (_place, dir) = place();
        let mut file = dir.create_file(Path::new("f")).unwrap();
        let mut oracle: Vec<u8> = vec![];
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write { offset, len } => {
                    let data = noise(len, number as u64);
                    file.write_at(&data, offset as u64).unwrap();
                    if len > 0 {
                        oracle.resize(oracle.len().max(offset + len), 0);
                        oracle[offset..offset + len].copy_from_slice(&data);
                    }
                }
                Step::Read { offset, len } => {
                    let mut buffer = vec![0xaa; len];
                    let read = file.read_at(&mut buffer, offset as u64).unwrap();
                    let expected = oracle.get(offset..).unwrap_or_default();
                    prop_assert_eq!(read, expected.len().min(len));
                    prop_assert!(buffer[..read] == expected[..read]);
                }
                Step::SetLen(len) => {
                    file.set_len(len as u64).unwrap();
                    oracle.resize(len, 0);
                }
                Step::ExtendTo(len) => {
                    file.extend_to(len as u64).unwrap();
                    oracle.resize(oracle.len().max(len), 0);
                }
                Step::Reopen => {
                    drop(file);
                    file = dir.open_file(Path::new("f"), true).unwrap();
                }
            }
            prop_assert_eq!(file.len().unwrap(), oracle.len() as u64);
        }
        prop_assert!(whole(&file) == oracle);
    }
}

#[test]
fn large_requests_are_shared_out_and_come_back_whole() {
    let (_place, dir) = place();
    let content = noise(13_000_001, 1);
    let (file, _) = file(&dir, "large", &content);
    assert!(whole(&file) == content);
    for (offset, len) in [(1, 12_000_000), (4095, 5_000_003), (8_388_608, 4_611_393), (12_000_000, 9_000_000)] {
        let mut buffer = vec![0xaa; len];
        let read = file.read_at(&mut buffer, offset as u64).unwrap();
        assert_eq!(read, len.min(content.len() - offset));
        assert!(buffer[..read] == content[offset..offset + read], "{offset} {len}");
    }
    let mut changed = content;
    let data = noise(9_000_000, 2);
    file.write_at(&data, 1_234_567).unwrap();
    changed[1_234_567..10_234_567].copy_from_slice(&data);
    assert!(whole(&file) == changed);
}

#[test]
fn a_changed_bit_fails_its_own_block_and_no_other() {
    let (_place, dir) = place();
    let content = noise(5 * BLOCK + 100, 3);
    let (file, cipher) = file(&dir, "f", &content);
    let on_disk = fs::File::options().read(true).write(true).open(&cipher).unwrap();
    let len = on_disk.metadata().unwrap().len();
    // Every byte of the first block's nonce and tag, and some of each block.
    let places = (18..34).chain(18 + 4112..18 + 4128).chain((40..len).step_by(373)).chain([len - 1]);
    for at in places {
        let mut byte = [0];
        on_disk.read_exact_at(&mut byte, at).unwrap();
        on_disk.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
        let bad = (at - layout::HEADER_BYTES) / layout::CIPHER_BLOCK_BYTES;
        for block in 0..6 {
            let offset = layout::plain_offset(block) as usize;
            let expected = &content[offset..content.len().min(offset + BLOCK)];
            let mut buffer = vec![0xaa; BLOCK];
            let read = file.read_at(&mut buffer, offset as u64);
            if block == bad {
                let error = read.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                let sentence = error.to_string();
                let cipher_offset = layout::cipher_offset(block);
                for part in ["f: ", &format!("block {block} (offset {offset},"), &format!("file {cipher_offset})")] {
                    assert!(sentence.contains(part), "{sentence}");
                }
                let leaked = buffer.iter().zip(expected).filter(|(byte, plain)| byte == plain).count();
                assert!(leaked < BLOCK / 16, "nothing of the block may be given out, {leaked} bytes are the same");
            } else {
                assert_eq!(read.unwrap(), expected.len());
                assert!(buffer[..expected.len()] == *expected);
            }
        }
        // A write of a part of it would make the rest up.
        let error = file.write_at(b"x", layout::plain_offset(bad) + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        on_disk.write_all_at(&byte, at).unwrap();
    }
    assert!(whole(&file) == content);
}

#[test]
fn a_changed_header_fails_the_whole_file() {
    let (_place, dir) = place();
    let (file, cipher) = file(&dir, "f", &noise(10_000, 3));
    drop(file);
    let original = fs::read(&cipher).unwrap();
    for at in 0..18 {
        let mut changed = original.clone();
        changed[at] ^= 4;
        fs::write(&cipher, changed).unwrap();
        let file = dir.open_file(Path::new("f"), false).unwrap();
        let error = file.read_at(&mut [0; 10_000], 0).unwrap_err();
        let expected = if at < 2 { ErrorKind::Damaged } else { ErrorKind::Corrupt };
        assert_eq!(error.kind(), expected, "{at}: {error}");
    }
}

#[test]
fn blocks_in_another_place_or_of_another_file_are_refused() {
    let (_place, dir) = place();
    let content = noise(4 * BLOCK, 4);
    let (one, one_cipher) = file(&dir, "one", &content);
    let (_, two_cipher) = file(&dir, "two", &content);
    let original = fs::read(&one_cipher).unwrap();
    let other = fs::read(&two_cipher).unwrap();
    let range = |block: u64| layout::cipher_offset(block) as usize..layout::cipher_offset(block + 1) as usize;
    let fails = |block: u64| {
        let read = one.read_at(&mut [0; BLOCK], layout::plain_offset(block));
        read.is_err_and(|error| error.kind() == ErrorKind::Corrupt)
    };
    let mut swapped = original.clone();
    swapped[range(1)].copy_from_slice(&original[range(2)]);
    swapped[range(2)].copy_from_slice(&original[range(1)]);
    fs::write(&one_cipher, swapped).unwrap();
    assert_eq!([0, 1, 2, 3].map(fails), [false, true, true, false]);
    let mut mixed = original.clone();
    mixed[range(3)].copy_from_slice(&other[range(3)]);
    fs::write(&one_cipher, mixed).unwrap();
    assert_eq!([0, 1, 2, 3].map(fails), [false, false, false, true]);
    fs::write(&one_cipher, original).unwrap();
    assert!(whole(&one) == content);
}

#[test]
fn a_file_that_was_cut_within_a_block_fails_there() {
    let (_place, dir) = place();
    let content = noise(3 * BLOCK, 5);
    let (file, cipher) = file(&dir, "f", &content);
    let on_disk = fs::File::options().write(true).open(&cipher).unwrap();
    for cut in [1, 15, 31, 32, 33, 100, 4000, 4127] {
        on_disk.set_len(layout::cipher_offset(2) + cut).unwrap();
        let len = file.len().unwrap();
        assert!(len > 2 * BLOCK as u64 && len <= 3 * BLOCK as u64, "{cut}: {len}");
        let mut buffer = vec![0xaa; BLOCK];
        let error = file.read_at(&mut buffer, 2 * BLOCK as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{cut}");
        assert_eq!(file.read_at(&mut buffer, BLOCK as u64).unwrap(), BLOCK);
        assert!(buffer == content[BLOCK..2 * BLOCK]);
    }
    on_disk.set_len(10).unwrap();
    let file = dir.open_file(Path::new("f"), true).unwrap();
    assert_eq!(file.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::Damaged);
    // To no bytes it can be cut, and is a file again.
    file.set_len(0).unwrap();
    file.write_at(b"new", 0).unwrap();
    assert_eq!(whole(&file), b"new");
}

#[test]
fn readers_and_writers_of_one_file_see_whole_blocks() {
    let (_place, dir) = place();
    let blocks = 64_u64;
    let pattern = |value: u8| vec![value; BLOCK];
    let (file, _) = file(&dir, "f", &pattern(0).repeat(blocks as usize));
    let is_over = AtomicBool::new(false);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..2_u64 {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                let mut block = reader;
                while !is_over.load(Ordering::Relaxed) {
                    block = (block * 13 + 7) % blocks;
                    let mut buffer = vec![0xaa; 3 * BLOCK];
                    let read = file.read_at(&mut buffer, layout::plain_offset(block)).unwrap();
                    for one in buffer[..read].chunks(BLOCK) {
                        assert!(one.iter().all(|byte| *byte == one[0]), "a block of two writes");
                    }
                }
            });
        }
        let writers: Vec<_> = (0..2_u64)
            .map(|writer| {
                let file = &file;
                scope.spawn(move || {
                    let mut value = writer as u8;
                    while start.elapsed().as_millis() < 400 {
                        value = value.wrapping_add(2);
                        let block = u64::from(value).wrapping_mul(31) % (blocks - 4);
                        file.write_at(&pattern(value).repeat(4), layout::plain_offset(block)).unwrap();
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    assert_eq!(file.len().unwrap(), blocks * BLOCK as u64);
}

#[test]
fn appending_writers_do_not_lose_each_other_s_bytes_of_one_block() {
    let (_place, dir) = place();
    let (file, _) = file(&dir, "f", &[0; 4 * BLOCK]);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let file = &file;
            scope.spawn(move || {
                for at in (0..4 * BLOCK).skip(usize::from(thread)).step_by(4).take(1000) {
                    file.write_at(&[thread + 1], at as u64).unwrap();
                }
            });
        }
    });
    let content = whole(&file);
    for (at, byte) in content[..4000].iter().enumerate() {
        assert_eq!(usize::from(*byte), at % 4 + 1, "at {at}");
    }
}

/// A small file system in memory; unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(at).output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        if !is_mounted {
            skip("a small file system cannot be mounted here");
        }
        is_mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_fails_the_write_and_no_block() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_small) = Small::mount(folder.path()) else { return };
    let options = bifolio_crypt::InitOptions { features: Features::DEFAULT, scrypt_log_n: 10 };
    CipherDir::init(folder.path(), b"x", options).unwrap();
    let dir = CipherDir::open(folder.path(), &bifolio_crypt::Key::Passphrase(b"x")).unwrap();
    let content = noise(100_001, 6);
    let (file, cipher) = file(&dir, "f", &content);
    let (other, _) = self::file(&dir, "other", b"");
    for (data, offset) in [(noise(1_000_000, 7), 100_001), (noise(2_000_000, 8), 50), (noise(3_000_000, 9), 150_000)] {
        let error = file.write_at(&data, offset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_eq!(error.errno(), libc::ENOSPC);
        // A part from the beginning on was written, and every block is an old or a new one.
        let now = whole(&file);
        assert!(now.len() >= content.len());
        let mut expected = content.clone();
        expected.resize((offset as usize).max(content.len()), 0);
        expected.splice(offset as usize.., data.iter().copied());
        let kept = content.len().min(offset as usize);
        assert!(now[..kept] == content[..kept], "what was there before is as it was");
        let differs = now.iter().zip(&expected).position(|(one, other)| one != other).unwrap_or(now.len());
        assert!(now[differs..] == *content.get(differs..).unwrap_or_default(), "{offset}: from {differs} on");
        file.set_len(0).unwrap();
        file.write_at(&content, 0).unwrap();
    }
    // Not even a page is left.
    let rest = fs::File::create(folder.path().join("rest")).unwrap();
    while rest.write_at(&[1; 4096], rest.metadata().unwrap().len()).is_ok() {}
    let (empty, _) = self::file(&dir, "empty", b"");
    assert_eq!(empty.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((empty.len().unwrap(), empty.file_id().unwrap()), (0, None));
    drop(rest);
    fs::remove_file(folder.path().join("rest")).unwrap();
    assert_eq!(other.write_at(&noise(1_000_000, 1), 0).unwrap_err().kind(), ErrorKind::NoSpace);
    let len = other.len().unwrap() as usize;
    assert!(whole(&other) == noise(1_000_000, 1)[..len]);
    assert!(whole(&file) == content);
    assert_eq!(fs::metadata(cipher).unwrap().len(), layout::cipher_len(100_001));
}

#[test]
fn a_cut_that_finds_the_disk_full_keeps_what_was_to_stay() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_small) = Small::mount(folder.path()) else { return };
    let options = bifolio_crypt::InitOptions { features: Features::DEFAULT, scrypt_log_n: 10 };
    CipherDir::init(folder.path(), b"x", options).unwrap();
    let dir = CipherDir::open(folder.path(), &bifolio_crypt::Key::Passphrase(b"x")).unwrap();
    let mut content = noise(10_000, 6);
    let (file, cipher) = file(&dir, "f", &content);
    // A hole behind them, of whole blocks; that the file is to end in the midst of one takes room that is not there.
    file.set_len(204_800).unwrap();
    content.resize(204_800, 0);
    let rest = fs::File::create(folder.path().join("rest")).unwrap();
    while rest.write_at(&[1; 4096], rest.metadata().unwrap().len()).is_ok() {}
    let error = file.set_len(100_000).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, libc::ENOSPC), "{error}");
    // It is cut behind the block that could not be written.
    assert!(whole(&file) == content[..102_400]);
    assert_eq!(fs::metadata(&cipher).unwrap().len(), layout::cipher_len(102_400));
    drop(rest);
    fs::remove_file(folder.path().join("rest")).unwrap();
    file.set_len(100_000).unwrap();
    content.truncate(100_000);
    assert!(whole(&file) == content);
}

#[test]
fn files_are_found_by_plain_paths_only_and_special_ones_are_not_opened() {
    let (place, dir) = place();
    dir.create_dir(Path::new("folder")).unwrap();
    let (_, cipher) = file(&dir, "folder/f", b"content");
    assert_eq!(dir.plain_path(&cipher).unwrap(), Path::new("folder/f"));
    assert_eq!(dir.lookup(Path::new("/folder/f")).unwrap(), cipher);
    assert_eq!(dir.list(Path::new("folder"), &|sentence| panic!("{sentence}")).unwrap(), ["f"]);
    assert_eq!(dir.open_file(Path::new("folder/g"), false).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(dir.open_file(Path::new("folder"), false).unwrap_err().kind(), ErrorKind::BadUse);
    assert_eq!(dir.open_file(Path::new("../f"), false).unwrap_err().kind(), ErrorKind::BadUse);
    assert_eq!(dir.create_file(Path::new("folder/f")).unwrap_err().kind(), ErrorKind::Exists);
    let read_only = dir.open_file(Path::new("folder/f"), false).unwrap();
    assert_eq!(read_only.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::ReadOnly);
    // In the file's place: a link out of the directory, a FIFO.
    fs::write(place.dir.path().join("outside"), "secret").unwrap();
    fs::remove_file(&cipher).unwrap();
    std::os::unix::fs::symlink(place.dir.path().join("outside"), &cipher).unwrap();
    assert_eq!(dir.open_file(Path::new("folder/f"), false).unwrap_err().kind(), ErrorKind::BadUse);
    fs::remove_file(&cipher).unwrap();
    assert!(Command::new("mkfifo").arg(&cipher).status().unwrap().success());
    assert_eq!(dir.open_file(Path::new("folder/f"), false).unwrap_err().kind(), ErrorKind::BadUse);
    // A folder that is a link.
    let folder = cipher.parent().unwrap();
    fs::rename(folder, place.dir.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(place.dir.path().join("moved"), folder).unwrap();
    assert!(dir.list(Path::new("folder"), &|_| {}).is_err());
}
