//! Classification of packets by rules over many fields.
//!
//! ```text
//!   image   rules as one array of words, and the lookup of a packet's key in it
//!   key     a packet's fields, from its row
//!   draw    random rules, for the known-answer test
//! ```

mod draw;
mod image;
mod key;

pub use image::{Found, HEADER_WORDS, TABLE_WORDS, look_up};

use super::case::{self, Case, Layout};
use super::row_kernel::{Packet, RowKernel, check_output_word, check_slot, run_on_host, set_slot};
use super::rows::{NONE, PACKET_ROWS_H, PacketRows};
use crate::kernel::{KDEF_H, Kernel, Trial};
use crate::launch::bad;
use bifolio_device::{ModuleSource, Result};
use image::{PRUNER_WORDS, TABLES};

const MODULE: ModuleSource = ModuleSource {
    name: Classify::KERNEL,
    source: include_str!("../../cl/flow_classify.cl"),
    headers: &[KDEF_H, PACKET_ROWS_H, ("flow_classify.h", include_str!("../../cl/flow_classify.h"))],
    kernels: &[(Classify::KERNEL, run_on_host::<Classify>)],
};

/// The kernel; [`super::launch`] runs it with one table: the image.
#[derive(Debug)]
pub struct FlowClassify;

impl Kernel for FlowClassify {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        let rules = if trial.is_exhaustive() { 300 } else { 40 };
        case::try_rows(trial, |draw, most| {
            let case = Case::draw(draw, Layout::Flow, most);
            let image = draw::image(draw, rules);
            let miss = draw.below(256) as u32;
            let number =
                if case.rows.output_words > 1 && draw.below(2) == 0 { case.rows.output_words - 1 } else { NONE };
            let params = Classify::new(case.rows, draw.below(4) as u32, miss, number, &image);
            (
                case,
                params.expect("an image has a header"),
                vec![image.iter().flat_map(|word| word.to_le_bytes()).collect()],
            )
        })
    }
}

/// Its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classify {
    /// Where the rows are: with a network and a transport region, and a link region where rules may test that.
    pub rows: PacketRows,
    /// A byte of the output row, for the number of the output.
    pub slot: u32,
    /// Its value for packets that no rule matches.
    pub miss: u32,
    /// The output word for the number of the rule (how many came before it), all ones where none matches; or [`NONE`].
    pub number: u32,
    /// The image's first words: how many tables there are, then places and numbers of slots and of lines, places of the lines'
    /// other words and of the pruner, and the length.
    header: [u32; 8],
}

impl Classify {
    /// The parameters for an image, which begins with these words (at least [`HEADER_WORDS`]).
    pub fn new(rows: PacketRows, slot: u32, miss: u32, number: u32, image: &[u32]) -> Result<Self> {
        let Some([tables, slots_at, slots, lines_at, lines, far_at, pruner_at, words, ..]) = image.first_chunk::<16>()
        else {
            return Err(bad(format!("an image of rules has {HEADER_WORDS} words at least, got {}", image.len())));
        };
        let header = [*tables, *slots_at, *slots, *lines_at, *lines, *far_at, *pruner_at, *words];
        Ok(Self { rows, slot, miss, number, header })
    }

    /// Bytes of the image.
    pub fn image_bytes(&self) -> u64 {
        u64::from(self.header[7]) * 4
    }

    fn check_image(&self) -> Result<()> {
        let [tables, slots_at, slots, lines_at, lines, far_at, pruner_at, words] = self.header.map(u64::from);
        let parts = [
            (HEADER_WORDS as u64, tables * TABLE_WORDS as u64, 16),
            (slots_at, slots * 2, 2),
            (lines_at, lines * 16, 16),
            (far_at, lines * 6, 1),
            (pruner_at, PRUNER_WORDS as u64, 2),
        ];
        let is_wrong = |&(at, len, boundary): &(u64, u64, u64)| !at.is_multiple_of(boundary) || at + len > words;
        if tables > TABLES as u64 || parts.iter().any(is_wrong) {
            return Err(bad(format!("an image of rules contradicts itself: {:?}", self.header)));
        }
        Ok(())
    }
}

impl RowKernel for Classify {
    const KERNEL: &'static str = "flow_classify";
    const TABLES: usize = 1;

    fn rows(&self) -> &PacketRows {
        &self.rows
    }

    fn rows_mut(&mut self) -> &mut PacketRows {
        &mut self.rows
    }

    fn words(&self) -> Vec<u32> {
        [&[self.slot, self.miss, self.number][..], &self.header, &[0]].concat()
    }

    fn from_words(rows: PacketRows, words: &[u32]) -> Option<Self> {
        let ([slot, miss, number], rest) = words.split_first_chunk()?;
        let (header, _) = rest.split_first_chunk()?;
        Some(Self { rows, slot: *slot, miss: *miss, number: *number, header: *header })
    }

    fn table_bytes(&self) -> Vec<u64> {
        vec![self.image_bytes()]
    }

    fn check(&self) -> Result<()> {
        check_slot(&self.rows, self.slot, &[self.miss])?;
        check_output_word(&self.rows, self.number)?;
        if self.rows.network == NONE || self.rows.transport == NONE || self.number == self.slot / 4 {
            return Err(bad(format!("rules need network and transport regions, and a word of their own: {self:?}")));
        }
        self.check_image()
    }

    fn packet(&self, packet: &Packet<'_>, tables: &[&[u8]], output: &mut [u32]) {
        let words = |at: usize| u32::from_le_bytes(tables[0][at * 4..at * 4 + 4].try_into().expect("four bytes"));
        let found = look_up(words, &key::of_row(&self.rows, packet));
        set_slot(output, self.slot, found.map_or(self.miss, |found| u32::from(found.output)));
        if self.number != NONE {
            output[self.number as usize] = found.map_or(u32::MAX, |found| found.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::row_kernel::{from_bytes, to_bytes};
    use super::*;
    use crate::known_answer::Draw;

    #[test]
    fn parameters_travel_and_wrong_ones_are_refused() {
        let image = draw::image(&mut Draw::from_seed(bifolio_testing::seed()), 20);
        let mut rows = PacketRows::new(1, 8, 2);
        (rows.network, rows.transport) = (1, 7);
        let right = Classify::new(rows, 3, 255, 1, &image).unwrap();
        assert_eq!(from_bytes(&to_bytes(&right)), Some(right));
        assert!(right.check().is_ok() && right.image_bytes() == image.len() as u64 * 4);
        assert!(Classify::new(rows, 3, 255, 1, &image[..15]).is_err());
        for (at, value) in
            [(0, 65), (1, 17), (2, 1 << 30), (3, 24), (4, 1 << 30), (5, u32::MAX), (6, u32::MAX - 1), (7, 99)]
        {
            let mut wrong = right;
            wrong.header[at] = value;
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        let changes: [fn(&mut Classify); 5] = [
            |wrong| wrong.rows.network = NONE,
            |wrong| wrong.rows.transport = NONE,
            |wrong| wrong.slot = 4,
            |wrong| wrong.miss = 256,
            |wrong| wrong.number = 2,
        ];
        for change in changes {
            let mut wrong = right;
            change(&mut wrong);
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
