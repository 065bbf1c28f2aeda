//! What work takes by its size: measured, kept up to date, and read without a lock.
//!
//! A curve has a point for each power of two. Between two points it is a straight line, above the last one it
//! keeps the last rate, and below the first one the first time, as small work is all fixed cost. A completion
//! moves the points beside its size towards itself, by a fraction of its logarithm (exponentially weighted).

use std::sync::atomic::{AtomicU32, Ordering};

const SMALLEST_LOG: u32 = 8;
const POINTS: usize = 24;

/// The weight of a completion that took longer than expected, and of one that took less. The second says more:
/// whatever else a machine does makes work slower and never quicker.
const WEIGHTS: [f32; 2] = [0.15, 0.3];

/// How much longer or shorter than expected a completion counts for at most. A thread that did not run for a
/// while says nothing about the work.
const SURPRISE: [f32; 2] = [2.0, 0.1];

/// A point beside a completion's size moves at least by this share of its correction.
const SHARE_MIN: f32 = 0.5;

/// Nanoseconds by bytes.
#[derive(Debug, Default)]
pub(crate) struct Curve {
    /// As bits of f32; 0 where nothing is known.
    points: [AtomicU32; POINTS],
}

/// The point at or below a size, and how far the size is on the way to the next one.
fn locate(bytes: u64) -> (usize, f32) {
    let bytes = bytes.clamp(1 << SMALLEST_LOG, (1 << (SMALLEST_LOG as usize + POINTS - 1)) - 1);
    let log = bytes.ilog2();
    ((log - SMALLEST_LOG) as usize, (bytes - (1 << log)) as f32 / (1_u64 << log) as f32)
}

fn size(point: usize) -> f32 {
    (1_u64 << (SMALLEST_LOG as usize + point)) as f32
}

/// What `bytes` take, given what is known of the points; nothing if no point is.
pub(crate) fn estimate(points: &[f32], bytes: u64) -> Option<f32> {
    let known = |at: &usize| points[*at] > 0.0;
    let bytes_f = (bytes as f32).max(1.0);
    let (at, _) = locate(bytes);
    let below = (0..=at).rev().find(known);
    let above = (at + 1..points.len()).find(known);
    Some(match (below, above) {
        (None, None) => return None,
        (None, Some(above)) => points[above],
        (Some(below), None) => points[below] * (bytes_f / size(below)).max(1.0),
        (Some(below), Some(above)) => {
            let way = ((bytes_f - size(below)) / (size(above) - size(below))).clamp(0.0, 1.0);
            points[below] + way * (points[above] - points[below])
        }
    })
}

/// The factor by which a point moves, given what was expected and seen and the share of the size that is its.
pub(crate) fn correction(expected: f32, seen: f32, share: f32) -> f32 {
    let surprise = seen / expected;
    let (weight, surprise) =
        if surprise > 1.0 { (WEIGHTS[0], surprise.min(SURPRISE[0])) } else { (WEIGHTS[1], surprise.max(SURPRISE[1])) };
    surprise.powf(weight * share)
}

impl Curve {
    /// What work of so many bytes takes, in nanoseconds.
    pub(crate) fn at(&self, bytes: u64) -> Option<f32> {
        let (at, way) = locate(bytes);
        let low = self.load(at);
        if low > 0.0 && way == 0.0 {
            return Some(low);
        }
        let high = self.points.get(at + 1).map_or(0.0, |point| f32::from_bits(point.load(Ordering::Relaxed)));
        if low > 0.0 && high > 0.0 && bytes >= 1 << SMALLEST_LOG {
            return Some(low + way * (high - low));
        }
        estimate(&self.snapshot(), bytes)
    }

    /// What work of so many bytes adds to a batch of `waiting` bytes, in nanoseconds.
    pub(crate) fn joining(&self, waiting: u64, bytes: u64) -> Option<f32> {
        if waiting == 0 {
            return self.at(bytes);
        }
        let points = self.snapshot();
        let added = estimate(&points, waiting + bytes)? - estimate(&points, waiting)?;
        // Where the curve is not what it should be, at least its share of the best rate that was ever seen.
        let known = points.iter().enumerate().filter(|(_, ns)| **ns > 0.0);
        let least = known.map(|(at, ns)| ns / size(at)).fold(f32::INFINITY, f32::min);
        Some(added.max(bytes as f32 * least))
    }

    /// Learns from work that is over.
    pub(crate) fn observe(&self, bytes: u64, ns: f32) {
        let ns = ns.max(1.0);
        let (at, way) = locate(bytes);
        let Some(expected) = self.at(bytes) else { return self.store(at, ns * size(at) / bytes.max(256) as f32) };
        for (point, share) in [(at, 1.0 - way), (at + 1, way)] {
            if point < POINTS && share > 0.0 {
                // The farther point has to follow as well, or it would stay wrong for long.
                let share = share.max(SHARE_MIN);
                // A point that nobody has measured begins where the curve was thought to be.
                let before = Some(self.load(point)).filter(|ns| *ns > 0.0);
                let before = before.or_else(|| estimate(&self.snapshot(), size(point) as u64)).unwrap_or(expected);
                self.store(point, before * correction(expected, ns, share));
            }
        }
    }

    /// Goes through what was measured by straight lines, and forgets all else. Every size is larger than the one before.
    pub(crate) fn draw(&self, measured: &[(u64, f32)]) {
        debug_assert!(measured.is_sorted_by(|one, next| one.0 < next.0), "no line goes through two times of one size");
        let drawn = |at: usize| -> Option<f32> {
            let ([(first, first_ns), ..], [.., (last, last_ns)]) = (measured, measured) else { return None };
            let bytes = size(at) as u64;
            // To the powers of two on both sides, so that the line goes through the first and the last, too.
            if bytes / 2 >= *last || bytes * 2 <= *first {
                return None;
            }
            let mut pairs = measured.windows(2);
            let pair = pairs.find(|pair| bytes <= pair[1].0).or_else(|| measured.windows(2).last());
            // One alone is all fixed cost around its size.
            let Some([(low, low_ns), (high, high_ns)]) = pair else { return Some(*last_ns) };
            let way = (bytes as f32 - *low as f32) / (*high as f32 - *low as f32);
            let ns = low_ns + way * (high_ns - low_ns);
            // What is a little smaller than the first takes at least its share of it.
            Some(match bytes {
                _ if bytes < *first => ns.max(first_ns * bytes as f32 / *first as f32),
                _ if bytes > *last => ns.max(*last_ns),
                _ => ns,
            })
        };
        (0..POINTS).for_each(|at| self.store(at, drawn(at).unwrap_or(0.0)));
    }

    /// Nanoseconds at all points, 0 where nothing is known.
    pub(crate) fn snapshot(&self) -> [f32; POINTS] {
        std::array::from_fn(|at| self.load(at))
    }

    fn load(&self, at: usize) -> f32 {
        f32::from_bits(self.points[at].load(Ordering::Relaxed))
    }

    fn store(&self, at: usize, ns: f32) {
        self.points[at].store(ns.to_bits(), Ordering::Relaxed);
    }
}

/// The smallest size that reaches `fraction` of the best rate among sizes up to `most` bytes: from there on
/// merging gains little. `most` if nothing is known.
pub(crate) fn knee(points: &[f32], fraction: f32, most: u64) -> u64 {
    let rates: Vec<(u64, f32)> = (0..points.len())
        .map(|at| (size(at) as u64, points[at]))
        .filter(|(bytes, ns)| *bytes <= most && *ns > 0.0)
        .map(|(bytes, ns)| (bytes, bytes as f32 / ns))
        .collect();
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f32::max);
    rates.iter().find(|(_, rate)| *rate >= fraction * best).map_or(most, |(bytes, _)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(fixed: f32, per_byte: f32) -> Vec<f32> {
        (0..POINTS).map(|at| fixed + per_byte * size(at)).collect()
    }

    proptest! {
        #[test]
        fn a_line_is_read_as_it_was_drawn_from_whatever_points_are_known(
            fixed in 10.0_f32..1e5, per_byte in 0.01_f32..10.0, bytes in 256_u64..1 << 28, known in any::<u32>(),
        ) {
            let mut points = line(fixed, per_byte);
            for (at, point) in points.iter_mut().enumerate() {
                if at != 0 && at != POINTS - 1 && known >> at & 1 == 0 {
                    *point = 0.0;
                }
            }
            let (found, drawn) = (estimate(&points, bytes).unwrap(), fixed + per_byte * bytes as f32);
            prop_assert!((found / drawn - 1.0).abs() < 0.01, "{found} instead of {drawn}");
        }

        #[test]
        fn completions_of_any_size_draw_the_curve_to_them(
            bytes in 1_u64..1 << 27, start in 100.0_f32..1e6, goal in 100.0_f32..1e6,
        ) {
            let curve = Curve::default();
            prop_assert!(curve.at(bytes).is_none());
            curve.observe(bytes, start);
            for _ in 0..400 {
                curve.observe(bytes, goal);
            }
            let found = curve.at(bytes).unwrap();
            prop_assert!((found / goal - 1.0).abs() < 0.05, "{found} instead of {goal}");
        }

        #[test]
        fn one_completion_moves_the_curve_by_a_fraction_only(bytes in 256_u64..1 << 27, seen in 1.0_f32..1e9) {
            let curve = Curve::default();
            curve.observe(bytes, 1000.0);
            let before = curve.at(bytes).unwrap();
            curve.observe(bytes, seen);
            let ratio = curve.at(bytes).unwrap() / before;
            prop_assert!((0.45..1.4).contains(&ratio), "{ratio}");
        }

        #[test]
        fn work_that_joins_a_batch_adds_its_bytes_and_no_fixed_cost(
            fixed in 1000.0_f32..1e6, waiting in 4096_u64..1 << 20, bytes in 4096_u64..1 << 20,
        ) {
            let curve = Curve::default();
            curve.draw(&(0..POINTS).map(|at| (size(at) as u64, fixed + size(at))).collect::<Vec<_>>());
            let (joins, drawn) = (curve.joining(waiting, bytes).unwrap(), bytes as f32);
            prop_assert!((joins / drawn - 1.0).abs() < 0.1, "{joins} instead of {drawn}");
            prop_assert!(curve.joining(0, bytes).unwrap() >= fixed);
        }

        #[test]
        fn what_was_measured_is_drawn_whatever_sizes_it_had(
            fixed in 1.0_f32..1e6, per_byte in 0.01_f32..10.0, mut sizes in proptest::collection::vec(1000_u64..1 << 24, 1..6),
        ) {
            sizes.sort_unstable();
            sizes.dedup();
            let of = |bytes: u64| fixed + per_byte * bytes as f32;
            let curve = Curve::default();
            curve.observe(1 << 26, 1.0);
            curve.draw(&sizes.iter().map(|bytes| (*bytes, of(*bytes))).collect::<Vec<_>>());
            for bytes in sizes {
                let found = curve.at(bytes).unwrap();
                prop_assert!((0.99..1.01).contains(&(found / of(bytes))), "{found} instead of {} at {bytes}", of(bytes));
            }
        }

        #[test]
        fn joining_never_costs_nothing(
            seen in proptest::collection::vec((256_u64..1 << 24, 100.0_f32..1e6), 1..20),
            waiting in 1_u64..1 << 20, bytes in 4096_u64..1 << 20,
        ) {
            let curve = Curve::default();
            for (bytes, ns) in seen {
                curve.observe(bytes, ns);
            }
            let points = curve.snapshot();
            let best = (0..POINTS).filter(|at| points[*at] > 0.0).map(|at| points[at] / size(at)).fold(1e9, f32::min);
            prop_assert!(curve.joining(waiting, bytes).unwrap() >= 0.99 * best * bytes as f32);
        }

        #[test]
        fn the_knee_reaches_its_fraction_and_nothing_smaller_does(
            fixed in 10.0_f32..1e6, per_byte in 0.01_f32..10.0, most_log in 12_u32..28,
        ) {
            let (points, most) = (line(fixed, per_byte), 1_u64 << most_log);
            let rate = |bytes: u64| bytes as f32 / estimate(&points, bytes).unwrap();
            let found = knee(&points, 0.8, most);
            prop_assert!(found <= most && rate(found) >= 0.799 * rate(most));
            prop_assert!(found == 256 || rate(found / 2) <= 0.801 * rate(most));
        }
    }

    #[test]
    fn nothing_is_known_of_nothing() {
        assert_eq!(estimate(&[0.0; POINTS], 4096), None);
        assert_eq!(knee(&[0.0; POINTS], 0.8, 4096), 4096);
    }
}
