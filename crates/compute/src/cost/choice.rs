//! CPU or device: a pure decision.

use super::path::Path;

/// What is known when a request comes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Outlook {
    /// What the CPU takes for it, in nanoseconds.
    pub(crate) cpu_ns: Option<f32>,
    /// What the device takes for it, with its share of a batch's fixed cost.
    pub(crate) device_ns: Option<f32>,
    /// What is already waiting for the CPU, as time until its threads are free.
    pub(crate) cpu_backlog_ns: f32,
    /// The same for the device.
    pub(crate) device_backlog_ns: f32,
    /// So many times as long as the better path the other one may take to be tried now.
    pub(crate) trial_ratio: Option<f32>,
}

/// What was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) path: Path,
    /// It is not the one that is thought to be over first.
    pub(crate) is_trial: bool,
}

/// One request in so many tries the other path, while that is thought to take at most so many times as long: often
/// where the two are near each other, and seldom where one is far off, perhaps by mistake. Either costs 0.8 %.
const TRIALS: [(u64, f32); 2] = [(2048, 16.0), (64, 1.5)];

/// After a trial no other one begins for so many times its duration: whatever a trial takes in truth, trials take
/// one part in a hundred of the time.
pub(crate) const TRIAL_PAUSE: f32 = 100.0;

/// Whether it is the turn of a request for a trial, and how far off the other path may be. It is one of `turns`
/// requests from the one with the number `tick` on, for all of which is chosen once.
pub(crate) fn trial_ratio(tick: u64, turns: u64) -> Option<f32> {
    let passes = |every: u64| tick / every != tick.wrapping_add(turns) / every;
    TRIALS.iter().find(|(every, _)| passes(*every)).map(|(_, ratio)| *ratio)
}

/// Takes the path on which the request is over first, or tries the other one. Without any measurement of the device,
/// the CPU.
pub(crate) fn choose(outlook: Outlook) -> Choice {
    let Outlook { cpu_ns, device_ns, cpu_backlog_ns, device_backlog_ns, trial_ratio } = outlook;
    let sure = |path| Choice { path, is_trial: false };
    let (Some(cpu), Some(device)) = (cpu_ns, device_ns) else {
        return sure(if device_ns.is_some() { Path::Device } else { Path::Cpu });
    };
    let (cpu, device) = (cpu + cpu_backlog_ns, device + device_backlog_ns);
    let (best, other, worse, better) =
        if cpu <= device { (Path::Cpu, Path::Device, device, cpu) } else { (Path::Device, Path::Cpu, cpu, device) };
    let is_trial = trial_ratio.is_some_and(|ratio| worse <= ratio * better);
    Choice { path: if is_trial { other } else { best }, is_trial }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_path_that_ends_first_is_taken_but_for_trials(
            cpu in 1.0_f32..1e9, device in 1.0_f32..1e9, cpu_backlog_ns in 0.0_f32..1e9,
            device_backlog_ns in 0.0_f32..1e9, tick in any::<u64>(),
        ) {
            let outlook = Outlook {
                cpu_ns: Some(cpu),
                device_ns: Some(device),
                cpu_backlog_ns,
                device_backlog_ns,
                trial_ratio: trial_ratio(tick, 1),
            };
            let ends = |path| if path == Path::Cpu { cpu + cpu_backlog_ns } else { device + device_backlog_ns };
            let best = ends(Path::Cpu).min(ends(Path::Device));
            let chosen = choose(outlook);
            let limit = if chosen.is_trial { trial_ratio(tick, 1).unwrap() } else { 1.0 };
            prop_assert!(ends(chosen.path) <= best * limit);
        }

        #[test]
        fn trials_cost_little(cpu in 1.0_f32..1e9, device in 1.0_f32..1e9) {
            let outlook = Outlook { cpu_ns: Some(cpu), device_ns: Some(device), ..Outlook::default() };
            let taken = |tick| {
                let chosen = choose(Outlook { trial_ratio: trial_ratio(tick, 1), ..outlook });
                if chosen.path == Path::Cpu { cpu } else { device }
            };
            let total: f32 = (0..2048).map(taken).sum();
            prop_assert!(total <= 1.02 * 2048.0 * cpu.min(device));
        }
    }

    #[test]
    fn who_chooses_for_many_requests_has_their_turns() {
        for turns in [1, 32, 256] {
            let seen = (0..1 << 16).step_by(turns).filter_map(|tick| trial_ratio(tick, turns as u64));
            let (far, near): (Vec<f32>, Vec<f32>) = seen.partition(|ratio| *ratio > 2.0);
            assert_eq!(far.len(), 32);
            assert_eq!(near.len(), (1 << 16) / turns.max(64) - 32);
        }
    }

    #[test]
    fn what_was_never_measured_is_left_to_the_cpu() {
        let outlook = Outlook::default();
        assert_eq!(choose(outlook).path, Path::Cpu);
        assert_eq!(choose(Outlook { cpu_ns: Some(1e9), ..outlook }).path, Path::Cpu);
        assert_eq!(choose(Outlook { device_ns: Some(1e9), ..outlook }).path, Path::Device);
    }
}
