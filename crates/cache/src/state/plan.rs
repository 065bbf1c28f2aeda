//! What is done with what another process has left, from what it has written down alone.

use super::lease::{Client, Grant};
use super::record::{Operation, RecordNumber, Transition};
use crate::page::{Device, Home, Page};
use std::ops::Range;

/// What was being done, and who used what.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// With the pages in ascending order.
    pub(crate) transitions: Vec<(RecordNumber, Transition, Vec<u64>)>,
    pub(crate) leases: Vec<Grant>,
}

/// One step, after which its record or its lease ends. A step that was begun and not ended can be done again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// What a device has of some pages is not to be believed. The file has them.
    Drop { device: Device, pages: Vec<u64> },
    /// What was read goes under what the device has changed.
    Merge { device: Device, pages: Vec<u64>, inputs: u32 },
    /// The device is home.
    Fold { device: Device, pages: Range<u64>, inputs: u32, donors: Vec<Device>, has_origin: bool },
    /// What the device has is released, and its twin.
    Release { device: Device, pages: Vec<u64> },
    /// What the file lacks is written to it, from a byte on.
    Flush { device: Device, pages: Vec<u64>, from: u64 },
    /// What lies there is zeroes, and nobody's change.
    Blank { bytes: Range<u64> },
    /// Somebody is not there any more: what he has changed and not released is taken back.
    End(Grant),
}

/// What is to be done, in this order: operations, which have pages of their own each, and then leases, from the latest on.
/// The record that ends with a step is beside it.
pub(crate) fn steps(
    found: &Found,
    page: impl Fn(u64) -> Option<Page>,
    is_alive: impl Fn(Client) -> bool,
) -> Vec<(Option<RecordNumber>, Step)> {
    let step = |(number, transition, pages): &(RecordNumber, Transition, Vec<u64>)| {
        (Some(*number), step_of(transition, pages, &page))
    };
    let dead = found.leases.iter().rev().filter(|lease| !is_alive(lease.client));
    let end = |lease: &Grant| (None, Step::End(lease.clone()));
    found.transitions.iter().map(step).chain(dead.map(end)).collect()
}

fn step_of(transition: &Transition, pages: &[u64], page: impl Fn(u64) -> Option<Page>) -> Step {
    let device = transition.device;
    let those = |is: &dyn Fn(&Page) -> bool| -> Vec<u64> {
        pages.iter().copied().filter(|number| page(*number).is_some_and(|page| is(&page))).collect()
    };
    match transition.operation {
        Operation::Fetch => Step::Drop { device, pages: those(&|page| page.is_settled()) },
        // Whatever became of them, places of what was read go by all pages.
        Operation::Merge => Step::Merge { device, pages: pages.to_vec(), inputs: transition.inputs },
        Operation::Fold => Step::Fold {
            device,
            pages: pages.first().map_or(0..0, |first| *first..pages.last().unwrap_or(first) + 1),
            inputs: transition.inputs,
            donors: (0..64).filter(|donor| transition.donors & (1 << donor) != 0).collect(),
            has_origin: transition.has_origin,
        },
        Operation::Release => Step::Release { device, pages: those(&|page| page.is_held_by(device)) },
        Operation::Flush => {
            let lacks = |page: &Page| page.home() == Home::Device(device) || page.is_donor(device);
            Step::Flush { device, pages: those(&lacks), from: transition.bytes.start }
        }
        Operation::Cut => Step::Blank { bytes: transition.bytes.clone() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::lease::Use;

    fn transition(operation: Operation) -> Transition {
        Transition { bytes: 7..9, donors: 0b110, inputs: 3, ..Transition::of(operation, 1) }
    }

    /// Page 0 is nobody's, 1 is the file's and held, 2 is home on device 1, and 3 has it as a donor.
    fn page(number: u64) -> Option<Page> {
        let mut page = Page::new();
        if number > 0 {
            (0..2).for_each(|device| page.fetched(device));
        }
        match number {
            2 => page.released(1),
            3 => {
                page.released(0);
                page.released(1);
            }
            4.. => return None,
            _ => {}
        }
        Some(page)
    }

    #[test]
    fn each_operation_is_done_or_was_never_begun() {
        let all = vec![0, 1, 2, 3, 4];
        let step = |operation| step_of(&transition(operation), &all, page);
        assert_eq!(step(Operation::Fetch), Step::Drop { device: 1, pages: vec![0, 1] });
        assert_eq!(step(Operation::Merge), Step::Merge { device: 1, pages: all.clone(), inputs: 3 });
        assert_eq!(step(Operation::Release), Step::Release { device: 1, pages: vec![1, 2, 3] });
        assert_eq!(step(Operation::Flush), Step::Flush { device: 1, pages: vec![2, 3], from: 7 });
        assert_eq!(step(Operation::Cut), Step::Blank { bytes: 7..9 });
        let fold = Step::Fold { device: 1, pages: 0..5, inputs: 3, donors: vec![1, 2], has_origin: false };
        assert_eq!(step(Operation::Fold), fold);
    }

    #[test]
    fn leases_of_the_dead_end_after_all_operations_and_the_living_keep_theirs() {
        let lease = |client, what| Grant { client, number: client, device: 0, what, bytes: 0..1 };
        let leases = vec![lease(1, Use::Mapped), lease(2, Use::Mapped), lease(2, Use::Write), lease(1, Use::Read)];
        let found = Found { transitions: vec![(5, transition(Operation::Cut), vec![])], leases };
        let steps = steps(&found, page, |client| client == 1);
        let ends = [Step::End(lease(2, Use::Write)), Step::End(lease(2, Use::Mapped))].map(|end| (None, end));
        assert_eq!(steps[0], (Some(5), Step::Blank { bytes: 7..9 }));
        assert_eq!(steps[1..], ends);
    }
}
