//! Checks and changes of IPv4 headers: what `CheckIPHeader`, `DecIPTTL` and `SetIPChecksum` do.

use super::case::{self, Case, Layout};
use super::row_kernel::{Packet, RowKernel, check_slot, run_on_host, set_slot};
use super::rows::{HAS_NETWORK, NETWORK_WORDS, NONE, PACKET_ROWS_H, PacketRows, SPANS_NONE};
use crate::kernel::{KDEF_H, Kernel, Trial};
use crate::known_answer::Draw;
use crate::launch::bad;
use bifolio_device::{ModuleSource, Result};

/// The header is checked: version, lengths, sources, and the checksum if [`Header::has_checksum`] says so.
pub const CHECK: u32 = 1;
/// One is taken off the TTL, and the checksum adjusted.
pub const DEC_TTL: u32 = 2;
/// The checksum is set, whatever it was.
pub const SET_CHECKSUM: u32 = 4;
/// Packets to groups keep their TTL.
pub const KEEP_GROUPS: u32 = 8;
/// At most so many addresses are bad sources, and as many are good destinations.
pub const ADDRESSES: usize = 8;

const MODULE: ModuleSource = ModuleSource {
    name: Header::KERNEL,
    source: include_str!("../cl/ip_header.cl"),
    headers: &[KDEF_H, PACKET_ROWS_H, ("ip_header.h", include_str!("../cl/ip_header.h"))],
    kernels: &[(Header::KERNEL, run_on_host::<Header>)],
};

/// The kernel; [`super::launch`] runs it.
#[derive(Debug)]
pub struct IpHeader;

impl Kernel for IpHeader {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        case::try_rows(trial, |draw, most| {
            let case = Case::draw(draw, Layout::Header, most);
            let params = draw_params(draw, case.rows);
            (case, params, Vec::new())
        })
    }
}

/// Its parameters. Steps are taken in the order of [`CHECK`], [`DEC_TTL`] and [`SET_CHECKSUM`]; a packet that fails at one
/// gets a value in the slot, and is left as it is. The others keep what the slot had. What is changed is the output word
/// [`PacketRows::ttl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Where the rows are: with a network region, a TTL if it is changed, and spans where checksums are summed up.
    pub rows: PacketRows,
    /// The steps: [`CHECK`], [`DEC_TTL`], [`SET_CHECKSUM`], [`KEEP_GROUPS`].
    pub flags: u32,
    /// A byte of the output row.
    pub slot: u32,
    /// Its value for packets that [`CHECK`] refuses, those without a header of 20 bytes among them, and for those whose
    /// header is not all there for [`SET_CHECKSUM`].
    pub bad: u32,
    /// Its value for packets whose TTL is 0 or 1.
    pub expired: u32,
    /// Its value for packets without a header of 20 bytes, where none is checked; [`NONE`]: they are left as they are.
    pub missing: u32,
    /// Whether the checksum is checked.
    pub has_checksum: bool,
    /// Bad sources and how many there are, as they lie in headers.
    pub sources: ([u32; ADDRESSES], u32),
    /// Destinations to which packets from bad sources may go.
    pub destinations: ([u32; ADDRESSES], u32),
}

/// Whether an address is among the first ones.
fn is_among((addresses, count): &([u32; ADDRESSES], u32), address: u32) -> bool {
    addresses[..*count as usize].contains(&address)
}

/// The sum of words of 16 bits, with carries added.
fn sum(header: &[u8]) -> u32 {
    let mut sum: u32 = header.as_chunks().0.iter().map(|two| u32::from(u16::from_be_bytes(*two))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

impl Header {
    fn does(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn sums(&self) -> bool {
        self.does(SET_CHECKSUM) || self.does(CHECK) && self.has_checksum
    }

    /// The slot's value for a packet that fails.
    fn steps(&self, packet: &Packet<'_>, output: &mut [u32]) -> std::result::Result<(), u32> {
        let PacketRows { network, ttl, .. } = self.rows;
        let captured = packet.captured();
        if !packet.has(HAS_NETWORK) || captured < 20 {
            return Err(if self.does(CHECK) { self.bad } else { self.missing });
        }
        let mut header = packet.bytes(network, NETWORK_WORDS);
        if ttl != NONE {
            header[8..12].copy_from_slice(&output[ttl as usize].to_le_bytes());
        }
        let header_len = usize::from(header[0] & 15) * 4;
        let is_whole = header_len >= 20 && header_len <= captured;
        let options =
            if is_whole && header_len > 20 && self.sums() { packet.span(header_len - 20) } else { Some(&[][..]) };
        header.extend(options.unwrap_or_default());
        if self.does(CHECK) {
            self.check_header(&header, captured, options.is_some())?;
        }
        if self.does(DEC_TTL) && !(self.does(KEEP_GROUPS) && header[16] >> 4 == 0xe) {
            if header[8] <= 1 {
                return Err(self.expired);
            }
            header[8] -= 1;
            let sum = u32::from(u16::from_be_bytes([header[10], header[11]])) + 0x100;
            let sum = (sum + ((sum + 1) >> 16)) as u16;
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        if self.does(SET_CHECKSUM) {
            if !is_whole || options.is_none() {
                return Err(self.bad);
            }
            header[10..12].fill(0);
            let checksum = !(sum(&header) as u16);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        if self.does(DEC_TTL) || self.does(SET_CHECKSUM) {
            output[ttl as usize] = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        }
        Ok(())
    }

    fn check_header(&self, header: &[u8], captured: usize, has_options: bool) -> std::result::Result<(), u32> {
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let header_len = usize::from(header[0] & 15) * 4;
        let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let has_right_lens = header_len >= 20 && total_len <= captured && total_len >= header_len;
        let has_right_sum = !self.has_checksum || has_options && sum(header) == 0xffff;
        let is_forged = is_among(&self.sources, word(12)) && !is_among(&self.destinations, word(16));
        let is_right = header[0] >> 4 == 4 && has_right_lens && has_right_sum && !is_forged;
        if is_right { Ok(()) } else { Err(self.bad) }
    }
}

impl RowKernel for Header {
    const KERNEL: &'static str = "ip_header";
    const TABLES: usize = 0;

    fn rows(&self) -> &PacketRows {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut PacketRows {
        &mut self.rows
    }

    fn words(&self) -> Vec<u32> {
        let Self { flags, slot, bad, expired, missing, has_checksum, sources, destinations, .. } = *self;
        let first = [flags, slot, bad, expired, missing, u32::from(has_checksum), sources.1, destinations.1];
        [first, sources.0, destinations.0].concat()
    }

    fn from_words(rows: PacketRows, words: &[u32]) -> Option<Self> {
        let ([first, sources, destinations], []) = words.as_chunks::<8>() else { return None };
        let [flags, slot, bad, expired, missing, has_checksum, source_count, destination_count] = *first;
        let (sources, destinations) = ((*sources, source_count), (*destinations, destination_count));
        let has_checksum = has_checksum != 0;
        Some(Self { rows, flags, slot, bad, expired, missing, has_checksum, sources, destinations })
    }

    fn table_bytes(&self) -> Vec<u64> {
        Vec::new()
    }

    fn check(&self) -> Result<()> {
        let Self { rows, flags, slot, .. } = *self;
        let missing = if self.missing == NONE { 0 } else { self.missing };
        check_slot(&rows, slot, &[self.bad, self.expired, missing])?;
        let changes = flags & (DEC_TTL | SET_CHECKSUM) != 0;
        if flags > 15 || rows.network == NONE || changes && rows.ttl == NONE || slot / 4 == rows.ttl {
            return Err(bad(format!("steps {flags:#x} with a slot at {slot} do not go with {rows:?}")));
        }
        if self.sums() && rows.spans == SPANS_NONE {
            return Err(bad("checksums of IP headers need rows whose spans have the options".to_owned()));
        }
        if self.sources.1.max(self.destinations.1) as usize > ADDRESSES {
            let count = self.sources.1.max(self.destinations.1);
            return Err(bad(format!("{count} addresses, and at most {ADDRESSES} are possible")));
        }
        Ok(())
    }

    fn packet(&self, packet: &Packet<'_>, _: &[&[u8]], output: &mut [u32]) {
        if let Err(value) = self.steps(packet, output)
            && value != NONE
        {
            set_slot(output, self.slot, value);
        }
    }
}

fn draw_params(draw: &mut Draw, rows: PacketRows) -> Header {
    let mut byte = || draw.below(256) as u32;
    let (bad, expired) = (byte(), byte());
    let missing = if draw.below(2) == 0 { NONE } else { draw.below(256) as u32 };
    let mut addresses = || {
        let address = |draw: &mut Draw| u32::from_le_bytes([10, draw.below(2) as u8, 0, draw.below(4) as u8]);
        (std::array::from_fn(|_| address(draw)), draw.below(ADDRESSES as u64 + 1).saturating_sub(3) as u32)
    };
    let (sources, destinations) = (addresses(), addresses());
    let (flags, has_checksum) = (draw.below(16) as u32, draw.below(3) > 0);
    let slot = draw.below(4) as u32;
    Header { rows, flags, slot, bad, expired, missing, has_checksum, sources, destinations }
}

#[cfg(test)]
mod tests {
    use super::super::row_kernel::{from_bytes, to_bytes};
    use super::*;
    use crate::packets::{SPANS_OPTIONS, oracle};

    fn header() -> Header {
        let mut rows = PacketRows::new(1, 7, 2);
        (rows.spans, rows.network, rows.ttl) = (SPANS_OPTIONS, 2, 1);
        let none = ([0; ADDRESSES], 0);
        let (sources, destinations) = (none, none);
        let (flags, slot, bad, expired, missing) = (CHECK | DEC_TTL, 2, 7, 8, NONE);
        Header { rows, flags, slot, bad, expired, missing, has_checksum: true, sources, destinations }
    }

    /// A header alone, whose checksum is right.
    const PACKET: [u8; 20] = [
        0x45, 0x00, 0x00, 0x14, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x06, 0xb2, 0x0e, 0xac, 0x10, 0x0a, 0x63, 0xac, 0x10,
        0x0a, 0x0c,
    ];

    fn run(header: &Header, packet: [u8; 20], descriptor: u32) -> [u8; 8] {
        let mut output = [0; 8];
        output[4..].copy_from_slice(&packet[8..12]);
        let input = [&descriptor.to_le_bytes()[..], &[0; 4], &packet].concat();
        oracle(header, &input, &[], &mut output);
        output
    }

    #[test]
    fn a_right_packet_lives_on_and_others_get_their_values() {
        let (header, descriptor) = (header(), HAS_NETWORK + 20);
        assert_eq!(run(&header, PACKET, descriptor), [0, 0, 0, 0, 0x3f, 6, 0xb3, 0x0e]);
        assert_eq!(run(&header, PACKET, HAS_NETWORK + 19)[..4], [0, 0, 7, 0], "cut off");
        assert_eq!(run(&header, PACKET, 20)[..4], [0, 0, 7, 0], "no header");
        for at in [0, 3, 9, 11, 19] {
            let mut packet = PACKET;
            packet[at] ^= 1;
            assert_eq!(run(&header, packet, descriptor)[..4], [0, 0, 7, 0], "byte {at}");
        }
        let mut old = PACKET;
        (old[8], old[10]) = (1, 0xf1);
        assert_eq!(run(&header, old, descriptor), [0, 0, 8, 0, 1, 6, 0xf1, 0x0e]);
        let source = u32::from_le_bytes([0xac, 0x10, 0x0a, 0x63]);
        let forged = Header { sources: ([source; ADDRESSES], 1), ..header };
        assert_eq!(run(&forged, PACKET, descriptor)[2], 7);
        let set = Header { flags: SET_CHECKSUM, ..header };
        let mut wrong = PACKET;
        wrong[10] = 0;
        assert_eq!(run(&set, wrong, descriptor), [0, 0, 0, 0, 0x40, 6, 0xb2, 0x0e]);
    }

    #[test]
    fn parameters_travel_and_wrong_ones_are_refused() {
        let right = Header { missing: 3, destinations: ([5; 8], 2), ..header() };
        assert_eq!(from_bytes(&to_bytes(&right)), Some(right));
        assert!(right.check().is_ok());
        let changes: [fn(&mut Header); 8] = [
            |header| header.flags = 16,
            |header| header.slot = 4,
            |header| header.slot = 8,
            |header| header.bad = 256,
            |header| header.rows.network = NONE,
            |header| header.rows.ttl = NONE,
            |header| header.rows.spans = SPANS_NONE,
            |header| header.sources.1 = 9,
        ];
        for change in changes {
            let mut header = right;
            change(&mut header);
            assert!(header.check().is_err(), "{header:?}");
        }
    }
}
