//! Keys: from a passphrase to the key that wraps the master key, and from that to the keys of contents and names.

use crate::config::{Config, Features, nonce_bytes};
use crate::random;
use bifolio_compute::cpu::{BadCost, Gcm, ScryptCost, TAG_BYTES, hkdf_sha256, scrypt};
use zeroize::Zeroizing;

/// Bytes of every key.
pub const KEY_BYTES: usize = 32;

/// The key that all others come from; it is cleared when dropped.
pub type MasterKey = Zeroizing<[u8; KEY_BYTES]>;

const LABEL_CONTENT: &[u8] = b"AES-GCM file content encryption";
const LABEL_NAMES: &[u8] = b"EME filename encryption";

/// Why a master key was not unwrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwrap {
    WrongPassphrase,
    Cost(BadCost),
}

/// The keys that a directory is used with.
pub(crate) struct Keys {
    pub(crate) content: Zeroizing<[u8; KEY_BYTES]>,
    pub(crate) names: Zeroizing<[u8; KEY_BYTES]>,
}

impl Keys {
    pub(crate) fn new(master: &MasterKey, features: Features) -> Self {
        let derived = |label| if features.hkdf { derive(master, label) } else { master.clone() };
        Self { content: derived(LABEL_CONTENT), names: derived(LABEL_NAMES) }
    }
}

/// A new master key.
pub(crate) fn new_master() -> MasterKey {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    random::fill(key.as_mut());
    key
}

/// The master key of a configuration.
pub(crate) fn unwrap(config: &Config, passphrase: &[u8]) -> Result<MasterKey, Unwrap> {
    let cipher = wrapping(config.features, config.cost, &config.salt, passphrase).map_err(Unwrap::Cost)?;
    let (nonce, rest) = config.encrypted_key.split_at(nonce_bytes(config.features));
    let (wrapped, tag) = rest.split_at(KEY_BYTES);
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    key.copy_from_slice(wrapped);
    let tag: &[u8; TAG_BYTES] = tag.try_into().expect("a configuration's key has the right length");
    // As block 0 of no file.
    cipher.decrypt(nonce, &[0; 8], key.as_mut(), tag).map_err(|_| Unwrap::WrongPassphrase)?;
    Ok(key)
}

/// A configuration for a master key, with a new salt.
pub(crate) fn wrap(
    master: &MasterKey,
    passphrase: &[u8],
    cost: ScryptCost,
    features: Features,
) -> Result<Config, BadCost> {
    let mut salt = vec![0; 32];
    random::fill(&mut salt);
    let cipher = wrapping(features, cost, &salt, passphrase)?;
    let mut nonce = vec![0; nonce_bytes(features)];
    random::fill(&mut nonce);
    let mut wrapped = master.clone();
    let tag = cipher.encrypt(&nonce, &[0; 8], wrapped.as_mut());
    let encrypted_key = [&nonce[..], &wrapped[..], &tag[..]].concat();
    let creator = concat!("bifolio ", env!("CARGO_PKG_VERSION")).to_owned();
    Ok(Config { creator, features, cost, salt, encrypted_key })
}

fn wrapping(features: Features, cost: ScryptCost, salt: &[u8], passphrase: &[u8]) -> Result<Gcm, BadCost> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    scrypt(passphrase, salt, cost, key.as_mut())?;
    if features.hkdf {
        key = derive(&key, LABEL_CONTENT);
    }
    Ok(Gcm::new(key.as_ref()).expect("AES-256 has keys of 32 bytes"))
}

fn derive(from: &Zeroizing<[u8; KEY_BYTES]>, label: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    hkdf_sha256(from.as_ref(), label, key.as_mut());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_passphrase_alone_unwraps_what_was_wrapped() {
        for features in [Features::DEFAULT, Features { hkdf: false, ..Features::DEFAULT }] {
            let master = new_master();
            let config = wrap(&master, b"right", ScryptCost { n: 1024, r: 8, p: 1 }, features).unwrap();
            let config = Config::parse(config.to_text().as_bytes()).unwrap();
            assert!(*unwrap(&config, b"right").unwrap() == *master);
            assert_eq!(unwrap(&config, b"wrong").unwrap_err(), Unwrap::WrongPassphrase);
        }
    }
}
