//! tcpdump's files: a header of 24 bytes, then packets, each behind a header of 16.
//!
//! Files come in both byte orders, with microseconds or nanoseconds, and in a "modified" form whose packet headers are
//! eight bytes longer. Versions before 2.4 may have the two lengths of a packet exchanged.

use std::io::{self, Write};

use super::{Error, LinkType, Order, PACKET_LEN_MAX, Record, Source};

const MICRO: u32 = 0xA1B2_C3D4;
const NANO: u32 = 0xA1B2_3C4D;
const MODIFIED: u32 = 0xA1B2_CD34;

/// What the header of a file says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pcap {
    order: Order,
    nano: bool,
    minor: u16,
    link: LinkType,
    /// Bytes of a packet's header.
    header_len: usize,
}

/// A packet's header, checked.
struct Header {
    time_ns: i64,
    /// Bytes in the file.
    stored: usize,
    /// How many of them are the packet's.
    captured: usize,
    wire_len: u32,
}

impl Pcap {
    /// Consumes a file's header.
    pub(super) fn open(source: &mut Source) -> Result<Self, Error> {
        let Some(header) = source.take(24) else {
            source.check()?;
            return Err(Error::new(source.name(), "not a tcpdump file (too short)"));
        };
        let order = match [Order::Little, Order::Big].map(|order| order.u32(header)) {
            [MICRO | NANO | MODIFIED, _] => Order::Little,
            [_, MICRO | NANO | MODIFIED] => Order::Big,
            _ => return Err(Error::new(source.name(), "not a tcpdump file (bad magic number)")),
        };
        let (magic, major, minor) = (order.u32(header), order.u16(&header[4..]), order.u16(&header[6..]));
        // The upper half tells of frame check sequences.
        let link = LinkType::from_file(order.u32(&header[20..]) & 0xFFFF);
        if major != 2 {
            return Err(Error::new(source.name(), format_args!("unknown major version {major}")));
        }
        let header_len = if magic == MODIFIED { 24 } else { 16 };
        Ok(Self { order, nano: magic == NANO, minor, link, header_len })
    }

    pub(super) fn link(&self) -> LinkType {
        self.link
    }

    /// The next packet; none at the end.
    #[inline]
    pub(super) fn read<'a>(&self, source: &'a mut Source) -> Result<Option<Record<'a>>, Error> {
        let offset = source.position();
        let Some(bytes) = source.take(self.header_len) else {
            return if source.at_end() { source.check().map(|()| None) } else { Err(cut(source, offset)) };
        };
        let Some(header) = self.header(bytes) else {
            return Err(Error::new(source.name(), format_args!("bad packet header at offset {offset}; giving up")));
        };
        if source.take(header.stored).is_none() {
            return Err(cut(source, offset));
        }
        let data = &source.taken(header.stored)[..header.captured];
        Ok(Some(Record { time_ns: header.time_ns, data, wire_len: header.wire_len, link: self.link, offset }))
    }

    fn header(&self, bytes: &[u8]) -> Option<Header> {
        let [sec, sub, first, second] = [0, 4, 8, 12].map(|at| self.order.u32(&bytes[at..]));
        let exchanged = self.minor < 3 || (self.minor == 3 && first > second);
        let (stored, wire_len) = if exchanged { (second, first) } else { (first, second) };
        let stored = stored as usize;
        if stored > PACKET_LEN_MAX {
            return None;
        }
        let sub_ns = i64::from(sub) * if self.nano { 1 } else { 1000 };
        let time_ns = i64::from(sec) * 1_000_000_000 + sub_ns;
        // Some programs (tcptrace) store a byte more than the packet has.
        Some(Header { time_ns, stored, captured: stored.min(wire_len as usize), wire_len })
    }
}

/// The error for a file that ends inside a packet, or could not be read further.
pub(super) fn cut(source: &mut Source, offset: u64) -> Error {
    let error = format!("the file ends inside the packet at offset {offset}");
    source.check().err().unwrap_or_else(|| Error::new(source.name(), error))
}

/// How a file is written.
#[derive(Debug, Clone, Copy)]
pub struct PcapOptions {
    /// What each packet begins with.
    pub link: LinkType,
    /// The most bytes that are written of a packet.
    pub snaplen: u32,
    /// Nanoseconds, not microseconds.
    pub nano: bool,
}

/// Writes a file of tcpdump's, in little-endian byte order.
#[derive(Debug)]
pub struct PcapWriter<W> {
    out: W,
    options: PcapOptions,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file's header.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn new(mut out: W, options: PcapOptions) -> io::Result<Self> {
        let mut header = [0; 24];
        header[..4].copy_from_slice(&if options.nano { NANO } else { MICRO }.to_le_bytes());
        (header[4], header[6]) = (2, 4);
        header[16..20].copy_from_slice(&options.snaplen.to_le_bytes());
        header[20..].copy_from_slice(&options.link.0.to_le_bytes());
        out.write_all(&header)?;
        Ok(Self { out, options })
    }

    /// Writes a packet that had `wire_len` bytes, as many of which as there are, and are wanted, in `data`.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn write(&mut self, time_ns: i64, data: &[u8], wire_len: u32) -> io::Result<()> {
        let data = &data[..data.len().min(self.options.snaplen as usize)];
        let (sec, ns) = (time_ns.div_euclid(1_000_000_000), time_ns.rem_euclid(1_000_000_000) as u32);
        let sub = if self.options.nano { ns } else { ns / 1000 };
        let mut header = [0; 16];
        for (at, value) in [(0, sec as u32), (4, sub), (8, data.len() as u32), (12, wire_len)] {
            header[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        self.out.write_all(&header)?;
        self.out.write_all(data)
    }

    /// What is written to.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.out
    }
}
