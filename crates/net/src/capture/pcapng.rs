//! Files of sections and blocks (pcapng).
//!
//! A section has a byte order and interfaces; an interface has a link type and the unit of its times. Packets are in
//! enhanced, simple and obsolete packet blocks; blocks of other kinds are passed over.

use std::io::{self, Write};

use super::pcap::cut;
use super::{Error, LinkType, Order, PACKET_LEN_MAX, PcapOptions, Record, Source};

/// The kind of a section's first block, the same in both byte orders.
pub(super) const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const OBSOLETE: u32 = 2;
const SIMPLE: u32 = 3;
const ENHANCED: u32 = 6;
const ORDER_MAGIC: u32 = 0x1A2B_3C4D;
/// The longest block that is read; blocks that are passed over may be longer.
const BLOCK_LEN_MAX: u32 = 16 << 20;
const NS: u128 = 1_000_000_000;

/// Where a file's reader is.
#[derive(Debug)]
pub(super) struct PcapNg {
    order: Order,
    /// The section's.
    interfaces: Vec<Interface>,
    /// The link type of the file's first interface.
    link: LinkType,
}

#[derive(Debug)]
struct Interface {
    link: LinkType,
    snaplen: u32,
    /// Units of time in a second; none where that is beyond all clocks.
    per_second: Option<u128>,
    /// Seconds to add.
    offset: i64,
}

/// A packet inside of its block, and where the packet's bytes begin there.
struct Packet {
    time_ns: i64,
    begin: usize,
    captured: u32,
    wire_len: u32,
    link: LinkType,
}

impl PcapNg {
    /// Reads until the first interface is known; consumes no packet.
    pub(super) fn open(source: &mut Source) -> Result<Self, Error> {
        let mut reader = Self { order: Order::Little, interfaces: Vec::new(), link: LinkType(u32::MAX) };
        while reader.interfaces.is_empty() && !reader.at_packet(source) {
            let offset = source.position();
            match reader.enter(source)? {
                Some((kind, len)) => reader.note(source, kind, len, offset)?,
                None => break,
            }
        }
        Ok(reader)
    }

    pub(super) fn link(&self) -> LinkType {
        self.link
    }

    /// Whether a packet comes next.
    fn at_packet(&self, source: &mut Source) -> bool {
        let head = source.peek(4);
        head.len() >= 4 && [OBSOLETE, SIMPLE, ENHANCED].contains(&self.order.u32(head))
    }

    /// The next packet; none at the end.
    pub(super) fn read<'a>(&mut self, source: &'a mut Source) -> Result<Option<Record<'a>>, Error> {
        loop {
            let offset = source.position();
            let Some((kind, len)) = self.enter(source)? else { return Ok(None) };
            if !matches!(kind, OBSOLETE | SIMPLE | ENHANCED) {
                self.note(source, kind, len, offset)?;
                continue;
            }
            if len > BLOCK_LEN_MAX || source.take(len as usize).is_none() {
                return Err(bad(source, len, offset));
            }
            let packet = self.packet(kind, source.taken(len as usize));
            let packet = packet.map_err(|what| Error::new(source.name(), format_args!("{what} at offset {offset}")))?;
            let data = &source.taken(len as usize)[packet.begin..][..packet.captured as usize];
            let Packet { time_ns, wire_len, link, .. } = packet;
            return Ok(Some(Record { time_ns, data, wire_len, link, offset }));
        }
    }

    /// Kind and length of the next block, of which nothing is consumed; none at the end.
    fn enter(&mut self, source: &mut Source) -> Result<Option<(u32, u32)>, Error> {
        let offset = source.position();
        let head = source.peek(12);
        if head.is_empty() {
            return source.check().map(|()| None);
        }
        if head.len() < 12 {
            return Err(cut(source, offset));
        }
        if self.order.u32(head) == SECTION {
            self.order = match [Order::Little, Order::Big].map(|order| order.u32(&head[8..])) {
                [ORDER_MAGIC, _] => Order::Little,
                [_, ORDER_MAGIC] => Order::Big,
                _ => return Err(Error::new(source.name(), format_args!("bad byte order magic at offset {offset}"))),
            };
        }
        let (kind, len) = (self.order.u32(head), self.order.u32(&head[4..]));
        if len < 12 || len % 4 != 0 {
            return Err(Error::new(source.name(), format_args!("bad block length {len} at offset {offset}")));
        }
        Ok(Some((kind, len)))
    }

    /// Consumes a block that is no packet's, and keeps what it says of the packets behind it.
    fn note(&mut self, source: &mut Source, kind: u32, len: u32, offset: u64) -> Result<(), Error> {
        if !matches!(kind, SECTION | INTERFACE) {
            return if source.skip(u64::from(len)) { Ok(()) } else { Err(cut(source, offset)) };
        }
        let block = match source.take(len as usize) {
            Some(block) if len <= BLOCK_LEN_MAX => block,
            _ => return Err(bad(source, len, offset)),
        };
        let result = if kind == SECTION { self.section(block) } else { self.interface(block) };
        result.map_err(|what| Error::new(source.name(), format_args!("{what} at offset {offset}")))
    }

    fn section(&mut self, block: &[u8]) -> Result<(), String> {
        if block.len() < 28 {
            return Err("short section header block".into());
        }
        self.check_trailer(block)?;
        self.interfaces.clear();
        match self.order.u16(&block[12..]) {
            1 => Ok(()),
            major => Err(format!("unknown major version {major}")),
        }
    }

    fn interface(&mut self, block: &[u8]) -> Result<(), String> {
        if block.len() < 20 {
            return Err("short interface description block".into());
        }
        self.check_trailer(block)?;
        let link = LinkType::from_file(u32::from(self.order.u16(&block[8..])));
        let mut interface =
            Interface { link, snaplen: self.order.u32(&block[12..]), per_second: Some(1_000_000), offset: 0 };
        self.options(&block[16..block.len() - 4], &mut interface);
        if self.link == LinkType(u32::MAX) {
            self.link = link;
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// Reads the options that tell of time.
    fn options(&self, mut bytes: &[u8], interface: &mut Interface) {
        while bytes.len() >= 4 {
            let (code, len) = (self.order.u16(bytes), usize::from(self.order.u16(&bytes[2..])));
            let Some(value) = bytes.get(4..4 + len) else { return };
            match (code, len) {
                (0, _) => return,
                (9, 1) => interface.per_second = per_second(value[0]),
                (14, 8) => {
                    let halves = [self.order.u32(value), self.order.u32(&value[4..])].map(u64::from);
                    let [high, low] = if self.order == Order::Big { halves } else { [halves[1], halves[0]] };
                    interface.offset = (high << 32 | low) as i64;
                }
                _ => {}
            }
            bytes = bytes.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        }
    }

    fn packet(&self, kind: u32, block: &[u8]) -> Result<Packet, String> {
        self.check_trailer(block)?;
        let header = if kind == SIMPLE { 12 } else { 28 };
        if block.len() < header + 4 {
            return Err("short packet block".into());
        }
        let word = |at: usize| self.order.u32(&block[at..]);
        let number = match kind {
            SIMPLE => 0,
            OBSOLETE => u32::from(self.order.u16(&block[8..])),
            _ => word(8),
        };
        let Some(interface) = self.interfaces.get(number as usize) else {
            return Err(format!("packet of interface {number}, which is not described,"));
        };
        let room = (block.len() - header - 4) as u32;
        let (time_ns, captured, wire_len) = if kind == SIMPLE {
            let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
            (0, word(8).min(room).min(snaplen), word(8))
        } else {
            let units = u64::from(word(12)) << 32 | u64::from(word(16));
            (interface.time_ns(units), word(20), word(24))
        };
        if captured > room || captured as usize > PACKET_LEN_MAX {
            return Err("bad packet header".into());
        }
        Ok(Packet { time_ns, begin: header, captured, wire_len: wire_len.max(captured), link: interface.link })
    }

    /// The length stands at both ends of a block.
    fn check_trailer(&self, block: &[u8]) -> Result<(), String> {
        let (first, last) = (self.order.u32(&block[4..]), self.order.u32(&block[block.len() - 4..]));
        if first == last { Ok(()) } else { Err(format!("block lengths {first} and {last} disagree")) }
    }
}

impl Interface {
    fn time_ns(&self, units: u64) -> i64 {
        let ns = match self.per_second {
            Some(1_000_000) => u128::from(units) * 1000,
            Some(NS) => u128::from(units),
            Some(per_second) => u128::from(units) * NS / per_second,
            None => 0,
        };
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        ns.saturating_add(self.offset.saturating_mul(NS as i64))
    }
}

/// Units in a second: a power of 10, or, with the top bit, of 2.
fn per_second(resolution: u8) -> Option<u128> {
    let power = u32::from(resolution & 0x7F);
    if resolution & 0x80 == 0 { 10u128.checked_pow(power) } else { 1u128.checked_shl(power) }
}

/// The error for a block that is too long to be read, or behind whose beginning the file ends.
fn bad(source: &mut Source, len: u32, offset: u64) -> Error {
    if len <= BLOCK_LEN_MAX {
        return cut(source, offset);
    }
    Error::new(source.name(), format_args!("bad block length {len} at offset {offset}"))
}

/// Writes a file with one section and one interface, in little-endian byte order.
#[derive(Debug)]
pub struct PcapNgWriter<W> {
    out: W,
    options: PcapOptions,
}

impl<W: Write> PcapNgWriter<W> {
    /// Writes the blocks of the section and the interface.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn new(mut out: W, options: PcapOptions) -> io::Result<Self> {
        let resolution: u8 = if options.nano { 9 } else { 6 };
        let mut blocks = Vec::with_capacity(60);
        for word in [SECTION, 28, ORDER_MAGIC, 1, u32::MAX, u32::MAX, 28] {
            blocks.extend(word.to_le_bytes());
        }
        // A snapshot length of 0 stands for none.
        let snaplen = if options.snaplen == u32::MAX { 0 } else { options.snaplen };
        for word in [INTERFACE, 32, options.link.0 & 0xFFFF, snaplen, 1 << 16 | 9, resolution.into(), 0, 32] {
            blocks.extend(word.to_le_bytes());
        }
        out.write_all(&blocks)?;
        Ok(Self { out, options })
    }

    /// Writes a packet that had `wire_len` bytes, as many of which as there are, and are wanted, in `data`.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn write(&mut self, time_ns: i64, data: &[u8], wire_len: u32) -> io::Result<()> {
        let data = &data[..data.len().min(self.options.snaplen as usize)];
        let pad = data.len().next_multiple_of(4) - data.len();
        let len = (32 + data.len() + pad) as u32;
        let time = if self.options.nano { time_ns } else { time_ns.div_euclid(1000) };
        let mut header = [0; 28];
        let words = [ENHANCED, len, 0, (time >> 32) as u32, time as u32, data.len() as u32, wire_len];
        for (place, word) in header.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let mut trailer = [0; 8];
        trailer[pad..pad + 4].copy_from_slice(&len.to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(data)?;
        self.out.write_all(&trailer[..pad + 4])
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
