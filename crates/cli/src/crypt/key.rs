//! Where the passphrase of an encrypted directory comes from, or its master key.

use crate::exit::{Code, Failure};
use crate::{secret, signals};
use bifolio_crypt::config::Features;
use bifolio_crypt::{CipherDir, Key, MasterKey};
use bifolio_io::Cancel;
use clap::Args as ClapArgs;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zeroize::{Zeroize, Zeroizing};

/// Where the passphrase comes from; without any of these it is asked for.
#[derive(Debug, ClapArgs)]
pub struct PassphraseArgs {
    /// The file whose first line is the passphrase; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "extpass")]
    pub passfile: Option<PathBuf>,
    /// A program, with its arguments, whose first line of output is the passphrase.
    #[arg(long, value_name = "COMMAND")]
    pub extpass: Option<String>,
}

/// Where the passphrase, or the master key instead of it, comes from.
#[derive(Debug, ClapArgs)]
pub struct KeyArgs {
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// The master key, 64 hexadecimal digits, or stdin to read them from standard input. It also opens a directory
    /// whose gocryptfs.conf is lost. Others on this machine can see what is on a command line.
    #[arg(long, value_name = "KEY|stdin", conflicts_with_all = ["passfile", "extpass"])]
    pub masterkey: Option<String>,
    /// With --masterkey, of a directory that has no gocryptfs.conf: names are not encrypted.
    #[arg(long, requires = "masterkey")]
    pub plaintextnames: bool,
}

/// What a person gave to open a directory.
pub enum Given {
    Passphrase(Zeroizing<Vec<u8>>),
    Master(MasterKey),
    /// Of a directory that has no configuration.
    MasterOf(MasterKey, Features),
}

impl Given {
    pub fn as_key(&self) -> Key<'_> {
        match self {
            Self::Passphrase(passphrase) => Key::Passphrase(passphrase),
            Self::Master(master) => Key::Master(master.clone()),
            Self::MasterOf(master, features) => Key::MasterOf(master.clone(), *features),
        }
    }
}

impl KeyArgs {
    pub fn get(&self) -> Result<Given, Failure> {
        let Some(given) = &self.masterkey else {
            return self.passphrase.get("Passphrase", false).map(Given::Passphrase);
        };
        let text = if given == "stdin" {
            secret::first_line(Path::new("-"))?
        } else {
            Zeroizing::new(given.clone().into_bytes())
        };
        let master = parse_master(&text)?;
        Ok(if self.plaintextnames { Given::MasterOf(master, Features::PLAINTEXT_NAMES) } else { Given::Master(master) })
    }

    pub fn open(&self, path: &Path, cancel: &Cancel) -> Result<CipherDir, Failure> {
        let (path, given) = (path.to_owned(), self.get()?);
        Ok(signals::until_interrupted(cancel, move || CipherDir::open(&path, &given.as_key()))??)
    }
}

impl PassphraseArgs {
    pub fn get(&self, question: &str, is_new: bool) -> Result<Zeroizing<Vec<u8>>, Failure> {
        match (&self.passfile, &self.extpass) {
            (Some(file), _) => secret::first_line(file),
            (None, Some(command)) => first_line_of(command),
            (None, None) if is_new => secret::ask_twice(question),
            (None, None) => secret::ask(question),
        }
    }
}

/// The first line that a program prints. Its words are separated by spaces, as gocryptfs does it.
fn first_line_of(command: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let mut words = command.split_whitespace();
    let program = words.next().ok_or_else(|| Failure::new(Code::Usage, "--extpass names no program"))?;
    let output = Command::new(program).args(words).stderr(Stdio::inherit()).output();
    let mut output = output.map_err(|error| Failure::failed(format!("{program}: starting it failed: {error}")))?;
    let line = output.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
    output.stdout.zeroize();
    if !output.status.success() || line.is_empty() {
        let status = output.status;
        return Err(Failure::failed(format!("{program}: printed no passphrase ({status})")));
    }
    Ok(Zeroizing::new(line))
}

/// 64 hexadecimal digits; dashes between them, as gocryptfs prints some, do not count.
fn parse_master(text: &[u8]) -> Result<MasterKey, Failure> {
    let wrong = || Failure::new(Code::Usage, "a master key has 64 hexadecimal digits");
    let mut master = MasterKey::default();
    let mut digits = text.iter().filter(|byte| !matches!(byte, b'-' | b' ' | b'\r'));
    let mut next = || digits.next().and_then(|digit| char::from(*digit).to_digit(16));
    for byte in master.iter_mut() {
        *byte = match (next(), next()) {
            (Some(high), Some(low)) => (high << 4 | low) as u8,
            _ => return Err(wrong()),
        };
    }
    if digits.next().is_some() { Err(wrong()) } else { Ok(master) }
}

/// As [`parse_master`] reads it.
pub fn hexadecimal(master: &MasterKey) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * master.len()));
    for byte in master.iter() {
        let _ = write!(*text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_keys_come_back_and_others_are_refused() {
        let master = MasterKey::new(std::array::from_fn(|at| at as u8 * 7));
        let text = hexadecimal(&master);
        assert!(*parse_master(text.as_bytes()).unwrap() == *master);
        let dashed = format!("{}-{}", &text[..8], &text[8..]);
        assert!(*parse_master(dashed.as_bytes()).unwrap() == *master);
        for wrong in [&text[1..], &format!("{}0", *text), &text.replace('0', "g"), ""] {
            assert!(parse_master(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
