//! Running the command, and files to run it on.

#![allow(dead_code, unreachable_pub, reason = "every test program includes this file and uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command on the embedded device, with a cache folder of its own.
pub fn bifolio(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bifolio"));
    command.env("BIFOLIO_CACHE_DIR", cache).env("BIFOLIO_DEVICE", "host").env_remove("BIFOLIO_HOST_MEMORY");
    command
}

/// A folder on a disk (temporary folders are often in memory), and what is run in it.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// A file of `len` bytes without a pattern, and its content.
    pub fn file(&self, name: &str, len: usize) -> (PathBuf, Vec<u8>) {
        let mut state = len as u64 + 1;
        let byte = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let content: Vec<u8> = (0..len).map(byte).collect();
        let path = self.dir.path().join(name);
        std::fs::write(&path, &content).unwrap();
        (path, content)
    }

    /// Runs the command with arguments.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The command with arguments, to be changed.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = bifolio(&self.dir.path().join("cache"));
        command.args(args);
        command
    }

    /// Where the profile for the embedded device and this folder's file system is kept.
    pub fn stored_profile(&self) -> PathBuf {
        let (file, _) = self.file("for-the-profile", 1);
        let device = bifolio_device::open("host".parse().unwrap()).unwrap();
        let file = bifolio_io::OpenFile::open(file).unwrap();
        let path = bifolio_io::Profile::path_for(&device, &file).unwrap();
        self.dir.path().join("cache/profiles").join(path.file_name().unwrap())
    }
}

/// What was printed as an error: one sentence, nothing on stdout, this exit code.
#[track_caller]
pub fn sentence(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("bifolio: ") && !stderr.contains("panicked"), "{stderr}");
    stderr
}

/// What was printed as JSON by a command that succeeded.
#[track_caller]
pub fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The SHA-256 of bytes, as hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    use std::fmt::Write;
    let mut text = String::new();
    for byte in sha2::Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}
