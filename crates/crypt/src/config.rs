//! `gocryptfs.conf`: which variant of the format a directory has, and its master key, wrapped by a passphrase.
//!
//! What it says is believed only within bounds, since it is not authenticated: whoever can write it can ask for any
//! work before a key is seen to be wrong.

use crate::base64::Base64;
use bifolio_compute::cpu::ScryptCost;
use serde::{Deserialize, Serialize};

/// The configuration's file name, in the directory's root.
pub const CONFIG_NAME: &str = "gocryptfs.conf";
/// Bytes that a configuration has at most; real ones have some hundred.
pub const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// The format that is read and written.
const VERSION: u16 = 2;
/// Memory for deriving a key at most. gocryptfs's default cost needs 64 MiB.
const SCRYPT_MEMORY_BYTES_MAX: usize = 4 << 30;
/// `N * r * p` at most: a minute or so.
const SCRYPT_WORK_MAX: u64 = 1 << 28;
/// As gocryptfs's own bounds.
const SCRYPT_N_MIN: u64 = 1 << 10;
const SCRYPT_R_MIN: u64 = 8;
const SALT_BYTES_MIN: usize = 32;
const SALT_BYTES_MAX: usize = 1024;
const KEY_BYTES: usize = 32;
/// Encrypted names longer than this are hashed; below 62 a hashed one would be as long.
const LONG_NAME_MAX_MIN: u8 = 62;

/// Which variant of the format a directory has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the format's flags are independent of each other")]
pub struct Features {
    /// Keys are derived from the master key by HKDF; otherwise the master key is used for everything.
    pub hkdf: bool,
    /// Names are not encrypted.
    pub plaintext_names: bool,
    /// Each directory has a random value of its own that its names depend on.
    pub dir_iv: bool,
    /// Encrypted names that are too long for a file system are hashed.
    pub long_names: bool,
    /// Names are base 64 without `=` at the end.
    pub raw64: bool,
    /// Bytes that an encrypted name has at most before it is hashed, 62 to 255.
    pub long_name_max: u8,
}

impl Features {
    /// What `gocryptfs -init` chooses.
    pub const DEFAULT: Self =
        Self { hkdf: true, plaintext_names: false, dir_iv: true, long_names: true, raw64: true, long_name_max: 255 };
    /// With names that are not encrypted.
    pub const PLAINTEXT_NAMES: Self =
        Self { plaintext_names: true, dir_iv: false, long_names: false, raw64: false, ..Self::DEFAULT };

    fn of_flags(file: &File) -> Result<Self, BadConfig> {
        let mut features = Self {
            hkdf: false,
            plaintext_names: false,
            dir_iv: false,
            long_names: false,
            raw64: false,
            long_name_max: 255,
        };
        let (mut gcm_iv_128, mut eme_names, mut limited) = (false, false, false);
        for flag in &file.feature_flags {
            match flag.as_str() {
                "HKDF" => features.hkdf = true,
                "GCMIV128" => gcm_iv_128 = true,
                "PlaintextNames" => features.plaintext_names = true,
                "DirIV" => features.dir_iv = true,
                "EMENames" => eme_names = true,
                "LongNames" => features.long_names = true,
                "LongNameMax" => limited = true,
                "Raw64" => features.raw64 = true,
                "AESSIV" => return Err(unsupported("AES-SIV (flag AESSIV, -aessiv and -reverse)")),
                "XChaCha20Poly1305" => {
                    return Err(unsupported("XChaCha20-Poly1305 (flag XChaCha20Poly1305, -xchacha)"));
                }
                "FIDO2" => return Err(unsupported("a FIDO2 token for the key (flag FIDO2, -fido2)")),
                other => {
                    return Err(format!("the feature flag {other:?} is not known; a newer version may know it").into());
                }
            }
        }
        if file.fido2.is_some() {
            return Err(unsupported("a FIDO2 token for the key (-fido2)"));
        }
        if !gcm_iv_128 {
            return Err(
                "the flag GCMIV128 is missing: the directory is of gocryptfs before version 0.7, copy it with \
                        that version into a new one"
                    .into(),
            );
        }
        let of_names = features.dir_iv || eme_names || features.long_names || features.raw64 || limited;
        if features.plaintext_names && of_names {
            return Err("the flag PlaintextNames and one of those for encrypted names contradict each other".into());
        }
        if !features.plaintext_names && !eme_names {
            return Err(
                "the flag EMENames is missing: the directory is of gocryptfs before version 0.7, copy it with \
                        that version into a new one"
                    .into(),
            );
        }
        if limited {
            let max = file.long_name_max.unwrap_or(0);
            if max < LONG_NAME_MAX_MIN || !features.long_names {
                return Err(format!(
                    "LongNameMax is {max} with LongNames {}; from 62 on it is possible",
                    features.long_names
                )
                .into());
            }
            features.long_name_max = max;
        }
        Ok(features)
    }

    /// The format's names for these features.
    pub fn flags(&self) -> Vec<&'static str> {
        let limited = self.long_name_max < 255;
        let named = [
            (self.hkdf, "HKDF"),
            (true, "GCMIV128"),
            (self.plaintext_names, "PlaintextNames"),
            (self.dir_iv, "DirIV"),
            (!self.plaintext_names, "EMENames"),
            (self.long_names, "LongNames"),
            (limited, "LongNameMax"),
            (self.raw64, "Raw64"),
        ];
        named.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect()
    }
}

/// Why a configuration is refused: a sentence without its full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadConfig {
    /// It says what cannot be.
    Damaged(String),
    /// The variant of the format is known, and not implemented.
    Unsupported(String),
}

impl From<String> for BadConfig {
    fn from(sentence: String) -> Self {
        Self::Damaged(sentence)
    }
}

impl From<&str> for BadConfig {
    fn from(sentence: &str) -> Self {
        Self::Damaged(sentence.to_owned())
    }
}

impl std::fmt::Display for BadConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Damaged(sentence) | Self::Unsupported(sentence) => f.write_str(sentence),
        }
    }
}

fn unsupported(what: &str) -> BadConfig {
    BadConfig::Unsupported(format!(
        "this directory uses {what}, which is not implemented; gocryptfs itself can mount it"
    ))
}

/// The configuration of an encrypted directory. It holds no secret that is not encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Which program made it.
    pub creator: String,
    /// Which variant of the format it is.
    pub features: Features,
    /// The cost of deriving a key from the passphrase.
    pub cost: ScryptCost,
    /// Random bytes that a passphrase is joined with.
    pub salt: Vec<u8>,
    /// The master key, encrypted: nonce, 32 bytes, tag.
    pub encrypted_key: Vec<u8>,
}

/// As it is written; members are named as in the file.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    #[serde(rename = "Creator", default)]
    creator: String,
    #[serde(rename = "EncryptedKey")]
    encrypted_key: String,
    #[serde(rename = "ScryptObject")]
    scrypt: Scrypt,
    #[serde(rename = "Version")]
    version: u16,
    #[serde(rename = "FeatureFlags")]
    feature_flags: Vec<String>,
    #[serde(rename = "FIDO2", default, skip_serializing_if = "Option::is_none")]
    fido2: Option<serde_json::Value>,
    #[serde(rename = "LongNameMax", default, skip_serializing_if = "Option::is_none")]
    long_name_max: Option<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Scrypt {
    #[serde(rename = "Salt")]
    salt: String,
    #[serde(rename = "N")]
    n: u64,
    #[serde(rename = "R")]
    r: u64,
    #[serde(rename = "P")]
    p: u64,
    #[serde(rename = "KeyLen")]
    key_len: u64,
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// A sentence without its full stop for what cannot be, and for variants that are not implemented.
    pub fn parse(text: &[u8]) -> Result<Self, BadConfig> {
        if text.len() as u64 > CONFIG_BYTES_MAX {
            return Err(format!("a configuration has at most {CONFIG_BYTES_MAX} bytes").into());
        }
        let file: File =
            serde_json::from_slice(text).map_err(|error| format!("this is not a configuration: {error}"))?;
        if file.version != VERSION {
            return Err(format!("the format's version is {}, and only {VERSION} is implemented", file.version).into());
        }
        let features = Features::of_flags(&file)?;
        let field = |name: &str, text: &str| {
            Base64::Standard.decode(text.as_bytes()).ok_or_else(|| format!("{name} is not valid base64"))
        };
        let salt = field("the salt", &file.scrypt.salt)?;
        let encrypted_key = field("EncryptedKey", &file.encrypted_key)?;
        let wanted = nonce_bytes(features) + KEY_BYTES + 16;
        if encrypted_key.len() != wanted {
            return Err(format!("EncryptedKey has {} bytes instead of {wanted}", encrypted_key.len()).into());
        }
        let cost = ScryptCost { n: file.scrypt.n, r: file.scrypt.r, p: file.scrypt.p };
        check_cost(cost)?;
        if !(SALT_BYTES_MIN..=SALT_BYTES_MAX).contains(&salt.len()) {
            return Err(format!("the salt has {} bytes; at least {SALT_BYTES_MIN} are safe", salt.len()).into());
        }
        if file.scrypt.key_len != KEY_BYTES as u64 {
            return Err(format!("scrypt's KeyLen is {} instead of {KEY_BYTES}", file.scrypt.key_len).into());
        }
        Ok(Self { creator: file.creator, features, cost, salt, encrypted_key })
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let field = |bytes: &[u8]| String::from_utf8(Base64::Standard.encode(bytes)).expect("base 64 is ASCII");
        let file = File {
            creator: self.creator.clone(),
            encrypted_key: field(&self.encrypted_key),
            scrypt: Scrypt {
                salt: field(&self.salt),
                n: self.cost.n,
                r: self.cost.r,
                p: self.cost.p,
                key_len: KEY_BYTES as u64,
            },
            version: VERSION,
            feature_flags: self.features.flags().into_iter().map(str::to_owned).collect(),
            fido2: None,
            long_name_max: (self.features.long_name_max < 255).then_some(self.features.long_name_max),
        };
        let mut text = serde_json::to_string_pretty(&file).expect("strings and numbers can be written as JSON");
        text.push('\n');
        text
    }
}

/// Bytes of the nonce before the wrapped master key: directories without HKDF have short ones.
pub(crate) fn nonce_bytes(features: Features) -> usize {
    if features.hkdf { 16 } else { 12 }
}

/// A sentence for a cost that is too low to protect a passphrase, or too high to be meant.
pub(crate) fn check_cost(cost: ScryptCost) -> Result<(), String> {
    let ScryptCost { n, r, p } = cost;
    if !n.is_power_of_two() || n < SCRYPT_N_MIN {
        return Err(format!("scrypt's N is {n}; it is a power of two from {SCRYPT_N_MIN} on"));
    }
    if r < SCRYPT_R_MIN || p < 1 {
        return Err(format!("scrypt's r and p are {r} and {p}; from {SCRYPT_R_MIN} and 1 on they are safe"));
    }
    let work = n.checked_mul(r).and_then(|work| work.checked_mul(p));
    let memory_bytes = cost.memory_bytes().filter(|bytes| *bytes <= SCRYPT_MEMORY_BYTES_MAX + (1 << 20));
    if memory_bytes.is_none() || work.is_none_or(|work| work > SCRYPT_WORK_MAX) {
        let most = SCRYPT_MEMORY_BYTES_MAX >> 30;
        return Err(format!("scrypt's cost N={n}, r={r}, p={p} needs more than {most} GiB or minutes, and is refused"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by gocryptfs 2.3.
    const REAL: &str = r#"{
        "Creator": "gocryptfs 2.3",
        "EncryptedKey": "NF/uACm99DDHyPl165ufvyjfJPOiTD92LlMDzyU1hNgATiJrh7KBwCvEa0XJuQmlwHoAEbb4RZr1+wdEOoofVA==",
        "ScryptObject": { "Salt": "3VrzEVXvO4kqgKkM6Lz0qXQNg6IolTsAVadh6dO0UDU=", "N": 1024, "R": 8, "P": 1, "KeyLen": 32 },
        "Version": 2,
        "FeatureFlags": [ "HKDF", "GCMIV128", "DirIV", "EMENames", "LongNames", "Raw64" ]
    }"#;

    #[test]
    fn a_configuration_of_gocryptfs_is_read_and_written_again() {
        let config = Config::parse(REAL.as_bytes()).unwrap();
        assert_eq!(config.features, Features::DEFAULT);
        assert_eq!(config.cost, ScryptCost { n: 1024, r: 8, p: 1 });
        assert_eq!(Config::parse(config.to_text().as_bytes()).unwrap(), config);
        for features in [Features::PLAINTEXT_NAMES, Features { long_name_max: 100, ..Features::DEFAULT }] {
            let config = Config { features, ..config.clone() };
            assert_eq!(Config::parse(config.to_text().as_bytes()).unwrap(), config);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_sentence_that_names_it() {
        let changes = [
            ("\"Version\": 2", "\"Version\": 3", "version is 3"),
            ("\"Raw64\"", "\"Raw64\", \"AESSIV\"", "AES-SIV"),
            ("\"Raw64\"", "\"XChaCha20Poly1305\"", "XChaCha20"),
            ("\"Raw64\"", "\"FIDO2\"", "FIDO2"),
            ("\"Version\"", "\"FIDO2\": {\"CredentialID\": \"\"}, \"Version\"", "FIDO2"),
            ("\"Raw64\"", "\"Reversed\"", "Reversed"),
            ("\"Raw64\"", "\"PlaintextNames\"", "contradict"),
            ("\"EMENames\",", "", "EMENames"),
            ("\"GCMIV128\",", "", "GCMIV128"),
            ("\"HKDF\",", "", "EncryptedKey"),
            ("\"Raw64\"", "\"LongNameMax\"", "LongNameMax"),
            ("1024", "1000", "power of two"),
            ("1024", "512", "power of two"),
            ("1024", "0", "power of two"),
            ("1024", "268435456", "refused"),
            ("1024", "9223372036854775808", "refused"),
            ("1024", "-1", "not a configuration"),
            ("\"R\": 8", "\"R\": 1", "safe"),
            ("\"R\": 8", "\"R\": 18446744073709551615", "refused"),
            ("\"P\": 1", "\"P\": 0", "safe"),
            ("\"P\": 1", "\"P\": 4294967296", "refused"),
            ("\"KeyLen\": 32", "\"KeyLen\": 16", "KeyLen"),
            ("3VrzEVXvO4kqgKkM6Lz0qXQNg6IolTsAVadh6dO0UDU=", "3Vrz", "salt"),
            ("3VrzEVXvO4kqgKkM6Lz0qXQNg6IolTsAVadh6dO0UDU=", "3", "salt"),
            ("NF/u", "NF/u====", "base64"),
            ("NF/u", "", "EncryptedKey"),
        ];
        for (from, to, expected) in changes {
            assert!(REAL.contains(from), "{from}");
            let sentence = Config::parse(REAL.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(sentence.contains(expected), "{to}: {sentence}");
        }
        assert!(Config::parse(&vec![b' '; 1 << 17]).unwrap_err().to_string().contains("at most"));
    }
}
