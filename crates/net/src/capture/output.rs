//! Where a written file goes.

use std::fs::File;
use std::io::{self, BufWriter, Stdout, Write};

use flate2::{Compression, write::GzEncoder};

use super::Error;

/// Bytes collected before they are written.
const BUFFER: usize = 64 * 1024;

/// A file that is written, compressed with gzip where its name ends in `.gz`, or standard output.
pub struct Output {
    name: String,
    body: Body,
}

enum Body {
    File(File),
    Buffered(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
    Stdout(BufWriter<Stdout>),
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Output {
    /// Creates a file, or empties it; `-` is standard output. Without `buffered` each write goes to the system at once,
    /// except into compressed files.
    ///
    /// # Errors
    /// A file that cannot be written; a name that asks for a compression that is not here.
    pub fn create(name: &str, buffered: bool) -> Result<Self, Error> {
        if name == "-" {
            return Ok(Self { name: "<stdout>".into(), body: Body::Stdout(BufWriter::new(io::stdout())) });
        }
        if [".bz2", ".Z", ".xz", ".zst"].iter().any(|suffix| name.ends_with(suffix)) {
            return Err(Error::new(name, "can compress with gzip only; name the file .gz"));
        }
        let file = File::create(name).map_err(|error| Error::io(name, error))?;
        let body = if name.strip_suffix(".gz").is_some() {
            Body::Gzip(Box::new(GzEncoder::new(BufWriter::with_capacity(BUFFER, file), Compression::default())))
        } else if buffered {
            Body::Buffered(BufWriter::with_capacity(BUFFER, file))
        } else {
            Body::File(file)
        };
        Ok(Self { name: name.into(), body })
    }

    /// The file's name; `<stdout>` for standard output.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes what is collected, and ends a compressed file.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn finish(mut self) -> Result<(), Error> {
        let result = match &mut self.body {
            Body::Gzip(encoder) => encoder.try_finish().and_then(|()| encoder.get_mut().flush()),
            _ => self.flush(),
        };
        result.map_err(|error| Error::io(&self.name, error))
    }

    fn body(&mut self) -> &mut dyn Write {
        match &mut self.body {
            Body::File(file) => file,
            Body::Buffered(file) => file,
            Body::Gzip(file) => file,
            Body::Stdout(stdout) => stdout,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.body().write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.body {
            Body::Buffered(file) => file.write_all(bytes),
            _ => self.body().write_all(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.body().flush()
    }
}

#[cfg(test)]
mod tests {
    use bifolio_testing::{noise, seed};

    use super::super::Source;
    use super::*;

    #[test]
    fn files_are_read_as_written_whatever_their_form() {
        let bytes = noise(200_000, seed());
        let folder = tempfile::tempdir().unwrap();
        for (name, buffered) in [("a", true), ("b", false), ("c.gz", true)] {
            let path = folder.path().join(name);
            let path = path.to_str().unwrap();
            let mut output = Output::create(path, buffered).unwrap();
            for piece in bytes.chunks(777) {
                output.write_all(piece).unwrap();
            }
            output.finish().unwrap();
            assert_eq!(std::fs::read(path).unwrap() == bytes, name.strip_suffix(".gz").is_none());
            assert_eq!(Source::open(path).unwrap().take(bytes.len()).unwrap(), bytes);
        }
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        assert_eq!(Output::create("/", true).unwrap_err().to_string(), "/: Is a directory");
        let error = Output::create("x.bz2", true).unwrap_err().to_string();
        assert_eq!(error, "x.bz2: can compress with gzip only; name the file .gz");
    }
}
