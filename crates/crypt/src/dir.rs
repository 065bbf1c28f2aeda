//! An encrypted directory: made, opened by a passphrase or by its master key, and looked into by plain paths.

use crate::config::{BadConfig, CONFIG_BYTES_MAX, CONFIG_NAME, Config, Features, check_cost};
use crate::error::{Error, ErrorKind, Result};
use crate::file::CryptFile;
use crate::folder::Folder;
use crate::format::Format;
use crate::keys::{self, KEY_BYTES, MasterKey, Unwrap};
use crate::replace::{self, Replacement};
use crate::sys;
use crate::verdict::{self, Verdict};
use bifolio_compute::cpu::ScryptCost;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// What opens a directory.
#[derive(Clone)]
pub enum Key<'a> {
    /// The passphrase that its configuration was made with.
    Passphrase(&'a [u8]),
    /// Its master key; the configuration's own, wrapped one is not looked at. Without a configuration the directory is
    /// taken to be of the variant that `gocryptfs -init` makes.
    Master(MasterKey),
    /// Its master key, and the variant that the directory is of if its configuration is lost. One that is there and
    /// says otherwise about names is an error: names would be shown, and written, that it hides.
    MasterOf(MasterKey, Features),
}

/// How a directory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitOptions {
    /// Which variant of the format.
    pub features: Features,
    /// The binary logarithm of scrypt's N, 10 to 22: each step doubles time and memory of every guess at the
    /// passphrase, and of opening. 16 takes 64 MiB.
    pub scrypt_log_n: u8,
}

impl Default for InitOptions {
    fn default() -> Self {
        Self { features: Features::DEFAULT, scrypt_log_n: 16 }
    }
}

/// An opened directory. Clones share its keys, which are cleared with the last one.
#[derive(Clone)]
pub struct CipherDir {
    path: PathBuf,
    format: Arc<Format>,
    root: Arc<Folder>,
}

impl std::fmt::Debug for CipherDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CipherDir").field("path", &self.path).finish_non_exhaustive()
    }
}

impl CipherDir {
    /// Makes an empty directory an encrypted one, and returns its master key, which opens it also when the
    /// configuration is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if there is anything in it, [`ErrorKind::BadUse`] for options that cannot be, and
    /// errors from the system.
    pub fn init(path: &Path, passphrase: &[u8], options: InitOptions) -> Result<MasterKey> {
        let root = open_root(path)?;
        let entries = sys::entries(root.fd()).map_err(|error| Error::system(path.display(), "listing it", error))?;
        if !entries.is_empty() {
            let detail = "the directory is not empty; an encrypted directory is made in an empty one";
            return Err(Error::new(ErrorKind::Exists, path.display(), detail));
        }
        if passphrase.is_empty() {
            return Err(Error::new(ErrorKind::BadUse, path.display(), "an empty passphrase protects nothing"));
        }
        let n = 1_u64.checked_shl(u32::from(options.scrypt_log_n)).unwrap_or(0);
        let cost = ScryptCost { n, r: 8, p: 1 };
        let bad = |sentence| Error::new(ErrorKind::BadUse, path.display(), sentence);
        check_cost(cost).map_err(bad)?;
        let master = keys::new_master();
        let config = keys::wrap(&master, passphrase, cost, options.features).map_err(|error| bad(error.to_string()))?;
        // What cannot be read again is not written.
        let text = config.to_text();
        Config::parse(text.as_bytes()).map_err(|error| bad(error.to_string()))?;
        let format = Format::new(&master, options.features);
        let written = root.create_iv(&format);
        written.map_err(|error| Error::writing(path.display(), "writing the directory's IV", error))?;
        Replacement::new(path, &root, text.as_bytes()).run(false)?;
        Ok(master)
    }

    /// Opens a directory. A master key is tried on what is in it; without a configuration see [`Key`].
    ///
    /// # Errors
    /// [`ErrorKind::NotACipherDir`] without a configuration, [`ErrorKind::WrongKey`] for another passphrase and for a
    /// master key that nothing opens with, [`ErrorKind::Unsupported`] and [`ErrorKind::Damaged`] for what the
    /// configuration says, and [`ErrorKind::BadUse`] if it contradicts [`Key::MasterOf`].
    pub fn open(path: &Path, key: &Key<'_>) -> Result<Self> {
        let this = Self::open_untried(path, key)?;
        if !matches!(key, Key::Passphrase(_)) {
            this.check_master()?;
        }
        Ok(this)
    }

    /// The same, where a master key is known to be the right one: it is not tried on what is in the directory, all of
    /// which may be damaged.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_untried(path: &Path, key: &Key<'_>) -> Result<Self> {
        let root = open_root(path)?;
        let Unlocked { master, features, .. } = unlock(path, &root, key)?;
        Ok(Self::new(path, root, &master, features))
    }

    /// Tries the master key on what is in the directory.
    fn check_master(&self) -> Result<Verdict> {
        match verdict::verdict(&self.root, &self.format)? {
            Verdict::Wrong => {
                let detail = "its names and contents do not decrypt: the master key is another directory's";
                Err(Error::new(ErrorKind::WrongKey, self.path.display(), detail))
            }
            verdict => Ok(verdict),
        }
    }

    fn new(path: &Path, root: Folder, master: &MasterKey, features: Features) -> Self {
        let format = Arc::new(Format::new(master, features));
        Self { path: path.to_owned(), format, root: Arc::new(root) }
    }

    /// The master key of a directory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn master_key(path: &Path, passphrase: &[u8]) -> Result<MasterKey> {
        let config = read_config(path, &open_root(path)?)?;
        unwrap(path, &config, passphrase)
    }

    /// Wraps the master key by another passphrase, with a new salt and the same cost. Files stay as they are. With the
    /// master key this also makes a configuration that was lost, with the cost of `gocryptfs -init`. Nothing is written
    /// before [`PassphraseChange::commit`].
    ///
    /// # Errors
    /// As [`open`](Self::open), [`ErrorKind::Exists`] for a backup of another configuration, and errors from the system.
    pub fn prepare_change(path: &Path, key: &Key<'_>, passphrase: &[u8]) -> Result<PassphraseChange> {
        if passphrase.is_empty() {
            return Err(Error::new(ErrorKind::BadUse, path.display(), "an empty passphrase protects nothing"));
        }
        let root = open_root(path)?;
        replace::check_backup(path, &root)?;
        let Unlocked { master, features, cost } = unlock(path, &root, key)?;
        let this = Self::new(path, root, &master, features);
        let verdict = if let Key::Passphrase(_) = key { Verdict::Right } else { this.check_master()? };
        let cost = cost.unwrap_or(ScryptCost { n: 1 << InitOptions::default().scrypt_log_n, r: 8, p: 1 });
        let bad = |detail: String| Error::new(ErrorKind::BadUse, path.display(), detail);
        let config = keys::wrap(&master, passphrase, cost, features).map_err(|error| bad(error.to_string()))?;
        // What does not open is not written.
        let text = config.to_text();
        let again = Config::parse(text.as_bytes()).map_err(|error| bad(error.to_string()))?;
        if *unwrap(path, &again, passphrase)? != *master {
            return Err(bad("the new configuration holds another master key; nothing was changed".to_owned()));
        }
        Ok(PassphraseChange { dir: this, text, keeps_backup: verdict == Verdict::Unknown })
    }

    /// [Prepares](Self::prepare_change) a change of the passphrase and [commits](PassphraseChange::commit) it.
    ///
    /// # Errors
    /// Those of the two.
    pub fn change_passphrase(path: &Path, key: &Key<'_>, passphrase: &[u8]) -> Result<Option<PathBuf>> {
        Self::prepare_change(path, key, passphrase)?.commit()
    }

    /// What a directory's configuration says; this needs no key.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read_config(path: &Path) -> Result<Config> {
        read_config(path, &open_root(path)?)
    }

    /// The directory's path, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which variant of the format it has.
    pub fn features(&self) -> Features {
        self.format.features
    }

    /// The key that contents are encrypted with, by AES-256-GCM.
    pub fn content_key(&self) -> &Zeroizing<[u8; KEY_BYTES]> {
        &self.format.content_key
    }

    /// The path on disk for a plain path, which begins at the directory's root.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if a directory on the way is not there; the last name may be one that does not exist.
    pub fn lookup(&self, plain: &Path) -> Result<PathBuf> {
        let (found, name) = self.walk(plain)?;
        Ok(match name {
            Some(name) => found.path.join(OsStr::from_bytes(&name)),
            None => found.path,
        })
    }

    /// The plain path for a path on disk, below [`path`](Self::path) or relative to it.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if a name on the way does not decrypt, [`ErrorKind::BadUse`] for what belongs to the
    /// format, and errors from the system.
    pub fn plain_path(&self, cipher: &Path) -> Result<PathBuf> {
        let relative = cipher.strip_prefix(&self.path).unwrap_or(cipher);
        let mut folder = Arc::clone(&self.root);
        let mut plain = PathBuf::new();
        let names = names_of(relative)?;
        for (index, entry) in names.iter().enumerate() {
            let name = folder.plain_name(&self.format, entry.as_bytes())?.ok_or_else(|| {
                Error::new(
                    ErrorKind::BadUse,
                    cipher.display(),
                    "this file belongs to the format, and has no plain name",
                )
            })?;
            plain.push(OsString::from_vec(name));
            if index + 1 < names.len() {
                let child = folder.child(entry.as_bytes());
                folder =
                    Arc::new(child.map_err(|error| Error::system(cipher.display(), "opening a directory", error))?);
            }
        }
        Ok(plain)
    }

    /// Opens a file by its plain path; a symbolic link is not followed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::BadUse`] if it is not a regular file, and errors from the system.
    pub fn open_file(&self, plain: &Path, is_writable: bool) -> Result<CryptFile> {
        self.open_regular(plain, if is_writable { libc::O_RDWR } else { libc::O_RDONLY }, is_writable)
    }

    /// Makes a new, empty file in a directory that exists.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`], and errors from the system.
    pub fn create_file(&self, plain: &Path) -> Result<CryptFile> {
        self.open_regular(plain, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, true)
    }

    /// Makes a directory in one that exists.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`], and errors from the system.
    pub fn create_dir(&self, plain: &Path) -> Result<()> {
        let (found, name) = self.walk(plain)?;
        let failed = |error| Error::writing(plain.display(), "making the directory", error);
        let Some(entry) = name else {
            return Err(Error::new(ErrorKind::Exists, plain.display(), "this is the root"));
        };
        let name = found.name(&self.format, plain)?;
        let is_new = found.folder.write_whole(&name).map_err(failed)?;
        if let Err(error) = sys::mkdir(found.folder.fd(), &entry, 0o700) {
            if is_new {
                found.folder.remove_whole(&name);
            }
            return Err(failed(error));
        }
        let child = found.folder.child(&entry).map_err(failed)?;
        child.create_iv(&self.format).map_err(failed)
    }

    /// The plain names in a directory, in no order. Entries with damaged names are left out, with a sentence to `warn`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Damaged`] if the directory's IV is, and errors from the system.
    pub fn list(&self, plain: &Path, warn: &dyn Fn(&str)) -> Result<Vec<OsString>> {
        let (found, name) = self.walk(plain)?;
        let folder = match name {
            None => found.folder,
            Some(entry) => {
                let child = found.folder.child(&entry);
                Arc::new(child.map_err(|error| Error::system(plain.display(), "opening the directory", error))?)
            }
        };
        Ok(folder.list(&self.format, warn)?.into_iter().map(|listed| OsString::from_vec(listed.plain)).collect())
    }

    pub(crate) fn format(&self) -> &Arc<Format> {
        &self.format
    }

    pub(crate) fn root(&self) -> &Arc<Folder> {
        &self.root
    }

    fn open_regular(&self, plain: &Path, flags: i32, is_writable: bool) -> Result<CryptFile> {
        let (found, name) = self.walk(plain)?;
        let not_a_file = || Error::new(ErrorKind::BadUse, plain.display(), "this is not a regular file");
        let entry = name.ok_or_else(not_a_file)?;
        let failed = |error: std::io::Error| match error.raw_os_error() {
            Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => not_a_file(),
            _ => Error::system(plain.display(), "opening the encrypted file", error),
        };
        let created = if flags & libc::O_CREAT == 0 {
            None
        } else {
            let name = found.name(&self.format, plain)?;
            let is_new = found.folder.write_whole(&name).map_err(failed)?;
            Some((name, is_new))
        };
        let fd = sys::open(found.folder.fd(), &entry, flags | libc::O_NONBLOCK, 0o600).map_err(|error| {
            if let Some((name, true)) = &created {
                found.folder.remove_whole(name);
            }
            failed(error)
        })?;
        let state = sys::stat_of(fd.as_fd()).map_err(failed)?;
        if state.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(not_a_file());
        }
        let subject = plain.display().to_string();
        Ok(CryptFile::new(Arc::clone(&self.format.content), File::from(fd), is_writable, subject))
    }

    /// The directory that holds the last name of a path, and that name on disk; none for the root itself.
    fn walk(&self, plain: &Path) -> Result<(Found, Option<Vec<u8>>)> {
        let mut found = Found { folder: Arc::clone(&self.root), path: self.path.clone() };
        let names = names_of(plain)?;
        let Some((last, parents)) = names.split_last() else { return Ok((found, None)) };
        for name in parents {
            let entry = found.folder.cipher_name(&self.format, name.as_bytes())?.entry;
            let child = found.folder.child(&entry);
            let child =
                child.map_err(|error| Error::system(plain.display(), "opening a directory on the way", error))?;
            found.folder = Arc::new(child);
            found.path.push(OsStr::from_bytes(&entry));
        }
        let entry = found.folder.cipher_name(&self.format, last.as_bytes())?.entry;
        Ok((found, Some(entry)))
    }
}

/// A changed configuration, which is not written yet.
#[derive(Debug)]
#[must_use = "nothing is changed before it is committed"]
pub struct PassphraseChange {
    dir: CipherDir,
    text: String,
    keeps_backup: bool,
}

impl PassphraseChange {
    /// Replaces the configuration. It is whole at every moment, and the old one stays beside it, as
    /// `gocryptfs.conf.bak`, until the new one was read again.
    ///
    /// Returns where the old one stays for good: if a master key was given and nothing in the directory could tell
    /// whether it is the right one.
    ///
    /// # Errors
    /// From the system; the old configuration is in its place then.
    pub fn commit(self) -> Result<Option<PathBuf>> {
        Replacement::new(&self.dir.path, &self.dir.root, self.text.as_bytes()).run(self.keeps_backup)
    }
}

struct Found {
    folder: Arc<Folder>,
    path: PathBuf,
}

impl Found {
    fn name(&self, format: &Format, plain: &Path) -> Result<crate::names::CipherName> {
        let last = plain.file_name().unwrap_or_default();
        self.folder.cipher_name(format, last.as_bytes())
    }
}

/// The names of a path; `/` at its beginning is the root, and `..` is refused.
fn names_of(path: &Path) -> Result<Vec<&OsStr>> {
    let mut names = vec![];
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                let detail = "a path with .. in it is ambiguous; write it without";
                return Err(Error::new(ErrorKind::BadUse, path.display(), detail));
            }
        }
    }
    Ok(names)
}

fn open_root(path: &Path) -> Result<Folder> {
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path);
    let file = opened.map_err(|error| Error::system(path.display(), "opening the directory", error))?;
    Ok(Folder::new(OwnedFd::from(file), true))
}

fn read_config(path: &Path, root: &Folder) -> Result<Config> {
    let file = path.join(CONFIG_NAME);
    let text = root.read_small(CONFIG_NAME.as_bytes(), CONFIG_BYTES_MAX as usize).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            if path.join(".gocryptfs.reverse.conf").exists() {
                // Its files are plain ones, which a master key must not make an encrypted directory of.
                let detail = "it is for gocryptfs's reverse mode, which is not implemented";
                return Error::new(ErrorKind::Unsupported, path.display(), detail);
            }
            let detail = "there is no gocryptfs.conf; is this the encrypted directory?";
            return Error::new(ErrorKind::NotACipherDir, path.display(), detail);
        }
        Error::system(file.display(), "reading the configuration", error)
    })?;
    Config::parse(&text).map_err(|bad| match bad {
        BadConfig::Damaged(sentence) => Error::new(ErrorKind::Damaged, file.display(), sentence),
        BadConfig::Unsupported(sentence) => Error::new(ErrorKind::Unsupported, file.display(), sentence),
    })
}

/// What a key stands for.
struct Unlocked {
    master: MasterKey,
    features: Features,
    /// None without a configuration.
    cost: Option<ScryptCost>,
}

fn unlock(path: &Path, root: &Folder, key: &Key<'_>) -> Result<Unlocked> {
    let config = read_config(path, root);
    let (master, variant) = match key {
        Key::Passphrase(passphrase) => {
            let config = config?;
            let master = unwrap(path, &config, passphrase)?;
            return Ok(Unlocked { master, features: config.features, cost: Some(config.cost) });
        }
        Key::Master(master) => (master.clone(), None),
        Key::MasterOf(master, variant) => (master.clone(), Some(*variant)),
    };
    match config {
        Ok(config) if variant.is_some_and(|variant| variant.plaintext_names != config.features.plaintext_names) => {
            let names = if config.features.plaintext_names { "not encrypted" } else { "encrypted" };
            let detail = format!(
                "this configuration says that names are {names}, and takes precedence; the option is for directories without a configuration"
            );
            Err(Error::new(ErrorKind::BadUse, path.join(CONFIG_NAME).display(), detail))
        }
        Ok(config) => Ok(Unlocked { master, features: config.features, cost: Some(config.cost) }),
        Err(error) if error.kind() == ErrorKind::NotACipherDir => {
            Ok(Unlocked { master, features: variant.unwrap_or(Features::DEFAULT), cost: None })
        }
        Err(error) if error.kind() == ErrorKind::Damaged => {
            Err(error.with_advice("restore it from a backup, or move it away to use the master key without it"))
        }
        Err(error) => Err(error),
    }
}

fn unwrap(path: &Path, config: &Config, passphrase: &[u8]) -> Result<MasterKey> {
    keys::unwrap(config, passphrase).map_err(|why| match why {
        Unwrap::WrongPassphrase => {
            let detail = "the passphrase is wrong (or gocryptfs.conf was changed, and no passphrase can be right)";
            Error::new(ErrorKind::WrongKey, path.display(), detail)
        }
        Unwrap::Cost(error) => Error::new(ErrorKind::Damaged, path.display(), error.to_string()),
    })
}
