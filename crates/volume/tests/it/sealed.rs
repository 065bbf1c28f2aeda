//! Files of authenticated blocks into the memory of every device of this machine. They are sealed by the CPU here, in
//! the layout of gocryptfs's files.

use crate::support::{Draw, loaders};
use bifolio_block::SealedBlocks;
use bifolio_compute::cpu::Gcm;
use bifolio_io::ReadOptions;
use bifolio_volume::{BlockDevice, ErrorKind, FileDevice, Load, Loader, Sealed};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

const POISON: u8 = 0xa5;
const BLOCK: usize = 4096;
const SEALED: usize = BLOCK + 32;
const HEADER: usize = 18;

/// A sealed file, and one with its content, by which the CPU reads it.
struct Files {
    folder: tempfile::TempDir,
    key: Vec<u8>,
    id: [u8; 16],
}

impl Files {
    fn new(draw: &mut Draw) -> Self {
        let id = draw.bytes(16).try_into().unwrap();
        Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), key: draw.bytes(32), id }
    }

    fn sealed(&self) -> PathBuf {
        self.folder.path().join("sealed")
    }

    fn plain(&self) -> PathBuf {
        self.folder.path().join("plain")
    }

    /// Seals the content, but for blocks that are holes, and stores both.
    fn store(&self, draw: &mut Draw, content: &[u8], holes: Range<usize>) -> Vec<u8> {
        let gcm = Gcm::new(&self.key).unwrap();
        let mut sealed = vec![0; HEADER];
        for (number, block) in content.chunks(BLOCK).enumerate() {
            if holes.contains(&number) {
                sealed.resize(sealed.len() + SEALED, 0);
                continue;
            }
            let (nonce, mut text) = (draw.bytes(16), block.to_vec());
            let aad = [&(number as u64).to_be_bytes()[..], &self.id].concat();
            let tag = gcm.encrypt(&nonce, &aad, &mut text);
            sealed.extend([&nonce[..], &text, &tag].concat());
        }
        std::fs::write(self.sealed(), &sealed).unwrap();
        std::fs::write(self.plain(), content).unwrap();
        sealed
    }

    fn open(&self) -> Sealed {
        let blocks = SealedBlocks { header_bytes: HEADER as u64, block_bytes: BLOCK as u64, id: self.id };
        let plain = FileDevice::open(self.plain(), false).unwrap();
        Sealed::new(Arc::new(plain), FileDevice::open(self.sealed(), false).unwrap(), blocks, &self.key)
    }

    fn disk(&self) -> std::fs::File {
        std::fs::File::options().read(true).write(true).open(self.sealed()).unwrap()
    }
}

/// A range of a file, loaded to a place that is `shift` bytes into poisoned memory, and how that ended.
fn loaded(file: &Sealed, loader: &Loader, range: Range<usize>, shift: u64) -> (Vec<u8>, bifolio_volume::Result<()>) {
    let (offset, len) = (range.start as u64, range.len() as u64);
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

#[test]
fn files_of_every_length_are_decrypted_wherever_they_land() {
    let mut draw = Draw::afresh();
    let files = Files::new(&mut draw);
    for len in [0, 1, 15, 16, 4095, 4096, 4097, 8192, 300_001] {
        let content = draw.bytes(len);
        files.store(&mut draw, &content, 0..0);
        let file = files.open();
        assert_eq!(file.geometry().size, len as u64);
        let (start, end) = (len / 3, len - len / 5);
        for loader in &loaders(&ReadOptions::default()) {
            for (range, shift) in [(0..len, 0), (0..len, 7), (start..end, 0), (start..end, 16), (0..len.min(4096), 0)] {
                let (seen, outcome) = loaded(&file, loader, range.clone(), shift);
                outcome.unwrap();
                assert!(seen == content[range.clone()], "{}: {range:?} of {len} to {shift}", loader.device().id());
            }
            let (_, outcome) = loaded(&file, loader, len..len + 1, 0);
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::BadRange);
        }
    }
}

/// Long enough for decryption to follow the bytes, where kernels do it.
#[test]
fn a_long_file_is_decrypted_wherever_it_begins_and_ends_and_what_was_changed_is_named() {
    let mut draw = Draw::afresh();
    let files = Files::new(&mut draw);
    let len = (40 << 20) + draw.below(9000) as usize;
    let mut content = draw.bytes(len);
    // A hole, and blocks of zeroes that are none.
    let hole = 5 << 20..(5 << 20) + 7 * BLOCK;
    content[hole.clone()].fill(0);
    content[7 << 20..8 << 20].fill(0);
    let whole = files.store(&mut draw, &content, hole.start / BLOCK..hole.end / BLOCK).len();
    let disk = files.disk();
    let from = draw.below(3 << 20) as usize;
    for loader in &loaders(&ReadOptions::default()) {
        let file = files.open();
        let id = loader.device().id();
        for range in [0..len, from..len - 1] {
            let shift = (range.start.next_multiple_of(BLOCK) - range.start) as u64;
            let (seen, outcome) = loaded(&file, loader, range.clone(), shift.wrapping_neg() % 16);
            outcome.unwrap();
            assert!(seen == content[range.clone()], "{id}: {range:?}");
        }
        // One bit in any block that is no hole: the block is named, and nothing of it is there.
        let block = draw.below((hole.start / BLOCK) as u64) as usize;
        let at = (HEADER + block * SEALED) as u64 + draw.below(16);
        let mut byte = [0];
        disk.read_exact_at(&mut byte, at).unwrap();
        disk.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let (seen, outcome) = loaded(&file, loader, 0..len, 0);
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.detail().contains(&format!("block {block} ")), "{error}");
        assert!(seen[block * BLOCK..(block + 1) * BLOCK].iter().all(|byte| *byte == POISON), "{id}");
        disk.write_all_at(&byte, at).unwrap();
        // Cut within its last block while it was open.
        let mut last = vec![0; 1];
        disk.read_exact_at(&mut last, whole as u64 - 1).unwrap();
        disk.set_len(whole as u64 - 1).unwrap();
        assert!(loaded(&file, loader, 0..len, 0).1.is_err());
        assert!(loaded(&files.open(), loader, 0..len, 0).1.is_err());
        // The last byte of the tag is gone, and the other blocks are whole.
        disk.set_len(whole as u64).unwrap();
        let (seen, outcome) = loaded(&file, loader, 0..len / BLOCK * BLOCK, 0);
        outcome.unwrap();
        assert!(seen[..] == content[..len / BLOCK * BLOCK], "{id}");
        disk.write_all_at(&last, whole as u64 - 1).unwrap();
    }
}

#[test]
fn holes_are_zeroes() {
    let mut draw = Draw::afresh();
    let files = Files::new(&mut draw);
    let mut content = vec![0; 40_003];
    content[..5].copy_from_slice(b"begin");
    content[40_000..].copy_from_slice(b"end");
    files.store(&mut draw, &content, 1..9);
    let file = files.open();
    for loader in loaders(&ReadOptions::default()) {
        let (seen, outcome) = loaded(&file, &loader, 0..40_003, 0);
        outcome.unwrap();
        assert_eq!(seen, content);
    }
}

#[test]
fn of_a_changed_block_nothing_is_given_out_and_it_is_named() {
    let mut draw = Draw::afresh();
    let files = Files::new(&mut draw);
    let content = draw.bytes(10 * BLOCK + 100);
    let whole = files.store(&mut draw, &content, 0..0);
    for block in [0, 6, 10_usize] {
        // Anywhere in the block: nonce, text or tag.
        let from = HEADER + block * SEALED;
        let at = from + draw.below((whole.len() - from).min(SEALED) as u64) as usize;
        let mut changed = whole.clone();
        changed[at] ^= 1 << draw.below(8);
        std::fs::write(files.sealed(), &changed).unwrap();
        let file = files.open();
        for loader in loaders(&ReadOptions::default()) {
            let (seen, outcome) = loaded(&file, &loader, 0..content.len(), 0);
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged);
            assert!(error.detail().contains(&format!("block {block} ")), "{error}");
            let range = block * BLOCK..content.len().min((block + 1) * BLOCK);
            let id = loader.device().id();
            assert!(seen[range].iter().all(|byte| *byte == POISON), "{id}: bytes of it were given out");
            // The others are whole.
            let range = if block == 0 { BLOCK..2 * BLOCK } else { 0..BLOCK };
            let (seen, outcome) = loaded(&file, &loader, range.clone(), 0);
            outcome.unwrap();
            assert_eq!(seen, content[range]);
        }
    }
}

#[test]
fn blocks_that_were_swapped_and_files_that_were_cut_are_errors() {
    let mut draw = Draw::afresh();
    let files = Files::new(&mut draw);
    let content = draw.bytes(5 * BLOCK);
    let whole = files.store(&mut draw, &content, 0..0);
    let mut swapped = whole.clone();
    swapped.copy_within(HEADER + SEALED..HEADER + 2 * SEALED, HEADER);
    std::fs::write(files.sealed(), &swapped).unwrap();
    for loader in loaders(&ReadOptions::default()) {
        assert_eq!(loaded(&files.open(), &loader, 0..BLOCK, 0).1.unwrap_err().kind(), ErrorKind::Damaged);
    }
    let (cut, size) = (&whole[..whole.len() - 5], content.len() - 5);
    std::fs::write(files.plain(), &content[..size]).unwrap();
    for loader in loaders(&ReadOptions::default()) {
        std::fs::write(files.sealed(), cut).unwrap();
        let file = files.open();
        assert_eq!(loaded(&file, &loader, 0..size, 0).1.unwrap_err().kind(), ErrorKind::Damaged);
        // And one that is cut while it is open.
        files.disk().set_len(5000).unwrap();
        assert_eq!(loaded(&file, &loader, BLOCK..2 * BLOCK, 0).1.unwrap_err().kind(), ErrorKind::Read);
    }
}
