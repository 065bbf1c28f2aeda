//! Running the command, and files to run it on.

use bifolio_testing::noise;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command on the embedded device, with a cache folder of its own.
pub(crate) fn bifolio(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bifolio"));
    command.env("BIFOLIO_CACHE_DIR", cache).env("BIFOLIO_DEVICE", "host").env_remove("BIFOLIO_HOST_MEMORY");
    command
}

/// A folder on a disk (temporary folders are often in memory), and what is run in it.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// A file of `len` bytes without a pattern, and its content.
    pub(crate) fn file(&self, name: &str, len: usize) -> (PathBuf, Vec<u8>) {
        let content = noise(len, len as u64 + 1);
        let path = self.dir.path().join(name);
        std::fs::write(&path, &content).unwrap();
        (path, content)
    }

    /// Runs the command with arguments.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The command with arguments, to be changed.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = bifolio(&self.dir.path().join("cache"));
        command.args(args);
        command
    }

    /// Where the profile for the embedded device and this folder's file system is kept.
    pub(crate) fn stored_profile(&self) -> PathBuf {
        let (file, _) = self.file("for-the-profile", 1);
        let device = bifolio_device::open("host".parse().unwrap()).unwrap();
        let file = bifolio_io::OpenFile::open(file).unwrap();
        let path = bifolio_io::Profile::path_for(&device, &file).unwrap();
        self.dir.path().join("cache/profiles").join(path.file_name().unwrap())
    }
}

/// What was printed as an error: one sentence, nothing on stdout, this exit code.
#[track_caller]
pub(crate) fn sentence(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("bifolio: ") && !stderr.contains("panicked"), "{stderr}");
    stderr
}

/// What was printed as JSON by a command that succeeded.
#[track_caller]
pub(crate) fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The SHA-256 of bytes, as hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    use std::fmt::Write;
    let mut text = String::new();
    for byte in sha2::Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// Waits until a process has used so much CPU time, and so is at work.
#[track_caller]
pub(crate) fn until_at_work(id: u32, seconds: f64) {
    // SAFETY: asks for a number.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    bifolio_testing::until(format_args!("process {id} has used {seconds} s of CPU time"), || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / ticks_per_second >= seconds
    });
}

/// Sends a signal, such as `TERM`.
#[track_caller]
pub(crate) fn signal(id: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status().unwrap().success());
}
