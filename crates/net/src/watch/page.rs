//! Rates as a table: a line for each element, the busiest first.

use super::rates::Rates;
use super::sample::Sample;
use crate::draw::short;
use std::fmt::Write;

/// Columns stand apart by this.
const GAP: usize = 2;
/// Names are cut down to this before a column is left out.
const NAME_WIDTH: usize = 20;

/// How much room there is, in characters; nothing: as much as is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// How wide a line may be.
    pub width: Option<usize>,
    /// How many lines there may be.
    pub height: Option<usize>,
}

/// A table of what passed: a line about all, a head, and a line for each element that has ports or counts something.
pub fn page(title: &str, sample: &Sample, rates: &Rates, room: Room) -> String {
    let mut rows: Vec<_> = (0..sample.elements.len()).filter(|element| is_shown(sample, *element)).collect();
    rows.sort_by_key(|element| (std::cmp::Reverse(business(sample, rates, *element)), *element));
    let columns = fitting(columns(sample, rates, &rows), room.width.unwrap_or(usize::MAX));
    // A title, a head, and one that says how many more there are.
    let most = room.height.map_or(usize::MAX, |height| height.saturating_sub(2).max(1));
    let left_out = if rows.len() > most { rows.len() - (most - 1) } else { 0 };
    let mut out = String::new();
    push_line(&mut out, &format!("{title}, {} packets/s", short(coming(sample, rates))), room.width);
    for row in 0..=rows.len() - left_out {
        push_line(&mut out, &line(&columns, row), room.width);
    }
    if left_out > 0 {
        push_line(&mut out, &format!("and {left_out} more"), room.width);
    }
    out
}

fn push_line(out: &mut String, line: &str, width: Option<usize>) {
    out.extend(line.trim_end().chars().take(width.unwrap_or(usize::MAX)));
    out.push('\n');
}

fn is_shown(sample: &Sample, element: usize) -> bool {
    let (inputs, outputs) = sample.router.ports_of(element);
    let reading = &sample.elements[element];
    inputs + outputs > 0 || reading.drops.is_some() || reading.bytes.is_some()
}

/// What comes into the router: what leaves elements without inputs.
fn coming(sample: &Sample, rates: &Rates) -> f64 {
    let is_source = |element: &usize| sample.elements[*element].inputs.is_empty();
    (0..rates.elements.len()).filter(is_source).map(|element| rates.elements[element].packets_out).sum()
}

/// How busy an element is, in steps so large that lines do not change places all the time.
fn business(sample: &Sample, rates: &Rates, element: usize) -> i64 {
    let rate = passing(rates, sample, element);
    let is_used = sample.elements[element].inputs.iter().any(|packets| *packets > 0);
    if rate > 0.0 { 1000 + (2.0 * rate.log10()).round() as i64 } else { i64::from(is_used) }
}

/// What passes an element: what comes to it, or leaves it where nothing can come.
fn passing(rates: &Rates, sample: &Sample, element: usize) -> f64 {
    let rate = &rates.elements[element];
    if sample.elements[element].inputs.is_empty() { rate.packets_out } else { rate.packets_in }
}

/// A column.
struct Column {
    cells: Vec<String>,
    width: usize,
    is_text: bool,
    /// Where there is too little room, the highest is left out first; 0: never.
    rank: u8,
}

impl Column {
    fn new(head: &str, rank: u8, is_text: bool, cells: impl Iterator<Item = String>) -> Self {
        let cells: Vec<_> = std::iter::once(head.to_owned()).chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        Self { cells, width, is_text, rank }
    }

    fn is_empty(&self) -> bool {
        self.cells[1..].iter().all(String::is_empty)
    }
}

/// All columns but those in which nothing stands.
fn columns(sample: &Sample, rates: &Rates, rows: &[usize]) -> Vec<Column> {
    let router = &sample.router;
    let number = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
    let rate = |rate: Option<f64>| rate.map_or(String::new(), short);
    let of = |text: &dyn Fn(usize) -> String| rows.iter().map(|row| text(*row)).collect::<Vec<_>>().into_iter();
    let queue = |element: usize| {
        let reading = &sample.elements[element];
        let parts = reading.length.zip(reading.capacity);
        parts.map_or(String::new(), |(length, capacity)| format!("{length}/{capacity}"))
    };
    let total = |element: usize| {
        let inputs = &sample.elements[element].inputs;
        number((!inputs.is_empty()).then(|| inputs.iter().sum()))
    };
    let all = vec![
        Column::new("ELEMENT", 0, true, of(&|element| router.name(element).to_owned())),
        Column::new("CLASS", 7, true, of(&|element| router.class_of(element).name.to_owned())),
        Column::new("PACKETS/S", 0, false, of(&|element| short(passing(rates, sample, element)))),
        Column::new("BITS/S", 6, false, of(&|element| rate(rates.elements[element].bits))),
        Column::new("PACKETS", 4, false, of(&total)),
        Column::new("DROPS/S", 2, false, of(&|element| rate(rates.elements[element].drops))),
        Column::new("DROPS", 5, false, of(&|element| number(sample.elements[element].drops))),
        Column::new("QUEUE", 3, false, of(&queue)),
    ];
    all.into_iter().filter(|column| column.rank == 0 || !column.is_empty()).collect()
}

/// Those columns which fit, and names as long as there is room for.
fn fitting(mut columns: Vec<Column>, room: usize) -> Vec<Column> {
    loop {
        let wanted = columns.iter().map(|column| column.width + GAP).sum::<usize>() - GAP;
        let excess = wanted.saturating_sub(room);
        let can_leave = columns.iter().any(|column| column.rank > 0);
        let least = if can_leave { NAME_WIDTH } else { 1 };
        let spare = columns[0].width.saturating_sub(least);
        if excess <= spare || !can_leave {
            columns[0].width -= excess.min(spare);
            return columns;
        }
        let last = columns.iter().map(|column| column.rank).max();
        columns.retain(|column| Some(column.rank) != last);
    }
}

fn line(columns: &[Column], row: usize) -> String {
    let mut out = String::new();
    for column in columns {
        let (cell, width) = (cut(&column.cells[row], column.width), column.width);
        let _ = if column.is_text { write!(out, "{cell:<width$}") } else { write!(out, "{cell:>width$}") };
        out.push_str(&" ".repeat(GAP));
    }
    out
}

/// A text as long as there is room for, without characters that would do something to a terminal.
fn cut(text: &str, width: usize) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    if text.chars().count() <= width {
        return text.chars().map(clean).collect();
    }
    text.chars().take(width.saturating_sub(1)).map(clean).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Watch;
    use crate::watch::testing::built;
    use proptest::prelude::*;
    use std::time::Duration;

    const ROUTER: &str = "AddressInfo(x 1.2.3.4);
        quiet :: Idle -> nothing :: Discard;
        source_of_packets :: InfiniteSource(LIMIT 3000, BURST 100, DATA \"0123456789\") -> c :: Counter
        -> q :: SimpleQueue(250) -> Discard(ACTIVE false);";

    fn sampled(text: &str) -> (Sample, Rates) {
        let mut running = built(text);
        let mut watch = Watch::new(running.current().clone());
        let before = watch.nothing();
        running.run_for(2000);
        let mut after = watch.sample_of(&mut running);
        after.at = before.at + Duration::from_secs(2);
        let rates = Rates::between(&before, &after).unwrap();
        (after, rates)
    }

    fn sized(width: Option<usize>, height: Option<usize>) -> String {
        let (sample, rates) = sampled(ROUTER);
        page("up 2 s", &sample, &rates, Room { width, height })
    }

    #[test]
    fn a_table_has_rates_of_all_elements_with_the_busiest_first() {
        let expected = "\
up 2 s, 1.50k packets/s
ELEMENT            CLASS           PACKETS/S  BITS/S  PACKETS  DROPS/S  DROPS    QUEUE
source_of_packets  InfiniteSource      1.50k
c                  Counter             1.50k    120k     3000
q                  SimpleQueue         1.50k             3000    1.38k   2750  250/250
quiet              Idle                    0
nothing            Discard                 0                0
Discard@7          Discard                 0                0
";
        assert_eq!(sized(None, None), expected);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let expected = "\
up 2 s, 1.50k packets/s
ELEMENT            PACKETS/S  DROPS/S    QUEUE
source_of_packets      1.50k
c                      1.50k
and 4 more
";
        assert_eq!(sized(Some(47), Some(5)), expected);
        let expected = "\
up 2 s, 1.50k pa
ELEM…  PACKETS/S
sour…      1.50k
c          1.50k
q          1.50k
";
        assert!(sized(Some(16), None).starts_with(expected), "{}", sized(Some(16), None));
    }

    proptest! {
        #[test]
        fn a_table_fits_into_any_room(width in 0..120usize, height in 0..12usize) {
            let text = sized(Some(width), Some(height));
            prop_assert!(text.lines().all(|line| line.chars().count() <= width), "{}", text);
            prop_assert!(text.lines().count() <= height.max(3), "{}", text);
        }
    }
}
