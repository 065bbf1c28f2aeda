//! The configuration, replaced in steps after any of which the directory opens, by the old passphrase or the new one.
//!
//! ```text
//!   write      the new one, as gocryptfs.conf.tmp.*: synced, and read again
//!   back_up    the old one gets the name gocryptfs.conf.bak as well
//!   exchange   the new one becomes gocryptfs.conf, and is read again; if that fails the old one comes back
//!   clear      gocryptfs.conf.bak goes
//! ```
//!
//! A `gocryptfs.conf.bak` that is there already, and is another file than `gocryptfs.conf`, may be the only one with
//! the right key. It is never overwritten: whoever changes the passphrase has to move it first, as with gocryptfs.

use crate::config::{CONFIG_BYTES_MAX, CONFIG_NAME};
use crate::error::{Error, ErrorKind, Result};
use crate::folder::Folder;
use crate::{random, sys};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Who may read a configuration, where there is no older one: as gocryptfs writes it.
const MODE: u32 = 0o400;

/// A configuration on its way to its place.
pub(crate) struct Replacement<'a> {
    path: &'a Path,
    root: &'a Folder,
    text: &'a [u8],
    /// The name that it has until it is in its place.
    temporary: String,
    has_backup: bool,
}

impl<'a> Replacement<'a> {
    pub(crate) fn new(path: &'a Path, root: &'a Folder, text: &'a [u8]) -> Self {
        let mut unique = [0; 8];
        random::fill(&mut unique);
        let temporary = format!("{CONFIG_NAME}.tmp.{:016x}", u64::from_ne_bytes(unique));
        Self { path, root, text, temporary, has_backup: false }
    }

    /// All steps. Returns where the old configuration is, if it `keeps` it and there was one.
    ///
    /// # Errors
    /// From the system; [`ErrorKind::Exists`] for an older backup. The old configuration is in its place then.
    pub(crate) fn run(mut self, keeps: bool) -> Result<Option<PathBuf>> {
        self.write()?;
        self.back_up().and_then(|()| self.exchange()).inspect_err(|_| {
            let _ = sys::unlink(self.root.fd(), self.temporary.as_bytes(), false);
        })?;
        if keeps {
            return Ok(self.has_backup.then(|| self.path.join(backup_name())));
        }
        self.clear()?;
        Ok(None)
    }

    fn write(&self) -> Result<()> {
        let name = self.temporary.as_bytes();
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let write = || {
            let mut file = File::from(sys::open(self.root.fd(), name, flags, MODE)?);
            if let Ok(old) = sys::stat(self.root.fd(), CONFIG_NAME.as_bytes()) {
                // Whoever could read the old one can read the new one; giving it away takes rights that may be missing.
                let _ = sys::chown(file.as_fd(), Some(old.st_uid), Some(old.st_gid));
                let _ = sys::chmod(file.as_fd(), old.st_mode & 0o777 | MODE);
            }
            file.write_all(self.text)?;
            file.sync_all()?;
            self.check(name)
        };
        write().map_err(|error| {
            let _ = sys::unlink(self.root.fd(), name, false);
            self.failed("writing the configuration", error)
        })
    }

    fn back_up(&mut self) -> Result<()> {
        let failed = |error| self.failed("keeping the old configuration as gocryptfs.conf.bak", error);
        let (old, backup) = (CONFIG_NAME.as_bytes(), backup_name());
        match check_backup(self.path, self.root)? {
            Backup::Whole => {}
            Backup::Needless => return Ok(()),
            Backup::Missing => {
                let linked = sys::link((self.root.fd(), old), (self.root.fd(), backup.as_bytes()));
                linked.or_else(|error| self.copy_to_backup(error)).map_err(failed)?;
                sys::sync(self.root.fd()).map_err(failed)?;
            }
        }
        self.has_backup = true;
        Ok(())
    }

    /// On file systems where a file has one name.
    fn copy_to_backup(&self, error: io::Error) -> io::Result<()> {
        if !matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK)) {
            return Err(error);
        }
        let text = self.root.read_small(CONFIG_NAME.as_bytes(), CONFIG_BYTES_MAX as usize)?;
        let partial = format!("{}.bak", self.temporary);
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let mut file = File::from(sys::open(self.root.fd(), partial.as_bytes(), flags, MODE)?);
        let copied = file.write_all(&text).and_then(|()| file.sync_all()).and_then(|()| {
            sys::rename((self.root.fd(), partial.as_bytes()), (self.root.fd(), backup_name().as_bytes()), 0)
        });
        copied.inspect_err(|_| {
            let _ = sys::unlink(self.root.fd(), partial.as_bytes(), false);
        })
    }

    fn exchange(&self) -> Result<()> {
        let root = self.root.fd();
        let renamed = sys::rename((root, self.temporary.as_bytes()), (root, CONFIG_NAME.as_bytes()), 0);
        renamed.map_err(|error| self.failed("replacing the configuration", error))?;
        let checked = sys::sync(root).and_then(|()| self.check(CONFIG_NAME.as_bytes()));
        checked.map_err(|error| {
            if self.has_backup {
                let _ = sys::rename((root, backup_name().as_bytes()), (root, CONFIG_NAME.as_bytes()), 0);
                let _ = sys::sync(root);
            }
            self.failed("reading the new configuration again", error)
        })
    }

    fn clear(&self) -> Result<()> {
        if !self.has_backup {
            return Ok(());
        }
        let removed = sys::unlink(self.root.fd(), backup_name().as_bytes(), false);
        removed.and_then(|()| sys::sync(self.root.fd())).map_err(|error| {
            self.failed("the new configuration is in its place, but removing gocryptfs.conf.bak, the old one,", error)
        })
    }

    /// Whether a file holds what was written.
    fn check(&self, name: &[u8]) -> io::Result<()> {
        if self.root.read_small(name, CONFIG_BYTES_MAX as usize)? == self.text {
            return Ok(());
        }
        Err(io::Error::other("it holds other bytes than were written"))
    }

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        Error::writing(self.path.join(CONFIG_NAME).display(), doing, error)
    }
}

/// What there is to do about a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backup {
    /// There is no configuration.
    Needless,
    Missing,
    /// It is there already, from a change that was interrupted before anything was replaced.
    Whole,
}

/// Looks whether there is a backup.
///
/// # Errors
/// [`ErrorKind::Exists`] if there is one of another configuration, and errors from the system.
pub(crate) fn check_backup(path: &Path, root: &Folder) -> Result<Backup> {
    let read = |name: &str| match root.read_small(name.as_bytes(), CONFIG_BYTES_MAX as usize) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::system(path.join(name).display(), "reading it", error)),
    };
    let Some(config) = read(CONFIG_NAME)? else { return Ok(Backup::Needless) };
    match read(&backup_name())? {
        None => Ok(Backup::Missing),
        Some(text) if text == config => Ok(Backup::Whole),
        Some(_) => {
            let detail = "this is the configuration from before a change that was interrupted, or that kept it; if \
                          files can be read by way of gocryptfs.conf, move it away, and change the passphrase then";
            Err(Error::new(ErrorKind::Exists, path.join(backup_name()).display(), detail))
        }
    }
}

fn backup_name() -> String {
    format!("{CONFIG_NAME}.bak")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::OwnedFd;

    type Step = dyn Fn(&mut Replacement<'_>) -> Result<()>;

    fn root(path: &Path) -> Folder {
        Folder::new(OwnedFd::from(File::open(path).unwrap()), true)
    }

    fn names(path: &Path) -> Vec<String> {
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| !name.contains(".tmp.")).collect();
        names.sort_unstable();
        names
    }

    /// As after a loss of power: whatever step was the last one, the configuration is whole, and the old one is there
    /// until the new one was read again.
    #[test]
    fn after_every_step_there_is_a_whole_configuration() {
        for steps in 0..=4 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            fs::write(path.join(CONFIG_NAME), "old").unwrap();
            let root = root(path);
            let mut change = Replacement::new(path, &root, b"new");
            let run: [&Step; 4] =
                [&|change| change.write(), &|change| change.back_up(), &|change| change.exchange(), &|change| {
                    change.clear()
                }];
            run[..steps].iter().for_each(|step| step(&mut change).unwrap());
            let held = |name: &str| fs::read_to_string(path.join(name)).ok();
            assert_eq!(held(CONFIG_NAME).as_deref(), Some(if steps < 3 { "old" } else { "new" }), "{steps}");
            assert_eq!(held(&backup_name()).as_deref(), (2..=3).contains(&steps).then_some("old"), "{steps}");
            // The next change goes on from there, unless it would lose the only other configuration.
            let again = Replacement::new(path, &root, b"next").run(false);
            if steps == 3 {
                assert_eq!(again.unwrap_err().kind(), ErrorKind::Exists);
                assert_eq!((held(CONFIG_NAME).as_deref(), held(&backup_name()).as_deref()), (Some("new"), Some("old")));
            } else {
                assert_eq!(again.unwrap(), None);
                assert_eq!((held(CONFIG_NAME).as_deref(), names(path)), (Some("next"), vec![CONFIG_NAME.to_owned()]));
            }
        }
    }

    #[test]
    fn a_configuration_keeps_its_mode_and_its_backup_if_wanted() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let root = root(path);
        assert_eq!(Replacement::new(path, &root, b"first").run(true).unwrap(), None);
        let mode = || fs::metadata(path.join(CONFIG_NAME)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o400);
        fs::set_permissions(path.join(CONFIG_NAME), fs::Permissions::from_mode(0o440)).unwrap();
        assert_eq!(Replacement::new(path, &root, b"second").run(true).unwrap(), Some(path.join(backup_name())));
        assert_eq!(mode(), 0o440);
        assert_eq!(names(path), [CONFIG_NAME.to_owned(), backup_name()]);
        assert_eq!(fs::read(path.join(backup_name())).unwrap(), b"first");
        // Where a file can have one name only.
        fs::remove_file(path.join(backup_name())).unwrap();
        let change = Replacement::new(path, &root, b"third");
        change.copy_to_backup(io::Error::from_raw_os_error(libc::EPERM)).unwrap();
        assert_eq!(fs::read(path.join(backup_name())).unwrap(), b"second");
        assert_eq!(fs::read_dir(path).unwrap().count(), 2);
    }
}
