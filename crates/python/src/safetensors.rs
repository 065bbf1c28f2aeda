//! Headers of safetensors files for `bifolio.safetensors`, which makes tensors of them.

use crate::error::{SafetensorError, of_request};
use crate::header::{self, Header, LENGTH_BYTES};
use crate::life::{begin, detached};
use bifolio_device::{DeviceChoice, DeviceId};
use bifolio_io::{Error as IoError, OpenFile, process};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A header, or why there is none.
enum Problem {
    Io(IoError),
    Header(String),
}

/// The header of a file: its metadata (None or a dictionary), where its data begin, and its tensors in their
/// order, as tuples of name, type, shape, first byte and end in the data.
#[pyfunction]
#[allow(clippy::type_complexity, reason = "a tuple for Python")]
pub(crate) fn read_header(
    py: Python<'_>,
    path: PathBuf,
) -> PyResult<(Option<Bound<'_, PyDict>>, u64, Vec<Bound<'_, PyTuple>>)> {
    begin()?;
    let read = detached(py, || read(&path)).map_err(|problem| match problem {
        Problem::Io(error) => of_request(&error),
        Problem::Header(why) => SafetensorError::new_err(format!("{}: {why}", path.display())),
    });
    let (Header { metadata, tensors }, data_start) = read?;
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

/// Reads and checks the header: through the page cache, as it is short, and of sets, too.
fn read(path: &std::path::Path) -> Result<(Header, u64), Problem> {
    let file = OpenFile::open(path).map_err(Problem::Io)?;
    let size = file.size().map_err(Problem::Io)?;
    let mut first = [0; LENGTH_BYTES as usize];
    if read_at(&file, &mut first, 0).map_err(Problem::Io)? < first.len() {
        let why = format!("a file of {size} bytes is no safetensors file: the length of its header alone has eight");
        return Err(Problem::Header(why));
    }
    let length = header::length(first, size).map_err(Problem::Header)?;
    let mut text = vec![0; length as usize];
    let got = read_at(&file, &mut text, LENGTH_BYTES).map_err(Problem::Io)?;
    let data_start = LENGTH_BYTES + length;
    let header = header::parse(&text[..got], size - data_start).map_err(Problem::Header)?;
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
