//! EME, the wide-block mode of Halevi and Rogaway ("A Parallelizable Enciphering Mode", 2003) over AES-256: every bit
//! of the result depends on every bit of a message of 1 to 128 blocks, and nothing is added to it.
//!
//! ```text
//!   blocks, each masked   ->  AES  ->  mixed through one sum  ->  AES  ->  masked
//! ```

use aes::Aes256;
use aes::Block;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// Bytes of a block, and of a tweak.
pub(crate) const BLOCK_BYTES: usize = 16;
/// Blocks of a message at most.
const BLOCKS_MAX: usize = 128;

/// A key. It is cleared when dropped.
pub(crate) struct Eme(Aes256);

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl Eme {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Aes256::new(key.into()))
    }

    /// Encrypts 1 to 128 whole blocks in place.
    pub(crate) fn encrypt(&self, tweak: &[u8; BLOCK_BYTES], data: &mut [u8]) {
        self.run(Direction::Encrypt, tweak, data);
    }

    /// Decrypts 1 to 128 whole blocks in place.
    pub(crate) fn decrypt(&self, tweak: &[u8; BLOCK_BYTES], data: &mut [u8]) {
        self.run(Direction::Decrypt, tweak, data);
    }

    fn run(&self, direction: Direction, tweak: &[u8; BLOCK_BYTES], data: &mut [u8]) {
        let (parts, rest) = data.as_chunks_mut::<BLOCK_BYTES>();
        assert!(rest.is_empty() && (1..=BLOCKS_MAX).contains(&parts.len()), "a message has 1 to 128 whole blocks");
        let mut blocks: Vec<Block> = parts.iter().map(|part| Block::from(*part)).collect();
        self.mask(&mut blocks);
        self.aes(direction, &mut blocks);
        let tweak = u128::from_le_bytes(*tweak);
        let mut numbers: Vec<u128> = blocks.iter().map(|block| u128::from_le_bytes((*block).into())).collect();
        let sum = numbers.iter().fold(tweak, |sum, number| sum ^ number);
        let mut mixed = [Block::from(sum.to_le_bytes())];
        self.aes(direction, &mut mixed);
        let mixed = u128::from_le_bytes(mixed[0].into());
        let mut spread = sum ^ mixed;
        let mut first = mixed ^ tweak;
        for number in &mut numbers[1..] {
            spread = doubled(spread);
            *number ^= spread;
            first ^= *number;
        }
        numbers[0] = first;
        for (block, number) in blocks.iter_mut().zip(numbers) {
            *block = number.to_le_bytes().into();
        }
        self.aes(direction, &mut blocks);
        self.mask(&mut blocks);
        for (part, block) in parts.iter_mut().zip(blocks) {
            *part = block.into();
        }
    }

    /// Adds the key's multiples by 2, 4, 8, ... to the blocks.
    fn mask(&self, blocks: &mut [Block]) {
        let mut zero = Block::default();
        self.0.encrypt_block(&mut zero);
        let mut mask = u128::from_le_bytes(zero.into());
        for block in blocks {
            mask = doubled(mask);
            *block = (u128::from_le_bytes((*block).into()) ^ mask).to_le_bytes().into();
        }
    }

    fn aes(&self, direction: Direction, blocks: &mut [Block]) {
        match direction {
            Direction::Encrypt => self.0.encrypt_blocks(blocks),
            Direction::Decrypt => self.0.decrypt_blocks(blocks),
        }
    }
}

/// Multiplication by 2 in GF(2^128) with `x^128 + x^7 + x^2 + x + 1`, the first byte the least significant one.
fn doubled(number: u128) -> u128 {
    number << 1 ^ if number >> 127 == 1 { 0x87 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The draft of IEEE P1619 on EME-32-AES: 512 zeroes under a key and a tweak of zeroes, in both directions.
    #[test]
    fn the_vectors_of_the_draft_standard() {
        let eme = Eme::new(&[0; 32]);
        let (mut sealed, mut opened) = ([0; 512], [0; 512]);
        eme.encrypt(&[0; 16], &mut sealed);
        eme.decrypt(&[0; 16], &mut opened);
        let ends = |data: [u8; 512]| {
            let of = |at: usize| u128::from_be_bytes(data[at..at + 16].try_into().unwrap());
            [of(0), of(256), of(496)]
        };
        let expected = [
            0x9f2e_6c3d_aeca_e79e_8839_b058_8ff3_78cd,
            0xd341_f551_5e22_371e_442b_86e7_0287_546a,
            0xac20_9c2c_d3cc_577c_28ee_daaf_cedd_89a6,
        ];
        assert_eq!(ends(sealed), expected);
        let expected = [
            0x0809_05de_e8eb_cc89_f68b_d1af_635d_b3f5,
            0x424c_e6b5_e973_e527_03af_b31c_ee79_90da,
            0x3af8_04a5_c9da_b344_20f2_60e4_bd84_0829,
        ];
        assert_eq!(ends(opened), expected);
    }

    proptest! {
        #[test]
        fn decryption_undoes_encryption_and_every_bit_matters(
            key: [u8; 32],
            tweak: [u8; 16],
            blocks in 1..17_usize,
            seed: u8,
            flip in 0..128_usize,
        ) {
            let eme = Eme::new(&key);
            let plain: Vec<u8> = (0..blocks * 16).map(|at| (at as u8).wrapping_mul(seed)).collect();
            let mut data = plain.clone();
            eme.encrypt(&tweak, &mut data);
            let cipher = data.clone();
            eme.decrypt(&tweak, &mut data);
            prop_assert_eq!(&data, &plain);
            // One bit of the message changes every block of the result.
            data[flip / 8] ^= 1 << (flip % 8);
            eme.encrypt(&tweak, &mut data);
            for (one, other) in data.chunks(16).zip(cipher.chunks(16)) {
                prop_assert_ne!(one, other);
            }
        }
    }
}
