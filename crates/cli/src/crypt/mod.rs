//! `bifolio crypt`: encrypted directories. Options are named as gocryptfs names them.

mod mount;

use crate::args::Args;
use crate::exit::{self, Code, Failure};
use crate::output::{self, printable};
use crate::{secret, signals};
use bifolio_crypt::config::{Config, Features};
use bifolio_crypt::{CipherDir, InitOptions, Key, MasterKey};
use bifolio_io::Cancel;
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{ErrorKind as IoErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zeroize::{Zeroize, Zeroizing};

/// Bytes that are decrypted at a time.
const CAT_BYTES: usize = 8 << 20;

/// What to do with an encrypted directory.
#[derive(Debug, Subcommand)]
pub enum CryptCommand {
    /// Make an empty directory an encrypted one.
    Init(InitArgs),
    /// Mount an encrypted directory; umount or fusermount3 -u unmounts it.
    Mount(mount::MountArgs),
    /// Change the passphrase. Files stay as they are.
    Passwd(PasswdArgs),
    /// Print a file's content, without mounting.
    Cat(CatArgs),
    /// Print what an encrypted directory's configuration says; this needs no passphrase.
    Info(InfoArgs),
}

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

/// Choices for `crypt init`.
#[derive(Debug, ClapArgs)]
pub struct InitArgs {
    /// An empty directory.
    pub cipherdir: PathBuf,
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Leave names unencrypted.
    #[arg(long)]
    pub plaintextnames: bool,
    /// Cost of a guess at the passphrase, and of opening: each step doubles its time and memory; 16 takes 64 MiB.
    #[arg(long, default_value_t = 16, value_name = "LOG2", value_parser = clap::value_parser!(u8).range(10..=22))]
    pub scryptn: u8,
    /// Hash encrypted names that are longer than this.
    #[arg(long, value_name = "BYTES", conflicts_with = "plaintextnames",
          value_parser = clap::value_parser!(u8).range(62..=255))]
    pub longnamemax: Option<u8>,
}

/// Choices for `crypt passwd`.
#[derive(Debug, ClapArgs)]
pub struct PasswdArgs {
    /// The encrypted directory.
    pub cipherdir: PathBuf,
    #[command(flatten)]
    pub key: KeyArgs,
    /// The file whose first line is the new passphrase; without it, it is asked for.
    #[arg(long, value_name = "FILE")]
    pub newpassfile: Option<PathBuf>,
}

/// Choices for `crypt cat`.
#[derive(Debug, ClapArgs)]
pub struct CatArgs {
    /// The encrypted directory.
    pub cipherdir: PathBuf,
    /// The file's path as it is when mounted, from the mount point on.
    pub path: PathBuf,
    #[command(flatten)]
    pub key: KeyArgs,
}

/// Choices for `crypt info`.
#[derive(Debug, ClapArgs)]
pub struct InfoArgs {
    /// The encrypted directory.
    pub cipherdir: PathBuf,
    /// Print the master key instead, which opens the directory without passphrase and configuration. This needs the
    /// passphrase.
    #[arg(long)]
    pub masterkey: bool,
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

#[derive(Debug, Serialize)]
struct Info<'a> {
    creator: &'a str,
    feature_flags: Vec<&'static str>,
    encrypted_key_bytes: usize,
    scrypt_salt_bytes: usize,
    scrypt_n: u64,
    scrypt_r: u64,
    scrypt_p: u64,
    content_encryption: &'static str,
}

/// Carries the command out.
pub fn run(args: &Args, command: &CryptCommand, cancel: &Cancel) -> Result<(), Failure> {
    match command {
        CryptCommand::Init(options) => init(options, cancel),
        CryptCommand::Mount(options) => mount::run(options, cancel),
        CryptCommand::Passwd(options) => passwd(options, cancel),
        CryptCommand::Cat(options) => cat(options, cancel),
        CryptCommand::Info(options) => info(args, options, cancel),
    }
}

fn init(options: &InitArgs, cancel: &Cancel) -> Result<(), Failure> {
    let mut features = if options.plaintextnames { Features::PLAINTEXT_NAMES } else { Features::DEFAULT };
    if let Some(max) = options.longnamemax {
        features.long_name_max = max;
    }
    let passphrase = options.passphrase.get("Passphrase", true)?;
    let chosen = InitOptions { features, scrypt_log_n: options.scryptn };
    let cipherdir = options.cipherdir.clone();
    signals::until_interrupted(cancel, move || CipherDir::init(&cipherdir, &passphrase, chosen))??;
    let dir = options.cipherdir.display().to_string();
    let dir = printable(&dir);
    output::text(&format!(
        "{dir} is an encrypted directory now. Without gocryptfs.conf in it or without the passphrase its files are\n\
         lost, unless the master key is kept elsewhere, on paper for example: bifolio crypt info --masterkey {dir}"
    ))
}

fn passwd(options: &PasswdArgs, cancel: &Cancel) -> Result<(), Failure> {
    let old = options.key.get()?;
    let new = match &options.newpassfile {
        Some(file) => secret::first_line(file)?,
        None => secret::ask_twice("New passphrase")?,
    };
    let cipherdir = options.cipherdir.clone();
    let prepare = move || CipherDir::prepare_change(&cipherdir, &old.as_key(), &new);
    let kept = signals::until_interrupted(cancel, prepare)??.commit()?;
    let dir = options.cipherdir.display().to_string();
    let mut said = format!("{}: the passphrase was changed", printable(&dir));
    if let Some(kept) = kept {
        let _ = write!(
            said,
            "\n{}: the old configuration is kept, as nothing in the directory tells whether this is its master key; \
             remove it when files can be read",
            printable(&kept.display().to_string())
        );
    }
    output::text(&said)
}

fn cat(options: &CatArgs, cancel: &Cancel) -> Result<(), Failure> {
    let dir = options.key.open(&options.cipherdir, cancel)?;
    let file = dir.open_file(&options.path, false)?;
    // One that was cut within its header looks empty otherwise.
    file.file_id()?;
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; CAT_BYTES];
    let mut offset = 0;
    loop {
        signals::check(cancel)?;
        let read = file.read_at(&mut buffer, offset)?;
        match out.write_all(&buffer[..read]).and_then(|()| out.flush()) {
            // `bifolio ... | head` has seen enough.
            Err(error) if error.kind() == IoErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::failed(format!("writing the output failed: {error}"))),
            Ok(()) => {}
        }
        if read < buffer.len() {
            return Ok(());
        }
        offset += read as u64;
    }
}

fn info(args: &Args, options: &InfoArgs, cancel: &Cancel) -> Result<(), Failure> {
    if options.masterkey {
        let passphrase = options.passphrase.get("Passphrase", false)?;
        let cipherdir = options.cipherdir.clone();
        let master = signals::until_interrupted(cancel, move || CipherDir::master_key(&cipherdir, &passphrase))??;
        return output::text(&hexadecimal(&master));
    }
    let config = CipherDir::read_config(&options.cipherdir)?;
    let info = Info {
        creator: &config.creator,
        feature_flags: config.features.flags(),
        encrypted_key_bytes: config.encrypted_key.len(),
        scrypt_salt_bytes: config.salt.len(),
        scrypt_n: config.cost.n,
        scrypt_r: config.cost.r,
        scrypt_p: config.cost.p,
        content_encryption: "AES-GCM-256",
    };
    if args.json { output::json(&info) } else { output::text(&describe(&info, &config)) }
}

fn describe(info: &Info<'_>, config: &Config) -> String {
    let salt = config.salt.len();
    let Info { scrypt_n: n, scrypt_r: r, scrypt_p: p, .. } = info;
    let rows = [
        ("Creator:", printable(&config.creator).to_string()),
        ("FeatureFlags:", info.feature_flags.join(" ")),
        ("EncryptedKey:", format!("{}B", info.encrypted_key_bytes)),
        ("ScryptObject:", format!("Salt={salt}B N={n} R={r} P={p} KeyLen=32")),
        ("contentEncryption:", info.content_encryption.to_owned()),
    ];
    rows.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<18} {value}");
        text
    })
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
    let mut output = output
        .map_err(|error| Failure::failed(format!("{program}: starting it for the passphrase failed: {error}")))?;
    let line = output.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
    output.stdout.zeroize();
    if !output.status.success() || line.is_empty() {
        let status = output.status;
        return Err(Failure::failed(format!("{program}: it should have printed the passphrase ({status})")));
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

fn hexadecimal(master: &MasterKey) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * master.len()));
    for byte in master.iter() {
        let _ = write!(*text, "{byte:02x}");
    }
    text
}

impl From<bifolio_crypt::Error> for Failure {
    fn from(error: bifolio_crypt::Error) -> Self {
        Self::new(exit::code_of_directory(error.kind()), error)
    }
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
