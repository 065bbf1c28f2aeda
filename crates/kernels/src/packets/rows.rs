//! Where the rows of a batch are, and what is in them: `packet_rows.h` has the layout of a row.

use crate::launch::bad;
use bifolio_device::Result;

/// The header of all kernels over packets.
pub(crate) const PACKET_ROWS_H: (&str, &str) = ("packet_rows.h", include_str!("../cl/packet_rows.h"));

/// Of a word or a byte of a row: there is none.
pub const NONE: u32 = u32::MAX;
/// Words of the link region.
pub const LINK_WORDS: u32 = 6;
/// Words of the network region.
pub const NETWORK_WORDS: u32 = 5;

/// The largest number of captured bytes that a descriptor tells; more count as so many.
pub const CAPTURED_MAX: u32 = 0xffff;
/// In the descriptor: the link region has at least 14 bytes of the Ethernet frame.
pub const HAS_LINK: u32 = 1 << 24;
/// In the descriptor: there is a network header.
pub const HAS_NETWORK: u32 = 1 << 25;
/// In the descriptor: 4 bytes behind the IP header, of a first fragment, are in the packet.
pub const HAS_TRANSPORT: u32 = 1 << 26;
/// In the descriptor: 14 bytes are.
pub const HAS_BYTE_13: u32 = 1 << 27;
/// Where the descriptor tells how much of the Ethernet frame there is beyond 14 bytes, in units of 2 bytes, at most 4.
pub const LINK_SHIFT: u32 = 28;

/// No packet has anything in the variable part.
pub const SPANS_NONE: u32 = 0;
/// Packets have their IP options there, as far as they are captured.
pub const SPANS_OPTIONS: u32 = 1;
/// Packets have all bytes from byte 20 of the network header on there.
pub const SPANS_ALL: u32 = 2;

/// Where the rows of a batch are, and which words they have.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketRows {
    /// The first input row, in bytes from the input buffer's begin; a multiple of 16.
    pub input_at: u64,
    /// The first output row, in bytes from the output buffer's begin; a multiple of 16.
    pub output_at: u64,
    /// The variable part, in bytes from the input buffer's begin; a multiple of 16.
    pub span_at: u64,
    /// Its length in bytes, a multiple of 4.
    pub span_bytes: u64,
    /// Packets.
    pub count: u32,
    /// Words of 32 bits of an input row, 1 to 32.
    pub input_words: u32,
    /// Words of an output row, 1 to 16.
    pub output_words: u32,
    /// [`SPANS_NONE`], [`SPANS_OPTIONS`] or [`SPANS_ALL`].
    pub spans: u32,
    /// The input word with the first values of output word 0; [`NONE`]: zeros.
    pub annotations: u32,
    /// The first of 6 input words with the Ethernet frame's first 24 bytes, zeros behind its end; or [`NONE`].
    pub link: u32,
    /// The first of 5 input words with the network header's first 20 bytes, zeros behind its end; or [`NONE`].
    pub network: u32,
    /// The input word with the first 4 bytes behind the IP header and its options, zeros behind the packet's end; or
    /// [`NONE`].
    pub transport: u32,
    /// The output word with bytes 8 to 12 of the IP header (TTL, protocol, checksum), as changed so far; or [`NONE`].
    pub ttl: u32,
    /// The byte of output rows by which a packet takes part; [`NONE`]: all do.
    pub test: u32,
    /// What that byte is then.
    pub test_value: u32,
    /// Zero.
    pub reserved: u32,
}

const BYTES: usize = 80;
const _: () = assert!(size_of::<PacketRows>() == BYTES);

impl PacketRows {
    /// Bytes of the struct as it travels.
    pub const BYTES: usize = BYTES;

    /// Rows of so many words without any regions, at the beginning of their buffers.
    pub fn new(count: u32, input_words: u32, output_words: u32) -> Self {
        Self {
            input_at: 0,
            output_at: 0,
            span_at: 0,
            span_bytes: 0,
            count,
            input_words,
            output_words,
            spans: SPANS_NONE,
            annotations: NONE,
            link: NONE,
            network: NONE,
            transport: NONE,
            ttl: NONE,
            test: NONE,
            test_value: 0,
            reserved: 0,
        }
    }

    fn wide(&self) -> [u64; 4] {
        [self.input_at, self.output_at, self.span_at, self.span_bytes]
    }

    fn narrow(&self) -> [u32; 12] {
        let Self { count, input_words, output_words, spans, annotations, link, .. } = *self;
        let Self { network, transport, ttl, test, test_value, reserved, .. } = *self;
        let first = [count, input_words, output_words, spans, annotations, link];
        let last = [network, transport, ttl, test, test_value, reserved];
        std::array::from_fn(|at| if at < 6 { first[at] } else { last[at - 6] })
    }

    /// As kernels get it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let wide = self.wide().map(u64::to_ne_bytes).concat();
        [wide, self.narrow().map(u32::to_ne_bytes).concat()].concat()
    }

    /// What [`to_bytes`](Self::to_bytes) gave, at the beginning of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (wide, narrow) = bytes.get(..BYTES)?.split_at(32);
        let wide = |at: usize| wide.as_chunks().0.get(at).map(|bytes| u64::from_ne_bytes(*bytes));
        let narrow = |at: usize| narrow.as_chunks().0.get(at).map(|bytes| u32::from_ne_bytes(*bytes));
        Some(Self {
            input_at: wide(0)?,
            output_at: wide(1)?,
            span_at: wide(2)?,
            span_bytes: wide(3)?,
            count: narrow(0)?,
            input_words: narrow(1)?,
            output_words: narrow(2)?,
            spans: narrow(3)?,
            annotations: narrow(4)?,
            link: narrow(5)?,
            network: narrow(6)?,
            transport: narrow(7)?,
            ttl: narrow(8)?,
            test: narrow(9)?,
            test_value: narrow(10)?,
            reserved: narrow(11)?,
        })
    }

    /// Bytes of all input rows.
    pub fn input_bytes(&self) -> u64 {
        u64::from(self.count) * u64::from(self.input_words) * 4
    }

    /// Bytes of all output rows.
    pub fn output_bytes(&self) -> u64 {
        u64::from(self.count) * u64::from(self.output_words) * 4
    }

    /// Refuses rows that do not lie in buffers of so many bytes, and words that do not lie in rows.
    pub fn check(&self, input_len: u64, output_len: u64) -> Result<()> {
        let inside = |at: u64, len, limit| at.checked_add(len).is_some_and(|end| end <= limit);
        let places = [
            ("input rows", self.input_at, self.input_bytes(), input_len),
            ("output rows", self.output_at, self.output_bytes(), output_len),
            ("variable part", self.span_at, self.span_bytes, input_len),
        ];
        for (what, at, len, limit) in places {
            if !inside(at, len, limit) || !at.is_multiple_of(16) || !len.is_multiple_of(4) {
                return Err(bad(format!(
                    "the {what} of {len} bytes at {at} are no words at a 16-byte boundary in a buffer of {limit} bytes"
                )));
            }
        }
        self.check_words()
    }

    fn check_words(&self) -> Result<()> {
        if !(1..=32).contains(&self.input_words) || !(1..=16).contains(&self.output_words) {
            let Self { input_words, output_words, .. } = self;
            return Err(bad(format!("rows have 1 to 32 and 1 to 16 words, got {input_words} and {output_words}")));
        }
        if self.spans > SPANS_ALL || self.spans != SPANS_NONE && self.input_words < 2 {
            return Err(bad(format!("{} is no kind of spans of rows of {} words", self.spans, self.input_words)));
        }
        let words = [
            ("annotations", self.annotations, 1, self.input_words),
            ("the link region", self.link, LINK_WORDS, self.input_words),
            ("the network region", self.network, NETWORK_WORDS, self.input_words),
            ("the transport region", self.transport, 1, self.input_words),
            ("the TTL", self.ttl, 1, self.output_words),
            ("the test", self.test, 1, self.output_words * 4),
        ];
        for (what, first, count, limit) in words {
            if first != NONE && first.checked_add(count).is_none_or(|end| end > limit) {
                return Err(bad(format!("{what} at {first} is outside of a row, which ends at {limit}")));
            }
        }
        if self.ttl == 0 || self.ttl != NONE && self.network == NONE {
            return Err(bad("a TTL needs a network region, and an output word behind the first".to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> PacketRows {
        PacketRows {
            input_at: 16,
            output_at: 32,
            span_at: 304,
            span_bytes: 8,
            spans: SPANS_ALL,
            annotations: 6,
            link: 0,
            network: 2,
            transport: 1,
            ttl: 1,
            test: 7,
            ..PacketRows::new(10, 7, 2)
        }
    }

    #[test]
    fn rows_survive_the_trip_to_the_device() {
        let rows = PacketRows { test_value: 5, ..rows() };
        assert_eq!(rows.to_bytes().len(), PacketRows::BYTES);
        assert_eq!(PacketRows::from_bytes(&rows.to_bytes()), Some(rows));
        assert_eq!(PacketRows::from_bytes(&rows.to_bytes()[1..]), None);
    }

    #[test]
    fn what_is_outside_of_buffers_or_rows_is_refused() {
        assert!(rows().check(312, 112).is_ok());
        let changes: [fn(&mut PacketRows); 15] = [
            |rows| rows.input_at = 40,
            |rows| rows.input_at = 48,
            |rows| rows.output_at = u64::MAX - 15,
            |rows| rows.output_at = 48,
            |rows| rows.span_bytes = 12,
            |rows| rows.span_bytes = 7,
            |rows| rows.count = 11,
            |rows| rows.input_words = 0,
            |rows| rows.output_words = 17,
            |rows| rows.spans = 3,
            |rows| rows.annotations = 7,
            |rows| rows.link = 2,
            |rows| rows.network = 3,
            |rows| rows.transport = u32::MAX - 1,
            |rows| rows.test = 8,
        ];
        for change in changes {
            let mut rows = rows();
            change(&mut rows);
            assert!(rows.check(312, 112).is_err(), "{rows:?}");
        }
        assert!(PacketRows { ttl: 0, ..rows() }.check(312, 112).is_err());
        assert!(
            PacketRows { network: NONE, ..rows() }.check(312, 112).unwrap_err().to_string().contains("a TTL needs")
        );
        let wide = PacketRows { spans: SPANS_ALL, ..PacketRows::new(1, 1, 1) };
        assert!(wide.check(100, 100).is_err(), "no word says where spans begin");
    }
}
