//! Encrypted files into the memory of every device of this machine.

use bifolio_crypt::{CipherDir, InitOptions, Key, LoadableFile};
use bifolio_device::{DeviceChoice, discover, open};
use bifolio_io::{ReadOptions, Router, RouterOptions};
use bifolio_kernels::known_answer::Draw;
use bifolio_volume::{BlockDevice, ErrorKind, Loader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const POISON: u8 = 0xa5;

fn loaders() -> Vec<Loader> {
    let found = discover().into_iter().flat_map(|report| report.devices);
    let devices = found.map(|info| open(DeviceChoice::Exactly(info.id)).unwrap());
    let router = |device| Arc::new(Router::new(&device, RouterOptions::default()));
    devices.map(|device| Loader::new(router(device), ReadOptions::default())).collect()
}

/// A range of a file, loaded to a place that is `shift` bytes into poisoned memory, and how that ended.
fn loaded(
    file: &LoadableFile,
    loader: &Loader,
    (offset, len): (u64, u64),
    shift: u64,
) -> (Vec<u8>, bifolio_volume::Result<()>) {
    let memory = loader.device().alloc(len + shift + 64).unwrap();
    let stream = loader.device().create_stream().unwrap();
    let mut bytes = vec![POISON; memory.len() as usize];
    stream.upload(memory.slice(), &bytes).unwrap();
    let outcome = file.load(loader, offset, memory.slice().part(shift, len).unwrap());
    stream.download(&mut bytes, memory.slice()).unwrap();
    let end = (shift + len) as usize;
    assert!(bytes[..shift as usize].iter().chain(&bytes[end..]).all(|byte| *byte == POISON));
    (bytes[shift as usize..end].to_vec(), outcome)
}

fn directory(folder: &Path) -> CipherDir {
    let options = InitOptions { scrypt_log_n: 10, ..InitOptions::default() };
    let master = CipherDir::init(folder, b"open sesame", options).unwrap();
    CipherDir::open(folder, &Key::Master(master)).unwrap()
}

#[test]
fn files_of_every_length_are_decrypted_wherever_they_land() {
    let mut draw = Draw::afresh();
    let folder = tempfile::tempdir().unwrap();
    let dir = directory(folder.path());
    for len in [0, 1, 15, 16, 4095, 4096, 4097, 8192, 300_001] {
        let name = format!("of {len} bytes");
        let content = draw.bytes(len);
        dir.create_file(Path::new(&name)).unwrap().write_at(&content, 0).unwrap();
        let file = LoadableFile::open(&dir, Path::new(&name)).unwrap();
        assert_eq!(file.geometry().size, len as u64);
        let (start, end) = (len / 3, len - len / 5);
        for loader in &loaders() {
            for (range, shift) in [(0..len, 0), (0..len, 7), (start..end, 0), (start..end, 16), (0..len.min(4096), 0)] {
                let (seen, outcome) = loaded(&file, loader, (range.start as u64, range.len() as u64), shift);
                outcome.unwrap();
                assert!(seen == content[range.clone()], "{}: {range:?} of {len} to {shift}", loader.device().id());
            }
            let (_, outcome) = loaded(&file, loader, (len as u64, 1), 0);
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::BadRange);
        }
    }
}

/// Long enough for decryption to follow the bytes, where kernels do it.
#[test]
fn a_long_file_is_decrypted_wherever_it_begins_and_ends_and_what_was_changed_is_named() {
    let mut draw = Draw::afresh();
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let dir = directory(folder.path());
    let len = (40 << 20) + draw.below(9000) as usize;
    let mut content = draw.bytes(len);
    let written = dir.create_file(Path::new("weights")).unwrap();
    // A hole, and blocks of zeroes that are none.
    let hole = 5 << 20..(5 << 20) + 7 * 4096;
    content[hole.clone()].fill(0);
    content[7 << 20..8 << 20].fill(0);
    written.write_at(&content[..hole.start], 0).unwrap();
    written.write_at(&content[hole.end..], hole.end as u64).unwrap();
    drop(written);
    let stored = dir.lookup(Path::new("weights")).unwrap();
    let from = draw.below(3 << 20) as usize;
    for loader in &loaders() {
        let file = LoadableFile::open(&dir, Path::new("weights")).unwrap();
        let id = loader.device().id();
        for range in [0..len, from..len - 1] {
            let shift = (range.start.next_multiple_of(4096) - range.start) as u64;
            let shift = shift.wrapping_neg() % 16;
            let (seen, outcome) = loaded(&file, loader, (range.start as u64, range.len() as u64), shift);
            outcome.unwrap();
            assert!(seen == content[range.clone()], "{id}: {range:?}");
        }
        // One bit in any block: the block is named, and nothing of it is there.
        let blocks = len.div_ceil(4096) as u64;
        let block = draw.below(blocks);
        let at = 18 + block * 4128 + draw.below(16);
        let disk = std::fs::File::options().read(true).write(true).open(&stored).unwrap();
        let mut byte = [0];
        disk.read_exact_at(&mut byte, at).unwrap();
        disk.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let (seen, outcome) = loaded(&file, loader, (0, len as u64), 0);
        let error = outcome.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Damaged && error.to_string().contains(&format!("block {block} ")),
            "{error}"
        );
        let gap = (block * 4096) as usize..(((block + 1) * 4096) as usize).min(len);
        assert!(seen[gap].iter().all(|byte| *byte == POISON), "{id}");
        disk.write_all_at(&byte, at).unwrap();
        // Cut within its last block while it was open, and before.
        let whole = disk.metadata().unwrap().len();
        disk.set_len(whole - 1).unwrap();
        assert!(loaded(&file, loader, (0, len as u64), 0).1.is_err());
        let cut = LoadableFile::open(&dir, Path::new("weights")).unwrap();
        assert!(loaded(&cut, loader, (0, cut.geometry().size), 0).1.is_err());
        // The last byte of the tag is gone, and the other blocks are whole.
        disk.set_len(whole).unwrap();
        let (seen, outcome) = loaded(&file, loader, (0, (len / 4096 * 4096) as u64), 0);
        outcome.unwrap();
        assert!(seen[..] == content[..len / 4096 * 4096], "{id}");
        std::fs::remove_file(&stored).unwrap();
        let again = dir.create_file(Path::new("weights")).unwrap();
        again.write_at(&content[..hole.start], 0).unwrap();
        again.write_at(&content[hole.end..], hole.end as u64).unwrap();
    }
}

#[test]
fn holes_are_zeroes() {
    let folder = tempfile::tempdir().unwrap();
    let dir = directory(folder.path());
    let file = dir.create_file(Path::new("sparse")).unwrap();
    file.write_at(b"begin", 0).unwrap();
    file.write_at(b"end", 40_000).unwrap();
    let mut content = vec![0; 40_003];
    content[..5].copy_from_slice(b"begin");
    content[40_000..].copy_from_slice(b"end");
    let file = LoadableFile::open(&dir, Path::new("sparse")).unwrap();
    for loader in loaders() {
        let (seen, outcome) = loaded(&file, &loader, (0, 40_003), 0);
        outcome.unwrap();
        assert_eq!(seen, content);
    }
}

#[test]
fn of_a_changed_block_nothing_is_given_out_and_it_is_named() {
    let mut draw = Draw::afresh();
    let folder = tempfile::tempdir().unwrap();
    let dir = directory(folder.path());
    let content = draw.bytes(10 * 4096 + 100);
    dir.create_file(Path::new("weights")).unwrap().write_at(&content, 0).unwrap();
    let stored = dir.lookup(Path::new("weights")).unwrap();
    let whole = std::fs::read(&stored).unwrap();
    for block in [0, 6, 10_usize] {
        // Anywhere in the block: nonce, text or tag.
        let from = 18 + block * 4128;
        let at = from + usize::from(draw.bytes(1)[0]) % (whole.len() - from).min(4128);
        let mut changed = whole.clone();
        changed[at] ^= 1 << (draw.bytes(1)[0] % 8);
        std::fs::write(&stored, &changed).unwrap();
        let file = LoadableFile::open(&dir, Path::new("weights")).unwrap();
        for loader in loaders() {
            let (seen, outcome) = loaded(&file, &loader, (0, content.len() as u64), 0);
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged);
            assert!(error.to_string().contains(&format!("block {block} ")), "{error}");
            let range = block * 4096..content.len().min((block + 1) * 4096);
            assert!(
                seen[range].iter().all(|byte| *byte == POISON),
                "{}: bytes of it were given out",
                loader.device().id()
            );
            // The others are whole.
            let (offset, len) = if block == 0 { (4096, 4096) } else { (0, 4096) };
            let (seen, outcome) = loaded(&file, &loader, (offset, len), 0);
            outcome.unwrap();
            assert_eq!(seen, content[offset as usize..(offset + len) as usize]);
        }
    }
    std::fs::write(&stored, &whole).unwrap();
}

#[test]
fn blocks_that_were_swapped_and_files_that_were_cut_are_errors() {
    let mut draw = Draw::afresh();
    let folder = tempfile::tempdir().unwrap();
    let dir = directory(folder.path());
    let content = draw.bytes(5 * 4096);
    dir.create_file(Path::new("a")).unwrap().write_at(&content, 0).unwrap();
    let stored = dir.lookup(Path::new("a")).unwrap();
    let whole = std::fs::read(&stored).unwrap();
    let mut swapped = whole.clone();
    swapped.copy_within(18 + 4128..18 + 2 * 4128, 18);
    std::fs::write(&stored, &swapped).unwrap();
    for loader in loaders() {
        let file = LoadableFile::open(&dir, Path::new("a")).unwrap();
        assert_eq!(loaded(&file, &loader, (0, 4096), 0).1.unwrap_err().kind(), ErrorKind::Damaged);
    }
    std::fs::write(&stored, &whole[..whole.len() - 5]).unwrap();
    for loader in loaders() {
        let file = LoadableFile::open(&dir, Path::new("a")).unwrap();
        let size = file.geometry().size;
        assert_eq!(loaded(&file, &loader, (0, size), 0).1.unwrap_err().kind(), ErrorKind::Damaged);
        // And one that is cut while it is open.
        std::fs::File::options().write(true).open(&stored).unwrap().set_len(5000).unwrap();
        assert_eq!(loaded(&file, &loader, (4096, 4096), 0).1.unwrap_err().kind(), ErrorKind::Read);
        std::fs::File::options().write(true).open(&stored).unwrap().write_all_at(&whole[..whole.len() - 5], 0).unwrap();
    }
}

#[test]
fn a_path_leads_through_its_directory() {
    let folder = tempfile::tempdir().unwrap();
    let dir = directory(folder.path());
    dir.create_dir(Path::new("models")).unwrap();
    dir.create_file(Path::new("models/tiny")).unwrap().write_at(b"weights", 0).unwrap();
    let key = Key::Passphrase(b"open sesame");
    let file = LoadableFile::open_path(&folder.path().join("models/tiny"), &key).unwrap();
    let mut bytes = [0; 7];
    file.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"weights");
    let wrong = LoadableFile::open_path(&folder.path().join("models/tiny"), &Key::Passphrase(b"no")).unwrap_err();
    assert_eq!(wrong.kind(), bifolio_crypt::ErrorKind::WrongKey);
    let nowhere = LoadableFile::open_path(Path::new("/nowhere/at/all"), &key).unwrap_err();
    assert_eq!(nowhere.kind(), bifolio_crypt::ErrorKind::NotACipherDir);
}
