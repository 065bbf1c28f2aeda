//! AlignmentInfo: how packets are aligned that come to elements, as click-align finds.
//!
//! `AlignmentInfo(ELEMENT [CHUNK OFFSET]..., ...)`, no ports: packets at ELEMENT's inputs, in their order, start OFFSET bytes
//! after a multiple of CHUNK. Elements that do not exist are ignored.
//!
//! Elements here read words wherever they lie, so nobody asks; it is checked, and that is all.

use std::collections::HashMap;

use crate::args::{Args, Failed};
use crate::element::Element;
use crate::lang::config::split_words;

/// The element.
#[derive(Default)]
pub(super) struct AlignmentInfo;

impl Element for AlignmentInfo {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut known: HashMap<usize, Vec<String>> = HashMap::new();
        for (i, arg) in args.rest().into_iter().enumerate() {
            let words = split_words(&arg);
            let Some((name, numbers)) = words.split_first() else {
                args.warning(format_args!("empty configuration argument {i}"));
                continue;
            };
            let Some(element) = args.cx().find(name) else { continue };
            if numbers.len() % 2 != 0 {
                args.error("expected 'ELEMENTNAME CHUNK OFFSET [CHUNK OFFSET...]'");
            }
            for (i, number) in numbers.iter().enumerate().filter(|(_, number)| number.parse::<u32>().is_err()) {
                args.error(format_args!("expected {}, got '{number}'", if i % 2 == 0 { "CHUNK" } else { "OFFSET" }));
            }
            if known.insert(element, numbers.to_vec()).is_some_and(|old| old != numbers) {
                args.error(format_args!("conflicting AlignmentInfo for '{name}'"));
            }
        }
        args.finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn alignments_are_checked() {
        Harness::new("AlignmentInfo(a 8 2) AlignmentInfo(b 8 2, c, d 1 0, a) a :: Give -> b :: Take");
        let errors = Harness::errors("a :: Give -> b :: Take; AlignmentInfo(a 8, b x 2, b 4 y, )");
        for line in [
            "expected 'ELEMENTNAME CHUNK",
            "expected CHUNK, got 'x'",
            "expected OFFSET, got 'y'",
            "conflicting AlignmentInfo for 'b'",
        ] {
            assert!(errors.contains(line), "{line}: {errors}");
        }
    }
}
