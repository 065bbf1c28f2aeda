//! Random batches for the known-answer tests: packets of many kinds in rows of many layouts, and rows that lie.

use super::row_kernel::{Memory, RowKernel, launch, oracle};
use super::rows::{
    HAS_BYTE_13, HAS_LINK, HAS_NETWORK, HAS_TRANSPORT, LINK_SHIFT, LINK_WORDS, NETWORK_WORDS, NONE, PacketRows,
    SPANS_ALL, SPANS_NONE, SPANS_OPTIONS,
};
use crate::kernel::{Effort, Trial};
use crate::known_answer::{self, Draw};
use bifolio_device::{Allocation, Module, Result, Stream};

/// Which regions rows have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Any.
    Any,
    /// Network header, its options, TTL.
    Header,
    /// All, a link region perhaps.
    Flow,
}

/// A batch, in buffers of its own.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) rows: PacketRows,
    pub(super) input: Vec<u8>,
    /// Output rows as kernels before this one left them, and what is around them.
    pub(super) output: Vec<u8>,
}

impl Case {
    /// No packet, one, or up to `most`.
    pub(super) fn draw(draw: &mut Draw, layout: Layout, most: u64) -> Self {
        let count = match draw.below(8) {
            0 => draw.below(2),
            1 => (255 + draw.below(3)).min(most),
            _ => 1 + draw.below(most),
        };
        Self::with_count(draw, layout, count as u32)
    }

    fn with_count(draw: &mut Draw, layout: Layout, count: u32) -> Self {
        let mut rows = draw_rows(draw, layout, count);
        let (mut table, mut spans) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut row = draw_row(draw, &rows, &mut spans);
            if draw.below(16) == 0 {
                // One that lies.
                let word = draw.below(row.len() as u64) as usize;
                row[word] = draw.next_u64() as u32 >> draw.below(32);
            }
            table.extend(row.iter().flat_map(|word| word.to_le_bytes()));
        }
        let gap = |draw: &mut Draw| draw.below(3) as usize * 16;
        let begin = gap(draw);
        let mut input = draw.bytes(begin);
        rows.input_at = input.len() as u64;
        input.extend(table);
        let padding = input.len().next_multiple_of(16) - input.len() + gap(draw);
        input.extend(draw.bytes(padding));
        (rows.span_at, rows.span_bytes) = (input.len() as u64, spans.len() as u64);
        input.extend(spans);
        input.extend([0; 4]);
        rows.output_at = gap(draw) as u64;
        let tail = gap(draw) + 16;
        let mut output = draw.bytes(rows.output_at as usize + rows.output_bytes() as usize + tail);
        if rows.test != NONE {
            // About half of them take part.
            let words = output[rows.output_at as usize..].chunks_exact_mut(rows.output_words as usize * 4);
            for row in words.take(count as usize) {
                row[rows.test as usize] = draw.below(2) as u8;
            }
        }
        let mut case = Self { rows, input, output };
        case.begin_ttl();
        case
    }

    /// The TTL's words are those of the headers.
    fn begin_ttl(&mut self) {
        let PacketRows { ttl, network, input_words, output_words, .. } = self.rows;
        if ttl == NONE {
            return;
        }
        for packet in 0..self.rows.count as usize {
            let from = self.rows.input_at as usize + (packet * input_words as usize + network as usize + 2) * 4;
            let to = self.rows.output_at as usize + (packet * output_words as usize + ttl as usize) * 4;
            let word: [u8; 4] = self.input[from..from + 4].try_into().expect("four bytes");
            self.output[to..to + 4].copy_from_slice(&word);
        }
    }
}

/// Regions in some order, with gaps.
fn draw_rows(draw: &mut Draw, layout: Layout, count: u32) -> PacketRows {
    let mut rows = PacketRows::new(count, 1, 1 + draw.below(6) as u32);
    rows.spans = match layout {
        Layout::Header => [SPANS_OPTIONS, SPANS_ALL][draw.below(2) as usize],
        _ => draw.below(3) as u32,
    };
    rows.input_words += u32::from(rows.spans != SPANS_NONE);
    let mut place = |draw: &mut Draw, words: u32, is_wanted: bool| {
        if !is_wanted && draw.below(2) == 0 {
            return NONE;
        }
        let at = rows.input_words + draw.below(2) as u32;
        rows.input_words = at + words;
        at
    };
    let link = place(draw, LINK_WORDS, false);
    let network = place(draw, NETWORK_WORDS, layout != Layout::Any);
    let transport = place(draw, 1, layout == Layout::Flow);
    let annotations = place(draw, 1, false);
    rows = PacketRows { annotations, link, network, transport, ..rows };
    if network != NONE && (layout == Layout::Header || draw.below(2) == 0) {
        rows.output_words = rows.output_words.max(2);
        rows.ttl = 1 + draw.below(u64::from(rows.output_words) - 1) as u32;
    }
    if draw.below(2) == 0 {
        // Not a byte of the TTL.
        (rows.test, rows.test_value) = (draw.below(4) as u32, draw.below(2) as u32);
    }
    rows
}

/// A row that tells the truth of a packet, whose part of the variable part goes there.
fn draw_row(draw: &mut Draw, rows: &PacketRows, spans: &mut Vec<u8>) -> Vec<u32> {
    let mut row: Vec<u32> = (0..rows.input_words).map(|_| draw.next_u64() as u32).collect();
    let (frame, at) = (draw_frame(draw), 0);
    let packet = if draw.below(16) == 0 { None } else { Some(draw_packet(draw)) };
    let network = packet.as_deref().unwrap_or_default();
    let mut descriptor = network.len() as u32 & 0xffff;
    let mut put = |first: u32, count: u32, bytes: &[u8]| {
        for word in 0..if first == NONE { 0 } else { count as usize } {
            let four = std::array::from_fn(|at| bytes.get(word * 4 + at).copied().unwrap_or(0));
            row[first as usize + word] = u32::from_le_bytes(four);
        }
    };
    put(rows.link, LINK_WORDS, &frame[at..]);
    put(rows.network, NETWORK_WORDS, network);
    if rows.link != NONE && frame.len() >= 14 {
        descriptor |= HAS_LINK | ((frame.len() as u32 - 14) / 2).min(4) << LINK_SHIFT;
    }
    if packet.is_some() {
        descriptor |= HAS_NETWORK;
    }
    let transport = transport_of(network);
    put(rows.transport, 1, transport);
    if transport.len() >= 4 {
        descriptor |= HAS_TRANSPORT;
    }
    if let Some(byte) = transport.get(13) {
        descriptor |= HAS_BYTE_13 | u32::from(*byte) << 16;
    }
    row[0] = descriptor;
    if rows.spans != SPANS_NONE {
        row[1] = spans.len() as u32 / 4;
        let len = if rows.spans == SPANS_ALL { usize::MAX } else { options_len(network) };
        spans.extend(network.iter().skip(20).take(len));
        spans.resize(spans.len().next_multiple_of(4), 0);
    }
    row
}

fn options_len(network: &[u8]) -> usize {
    network.first().map_or(0, |first| usize::from(first & 15) * 4).saturating_sub(20)
}

/// Of flags and fragment offset, the offset.
const OFFSET: u16 = 0x1fff;

/// What follows the IP header, up to the packet's own end.
fn transport_of(network: &[u8]) -> &[u8] {
    if network.len() < 20 || network[0] >> 4 != 4 || network[0] & 15 < 5 {
        return &[];
    }
    let end = usize::from(u16::from_be_bytes([network[2], network[3]])).min(network.len());
    let is_first = u16::from_be_bytes([network[6], network[7]]) & OFFSET == 0;
    network.get(usize::from(network[0] & 15) * 4..end).filter(|_| is_first).unwrap_or_default()
}

/// The beginning of an Ethernet frame, which may be cut off.
fn draw_frame(draw: &mut Draw) -> Vec<u8> {
    let mut frame = [0, draw.below(2) as u8, 0, 0, 0, draw.below(4) as u8, 0, draw.below(2) as u8, 0, 0, 0, 3].to_vec();
    for _ in 0..draw.below(5).saturating_sub(2) {
        let kind: [u8; 2] = [[0x81, 0], [0x88, 0xa8]][draw.below(2) as usize];
        frame.extend(kind);
        frame.extend([draw.below(256) as u8 & 0xf0, draw.below(3) as u8]);
    }
    frame.extend([8, [0, 0, 0, 6][draw.below(4) as usize]]);
    frame.extend(draw.bytes(20));
    if draw.below(6) == 0 {
        frame.truncate(draw.below(24) as usize);
    }
    frame
}

/// An IP packet, mostly a right one.
fn draw_packet(draw: &mut Draw) -> Vec<u8> {
    let options = if draw.below(4) == 0 { draw.below(11) as usize * 4 } else { 0 };
    let payload = draw.below(40) as usize;
    let len = 20 + options + payload;
    let mut packet = vec![0x45 + (options / 4) as u8, draw.below(4) as u8, 0, len as u8];
    packet.extend(draw.bytes(2));
    packet.extend([(draw.below(4) << 5) as u8, draw.below(8) as u8 / 7, draw.below(4) as u8]);
    packet.extend([[6, 17, 1, 47][draw.below(4) as usize], 0, 0]);
    for _ in 0..2 {
        packet.extend([10, draw.below(2) as u8, 0, draw.below(4) as u8]);
    }
    packet.extend(draw.bytes(options));
    for _ in 0..2 {
        packet.extend([0, draw.below(8) as u8]);
    }
    packet.extend(draw.bytes(payload));
    packet.truncate(len);
    set_checksum(&mut packet, 20 + options);
    if draw.below(8) == 0 {
        let at = draw.below(20) as usize;
        packet[at] = packet[at].wrapping_add(1 + draw.below(255) as u8);
    }
    match draw.below(16) {
        0 => packet.truncate(draw.below(len as u64) as usize),
        1..4 => {
            let padding = 1 + draw.below(12) as usize;
            packet.extend(draw.bytes(padding));
        }
        _ => {}
    }
    packet
}

fn set_checksum(packet: &mut [u8], header_len: usize) {
    let halves = packet[..header_len].as_chunks().0.iter().map(|half| u32::from(u16::from_be_bytes(*half)));
    let mut sum: u32 = halves.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Tries a kernel on batches of at most so many packets, which `case` draws with their parameters and tables.
pub(super) fn try_rows<K: RowKernel + Clone>(
    trial: &mut Trial<'_>,
    mut case: impl FnMut(&mut Draw, u64) -> (Case, K, Vec<Vec<u8>>),
) -> Result<(), String> {
    let module = trial.compiled()?;
    let (rounds, most) = match trial.effort() {
        Effort::FirstUse => (3, 700),
        Effort::Interpreted => (3, 40),
        Effort::Exhaustive => (60, 700),
    };
    for round in 0..rounds {
        let mut attempt = || {
            let (case, params, tables) = case(trial.draw(), most);
            let mut expected = case.output.clone();
            let slices: Vec<&[u8]> = tables.iter().map(Vec::as_slice).collect();
            oracle(&params, &case.input, &slices, &mut expected);
            (case, params, tables, expected)
        };
        let mut drawn = attempt();
        // At first one that changes something, so that a device that does nothing is told.
        while round == 0 && drawn.3 == drawn.0.output {
            drawn = attempt();
        }
        let (case, params, tables, expected) = drawn;
        let found = on_device(trial.stream(), module, &case, &params, &tables).map_err(|error| error.to_string())?;
        known_answer::compare("of the output rows, byte", &found, &expected)
            .map_err(|wrong| format!("{} of {} packets: {wrong}", K::KERNEL, case.rows.count))?;
    }
    Ok(())
}

/// The output rows after a launch.
fn on_device<K: RowKernel + Clone>(
    stream: &Stream,
    module: &Module,
    case: &Case,
    params: &K,
    tables: &[Vec<u8>],
) -> Result<Vec<u8>> {
    let input = known_answer::on_device(stream, &case.input)?;
    let tables = tables.iter().map(|table| known_answer::on_device(stream, table)).collect::<Result<Vec<_>>>()?;
    let slices: Vec<_> = tables.iter().map(Allocation::slice).collect();
    let output = known_answer::on_device(stream, &case.output)?;
    let memory = Memory { input: input.slice(), output: output.slice() };
    // SAFETY: the allocations live until the output was read back, and do not overlap.
    unsafe { launch(stream, module, params, memory, &slices) }?;
    known_answer::content(stream, &output)
}
