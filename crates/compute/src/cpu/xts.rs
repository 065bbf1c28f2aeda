//! AES-XTS over sectors, as dm-crypt's `aes-xts-plain64`. AWS-LC has it for AES-256 only; AES-128 is by
//! the `aes` and `xts-mode` crates, at about a tenth of the speed.

use super::BadKey;
use super::ffi::{Context, Pool};
use aes::Aes128;
use aes::cipher::KeyInit;
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::{IvUnit, Sectors};
use xts_mode::Xts128;

/// A key, ready for both directions.
pub struct Xts(Key);

enum Key {
    Aes128(Box<Xts128<Aes128>>),
    Aes256 { encrypt: Pool, decrypt: Pool },
}

impl std::fmt::Debug for Xts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Xts").finish_non_exhaustive()
    }
}

impl Xts {
    /// The data key and the tweak key one after the other: 32 bytes for AES-128, 64 for AES-256.
    ///
    /// # Errors
    /// [`BadKey`] for another length, and for two halves that are the same, as the standard asks.
    pub fn new(key: &[u8]) -> Result<Self, BadKey> {
        let refused = BadKey { len: key.len(), wanted: &[32, 64] };
        let (data, tweak) = key.split_at(key.len() / 2);
        if data == tweak {
            return Err(refused);
        }
        match key.len() {
            32 => {
                let of = |half| Aes128::new_from_slice(half).map_err(|_| refused);
                Ok(Self(Key::Aes128(Box::new(Xts128::new(of(data)?, of(tweak)?)))))
            }
            64 => {
                // SAFETY: takes nothing and returns a cipher that is never freed.
                let cipher = unsafe { aws_lc_sys::EVP_aes_256_xts() };
                let pool = |encrypt| Context::new(cipher, key, encrypt).map(Pool::new).ok_or(refused);
                Ok(Self(Key::Aes256 { encrypt: pool(true)?, decrypt: pool(false)? }))
            }
            _ => Err(refused),
        }
    }

    /// Encrypts whole sectors in place.
    ///
    /// # Errors
    /// Those of [`Sectors::count`].
    pub fn encrypt(&self, sectors: Sectors, data: &mut [u8]) -> bifolio_kernels::Result<()> {
        self.run(Direction::Encrypt, sectors, data)
    }

    /// Decrypts whole sectors in place.
    ///
    /// # Errors
    /// Those of [`Sectors::count`].
    pub fn decrypt(&self, sectors: Sectors, data: &mut [u8]) -> bifolio_kernels::Result<()> {
        self.run(Direction::Decrypt, sectors, data)
    }

    /// Encrypts or decrypts whole sectors in place.
    ///
    /// # Errors
    /// Those of [`Sectors::count`].
    pub fn run(&self, direction: Direction, sectors: Sectors, data: &mut [u8]) -> bifolio_kernels::Result<()> {
        sectors.count(data.len() as u64)?;
        let step = match sectors.iv_unit {
            IvUnit::Bytes512 => u64::from(sectors.bytes / 512),
            IvUnit::Sector => 1,
        };
        let numbered = data.chunks_exact_mut(sectors.bytes as usize).enumerate().map(|(index, sector)| {
            let number = sectors.first_iv.wrapping_add(step.wrapping_mul(index as u64));
            let mut iv = [0; 16];
            iv[..8].copy_from_slice(&number.to_le_bytes());
            (sector, iv)
        });
        match (&self.0, direction) {
            (Key::Aes128(xts), Direction::Encrypt) => {
                numbered.for_each(|(sector, iv)| xts.encrypt_sector(sector, iv.into()));
            }
            (Key::Aes128(xts), Direction::Decrypt) => {
                numbered.for_each(|(sector, iv)| xts.decrypt_sector(sector, iv.into()));
            }
            (Key::Aes256 { encrypt: pool, .. }, Direction::Encrypt)
            | (Key::Aes256 { decrypt: pool, .. }, Direction::Decrypt) => pool.with(|context| {
                numbered.for_each(|(sector, iv)| {
                    context.begin(&iv);
                    context.update(sector);
                });
            }),
        }
        Ok(())
    }
}
