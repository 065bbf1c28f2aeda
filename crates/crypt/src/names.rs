//! Names: a plain name and its directory's IV to the name on disk, and back.
//!
//! ```text
//!   name -> padded to blocks of 16 -> EME, tweaked by the directory's IV -> base 64
//!        -> if that is too long: gocryptfs.longname.SHA256, and the whole in a file with .name behind it
//! ```

use crate::base64::Base64;
use crate::config::{CONFIG_NAME, Features};
use crate::eme::{BLOCK_BYTES, Eme};
use sha2::{Digest, Sha256};

/// The file in each directory that holds its IV.
pub(crate) const DIR_IV_NAME: &str = "gocryptfs.diriv";
/// Bytes of a directory's IV.
pub(crate) const DIR_IV_BYTES: usize = 16;
/// What hashed names begin with.
pub(crate) const LONG_PREFIX: &str = "gocryptfs.longname.";
/// What the files end with that hold the whole of a hashed name.
pub(crate) const LONG_SUFFIX: &str = ".name";
/// Bytes of a name at most, plain or on disk.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Bytes of an encrypted name that is kept in a file: 256 bytes in base 64.
pub(crate) const LONG_BYTES_MAX: usize = 344;

/// The IV of a directory; all zero where directories have none of their own.
pub(crate) type DirIv = [u8; DIR_IV_BYTES];

/// A name as it is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CipherName {
    /// The entry's name.
    pub(crate) entry: Vec<u8>,
    /// The encrypted name, where the entry has only its hash.
    pub(crate) whole: Option<Vec<u8>>,
}

impl CipherName {
    /// The name of the file that holds the whole of a hashed name.
    pub(crate) fn whole_entry(&self) -> Vec<u8> {
        [&self.entry, LONG_SUFFIX.as_bytes()].concat()
    }
}

/// What an entry of an encrypted directory is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// Belongs to the format, and is not listed.
    Format,
    /// Has a hashed name, the whole of which is in a file.
    Hashed,
    /// Has a name that can be decrypted, or should have.
    Named,
}

/// Why a name has no counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadName {
    /// The name is empty, `.`, `..`, or has a slash or a zero byte.
    Impossible,
    /// The name is too long, or is when it is encrypted.
    TooLong,
    /// The name belongs to the format.
    Reserved,
    /// The name on disk is not what any name encrypts to here.
    Damaged,
}

impl std::fmt::Display for BadName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Impossible => "the name is not a valid file name",
            Self::TooLong => "the name is too long, at least when it is encrypted",
            Self::Reserved => "the name belongs to the format of encrypted directories",
            Self::Damaged => "the name does not decrypt: it was changed, or comes from another directory",
        })
    }
}

/// The key for names, and how they are written.
pub(crate) struct Names {
    eme: Eme,
    features: Features,
    base64: Base64,
}

impl Names {
    pub(crate) fn new(key: &[u8; 32], features: Features) -> Self {
        let base64 = if features.raw64 { Base64::UrlRaw } else { Base64::Url };
        Self { eme: Eme::new(key), features, base64 }
    }

    /// How symbolic links are written, too.
    pub(crate) fn base64(&self) -> Base64 {
        self.base64
    }

    /// The name on disk. `is_root` says that the directory is the root, which has the configuration.
    pub(crate) fn encrypt(&self, iv: &DirIv, name: &[u8], is_root: bool) -> Result<CipherName, BadName> {
        check(name)?;
        if self.features.plaintext_names {
            if is_root && name == CONFIG_NAME.as_bytes() {
                return Err(BadName::Reserved);
            }
            return Ok(CipherName { entry: name.to_vec(), whole: None });
        }
        let mut padded = name.to_vec();
        let fill = BLOCK_BYTES - name.len() % BLOCK_BYTES;
        padded.resize(name.len() + fill, fill as u8);
        self.eme.encrypt(iv, &mut padded);
        let encoded = self.base64.encode(&padded);
        if self.features.long_names && encoded.len() > usize::from(self.features.long_name_max) {
            return Ok(CipherName { entry: self.hashed(&encoded), whole: Some(encoded) });
        }
        if encoded.len() > NAME_BYTES_MAX {
            return Err(BadName::TooLong);
        }
        Ok(CipherName { entry: encoded, whole: None })
    }

    /// The entry's name for an encrypted name that is too long.
    pub(crate) fn hashed(&self, encoded: &[u8]) -> Vec<u8> {
        [LONG_PREFIX.as_bytes(), &self.base64.encode(&Sha256::digest(encoded))].concat()
    }

    /// What an entry is.
    pub(crate) fn kind(&self, entry: &[u8], is_root: bool) -> EntryKind {
        if is_root && entry == CONFIG_NAME.as_bytes() {
            return EntryKind::Format;
        }
        if self.features.plaintext_names {
            return EntryKind::Named;
        }
        // A backup of it, or what an interrupted change left: no name encrypts to one with dots.
        if is_root && entry.strip_prefix(CONFIG_NAME.as_bytes()).is_some_and(|rest| rest.starts_with(b".")) {
            return EntryKind::Format;
        }
        if self.features.dir_iv && entry == DIR_IV_NAME.as_bytes() {
            return EntryKind::Format;
        }
        if self.features.long_names && entry.starts_with(LONG_PREFIX.as_bytes()) {
            return if entry.ends_with(LONG_SUFFIX.as_bytes()) { EntryKind::Format } else { EntryKind::Hashed };
        }
        EntryKind::Named
    }

    /// Whether an entry's name could be an encrypted one, whatever the key: its length and its characters are right.
    pub(crate) fn may_decrypt(&self, entry: &[u8]) -> bool {
        let is_whole = |data: Vec<u8>| !data.is_empty() && data.len().is_multiple_of(BLOCK_BYTES);
        self.base64.decode(entry).is_some_and(is_whole)
    }

    /// The plain name for an encrypted one: the entry's, or what is in the file beside a hashed one.
    pub(crate) fn decrypt(&self, iv: &DirIv, encoded: &[u8]) -> Result<Vec<u8>, BadName> {
        if self.features.plaintext_names {
            return check(encoded).map(|()| encoded.to_vec());
        }
        let mut data = self.base64.decode(encoded).ok_or(BadName::Damaged)?;
        if data.is_empty() || !data.len().is_multiple_of(BLOCK_BYTES) || data.len() > NAME_BYTES_MAX + 1 {
            return Err(BadName::Damaged);
        }
        self.eme.decrypt(iv, &mut data);
        let fill = usize::from(*data.last().ok_or(BadName::Damaged)?);
        if !(1..=BLOCK_BYTES).contains(&fill) || !data.ends_with(&[fill as u8; BLOCK_BYTES][..fill]) {
            return Err(BadName::Damaged);
        }
        data.truncate(data.len() - fill);
        check(&data).map_err(|_| BadName::Damaged)?;
        Ok(data)
    }
}

fn check(name: &[u8]) -> Result<(), BadName> {
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(BadName::Impossible);
    }
    if name.len() > NAME_BYTES_MAX { Err(BadName::TooLong) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(features: Features) -> Names {
        Names::new(&[7; 32], features)
    }

    #[test]
    fn names_that_are_too_long_are_hashed_or_refused() {
        let long = [b'n'; 255];
        let hashed = names(Features::DEFAULT).encrypt(&[1; 16], &long, false).unwrap();
        assert!(hashed.entry.starts_with(LONG_PREFIX.as_bytes()) && hashed.entry.len() < 70);
        assert_eq!(hashed.whole.as_ref().unwrap().len(), 342);
        assert_eq!(names(Features::DEFAULT).decrypt(&[1; 16], hashed.whole.as_ref().unwrap()).unwrap(), long);
        let without = names(Features { long_names: false, ..Features::DEFAULT });
        assert_eq!(without.encrypt(&[1; 16], &long, false), Err(BadName::TooLong));
        assert!(without.encrypt(&[1; 16], &long[..175], false).is_ok());
        assert_eq!(without.encrypt(&[1; 16], &long[..176], false), Err(BadName::TooLong));
        let limited = names(Features { long_name_max: 62, ..Features::DEFAULT });
        assert!(limited.encrypt(&[1; 16], &long[..31], false).unwrap().whole.is_none());
        assert!(limited.encrypt(&[1; 16], &long[..32], false).unwrap().whole.is_some());
    }

    #[test]
    fn impossible_and_reserved_names_are_refused() {
        let names = names(Features::DEFAULT);
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(names.encrypt(&[0; 16], name, false), Err(BadName::Impossible));
        }
        assert_eq!(names.encrypt(&[0; 16], &[b'x'; 256], false), Err(BadName::TooLong));
        let plain = Names::new(&[7; 32], Features::PLAINTEXT_NAMES);
        assert_eq!(plain.encrypt(&[0; 16], b"gocryptfs.conf", true), Err(BadName::Reserved));
        assert!(plain.encrypt(&[0; 16], b"gocryptfs.conf", false).is_ok());
    }

    proptest! {
        #[test]
        fn names_come_back_and_only_with_their_directory_s_iv(
            name in proptest::collection::vec(1..=255_u8, 1..=255),
            iv: [u8; 16],
            change in 0..1000_usize,
            raw64: bool,
        ) {
            let names = names(Features { raw64, ..Features::DEFAULT });
            let Ok(CipherName { entry, whole }) = names.encrypt(&iv, &name, false) else {
                prop_assert!(name.contains(&b'/') || name == b"." || name == b"..");
                return Ok(());
            };
            prop_assert!(entry.len() <= 255);
            let mut encoded = whole.unwrap_or(entry);
            prop_assert_eq!(names.decrypt(&iv, &encoded), Ok(name.clone()));
            let mut other = iv;
            other[change % 16] ^= 1;
            prop_assert_ne!(names.decrypt(&other, &encoded), Ok(name.clone()));
            let at = change % encoded.len();
            encoded[at] = if encoded[at] == b'A' { b'B' } else { b'A' };
            prop_assert_ne!(names.decrypt(&iv, &encoded), Ok(name));
        }

        #[test]
        fn any_name_on_disk_is_a_name_or_damaged(entry: Vec<u8>, blocks in 0..20_usize) {
            let names = names(Features::DEFAULT);
            let _ = names.decrypt(&[3; 16], &entry);
            let encoded = Base64::UrlRaw.encode(&vec![5; blocks * 16]);
            if let Ok(name) = names.decrypt(&[3; 16], &encoded) {
                prop_assert!(check(&name).is_ok());
            }
        }
    }
}
