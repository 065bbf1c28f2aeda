//! Headers of safetensors files for `bifolio.safetensors`, which makes tensors of them.

use crate::error::{SafetensorError, of_request, of_volume};
use crate::header::{self, Header, LENGTH_BYTES};
use crate::life::{begin, detached};
use crate::volume::Volume;
use bifolio_device::{DeviceChoice, DeviceId};
use bifolio_io::{Error as IoError, OpenFile, process};
use bifolio_volume::Load;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A header, or why there is none.
enum Problem {
    Io(IoError),
    Volume(bifolio_volume::Error),
    Header(String),
}

/// Where a header is read from.
#[derive(FromPyObject)]
pub(crate) enum Source<'py> {
    Volume(Bound<'py, Volume>),
    Path(PathBuf),
}

/// The header of a file or volume: its metadata (None or a dictionary), where its data begin, and its tensors in their
/// order, as tuples of name, type, shape, first byte and end in the data.
#[pyfunction]
#[allow(clippy::type_complexity, reason = "a tuple for Python")]
pub(crate) fn read_header<'py>(
    py: Python<'py>,
    source: Source<'py>,
) -> PyResult<(Option<Bound<'py, PyDict>>, u64, Vec<Bound<'py, PyTuple>>)> {
    begin()?;
    let (read, name) = match source {
        Source::Path(path) => (detached(py, || read(&PlainText::open(&path)?)), path.display().to_string()),
        Source::Volume(volume) => {
            let device = volume.get().device()?;
            (detached(py, || read(&*device)), device.name())
        }
    };
    let (Header { metadata, tensors }, data_start) = read.map_err(|problem| match problem {
        Problem::Io(error) => of_request(&error),
        Problem::Volume(error) => of_volume(&error),
        Problem::Header(why) => SafetensorError::new_err(format!("{name}: {why}")),
    })?;
    let metadata = metadata.map(|texts| -> PyResult<_> {
        let dict = PyDict::new(py);
        texts.into_iter().try_for_each(|(key, text)| dict.set_item(key, text))?;
        Ok(dict)
    });
    let tensor = |tensor: header::Tensor| {
        let shape = PyTuple::new(py, tensor.shape)?;
        (tensor.name, format!("{:?}", tensor.dtype), shape, tensor.begin, tensor.end).into_pyobject(py)
    };
    Ok((metadata.transpose()?, data_start, tensors.into_iter().map(tensor).collect::<PyResult<_>>()?))
}

/// What has a header at its beginning.
trait Text {
    fn size(&self) -> Result<u64, Problem>;

    /// Fills the bytes as far as there are any; how many.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Problem>;
}

/// A file, read through the page cache, as a header is short.
struct PlainText(OpenFile);

impl PlainText {
    fn open(path: &Path) -> Result<Self, Problem> {
        OpenFile::open(path).map(Self).map_err(Problem::Io)
    }
}

impl Text for PlainText {
    fn size(&self) -> Result<u64, Problem> {
        self.0.size().map_err(Problem::Io)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Problem> {
        read_at(&self.0, bytes, offset).map_err(Problem::Io)
    }
}

impl Text for dyn Load + '_ {
    fn size(&self) -> Result<u64, Problem> {
        Ok(self.geometry().size)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Problem> {
        let there = self.geometry().size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        self.read(offset, &mut bytes[..there]).map_err(|error| Problem::Volume(error.into()))?;
        Ok(there)
    }
}

/// Reads and checks the header.
fn read(text: &(impl Text + ?Sized)) -> Result<(Header, u64), Problem> {
    let size = text.size()?;
    let mut first = [0; LENGTH_BYTES as usize];
    if text.read_at(&mut first, 0)? < first.len() {
        let why = format!("not a safetensors file: {size} bytes are too few for the length of a header");
        return Err(Problem::Header(why));
    }
    let length = header::length(first, size).map_err(Problem::Header)?;
    let mut bytes = vec![0; length as usize];
    let got = text.read_at(&mut bytes, LENGTH_BYTES)?;
    let data_start = LENGTH_BYTES + length;
    let header = header::parse(&bytes[..got], size - data_start).map_err(Problem::Header)?;
    Ok((header, data_start))
}

/// Reads through the page cache. Only sets need a router for that, which has threads to start.
fn read_at(file: &OpenFile, bytes: &mut [u8], offset: u64) -> Result<usize, IoError> {
    if file.layout().is_some() {
        return process::router(DeviceChoice::Exactly(DeviceId::HOST))?.read_to_host(file, bytes, offset);
    }
    let mut got = 0;
    while got < bytes.len() {
        match file.buffered().read_at(&mut bytes[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(read) => got += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(IoError::system(file.path(), "reading its header", error).at(offset)),
        }
    }
    Ok(got)
}
