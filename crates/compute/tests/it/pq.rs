//! P and Q on the CPU, at every level of instructions that the processor has, against the kernels' oracles.

use bifolio_compute::cpu::pq::{self, Level, Pq};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::raid6::{Loss, Verdict, oracle_generate, oracle_recover, oracle_scrub};

/// Lengths around every width of a vector and of a piece.
const LENGTHS: [usize; 12] = [0, 1, 7, 31, 32, 33, 63, 255, 256, 1000, 4096, 8192 + 65];

fn slices(members: &[Vec<u8>]) -> Vec<&[u8]> {
    members.iter().map(Vec::as_slice).collect()
}

fn stripe(draw: &mut Draw, data: usize, len: usize) -> Vec<Vec<u8>> {
    let mut members: Vec<_> = (0..data).map(|_| draw.bytes(len)).collect();
    let parity = oracle_generate(&slices(&members));
    members.extend(parity);
    members
}

#[test]
fn p_and_q_are_the_oracles() {
    let mut draw = Draw::afresh();
    for level in Level::available() {
        for data in [1, 2, 3, 8, 255] {
            for len in LENGTHS {
                let members = stripe(&mut draw, data, len);
                let (mut p, mut q) = (vec![0xa5; len], vec![0x5a; len]);
                Pq::at(level).generate(&slices(&members[..data]), &mut p, &mut q);
                assert!(
                    p == members[data] && q == members[data + 1],
                    "{level:?}, {data} of {len}, seed {}",
                    draw.seed()
                );
            }
        }
    }
}

#[test]
fn a_change_of_a_part_is_a_change_of_p_and_q() {
    let mut draw = Draw::afresh();
    for level in Level::available() {
        for len in LENGTHS {
            let data = 1 + draw.below(20) as usize;
            let mut members = stripe(&mut draw, data, len);
            let index = draw.below(data as u64) as usize;
            let new = draw.bytes(len);
            let (mut p, mut q) = (members[data].clone(), members[data + 1].clone());
            Pq::at(level).update(&mut p, &mut q, index as u32, &members[index], &new);
            members[index] = new;
            let [expected_p, expected_q] = oracle_generate(&slices(&members[..data]));
            assert!(p == expected_p && q == expected_q, "{level:?}, {index} of {data}, {len}, seed {}", draw.seed());
        }
    }
}

#[test]
fn every_loss_is_recovered() {
    let mut draw = Draw::afresh();
    for level in Level::available() {
        for (data, len) in [(1, 33), (2, 1000), (3, 4096 + 1), (7, 257), (11, 64)] {
            let members = stripe(&mut draw, data, len);
            let count = members.len() as u32;
            let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| Loss::two(a, b)));
            for loss in (0..count).map(Loss::one).chain(pairs).chain([Loss::NOTHING]) {
                let mut damaged = members.clone();
                for lost in loss.members() {
                    damaged[lost as usize] = draw.bytes(len);
                }
                let expected = oracle_recover(&slices(&damaged), loss);
                let mut buffers: Vec<_> = damaged.iter_mut().map(Vec::as_mut_slice).collect();
                Pq::at(level).recover(&mut buffers, loss);
                for (lost, expected) in loss.members().zip(expected) {
                    assert!(damaged[lost as usize] == expected, "{level:?}, {loss:?} of {data}, seed {}", draw.seed());
                }
                assert!(damaged == members, "{level:?}, {loss:?} of {data}, seed {}", draw.seed());
            }
        }
    }
}

#[test]
fn the_wrong_member_of_each_piece_is_named() {
    let mut draw = Draw::afresh();
    for round in 0..60 {
        let data = 1 + draw.below(9) as usize;
        let mut members = stripe(&mut draw, data, 4096 * 2 + 100);
        for _ in 0..round % 4 {
            let (member, at) = (draw.below(members.len() as u64) as usize, draw.below(8000) as usize);
            let len = 1 + draw.below(60) as usize;
            for byte in &mut members[member][at..at + len] {
                *byte ^= 1 + draw.below(255) as u8;
            }
        }
        let verdicts = pq::scrub(&slices(&members));
        assert_eq!(verdicts, oracle_scrub(&slices(&members)), "seed {}", draw.seed());
        assert!(round % 4 != 0 || verdicts == [Verdict::Clean; 3]);
    }
}
