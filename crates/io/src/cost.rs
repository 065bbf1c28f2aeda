//! What a transfer costs: SPIN's piecewise-linear model (paper, section 4.3.1, equation 1), for
//! every engine, with its fit.
//!
//! `T(s) = C if s < cutoff else C + (s - cutoff) / BW`: below the cutoff a transfer is one
//! invocation, above it the path runs at its bandwidth.

use crate::kind::EngineKind;
use serde::{Deserialize, Serialize};

/// The time of a transfer by one engine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EngineCost {
    /// C: seconds for any transfer up to the cutoff.
    pub overhead_s: f64,
    /// Bytes up to which the time does not depend on the size.
    pub cutoff_bytes: u64,
    /// BW: bytes a second beyond the cutoff.
    pub bytes_per_s: f64,
}

impl EngineCost {
    /// Seconds for one transfer of `bytes`; 0 for none.
    pub fn seconds(&self, bytes: u64) -> f64 {
        match bytes {
            0 => 0.0,
            _ => self.overhead_s + bytes.saturating_sub(self.cutoff_bytes) as f64 / self.bytes_per_s,
        }
    }

    fn is_sane(&self) -> bool {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        self.overhead_s.is_finite() && self.overhead_s >= 0.0 && positive(self.bytes_per_s)
    }
}

/// The costs of all paths between one file system and one device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Page cache to device, for cached bytes.
    pub cached: EngineCost,
    /// The same path for bytes that the kernel must read from storage first.
    pub buffered: EngineCost,
    /// Storage to device, past the page cache.
    pub direct: EngineCost,
    /// Seconds that each further extent adds to a direct transfer whose queue is full.
    pub direct_extent_s: f64,
    /// Registered page-cache pages to device.
    pub mapped: EngineCost,
    /// Storage to device without host memory.
    pub p2p: EngineCost,
}

/// What a processor does that copies for its device, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProcessorRates {
    /// One thread, once.
    pub(crate) copied: f64,
    /// All threads, twice: out of the page cache into a slot, and out of it.
    pub(crate) through_slots: f64,
}

/// How much one observation moves a cost.
const OBSERVATION_WEIGHT: f64 = 0.2;

impl Default for Costs {
    /// Safe assumptions for a machine that nobody calibrated: a fast SSD, a link of 25 GB/s.
    /// Only ratios matter for a plan, and observations soon correct them.
    fn default() -> Self {
        let cost = |overhead_s, cutoff_bytes, bytes_per_s| EngineCost { overhead_s, cutoff_bytes, bytes_per_s };
        Self {
            cached: cost(12e-6, 0, 15e9),
            buffered: cost(130e-6, 64 << 10, 1.4e9),
            direct: cost(120e-6, 128 << 10, 3e9),
            direct_extent_s: 8e-6,
            mapped: cost(20e-6, 0, 25e9),
            p2p: cost(150e-6, 512 << 10, 3e9),
        }
    }
}

impl Costs {
    /// The cost of an engine for bytes in the state that it is best for.
    pub fn of(&self, engine: EngineKind) -> &EngineCost {
        match engine {
            EngineKind::Cached => &self.cached,
            EngineKind::Mapped => &self.mapped,
            EngineKind::Direct => &self.direct,
            EngineKind::P2p => &self.p2p,
        }
    }

    /// The same where the device's copies are the processor's: no path is quicker than it copies.
    pub(crate) fn bounded_by_processor(mut self, rates: ProcessorRates) -> Self {
        for (cost, bound) in [
            (&mut self.cached, rates.through_slots),
            (&mut self.buffered, rates.through_slots),
            (&mut self.direct, rates.copied),
            (&mut self.mapped, rates.copied),
            (&mut self.p2p, rates.copied),
        ] {
            cost.bytes_per_s = cost.bytes_per_s.min(bound);
        }
        self
    }

    /// Whether all numbers are possible; a profile from a file may hold anything.
    pub fn are_sane(&self) -> bool {
        let engines = [&self.cached, &self.buffered, &self.direct, &self.mapped, &self.p2p];
        engines.iter().all(|cost| cost.is_sane()) && self.direct_extent_s.is_finite() && self.direct_extent_s >= 0.0
    }

    /// Learns from a completed request that one engine served alone, with everything or nothing
    /// of it `cached`.
    ///
    /// One observation counts for at most twice or half of what was believed: the first read by an
    /// engine pays for what is set up once, and a path that looks slow is not chosen again and so
    /// never put right.
    pub fn observe(&mut self, engine: EngineKind, cached: bool, bytes: u64, seconds: f64) {
        let cost = match engine {
            EngineKind::Cached if !cached => &mut self.buffered,
            EngineKind::Cached => &mut self.cached,
            EngineKind::Mapped => &mut self.mapped,
            EngineKind::Direct => &mut self.direct,
            EngineKind::P2p => &mut self.p2p,
        };
        // Large requests teach the bandwidth, small ones the overhead; between them the two
        // cannot be told apart.
        let moved = bytes.saturating_sub(cost.cutoff_bytes) as f64;
        let blend = |old: f64, new: f64| old + OBSERVATION_WEIGHT * (new.clamp(old / 2.0, (old * 2.0).max(1e-6)) - old);
        if bytes >= 16 << 20 && seconds > cost.overhead_s {
            cost.bytes_per_s = blend(cost.bytes_per_s, moved / (seconds - cost.overhead_s));
        } else if bytes <= 64 << 10 && seconds > 0.0 {
            cost.overhead_s = blend(cost.overhead_s, (seconds - moved / cost.bytes_per_s).max(0.0));
        }
    }
}

/// One measured transfer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Size.
    pub bytes: u64,
    /// Median time.
    pub seconds: f64,
}

/// A fitted model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The parameters.
    pub cost: EngineCost,
    /// Coefficient of determination of the logarithms of the times: each size counts alike,
    /// where on plain seconds the largest would decide alone.
    pub r_squared: f64,
}

/// Fits the model to measurements by least squares of relative errors, trying every measured
/// size as the cutoff. None for fewer than three sizes.
pub fn fit(points: &[Point]) -> Option<Fit> {
    let usable: Vec<Point> = points.iter().copied().filter(|point| point.seconds > 0.0).collect();
    if usable.len() < 3 {
        return None;
    }
    let cutoffs = [0].into_iter().chain(usable.iter().map(|point| point.bytes));
    let fits = cutoffs.filter_map(|cutoff| fit_with_cutoff(&usable, cutoff));
    let (cost, _) = fits.min_by(|one, two| one.1.total_cmp(&two.1))?;
    Some(Fit { cost, r_squared: r_squared(&usable, &cost) })
}

/// The best overhead and bandwidth for one cutoff, with the sum of squared relative errors.
fn fit_with_cutoff(points: &[Point], cutoff_bytes: u64) -> Option<(EngineCost, f64)> {
    // Weighted linear regression of t on x with weights 1/t^2.
    let (mut w_sum, mut x_sum, mut t_sum, mut xx_sum, mut xt_sum) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for point in points {
        let (x, t) = (point.bytes.saturating_sub(cutoff_bytes) as f64, point.seconds);
        let weight = t.powi(-2);
        w_sum += weight;
        x_sum += weight * x;
        t_sum += weight * t;
        xx_sum += weight * x * x;
        xt_sum += weight * x * t;
    }
    let spread = w_sum * xx_sum - x_sum * x_sum;
    if spread <= 0.0 {
        return None;
    }
    let slope = (w_sum * xt_sum - x_sum * t_sum) / spread;
    let overhead_s = ((t_sum - slope * x_sum) / w_sum).max(0.0);
    let cost = EngineCost { overhead_s, cutoff_bytes, bytes_per_s: slope.recip() };
    let error = |point: &Point| (cost.seconds(point.bytes) / point.seconds - 1.0).powi(2);
    cost.is_sane().then(|| (cost, points.iter().map(error).sum()))
}

fn r_squared(points: &[Point], cost: &EngineCost) -> f64 {
    let mean = points.iter().map(|point| point.seconds.ln()).sum::<f64>() / points.len() as f64;
    let total: f64 = points.iter().map(|point| (point.seconds.ln() - mean).powi(2)).sum();
    let residual = |point: &Point| (point.seconds.ln() - cost.seconds(point.bytes).max(1e-9).ln()).powi(2);
    let left: f64 = points.iter().map(residual).sum();
    if total > 0.0 { 1.0 - left / total } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes() -> impl Iterator<Item = u64> {
        (12..27).map(|shift| 1 << shift)
    }

    proptest! {
        #[test]
        fn a_model_is_found_again_from_its_own_noisy_points(
            overhead_us in 5.0..600.0_f64, cutoff_shift in 14..21_u32, gb_per_s in 0.5..50.0_f64,
            noise in proptest::collection::vec(-0.02..0.02_f64, 15)
        ) {
            let truth = EngineCost { overhead_s: overhead_us * 1e-6, cutoff_bytes: 1 << cutoff_shift, bytes_per_s: gb_per_s * 1e9 };
            let points: Vec<_> = sizes().zip(noise)
                .map(|(bytes, noise)| Point { bytes, seconds: truth.seconds(bytes) * (1.0 + noise) }).collect();
            let fit = fit(&points).unwrap();
            for bytes in sizes() {
                let ratio = fit.cost.seconds(bytes) / truth.seconds(bytes);
                prop_assert!((0.9..1.1).contains(&ratio), "{bytes}: {ratio} {fit:?}");
            }
            prop_assert!(fit.r_squared > 0.95, "{fit:?}");
        }

        #[test]
        fn observations_keep_the_costs_sane(seen in proptest::collection::vec((0_u64..1 << 34, 0.0..10.0_f64), 0..50)) {
            let mut costs = Costs::default();
            for (bytes, seconds) in seen {
                costs.observe(EngineKind::Direct, false, bytes, seconds);
                prop_assert!(costs.are_sane(), "{bytes} {seconds} {costs:?}");
            }
        }
    }

    /// Symptom: after one slow first read by the direct engine, cold short reads went through the
    /// page cache for good, which was slower. Cause: the one observation quadrupled its overhead.
    #[test]
    fn one_slow_read_does_not_condemn_an_engine() {
        let mut costs = Costs::default();
        costs.observe(EngineKind::Direct, false, 65_536, 5e-3);
        assert!(costs.direct.seconds(65_536) < costs.buffered.seconds(65_536) * 1.25, "{costs:?}");
        for _ in 0..50 {
            costs.observe(EngineKind::Cached, false, 65_536, 300e-6);
        }
        assert!(costs.buffered.seconds(65_536) > 250e-6 && costs.cached == Costs::default().cached);
    }

    #[test]
    fn where_the_processor_copies_no_path_is_quicker_than_it() {
        let slow = ProcessorRates { copied: 2e9, through_slots: 1e9 };
        let (costs, bounded) = (Costs::default(), Costs::default().bounded_by_processor(slow));
        assert_eq!(bounded.cached, EngineCost { bytes_per_s: 1e9, ..costs.cached });
        assert_eq!(bounded.direct, EngineCost { bytes_per_s: 2e9, ..costs.direct });
        assert_eq!(costs.bounded_by_processor(ProcessorRates { copied: 1e12, through_slots: 1e12 }), costs);
    }

    #[test]
    fn too_few_or_impossible_points_give_no_model() {
        let point = |bytes, seconds| Point { bytes, seconds };
        assert_eq!(fit(&[point(1, 1.0), point(2, 2.0)]), None);
        assert_eq!(fit(&[point(4096, 3.0), point(8192, 2.0), point(16384, 1.0)]), None);
    }

    #[test]
    fn the_paper_s_example_costs_what_the_paper_says() {
        // C_p2p = 584 us is the time of 249 pages from the page cache (paper, "Parameter fitting").
        let p2p = EngineCost { overhead_s: 584e-6, cutoff_bytes: 512 << 10, bytes_per_s: 2.65e9 };
        assert!((p2p.seconds(1) - 584e-6).abs() < 1e-12);
        assert!((p2p.seconds(8 << 20) - (584e-6 + 7.5 * f64::from(1 << 20) / 2.65e9)).abs() < 1e-9);
    }
}
