//! Where the tasks of a batch lie on the device: a pure decision.
//!
//! ```text
//!   pipeline's data |  A: inputs, changed in place | B: outputs of services that write elsewhere |
//!                   0                        slot bytes                                  2 slots
//! ```
//!
//! A batch of one task uses device memory of its request directly, without a copy; several tasks are gathered.

use super::job::Task;
use crate::memory::View;
use crate::service::Output;

/// Boundary of every range, where kernels on every device find it.
pub(crate) const BOUNDARY: u64 = 256;

/// Where bytes of a task are on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// At an offset of the pipeline's data.
    Staged(u64),
    /// At an address of the request's own.
    Direct(u64),
}

/// What is to be laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// Bytes, and the address if they are on the device.
    pub(crate) input: (u64, Option<u64>),
    /// The same for what is written.
    pub(crate) output: (u64, Option<u64>),
    pub(crate) writes: Writes,
}

/// How a chain writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    Nothing,
    Same,
    Apart,
}

/// Where a task's data is read, and where it is when the steps are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) input: Placement,
    pub(crate) output: Placement,
}

impl Need {
    pub(crate) fn of(task: &Task) -> Self {
        let address = |view: Option<View>, at: u64| match view {
            Some(View::Device { at: start }) => Some(start + at),
            _ => None,
        };
        let job = &task.job;
        let writes = match job.output {
            Output::Nothing => Writes::Nothing,
            Output::Same => Writes::Same,
            Output::Apart(_) => Writes::Apart,
        };
        Self {
            input: (task.bytes(), address(Some(job.source), task.input.start)),
            output: (task.output.end - task.output.start, address(job.target(), task.output.start)),
            writes,
        }
    }
}

/// The layout of each task, and the end of what A holds; none if the pipeline has no room. Kernels of services that
/// write elsewhere find both places from one base, which on devices without addresses is one allocation: there
/// `reaches_two` is false, and everything is gathered.
pub(crate) fn lay_out(needs: &[Need], slot_bytes: u64, reaches_two: bool) -> Option<(Vec<Layout>, u64)> {
    let is_alone = needs.len() == 1 && (reaches_two || needs[0].writes != Writes::Apart);
    let (mut a, mut b) = (0_u64, slot_bytes);
    let take = |cursor: &mut u64, len: u64| {
        let at = *cursor;
        *cursor = (at + len).next_multiple_of(BOUNDARY);
        Placement::Staged(at)
    };
    let mut layouts = Vec::with_capacity(needs.len());
    let mut inputs_end = 0;
    for need in needs {
        let input = match need.input.1.filter(|_| is_alone) {
            Some(address) => Placement::Direct(address),
            None => take(&mut a, need.input.0),
        };
        if let Placement::Staged(at) = input {
            inputs_end = at + need.input.0;
        }
        let direct = need.output.1.filter(|_| is_alone).map(Placement::Direct);
        let output = match need.writes {
            Writes::Nothing => input,
            Writes::Same => direct.unwrap_or_else(|| match input {
                Placement::Staged(_) => input,
                Placement::Direct(_) => take(&mut a, need.output.0),
            }),
            Writes::Apart => direct.unwrap_or_else(|| take(&mut b, need.output.0)),
        };
        layouts.push(Layout { input, output });
    }
    (a <= slot_bytes.next_multiple_of(BOUNDARY) && inputs_end <= slot_bytes && b <= 2 * slot_bytes)
        .then_some((layouts, inputs_end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn writes() -> impl Strategy<Value = Writes> {
        prop_oneof![Just(Writes::Nothing), Just(Writes::Same), Just(Writes::Apart)]
    }

    proptest! {
        #[test]
        fn ranges_lie_in_their_halves_and_never_overlap(
            sizes in vec((1_u64..5_000, 1_u64..5_000), 1..12), writes in writes(),
            source_on_device in any::<bool>(), target_on_device in any::<bool>(), slot_log in 12_u32..17,
            reaches_two in any::<bool>(),
        ) {
            let slot = 1_u64 << slot_log;
            let needs: Vec<Need> = sizes.iter().enumerate().map(|(i, (input, apart))| {
                let output = match writes { Writes::Nothing => 0, Writes::Same => *input, Writes::Apart => *apart };
                let address = |base: u64| base + i as u64 * 8192;
                Need {
                    input: (*input, source_on_device.then(|| address(1 << 40))),
                    output: (output, target_on_device.then(|| address(1 << 41))),
                    writes,
                }
            }).collect();
            let Some((layouts, end)) = lay_out(&needs, slot, reaches_two) else {
                // Only what does not fit is refused.
                let room = |of: fn(&Need) -> u64| needs.iter().map(|need| of(need).next_multiple_of(BOUNDARY)).sum::<u64>();
                prop_assert!(room(|need| need.input.0.max(need.output.0)) > slot);
                return Ok(());
            };
            let mut taken: Vec<(u64, u64)> = vec![];
            for (layout, need) in layouts.iter().zip(&needs) {
                if let Placement::Staged(at) = layout.input {
                    prop_assert!(at.is_multiple_of(BOUNDARY) && at + need.input.0 <= end && end <= slot);
                    taken.push((at, need.input.0));
                }
                match layout.output {
                    Placement::Direct(address) => prop_assert!(needs.len() == 1 && (Some(address) == need.output.1 || layout.input == layout.output)),
                    Placement::Staged(at) if layout.input != layout.output => {
                        prop_assert!(at.is_multiple_of(BOUNDARY) && at + need.output.0 <= 2 * slot);
                        prop_assert!(writes != Writes::Apart || at >= slot);
                        taken.push((at, need.output.0));
                    }
                    Placement::Staged(_) => prop_assert!(writes != Writes::Apart),
                }
                // A source that is not written over on purpose is never written.
                if let Placement::Direct(address) = layout.output && writes != Writes::Nothing {
                    prop_assert_ne!(Some(address), need.input.1);
                }
            }
            taken.sort_unstable();
            prop_assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{taken:?}");
        }
    }
}
