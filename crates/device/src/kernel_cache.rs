//! Compiled kernels on disk, so that only the first run on a machine compiles.
//!
//! An entry's name is the SHA-256 of everything that decides its content (source, headers,
//! options, compiler, architecture, driver); it starts with the SHA-256 of its payload, so that a
//! torn or damaged file is found out and compiled again. Entries are written to a temporary name
//! and renamed. A cache that cannot be written is no error: kernels are then compiled each time.

use crate::ModuleSource;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"bifolkc1";
const HEADER: usize = MAGIC.len() + 32;

/// The folder for what can be made again: `$BIFOLIO_CACHE_DIR`, else `$XDG_CACHE_HOME/bifolio`, else
/// `~/.cache/bifolio`. None without a home.
pub fn cache_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("BIFOLIO_CACHE_DIR")
        .or_else(|| variable("XDG_CACHE_HOME").map(|home| home.join("bifolio")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/bifolio")))
}

/// The folder of compiled kernels: `$BIFOLIO_CACHE_DIR/kernels`, else `$XDG_CACHE_HOME/bifolio/kernels`,
/// else `~/.cache/bifolio/kernels`.
#[derive(Debug, Clone)]
pub(crate) struct KernelCache {
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// The cache of this user.
    pub(crate) fn of_user() -> Self {
        Self { folder: cache_folder().map(|root| root.join("kernels")) }
    }

    #[cfg(test)]
    pub(crate) fn at(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// The compiled binary for `source` under `context` (options, compiler, architecture,
    /// driver), from disk or by `compile`. The flag says whether it came from disk.
    pub(crate) fn get<E>(
        &self,
        source: &ModuleSource,
        context: &[&str],
        compile: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(Vec<u8>, bool), E> {
        let Some(path) = self.folder.as_ref().map(|folder| folder.join(key(source, context))) else {
            return compile().map(|binary| (binary, false));
        };
        if let Some(binary) = read(&path) {
            return Ok((binary, true));
        }
        let binary = compile()?;
        write(&path, &binary);
        Ok((binary, false))
    }

    /// Forgets an entry that the driver refused to load.
    pub(crate) fn forget(&self, source: &ModuleSource, context: &[&str]) {
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_file(folder.join(key(source, context)));
        }
    }
}

fn key(source: &ModuleSource, context: &[&str]) -> String {
    let headers = source.headers.iter().flat_map(|(name, text)| [*name, *text]);
    let mut hash = Sha256::new();
    for part in [source.name, source.source].into_iter().chain(headers).chain(context.iter().copied()) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut file = format!("{}-", source.name);
    for byte in &digest {
        // Writing to a string cannot fail.
        let _ = write!(file, "{byte:02x}");
    }
    file + ".bin"
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (header, payload) = bytes.split_at_checked(HEADER)?;
    let intact = header.starts_with(MAGIC) && header[MAGIC.len()..] == Sha256::digest(payload)[..];
    intact.then(|| payload.to_vec())
}

fn write(path: &Path, binary: &[u8]) {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let temporary = path.with_extension(format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
    let content = [MAGIC.as_slice(), &Sha256::digest(binary), binary].concat();
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&temporary, content))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const SOURCE: ModuleSource = ModuleSource { name: "m", source: "s", headers: &[("h", "t")], kernels: &[] };

    fn compiled(bytes: &'static [u8]) -> impl FnOnce() -> Result<Vec<u8>, Infallible> {
        move || Ok(bytes.to_vec())
    }

    #[test]
    fn the_second_load_comes_from_disk_and_any_changed_context_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(dir.path());
        assert_eq!(cache.get(&SOURCE, &["sm_90", "580"], compiled(b"one")).unwrap(), (b"one".to_vec(), false));
        assert_eq!(cache.get(&SOURCE, &["sm_90", "580"], compiled(b"two")).unwrap(), (b"one".to_vec(), true));
        assert_eq!(cache.get(&SOURCE, &["sm_90", "581"], compiled(b"two")).unwrap(), (b"two".to_vec(), false));
        assert_eq!(cache.get(&SOURCE, &["sm_905", "80"], compiled(b"six")).unwrap(), (b"six".to_vec(), false));
    }

    #[test]
    fn a_damaged_or_torn_entry_is_compiled_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(dir.path());
        cache.get(&SOURCE, &[], compiled(b"good")).unwrap();
        let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let intact = std::fs::read(&file).unwrap();
        for damaged in [&intact[..intact.len() - 1], &intact[..7], &[0; 60][..]] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(cache.get(&SOURCE, &[], compiled(b"anew")).unwrap(), (b"anew".to_vec(), false));
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_only_the_compilation() {
        let cache = KernelCache::at(Path::new("/proc/no-such-folder"));
        assert_eq!(cache.get(&SOURCE, &[], compiled(b"x")).unwrap(), (b"x".to_vec(), false));
    }
}
