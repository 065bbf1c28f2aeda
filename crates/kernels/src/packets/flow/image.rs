//! Rules as one array of words; `flow_classify.h` has its layout. This is the lookup as the kernel does it.

/// Words before the tables.
pub const HEADER_WORDS: usize = 16;
/// Words of a table.
pub const TABLE_WORDS: usize = 16;
/// At most so many tables.
pub(super) const TABLES: usize = 64;
/// Words of the sets of tables by the upper bits of addresses, and by protocols.
pub(super) const PRUNER_WORDS: usize = (65536 + 65536 + 256) * 2;

/// No line.
pub(super) const NO_LINE: u32 = u32::MAX;
/// In a line: the rule tests words that stand elsewhere.
pub(super) const IS_WIDE: u32 = 0x8000;

/// A rule that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The number of its output.
    pub output: u16,
    /// How many rules came before it.
    pub number: u32,
}

const NUMBERS: [u32; 8] =
    [0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35, 0x27d4_eb2f, 0x1656_67b1, 0xd3a2_646d, 0xfd70_46c5, 0xb55a_4f09];

/// The hash of the bits of a key that a table tests.
pub(super) fn hash(key: &[u32; 8], mask: &[u32; 8], is_wide: bool) -> u32 {
    let part = |word: usize| u64::from((key[word] & mask[word]).wrapping_add(NUMBERS[word]));
    let pairs = if is_wide { 4 } else { 2 };
    let sum = (0..pairs).fold(0_u64, |sum, pair| sum.wrapping_add(part(2 * pair) * part(2 * pair + 1)));
    ((sum ^ sum >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// The rule for a key in the image whose words `word` gives.
pub fn look_up(word: impl Fn(usize) -> u32, key: &[u32; 8]) -> Option<Found> {
    let pair = |at: usize| u64::from(word(at + 1)) << 32 | u64::from(word(at));
    let [tables, slots_at, _, lines_at, lines, far_at, pruner_at] = std::array::from_fn(|at| word(at) as usize);
    let pruner = [key[0] >> 16, 0x10000 + (key[1] >> 16), 0x20000 + (key[3] >> 24)];
    let sets = [8, 10, 12].into_iter().zip(pruner);
    let wanted =
        sets.fold(u64::MAX, |wanted, (always, at)| wanted & (pair(always) | pair(pruner_at + 2 * at as usize)));
    let mut best: Option<(u64, u32)> = None;
    for number in (0..tables).filter(|number| wanted >> number & 1 != 0) {
        let table = HEADER_WORDS + number * TABLE_WORDS;
        if best.is_some_and(|(rank, _)| rank <= pair(table + 12)) {
            break;
        }
        let tag = hash(key, &std::array::from_fn(|at| word(table + at)), word(table + 8) != 0);
        let mut at = tag;
        let slot = loop {
            let slot = slots_at + 2 * (word(table + 9) + (at & word(table + 10))) as usize;
            if word(slot) == tag || word(slot + 1) == NO_LINE {
                break slot;
            }
            at = at.wrapping_add(1);
        };
        let mut head = if word(slot) == tag { word(slot + 1) } else { NO_LINE };
        while (head as usize) < lines {
            let line = lines_at + 16 * head as usize;
            let rank = pair(line + 12);
            if best.is_some_and(|(best, _)| best <= rank) {
                break;
            }
            if matches(&word, line, far_at + 6 * head as usize, key) {
                best = Some((rank, word(line + 14)));
                break;
            }
            head = word(line + 15);
        }
    }
    best.map(|(rank, place)| Found { output: (place >> 16) as u16, number: rank as u32 })
}

fn matches(word: &impl Fn(usize) -> u32, line: usize, far: usize, key: &[u32; 8]) -> bool {
    let is_in = |port: u32, range: u32| (range & 0xffff..=range >> 16).contains(&port);
    let near = (0..5).all(|at| (key[at] ^ word(line + at)) & word(line + 5 + at) == 0);
    let is_wide = word(line + 14) & IS_WIDE != 0;
    let wide = (0..3).all(|at| !is_wide || (key[5 + at] ^ word(far + at)) & word(far + 3 + at) == 0);
    near && wide && is_in(key[2] >> 16, word(line + 10)) && is_in(key[2] & 0xffff, word(line + 11))
}
