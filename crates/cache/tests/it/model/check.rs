//! The protocol, checked in every order in which a home and two or three devices can take their steps.

use super::Small;
use stateright::{Checker, Model};

fn check(small: Small) {
    let description = format!("{small:?}");
    let checker = small.checker().threads(2).spawn_bfs().join();
    println!("{description}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn two_devices_and_a_cpu_that_write_bytes_of_their_own() {
    for eager in [false, true] {
        check(Small::disjoint(2, 1, 2, eager));
    }
}

#[test]
fn two_pages_are_acquired_and_released_together() {
    check(Small::disjoint(2, 2, 1, false));
}

#[test]
fn three_devices_and_a_cpu() {
    check(Small::disjoint(3, 1, 1, false));
}

#[test]
fn two_and_three_devices_race_for_one_byte() {
    for eager in [false, true] {
        check(Small::racing(2, 2, eager));
        check(Small::racing(3, 2, eager));
    }
}

/// Symptom: what a CPU process had written was gone. Cause: a device that had released the same byte before was flushed
/// after it, and its flush asked only whether a higher device was home already.
#[test]
fn what_a_cpu_has_written_is_never_taken_back() {
    for eager in [false, true] {
        check(Small::racing_with_a_cpu(2, 3, eager));
        check(Small::racing_with_a_cpu(3, 2, eager));
    }
}
