//! Random literals, packets and batches, with the image of the literals made in the plainest way.

use super::launch::{Operands, TILE_BYTES, launch};
use super::list::{self, list_bytes};
use super::oracle::oracle;
use super::params::{FirstHit, Listed, LiteralSearch};
use crate::kernel::{Effort, Trial};
use crate::known_answer::{self, Draw};
use crate::packets::{HAS_NETWORK, Memory, NETWORK_WORDS, NONE, PacketRows, SPANS_ALL};
use bifolio_device::{Module, Result, Stream};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// A literal, and whether its letters match their capitals.
type Literal = (Vec<u8>, bool);

/// So many literals of a batch's packets find a slot in a group's table in any case.
const SLOTS_SURE: usize = 32;

const HEAD: usize = 8;
const ROOT: u32 = HEAD as u32 + 64;

/// The automaton of some literals: its states are the prefixes of those of two bytes and more, in the order of their bytes.
struct Builder {
    /// By rank.
    literals: Vec<Literal>,
    classes: [u8; 256],
    class_count: usize,
    prefixes: Vec<Vec<u8>>,
    index: HashMap<Vec<u8>, usize>,
    is_dense: Vec<bool>,
    states: Vec<u32>,
    records: Vec<u32>,
}

impl Builder {
    fn new(draw: &mut Draw, literals: &[Literal]) -> Self {
        let mut literals = literals.to_vec();
        literals.sort_by_key(|(bytes, _)| Reverse(bytes.len()));
        let long = literals.iter().filter(|(bytes, _)| bytes.len() > 1).map(|(bytes, _)| bytes.to_ascii_lowercase());
        let all = |bytes: Vec<u8>| (0..=bytes.len()).map(move |len| bytes[..len].to_vec());
        let prefixes: BTreeSet<Vec<u8>> = long.flat_map(all).chain([Vec::new()]).collect();
        let used: BTreeSet<u8> = prefixes.iter().flatten().copied().collect();
        let mut classes = [0; 256];
        for (byte, class) in used.iter().zip(1..) {
            classes[usize::from(*byte)] = class;
            classes[usize::from(byte.to_ascii_uppercase())] = class;
        }
        let prefixes: Vec<_> = prefixes.into_iter().collect();
        let index = prefixes.iter().cloned().zip(0..).collect();
        let class_count = used.len() + 1;
        let mut builder = Self {
            literals,
            classes,
            class_count,
            prefixes,
            index,
            is_dense: Vec::new(),
            states: Vec::new(),
            records: Vec::new(),
        };
        let dense = |at: usize| at == 0 || builder.children(at).len() > 28 || draw.below(3) == 0;
        builder.is_dense = (0..builder.prefixes.len()).map(dense).collect();
        builder
    }

    fn children(&self, at: usize) -> Vec<usize> {
        let prefix = &self.prefixes[at];
        let is_child = |next: &Vec<u8>| next.len() == prefix.len() + 1 && next.starts_with(prefix);
        // They follow, with all that they begin.
        let family = self.prefixes[at + 1..].iter().take_while(|next| next.starts_with(prefix));
        family.zip(at + 1..).filter(|(next, _)| is_child(next)).map(|(_, child)| child).collect()
    }

    /// The longest suffix that is a state.
    fn longest(&self, bytes: &[u8]) -> usize {
        (0..=bytes.len()).find_map(|from| self.index.get(&bytes[from..]).copied()).expect("nothing is a state")
    }

    fn fail(&self, at: usize) -> usize {
        self.longest(self.prefixes[at].get(1..).unwrap_or_default())
    }

    fn own(&self, at: usize) -> Vec<u32> {
        let is_it = |(bytes, _): &Literal| bytes.len() > 1 && bytes.eq_ignore_ascii_case(&self.prefixes[at]);
        (0..).zip(&self.literals).filter(|(_, literal)| is_it(literal)).map(|(rank, _)| rank).collect()
    }

    /// The nearest state with literals: itself, or one that it fails to.
    fn record(&self, mut at: usize) -> Option<usize> {
        while self.own(at).is_empty() {
            if at == 0 {
                return None;
            }
            at = self.fail(at);
        }
        Some(at)
    }

    fn class_of(&self, at: usize) -> u8 {
        self.prefixes[at].last().map_or(0, |byte| self.classes[usize::from(*byte)])
    }

    /// A state's words, with what is known so far of where the others are.
    fn state(&self, at: usize) -> Vec<u32> {
        let place = |of: usize| self.states.get(of).copied().unwrap_or_default();
        let children = self.children(at);
        let (is_dense, fail, record) = (self.is_dense[at], self.fail(at), self.record(at));
        let has_fail = fail != 0 && !is_dense;
        let (count, only) = match children[..] {
            _ if is_dense => (255, 0),
            [child] => (1, u32::from(self.class_of(child))),
            _ => (children.len() as u32, 0),
        };
        let depth = (self.prefixes[at].len() as u32).min(255);
        let mut words =
            vec![count | u32::from(record.is_some()) << 8 | u32::from(has_fail) << 9 | only << 16 | depth << 24];
        words.extend(has_fail.then(|| place(fail)));
        words.extend(record.map(|record| self.records.get(record).copied().unwrap_or_default()));
        if is_dense {
            let mut row = vec![ROOT; self.class_count];
            for byte in 0..=255_u8 {
                let next = self.longest(&[&self.prefixes[at], &[byte.to_ascii_lowercase()][..]].concat());
                row[usize::from(self.classes[usize::from(byte)])] = place(next);
            }
            words.extend(row);
        } else if children.len() > 1 {
            let classes: Vec<u8> = children.iter().map(|child| self.class_of(*child)).collect();
            words.extend(packed(&classes));
            words.extend(children.iter().map(|child| place(*child)));
        }
        words
    }

    fn record_words(&self, at: usize) -> Vec<u32> {
        let own = self.own(at);
        if own.is_empty() {
            return Vec::new();
        }
        let next = if at == 0 { None } else { self.record(self.fail(at)) };
        let next = next.map_or(0, |next| self.records.get(next).copied().unwrap_or_default());
        [vec![own.len() as u32, next], own].concat()
    }

    /// Where states and records begin.
    fn plan(&mut self) {
        let mut at = ROOT as usize;
        let mut place = |len: usize| {
            at += len;
            (at - len) as u32
        };
        let states = (0..self.prefixes.len()).map(|state| place(self.state(state).len())).collect();
        let records = (0..self.prefixes.len()).map(|state| place(self.record_words(state).len())).collect();
        (self.states, self.records) = (states, records);
    }

    fn image(mut self) -> Vec<u32> {
        self.plan();
        let longest = self.literals.iter().map(|(bytes, _)| bytes.len()).max().unwrap_or(0);
        let mut image = vec![self.class_count as u32, self.literals.len() as u32, 0, longest as u32, 0, 0, 0, 0];
        image.extend(packed(&self.classes));
        (0..self.prefixes.len()).for_each(|at| image.extend(self.state(at)));
        (0..self.prefixes.len()).for_each(|at| image.extend(self.record_words(at)));
        self.add_singles(&mut image);
        self.add_bitmaps(&mut image);
        self.add_literals(&mut image);
        image[7] = image.len() as u32;
        image
    }

    fn add_singles(&self, image: &mut Vec<u32>) {
        let table = image.len();
        image[4] = table as u32;
        image.resize(table + 256, 0);
        for byte in 0..=255_u8 {
            let is_it =
                |(bytes, nocase): &Literal| bytes[..] == [byte] || *nocase && bytes.eq_ignore_ascii_case(&[byte]);
            let ranks: Vec<u32> =
                (0..).zip(&self.literals).filter(|(_, literal)| is_it(literal)).map(|(rank, _)| rank).collect();
            image[table + usize::from(byte)] = match ranks[..] {
                [] => 0,
                [rank] => rank + 1,
                _ => image.len() as u32 | 1 << 31,
            };
            if ranks.len() > 1 {
                image.push(ranks.len() as u32);
                image.extend(ranks);
            }
        }
    }

    fn add_bitmaps(&self, image: &mut Vec<u32>) {
        let fold = |byte: u8| u32::from(byte & 0x1f | byte >> 1 & 0x60);
        let (pairs, quads) = (image.len(), image.len() + 512);
        (image[5], image[6]) = (pairs as u32, quads as u32);
        image.resize(quads + 4096, 0);
        for (bytes, _) in &self.literals {
            let (table, bit) = match bytes[..] {
                [a, b] | [a, b, _] => (pairs, fold(a) | fold(b) << 7),
                [a, b, c, d, ..] => {
                    let four = [a, b, c, d].into_iter().rev().fold(0, |four, byte| four << 8 | fold(byte));
                    (quads, four.wrapping_mul(0x9e37_79b1) >> 15)
                }
                _ => continue,
            };
            image[table + bit as usize / 32] |= 1 << (bit % 32);
        }
    }

    fn add_literals(&self, image: &mut Vec<u32>) {
        let mut at = image.len() + 2 * self.literals.len();
        image[2] = image.len() as u32;
        for (bytes, nocase) in &self.literals {
            image.extend([bytes.len() as u32 | u32::from(!nocase) << 31, at as u32]);
            at += bytes.len().div_ceil(4);
        }
        self.literals.iter().for_each(|(bytes, _)| image.extend(packed(bytes)));
    }
}

/// Bytes, four a word.
fn packed(bytes: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    bytes.chunks(4).map(word).collect()
}

/// Bytes of few kinds, so that literals overlap, begin and end each other.
fn word(draw: &mut Draw, alphabet: &[u8], most: u64) -> Vec<u8> {
    (0..draw.below(most + 1)).map(|_| alphabet[draw.below(alphabet.len() as u64) as usize]).collect()
}

fn draw_literals(draw: &mut Draw, alphabet: &[u8], count: u64) -> Vec<Literal> {
    let mut literals: Vec<Literal> = Vec::new();
    for _ in 0..count {
        let most = [2, 4, 9, 70][draw.below(4) as usize];
        let mut bytes = word(draw, alphabet, most);
        if let Some((other, _)) = literals.last().filter(|_| draw.below(3) == 0) {
            bytes = other[draw.below(other.len() as u64) as usize..].to_vec();
        }
        if !bytes.is_empty() {
            literals.push((bytes, draw.below(2) == 0));
        }
    }
    literals
}

/// A text in which literals are.
fn draw_text(draw: &mut Draw, alphabet: &[u8], literals: &[Literal], most: u64) -> Vec<u8> {
    let len = draw.below(most + 1) as usize;
    let mut text = Vec::new();
    while text.len() < len {
        match draw.below(3) {
            0 if !literals.is_empty() => text.extend(&literals[draw.below(literals.len() as u64) as usize].0),
            1 => text.extend(draw.bytes(3)),
            _ => text.extend(word(draw, alphabet, 12)),
        }
    }
    text.truncate(len);
    text
}

/// An IP packet around a text, mostly a right one.
fn draw_packet(draw: &mut Draw, text: &[u8]) -> Vec<u8> {
    let options = if draw.below(4) == 0 { draw.below(11) as usize * 4 } else { 0 };
    let protocol = [6, 6, 17, 1, 47][draw.below(5) as usize];
    let transport = match protocol {
        6 => 20 + draw.below(3) as usize * 4,
        17 | 1 => 8,
        _ => 0,
    };
    let len = 20 + options + transport + text.len();
    let mut packet = vec![0x45 + (options / 4) as u8, 0, (len >> 8) as u8, len as u8, 0, 0];
    packet.extend([0x40, (draw.below(9) / 8) as u8, 64, protocol]);
    packet.extend(draw.bytes(10 + options + transport));
    if protocol == 6 {
        packet[20 + options + 12] = (transport as u8 / 4) << 4;
    }
    packet.extend(text);
    if draw.below(8) == 0 {
        let at = draw.below(packet.len().min(40) as u64) as usize;
        packet[at] = draw.next_u64() as u8;
    }
    match draw.below(16) {
        0 => packet.truncate(draw.below(len as u64) as usize),
        1 | 2 => packet.extend(word(draw, text, if text.is_empty() { 0 } else { 9 })),
        _ => {}
    }
    packet
}

/// A batch and the image of what is searched for.
struct Case {
    search: LiteralSearch,
    image: Vec<u32>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// For so many hits the list has room.
    room: u32,
}

impl Case {
    /// Up to `literals` and `packets`, of texts of up to `most` bytes.
    fn draw(draw: &mut Draw, literals: u64, packets: u64, most: u64) -> Self {
        let every: Vec<u8> = (0..=255).collect();
        let alphabets: [&[u8]; 6] = [b"a", b"aA", b"abAB", &[0, 255, b'x', b'X', b'`', b'@'], b"abcdefghijkl", &every];
        let alphabet = alphabets[draw.below(6) as usize];
        let count = draw.below(literals + 1);
        let literals = draw_literals(draw, alphabet, count);
        let count = draw.below(packets + 1) as u32;
        let mut rows = PacketRows { spans: SPANS_ALL, ..PacketRows::new(count, 2, 2 + draw.below(3) as u32) };
        rows.network = 2 + draw.below(2) as u32;
        rows.input_words = rows.network + NETWORK_WORDS + draw.below(2) as u32;
        let (mut table, mut spans) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let most = [0, 12, most][draw.below(3) as usize];
            let text = draw_text(draw, alphabet, &literals, most);
            let packet = draw_packet(draw, &text);
            table.extend(draw_row(draw, &rows, &packet, &mut spans));
        }
        let begin = draw.below(3) as usize * 16;
        let mut input = draw.bytes(begin);
        rows.input_at = begin as u64;
        input.extend(table.iter().flat_map(|word| word.to_le_bytes()));
        input.resize(input.len().next_multiple_of(16), 0);
        (rows.span_at, rows.span_bytes) = (input.len() as u64, spans.len() as u64);
        input.extend(spans);
        input.extend([0; 16]);
        rows.output_at = draw.below(3) * 16;
        let output = draw.bytes((rows.output_at + rows.output_bytes()) as usize + 16);
        let mut case = Self {
            search: LiteralSearch { rows, payload: draw.below(2) == 0, list: Listed::All, first: None },
            image: Builder::new(draw, &literals).image(),
            input,
            output,
            room: 20_000,
        };
        case.draw_use(draw);
        case
    }

    /// What is done with hits, and who takes part.
    fn draw_use(&mut self, draw: &mut Draw) {
        let rows = &mut self.search.rows;
        if draw.below(2) == 0 {
            (rows.test, rows.test_value) = (draw.below(2) as u32, draw.below(2) as u32);
            let words = self.output[rows.output_at as usize..].chunks_exact_mut(rows.output_words as usize * 4);
            words.take(rows.count as usize).for_each(|row| row[rows.test as usize] = draw.below(2) as u8);
        }
        let word = 1 + draw.below(u64::from(rows.output_words) - 1) as u32;
        let slot = if draw.below(4) == 0 { NONE } else { 2 + draw.below(2) as u32 };
        let first = FirstHit { word, slot, value: draw.below(256) as u32 };
        (self.search.list, self.search.first) = [
            (Listed::All, None),
            (Listed::All, Some(first)),
            (Listed::Nothing, Some(first)),
            (Listed::Once, None),
            (Listed::Once, Some(first)),
            (Listed::First, None),
            (Listed::First, Some(first)),
        ][draw.below(7) as usize];
        if draw.below(4) == 0 {
            self.room = draw.below(5) as u32;
        }
    }

    /// Runs the kernels, and compares list and output rows with the oracle's.
    fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        let mut rows = self.output.clone();
        let expected = oracle(&self.search, &self.image, &self.input, &mut rows);
        let (list, found) = self.on_device(stream, module).map_err(|error| error.to_string())?;
        known_answer::compare("of the output rows, byte", &found, &rows)?;
        if self.search.list == Listed::Nothing {
            return Ok(());
        }
        let count = u32::from_ne_bytes(list[..4].try_into().expect("four bytes")) as usize;
        if count < expected.len() || count > self.most(&expected) {
            return Err(format!("{count} hits are counted instead of {}", expected.len()));
        }
        match list::hits(&list) {
            None if count > self.room as usize => Ok(()),
            None => Err(format!("{count} hits have no room for {}", self.room)),
            Some(mut hits) => {
                list::keep(&mut hits, self.search.list);
                known_answer::compare("of all hits, that", &hits, &expected)
            }
        }
    }

    /// How many hits may be listed: where a literal or a packet is listed once, that is for each of the tiles that it lies in.
    fn most(&self, expected: &[u64]) -> usize {
        let is_sure = expected.len() <= SLOTS_SURE;
        match self.search.list {
            Listed::Once | Listed::First if is_sure => {
                // What the processor has to search is listed where there is no byte, too.
                expected.len() * self.search.rows.span_bytes.div_ceil(TILE_BYTES).max(1) as usize
            }
            Listed::Once | Listed::First => usize::MAX,
            Listed::All | Listed::Nothing => expected.len(),
        }
    }

    fn on_device(&self, stream: &Stream, module: &Module) -> Result<(Vec<u8>, Vec<u8>)> {
        let words: Vec<u8> = self.image.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let image = known_answer::on_device(stream, &words)?;
        let input = known_answer::on_device(stream, &self.input)?;
        let output = known_answer::on_device(stream, &self.output)?;
        let poison = vec![0xa5; list_bytes(self.room) as usize];
        let hits = known_answer::on_device(stream, &poison)?;
        let memory = Memory { input: input.slice(), output: output.slice() };
        let operands = Operands { memory, image: image.slice(), hits: hits.slice() };
        // SAFETY: the allocations live until all was read back, and do not overlap.
        unsafe { launch(stream, module, &self.search, operands) }?;
        Ok((known_answer::content(stream, &hits)?, known_answer::content(stream, &output)?))
    }
}

pub(super) fn try_out(trial: &mut Trial<'_>) -> Result<(), String> {
    let module = trial.compiled()?;
    let (rounds, literals, packets, most) = match trial.effort() {
        Effort::FirstUse => (4, 40, 60, 300),
        Effort::Interpreted => (4, 8, 6, 40),
        Effort::Exhaustive => (120, 60, 150, 700),
    };
    for round in 0..rounds {
        let mut case = Case::draw(trial.draw(), literals, packets, most);
        // At first one that finds something, so that a device that does nothing is told.
        while round == 0 && oracle(&case.search, &case.image, &case.input, &mut case.output.clone()).is_empty() {
            case = Case::draw(trial.draw(), literals, packets, most);
        }
        let LiteralSearch { rows, .. } = case.search;
        case.run(trial.stream(), module).map_err(|wrong| {
            format!(
                "literals of {} words in {} packets of {} bytes: {wrong}",
                case.image.len(),
                rows.count,
                rows.span_bytes
            )
        })?;
    }
    Ok(())
}

/// A row that tells the truth of a packet, whose bytes behind the header go into the variable part.
fn draw_row(draw: &mut Draw, rows: &PacketRows, packet: &[u8], spans: &mut Vec<u8>) -> Vec<u32> {
    let mut row: Vec<u32> = (0..rows.input_words).map(|_| draw.next_u64() as u32).collect();
    let has_network = if draw.below(16) == 0 { 0 } else { HAS_NETWORK };
    (row[0], row[1]) = (packet.len() as u32 | has_network, spans.len() as u32 / 4);
    let header: Vec<u8> = packet.iter().copied().chain([0; 20]).take(20).collect();
    row[rows.network as usize..][..NETWORK_WORDS as usize].copy_from_slice(&packed(&header));
    spans.extend(packet.iter().skip(20));
    // What is left over has the bytes of literals.
    spans.resize(spans.len().next_multiple_of(4), b'a');
    row
}
