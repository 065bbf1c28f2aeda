//! Volumes and encrypted files, opened for reading: what is encrypted or redundant on storage is plain in the
//! caller's memory, and on a GPU it was plain nowhere else.

use crate::buffer::{Lent, Role};
use crate::count::Count;
use crate::error::{bad, of_directory, of_volume};
use crate::extents::extents_of;
use crate::life::{READ, Shared, begin, detached};
use bifolio_compute::keyed::PerDevice;
use bifolio_crypt::{CryptDevice, Key};
use bifolio_io::Router;
use bifolio_volume::{Error, ErrorKind, Load, Loader, OpenOptions, Sealed, Unlock};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyByteArray, PyBytes};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use zeroize::Zeroizing;

/// As cryptsetup's limit on key files.
const KEY_BYTES_MAX: usize = 8 << 20;

/// A passphrase as Python has it: bytes, or text, which is taken as UTF-8.
#[derive(FromPyObject)]
pub(crate) enum Secret<'py> {
    Text(PyBackedStr),
    Bytes(Bound<'py, PyBytes>),
    Changeable(Bound<'py, PyByteArray>),
}

impl Secret<'_> {
    /// A copy that is cleared; the object is the program's, which can clear a bytearray itself.
    pub(crate) fn bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::Bytes(bytes) => bytes.as_bytes().to_vec(),
            Self::Changeable(bytes) => bytes.to_vec(),
        })
    }
}

/// Opens a volume for reading: one image file or block device, or the members of an array. A LUKS volume needs its
/// passphrase as `key`, or the path of a key file, all of whose bytes count.
#[pyfunction]
#[pyo3(signature = (*images, key = None, key_file = None))]
pub(crate) fn open_volume(
    py: Python<'_>,
    images: Vec<PathBuf>,
    key: Option<Secret<'_>>,
    key_file: Option<PathBuf>,
) -> PyResult<Volume> {
    begin()?;
    if key.is_some() && key_file.is_some() {
        return Err(bad("pass key or key_file, not both"));
    }
    let key = key.as_ref().map(Secret::bytes);
    let opened = detached(py, || {
        let ask = |name: &str| match (&key, &key_file) {
            (Some(key), _) => Ok(key.clone()),
            (None, Some(file)) => read_key(file),
            (None, None) => Err(Error::new(
                ErrorKind::WrongKey,
                name,
                "the volume is encrypted: pass its passphrase as key, or key_file",
            )),
        };
        let is_encrypted = key.is_some() || key_file.is_some();
        bifolio_volume::open(
            &images,
            &OpenOptions { writable: false, unlock: Unlock::default(), key: &ask, is_encrypted, cancel: None },
        )
    });
    opened.map(|opened| Volume::new(opened.device)).map_err(|error| of_volume(&error))
}

/// Opens a file of an encrypted directory for reading.
pub(crate) fn open_encrypted(py: Python<'_>, path: &Path, key: &Secret<'_>) -> PyResult<Volume> {
    let key = key.bytes();
    let opened = detached(py, || CryptDevice::open_path(path, &Key::Passphrase(&key)));
    let file = opened.map_err(|error| of_directory(&error))?;
    Ok(Volume::new(Arc::new(Sealed::of(file).map_err(|error| of_volume(&error))?)))
}

fn read_key(file: &Path) -> bifolio_volume::Result<Zeroizing<Vec<u8>>> {
    let failed = |error| Error::system(file.display(), "reading the key", error);
    let mut source = std::fs::File::open(file).map_err(failed)?;
    // With room for all of it: a vector that grows leaves copies behind.
    let mut bytes = Zeroizing::new(vec![0; KEY_BYTES_MAX + 1]);
    let mut len = 0;
    while len < bytes.len() {
        match source.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if len > KEY_BYTES_MAX {
        let detail = format!("the key file is longer than {KEY_BYTES_MAX} bytes, the most that a key has");
        return Err(Error::new(ErrorKind::WrongKey, file.display(), detail));
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// A volume, or an encrypted file, opened for reading. Any number of threads may use one.
#[pyclass(frozen, module = "bifolio", weakref)]
#[derive(Debug)]
pub(crate) struct Volume {
    /// None once it was closed.
    open: RwLock<Option<Shared<Open>>>,
    name: String,
    size: u64,
}

/// What ends without the interpreter's lock, as devices are waited for.
#[derive(Debug)]
struct Open {
    device: Arc<dyn Load>,
    /// With streams and scratch memory that one request leaves to the next.
    loaders: PerDevice<Loader>,
}

impl Open {
    fn loader(&self, router: &Arc<Router>) -> Arc<Loader> {
        let made = self.loaders.get(router.device(), || Ok(Loader::new(Arc::clone(router), READ.clone())));
        made.expect("making a loader asks nothing of the device")
    }
}

impl Volume {
    pub(crate) fn new(device: Arc<dyn Load>) -> Self {
        let (name, size) = (device.name(), device.geometry().size);
        let open = Open { device, loaders: PerDevice::default() };
        Self { open: RwLock::new(Some(Shared::new(open))), name, size }
    }

    pub(crate) fn device(&self) -> PyResult<Arc<dyn Load>> {
        Ok(Arc::clone(&self.opened()?.device))
    }

    fn opened(&self) -> PyResult<Shared<Open>> {
        begin()?;
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| PyValueError::new_err(format!("{}: the volume is closed", self.name)))
    }
}

#[pymethods]
impl Volume {
    /// Reads plain bytes, from `offset` on, to the start of a buffer, and waits. Without a length the buffer is filled.
    /// Returns how many bytes were read, which are fewer only at the end. `buffer_offset` is where the bytes go, from
    /// the start of the buffer.
    ///
    /// Into a GPU's memory what is stored crosses the link, and is decrypted, verified or recovered there.
    #[pyo3(signature = (buffer, offset = Count(0), length = None, *, buffer_offset = Count(0)),
           text_signature = "($self, buffer, offset=0, length=None, *, buffer_offset=0)")]
    fn read_into(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: Count,
        length: Option<Count>,
        buffer_offset: Count,
    ) -> PyResult<u64> {
        let (open, offset) = (self.opened()?, offset.0);
        let mut lent = Lent::by(buffer, Role::Destination)?;
        lent.skip(buffer_offset.0)?;
        let asked = length.map_or(lent.bytes, |length| length.0);
        if asked > lent.bytes {
            let room = lent.bytes;
            let sentence =
                format!("{}, offset {offset}: cannot read {asked} bytes into a buffer with room for {room}", self.name);
            return Err(bad(sentence));
        }
        let bytes = asked.min(self.size.saturating_sub(offset));
        if bytes == 0 {
            return Ok(0);
        }
        let (router, slice, producer) = (&lent.router, lent.first(bytes), lent.producer);
        let outcome = detached(buffer.py(), || {
            let loader = open.loader(router);
            Lent::settle(router, producer).map_err(|error| loader.failed(error))?;
            open.device.load(&loader, offset, slice)
        });
        outcome.map(|()| bytes).map_err(|error| of_volume(&error))
    }

    /// Reads many extents by one call, and waits: each is (offset, length, place), where the place counts from the start
    /// of the buffer. None may reach beyond the end, and they may not overlap in the buffer. Returns how many bytes
    /// were read.
    fn read_batch(&self, buffer: &Bound<'_, PyAny>, extents: &Bound<'_, PyAny>) -> PyResult<u64> {
        let open = self.opened()?;
        let extents = extents_of(extents)?;
        let lent = Lent::by(buffer, Role::Destination)?;
        let (router, slice, producer) = (&lent.router, lent.first(lent.bytes), lent.producer);
        let outcome = detached(buffer.py(), || {
            let loader = open.loader(router);
            Lent::settle(router, producer).map_err(|error| loader.failed(error))?;
            open.device.load_extents(&loader, &extents, slice)
        });
        let bytes = extents.iter().map(|extent| extent.length).sum();
        outcome.map(|()| bytes).map_err(|error| of_volume(&error))
    }

    /// Forgets the key and lets go of the files. Requests under way go on.
    fn close(&self, py: Python<'_>) {
        let open = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        detached(py, || drop(open));
    }

    /// Plain bytes, as of when it was opened.
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    /// What it is made of: the path of its file, or the layers with their files.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __len__(&self) -> usize {
        self.size as usize
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, pyo3::types::PyTuple>) {
        let _ = exception;
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<bifolio.Volume {:?}, {} bytes>", self.name, self.size)
    }
}
