//! A cache of this process as [`Replicas`].
//!
//! Who works with it acquires and releases by [`InProcess::acquire`] and [`InProcess::release`], which recall first and
//! afterwards. A program that opened the file before a device wanted it sees the file alone: for it what was released is
//! written at once.

use crate::replicas::{FileKey, Recall, Replicas, SharedFile};
use crate::sync::lock;
use bifolio_cache::{Cache, CachedFile, Mapping, Report};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

/// A cache whose files programs share through a mount.
#[derive(Clone)]
pub struct InProcess {
    cache: Cache,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    mount: Option<Weak<dyn Recall>>,
    /// How many mapped files of each there are.
    wanted: HashMap<FileKey, usize>,
}

/// A file of the source that devices map.
pub struct WantedFile {
    replicas: InProcess,
    key: FileKey,
    file: CachedFile,
}

impl InProcess {
    /// Over a cache.
    pub fn new(cache: Cache) -> Self {
        Self { cache, state: Arc::default() }
    }

    /// A file of the source, by its path there, that devices are about to map: whoever opens it from now on, until this is
    /// dropped, shares it with them.
    ///
    /// # Errors
    /// The cache's.
    pub fn want(&self, path: &Path) -> io::Result<WantedFile> {
        let file = self.cache.open(path).map_err(of_cache)?;
        let metadata = std::fs::metadata(path)?;
        let key = FileKey { device: metadata.dev(), inode: metadata.ino() };
        *lock(&self.state).wanted.entry(key).or_default() += 1;
        Ok(WantedFile { replicas: self.clone(), key, file })
    }

    fn mount(&self) -> Option<Arc<dyn Recall>> {
        lock(&self.state).mount.as_ref().and_then(Weak::upgrade)
    }
}

impl WantedFile {
    /// As the cache has it.
    pub fn file(&self) -> &CachedFile {
        &self.file
    }

    /// Recalls a part of a mapping that begins at `start` of the file, and acquires it.
    ///
    /// # Errors
    /// The cache's, and those of [`Recall::recall`].
    pub fn acquire(&self, mapping: &mut Mapping, start: u64, part: Range<u64>) -> io::Result<Report> {
        self.recall(start + part.start..start + part.end)?;
        mapping.acquire(part).map_err(of_cache)
    }

    /// Releases a part, and has the kernel forget what it had of it.
    ///
    /// # Errors
    /// As above.
    pub fn release(&self, mapping: &mut Mapping, start: u64, part: Range<u64>) -> io::Result<Report> {
        let range = start + part.start..start + part.end;
        let report = mapping.release(part).map_err(of_cache)?;
        self.recall(range)?;
        if self.replicas.mount().is_some_and(|mount| mount.is_open_past(self.key)) {
            self.file.sync().map_err(of_cache)?;
        }
        Ok(report)
    }

    fn recall(&self, range: Range<u64>) -> io::Result<()> {
        self.replicas.mount().map_or(Ok(()), |mount| mount.recall(self.key, range))
    }
}

/// Whoever opens the file afterwards may read it past the cache, so that it has everything first. What cannot be written is
/// in the cache alone: then the file stays shared.
impl Drop for WantedFile {
    fn drop(&mut self) {
        if self.file.sync().is_err() {
            return;
        }
        let mut state = lock(&self.replicas.state);
        if let Some(count) = state.wanted.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                state.wanted.remove(&self.key);
            }
        }
    }
}

impl Replicas for InProcess {
    fn mounted(&self, mount: Weak<dyn Recall>) {
        lock(&self.state).mount = Some(mount);
    }

    fn is_wanted(&self, file: FileKey) -> bool {
        lock(&self.state).wanted.contains_key(&file)
    }

    fn open(&self, file: BorrowedFd<'_>) -> io::Result<Box<dyn SharedFile>> {
        Ok(Box::new(self.cache.open_descriptor(file).map_err(of_cache)?))
    }
}

impl SharedFile for CachedFile {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Self::read(self, offset, buffer).map_err(of_cache)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Self::write(self, offset, bytes).map_err(of_cache)
    }

    fn sync(&self) -> io::Result<()> {
        Self::sync(self).map_err(of_cache)
    }

    fn changed(&self) -> io::Result<()> {
        // A read of nothing looks at the file.
        Self::read(self, 0, &mut []).map(drop).map_err(of_cache)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it maps errors")]
fn of_cache(error: bifolio_cache::Error) -> io::Error {
    io::Error::from_raw_os_error(error.os_code().unwrap_or(libc::EIO))
}
