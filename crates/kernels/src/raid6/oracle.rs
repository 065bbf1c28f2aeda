//! What the kernels compute, byte by byte.

use super::field;
use super::stripe::{Geometry, Loss, PIECE_BYTES, Verdict};

/// P and Q of chunks of one length.
pub fn oracle_generate(data: &[&[u8]]) -> [Vec<u8>; 2] {
    let len = data.first().map_or(0, |chunk| chunk.len());
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for chunk in data.iter().rev() {
        for (i, byte) in chunk.iter().enumerate() {
            p[i] ^= byte;
            q[i] = field::double(q[i]) ^ byte;
        }
    }
    [p, q]
}

/// The lost members of a stripe, in the order of [`Loss::members`]. Of the lost chunks only the
/// length counts.
pub fn oracle_recover(members: &[&[u8]], loss: Loss) -> Vec<Vec<u8>> {
    let data = members.len() - 2;
    let geometry = Geometry { data: data as u32, chunk_bytes: members[0].len() as u64 };
    let zero = vec![0; members[0].len()];
    let known = |i: usize| if loss.members().any(|lost| lost == i as u32) { &zero[..] } else { members[i] };
    let known: Vec<_> = (0..members.len()).map(known).collect();
    let [p, q] = oracle_generate(&known[..data]);
    let lost_data: Vec<_> = loss.members().filter(|member| *member < geometry.p()).collect();
    let has = |member| loss.members().all(|lost| lost != member);
    let add = |a: &[u8], b: &[u8]| -> Vec<u8> { a.iter().zip(b).map(|(a, b)| a ^ b).collect() };
    let times = |a: &[u8], factor: u8| -> Vec<u8> {
        let row = field::row(factor);
        a.iter().map(|a| row[usize::from(*a)]).collect()
    };
    let (of_p, of_q) = (add(&p, known[data]), add(&q, known[data + 1]));
    let mut whole: Vec<Vec<u8>> = known[..data].iter().map(|chunk| chunk.to_vec()).collect();
    match lost_data[..] {
        // p = a + b and q = 2^a a + 2^b b.
        [a, b] => {
            let (a_factor, b_factor) = (field::power(a), field::power(b));
            let inverse = field::divide(1, a_factor ^ b_factor);
            whole[a as usize] = times(&add(&of_q, &times(&of_p, b_factor)), inverse);
            whole[b as usize] = add(&of_p, &whole[a as usize]);
        }
        [a] if has(geometry.p()) => whole[a as usize] = of_p,
        [a] => whole[a as usize] = times(&of_q, field::divide(1, field::power(a))),
        _ => {}
    }
    let [p, q] = oracle_generate(&whole.iter().map(Vec::as_slice).collect::<Vec<_>>());
    whole.extend([p, q]);
    loss.members().map(|member| whole[member as usize].clone()).collect()
}

/// The verdict on each piece of a stripe.
pub fn oracle_scrub(members: &[&[u8]]) -> Vec<Verdict> {
    let data = members.len() - 2;
    let [p, q] = oracle_generate(&members[..data]);
    let powers: Vec<_> = (0..data as u32).map(field::power).collect();
    let suspect = |at: usize| match (p[at] ^ members[data][at], q[at] ^ members[data + 1][at]) {
        (0, 0) => Verdict::Clean,
        (_, 0) => Verdict::Member(data as u32),
        (0, _) => Verdict::Member(data as u32 + 1),
        (p, q) => {
            let found = powers.iter().position(|power| field::times(*power, p) == q);
            found.map_or(Verdict::Unknown, |member| Verdict::Member(member as u32))
        }
    };
    let both = |a, b| match (a, b) {
        (Verdict::Clean, other) | (other, Verdict::Clean) => other,
        (a, b) if a == b => a,
        _ => Verdict::Unknown,
    };
    let places: Vec<_> = (0..p.len()).collect();
    let pieces = places.chunks(PIECE_BYTES as usize);
    pieces.map(|piece| piece.iter().map(|at| suspect(*at)).fold(Verdict::Clean, both)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_answer::Draw;

    /// Against the definition: P and Q by slow multiplication, and every pair of lost members.
    #[test]
    fn whatever_two_members_are_lost_come_back() {
        let mut draw = Draw::afresh();
        for data in [1, 2, 3, 10, 255] {
            let chunks: Vec<_> = (0..data).map(|_| draw.bytes(16)).collect();
            let mut members = chunks.clone();
            let sum = |factor: &dyn Fn(usize) -> u8| -> Vec<u8> {
                let at = |at: usize| (0..data).fold(0, |sum, i| sum ^ field::times(factor(i), chunks[i][at]));
                (0..16).map(at).collect()
            };
            members.push(sum(&|_| 1));
            members.push(sum(&|i| (0..i).fold(1, |power, _| field::times(power, 2))));
            let slices: Vec<_> = members.iter().map(Vec::as_slice).collect();
            assert_eq!(oracle_generate(&slices[..data])[..], members[data..], "seed {}", draw.seed());
            let count = members.len() as u32;
            for (a, b) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).step_by(1 + data / 20) {
                let found = oracle_recover(&slices, Loss::two(a, b));
                assert!(found == [members[a as usize].clone(), members[b as usize].clone()], "{a} and {b} of {data}");
            }
            for a in 0..count {
                assert!(oracle_recover(&slices, Loss::one(a)) == [members[a as usize].clone()]);
                let mut wrong = members.clone();
                wrong[a as usize][7] ^= 1 + draw.below(255) as u8;
                let wrong: Vec<_> = wrong.iter().map(Vec::as_slice).collect();
                // With one data member, P and Q are copies and data of the same weight.
                assert_eq!(oracle_scrub(&wrong), [Verdict::Member(a)], "{data} members, seed {}", draw.seed());
            }
            assert_eq!(oracle_scrub(&slices), [Verdict::Clean]);
        }
    }
}
