//! Literals searched by kernels: what they find by the words of an automaton is what a matcher finds.

use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, Stream, discover, open};
use bifolio_kernels::LoadedKernel;
use bifolio_kernels::packets::literal_match::{
    self, FirstHit, Listed, LiteralMatch, LiteralSearch, Operands, list_bytes,
};
use bifolio_kernels::packets::{Memory, NONE, PacketRows, SPANS_ALL};
use bifolio_net::matcher::{Automaton, Hit, Matcher, Patterns};
use bifolio_testing::{require, seed};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// The device of the first OpenCL implementation, and the one that every machine has.
fn devices() -> Vec<Device> {
    let reports = discover();
    let opencl = reports.iter().find(|report| report.backend == BackendKind::OpenCl.name());
    let ids: Vec<DeviceId> =
        opencl.into_iter().flat_map(|report| &report.devices).map(|info| info.id).take(1).collect();
    if ids.is_empty() {
        require("there is no OpenCL device");
    }
    ids.into_iter().chain([DeviceId::HOST]).map(|id| open(DeviceChoice::Exactly(id)).unwrap()).collect()
}

/// Bytes of few kinds, so that literals overlap, begin and end each other.
fn word(random: &mut fastrand::Rng, alphabet: &[u8], most: usize) -> Vec<u8> {
    (0..random.usize(..=most)).map(|_| alphabet[random.usize(..alphabet.len())]).collect()
}

fn literals(random: &mut fastrand::Rng, alphabet: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let most = [1, 3, 9, 300][random.usize(..4)];
    let mut literals: Vec<_> = (0..random.usize(..60)).map(|_| (word(random, alphabet, most), random.bool())).collect();
    literals.retain(|(literal, _)| !literal.is_empty());
    for at in 0..literals.len() / 3 {
        let (literal, nocase) = literals[at].clone();
        let (from, to) = (random.usize(..literal.len()), random.usize(1..=literal.len()));
        literals.extend([(literal[..to].to_vec(), nocase), (literal[from..].to_vec(), random.bool())]);
    }
    literals
}

/// Texts as the spans of packets.
struct Batch {
    search: LiteralSearch,
    input: Vec<u8>,
}

impl Batch {
    fn new(texts: &[Vec<u8>]) -> Self {
        let mut rows = PacketRows { spans: SPANS_ALL, ..PacketRows::new(texts.len() as u32, 2, 2) };
        let (mut input, mut spans) = (Vec::new(), Vec::new());
        for text in texts {
            input.extend([text.len() as u32 + 20, spans.len() as u32 / 4].map(u32::to_le_bytes).concat());
            spans.extend(text);
            spans.resize(spans.len().next_multiple_of(4), b'a');
        }
        input.resize(input.len().next_multiple_of(16), 0);
        (rows.span_at, rows.span_bytes) = (input.len() as u64, spans.len() as u64);
        input.extend(spans);
        let first = Some(FirstHit { word: 1, slot: NONE, value: 0 });
        Self { search: LiteralSearch { rows, payload: false, list: Listed::All, first }, input }
    }

    /// All hits, and the output rows.
    fn on(&self, stream: &Stream, kernel: &LoadedKernel, image: &[u32], hits: u32) -> (Vec<u64>, Vec<u8>) {
        let device = stream.device();
        let put = |bytes: &[u8]| {
            let memory = device.alloc(bytes.len().max(16) as u64).unwrap();
            stream.upload(memory.slice().part(0, bytes.len() as u64).unwrap(), bytes).unwrap();
            memory
        };
        let words: Vec<u8> = image.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let (input, image) = (put(&self.input), put(&words));
        let (output, list) =
            (put(&vec![0x5a; self.search.rows.count as usize * 8]), put(&vec![0x5a; list_bytes(hits) as usize]));
        let memory = Memory { input: input.slice(), output: output.slice() };
        let operands = Operands { memory, image: image.slice(), hits: list.slice() };
        // SAFETY: the allocations live until all was read back, and do not overlap; the image is one.
        unsafe { literal_match::launch(stream, kernel.module().unwrap(), &self.search, operands) }.unwrap();
        let (mut found, mut rows) = (vec![0; list.len() as usize], vec![0; self.search.rows.count as usize * 8]);
        stream.download(&mut found, list.slice()).unwrap();
        let written = output.slice().part(0, rows.len() as u64).unwrap();
        stream.download(&mut rows, written).unwrap();
        (literal_match::hits(&found).expect("there is room"), rows)
    }
}

fn found_by(matcher: &Matcher, text: &[u8]) -> Vec<Hit> {
    let mut hits = Vec::new();
    let _ = matcher.scan(text, |hit| {
        hits.push(hit);
        ControlFlow::<()>::Continue(())
    });
    hits
}

/// Hits of a text, as a list is to have them.
fn kept(hits: &[Hit], listed: Listed) -> Vec<Hit> {
    let mut seen = HashSet::new();
    let is_kept = |hit: &Hit| match listed {
        Listed::Nothing | Listed::All => true,
        Listed::Once => seen.insert(hit.pattern),
        Listed::First => seen.insert(0),
    };
    hits.iter().copied().filter(is_kept).collect()
}

#[test]
fn kernels_find_by_the_words_what_a_matcher_finds() {
    let mut random = fastrand::Rng::with_seed(seed());
    let loaded: Vec<_> = devices()
        .into_iter()
        .map(|device| (device.create_stream().unwrap(), LoadedKernel::load(&LiteralMatch, &device).unwrap()))
        .collect();
    let every: Vec<u8> = (0..=255).collect();
    let alphabets: [&[u8]; 6] = [b"a", b"aA", b"abAB", &[0, 255, b'x', b'X'], b"abcdefghijkl", &every];
    let mut count = 0;
    for round in 0..60 {
        let alphabet = alphabets[round % alphabets.len()];
        let literals = literals(&mut random, alphabet);
        let mut patterns = Patterns::new();
        for (literal, nocase) in &literals {
            patterns.add(literal, *nocase).unwrap();
        }
        let (automaton, matcher) = (Automaton::new(&patterns), Matcher::new(patterns).unwrap());
        let most = [0, 40, 1400][random.usize(..3)];
        let mut texts: Vec<Vec<u8>> = (0..random.usize(1..12)).map(|_| word(&mut random, alphabet, most)).collect();
        texts.push(literals.iter().flat_map(|(literal, _)| literal.iter().copied()).take(9000).collect());
        let expected: Vec<Vec<Hit>> = texts.iter().map(|text| found_by(&matcher, text)).collect();
        let hits = expected.iter().map(Vec::len).sum::<usize>();
        let mut batch = Batch::new(&texts);
        let all =
            loaded.iter().flat_map(|loaded| [Listed::All, Listed::Once, Listed::First].map(|listed| (loaded, listed)));
        for ((stream, kernel), listed) in all {
            batch.search.list = listed;
            let (mut list, rows) = batch.on(stream, kernel, automaton.words(), hits as u32);
            literal_match::keep(&mut list, listed);
            for (packet, expected) in expected.iter().enumerate() {
                let own = list.iter().filter(|hit| *hit >> 32 == packet as u64);
                let found: Vec<Hit> = own.map(|hit| automaton.hit(*hit as u32).unwrap()).collect();
                assert_eq!(
                    found,
                    kept(expected, listed),
                    "{}: {literals:?} in {:?}",
                    stream.device().id(),
                    texts[packet]
                );
                let first = u32::from_le_bytes(rows[packet * 8 + 4..packet * 8 + 8].try_into().unwrap());
                assert_eq!(automaton.hit(first), expected.first().copied());
            }
        }
        count += hits;
    }
    assert!(count > 10_000, "texts and literals have little to do with each other: {count} hits");
}
