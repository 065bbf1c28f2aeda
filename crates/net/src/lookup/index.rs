//! Routes by prefix, for the writer of a table: what is at a prefix, and what a node of a trie of 16, 8 and 8 bits answers.
//!
//! ```text
//!   up to 16 bits   a full binary tree in an array; node n has the children 2n and 2n + 1
//!   17 to 24 bits   for each 16 bits, a sorted list of at most 510
//!   25 to 32 bits   for each 24 bits, a sorted list of at most 510
//! ```
//!
//! Changes are noted until they are taken, so that many are published at once.

use std::borrow::Cow;
use std::collections::HashMap;

/// A route in a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Its address in the node's 8 bits.
    at: u8,
    /// Its prefix's length.
    len: u8,
    slot: u32,
    code: u32,
}

impl Entry {
    fn key(&self) -> (u8, u8) {
        (self.at, self.len)
    }
}

/// A route's place in the list of routes, and its next hop's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Found {
    pub(super) slot: u32,
    pub(super) code: u32,
}

/// What there is below 16 bits.
#[derive(Debug, Default)]
pub(super) struct Middle {
    /// Prefixes of 17 to 24 bits.
    entries: Vec<Entry>,
    /// The third bytes that have longer prefixes, in ascending order.
    pub(super) deeper: Vec<u8>,
}

/// What changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The default route.
    pub(super) default: bool,
    /// Ranges (first, number) of 16-bit prefixes whose cover by 1 to 16 bits may be another one.
    pub(super) tops: Vec<(u32, u32)>,
    /// 16-bit prefixes whose prefixes of 17 to 24 bits changed, or what is deeper came or went.
    pub(super) middles: Vec<u32>,
    /// 24-bit prefixes whose longer prefixes changed.
    pub(super) bottoms: Vec<u32>,
}

impl Changes {
    fn note(list: &mut Vec<u32>, item: u32) {
        if list.last() != Some(&item) {
            list.push(item);
        }
    }

    /// How many nodes are to be made again, at most.
    pub(super) fn nodes(&self) -> usize {
        self.middles.len() + self.bottoms.len()
    }

    /// The middles that changed, or have bottoms that did, each once, in ascending order. Only for changes that were taken.
    pub(super) fn middles_and_above_bottoms(&self) -> Cow<'_, [u32]> {
        if self.bottoms.is_empty() {
            return Cow::Borrowed(&self.middles);
        }
        let mut middles: Vec<u32> = self.bottoms.iter().map(|prefix| prefix >> 8).collect();
        middles.extend(&self.middles);
        middles.sort_unstable();
        middles.dedup();
        Cow::Owned(middles)
    }

    fn clear(&mut self) {
        self.default = false;
        self.tops.clear();
        self.middles.clear();
        self.bottoms.clear();
    }
}

/// Routes by prefix.
#[derive(Debug)]
pub(super) struct Index {
    top: Vec<Option<Found>>,
    middles: Vec<Option<Box<Middle>>>,
    bottoms: HashMap<u32, Vec<Entry>>,
    routes: usize,
    changes: Changes,
}

impl Default for Index {
    fn default() -> Self {
        let middles = std::iter::repeat_with(|| None).take(1 << 16).collect();
        Self { top: vec![None; 1 << 17], middles, bottoms: HashMap::new(), routes: 0, changes: Changes::default() }
    }
}

fn top_node(address: u32, len: u8) -> usize {
    (1 << len) | (u64::from(address) >> (32 - len)) as usize
}

impl Index {
    /// The route of a prefix.
    pub(super) fn find(&self, address: u32, len: u8) -> Option<Found> {
        let (entries, at) = match len {
            0..=16 => return self.top[top_node(address, len)],
            17..=24 => (&self.middles[(address >> 16) as usize].as_ref()?.entries, (address >> 8) as u8),
            _ => (self.bottoms.get(&(address >> 8))?, address as u8),
        };
        let entry = &entries[entries.binary_search_by_key(&(at, len), Entry::key).ok()?];
        Some(Found { slot: entry.slot, code: entry.code })
    }

    /// Sets the route of a prefix.
    pub(super) fn insert(&mut self, address: u32, len: u8, found: Found) {
        if len <= 16 {
            let old = self.top[top_node(address, len)].replace(found);
            self.routes += usize::from(old.is_none());
            return self.note_top(address, len);
        }
        let middle = self.middles[(address >> 16) as usize].get_or_insert_default();
        let (entries, at) = if len <= 24 {
            Changes::note(&mut self.changes.middles, address >> 16);
            (&mut middle.entries, (address >> 8) as u8)
        } else {
            Changes::note(&mut self.changes.bottoms, address >> 8);
            if let Err(place) = middle.deeper.binary_search(&((address >> 8) as u8)) {
                middle.deeper.insert(place, (address >> 8) as u8);
                Changes::note(&mut self.changes.middles, address >> 16);
            }
            (self.bottoms.entry(address >> 8).or_default(), address as u8)
        };
        let entry = Entry { at, len, slot: found.slot, code: found.code };
        match entries.binary_search_by_key(&(at, len), Entry::key) {
            Ok(place) => entries[place] = entry,
            Err(place) => {
                entries.insert(place, entry);
                self.routes += 1;
            }
        }
    }

    /// Removes the route of a prefix, which has one.
    pub(super) fn remove(&mut self, address: u32, len: u8) {
        self.routes -= 1;
        if len <= 16 {
            self.top[top_node(address, len)] = None;
            return self.note_top(address, len);
        }
        let Some(middle) = &mut self.middles[(address >> 16) as usize] else { return };
        if len <= 24 {
            Changes::note(&mut self.changes.middles, address >> 16);
            middle.entries.retain(|entry| entry.key() != ((address >> 8) as u8, len));
        } else if let Some(entries) = self.bottoms.get_mut(&(address >> 8)) {
            Changes::note(&mut self.changes.bottoms, address >> 8);
            entries.retain(|entry| entry.key() != (address as u8, len));
            if entries.is_empty() {
                self.bottoms.remove(&(address >> 8));
                middle.deeper.retain(|&at| at != (address >> 8) as u8);
                Changes::note(&mut self.changes.middles, address >> 16);
            }
        }
        if middle.entries.is_empty() && middle.deeper.is_empty() {
            self.middles[(address >> 16) as usize] = None;
        }
    }

    fn note_top(&mut self, address: u32, len: u8) {
        match len {
            0 => self.changes.default = true,
            _ => self.changes.tops.push((address >> 16, 1 << (16 - len))),
        }
    }

    /// Removes all routes.
    pub(super) fn clear(&mut self) {
        let mut changes = Changes { default: true, tops: vec![(0, 1 << 16)], ..Changes::default() };
        changes.middles = (0..1 << 16).filter(|&at| self.middles[at as usize].is_some()).collect();
        changes.bottoms = self.bottoms.keys().copied().collect();
        changes.middles.append(&mut self.changes.middles);
        changes.bottoms.append(&mut self.changes.bottoms);
        *self = Self { changes, ..Self::default() };
    }

    /// What changed since the last call, each node once, in ascending order.
    pub(super) fn take_changes(&mut self) -> Changes {
        let mut changes = std::mem::take(&mut self.changes);
        for list in [&mut changes.middles, &mut changes.bottoms] {
            list.sort_unstable();
            list.dedup();
        }
        changes
    }

    /// Memory for the next changes, right after they were taken: one route at a time is the common case.
    pub(super) fn give_back(&mut self, mut changes: Changes) {
        if changes.nodes() + changes.tops.len() < 64 {
            changes.clear();
            self.changes = changes;
        }
    }

    /// What changed since the last [`take_changes`](Self::take_changes).
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// How many routes there are.
    pub(super) fn routes(&self) -> usize {
        self.routes
    }

    /// How many 24-bit prefixes have longer ones.
    pub(super) fn bottoms(&self) -> usize {
        self.bottoms.len()
    }

    /// Whether a 24-bit prefix has longer ones.
    pub(super) fn has_bottom(&self, prefix: u32) -> bool {
        self.bottoms.contains_key(&prefix)
    }

    /// The default route's code; 0 for none.
    pub(super) fn default_code(&self) -> u32 {
        self.top[1].map_or(0, |found| found.code)
    }

    /// The code of the longest prefix of 1 to 16 bits that a 16-bit prefix is in; 0 for none.
    pub(super) fn cover(&self, prefix: u32) -> u32 {
        let mut node = 1 << 16 | prefix as usize;
        while node > 1 {
            if let Some(found) = self.top[node] {
                return found.code;
            }
            node >>= 1;
        }
        0
    }

    /// What there is below a 16-bit prefix.
    pub(super) fn middle(&self, prefix: u32) -> Option<&Middle> {
        self.middles[prefix as usize].as_deref()
    }

    /// Writes the codes of prefixes of 25 to 32 bits to the addresses of a 24-bit prefix; others keep theirs.
    pub(super) fn paint_bottom(&self, prefix: u32, codes: &mut [u32; 256]) {
        if let Some(entries) = self.bottoms.get(&prefix) {
            paint(entries, 32, codes);
        }
    }
}

impl Middle {
    /// Writes the codes of prefixes of 17 to 24 bits to the 24-bit prefixes of a 16-bit prefix; others keep theirs.
    pub(super) fn paint(&self, codes: &mut [u32; 256]) {
        paint(&self.entries, 24, codes);
    }
}

/// A prefix stands in the list before those inside of it, so later entries are longer ones.
fn paint(entries: &[Entry], bits: u8, codes: &mut [u32; 256]) {
    for entry in entries {
        let first = usize::from(entry.at);
        codes[first..first + (1 << (bits - entry.len))].fill(entry.code);
    }
}
