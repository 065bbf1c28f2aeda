//! Programs that tests compare with, images, and loaders for every device.

use bifolio_device::{DeviceChoice, discover, open};
use bifolio_io::{ReadOptions, Router, RouterOptions};
use bifolio_testing::command;
use bifolio_volume::Loader;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

/// The passphrase of every test volume.
pub(crate) const SECRET: &[u8] = b"correct horse";

/// Runs a program that has to succeed.
#[track_caller]
pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    let output = command(program).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}{said}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Numbers and bytes without a pattern, which differ from run to run; a failure can be repeated by its seed.
#[derive(Debug, Clone)]
pub(crate) struct Draw {
    seed: u64,
    numbers: fastrand::Rng,
}

impl Draw {
    #[track_caller]
    pub(crate) fn afresh() -> Self {
        Self::from_seed(bifolio_testing::seed())
    }

    pub(crate) fn from_seed(seed: u64) -> Self {
        Self { seed, numbers: fastrand::Rng::with_seed(seed) }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.numbers.u64(..)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.numbers.u64(..limit)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.numbers.fill(&mut bytes);
        bytes
    }
}

/// A folder with a key file.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        // cryptsetup syncs after every step of a conversion: in memory that takes no time.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        std::fs::write(dir.path().join("key"), SECRET).unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        text(&self.path(name))
    }

    /// An empty file of this size.
    pub(crate) fn empty(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        path
    }

    /// Has cryptsetup turn a file with `content` into a volume, in place, with cheap keyslots.
    pub(crate) fn encrypted_by_cryptsetup(&self, name: &str, content: &[u8], options: &[&str]) -> PathBuf {
        const REDUCE: u64 = 32 << 20;
        let path = self.empty(name, content.len() as u64 + REDUCE);
        {
            use std::os::unix::fs::FileExt;
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(content, 0).unwrap();
        }
        let key = self.text("key");
        let mut args = vec!["reencrypt", "--encrypt", "-q", "--key-file", &key];
        args.extend(["--force-offline-reencrypt", "--reduce-device-size", "32M"]);
        args.extend(options);
        let path_text = text(&path);
        args.push(&path_text);
        run("cryptsetup", &args);
        path
    }

    /// Has cryptsetup decrypt a volume, in place, and gives its content.
    pub(crate) fn decrypted_by_cryptsetup(&self, path: &Path, options: &[&str]) -> Vec<u8> {
        let key = self.text("key");
        let header = self.text("exported-header");
        let path_text = text(path);
        let mut args = vec!["reencrypt", "--decrypt", "-q", "--key-file", &key];
        args.extend(["--force-offline-reencrypt", "--header", &header]);
        args.extend(options);
        args.push(&path_text);
        run("cryptsetup", &args);
        std::fs::read(path).unwrap()
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// cryptsetup's options for keyslots that open in a moment.
pub(crate) const CHEAP_ARGON2: [&str; 8] =
    ["--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"];
/// The same for PBKDF2, which is all that LUKS1 has.
pub(crate) const CHEAP_PBKDF2: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// A loader for every device of this machine.
pub(crate) fn loaders(options: &ReadOptions) -> Vec<Loader> {
    let found = discover().into_iter().flat_map(|report| report.devices);
    let devices = found.map(|info| open(DeviceChoice::Exactly(info.id)).unwrap());
    let loader = |device| Loader::new(Arc::new(Router::new(&device, RouterOptions::default())), options.clone());
    devices.map(loader).collect()
}
