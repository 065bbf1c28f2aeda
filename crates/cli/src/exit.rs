//! Exit codes, and failures as one sentence on stderr.

use bifolio_volume::printable;
use std::fmt::Display;
use std::process::ExitCode;

/// Printed below `--help`; the codes are a promise to scripts.
pub const CODES: &str = "\
Exit codes:
  0    done
  1    the operation failed: a file, the storage, device memory, a profile, a process
  2    the command line is wrong
  3    the device or the engine is not available here
  4    verification failed: wrong bytes in device memory, or a wrong kernel
  130  interrupted

Environment:
  BIFOLIO_DEVICE     the device, where --device does not say
  BIFOLIO_CACHE_DIR  where profiles and compiled kernels are kept";

/// How a command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The operation failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The device or engine is not there.
    Unavailable = 3,
    /// Wrong bytes, or a wrong kernel.
    Wrong = 4,
    /// The user interrupted.
    Interrupted = 130,
}

/// A failed command: the exit code, and a sentence for stderr.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    /// A failure with a sentence that names what it is about.
    pub fn new(code: Code, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// An operation that failed.
    pub fn failed(message: impl Display) -> Self {
        Self::new(Code::Failed, message)
    }

    /// The user interrupted.
    pub fn interrupted() -> Self {
        Self::new(Code::Interrupted, "interrupted")
    }

    /// How it failed.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prints the sentence, and gives the code to the system.
    pub fn report(&self) -> ExitCode {
        eprintln_quietly(&format!("bifolio: {}", self.message));
        ExitCode::from(self.code as u8)
    }
}

impl From<bifolio_io::Error> for Failure {
    fn from(error: bifolio_io::Error) -> Self {
        use bifolio_io::ErrorKind;
        let source =
            std::error::Error::source(&error).and_then(|source| source.downcast_ref::<bifolio_device::Error>());
        let code = match error.kind() {
            ErrorKind::NoEngine => Code::Unavailable,
            ErrorKind::Cancelled => Code::Interrupted,
            ErrorKind::Device => source.map_or(Code::Failed, code_of_device),
            _ => Code::Failed,
        };
        Self::new(code, error)
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
