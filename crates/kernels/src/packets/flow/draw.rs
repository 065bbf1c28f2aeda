//! Random rules for packets of the kind that the known-answer test draws.

use super::image::{HEADER_WORDS, IS_WIDE, NO_LINE, PRUNER_WORDS, TABLE_WORDS, hash};
use crate::known_answer::Draw;

struct Rule {
    value: [u32; 8],
    mask: [u32; 8],
    ports: [u32; 2],
    rank: u64,
    table: usize,
}

struct Table {
    mask: [u32; 8],
    /// Slots: a hash and the first line.
    slots: Vec<[u32; 2]>,
}

impl Table {
    fn is_wide(&self) -> bool {
        self.mask[4..].iter().any(|&mask| mask != 0)
    }
}

/// The image of at most so many rules.
pub(super) fn image(draw: &mut Draw, most: u64) -> Vec<u32> {
    let count = draw.below(most + 1) as usize;
    let masks: Vec<[u32; 8]> = (0..=draw.below(6)).map(|_| mask(draw)).collect();
    let mut rules: Vec<_> = (0..count).map(|number| rule(draw, &masks, number)).collect();
    // The worst first: each one is put before those of its list.
    rules.sort_unstable_by_key(|rule| std::cmp::Reverse(rule.rank));
    let size = (count * 2).next_power_of_two().max(4);
    let mut tables: Vec<_> = masks.iter().map(|&mask| Table { mask, slots: vec![[0, NO_LINE]; size] }).collect();
    let (mut best, mut nexts) = (vec![u64::MAX; tables.len()], Vec::new());
    for (line, rule) in rules.iter().enumerate() {
        let table = &mut tables[rule.table];
        let tag = hash(&rule.value, &table.mask, table.is_wide());
        let mut at = tag as usize % size;
        while table.slots[at][1] != NO_LINE && table.slots[at][0] != tag {
            at = (at + 1) % size;
        }
        nexts.push(table.slots[at][1]);
        table.slots[at] = [tag, line as u32];
        best[rule.table] = rule.rank;
    }
    let mut order: Vec<usize> = (0..tables.len()).collect();
    order.sort_unstable_by_key(|&table| best[table]);
    write(&tables, &best, &order, &rules, &nexts)
}

fn write(tables: &[Table], best: &[u64], order: &[usize], rules: &[Rule], nexts: &[u32]) -> Vec<u32> {
    let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
    let mut image = vec![0; HEADER_WORDS];
    let mut first = 0;
    for &number in order {
        let table = &tables[number];
        image.extend(table.mask);
        image.extend([u32::from(table.is_wide()), first, table.slots.len() as u32 - 1, 0]);
        image.extend(halves(best[number]));
        image.extend([0, 0]);
        first += table.slots.len() as u32;
    }
    debug_assert_eq!(image.len(), HEADER_WORDS + order.len() * TABLE_WORDS);
    let slots_at = image.len();
    image.extend(order.iter().flat_map(|&table| tables[table].slots.iter().flatten().copied()));
    image.resize(image.len().next_multiple_of(16), 0);
    let lines_at = image.len();
    for (rule, next) in rules.iter().zip(nexts) {
        let is_wide = if rule.mask[5..].iter().any(|&mask| mask != 0) { IS_WIDE } else { 0 };
        image.extend(rule.value[..5].iter().chain(&rule.mask[..5]).chain(&rule.ports));
        image.extend(halves(rule.rank));
        image.extend([(rule.rank as u32 % 256) << 16 | is_wide, *next]);
    }
    let far_at = image.len();
    image.extend(rules.iter().flat_map(|rule| rule.value[5..].iter().chain(&rule.mask[5..]).copied()));
    image.resize(image.len().next_multiple_of(2), 0);
    let pruner_at = image.len();
    image.resize(pruner_at + PRUNER_WORDS, 0);
    for rule in rules {
        let place = order.iter().position(|&table| table == rule.table).unwrap_or_default();
        let fields = [(0, 16, 8, 0), (1, 16, 10, 0x20000), (3, 24, 12, 0x40000)];
        for (word, shift, always, first) in fields {
            let entry = pruner_at + first + (rule.value[word] >> shift) as usize * 2;
            let at = if rule.mask[word] >> shift == 0 { always } else { entry };
            image[at + place / 32] |= 1 << (place % 32);
        }
    }
    let header = [order.len(), slots_at, first as usize, lines_at, rules.len(), far_at, pruner_at, image.len()];
    image[..8].copy_from_slice(&header.map(|number| number as u32));
    image
}

fn mask(draw: &mut Draw) -> [u32; 8] {
    let mut one = |masks: [u32; 3]| masks[draw.below(3) as usize];
    let wide = one([0, 0, u32::MAX]);
    [
        one([0, 0xffff_0000, u32::MAX]),
        one([0, 0xffff_ff00, u32::MAX]),
        one([0, 0xffff, 0]),
        one([0, 0xff00_0000, 0]),
        one([0, 0xfff0, 0xffff_0000]) & wide,
        one([0, 0xff, 0]) & wide,
        one([0, 0, u32::MAX]) & wide,
        0,
    ]
}

/// A rule that tests what its table does, and perhaps more.
fn rule(draw: &mut Draw, masks: &[[u32; 8]], number: usize) -> Rule {
    let table = draw.below(masks.len() as u64) as usize;
    let mut mask = masks[table];
    let mut more = |word: usize, bits: u32| mask[word] |= if draw.below(3) == 0 { bits } else { 0 };
    more(1, 0xffff_ff03);
    more(3, 0xff03_0000);
    more(4, 15);
    more(7, 0x1);
    let address = |draw: &mut Draw| 0x0a00_0000 | (draw.below(2) as u32) << 16 | draw.below(4) as u32;
    let any = [
        address(draw),
        address(draw),
        (draw.below(8) as u32) << 16 | draw.below(8) as u32,
        [6, 17, 1, 47][draw.below(4) as usize] << 24 | (draw.below(4) as u32) << 16,
        0x0800_0000 | (draw.below(3) as u32) << 4 | [2, 3, 7, 15][draw.below(4) as usize],
        3,
        draw.below(4) as u32,
        draw.below(2) as u32,
    ];
    let value = std::array::from_fn(|word| any[word] & mask[word]);
    let range = |draw: &mut Draw| if draw.below(4) == 0 { (2 + draw.below(6) as u32) << 16 | 1 } else { 0xffff_0000 };
    let ports = [range(draw), range(draw)];
    Rule { value, mask, ports, rank: draw.below(8) << 32 | number as u64, table }
}
