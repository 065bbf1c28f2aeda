//! Any configuration of an encrypted directory: a sentence, or one that asks for bounded work and is written as it
//! was read.

#![no_main]

use bifolio_crypt::config::Config;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Input<'a> {
    /// A file from its first byte on.
    File(&'a [u8]),
    /// A configuration that is right as far as its form goes.
    Formed {
        creator: &'a str,
        key: u8,
        salt: u8,
        n: u64,
        is_power: bool,
        r: u64,
        p: u64,
        key_len: Option<u64>,
        version: u8,
        flags: u16,
        other_flag: Option<&'a str>,
        long_name_max: Option<u16>,
    },
}

const FLAGS: [&str; 11] = [
    "HKDF",
    "GCMIV128",
    "PlaintextNames",
    "DirIV",
    "EMENames",
    "LongNames",
    "LongNameMax",
    "Raw64",
    "AESSIV",
    "XChaCha20Poly1305",
    "FIDO2",
];

fuzz_target!(|input: Input<'_>| match input {
    Input::File(text) => check(text),
    Input::Formed { creator, key, salt, n, is_power, r, p, key_len, version, flags, other_flag, long_name_max } => {
        let named = FLAGS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1).map(|(_, name)| *name);
        let named: Vec<&str> = named.chain(other_flag).collect();
        let n = if is_power { 1 << (n % 64) } else { n };
        let mut value = serde_json::json!({
            "Creator": creator,
            "EncryptedKey": base64(key),
            "ScryptObject": {
                "Salt": base64(salt),
                "N": n, "R": r, "P": p, "KeyLen": key_len.unwrap_or(32),
            },
            "Version": version % 4,
            "FeatureFlags": named,
        });
        if let Some(max) = long_name_max {
            value["LongNameMax"] = max.into();
        }
        check(value.to_string().as_bytes());
    }
});

/// As many zeroes in base 64.
fn base64(bytes: u8) -> String {
    let end = ["", "AA==", "AAA="][usize::from(bytes % 3)];
    "AAAA".repeat(usize::from(bytes / 3)) + end
}

fn check(text: &[u8]) {
    match Config::parse(text) {
        Ok(config) => {
            let memory_bytes = config.cost.memory_bytes().expect("what is accepted has a cost");
            assert!(memory_bytes <= 5 << 30 && config.cost.n.is_power_of_two() && config.cost.n >= 1024);
            assert!(config.salt.len() >= 32 && config.encrypted_key.len() >= 60);
            assert!((62..=255).contains(&config.features.long_name_max));
            assert_eq!(Config::parse(config.to_text().as_bytes()).as_ref(), Ok(&config));
        }
        Err(bad) => {
            let sentence = bad.to_string();
            assert!(sentence.len() > 3 && !sentence.ends_with('.'), "{sentence:?}");
        }
    }
}
