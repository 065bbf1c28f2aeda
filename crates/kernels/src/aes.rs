//! AES keys as the kernels want them, and the headers that their modules share.
//!
//! A key is expanded here, on the CPU, by the round function of the `aes` crate, which uses the
//! processor's instructions or a bit-sliced circuit and looks nothing up by secret bytes. The
//! schedules travel in a device buffer. That buffer is as secret as the key: whoever allocates it
//! overwrites it ([`bifolio_device::Stream::fill`]) before it is freed. [`Schedules`] clears its own
//! copy in host memory when it is dropped; what a driver stages on its way to the device is outside
//! of anybody's reach.
//!
//! In the kernels eight blocks lie in 32 words, bit by bit (see `cl/aes.h`). S-boxes are circuits, so
//! that neither time nor addresses depend on keys or contents, whatever the device.

use crate::kernel::KDEF_H;
use crate::launch::{WORD_BYTES, bad, is_aligned};
use aes::Block;
use aes::hazmat::{cipher_round, inv_mix_columns, mix_columns};
use bifolio_device::{DeviceSlice, Result};
use zeroize::{Zeroize, Zeroizing};

/// Words of one sliced round key.
const KEY_WORDS: usize = 32;

/// Words of a schedule, with room for AES-256: `AES_SCHEDULE_WORDS` of `aes.h`.
const SCHEDULE_WORDS: usize = 15 * KEY_WORDS;

/// Bytes of one schedule in a buffer of schedules.
pub(crate) const SCHEDULE_BYTES: usize = SCHEDULE_WORDS * 4;

pub(crate) const HEADERS: [(&str, &str); 3] =
    [KDEF_H, ("aes_sbox.h", include_str!("cl/aes_sbox.h")), ("aes.h", include_str!("cl/aes.h"))];

/// Blocks that one thread computes.
pub(crate) const BLOCKS_PER_THREAD: u64 = 8;

/// Threads of every group of the AES kernels.
pub(crate) const GROUP_SIZE: u32 = 256;

/// Which AES.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySize {
    /// 16 bytes, 10 rounds.
    Aes128,
    /// 24 bytes, 12 rounds.
    Aes192,
    /// 32 bytes, 14 rounds.
    Aes256,
}

impl KeySize {
    /// All, for tests and trials.
    pub(crate) const ALL: [Self; 3] = [Self::Aes128, Self::Aes192, Self::Aes256];

    /// Length of one key in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Aes128 => 16,
            Self::Aes192 => 24,
            Self::Aes256 => 32,
        }
    }

    pub(crate) fn rounds(self) -> u32 {
        match self {
            Self::Aes128 => 10,
            Self::Aes192 => 12,
            Self::Aes256 => 14,
        }
    }

    pub(crate) fn of_rounds(rounds: u32) -> Self {
        match rounds {
            10 => Self::Aes128,
            12 => Self::Aes192,
            _ => Self::Aes256,
        }
    }

    /// The size of a key of so many bytes.
    pub(crate) fn of_key(key: &[u8]) -> Result<Self> {
        match key.len() {
            16 => Ok(Self::Aes128),
            24 => Ok(Self::Aes192),
            32 => Ok(Self::Aes256),
            len => Err(bad(format!("an AES key of {len} bytes is not supported: use 16, 24 or 32"))),
        }
    }
}

/// What a kernel needs to know of a key, to be uploaded to a device buffer of the caller's. Cleared
/// when dropped.
#[derive(Clone)]
pub struct Schedules {
    bytes: Zeroizing<Vec<u8>>,
    size: KeySize,
}

impl std::fmt::Debug for Schedules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Schedules").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Schedules {
    pub(crate) fn new(size: KeySize, bytes: Zeroizing<Vec<u8>>) -> Self {
        Self { bytes, size }
    }

    /// The content of the device buffer, which lies at a 16-byte boundary.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The size of the key.
    pub fn size(&self) -> KeySize {
        self.size
    }
}

/// The direction of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}

/// Appends a schedule of `key`, sliced, to a buffer of schedules.
pub(crate) fn append_schedule(to: &mut Zeroizing<Vec<u8>>, key: &[u8], direction: Direction) -> Result<()> {
    let size = KeySize::of_key(key)?;
    let mut keys = expand(key, size);
    let last = keys.len() - 1;
    match direction {
        Direction::Encrypt => {
            keys[1..last].iter_mut().for_each(|key| through(key, inv_mix_columns));
            keys[1..].iter_mut().for_each(|key| shift_rows(key, 3));
        }
        Direction::Decrypt => keys[..last].iter_mut().for_each(|key| shift_rows(key, 1)),
    }
    let end = to.len() + SCHEDULE_BYTES;
    for key in keys.iter() {
        for word in slice_key(key).iter() {
            to.extend_from_slice(&word.to_ne_bytes());
        }
    }
    to.resize(end, 0);
    Ok(())
}

/// A buffer that can take `count` schedules without moving, so that no copy is left behind.
pub(crate) fn room_for(count: usize, more: usize) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(Vec::with_capacity(count * SCHEDULE_BYTES + more))
}

/// Refuses a buffer that cannot be the schedules of a key.
pub(crate) fn check_schedules(schedules: DeviceSlice<'_>, bytes: u64) -> Result<()> {
    if schedules.len() == bytes && is_aligned(schedules, WORD_BYTES) {
        return Ok(());
    }
    let (len, ptr) = (schedules.len(), schedules.ptr());
    Err(bad(format!("the schedules of this key need {bytes} bytes at a 16-byte boundary, got {len} at {ptr}")))
}

/// The round keys of FIPS 197, 5.2.
fn expand(key: &[u8], size: KeySize) -> Zeroizing<Vec<[u8; 16]>> {
    let in_key = size.bytes() / 4;
    let total = 4 * (size.rounds() as usize + 1);
    let mut words: Zeroizing<Vec<[u8; 4]>> = Zeroizing::new(Vec::with_capacity(total));
    words.extend(key.as_chunks::<4>().0);
    let mut constant = 1_u8;
    for i in in_key..total {
        let mut word = Zeroizing::new(words[i - 1]);
        if i % in_key == 0 {
            word.rotate_left(1);
            *word = *sub_word(*word);
            word[0] ^= constant;
            constant = (constant << 1) ^ (if constant & 0x80 == 0 { 0 } else { 0x1b });
        } else if in_key == 8 && i % in_key == 4 {
            *word = *sub_word(*word);
        }
        let before = words[i - in_key];
        words.push(std::array::from_fn(|byte| before[byte] ^ word[byte]));
    }
    let block = |four: &[[u8; 4]]| std::array::from_fn(|i| four[i / 4][i % 4]);
    Zeroizing::new(words.chunks_exact(4).map(block).collect())
}

/// `SubWord`, by a round of AES on four equal columns: `ShiftRows` leaves them alone, and
/// `MixColumns` is taken back.
fn sub_word(word: [u8; 4]) -> Zeroizing<[u8; 4]> {
    let mut block = Block::from(std::array::from_fn::<u8, 16, _>(|i| word[i % 4]));
    cipher_round(&mut block, &Block::default());
    inv_mix_columns(&mut block);
    let substituted = Zeroizing::new([block[0], block[1], block[2], block[3]]);
    block.zeroize();
    substituted
}

/// Word `8 * row + bit` holds that bit of the row, a whole byte for each column.
fn slice_key(key: &[u8; 16]) -> Zeroizing<[u32; KEY_WORDS]> {
    let byte = |row: usize, column: usize, bit: usize| u32::from(key[4 * column + row] >> bit & 1) * 0xff;
    let word = |i: usize| (0..4).map(|column| byte(i / 8, column, i % 8) << (8 * column)).sum();
    Zeroizing::new(std::array::from_fn(word))
}

/// A round key after a step of the cipher.
fn through(key: &mut [u8; 16], step: fn(&mut Block)) {
    let mut block = Block::from(*key);
    step(&mut block);
    *key = block.into();
    block.zeroize();
}

/// Moves row r to the left by r columns so many times: once is `ShiftRows`, thrice its inverse.
fn shift_rows(key: &mut [u8; 16], times: usize) {
    let before = Zeroizing::new(*key);
    *key = std::array::from_fn(|i| before[(i + 4 * times * (i % 4)) % 16]);
}

/// The key whose encryption schedule begins `bytes`: the first round keys are the key itself.
pub(crate) fn key_of_schedule(bytes: &[u8], size: KeySize) -> Zeroizing<Vec<u8>> {
    let (words, _) = bytes.as_chunks::<4>();
    let mut key = Zeroizing::new(vec![0; size.bytes().next_multiple_of(16)]);
    let (blocks, _) = key.as_chunks_mut::<16>();
    for (block, words) in blocks.iter_mut().zip(words.chunks_exact(KEY_WORDS)) {
        for (i, byte) in block.iter_mut().enumerate() {
            let (row, column) = (i % 4, i / 4);
            let bit = |bit: usize| ((u32::from_ne_bytes(words[row * 8 + bit]) >> (8 * column) & 1) as u8) << bit;
            *byte = (0..8).map(bit).sum();
        }
    }
    // The second one went through the inverse of half a round.
    for block in &mut blocks[1..] {
        shift_rows(block, 1);
        through(block, mix_columns);
    }
    key.truncate(size.bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, appendix A.3: the last words of the expanded 256-bit key.
    #[test]
    fn a_key_expands_as_in_the_standard() {
        let key: Vec<u8> = hex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4");
        let keys = expand(&key, KeySize::Aes256);
        assert_eq!(keys.len(), 15);
        assert_eq!(keys[14].to_vec(), hex("fe4890d1e6188d0b046df344706c631e"));
        let keys = expand(&hex("2b7e151628aed2a6abf7158809cf4f3c"), KeySize::Aes128);
        assert_eq!(keys[10].to_vec(), hex("d014f9a8c9ee2589e13f0cc8b6630ca6"));
        let keys = expand(&hex("8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b"), KeySize::Aes192);
        assert_eq!((keys.len(), keys[12].to_vec()), (13, hex("e98ba06f448c773c8ecc720401002202")));
    }

    #[test]
    fn a_key_is_found_in_its_schedule() {
        for size in KeySize::ALL {
            let key: Vec<u8> = (0..size.bytes() as u8).map(|i| i.wrapping_mul(37) ^ 0x5a).collect();
            let mut bytes = room_for(1, 0);
            append_schedule(&mut bytes, &key, Direction::Encrypt).unwrap();
            assert_eq!(bytes.len(), SCHEDULE_BYTES);
            assert_eq!(*key_of_schedule(&bytes, size), key);
        }
    }

    #[test]
    fn other_keys_are_refused_with_their_length() {
        let refused = append_schedule(&mut room_for(1, 0), &[0; 20], Direction::Encrypt).unwrap_err();
        assert!(refused.to_string().contains("20"), "{refused}");
    }

    fn hex(digits: &str) -> Vec<u8> {
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }
}
