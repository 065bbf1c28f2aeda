//! Files of packets.
//!
//! ```text
//!   source     bytes of a file or a stream, gzip undone, with positions and seeking
//!   link       link types: their names, and where the network header begins
//!   pcap       tcpdump's files, read and written
//!   pcapng     the files of sections and blocks, read and written
//!   reader     either of the two, told apart by the first bytes
//!   tcpdump    packets from tcpdump's lines
//!   summary/   IP summary dumps: a line or a binary record for each packet
//!   output     where written files go: a file, standard output, gzip around it
//! ```
//!
//! Nothing here trusts a file: memory grows with bytes that arrived, never with lengths that a file claims, and a file
//! that ends inside a packet delivers all packets before it, then one error that names file and offset.

mod link;
mod output;
mod pcap;
mod pcapng;
mod reader;
mod source;
pub mod summary;
mod tcpdump;

pub use link::{LinkType, NetworkHeader};
pub use output::Output;
pub use pcap::{PcapOptions, PcapWriter};
pub use pcapng::PcapNgWriter;
pub use reader::{Reader, Record};
pub use source::Source;
pub use tcpdump::TcpdumpReader;

use crate::error::reason;
use std::fmt;
use std::io;

/// The most bytes of a packet that a file may hold: tcpdump's limit. A header that claims more is damaged.
pub const PACKET_LEN_MAX: usize = 262_144;

/// What is wrong with a file of packets.
#[derive(Debug)]
pub struct Error {
    file: String,
    what: String,
    source: Option<io::Error>,
}

impl Error {
    /// A sentence about a file, such as `not a tcpdump file (bad magic number)`.
    pub fn new(file: &str, what: impl fmt::Display) -> Self {
        Self { file: file.to_owned(), what: what.to_string(), source: None }
    }

    /// What the system said about a file.
    pub fn io(file: &str, error: io::Error) -> Self {
        Self { file: file.to_owned(), what: reason(&error), source: Some(error) }
    }

    /// The file's name, as it was given; `<stdin>` for standard input.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Whether the file is not there.
    pub fn is_missing(&self) -> bool {
        self.source.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

/// Reads integers in the byte order of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, bytes: &[u8]) -> u16 {
        let bytes = [bytes[0], bytes[1]];
        if self == Self::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }
    }

    fn u32(self, bytes: &[u8]) -> u32 {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if self == Self::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
    }
}
