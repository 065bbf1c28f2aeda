//! The bytes of a file or a stream.
//!
//! A window of the bytes lies in memory and moves forward. It grows only as far as bytes arrive, so a caller may ask for
//! as many as a file claims to have. What is compressed with gzip is read as its contents; positions count those.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

use flate2::read::MultiGzDecoder;

use super::Error;
use crate::error::reason;

/// Bytes asked for at once, and the size of a window.
const WINDOW: usize = 256 * 1024;
/// The first bytes of a gzip member.
const GZIP: [u8; 2] = [0x1F, 0x8B];

/// A file or a stream, read from its beginning to its end.
pub struct Source {
    name: String,
    body: Body,
    window: Vec<u8>,
    /// The first byte in the window that is not consumed.
    begin: usize,
    /// Behind the last byte in the window.
    end: usize,
    /// Where in the contents the window begins.
    offset: u64,
    /// Set once the end, or an error, was met.
    done: bool,
    failure: Option<io::Error>,
}

enum Body {
    File(File),
    Gzip(Box<MultiGzDecoder<File>>),
    Stream(Box<dyn Read + Send>),
}

impl Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(into),
            Self::Gzip(decoder) => decoder.read(into),
            Self::Stream(stream) => stream.read(into),
        }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("name", &self.name).field("position", &self.position()).finish_non_exhaustive()
    }
}

impl Source {
    /// Opens a file; `-` is standard input. Whether it is compressed is told by its first bytes, not by its name.
    ///
    /// # Errors
    /// A file that is not there or cannot be read.
    pub fn open(name: &str) -> Result<Self, Error> {
        if name == "-" || name.is_empty() {
            return Self::stream("<stdin>", Box::new(io::stdin()));
        }
        let io = |error| Error::io(name, error);
        let file = File::open(name).map_err(io)?;
        if file.metadata().map_err(io)?.is_file() { Self::file(name, file) } else { Self::stream(name, Box::new(file)) }
    }

    fn file(name: &str, mut file: File) -> Result<Self, Error> {
        let io = |error| Error::io(name, error);
        let mut first = Vec::with_capacity(2);
        file.by_ref().take(2).read_to_end(&mut first).map_err(io)?;
        file.rewind().map_err(io)?;
        let gzip = first == GZIP;
        let body = if gzip { Body::Gzip(Box::new(MultiGzDecoder::new(file))) } else { Body::File(file) };
        Ok(Self::new(name, body))
    }

    /// What a stream delivers, gzip undone; `name` stands in messages.
    ///
    /// # Errors
    /// The first bytes cannot be read.
    pub fn stream(name: &str, mut stream: Box<dyn Read + Send>) -> Result<Self, Error> {
        let mut first = Vec::with_capacity(2);
        stream.by_ref().take(2).read_to_end(&mut first).map_err(|error| Error::io(name, error))?;
        let gzip = first == GZIP;
        let whole = Cursor::new(first).chain(stream);
        let body: Box<dyn Read + Send> = if gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Self::new(name, Body::Stream(body)))
    }

    /// Bytes in memory; never decompressed.
    pub fn bytes(name: &str, bytes: Vec<u8>) -> Self {
        Self::new(name, Body::Stream(Box::new(Cursor::new(bytes))))
    }

    fn new(name: &str, body: Body) -> Self {
        let name = name.to_owned();
        Self { name, body, window: Vec::new(), begin: 0, end: 0, offset: 0, done: false, failure: None }
    }

    /// The name that stands in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes of the contents are consumed.
    pub fn position(&self) -> u64 {
        self.offset + self.begin as u64
    }

    /// The file's length in bytes, where that is that of its contents: none for streams and compressed files.
    pub fn file_len(&self) -> Option<u64> {
        match &self.body {
            Body::File(file) => file.metadata().ok().map(|data| data.len()),
            _ => None,
        }
    }

    /// Whether all bytes are consumed. Reads where that is not known yet.
    pub fn at_end(&mut self) -> bool {
        !self.fill(1)
    }

    /// The next bytes that lie in memory, at least `want` unless fewer are left.
    pub fn peek(&mut self, want: usize) -> &[u8] {
        self.fill(want);
        &self.window[self.begin..self.end]
    }

    /// The next `len` bytes, or none, and nothing consumed, where fewer are left.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&[u8]> {
        if self.end - self.begin < len && !self.fill(len) {
            return None;
        }
        let begin = self.begin;
        self.begin += len;
        Some(&self.window[begin..begin + len])
    }

    /// The bytes consumed last; `len` is at most what the last `take` took.
    #[inline]
    pub(super) fn taken(&self, len: usize) -> &[u8] {
        &self.window[self.begin - len..self.begin]
    }

    /// Consumes `len` bytes, however many; false where fewer are left.
    pub fn skip(&mut self, len: u64) -> bool {
        let mut left = len;
        loop {
            let here = left.min((self.end - self.begin) as u64);
            self.begin += here as usize;
            left -= here;
            if left == 0 {
                return true;
            }
            if !self.fill(1) {
                return false;
            }
        }
    }

    /// Takes the error that ended the bytes, if one did.
    ///
    /// # Errors
    /// What the system or the decompression said.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.failure.take() {
            Some(error) => {
                let text = format!("read failed at offset {}: {}", self.offset + self.end as u64, reason(&error));
                Err(Error { file: self.name.clone(), what: text, source: Some(error) })
            }
            None => Ok(()),
        }
    }

    /// Moves to a position in the contents. Compressed files are read from their beginning; streams only go forward.
    ///
    /// # Errors
    /// A position behind the end, or before what a stream has delivered.
    pub fn seek(&mut self, position: u64) -> Result<(), Error> {
        if (self.offset..=self.offset + self.end as u64).contains(&position) {
            self.begin = (position - self.offset) as usize;
            return Ok(());
        }
        if self.file_len().is_some_and(|len| position > len) {
            return Err(Error::new(&self.name, "FILEPOS out of range"));
        }
        let name = self.name.clone();
        self.reposition(position).map_err(|error| Error::io(&name, error))?;
        let ahead = position.saturating_sub(self.position());
        if self.position() > position || !self.skip(ahead) {
            return Err(Error::new(&self.name, "FILEPOS out of range"));
        }
        Ok(())
    }

    /// Goes to the position, or to one before it.
    fn reposition(&mut self, position: u64) -> io::Result<()> {
        let behind = self.offset > position;
        let begin = match &mut self.body {
            Body::File(file) => file.seek(SeekFrom::Start(position))?,
            Body::Gzip(decoder) if behind => {
                let mut file = decoder.get_ref().try_clone()?;
                file.rewind()?;
                **decoder = MultiGzDecoder::new(file);
                0
            }
            _ => return Ok(()),
        };
        (self.begin, self.end, self.offset, self.done, self.failure) = (0, 0, begin, false, None);
        Ok(())
    }

    /// Reads until `want` bytes lie in the window; false where fewer are left.
    #[cold]
    fn fill(&mut self, want: usize) -> bool {
        while self.end - self.begin < want && !self.done {
            self.make_room();
            match self.body.read(&mut self.window[self.end..]) {
                Ok(0) => self.done = true,
                Ok(got) => self.end += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => (self.done, self.failure) = (true, Some(error)),
            }
        }
        self.end - self.begin >= want
    }

    /// Makes at least half a window free behind the bytes: what is consumed goes, then the window doubles.
    fn make_room(&mut self) {
        if self.begin > 0 {
            self.window.copy_within(self.begin..self.end, 0);
            self.offset += self.begin as u64;
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.window.len() - self.end < WINDOW / 2 {
            let len = (self.window.len() * 2).max(WINDOW);
            self.window.resize(len, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bifolio_testing::{noise, seed};
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// Takes and skips pieces of random sizes, and compares each with the bytes that a source was made of.
    fn walk(source: &mut Source, bytes: &[u8], random: &mut fastrand::Rng) {
        let mut at = source.position() as usize;
        while at < bytes.len() {
            let len = random.usize(1..WINDOW).min(bytes.len() - at);
            if random.bool() {
                assert_eq!(source.take(len).unwrap(), &bytes[at..at + len]);
                assert_eq!(source.taken(len), &bytes[at..at + len]);
            } else {
                assert!(source.skip(len as u64));
            }
            at += len;
            assert_eq!(source.position(), at as u64);
        }
        assert!(source.take(1).is_none() && source.at_end() && source.peek(9).is_empty());
        source.check().unwrap();
    }

    #[test]
    fn all_kinds_of_sources_deliver_the_same_bytes() {
        let seed = seed();
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes = noise(random.usize(1..3 * WINDOW), seed);
        let (plain, packed) = (file(&bytes), file(&gzip(&bytes)));
        let name = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
        for mut source in [
            Source::bytes("x", bytes.clone()),
            Source::stream("x", Box::new(Cursor::new(gzip(&bytes)))).unwrap(),
            Source::open(&name(&plain)).unwrap(),
            Source::open(&name(&packed)).unwrap(),
        ] {
            walk(&mut source, &bytes, &mut random);
        }
    }

    #[test]
    fn files_seek_to_any_position_and_streams_go_forward() {
        let seed = seed();
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes = noise(2 * WINDOW, seed);
        for file in [file(&bytes), file(&gzip(&bytes))] {
            let mut source = Source::open(file.path().to_str().unwrap()).unwrap();
            for _ in 0..20 {
                let at = random.usize(..bytes.len());
                source.seek(at as u64).unwrap();
                let len = random.usize(1..=bytes.len() - at);
                assert_eq!(source.take(len).unwrap(), &bytes[at..at + len]);
            }
            assert!(source.seek(bytes.len() as u64 + 1).unwrap_err().to_string().ends_with("FILEPOS out of range"));
            source.seek(0).unwrap();
            walk(&mut source, &bytes, &mut random);
        }
        let mut stream = Source::stream("x", Box::new(Cursor::new(bytes.clone()))).unwrap();
        stream.seek(WINDOW as u64 + 3).unwrap();
        assert_eq!(stream.take(5).unwrap(), &bytes[WINDOW + 3..][..5]);
    }

    #[test]
    fn a_cut_gzip_file_delivers_what_it_has_then_fails() {
        let bytes = noise(100_000, seed());
        let mut packed = gzip(&bytes);
        packed.truncate(packed.len() / 2);
        let mut source = Source::stream("cut.gz", Box::new(Cursor::new(packed))).unwrap();
        let mut got = Vec::new();
        while let Some(byte) = source.take(1) {
            got.push(byte[0]);
        }
        assert!(got.len() > 1000 && bytes.starts_with(&got));
        assert!(source.check().unwrap_err().to_string().starts_with("cut.gz: read failed at offset "));
    }

    #[test]
    fn asking_for_more_than_there_is_allocates_no_more_than_there_is() {
        let mut source = Source::bytes("x", vec![7; 1000]);
        assert!(source.take(usize::MAX / 2).is_none());
        assert!(source.window.len() <= 2 * WINDOW);
        assert_eq!(source.take(1000).unwrap(), [7; 1000]);
    }
}
