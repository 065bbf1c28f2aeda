//! The library as the loader sees it: its name, its symbols, and no versions of them, as the original.

use crate::support::{SYMBOLS, library};
use std::collections::BTreeSet;

const DYNAMIC: u32 = 6;
const DYNAMIC_SYMBOLS: u32 = 11;
const VERSION_DEFINITIONS: u32 = 0x6fff_fffd;
const SONAME: u64 = 14;

/// A 64-bit ELF file, as far as this test reads it.
struct Elf(Vec<u8>);

/// A section: its type, where it is, its length, and the section that it refers to.
#[derive(Clone, Copy)]
struct Section {
    kind: u32,
    offset: usize,
    len: usize,
    link: usize,
}

impl Elf {
    fn number<const BYTES: usize>(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..BYTES].copy_from_slice(&self.0[at..at + BYTES]);
        u64::from_le_bytes(bytes)
    }

    fn sections(&self) -> Vec<Section> {
        let (table, len, count) = (self.number::<8>(0x28), self.number::<2>(0x3a), self.number::<2>(0x3c));
        let section = |number| {
            let at = (table + number * len) as usize;
            Section {
                kind: self.number::<4>(at + 4) as u32,
                offset: self.number::<8>(at + 24) as usize,
                len: self.number::<8>(at + 32) as usize,
                link: self.number::<4>(at + 40) as usize,
            }
        };
        (0..count).map(section).collect()
    }

    fn text(&self, at: usize) -> &str {
        let end = self.0[at..].iter().position(|byte| *byte == 0).unwrap();
        std::str::from_utf8(&self.0[at..at + end]).unwrap()
    }
}

#[test]
fn the_library_has_the_name_and_the_functions_of_the_original_without_versions() {
    let elf = Elf(std::fs::read(library()).unwrap());
    let sections = elf.sections();
    let only = |kind| *sections.iter().find(|section| section.kind == kind).unwrap();
    assert!(sections.iter().all(|section| section.kind != VERSION_DEFINITIONS), "the original has no versions");

    let dynamic = only(DYNAMIC);
    let entries = (dynamic.offset..dynamic.offset + dynamic.len).step_by(16);
    let name = entries.map(|at| (elf.number::<8>(at), elf.number::<8>(at + 8))).find(|(tag, _)| *tag == SONAME);
    assert_eq!(elf.text(sections[dynamic.link].offset + name.unwrap().1 as usize), "libcufile.so.0");

    let symbols = only(DYNAMIC_SYMBOLS);
    let names = sections[symbols.link].offset;
    let defined: BTreeSet<&str> = (symbols.offset..symbols.offset + symbols.len)
        .step_by(24)
        .filter(|at| elf.number::<2>(at + 6) != 0)
        .map(|at| elf.text(names + elf.number::<4>(at) as usize))
        .collect();
    let expected: BTreeSet<&str> = SYMBOLS.into_iter().chain(["bifolio_cufile_last_error"]).collect();
    assert_eq!(defined, expected);
}
