//! An encrypted file as a block device of plain bytes, and what somebody needs to decrypt it elsewhere.
//!
//! Reading it here decrypts by the CPU. A device's memory is filled by `bifolio-volume`, which knows no directories: it is
//! given the encrypted file as it is stored ([`CryptDevice::stored`]), where its blocks lie
//! ([`layout`](crate::content::layout)), the file's id and the key. So this crate needs no router.

use crate::config::CONFIG_NAME;
use crate::content::FileId;
use crate::content::layout::{HEADER_BYTES, PLAIN_BLOCK_BYTES};
use crate::dir::{CipherDir, Key};
use crate::error::{Error, ErrorKind, Result};
use crate::file::CryptFile;
use bifolio_block::{self as block, BlockDevice, FileDevice, Geometry, SealedBlocks, SealedDevice};
use std::path::{Path, PathBuf};

/// An encrypted file, for reading. Its size is that of the moment when it was opened.
#[derive(Debug)]
pub struct CryptDevice {
    /// Its plain path behind the directory's.
    name: String,
    stored: PathBuf,
    dir: CipherDir,
    file: CryptFile,
    id: Option<FileId>,
    size: u64,
}

impl CryptDevice {
    /// Opens a file of a directory by its plain path.
    ///
    /// # Errors
    /// Those of [`CipherDir::open_file`], and those of a header that is none.
    pub fn open(dir: &CipherDir, plain_path: &Path) -> Result<Self> {
        let file = dir.open_file(plain_path, false)?;
        let id = file.file_id()?;
        // What has no header yet has no bytes.
        let size = if id.is_none() { 0 } else { file.len()? };
        let name = dir.path().join(plain_path).display().to_string();
        Ok(Self { name, stored: dir.lookup(plain_path)?, dir: dir.clone(), file, id, size })
    }

    /// Opens a file by a path that leads through an encrypted directory: its part behind the directory is plain.
    ///
    /// # Errors
    /// `NotACipherDir` if no directory on the way has a configuration, and those of [`CipherDir::open`] and
    /// [`CryptDevice::open`].
    pub fn open_path(path: &Path, key: &Key<'_>) -> Result<Self> {
        let root = path.ancestors().skip(1).find(|folder| folder.join(CONFIG_NAME).is_file());
        let root = root.ok_or_else(|| {
            let detail = format!("no directory on the way to it is an encrypted one, which has a {CONFIG_NAME}");
            Error::new(ErrorKind::NotACipherDir, path.display(), detail)
        })?;
        let plain = path.strip_prefix(root).expect("an ancestor is a prefix");
        // The empty ancestor is the current folder.
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        Self::open(&CipherDir::open(root, key)?, plain)
    }

    /// Where the encrypted file lies.
    pub fn stored_at(&self) -> &Path {
        &self.stored
    }

    fn read_only(&self) -> block::Error {
        block::Error::new(block::ErrorKind::ReadOnly, &self.name, "it was opened for reading only")
    }
}

impl SealedDevice for CryptDevice {
    fn stored(&self) -> block::Result<FileDevice> {
        let failed = |error| block::Error::system(&self.name, "opening the encrypted file once more", error);
        let file = self.file.with_file(std::fs::File::try_clone).map_err(failed)?;
        FileDevice::of_file(file, Path::new(&self.name), false)
    }

    fn blocks(&self) -> SealedBlocks {
        SealedBlocks {
            header_bytes: HEADER_BYTES,
            block_bytes: PLAIN_BLOCK_BYTES,
            // An empty file has none, and no blocks.
            id: self.id.unwrap_or_default(),
        }
    }

    fn key(&self) -> &[u8] {
        &self.dir.content_key()[..]
    }
}

impl BlockDevice for CryptDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, block_bytes: PLAIN_BLOCK_BYTES, optimal_bytes: 1 << 20 }
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> block::Result<()> {
        self.check_range(offset, buffer.len() as u64)?;
        let got = self.file.read_at(buffer, offset).map_err(|error| error.about(&self.name))?;
        if got == buffer.len() {
            return Ok(());
        }
        let detail = format!(
            "reading {} bytes at offset {offset} reached the end of the file after {got}: it was truncated while it was open",
            buffer.len()
        );
        Err(block::Error::new(block::ErrorKind::Read, &self.name, detail))
    }

    fn write(&self, _: u64, _: &[u8]) -> block::Result<()> {
        Err(self.read_only())
    }

    fn flush(&self) -> block::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> block::Result<()> {
        Err(self.read_only())
    }
}
