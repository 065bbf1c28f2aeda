//! The loops on words of 8 bytes, and by tables.

use super::Loops;
use bifolio_kernels::raid6::field;

/// Every processor's.
pub(super) struct Portable;

const WORD: usize = 8;

/// Twice each byte of a word.
fn double(word: u64) -> u64 {
    let tops = (word >> 7) & 0x0101_0101_0101_0101;
    ((word << 1) & 0xfefe_fefe_fefe_fefe) ^ (tops * 0x1d)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(&bytes[at..at + WORD]);
    u64::from_ne_bytes(word)
}

impl Loops for Portable {
    fn horner(&self, sources: &[Option<&[u8]>], p: &mut [u8], q: &mut [u8]) {
        let done = horner_words(sources, p, q);
        tail_horner(sources, p, q, done);
    }

    fn sum(&self, sources: &[&[u8]], sum: &mut [u8]) {
        tail_sum(sources, sum, 0);
    }

    fn change(&self, p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]) {
        tail_change(p, q, factor, old, new, 0);
    }

    fn solve(&self, target: &mut [u8], other: &[u8], factor: u8) {
        tail_solve(target, other, factor, 0);
    }

    fn add_product(&self, target: &mut [u8], other: &[u8], factor: u8) {
        tail_add_product(target, other, factor, 0);
    }
}

fn horner_words(sources: &[Option<&[u8]>], p: &mut [u8], q: &mut [u8]) -> usize {
    let end = p.len() / WORD * WORD;
    for at in (0..end).step_by(WORD) {
        let (mut of_p, mut of_q) = (0, 0);
        for source in sources.iter().rev() {
            let data = source.map_or(0, |source| word(source, at));
            of_p ^= data;
            of_q = double(of_q) ^ data;
        }
        p[at..at + WORD].copy_from_slice(&of_p.to_ne_bytes());
        q[at..at + WORD].copy_from_slice(&of_q.to_ne_bytes());
    }
    end
}

/// From byte `from` on, as for the ends that are no whole vector.
pub(super) fn tail_horner(sources: &[Option<&[u8]>], p: &mut [u8], q: &mut [u8], from: usize) {
    for at in from..p.len() {
        let (mut of_p, mut of_q) = (0, 0);
        for source in sources.iter().rev() {
            let data = source.map_or(0, |source| source[at]);
            of_p ^= data;
            of_q = field::double(of_q) ^ data;
        }
        (p[at], q[at]) = (of_p, of_q);
    }
}

/// As [`tail_horner`].
pub(super) fn tail_sum(sources: &[&[u8]], sum: &mut [u8], from: usize) {
    sum[from..].fill(0);
    for source in sources {
        for (sum, byte) in sum[from..].iter_mut().zip(&source[from..]) {
            *sum ^= byte;
        }
    }
}

/// As [`tail_horner`].
pub(super) fn tail_change(p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8], from: usize) {
    if from == p.len() {
        return;
    }
    let row = field::row(factor);
    for at in from..p.len() {
        let change = old[at] ^ new[at];
        p[at] ^= change;
        q[at] ^= row[usize::from(change)];
    }
}

/// As [`tail_horner`].
pub(super) fn tail_solve(target: &mut [u8], other: &[u8], factor: u8, from: usize) {
    if from == target.len() {
        return;
    }
    let row = field::row(factor);
    for (target, other) in target[from..].iter_mut().zip(&other[from..]) {
        *target = row[usize::from(*target ^ other)];
    }
}

/// As [`tail_horner`].
pub(super) fn tail_add_product(target: &mut [u8], other: &[u8], factor: u8, from: usize) {
    if from == target.len() {
        return;
    }
    let row = field::row(factor);
    for (target, other) in target[from..].iter_mut().zip(&other[from..]) {
        *target ^= row[usize::from(*other)];
    }
}
