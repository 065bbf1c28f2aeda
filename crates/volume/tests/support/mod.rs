//! Programs that tests compare with, and images.

#![allow(dead_code, unreachable_pub, reason = "every test program includes this file and uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The passphrase of every test volume.
pub const SECRET: &[u8] = b"correct horse";

/// Whether a program is there. Without it the test says that it is skipped; `make test` sets
/// `BIFOLIO_TEST_REQUIRE_ALL`, so there a missing program is a failure.
pub fn has(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(program).is_file());
    let required = std::env::var_os("BIFOLIO_TEST_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(found || !required, "{program} is missing; scripts/setup.sh test installs it");
    if !found {
        eprintln!("skipped: {program} is missing; scripts/setup.sh test installs it");
    }
    found
}

/// A command whose program may be in the folders of the system's administrator.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs a program that has to succeed.
#[track_caller]
pub fn run(program: &str, args: &[&str]) -> Output {
    let output = command(program).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}{said}", String::from_utf8_lossy(&output.stdout));
    output
}

/// A number that differs from run to run, printed so that a failure can be repeated; `BIFOLIO_TEST_SEED` sets it.
pub fn seed() -> u64 {
    let given = std::env::var("BIFOLIO_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let fresh = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    };
    let seed = given.unwrap_or_else(fresh);
    println!("BIFOLIO_TEST_SEED={seed}");
    seed
}

/// Numbers without a pattern (SplitMix64).
pub struct Draw(pub u64);

impl Draw {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.number() as u8).collect()
    }
}

/// A folder with a key file.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        // cryptsetup syncs after every step of a conversion: in memory that takes no time.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        std::fs::write(dir.path().join("key"), SECRET).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        text(&self.path(name))
    }

    /// An empty file of this size.
    pub fn empty(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        path
    }

    /// Has cryptsetup turn a file with `content` into a volume, in place, with cheap keyslots.
    pub fn encrypted_by_cryptsetup(&self, name: &str, content: &[u8], options: &[&str]) -> PathBuf {
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
    pub fn decrypted_by_cryptsetup(&self, path: &Path, options: &[&str]) -> Vec<u8> {
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

pub fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// cryptsetup's options for keyslots that open in a moment.
pub const CHEAP_ARGON2: [&str; 8] =
    ["--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"];
/// The same for PBKDF2, which is all that LUKS1 has.
pub const CHEAP_PBKDF2: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
