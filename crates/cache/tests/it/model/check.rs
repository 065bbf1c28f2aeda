//! The protocol, checked in every order in which a file and two or three devices can take their steps.

use super::{Device, Small};
use stateright::{Checker, Model};

fn check(small: Small) {
    let description = format!("{small:?}");
    let checker = small.checker().threads(2).spawn_bfs().join();
    println!("{description}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Three devices, and bytes with one writer each: some may never write, and carry what others have.
fn three(writers: &[Option<Device>], writes: u8) -> Small {
    let writers = writers.iter().map(|writer| vec![*writer]).collect();
    Small { writers, ..Small::disjoint(3, 1, writes) }
}

#[test]
fn two_devices_and_a_cpu_that_write_bytes_of_their_own() {
    check(Small::disjoint(2, 1, 2));
    check(Small { known: true, ..Small::disjoint(2, 1, 2) });
    check(Small { eager: true, ..Small::disjoint(2, 1, 2) });
}

#[test]
fn two_pages_are_acquired_and_released_together() {
    check(Small::disjoint(2, 2, 1));
}

#[test]
fn three_devices_and_a_cpu() {
    check(Small::disjoint(3, 1, 1));
    check(three(&[None, Some(0), Some(1)], 2));
}

#[test]
fn values_that_come_back() {
    check(Small { back: true, ..Small::disjoint(2, 1, 3) });
    check(Small { back: true, ..three(&[Some(0), Some(1)], 2) });
}

/// A kernel of one mapping stores while another mapping of the device acquires the page.
#[test]
fn two_mappings_of_a_device() {
    check(Small { in_use: true, ..Small::disjoint(2, 1, 2) });
    check(Small { in_use: true, ..Small::racing_with_a_cpu(2, 2) });
}

#[test]
fn a_file_that_is_cut_and_grows() {
    check(Small { cuts: true, ..Small::disjoint(2, 1, 2) });
}

#[test]
fn errors_half_way() {
    check(Small { errors: true, ..Small::disjoint(2, 1, 2) });
    check(Small { errors: true, back: true, ..Small::disjoint(2, 1, 2) });
    check(Small { errors: true, ..three(&[None, Some(0), Some(1)], 1) });
    check(Small { errors: true, ..Small::racing_with_a_cpu(2, 2) });
}

/// What survivors have released is in the file after the loss of any device, and what they have seen of others.
#[test]
fn a_device_is_lost() {
    check(Small { losses: true, ..Small::disjoint(2, 1, 2) });
    check(Small { losses: true, ..three(&[None, Some(0), Some(1)], 1) });
    for back in [false, true] {
        check(Small { losses: true, back, ..three(&[Some(0), Some(1), Some(2)], 2) });
    }
    check(Small { losses: true, errors: true, ..three(&[Some(0), Some(1)], 2) });
    check(Small { losses: true, ..Small::racing_with_a_cpu(2, 3) });
    check(Small { losses: true, errors: true, ..Small::racing_with_a_cpu(2, 2) });
}

#[test]
fn two_and_three_devices_race_for_one_byte() {
    check(Small::racing(2, 3));
    check(Small { known: true, losses: true, ..Small::racing(3, 2) });
}

/// Symptom: what a CPU process had written was gone. Cause: a device that had released the same byte before was flushed
/// after it, and its flush asked only whether a higher device was home already.
#[test]
fn what_a_cpu_has_written_is_never_taken_back() {
    check(Small::racing_with_a_cpu(2, 3));
    check(Small::racing_with_a_cpu(3, 2));
    // Beside a byte of a device that has seen the CPU's, and is home.
    check(Small { writers: vec![vec![None, Some(1)], vec![Some(0)]], ..Small::disjoint(2, 1, 3) });
}
