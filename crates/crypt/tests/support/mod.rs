//! Encrypted directories to test on, and gocryptfs beside ours.

#![allow(dead_code, unreachable_pub, reason = "every test program includes this file and uses its own part")]

use bifolio_crypt::config::Features;
use bifolio_crypt::{CipherDir, InitOptions, Key, MountOptions, Mounted};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub const PASSPHRASE: &[u8] = b"a passphrase";

/// Whether a program is there. Where every tool is required, a missing one is a failure; elsewhere this prints why a
/// test is skipped.
pub fn has(program: &str) -> bool {
    let there = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !there {
        let required = std::env::var_os("BIFOLIO_TEST_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(!required, "{program} is not there");
        println!("skipped: {program} is not there");
    }
    there
}

/// Whether file systems can be mounted here.
pub fn can_mount() -> bool {
    // A container without the device is no machine on which set-up could do anything.
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return false;
    }
    has("fusermount3")
}

/// A folder with an encrypted directory, a mount point for us, and one for gocryptfs.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    /// An encrypted directory that this crate made.
    pub fn new(features: Features) -> Self {
        let place = Self::empty();
        CipherDir::init(&place.cipher(), PASSPHRASE, InitOptions { features, scrypt_log_n: 10 }).unwrap();
        place
    }

    /// An encrypted directory that gocryptfs made.
    pub fn of_gocryptfs(options: &[&str]) -> Self {
        let place = Self::empty();
        place.gocryptfs(&[&["-init", "-scryptn", "10"], options].concat(), &[&place.cipher()]);
        place
    }

    fn empty() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        for folder in ["cipher", "ours", "theirs"] {
            std::fs::create_dir(place.dir.path().join(folder)).unwrap();
        }
        std::fs::write(place.dir.path().join("passphrase"), PASSPHRASE).unwrap();
        place
    }

    pub fn cipher(&self) -> PathBuf {
        self.dir.path().join("cipher")
    }

    pub fn ours(&self) -> PathBuf {
        self.dir.path().join("ours")
    }

    pub fn theirs(&self) -> PathBuf {
        self.dir.path().join("theirs")
    }

    pub fn open(&self) -> CipherDir {
        CipherDir::open(&self.cipher(), &Key::Passphrase(PASSPHRASE)).unwrap()
    }

    /// Runs gocryptfs.
    #[track_caller]
    pub fn gocryptfs(&self, options: &[&str], paths: &[&Path]) -> String {
        let mut command = Command::new("gocryptfs");
        command.args(["-q", "-nosyslog", "-passfile"]).arg(self.dir.path().join("passphrase"));
        // A process in the background keeps what it inherits open.
        let log = self.dir.path().join("log");
        let file = || std::fs::File::create(&log).unwrap();
        command.args(options).args(paths).stdout(file()).stderr(file());
        let status = command.status().unwrap();
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(status.success(), "gocryptfs {options:?}: {said}");
        said
    }

    /// Mounts it by us.
    pub fn mount(&self) -> Ours {
        self.mount_with(&MountOptions::default())
    }

    pub fn mount_with(&self, options: &MountOptions) -> Ours {
        Ours(Some(bifolio_crypt::mount(&self.open(), &self.ours(), options).unwrap()))
    }

    /// Mounts it by gocryptfs.
    pub fn mount_theirs(&self) -> Theirs {
        self.gocryptfs(&[], &[&self.cipher(), &self.theirs()]);
        Theirs(self.theirs())
    }
}

/// Mounted by us, until it is dropped.
pub struct Ours(Option<Mounted>);

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(mounted) = self.0.take() {
            mounted.unmount().unwrap();
            mounted.wait().unwrap();
        }
    }
}

/// Mounted by gocryptfs, until it is dropped.
pub struct Theirs(PathBuf);

impl Drop for Theirs {
    fn drop(&mut self) {
        let begin = Instant::now();
        // It may still be looked at by whatever watches new mounts.
        while !Command::new("fusermount3").arg("-u").arg(&self.0).status().unwrap().success() {
            assert!(begin.elapsed() < Duration::from_secs(10), "gocryptfs's mount stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Bytes without a pattern.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
