//! The classifier: tables by the bits that they test, which all have lists of rules.

use super::image::{self, Image, OUTPUTS, Order};
use super::key::{DESTINATION, HAS, Key, LINK, PORTS, PROTOCOL, SOURCE, WORDS};
use super::lists::{Found, Lists, Rank, WORST, rank};
use super::prune::Pruner;
use super::rule::Rule;
use super::slots::{NONE, Slots, Table};
use std::fmt;

/// At most so many tables: a bit each.
const TABLES: usize = 64;
/// A rule gets a table that tests more bits where a list has so many. Measured with ClassBench's rules: a few more rules
/// in a line's reach cost less than another table to look into.
const LONG: usize = 16;
/// Fewer rules than these are never made anew.
const FEW: usize = 1024;
/// Packets that are looked up together.
const BATCH: usize = 64;
/// At most so many rules.
const RULES: usize = 1 << 22;

type Mask = [u32; WORDS];

/// A classifier whose rules change one by one.
#[derive(Debug, Default)]
pub struct FlowTable {
    tables: Vec<Table>,
    /// The best rank that each table ever had.
    best: Vec<Rank>,
    /// Tables by their best ranks.
    order: Vec<u8>,
    pruner: Pruner,
    slots: Slots,
    lists: Lists,
    /// The number of the next rule.
    next: u32,
    /// How many rules there were when everything was made.
    made: usize,
    /// Rules that were removed since then.
    removed: usize,
}

/// The masks of tables for rules that test these bits, from the one that most rules share to that which tests most.
fn levels(mask: &Mask) -> [Mask; 3] {
    let mut exact = *mask;
    // All rules for IP test whether there is such a header.
    exact[LINK] &= !HAS;
    let mut shared = exact;
    for word in [SOURCE, DESTINATION] {
        let len = mask[word].leading_ones() & !7;
        shared[word] = u32::MAX.checked_shl(32 - len).unwrap_or(0);
    }
    let mut whole = shared;
    for half in [0xffff_0000, 0xffff] {
        if mask[PORTS] & half != half {
            whole[PORTS] &= !half;
        }
    }
    shared[PORTS] = 0;
    shared[PROTOCOL] = 0;
    [shared, whole, exact]
}

impl FlowTable {
    /// Makes tables for rules; there is nothing yet.
    fn make(&mut self, rules: &[Rule]) {
        let mut ranked: Vec<_> =
            rules.iter().zip(0..).map(|(rule, number)| (rank(rule.priority, number), rule)).collect();
        // The worst first, so that each one is put before those in its list.
        ranked.sort_unstable_by_key(|&(rank, _)| std::cmp::Reverse(rank));
        for (rank, rule) in ranked {
            self.insert(rule, rank);
        }
        (self.next, self.made) = (rules.len() as u32, rules.len());
    }

    /// Adds rules, behind those of the same priority: all of them, or none where they would be too many.
    pub fn add(&mut self, rules: &[Rule]) -> Result<(), String> {
        let count = self.count() + rules.len();
        if count > RULES {
            return Err(format!("{count} rules, and at most {RULES} are possible"));
        }
        // Tables that were made for few rules are not the best ones for many.
        if count > self.made.max(FEW) * 2 || rules.len() > self.count() || u32::MAX - self.next < rules.len() as u32 {
            let mut all = self.rules();
            all.extend(rules);
            *self = Self::default();
            self.make(&all);
            return Ok(());
        }
        for rule in rules {
            self.insert(rule, rank(rule.priority, self.next));
            self.next += 1;
        }
        Ok(())
    }

    /// Removes a rule: the first one that is the same. Returns whether there was one.
    pub fn remove(&mut self, rule: &Rule) -> bool {
        let found = (0..self.tables.len()).filter_map(|table| self.find(table, rule)).min_by_key(|&(rank, ..)| rank);
        let Some((_, table, number)) = found else { return false };
        let tag = self.tables[table].tag(&Key(rule.value));
        let head = self.slots.head(&self.tables[table], tag);
        let head = self.lists.remove(head, number);
        self.slots.set(&mut self.tables[table], tag, head);
        self.removed += 1;
        if self.removed > self.lists.len().max(FEW) {
            let rules = self.rules();
            *self = Self::default();
            self.make(&rules);
        }
        true
    }

    /// The first rule of a table that is the same.
    fn find(&self, table: usize, rule: &Rule) -> Option<(Rank, usize, u32)> {
        let slots = &self.tables[table];
        if !slots.takes(&rule.mask) {
            return None;
        }
        let mut list = self.lists.list(self.slots.head(slots, slots.tag(&Key(rule.value))));
        list.find(|&number| self.lists.rule(number) == *rule).map(|number| (self.lists.rank(number), table, number))
    }

    fn insert(&mut self, rule: &Rule, rank: Rank) {
        let table = self.choose(rule);
        let number = self.lists.store(rule, rank, table);
        let tag = self.tables[table].tag(&Key(rule.value));
        let head = self.slots.head(&self.tables[table], tag);
        let head = self.lists.insert(head, number);
        self.slots.set(&mut self.tables[table], tag, head);
        self.pruner.add(&rule.value, &rule.mask, table);
        if rank < self.best[table] {
            self.best[table] = rank;
            self.order.sort_unstable_by_key(|&table| self.best[usize::from(table)]);
        }
    }

    /// The table for a rule: one whose list for it is short, and that tests the most bits.
    fn choose(&mut self, rule: &Rule) -> usize {
        let is_short = |table: &Table| {
            let head = self.slots.head(table, table.tag(&Key(rule.value)));
            self.lists.list(head).take(LONG).count() < LONG
        };
        if let Some(table) = self.finest(rule, is_short).or_else(|| self.make_table(&rule.mask)) {
            return table;
        }
        let any = self.finest(rule, |_| true).or_else(|| self.add_table([0; WORDS]));
        any.expect("a place is kept for a table that takes every rule")
    }

    /// Of the tables that take a rule and are wanted, the one that tests the most bits.
    fn finest(&self, rule: &Rule, is_wanted: impl Fn(&Table) -> bool) -> Option<usize> {
        let wanted = self.tables.iter().enumerate().filter(|(_, table)| table.takes(&rule.mask) && is_wanted(table));
        wanted.max_by_key(|(_, table)| table.bits()).map(|(number, _)| number)
    }

    /// A new table for a rule, if there is one that it has not tried.
    fn make_table(&mut self, mask: &Mask) -> Option<usize> {
        let is_new = |mask: &Mask| self.tables.iter().all(|table| table.mask != *mask);
        let mask = levels(mask).into_iter().find(is_new)?;
        self.add_table(mask)
    }

    fn add_table(&mut self, mask: Mask) -> Option<usize> {
        let number = self.tables.len();
        // The last place is kept for a table that takes every rule.
        if number >= TABLES || (number + 1 == TABLES && mask != [0; WORDS]) {
            return None;
        }
        self.tables.push(self.slots.table(mask));
        self.best.push(WORST);
        self.order.push(number as u8);
        Some(number)
    }

    /// The output of the best rule for each packet; nothing where none matches.
    pub fn classify(&self, keys: &[Key], outputs: &mut Vec<Option<u16>>) {
        outputs.clear();
        for keys in keys.chunks(BATCH) {
            let mut found = [Found::NOTHING; BATCH];
            self.look_up(keys, &mut found);
            outputs.extend(found[..keys.len()].iter().map(|found| found.output));
        }
    }

    /// Looks up to `BATCH` packets up, table by table, so that their loads do not wait for each other.
    fn look_up(&self, keys: &[Key], found: &mut [Found; BATCH]) {
        let mut tables = [0; BATCH];
        let mut any = 0;
        for (tables, key) in tables.iter_mut().zip(keys) {
            *tables = self.pruner.get(key);
            any |= *tables;
        }
        for &table in &self.order {
            if any >> table & 1 != 0 {
                self.look_in(usize::from(table), keys, &tables, found);
            }
        }
    }

    #[inline]
    fn look_in(&self, number: usize, keys: &[Key], tables: &[u64; BATCH], found: &mut [Found; BATCH]) {
        let (table, best) = (&self.tables[number], self.best[number]);
        // Which packets look here, without branches that nobody could foresee.
        let (mut who, mut count) = ([0_u8; BATCH], 0);
        for at in 0..keys.len().min(BATCH) {
            who[count] = at as u8;
            count += usize::from(tables[at] >> number & 1 != 0 && found[at].rank > best);
        }
        let mut heads = [NONE; BATCH];
        for (head, &at) in heads.iter_mut().zip(&who[..count]) {
            *head = self.slots.head(table, table.tag(&keys[usize::from(at)]));
        }
        for (&head, &at) in heads.iter().zip(&who[..count]) {
            let at = usize::from(at);
            if head != NONE {
                self.lists.look(head, &keys[at], &mut found[at]);
            }
        }
    }

    /// All of it as one array for a device, whose kernel `flow_classify` gives the same answers. It is made anew after
    /// changes, in some milliseconds for 10,000 rules; a device keeps the old one until those who look into it are done. The
    /// error: a rule's output has a number that a device cannot tell.
    pub fn image(&self) -> Result<Vec<u32>, String> {
        if let Some(output) = self.lists.outputs().find(|&output| output >= OUTPUTS) {
            return Err(format!("a device cannot tell output {output}, only those up to {}", OUTPUTS - 1));
        }
        let mut image = Image::with_capacity(self.size().1 / 4 + 4096);
        let mut slots = 0;
        for &number in &self.order {
            let (table, best) = (&self.tables[usize::from(number)], self.best[usize::from(number)]);
            let [first, size] = [slots, table.size()];
            image.table(&table.mask, table.is_wide(), [first, size], best);
            slots += size;
        }
        let slots_at = image.begin(2);
        self.order.iter().for_each(|&table| image.words(self.slots.of(&self.tables[usize::from(table)])));
        let lines_at = image.begin(image::TABLE);
        image.words(self.lists.lines());
        let far_at = image.begin(1);
        image.words(self.lists.far());
        let pruner_at = image.begin(2);
        let order = Order::new(&self.order);
        image.words(self.pruner.sets().map(|tables| order.apply(tables)));
        let counts = [self.order.len() as u32, slots_at, slots, lines_at, self.lists.places(), far_at, pruner_at];
        image.set(0, &counts);
        image.set(8, self.pruner.always().map(|tables| order.apply(tables)).as_flattened());
        Ok(image.finish())
    }

    /// All rules, in the order in which they are tried.
    pub fn rules(&self) -> Vec<Rule> {
        self.lists.sorted()
    }

    /// How many rules there are.
    pub fn count(&self) -> usize {
        self.lists.len()
    }

    /// How many tables there are, and how many bytes of memory.
    pub fn size(&self) -> (usize, usize) {
        (self.tables.len(), self.lists.bytes() + self.slots.bytes() + self.pruner.bytes())
    }
}

/// A line for each rule, in the order in which they are tried.
impl fmt::Display for FlowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules().iter().try_for_each(|rule| writeln!(f, "{rule}"))
    }
}
