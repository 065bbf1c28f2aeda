//! `bifolio crypt`: encrypted directories. Options are named as gocryptfs names them.

mod key;
mod mount;

use self::key::{KeyArgs, PassphraseArgs, hexadecimal};
use crate::exit::Failure;
use crate::global::Global;
use crate::output::{self, printable};
use crate::{secret, signals};
use bifolio_crypt::config::{Config, Features};
use bifolio_crypt::{CipherDir, InitOptions};
use bifolio_io::Cancel;
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{ErrorKind as IoErrorKind, Write as _};
use std::path::PathBuf;

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
pub fn run(global: &Global, command: &CryptCommand, cancel: &Cancel) -> Result<(), Failure> {
    match command {
        CryptCommand::Init(options) => init(options, cancel),
        CryptCommand::Mount(options) => mount::run(options, cancel),
        CryptCommand::Passwd(options) => passwd(options, cancel),
        CryptCommand::Cat(options) => cat(options, cancel),
        CryptCommand::Info(options) => info(global, options, cancel),
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

fn info(global: &Global, options: &InfoArgs, cancel: &Cancel) -> Result<(), Failure> {
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
    global.answer(&info, || describe(&info, &config))
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
