//! Contents: a header with the file's id, then blocks of up to 4096 bytes, each with a nonce and a tag of its own
//! (AES-256-GCM). The tag covers the file's id and the block's number, so that a block is refused in any other place.

pub mod layout;

use crate::random;
use bifolio_compute::cpu::Gcm;
use layout::{HEADER_BYTES, NONCE_BYTES, OVERHEAD_BYTES, TAG_BYTES};

/// Random bytes in the header that belong to one file.
pub type FileId = [u8; 16];

const VERSION: [u8; 2] = [0, 2];
const PLAIN: usize = layout::PLAIN_BLOCK_BYTES as usize;
const CIPHER: usize = layout::CIPHER_BLOCK_BYTES as usize;
const NONCE: usize = NONCE_BYTES as usize;
const TAG: usize = TAG_BYTES as usize;
const OVERHEAD: usize = OVERHEAD_BYTES as usize;

/// Why a block is not given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadBlock {
    /// Fewer bytes than a nonce, one byte and a tag.
    TooShort,
    /// Bytes were changed, or it belongs elsewhere.
    BadTag,
}

impl std::fmt::Display for BadBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TooShort => "is truncated",
            Self::BadTag => "failed authentication: it is not what was encrypted for this place",
        })
    }
}

/// A header for a new file.
pub(crate) fn new_header() -> ([u8; HEADER_BYTES as usize], FileId) {
    let mut id = [0; 16];
    random::fill(&mut id);
    let mut header = [0; HEADER_BYTES as usize];
    header[..2].copy_from_slice(&VERSION);
    header[2..].copy_from_slice(&id);
    (header, id)
}

/// The id that a header holds.
///
/// # Errors
/// A sentence without its full stop if it is none that gocryptfs writes.
pub(crate) fn parse_header(header: &[u8; HEADER_BYTES as usize]) -> Result<FileId, String> {
    let (version, id) = header.split_at(2);
    if version != VERSION {
        return Err(format!("the header says version {}, not 2", u16::from_be_bytes([version[0], version[1]])));
    }
    if id.iter().all(|byte| *byte == 0) {
        return Err("the header holds zeroes in the place of the file's id".to_owned());
    }
    Ok(id.try_into().expect("a header has 16 bytes behind its version"))
}

/// The key for contents.
#[derive(Debug)]
pub(crate) struct ContentCipher(Gcm);

impl ContentCipher {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Gcm::new(key).expect("AES-256 has keys of 32 bytes"))
    }

    /// Encrypts `plain` as the blocks from `first` on; `cipher` has room for exactly these.
    pub(crate) fn seal(&self, id: &FileId, first: u64, plain: &[u8], cipher: &mut [u8]) {
        assert_eq!(cipher.len(), sealed_bytes(plain.len()));
        // One request for all, as each is a system call.
        let mut nonces = vec![0; plain.len().div_ceil(PLAIN) * NONCE];
        random::fill(&mut nonces);
        let blocks = plain.chunks(PLAIN).zip(cipher.chunks_mut(CIPHER)).zip(nonces.as_chunks::<NONCE>().0);
        for (number, ((plain, cipher), nonce)) in (first..).zip(blocks) {
            self.seal_one(&layout::associated_data(number, id), nonce, plain, cipher);
        }
    }

    fn seal_one(&self, associated: &[u8], nonce: &[u8; NONCE], plain: &[u8], cipher: &mut [u8]) {
        let (head, rest) = cipher.split_at_mut(NONCE);
        let (data, tag) = rest.split_at_mut(plain.len());
        head.copy_from_slice(nonce);
        data.copy_from_slice(plain);
        tag.copy_from_slice(&self.0.encrypt(nonce, associated, data));
    }

    /// Decrypts one block, which may be a short one; `plain` has room for exactly what it holds.
    ///
    /// # Errors
    /// Why it is refused; `plain` then holds zeroes.
    pub(crate) fn open(&self, id: &FileId, number: u64, cipher: &[u8], plain: &mut [u8]) -> Result<(), BadBlock> {
        if cipher.len() <= OVERHEAD {
            plain.fill(0);
            return Err(BadBlock::TooShort);
        }
        if is_hole(cipher) {
            plain.fill(0);
            return Ok(());
        }
        self.open_one(&layout::associated_data(number, id), cipher, plain)
    }

    fn open_one(&self, associated: &[u8], cipher: &[u8], plain: &mut [u8]) -> Result<(), BadBlock> {
        let (nonce, rest) = cipher.split_at(NONCE);
        let (data, tag) = rest.split_at(rest.len() - TAG);
        let tag: &[u8; TAG] = tag.try_into().expect("a block's tag has 16 bytes");
        plain.copy_from_slice(data);
        // What is copied is decrypted where it lies, and is zeroes if it is refused.
        self.0.decrypt(nonce, associated, plain, tag).map_err(|_| BadBlock::BadTag)
    }

    /// Encrypts the target of a symbolic link: one block that belongs to no file.
    pub(crate) fn seal_target(&self, target: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE];
        random::fill(&mut nonce);
        let mut cipher = vec![0; target.len() + OVERHEAD];
        self.seal_one(&[0; 8], &nonce, target, &mut cipher);
        cipher
    }

    /// Decrypts the target of a symbolic link.
    pub(crate) fn open_target(&self, cipher: &[u8]) -> Result<Vec<u8>, BadBlock> {
        if cipher.len() <= OVERHEAD {
            return Err(BadBlock::TooShort);
        }
        let mut plain = vec![0; cipher.len() - OVERHEAD];
        self.open_one(&[0; 8], cipher, &mut plain)?;
        Ok(plain)
    }
}

/// Bytes of the blocks for as many plain bytes, from the beginning of a block on.
pub(crate) fn sealed_bytes(plain: usize) -> usize {
    plain + plain.div_ceil(PLAIN) * OVERHEAD
}

/// A block that was never written: a whole one of zeroes.
pub(crate) fn is_hole(cipher: &[u8]) -> bool {
    cipher.len() == CIPHER && cipher.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_opens_in_its_own_place_only_and_holes_are_zeroes() {
        let cipher = ContentCipher::new(&[9; 32]);
        let plain: Vec<u8> = (0..5000).map(|at| at as u8).collect();
        let mut sealed = vec![0; sealed_bytes(plain.len())];
        cipher.seal(&[1; 16], 7, &plain, &mut sealed);
        let mut opened = vec![0xaa; 4096];
        cipher.open(&[1; 16], 7, &sealed[..CIPHER], &mut opened).unwrap();
        assert_eq!(opened, plain[..4096]);
        cipher.open(&[1; 16], 8, &sealed[CIPHER..], &mut opened[..904]).unwrap();
        assert_eq!(opened[..904], plain[4096..]);
        for (id, number) in [([1; 16], 6), ([1; 16], 8), ([2; 16], 7)] {
            opened.fill(0xaa);
            assert_eq!(cipher.open(&id, number, &sealed[..CIPHER], &mut opened), Err(BadBlock::BadTag));
            assert!(opened.iter().all(|byte| *byte == 0), "nothing of a refused block is given out");
        }
        opened.fill(0xaa);
        cipher.open(&[1; 16], 3, &[0; CIPHER], &mut opened).unwrap();
        assert!(opened.iter().all(|byte| *byte == 0));
        // Only whole blocks are holes.
        assert_eq!(cipher.open(&[1; 16], 3, &[0; 100], &mut opened[..68]), Err(BadBlock::BadTag));
        assert_eq!(cipher.open(&[1; 16], 3, &[0; 32], &mut []), Err(BadBlock::TooShort));
    }

    #[test]
    fn headers_of_other_versions_and_without_an_id_are_refused() {
        let (header, id) = new_header();
        assert_eq!(parse_header(&header), Ok(id));
        let mut other = header;
        other[1] = 3;
        assert!(parse_header(&other).unwrap_err().contains("version 3"));
        let mut empty = [0; 18];
        empty[1] = 2;
        assert!(parse_header(&empty).unwrap_err().contains("zeroes"));
    }
}
