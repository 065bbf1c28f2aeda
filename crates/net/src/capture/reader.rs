//! Reads files of packets, whichever of the two forms they have.

use super::pcap::Pcap;
use super::pcapng::{PcapNg, SECTION};
use super::{Error, LinkType, Source};

/// A packet of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured, in nanoseconds since the epoch.
    pub time_ns: i64,
    /// The bytes that were kept of it.
    pub data: &'a [u8],
    /// How many bytes it had; at least as many as are kept.
    pub wire_len: u32,
    /// What it begins with.
    pub link: LinkType,
    /// Where in the contents of the file its header begins.
    pub offset: u64,
}

/// Reads the packets of a file in their order.
///
/// After an error there are no more packets, until [`Reader::seek`].
#[derive(Debug)]
pub struct Reader {
    source: Source,
    form: Form,
    ended: bool,
}

#[derive(Debug)]
enum Form {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

impl Reader {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no packets by its first bytes.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::new(Source::open(name)?)
    }

    /// Reads the header of a file.
    ///
    /// # Errors
    /// Bytes that cannot be read, or are not of a file of packets.
    pub fn new(mut source: Source) -> Result<Self, Error> {
        let first = source.peek(24);
        let form = if first.is_empty() {
            source.check()?;
            return Err(Error::new(source.name(), "empty file"));
        } else if first.starts_with(&SECTION.to_be_bytes()) {
            Form::PcapNg(PcapNg::open(&mut source)?)
        } else {
            Form::Pcap(Pcap::open(&mut source)?)
        };
        Ok(Self { source, form, ended: false })
    }

    /// What packets begin with: in a file with several interfaces, those of the first.
    pub fn link(&self) -> LinkType {
        match &self.form {
            Form::Pcap(form) => form.link(),
            Form::PcapNg(form) => form.link(),
        }
    }

    /// The next packet; none at the end of the file.
    ///
    /// # Errors
    /// A file that ends inside a packet, or is damaged.
    #[inline]
    pub fn read(&mut self) -> Result<Option<Record<'_>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let result = match &mut self.form {
            Form::Pcap(form) => form.read(&mut self.source),
            Form::PcapNg(form) => form.read(&mut self.source),
        };
        self.ended = !matches!(result, Ok(Some(_)));
        result
    }

    /// Moves to a position in the contents of the file, where a packet has to begin.
    ///
    /// # Errors
    /// A position behind the end; one in what a stream has delivered.
    pub fn seek(&mut self, position: u64) -> Result<(), Error> {
        self.ended = false;
        self.source.seek(position)
    }

    /// How many bytes of the contents are consumed.
    pub fn position(&self) -> u64 {
        self.source.position()
    }

    /// The file's length in bytes; none for streams and compressed files.
    pub fn file_len(&self) -> Option<u64> {
        self.source.file_len()
    }

    /// The name that stands in messages.
    pub fn name(&self) -> &str {
        self.source.name()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
