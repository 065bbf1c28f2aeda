//! Random packets with known answers.

use super::launch::{Operands, launch};
use super::oracle::oracle;
use super::params::{Esp, Mode};
use crate::aes::KeySize;
use crate::aes_gcm::{oracle_encrypt, schedules};
use crate::kernel::{Effort, Trial};
use crate::known_answer::{self, Draw};
use crate::packets::{HAS_NETWORK, Memory, NETWORK_WORDS, NONE, PacketRows, SPANS_ALL};
use bifolio_device::{Module, Result, Stream};

/// Packets in rows, and what becomes of them.
struct Case {
    esp: Esp,
    key: Vec<u8>,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// An IP packet of this protocol around a payload, mostly a right one.
fn draw_packet(draw: &mut Draw, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let options = if draw.below(4) == 0 { draw.below(11) as usize * 4 } else { 0 };
    let len = 20 + options + payload.len();
    let mut packet = vec![0x45 + (options / 4) as u8, 0, (len >> 8) as u8, len as u8, 0, 0];
    packet.extend([0x40, 0, 64, protocol]);
    packet.extend(draw.bytes(10 + options));
    packet.extend(payload);
    if draw.below(12) == 0 {
        let at = draw.below(12) as usize;
        packet[at] = draw.next_u64() as u8;
    }
    match draw.below(16) {
        0 => packet.truncate(draw.below(len as u64) as usize),
        1 | 2 => {
            let padding = draw.below(9) as usize;
            packet.extend(draw.bytes(padding));
        }
        _ => {}
    }
    packet
}

impl Case {
    /// An ESP packet of some key, perhaps damaged.
    fn draw_sealed(&self, draw: &mut Draw, text_len: usize, lowest: u64) -> Vec<u8> {
        let number = lowest.wrapping_add(if draw.below(2) == 0 { draw.below(1 << 32) } else { draw.below(9) });
        let number = if self.esp.is_extended { number } else { number & 0xffff_ffff };
        let (iv, mut text) = (draw.bytes(8), draw.bytes(text_len.next_multiple_of(4)));
        let nonce = [&self.esp.salt[..], &iv].concat();
        let bytes = number.to_be_bytes();
        let aad = [&self.esp.spi[..], if self.esp.is_extended { &bytes[..] } else { &bytes[4..] }].concat();
        let tag = oracle_encrypt(&self.key, &nonce, &aad, &mut text);
        let mut esp = [&self.esp.spi[..], &bytes[4..], &iv, &text, &tag[..]].concat();
        match draw.below(4) {
            0 => {
                let at = draw.below(esp.len() as u64) as usize;
                esp[at] ^= 1 << draw.below(8);
            }
            1 if draw.below(4) == 0 => esp.truncate(draw.below(esp.len() as u64) as usize),
            _ => {}
        }
        esp
    }

    /// Up to `packets`, of texts of up to `most` bytes.
    fn draw(draw: &mut Draw, size: KeySize, packets: u64, most: u64) -> Self {
        let count = draw.below(packets + 1) as u32;
        let lowest = [0, draw.below(1 << 33), draw.next_u64()][draw.below(3) as usize];
        let is_extended = draw.below(2) == 0;
        let mode = match draw.below(2) {
            0 => Mode::Encrypt { tunnel: draw.below(2) == 0, number: lowest, iv: draw.next_u64() },
            _ => Mode::Decrypt { lowest: if is_extended { lowest } else { 0 } },
        };
        let mut rows = PacketRows { spans: SPANS_ALL, ..PacketRows::new(count, 2, 2 + draw.below(3) as u32) };
        rows.network = 2 + draw.below(2) as u32;
        rows.input_words = rows.network + NETWORK_WORDS + draw.below(2) as u32;
        rows.ttl = if draw.below(2) == 0 { 1 } else { NONE };
        let [spi, salt] = std::array::from_fn(|_| (draw.next_u64() as u32).to_ne_bytes());
        let esp = Esp { rows, mode, is_extended, spi, salt, part_at: 0 };
        let mut case = Self { esp, key: draw.bytes(size.bytes()), input: Vec::new(), output: Vec::new() };
        let (mut table, mut spans) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let most = [0, 70, most][draw.below(3) as usize];
            let len = draw.below(most + 1) as usize;
            let packet = match mode {
                Mode::Decrypt { lowest } => {
                    let sealed = case.draw_sealed(draw, len, lowest);
                    draw_packet(draw, 50, &sealed)
                }
                Mode::Encrypt { .. } => {
                    let payload = draw.bytes(len);
                    let protocol = [6, 17, 50][draw.below(3) as usize];
                    draw_packet(draw, protocol, &payload)
                }
            };
            table.extend(draw_row(draw, &rows, &packet, &mut spans));
        }
        let begin = draw.below(3) as usize * 16;
        case.input = draw.bytes(begin);
        case.esp.rows.input_at = begin as u64;
        case.input.extend(table.iter().flat_map(|word| word.to_le_bytes()));
        case.input.resize(case.input.len().next_multiple_of(16), 0);
        (case.esp.rows.span_at, case.esp.rows.span_bytes) = (case.input.len() as u64, spans.len() as u64);
        case.input.extend(spans);
        case.input.extend([0; 16]);
        case.draw_output(draw);
        case
    }

    /// Output rows, which say who takes part, and poison.
    fn draw_output(&mut self, draw: &mut Draw) {
        let rows = &mut self.esp.rows;
        rows.output_at = draw.below(3) * 16;
        self.esp.part_at = (rows.output_at + rows.output_bytes()).next_multiple_of(16) + draw.below(3) * 16;
        let part = Esp::part_bytes(rows.count.into(), rows.span_bytes);
        self.output = draw.bytes((self.esp.part_at + part) as usize + 16);
        if draw.below(2) == 0 {
            (rows.test, rows.test_value) = (draw.below(4) as u32, draw.below(2) as u32);
            let words = self.output[rows.output_at as usize..].chunks_exact_mut(rows.output_words as usize * 4);
            words.take(rows.count as usize).for_each(|row| row[rows.test as usize] = draw.below(2) as u8);
        }
    }

    fn expected(&self) -> Vec<u8> {
        let mut expected = self.output.clone();
        oracle(&self.esp, &self.key, &self.input, &mut expected);
        expected
    }

    /// How many packets there is something to do for.
    fn count_of(&self, result: u32) -> usize {
        let results = &self.expected()[self.esp.part_at as usize..][..self.esp.rows.count as usize * 4];
        results.as_chunks().0.iter().filter(|word| u32::from_ne_bytes(**word) == result).count()
    }

    fn on_device(&self, stream: &Stream, module: &Module) -> Result<Vec<u8>> {
        let keys = schedules(&self.key)?;
        let on_device = |bytes: &[u8]| known_answer::on_device(stream, bytes);
        let (schedules, input, output) = (on_device(keys.bytes())?, on_device(&self.input)?, on_device(&self.output)?);
        let memory = Memory { input: input.slice(), output: output.slice() };
        let operands = Operands { memory, size: keys.size(), schedules: schedules.slice() };
        // SAFETY: the allocations live until all was read back, and do not overlap.
        unsafe { launch(stream, module, &self.esp, operands) }?;
        known_answer::content(stream, &output)
    }
}

pub(super) fn try_out(trial: &mut Trial<'_>) -> Result<(), String> {
    let module = trial.compiled()?;
    // A text of 512 bytes is a step of a team, with the block that masks the tag.
    let (rounds, sizes, packets, most): (u32, &[KeySize], u64, u64) = match trial.effort() {
        Effort::FirstUse => (2, &KeySize::ALL, 70, 600),
        Effort::Interpreted => (3, &[KeySize::Aes128], 4, 80),
        Effort::Exhaustive => (40, &KeySize::ALL, 150, 1700),
    };
    for (round, size) in (0..rounds).flat_map(|round| sizes.iter().map(move |size| (round, *size))) {
        let mut case = Case::draw(trial.draw(), size, packets, most);
        // At first each direction, and packets that there is something to do for, so that a device that does nothing is told.
        let is_wanted = |case: &Case| {
            let decrypts = matches!(case.esp.mode, Mode::Decrypt { .. });
            decrypts == (round == 0) && case.count_of(Esp::DONE) > 0 && (!decrypts || case.count_of(Esp::FORGED) > 0)
        };
        while round < 2 && !is_wanted(&case) {
            case = Case::draw(trial.draw(), size, packets, most);
        }
        let found = case.on_device(trial.stream(), module).map_err(|error| error.to_string())?;
        known_answer::compare("of the output, byte", &found, &case.expected()).map_err(|wrong| {
            let Esp { rows, mode, part_at, .. } = case.esp;
            let results = rows.count as usize * 4;
            format!("{mode:?}, {size:?}, {} packets, results of {results} bytes at {part_at}: {wrong}", rows.count)
        })?;
    }
    Ok(())
}

/// A row that tells the truth of a packet, whose bytes behind the header go into the variable part, or less than that.
fn draw_row(draw: &mut Draw, rows: &PacketRows, packet: &[u8], spans: &mut Vec<u8>) -> Vec<u32> {
    let mut row: Vec<u32> = (0..rows.input_words).map(|_| draw.next_u64() as u32).collect();
    let has_network = if draw.below(16) == 0 { 0 } else { HAS_NETWORK };
    let captured = if draw.below(16) == 0 { draw.below(packet.len() as u64 + 1) as u32 } else { packet.len() as u32 };
    (row[0], row[1]) = (captured | has_network, spans.len() as u32 / 4);
    if draw.below(24) == 0 {
        // Where there is nothing: from the end of all.
        row[1] = u32::MAX >> draw.below(3);
    }
    let header: Vec<u8> = packet.iter().copied().chain([0; 20]).take(20).collect();
    let words = header.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    row[rows.network as usize..][..NETWORK_WORDS as usize].copy_from_slice(&words.collect::<Vec<_>>());
    spans.extend(packet.iter().skip(20));
    spans.resize(spans.len().next_multiple_of(4), 0x5a);
    row
}
