//! Any residency, costs and offer: the plan covers the request exactly once, uses only
//! what was offered, and predicts a finite time.

#![no_main]

use bifolio_io::cost::{Costs, EngineCost};
use bifolio_io::plan::{Offer, plan};
use bifolio_io::residency::{Residency, Source};
use bifolio_io::{EngineKind, Plan};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::ops::Range;

#[derive(Debug, Arbitrary)]
struct Request {
    start: u64,
    /// Lengths, each of an uncached run and of the cached run behind it.
    runs: Vec<(Length, Length)>,
    tail: Length,
    costs: [Cost; 5],
    extent_us: u16,
    direct: bool,
    /// An alignment of 1 to 2 MiB, where there is a direct path.
    p2p_alignment_shift: Option<u8>,
    /// Distances and lengths of registered ranges.
    mapped: Vec<(Length, Length)>,
}

/// Bytes, from none to 512 GiB.
#[derive(Debug, Arbitrary)]
struct Length {
    mantissa: u16,
    shift: u8,
}

impl Length {
    fn bytes(&self) -> u64 {
        u64::from(self.mantissa) << (self.shift % 24)
    }
}

#[derive(Debug, Arbitrary)]
struct Cost {
    overhead_us: u16,
    cutoff: Length,
    mb_per_s: u16,
}

impl Cost {
    fn cost(&self) -> EngineCost {
        EngineCost {
            overhead_s: f64::from(self.overhead_us) * 1e-6,
            cutoff_bytes: self.cutoff.bytes(),
            bytes_per_s: (f64::from(self.mb_per_s) + 1e-3) * 1e6,
        }
    }
}

/// The ranges that (distance, length) pairs describe, from an offset on, and where they end.
fn ranges(mut at: u64, pairs: &[(Length, Length)]) -> (Vec<Range<u64>>, u64) {
    let mut ranges = vec![];
    for (distance, length) in pairs {
        let start = at + distance.bytes();
        at = start + length.bytes();
        ranges.push(start..at);
    }
    (ranges, at)
}

fuzz_target!(|request: Request| {
    let start = request.start >> 16;
    let (cached, end) = ranges(start, &request.runs);
    let range = start..end + request.tail.bytes();
    let [cached_cost, buffered, direct, mapped_cost, p2p] = request.costs.each_ref().map(Cost::cost);
    let direct_extent_s = f64::from(request.extent_us) * 1e-6;
    let costs = Costs { cached: cached_cost, buffered, direct, direct_extent_s, mapped: mapped_cost, p2p };
    assert!(costs.are_sane());
    let (mapped, _) = ranges(start, &request.mapped);
    let p2p_alignment = request.p2p_alignment_shift.map(|shift| 1 << (shift % 22));
    let offer = Offer { direct: request.direct, p2p_alignment, mapped: &mapped };
    let residency = Residency::new(Source::Mincore, range.clone(), cached);
    check(&plan(&residency, &costs, &offer), &range, &offer);
});

fn check(plan: &Plan, range: &Range<u64>, offer: &Offer<'_>) {
    let mut at = range.start;
    for segment in &plan.segments {
        assert!(segment.offset == at && segment.length > 0, "{segment:?} where {at} is next");
        at += segment.length;
        let is_offered = match segment.engine {
            EngineKind::Cached => true,
            EngineKind::Direct => offer.direct,
            EngineKind::P2p => offer
                .p2p_alignment
                .is_some_and(|alignment| segment.offset % alignment == 0 && segment.length % alignment == 0),
            // Touching windows are one segment.
            EngineKind::Mapped => is_covered(segment.offset..at, offer.mapped),
        };
        assert!(is_offered, "{segment:?} with {offer:?}");
        assert!(segment.predicted_s.is_finite() && segment.predicted_s >= 0.0, "{segment:?}");
    }
    assert_eq!(at, range.end, "{plan:?}");
    assert!(plan.predicted_s.is_finite() && plan.predicted_s >= 0.0, "{plan:?}");
    assert!(plan.segments.windows(2).all(|pair| pair[0].engine != pair[1].engine), "{plan:?}");
}

fn is_covered(range: Range<u64>, windows: &[Range<u64>]) -> bool {
    let mut at = range.start;
    for window in windows.iter().filter(|window| window.start < window.end) {
        if window.start <= at && at < window.end {
            at = window.end;
        }
    }
    at >= range.end
}
