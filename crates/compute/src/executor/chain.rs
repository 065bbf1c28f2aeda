//! Chains of steps: a kind of work of their own.

use crate::cost::{Kind, Path, Route};
use crate::service::Step;

/// The name of a chain of steps.
pub(crate) fn chain_name(steps: &[Step]) -> String {
    steps.iter().map(|step| step.kind().name()).collect::<Vec<_>>().join(", ")
}

/// Begins the curves of a chain with what its steps take: all of the first one, and the others on data that is
/// there already.
pub(crate) fn begin(kind: &Kind, steps: &[Step]) {
    for step in steps {
        if let Some(reason) = step.kind().refused() {
            kind.turn_off(format!("{}: {reason}", step.kind().name()));
        }
    }
    for path in [Path::Cpu, Path::Device] {
        for route in Route::ALL {
            let further = if path == Path::Cpu { route } else { Route::DeviceToDevice };
            let total = |bytes| {
                let ns =
                    |(i, step): (usize, &Step)| step.kind().curve(path, if i == 0 { route } else { further }).at(bytes);
                Some((bytes, steps.iter().enumerate().map(ns).sum::<Option<f32>>()?))
            };
            let sums: Vec<_> = (12..=24).filter_map(|log| total(1_u64 << log)).collect();
            kind.curve(path, route).draw(&sums);
        }
    }
}
