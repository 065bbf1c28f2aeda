//! Both searches against a naive one.

use super::{Automaton, Hit, MAX_BYTES, MAX_PATTERNS, Matcher, Patterns};
use bifolio_testing::{noise, seed};
use std::ops::ControlFlow;

fn is_same(pattern: &[u8], found: &[u8], nocase: bool) -> bool {
    if nocase { pattern.eq_ignore_ascii_case(found) } else { pattern == found }
}

/// Every literal at every place.
fn naive(literals: &[(Vec<u8>, bool)], text: &[u8]) -> Vec<Hit> {
    let mut by_length: Vec<usize> = (0..literals.len()).collect();
    by_length.sort_by_key(|at| std::cmp::Reverse(literals[*at].0.len()));
    let mut hits = Vec::new();
    for end in 1..=text.len() {
        for at in &by_length {
            let (literal, nocase) = &literals[*at];
            if text[..end].len() >= literal.len() && is_same(literal, &text[end - literal.len()..end], *nocase) {
                hits.push(Hit { end, pattern: *at as u32 });
            }
        }
    }
    hits
}

fn patterns(literals: &[(Vec<u8>, bool)]) -> Patterns {
    let mut patterns = Patterns::new();
    for (at, (literal, nocase)) in literals.iter().enumerate() {
        assert_eq!(patterns.add(literal, *nocase), Ok(at as u32));
    }
    patterns
}

fn found_by(matcher: &Matcher, text: &[u8]) -> Vec<Hit> {
    let mut hits = Vec::new();
    let _ = matcher.scan(text, |hit| {
        hits.push(hit);
        ControlFlow::<()>::Continue(())
    });
    hits
}

#[track_caller]
fn check(literals: &[(Vec<u8>, bool)], texts: &[Vec<u8>]) -> usize {
    let patterns = patterns(literals);
    let automaton = Automaton::new(&patterns);
    let matcher = Matcher::new(patterns).unwrap();
    let mut count = 0;
    for text in texts {
        let expected = naive(literals, text);
        assert_eq!(automaton.all(text), expected, "words: {literals:?} in {text:?}");
        assert_eq!(found_by(&matcher, text), expected, "crate: {literals:?} in {text:?}");
        assert_eq!(automaton.first(text), expected.first().copied());
        count += expected.len();
    }
    assert_eq!(automaton.patterns(), literals.len());
    assert_eq!(automaton.longest(), literals.iter().map(|(literal, _)| literal.len()).max().unwrap_or(0));
    count
}

/// Bytes of few kinds, so that literals overlap, begin and end each other.
fn word(random: &mut fastrand::Rng, alphabet: &[u8], most: usize) -> Vec<u8> {
    let len = random.usize(..=most);
    (0..len).map(|_| alphabet[random.usize(..alphabet.len())]).collect()
}

#[test]
fn both_searches_find_what_a_naive_one_finds() {
    let mut random = fastrand::Rng::with_seed(seed());
    let every: Vec<u8> = (0..=255).collect();
    let alphabets: [&[u8]; 6] = [b"a", b"aA", b"abAB", &[0, 255, b'x', b'X'], b"abcdefghijkl", &every];
    let mut count = 0;
    for round in 0..600 {
        let alphabet = alphabets[round % alphabets.len()];
        let cases = random.u8(..3);
        let most = [1, 3, 9, 30][random.usize(..4)];
        let mut literals: Vec<(Vec<u8>, bool)> = (0..random.usize(..60))
            .map(|_| (word(&mut random, alphabet, most), cases == 1 || cases == 2 && random.bool()))
            .filter(|(literal, _)| !literal.is_empty())
            .collect();
        for at in 0..literals.len() / 3 {
            let (literal, nocase) = literals[at].clone();
            let (from, to) = (random.usize(..literal.len()), random.usize(1..=literal.len()));
            literals.push((literal[..to].to_vec(), nocase));
            literals.push((literal[from..].to_vec(), random.bool()));
        }
        let mut texts: Vec<Vec<u8>> = (0..4).map(|_| word(&mut random, alphabet, 120)).collect();
        texts.push(Vec::new());
        texts.push(literals.iter().flat_map(|(literal, _)| literal.iter().copied()).take(600).collect());
        count += check(&literals, &texts);
    }
    assert!(count > 10_000, "texts and literals have little to do with each other: {count} hits");
}

#[test]
fn many_literals_have_rows_of_all_kinds() {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let literals: Vec<_> = (0..3000)
        .map(|_| {
            // Long runs in common, and then a byte of many.
            let prefix: &[u8] = [&b"GET /"[..], b"\0\0\0\x01", b"User-Agent: ", b""][random.usize(..4)];
            let tail = noise(random.usize(1..4), random.u64(..));
            ([prefix, &tail[..]].concat(), random.bool())
        })
        .collect();
    let texts: Vec<Vec<u8>> = (0..20)
        .map(|_| {
            let words = (0..30).flat_map(|_| literals[random.usize(..literals.len())].0.clone());
            let mut text: Vec<u8> = words.collect();
            text.iter_mut().filter(|_| random.u8(..9) == 0).for_each(|byte| *byte ^= 0x20);
            text
        })
        .collect();
    assert!(check(&literals, &texts) > 600);
}

#[test]
fn nothing_is_found_by_nothing() {
    assert_eq!(check(&[], &[b"abc".to_vec(), Vec::new()]), 0);
}

#[test]
fn too_much_is_refused_by_a_sentence() {
    let mut patterns = Patterns::new();
    assert_eq!(patterns.add(b"", false), Err("a literal has no bytes".to_owned()));
    patterns.add(&vec![b'x'; MAX_BYTES - 1], true).unwrap();
    let told = patterns.add(b"ab", false).unwrap_err();
    assert_eq!(told, format!("the literals have more than {MAX_BYTES} bytes together"));
    patterns.add(b"a", false).unwrap();

    let mut patterns = Patterns::new();
    (0..MAX_PATTERNS).for_each(|_| _ = patterns.add(b"a", false).unwrap());
    assert_eq!(patterns.add(b"a", true), Err(format!("there are more than {MAX_PATTERNS} literals")));
    assert_eq!(Automaton::new(&patterns).all(b"a").len(), MAX_PATTERNS);
}

#[test]
fn one_literal_as_long_as_all_may_be_is_found() {
    let long = vec![b'a'; MAX_BYTES];
    let automaton = Automaton::new(&patterns(&[(long.clone(), false)]));
    assert_eq!(automaton.first(&long), Some(Hit { end: MAX_BYTES, pattern: 0 }));
    assert_eq!(automaton.first(&long[1..]), None);
    assert!(automaton.words().len() < 4 * MAX_BYTES, "{} words", automaton.words().len());
}
