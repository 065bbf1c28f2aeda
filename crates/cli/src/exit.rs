//! Exit codes, and failures as one sentence on stderr.
//!
//! Every code has one meaning in all commands. Which kind of error has which code is decided here, for the errors of all
//! crates; a command names a code only for what it finds out by itself. What is printed shows control characters by
//! their numbers, as names and messages come from files.

use bifolio_block::printable;
use std::fmt::Display;
use std::process::ExitCode;

/// Printed below `--help`; the codes are a promise to scripts.
pub const CODES: &str = "\
Exit codes:
  0    done
  1    the operation failed: a file, the storage, device memory, a process
  2    the command line is wrong
  3    something is not available here: device, engine, program, library, a variant of a format
  4    verification failed: wrong bytes in device memory or on a member, or a wrong kernel
  5    refused: something that is there already would be lost
  6    the passphrase or key is wrong
  7    the input is damaged, incomplete, or not of its format
  8    done in part; the sentence says what is left
  130  interrupted, by SIGINT or SIGTERM

Environment:
  BIFOLIO_DEVICE     the device, where --device does not say
  BIFOLIO_CACHE_DIR  where profiles and compiled kernels are kept";

/// How a command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "volumes"), allow(dead_code, reason = "some are found by commands on volumes only"))]
pub enum Code {
    /// The operation failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The device, an engine, a program, a library or a variant of a format is not there.
    Unavailable = 3,
    /// Wrong bytes, or a wrong kernel.
    Wrong = 4,
    /// Something would be lost.
    Refused = 5,
    /// The passphrase or key is another one.
    WrongKey = 6,
    /// What was given is damaged, incomplete, or not of its format.
    Damaged = 7,
    /// Some of it was done, and the rest cannot be.
    Partial = 8,
    /// The user interrupted.
    Interrupted = 130,
}

/// A failed command: the exit code, and a sentence for stderr.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    /// A file or device; empty where the detail names what it is about.
    subject: String,
    detail: String,
}

impl Failure {
    /// A failure with a sentence that names what it is about.
    pub fn new(code: Code, message: impl Display) -> Self {
        Self::about(code, "", message)
    }

    /// A failure of one file or device, and a sentence without its name.
    pub fn about(code: Code, subject: impl Display, detail: impl Display) -> Self {
        Self { code, subject: subject.to_string(), detail: detail.to_string() }
    }

    /// An operation that failed.
    pub fn failed(message: impl Display) -> Self {
        Self::new(Code::Failed, message)
    }

    /// The user interrupted.
    pub fn interrupted() -> Self {
        Self::new(Code::Interrupted, "interrupted")
    }

    /// The user interrupted, and what was done by then has been printed.
    pub fn interrupted_in_part() -> Self {
        Self::new(Code::Interrupted, "interrupted; the results are partial")
    }

    /// How it failed.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The sentence.
    pub fn message(&self) -> String {
        if self.subject.is_empty() { self.detail.clone() } else { format!("{}: {}", self.subject, self.detail) }
    }

    /// The file or device, where it is known by itself.
    #[cfg(feature = "volumes")]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The sentence without the subject.
    #[cfg(feature = "volumes")]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Prints the sentence, and gives the code to the system.
    pub fn report(&self) -> ExitCode {
        eprintln_quietly(&format!("bifolio: {}", self.message()));
        if self.code == Code::Interrupted {
            end_at_once(self.code);
        }
        ExitCode::from(self.code as u8)
    }
}

/// Ends the process without the libraries' own endings: a key derivation that was given up still runs in its thread, and
/// what a library frees at exit it may be using.
fn end_at_once(code: Code) -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    // SAFETY: takes a number; nothing of this process is used afterwards.
    unsafe { libc::_exit(code as i32) }
}

impl From<bifolio_io::Error> for Failure {
    fn from(error: bifolio_io::Error) -> Self {
        Self::new(code_of_io(&error), error)
    }
}

fn code_of_io(error: &bifolio_io::Error) -> Code {
    use bifolio_io::ErrorKind;
    let source = error.cause().and_then(|cause| cause.downcast_ref::<bifolio_device::Error>());
    match error.kind() {
        ErrorKind::NoEngine => Code::Unavailable,
        ErrorKind::Cancelled => Code::Interrupted,
        ErrorKind::Device => source.map_or(Code::Failed, code_of_device),
        // The system's own errors are about the file, and not about what is in it.
        _ if of_system(error) == Some(std::io::ErrorKind::AlreadyExists) => Code::Refused,
        _ if of_system(error).is_some() => Code::Failed,
        ErrorKind::BadStripe | ErrorKind::Profile | ErrorKind::NotAFile => Code::Damaged,
        _ => Code::Failed,
    }
}

fn of_system(error: &bifolio_io::Error) -> Option<std::io::ErrorKind> {
    Some(error.cause()?.downcast_ref::<std::io::Error>()?.kind())
}

impl From<bifolio_block::Error> for Failure {
    fn from(error: bifolio_block::Error) -> Self {
        Self::new(code_of_block(error.kind()), error)
    }
}

/// The code for an error of a block device.
fn code_of_block(kind: bifolio_block::ErrorKind) -> Code {
    use bifolio_block::ErrorKind;
    match kind {
        ErrorKind::BadUse => Code::Usage,
        ErrorKind::Missing => Code::Unavailable,
        ErrorKind::Exists => Code::Refused,
        ErrorKind::Damaged | ErrorKind::TooFewMembers => Code::Damaged,
        _ => Code::Failed,
    }
}

impl From<bifolio_bench::Error> for Failure {
    fn from(error: bifolio_bench::Error) -> Self {
        use bifolio_bench::ErrorKind;
        let code = match error.kind() {
            ErrorKind::BadUse => Code::Usage,
            ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::Wrong => Code::Wrong,
            ErrorKind::Interrupted => Code::Interrupted,
            _ => error.cause().map_or(Code::Failed, code_of_cause),
        };
        Self::new(code, error)
    }
}

/// The code for the error of another crate that a benchmark or a verification met.
fn code_of_cause(cause: &(dyn std::error::Error + Send + Sync + 'static)) -> Code {
    if let Some(error) = cause.downcast_ref() {
        return code_of_io(error);
    }
    if let Some(error) = cause.downcast_ref::<bifolio_block::Error>() {
        return code_of_block(error.kind());
    }
    #[cfg(feature = "volumes")]
    if let Some(error) = cause.downcast_ref::<bifolio_volume::Error>() {
        return code_of_volume(error.kind());
    }
    #[cfg(feature = "volumes")]
    if let Some(error) = cause.downcast_ref::<bifolio_crypt::Error>() {
        return code_of_directory(error.kind());
    }
    Code::Failed
}

#[cfg(feature = "volumes")]
impl From<bifolio_volume::Error> for Failure {
    fn from(error: bifolio_volume::Error) -> Self {
        Self::new(code_of_volume(error.kind()), error)
    }
}

/// The code for an error of a volume.
#[cfg(feature = "volumes")]
pub fn code_of_volume(kind: bifolio_volume::ErrorKind) -> Code {
    use bifolio_volume::ErrorKind;
    match kind {
        ErrorKind::BadUse => Code::Usage,
        ErrorKind::Missing | ErrorKind::Unsupported => Code::Unavailable,
        ErrorKind::Exists => Code::Refused,
        ErrorKind::WrongKey => Code::WrongKey,
        ErrorKind::NotAVolume | ErrorKind::Damaged | ErrorKind::TooFewMembers | ErrorKind::BadMembers => Code::Damaged,
        ErrorKind::Cancelled => Code::Interrupted,
        _ => Code::Failed,
    }
}

#[cfg(feature = "volumes")]
impl From<bifolio_crypt::Error> for Failure {
    fn from(error: bifolio_crypt::Error) -> Self {
        Self::new(code_of_directory(error.kind()), error)
    }
}

/// The code for an error of an encrypted directory.
#[cfg(feature = "volumes")]
pub fn code_of_directory(kind: bifolio_crypt::ErrorKind) -> Code {
    use bifolio_crypt::ErrorKind;
    match kind {
        ErrorKind::Unsupported => Code::Unavailable,
        ErrorKind::Exists => Code::Refused,
        ErrorKind::WrongKey => Code::WrongKey,
        ErrorKind::NotACipherDir | ErrorKind::Damaged | ErrorKind::Corrupt => Code::Damaged,
        _ => Code::Failed,
    }
}

impl From<bifolio_device::Error> for Failure {
    fn from(error: bifolio_device::Error) -> Self {
        Self::new(code_of_device(&error), error)
    }
}

fn code_of_device(error: &bifolio_device::Error) -> Code {
    use bifolio_device::ErrorKind;
    match error.kind() {
        ErrorKind::BadName => Code::Usage,
        ErrorKind::Missing | ErrorKind::Unsupported => Code::Unavailable,
        _ => Code::Failed,
    }
}

/// Prints what clap says: help and version on stdout, everything else as ours.
pub fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is the reader's choice.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    match text.strip_prefix("error: ") {
        // The first paragraph says what is wrong; usage and tips are in the help.
        Some(text) => {
            let sentence = text.split("\n\n").next().unwrap_or(text).split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln_quietly(&format!("bifolio: {sentence}; see --help"));
        }
        // Help, in lines of its own.
        None => text.trim_end().lines().for_each(eprintln_quietly),
    }
    ExitCode::from(Code::Usage as u8)
}

/// Prints one line, whatever is in the text. `eprintln!` panics where stderr is closed.
pub fn eprintln_quietly(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts count on them, and one number for two things tells them nothing.
    #[test]
    fn every_code_is_one_number_and_is_in_the_help() {
        use Code::{Damaged, Failed, Interrupted, Partial, Refused, Unavailable, Usage, Wrong, WrongKey};
        let all = [Failed, Usage, Unavailable, Wrong, Refused, WrongKey, Damaged, Partial, Interrupted];
        let numbers: Vec<String> = all.iter().map(|code| (*code as u8).to_string()).collect();
        let lines = CODES.lines().skip(1).take_while(|line| !line.is_empty());
        let said: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(said[0], "0");
        assert_eq!(said[1..], numbers);
    }

    #[cfg(feature = "volumes")]
    #[test]
    fn errors_of_volumes_and_directories_have_the_same_codes() {
        use bifolio_crypt::ErrorKind as Directory;
        use bifolio_volume::ErrorKind as Volume;
        for (volume, directory, code) in [
            (Volume::Exists, Directory::Exists, Code::Refused),
            (Volume::WrongKey, Directory::WrongKey, Code::WrongKey),
            (Volume::Damaged, Directory::Damaged, Code::Damaged),
            (Volume::NotAVolume, Directory::NotACipherDir, Code::Damaged),
            (Volume::Unsupported, Directory::Unsupported, Code::Unavailable),
            (Volume::NoSpace, Directory::NoSpace, Code::Failed),
            (Volume::NotFound, Directory::NotFound, Code::Failed),
        ] {
            assert_eq!((code_of_volume(volume), code_of_directory(directory)), (code, code), "{volume:?}");
        }
        assert_eq!(code_of_volume(Volume::InUse), Code::Failed);
        assert_eq!(code_of_volume(Volume::BadState), Code::Failed);
        assert_eq!(code_of_volume(Volume::BadUse), Code::Usage);
    }
}
