//! Any name, descriptor and layout of a striped set: a sentence or a set, never a panic, and every
//! byte of a range lies in exactly one member.

#![no_main]

use bifolio_io::stripe::{Layout, Name, parse_descriptor, parse_name};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

#[derive(Debug, Arbitrary)]
enum Input<'a> {
    Name(&'a str),
    Descriptor(&'a str),
    /// A descriptor that is right as far as its form goes.
    Formed {
        version: u32,
        chunk: &'a str,
        size: u64,
        members: Vec<&'a str>,
    },
    Range {
        chunk: u64,
        members: u8,
        start: u64,
        len: u32,
    },
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Name(name) => _ = parse_name(name).map(refusal_or_set),
    Input::Descriptor(text) => _ = parse_descriptor(text, Path::new("/folder")).map_err(|text| sentence(&text)),
    Input::Formed { version, chunk, size, members } => {
        let members: Vec<String> = members.iter().map(|member| format!("{member:?}")).collect();
        let text = format!(
            "version = {}\nchunk = {chunk:?}\nsize = {size}\nmembers = [{}]\n",
            version % 3,
            members.join(", ")
        );
        match parse_descriptor(&text, Path::new("/folder")) {
            Ok(set) => {
                assert!(set.chunk_bytes > 0 && set.chunk_bytes % 4096 == 0 && !set.members.is_empty());
                assert_eq!(set.size, Some(size));
            }
            Err(text) => sentence(&text),
        }
    }
    Input::Range { chunk, members, start, len } => check_range(chunk, members, start, u64::from(len)),
});

fn refusal_or_set(parsed: Result<Name, String>) {
    match parsed {
        Ok(Name::Members(set)) => {
            assert!(set.chunk_bytes > 0 && !set.members.is_empty());
            check_range(set.chunk_bytes, set.members.len().min(255) as u8, set.chunk_bytes / 3, 1 << 20);
        }
        Ok(Name::Descriptor(path)) => assert!(!path.as_os_str().is_empty()),
        Err(text) => sentence(&text),
    }
}

fn sentence(text: &str) {
    assert!(text.len() > 3 && !text.ends_with('.'), "{text:?}");
}

/// The members' parts of a range, cut into chunks, tile it.
fn check_range(chunk: u64, members: u8, start: u64, len: u64) {
    let layout = Layout::new(chunk % (1 << 40) + 1, usize::from(members).max(1));
    let start = start >> 2;
    // So that one input has some thousand pieces at most.
    let end = start + len.min(layout.chunk_bytes() * 2000);
    let mut pieces = vec![];
    for member in 0..layout.members() {
        let part = layout.part_of(&(start..end), member);
        assert!(part.end <= layout.member_bytes(end, member) || part.is_empty());
        for (offset, length) in layout.chunks_of(member, &part) {
            assert_eq!(layout.locate(offset).0, member);
            assert_eq!(layout.offset_of(member, layout.locate(offset).1), offset);
            pieces.push((offset, length));
        }
    }
    pieces.sort_unstable();
    let mut at = start;
    for (offset, length) in pieces {
        assert_eq!(offset, at, "a gap or an overlap");
        assert!(length > 0);
        at += length;
    }
    assert_eq!(at, end);
}
