//! Lists of pages with a known answer.

use super::row::{PageKernel, Row, check, encode};
use super::run::run;
use crate::addressing::{self, Addressing};
use crate::kernel::{Effort, Trial};
use crate::known_answer::{self, Draw};
use bifolio_device::{Allocation, Module, Result, Stream};
use std::marker::PhantomData;

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub(crate) struct PageCase<K> {
    /// The whole allocations of the operands, with bytes before and between the pages.
    content: [Vec<u8>; 3],
    /// Offsets in the ranges that the launch is given.
    rows: Vec<Row>,
    /// How far into its allocation each range begins.
    shift: [usize; 3],
    by_address: bool,
    kernel: PhantomData<K>,
}

/// Where a launch has left its operands, and the words of the pages.
type Found = ([Vec<u8>; 3], Vec<u32>);

impl<K: PageKernel> PageCase<K> {
    /// `count` pages of `page_bytes`, the last one ragged and one in eight empty, in random order at random boundaries.
    /// All content is random; `fill` makes of a page what the kernel is to be tried on.
    pub(crate) fn draw(
        draw: &mut Draw,
        count: usize,
        page_bytes: u64,
        mut fill: impl FnMut(&mut Draw, [&mut [u8]; 3]),
    ) -> Self {
        let lens = draw.page_lengths(count, page_bytes);
        let shift = [(); 3].map(|()| draw.below(40) as usize * 16);
        let operands = [0, 1, 2].map(|operand: usize| {
            let lens: Vec<_> = lens.iter().map(|len| K::lens(*len)[operand]).collect();
            let (places, end) = draw.places(&lens);
            (places, draw.bytes(shift[operand] + end as usize))
        });
        let row =
            |(page, len): (usize, u64)| Row { at: [0, 1, 2].map(|operand: usize| operands[operand].0[page]), len };
        let rows: Vec<_> = lens.into_iter().enumerate().map(row).collect();
        let mut content = operands.map(|(_, bytes)| bytes);
        for row in &rows {
            fill(draw, page::<K>(&mut content, row, shift));
        }
        Self { content, rows, shift, by_address: false, kernel: PhantomData }
    }

    /// The same with addresses in the table, for devices that have their own.
    fn by_address(self) -> Self {
        Self { by_address: true, ..self }
    }

    /// Runs the kernel over poisoned words and compares words and whole allocations with the oracle's; the error is a
    /// sentence about the first that is wrong.
    fn run(&self, stream: &Stream, module: Option<&Module>) -> Result<(), String> {
        let (expected, expected_words) = self.expected();
        let (found, words) = self.on_device(stream, module, &expected_words).map_err(|error| error.to_string())?;
        let compared = known_answer::compare("the word of page", &words, &expected_words).and_then(|()| {
            let mut operands = K::OPERANDS.into_iter().zip(found.iter().zip(&expected));
            operands.try_for_each(|(name, (found, expected))| {
                known_answer::compare(&format!("of the {name}s, byte"), found, expected)
            })
        });
        let how = if self.by_address { ", by address" } else { "" };
        compared.map_err(|wrong| format!("{} pages{how}: {wrong}", self.rows.len()))
    }

    fn expected(&self) -> Found {
        let mut content = self.content.clone();
        let words = self.rows.iter().map(|row| K::oracle(page::<K>(&mut content, row, self.shift))).collect();
        (content, words)
    }

    fn on_device(&self, stream: &Stream, module: Option<&Module>, expected: &[u32]) -> Result<Found> {
        let on_device = |bytes: &[u8]| known_answer::on_device(stream, bytes);
        let memory = [on_device(&self.content[0])?, on_device(&self.content[1])?, on_device(&self.content[2])?];
        // The poison is the complement of the answer: a word that the kernel leaves alone is wrong.
        let words = on_device(&known_answer::complement(expected))?;
        let (operands, starts) = self.operands(&memory)?;
        let moved = |row: &Row| Row { at: [0, 1, 2].map(|operand: usize| row.at[operand] + starts[operand]), ..*row };
        let rows: Vec<_> = self.rows.iter().map(moved).collect();
        check::<K>(rows.iter().copied(), operands)?;
        let table = on_device(&encode(rows))?;
        // SAFETY: the allocations live until the downloads below have waited for the work; the pages were checked and
        // drawn beside each other.
        unsafe { run::<K>(stream, module, operands, table.slice(), words.slice()) }?;
        let content = |memory: &Allocation| known_answer::content(stream, memory);
        let found = [content(&memory[0])?, content(&memory[1])?, content(&memory[2])?];
        Ok((found, addressing::u32s(&content(&words)?)))
    }

    /// What places are counted from, and what is to be added to offsets to make places of them.
    fn operands<'a>(&self, memory: &'a [Allocation; 3]) -> Result<([Addressing<'a>; 3], [u64; 3])> {
        let range = |i: usize| known_answer::behind(&memory[i], self.shift[i]);
        let ranges = [range(0)?, range(1)?, range(2)?];
        if self.by_address {
            return Ok(([Addressing::Absolute; 3], ranges.map(|range| range.ptr().0)));
        }
        Ok((ranges.map(Addressing::Relative), [0; 3]))
    }
}

/// Lengths around the boundaries of 16 bytes and of one to three steps of a group, and a long page.
pub(crate) const LENGTHS: [u64; 13] = [1, 15, 16, 17, 31, 4095, 4096, 4097, 8191, 8192, 8193, 12304, 65536];

/// Tries lists of pages as `draw` makes them, by offset and, where there are addresses, by address.
pub(crate) fn try_lists<K: PageKernel>(
    trial: &mut Trial<'_>,
    draw: impl Fn(&mut Draw, usize, u64) -> PageCase<K>,
) -> Result<(), String> {
    let shapes = match trial.effort() {
        // Pages of three steps of a group, so that both loops over steps run.
        Effort::FirstUse => vec![(20, 3 * 4096)],
        Effort::Interpreted => vec![(1, 16), (5, 4096), (4, 8200), (3, 12304), (9, 100)],
        Effort::Exhaustive => {
            LENGTHS.map(|bytes| (9, bytes)).into_iter().chain([(0, 4096), (1, 4096), (700, 512)]).collect()
        }
    };
    for (count, page_bytes) in shapes {
        let case = draw(trial.draw(), count, page_bytes);
        case.run(trial.stream(), trial.module())?;
        if trial.is_exhaustive() && trial.has_addresses() {
            case.by_address().run(trial.stream(), trial.module())?;
        }
    }
    Ok(())
}

/// The parts of one page in the whole allocations.
fn page<'a, K: PageKernel>(content: &'a mut [Vec<u8>; 3], row: &Row, shift: [usize; 3]) -> [&'a mut [u8]; 3] {
    let lens = K::lens(row.len);
    let [first, second, third] = content.each_mut();
    [(first, 0), (second, 1), (third, 2)]
        .map(|(bytes, i)| &mut bytes[shift[i] + row.at[i] as usize..][..lens[i] as usize])
}
