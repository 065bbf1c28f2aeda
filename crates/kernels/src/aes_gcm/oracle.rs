//! What the kernels compute, by the `aes-gcm` crate, and what a key becomes on the way to the device.

use crate::aes::{self, Direction, KeySize, SCHEDULE_BYTES, Schedules};
use ::aes::cipher::{BlockCipherEncrypt, BlockSizeUser, consts::U12, consts::U16};
use ::aes::{Aes128, Aes192, Aes256, Block};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{AesGcm, Nonce};
use bifolio_device::Result;
use ghash::{GHash, universal_hash::UniversalHash};
use zeroize::Zeroizing;

/// Powers of H that travel with a schedule.
const POWERS: usize = 32;

/// Bytes of the schedule and the powers of one key.
pub(crate) const SCHEDULES_BYTES: u64 = (SCHEDULE_BYTES + POWERS * 16) as u64;

/// The schedule and the powers of H of a key of 16, 24 or 32 bytes.
pub fn schedules(key: &[u8]) -> Result<Schedules> {
    let size = KeySize::of_key(key)?;
    let mut bytes = aes::room_for(1, POWERS * 16);
    aes::append_schedule(&mut bytes, key, Direction::Encrypt)?;
    let h = Zeroizing::new(encrypt_block(key, [0; 16]));
    let mut power = h.clone();
    for _ in 0..POWERS {
        for word in power.as_chunks::<4>().0.iter().rev() {
            bytes.extend_from_slice(&u32::from_be_bytes(*word).to_ne_bytes());
        }
        // The hash of one block is its product with H.
        *power = hash(&h, &[*power]);
    }
    Ok(Schedules::new(size, bytes))
}

pub(super) fn hash(h: &[u8; 16], blocks: &[[u8; 16]]) -> [u8; 16] {
    let mut hash = GHash::new(&(*h).into());
    for block in blocks {
        hash.update(&[(*block).into()]);
    }
    hash.finalize().into()
}

pub(super) fn encrypt_block(key: &[u8], block: [u8; 16]) -> [u8; 16] {
    let mut block = Block::from(block);
    match key.len() {
        16 => Aes128::new_from_slice(key).expect("16 bytes").encrypt_block(&mut block),
        24 => Aes192::new_from_slice(key).expect("24 bytes").encrypt_block(&mut block),
        _ => Aes256::new_from_slice(key).expect("32 bytes").encrypt_block(&mut block),
    }
    block.into()
}

/// The tag of `text`, which is encrypted in place.
///
/// # Panics
/// If key or nonce have a length that the kernels do not know.
pub fn oracle_encrypt(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8]) -> [u8; 16] {
    match (key.len(), nonce.len()) {
        (16, 12) => seal::<Aes128, U12>(key, nonce, aad, text),
        (16, 16) => seal::<Aes128, U16>(key, nonce, aad, text),
        (24, 12) => seal::<Aes192, U12>(key, nonce, aad, text),
        (24, 16) => seal::<Aes192, U16>(key, nonce, aad, text),
        (32, 12) => seal::<Aes256, U12>(key, nonce, aad, text),
        (32, 16) => seal::<Aes256, U16>(key, nonce, aad, text),
        (key, nonce) => panic!("a key of {key} and a nonce of {nonce} bytes"),
    }
}

/// Whether the tag is right; then `text` is decrypted in place, else it stays.
///
/// # Panics
/// As [`oracle_encrypt`].
pub fn oracle_decrypt(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8], tag: [u8; 16]) -> bool {
    match (key.len(), nonce.len()) {
        (16, 12) => open::<Aes128, U12>(key, nonce, aad, text, tag),
        (16, 16) => open::<Aes128, U16>(key, nonce, aad, text, tag),
        (24, 12) => open::<Aes192, U12>(key, nonce, aad, text, tag),
        (24, 16) => open::<Aes192, U16>(key, nonce, aad, text, tag),
        (32, 12) => open::<Aes256, U12>(key, nonce, aad, text, tag),
        (32, 16) => open::<Aes256, U16>(key, nonce, aad, text, tag),
        (key, nonce) => panic!("a key of {key} and a nonce of {nonce} bytes"),
    }
}

fn seal<C, N>(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8]) -> [u8; 16]
where
    C: KeyInit + BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt,
    N: ::aes::cipher::array::ArraySize,
{
    let cipher = AesGcm::<C, N>::new_from_slice(key).expect("the key's length is the cipher's");
    let nonce = Nonce::<N>::try_from(nonce).expect("the nonce's length is the type's");
    cipher.encrypt_inout_detached(&nonce, aad, text.into()).expect("the text is short enough").into()
}

fn open<C, N>(key: &[u8], nonce: &[u8], aad: &[u8], text: &mut [u8], tag: [u8; 16]) -> bool
where
    C: KeyInit + BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt,
    N: ::aes::cipher::array::ArraySize,
{
    let cipher = AesGcm::<C, N>::new_from_slice(key).expect("the key's length is the cipher's");
    let nonce = Nonce::<N>::try_from(nonce).expect("the nonce's length is the type's");
    cipher.decrypt_inout_detached(&nonce, aad, text.into(), &tag.into()).is_ok()
}
