//! What both ends of a security association know: SPI, key, mode.

use crate::args::{Arg, ArgCx, Args, Failed, Word};
use bifolio_compute::cpu::Gcm;
use zeroize::Zeroizing;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = bifolio_compute::cpu::TAG_BYTES;

/// Bytes that are encrypted of `bytes`: these with their trailer.
pub(crate) fn padded(bytes: usize) -> usize {
    bifolio_kernels::packets::esp::Esp::padded(bytes)
}

/// Bytes of the salt behind a key.
const SALT_BYTES: usize = 4;
/// SPIs below this have meanings of their own (RFC 4303, 2.1).
const SPI_MIN: u32 = 256;

/// What is encrypted of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    /// All of them.
    #[default]
    Tunnel,
    /// What follows their IP header.
    Transport,
}

/// A key of AES-GCM with the salt that nonces begin with. It is cleared when it is dropped.
pub(crate) struct Key {
    /// The key, then the salt.
    bytes: Zeroizing<Vec<u8>>,
    gcm: Gcm,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a key of {} bits", self.key().len() * 8)
    }
}

impl Key {
    /// The key of hexadecimal digits, which may begin with `0x`.
    fn of_digits(text: &str) -> Result<Self, String> {
        let digits = text.trim();
        let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).unwrap_or(digits).as_bytes();
        let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
        for pair in digits.chunks(2) {
            let digit = |at: usize| pair.get(at).and_then(|digit| char::from(*digit).to_digit(16));
            let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                return Err("must be hexadecimal digits, two for each byte".to_owned());
            };
            bytes.push((high * 16 + low) as u8);
        }
        let len = bytes.len();
        let gcm = len.checked_sub(SALT_BYTES).and_then(|key| Gcm::new(&bytes[..key]).ok());
        let gcm =
            gcm.ok_or_else(|| format!("must have 20, 28 or 36 bytes, which are the key and its salt, and has {len}"))?;
        Ok(Self { bytes, gcm })
    }

    /// The key alone.
    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - SALT_BYTES]
    }

    /// The salt.
    pub(crate) fn salt(&self) -> [u8; SALT_BYTES] {
        self.bytes.last_chunk().copied().unwrap_or_default()
    }
}

/// An argument that is a key.
struct KeyArg(Key);

impl Arg for KeyArg {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        let text = Zeroizing::new(crate::lang::config::unquote(text));
        Key::of_digits(&text).map(Self)
    }
}

/// An association, in one direction.
#[derive(Debug)]
pub(crate) struct Association {
    /// As on the wire.
    pub(crate) spi: [u8; 4],
    /// Its key.
    pub(crate) key: Key,
    /// What is encrypted.
    pub(crate) mode: Mode,
    /// Whether sequence numbers have 64 bits (ESN).
    pub(crate) is_extended: bool,
}

/// Additional data of a packet: the SPI and its sequence number (RFC 4106, 5).
struct Aad([u8; 12], usize);

impl Association {
    /// SPI, KEY or KEYFILE, MODE and ESN.
    pub(crate) fn of(args: &mut Args<'_>) -> Result<Self, Failed> {
        let (mut spi, mut key, mut file) = (0_u32, None::<KeyArg>, None::<String>);
        let (mut mode, mut is_extended) = (Word("tunnel".to_owned()), false);
        args.must("SPI", &mut spi).may("KEY", &mut key).key("KEYFILE", &mut file);
        args.key("MODE", &mut mode).key("ESN", &mut is_extended);
        args.result()?;
        if spi < SPI_MIN {
            return Err(args.error_of("SPI", format_args!("must be at least {SPI_MIN}")));
        }
        let mode = match mode.0.to_ascii_lowercase().as_str() {
            "tunnel" => Mode::Tunnel,
            "transport" => Mode::Transport,
            other => return Err(args.error_of("MODE", format_args!("'{other}' is neither tunnel nor transport"))),
        };
        let key = match (key, file) {
            (Some(KeyArg(key)), None) => key,
            (None, Some(file)) => {
                let text = std::fs::read_to_string(&file).map(Zeroizing::new);
                let text = text.map_err(|error| args.error_of("KEYFILE", format_args!("{file}: {error}")))?;
                Key::of_digits(&text).map_err(|error| args.error_of("KEYFILE", format_args!("{file}: {error}")))?
            }
            _ => return Err(args.error("one of KEY and KEYFILE is needed")),
        };
        Ok(Self { spi: spi.to_be_bytes(), key, mode, is_extended })
    }

    /// Whether it is another one's: numbers of one cannot be the other's again.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.spi == other.spi && self.key.bytes == other.key.bytes
    }

    /// The largest sequence number.
    pub(crate) fn number_max(&self) -> u64 {
        if self.is_extended { u64::MAX } else { u32::MAX.into() }
    }

    fn aad(&self, number: u64) -> Aad {
        let (mut bytes, number) = ([0; 12], number.to_be_bytes());
        bytes[..4].copy_from_slice(&self.spi);
        let number = if self.is_extended { &number[..] } else { &number[4..] };
        bytes[4..4 + number.len()].copy_from_slice(number);
        Aad(bytes, 4 + number.len())
    }

    fn nonce(&self, iv: [u8; 8]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..SALT_BYTES].copy_from_slice(&self.key.salt());
        nonce[SALT_BYTES..].copy_from_slice(&iv);
        nonce
    }

    /// Encrypts a text with its trailer in place.
    pub(crate) fn encrypt(&self, number: u64, iv: [u8; 8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let Aad(aad, len) = self.aad(number);
        self.key.gcm.encrypt(&self.nonce(iv), &aad[..len], text)
    }

    /// Decrypts in place; whether the tag is right.
    pub(crate) fn decrypt(&self, number: u64, iv: [u8; 8], text: &mut [u8], tag: &[u8; TAG_BYTES]) -> bool {
        let Aad(aad, len) = self.aad(number);
        self.key.gcm.decrypt(&self.nonce(iv), &aad[..len], text, tag).is_ok()
    }
}
