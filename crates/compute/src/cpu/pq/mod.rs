//! P and Q of RAID-6 on the CPU: what `bifolio_kernels::raid6` does on a device.
//!
//! P is the sum of the data chunks, Q the sum of 2^i times chunk i, in GF(2^8) modulo
//! x^8 + x^4 + x^3 + x^2 + 1. The work on bytes is a handful of loops, see `Loops`, which exist for every
//! level of the processor's instructions; everything else is written once. Q is computed by Horner's
//! rule from the last chunk to the first, so that a chunk costs a doubling and two additions.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use bifolio_kernels::raid6::{Loss, PIECE_BYTES, Verdict, field};
use std::sync::OnceLock;

/// The instructions that the loops use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Words of 8 bytes, on every processor.
    Portable,
    /// 32 bytes, products by tables of nibbles.
    Avx2,
    /// 64 bytes, products by one instruction.
    Avx512Gfni,
}

impl Level {
    /// What this processor has, slowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                levels.push(Self::Avx2);
            }
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("gfni") {
                levels.push(Self::Avx512Gfni);
            }
        }
        levels
    }

    fn loops(self) -> &'static dyn Loops {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 if is_x86_feature_detected!("avx2") => &x86::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Gfni if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("gfni") => {
                &x86::Avx512Gfni
            }
            _ => &portable::Portable,
        }
    }
}

/// The loops over bytes. All slices of a call are of one length.
trait Loops: Sync {
    /// P and Q of sources, of which None is a chunk of zeroes.
    fn horner(&self, sources: &[Option<&[u8]>], p: &mut [u8], q: &mut [u8]);
    /// The sum of the sources.
    fn sum(&self, sources: &[&[u8]], sum: &mut [u8]);
    /// Adds `old + new` to P and the factor times it to Q.
    fn change(&self, p: &mut [u8], q: &mut [u8], factor: u8, old: &[u8], new: &[u8]);
    /// `target = factor * (target + other)`.
    fn solve(&self, target: &mut [u8], other: &[u8], factor: u8);
    /// `target += factor * other`.
    fn add_product(&self, target: &mut [u8], other: &[u8], factor: u8);
}

/// P and Q at one level of instructions.
#[derive(Clone, Copy)]
pub struct Pq(&'static dyn Loops);

impl std::fmt::Debug for Pq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pq").finish_non_exhaustive()
    }
}

/// The quickest that the processor has.
fn best() -> Pq {
    static BEST: OnceLock<Pq> = OnceLock::new();
    *BEST.get_or_init(|| Pq::at(Level::available().last().copied().unwrap_or(Level::Portable)))
}

/// Writes P and Q of data chunks.
///
/// # Panics
/// If lengths differ, or there is no chunk.
pub fn generate(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    best().generate(data, p, q);
}

/// Writes P and Q after the change of a part of data chunk `index` from `old` to `new`; `p` and `q` are
/// the same part of them.
///
/// # Panics
/// If lengths differ.
pub fn update(p: &mut [u8], q: &mut [u8], index: u32, old: &[u8], new: &[u8]) {
    best().update(p, q, index, old, new);
}

/// Writes the lost members of a stripe: data first, then P, then Q. Of the lost ones only the length counts.
///
/// # Panics
/// If lengths differ, there are fewer than three members, or the loss names one that is not there.
pub fn recover(members: &mut [&mut [u8]], loss: Loss) {
    best().recover(members, loss);
}

/// Writes the lost members of a stripe elsewhere, in their order. What lies in their places is not read.
///
/// # Panics
/// As [`recover`], and if there are not as many places as the loss names members.
pub(crate) fn recover_apart(members: &[&[u8]], loss: Loss, places: &mut [&mut [u8]]) {
    best().recover_apart(members, loss, places);
}

/// What is wrong with each piece of [`PIECE_BYTES`] of a stripe: data first, then P, then Q.
///
/// # Panics
/// If lengths differ, or there are fewer than three members.
pub fn scrub(members: &[&[u8]]) -> Vec<Verdict> {
    best().scrub(members)
}

impl Pq {
    /// At this level, or with portable code where the processor does not have it.
    pub fn at(level: Level) -> Self {
        Self(level.loops())
    }

    /// See [`generate`].
    pub fn generate(self, data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        assert!(!data.is_empty(), "a stripe has data");
        assert!(data.iter().all(|chunk| chunk.len() == p.len()) && p.len() == q.len(), "chunks are of one length");
        let sources: Vec<_> = data.iter().map(|chunk| Some(*chunk)).collect();
        self.0.horner(&sources, p, q);
    }

    /// See [`update`].
    pub fn update(self, p: &mut [u8], q: &mut [u8], index: u32, old: &[u8], new: &[u8]) {
        assert!([q.len(), old.len(), new.len()] == [p.len(); 3], "parts are of one length");
        self.0.change(p, q, field::power(index), old, new);
    }

    /// See [`recover`].
    pub fn recover(self, members: &mut [&mut [u8]], loss: Loss) {
        assert!(members.len() > 2, "a stripe has data, P and Q");
        let len = members[0].len();
        assert!(members.iter().all(|member| member.len() == len), "members are of one length");
        let lost: Vec<usize> = loss.members().map(|member| member as usize).collect();
        // Taken out of the row, so that the others can be read while they are written.
        let mut taken: Vec<&mut [u8]> = lost.iter().map(|member| std::mem::take(&mut members[*member])).collect();
        let row: Vec<&[u8]> = members.iter().map(|member| &**member).collect();
        self.fill(&row, &lost, &mut taken);
        for (member, chunk) in lost.into_iter().zip(taken) {
            members[member] = chunk;
        }
    }

    /// Writes the lost members of a stripe elsewhere, in their order. What lies in their places is not read.
    ///
    /// # Panics
    /// As [`recover`], and if there are not as many places as the loss names members.
    pub(crate) fn recover_apart(self, members: &[&[u8]], loss: Loss, places: &mut [&mut [u8]]) {
        assert!(members.len() > 2, "a stripe has data, P and Q");
        let len = members[0].len();
        let lens = members.iter().map(|member| member.len()).chain(places.iter().map(|place| place.len()));
        assert!(lens.into_iter().all(|other| other == len), "members are of one length");
        let lost: Vec<usize> = loss.members().map(|member| member as usize).collect();
        assert_eq!(lost.len(), places.len(), "there is a place for each lost member");
        self.fill(members, &lost, places);
    }

    /// Computes the lost members of a row into places of theirs.
    fn fill(self, members: &[&[u8]], lost: &[usize], places: &mut [&mut [u8]]) {
        let (p, q) = (members.len() - 2, members.len() - 1);
        match (lost, places) {
            ([], _) => {}
            ([a], [chunk]) if *a == q => self.q_alone(&known(members, lost), chunk),
            ([_], [chunk]) => self.0.sum(&others(members, lost), chunk),
            ([a, b], [first, second]) => {
                self.0.horner(&known(members, lost), first, second);
                let (a, b) = (*a, *b);
                if b < p {
                    let (of_p, of_q) = factors(a as u32, b as u32);
                    // `first` and `second` are P and Q of the known chunks; with the stored ones they are the sums of
                    // what is lost.
                    self.0.solve(first, members[p], 1);
                    self.0.solve(second, members[q], of_q);
                    // The first chunk in `second`, the other one in `first`, and then where they belong.
                    self.0.add_product(second, first, of_p);
                    self.0.add_product(first, second, 1);
                    first.swap_with_slice(second);
                } else if a < p && b == p {
                    self.0.solve(second, members[q], field::divide(1, field::power(a as u32)));
                    self.0.add_product(first, second, 1);
                    first.swap_with_slice(second);
                } else if a < p {
                    self.0.solve(first, members[p], 1);
                    self.0.add_product(second, first, field::power(a as u32));
                }
            }
            _ => unreachable!("a loss is of two members at most"),
        }
    }

    /// See [`scrub`].
    pub fn scrub(self, members: &[&[u8]]) -> Vec<Verdict> {
        assert!(members.len() > 2, "a stripe has data, P and Q");
        let len = members[0].len();
        assert!(members.iter().all(|member| member.len() == len), "members are of one length");
        let piece = PIECE_BYTES as usize;
        let mut scratch = [vec![0; piece.min(len)], vec![0; piece.min(len)]];
        let pieces = (0..len).step_by(piece).map(|at| at..len.min(at + piece));
        pieces
            .map(|range| {
                let parts: Vec<&[u8]> = members.iter().map(|member| &member[range.clone()]).collect();
                let [p, q] = &mut scratch;
                self.verdict(&parts, &mut p[..range.len()], &mut q[..range.len()])
            })
            .collect()
    }

    fn verdict(self, members: &[&[u8]], p: &mut [u8], q: &mut [u8]) -> Verdict {
        let data = members.len() - 2;
        self.generate(&members[..data], p, q);
        if p == members[data] && q == members[data + 1] {
            return Verdict::Clean;
        }
        let powers: Vec<u8> = (0..data as u32).map(field::power).collect();
        let suspect = |at: usize| match (p[at] ^ members[data][at], q[at] ^ members[data + 1][at]) {
            (0, 0) => Verdict::Clean,
            (_, 0) => Verdict::Member(data as u32),
            (0, _) => Verdict::Member(data as u32 + 1),
            (of_p, of_q) => {
                let found = powers.iter().position(|power| field::times(*power, of_p) == of_q);
                found.map_or(Verdict::Unknown, |member| Verdict::Member(member as u32))
            }
        };
        let both = |a, b| match (a, b) {
            (Verdict::Clean, other) | (other, Verdict::Clean) => other,
            (a, b) if a == b => a,
            _ => Verdict::Unknown,
        };
        (0..p.len()).map(suspect).fold(Verdict::Clean, both)
    }

    /// Q by itself, with P in a small buffer that is thrown away.
    fn q_alone(self, sources: &[Option<&[u8]>], q: &mut [u8]) {
        let mut p = [0; 4096];
        let piece = p.len();
        for (i, q) in q.chunks_mut(piece).enumerate() {
            let parts: Vec<Option<&[u8]>> =
                sources.iter().map(|source| source.map(|all| &all[i * piece..][..q.len()])).collect();
            self.0.horner(&parts, &mut p[..q.len()], q);
        }
    }
}

/// The data chunks, the lost ones as zeroes.
fn known<'a>(members: &[&'a [u8]], lost: &[usize]) -> Vec<Option<&'a [u8]>> {
    let data = members.len() - 2;
    (0..data).map(|i| (!lost.contains(&i)).then(|| members[i])).collect()
}

/// Data and P but for the lost one of them, of which they are the sum.
fn others<'a>(members: &[&'a [u8]], lost: &[usize]) -> Vec<&'a [u8]> {
    (0..members.len() - 1).filter(|i| !lost.contains(i)).map(|i| members[i]).collect()
}

/// What the sums of two lost chunks `a < b` are multiplied by to give chunk `a`.
fn factors(a: u32, b: u32) -> (u8, u8) {
    let apart = field::power(b - a);
    (field::divide(apart, apart ^ 1), field::divide(1, field::times(field::power(a), apart ^ 1)))
}
