//! The device header of demand mode on every device of this machine, with the table in ordinary
//! device memory: what kernels ask, miss and finish against an oracle that knows neither header nor
//! table.

use crate::opened::devices;
use crate::probe;
use bifolio_device::{BackendKind, Device, KernelArg, Stream};
use bifolio_kernels::demand::{Answer, Layout, PagedRange};
use bifolio_kernels::known_answer::Draw;
use std::collections::BTreeSet;

/// Items' questions, as the kernel reads them.
struct Case {
    extent: PagedRange,
    file: Vec<u8>,
    there: BTreeSet<u64>,
    /// By item.
    questions: Vec<Vec<(u64, u64)>>,
    /// The items of the launch, by slot.
    items: Vec<u32>,
    goes_on: bool,
}

const POISON: u64 = 0xabab_abab_abab_abab;

impl Case {
    fn draw(draw: &mut Draw, per_item: u64, with_bad: bool) -> Self {
        let page_shift = 12 + draw.below(3) as u32;
        let length = 1 + draw.below(40 << page_shift);
        let extent = PagedRange { length, skew: draw.below(1 << page_shift), page_shift };
        // Most pages are there, so that some items find all of theirs.
        let there = (0..extent.pages()).filter(|_| draw.below(5) > 0).collect();
        let bad_item = draw.below(100);
        let question = |draw: &mut Draw, item: u64| {
            if with_bad && item == bad_item {
                return match draw.below(3) {
                    0 => (length + 1, 0),
                    1 => (draw.below(length), length + 1),
                    _ => (u64::MAX - draw.below(4), 1 + draw.below(9)),
                };
            }
            let offset = draw.below(length + 1);
            (offset, draw.below((length - offset).min(9000) + 1))
        };
        let questions = (0..100).map(|item| (0..per_item).map(|_| question(draw, item)).collect()).collect();
        // A launch of some of the items, in any order and no item twice.
        let mut items: Vec<u32> = (0..100).filter(|item| *item == bad_item as u32 || draw.below(3) > 0).collect();
        for i in (1..items.len()).rev() {
            items.swap(i, draw.below(i as u64 + 1) as usize);
        }
        Self { extent, file: draw.bytes(length as usize), there, questions, items, goes_on: draw.below(2) == 0 }
    }

    /// What the launch should leave, and the items' sums; the bad question may be any of those listed.
    fn expected(&self) -> (Answer, Vec<u64>, Vec<(u64, u64)>) {
        let (mut asked, mut finished, mut bad, mut sums) = (BTreeSet::new(), vec![], vec![], vec![POISON; 100]);
        for (slot, item) in self.items.iter().enumerate() {
            let (mut sum, mut missed) = (0_u64, false);
            for &(offset, length) in &self.questions[*item as usize] {
                if missed && !self.goes_on {
                    break;
                }
                if u128::from(offset) + u128::from(length) > u128::from(self.extent.length) {
                    bad.push((offset, length));
                    missed = true;
                    continue;
                }
                // Byte by byte, as slowly as it is sure.
                let pages: BTreeSet<u64> =
                    (offset..offset + length).map(|at| (self.extent.skew + at) >> self.extent.page_shift).collect();
                missed |= !pages.is_subset(&self.there);
                if pages.is_subset(&self.there) {
                    let bytes = &self.file[offset as usize..(offset + length) as usize];
                    sum = bytes.iter().fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                }
                asked.extend(pages);
            }
            if !missed {
                finished.push(slot as u32);
                sums[*item as usize] = sum;
            }
        }
        let (used, wanted) = asked.into_iter().partition(|page| self.there.contains(page));
        (Answer { wanted, used, finished, bad: None }, sums, bad)
    }

    fn run(&self, device: &Device, stream: &Stream) -> (Answer, Vec<u64>) {
        let module = device.load_module(&probe::PROBE).unwrap();
        let layout = Layout::new(self.extent, 100);
        // What a table held before means nothing.
        let mut table = vec![0xab; layout.bytes() as usize];
        layout.write(&mut table, &self.items, self.there.iter().copied());
        let questions: Vec<u8> = self.questions.iter().flatten().flat_map(|(offset, length)| [offset, length]).fold(
            vec![],
            |mut bytes, word| {
                bytes.extend(word.to_ne_bytes());
                bytes
            },
        );
        let upload = |bytes: &[u8]| {
            let memory = device.alloc(bytes.len() as u64).unwrap();
            stream.upload(memory.slice(), bytes).unwrap();
            memory
        };
        let [on_device, file, questions] = [&table, &self.file, &questions].map(|bytes| upload(bytes));
        let sums = upload(&[0xab; 800]);
        let per_item = self.questions[0].len() as u32;
        let params: Vec<u8> = [per_item, u32::from(self.goes_on)].into_iter().flat_map(u32::to_ne_bytes).collect();
        let args = [
            KernelArg::Buffer(on_device.ptr()),
            KernelArg::Buffer(file.ptr()),
            KernelArg::Buffer(questions.ptr()),
            KernelArg::Buffer(sums.ptr()),
            KernelArg::Bytes(&params),
        ];
        let count = self.items.len() as u32;
        // SAFETY: the arguments are those of the kernel, and their memory lives until it is downloaded.
        unsafe { stream.launch(&module, probe::KERNEL, count.div_ceil(32), 32, &args) }.unwrap();
        let part = layout.bytes_to_download(count);
        stream.download(&mut table[..part as usize], on_device.slice().part(0, part).unwrap()).unwrap();
        let mut found = vec![0; 800];
        stream.download(&mut found, sums.slice()).unwrap();
        let (words, _) = found.as_chunks::<8>();
        (layout.read(&table, count), words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }
}

#[test]
fn kernels_record_exactly_what_they_miss_on_every_device() {
    for device in devices(BackendKind::ALL) {
        let stream = device.create_stream().unwrap();
        let mut draw = Draw::from_seed(bifolio_testing::seed());
        for round in 0..40 {
            let case = Case::draw(&mut draw, 1 + round % 4, round % 5 == 4);
            let (mut expected, sums, bad) = case.expected();
            let (found, found_sums) = case.run(&device, &stream);
            // Of several wrong questions one is kept, and which is chance.
            match found.bad {
                Some(kept) => assert!(bad.contains(&kept), "{}: {kept:?} is none of {bad:?}", device.id()),
                None => assert!(bad.is_empty(), "{}: none of {bad:?} was noted", device.id()),
            }
            expected.bad = found.bad;
            assert_eq!(found, expected, "{}, round {round}", device.id());
            assert!(found_sums == sums, "{}, round {round}: sums differ", device.id());
        }
    }
}
