//! Encrypted directories to test on, and gocryptfs beside ours.

use bifolio_crypt::config::Features;
use bifolio_crypt::{CipherDir, InitOptions, Key, MountOptions, Mounted};
use bifolio_testing::{has, skip, until};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const PASSPHRASE: &[u8] = b"a passphrase";

/// Whether file systems can be mounted here.
pub(crate) fn can_mount() -> bool {
    // A container without the device is no machine on which set-up could do anything.
    if !Path::new("/dev/fuse").exists() {
        skip("there is no /dev/fuse");
        return false;
    }
    has("fusermount3")
}

/// A folder with an encrypted directory, a mount point for us, and one for gocryptfs.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    /// An encrypted directory that this crate made.
    pub(crate) fn new(features: Features) -> Self {
        let place = Self::empty();
        CipherDir::init(&place.cipher(), PASSPHRASE, InitOptions { features, scrypt_log_n: 10 }).unwrap();
        place
    }

    /// An encrypted directory that gocryptfs made.
    pub(crate) fn of_gocryptfs(options: &[&str]) -> Self {
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

    pub(crate) fn cipher(&self) -> PathBuf {
        self.dir.path().join("cipher")
    }

    pub(crate) fn ours(&self) -> PathBuf {
        self.dir.path().join("ours")
    }

    pub(crate) fn theirs(&self) -> PathBuf {
        self.dir.path().join("theirs")
    }

    pub(crate) fn open(&self) -> CipherDir {
        CipherDir::open(&self.cipher(), &Key::Passphrase(PASSPHRASE)).unwrap()
    }

    /// Runs gocryptfs.
    #[track_caller]
    pub(crate) fn gocryptfs(&self, options: &[&str], paths: &[&Path]) -> String {
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
    pub(crate) fn mount(&self) -> Ours {
        self.mount_with(&MountOptions::default())
    }

    pub(crate) fn mount_with(&self, options: &MountOptions) -> Ours {
        Ours(Some(bifolio_crypt::mount(&self.open(), &self.ours(), options).unwrap()))
    }

    /// Mounts it by gocryptfs.
    pub(crate) fn mount_theirs(&self) -> Theirs {
        self.gocryptfs(&[], &[&self.cipher(), &self.theirs()]);
        Theirs(self.theirs())
    }
}

/// Mounted by us, until it is dropped.
pub(crate) struct Ours(Option<Mounted>);

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(mounted) = self.0.take() {
            mounted.unmount().unwrap();
            mounted.wait().unwrap();
        }
    }
}

/// Mounted by gocryptfs, until it is dropped.
pub(crate) struct Theirs(PathBuf);

impl Drop for Theirs {
    fn drop(&mut self) {
        // It may still be looked at by whatever watches new mounts.
        until("gocryptfs's mount goes", || {
            Command::new("fusermount3").arg("-u").arg(&self.0).status().unwrap().success()
        });
    }
}
