//! The metric of the slides (The GPU Paging Cache, ICPADS 2013): what a paging device is worth by how often each size is
//! asked for.
//!
//! `throughput = 1 / (avg_tr_read + avg_tr_write)`, where `avg_tr = sum over sizes of likelihood / bandwidth`, in seconds a
//! MB. Sizes that were measured stand for the nearest ones that were not.

use serde::Serialize;

/// How often requests of a size were made: bytes, and their share of all, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Share {
    /// Bytes of a request.
    pub(super) bytes: u64,
    /// Its share of the requests.
    pub(super) share: f64,
}

/// What a device does at a size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Rate {
    /// Bytes of a request.
    pub(super) bytes: u64,
    /// MB/s, 10^6 bytes.
    pub(super) mb_per_s: f64,
}

/// Counts of requests by pages, as shares of the measured size that is nearest.
pub(super) fn shares(counts: &[u64], sizes: &[u64]) -> Vec<Share> {
    let all: u64 = counts.iter().sum();
    let nearest = |bytes: u64| sizes.iter().enumerate().min_by_key(|(_, size)| size.abs_diff(bytes)).map(|(at, _)| at);
    let mut sums = vec![0; sizes.len()];
    for (pages, count) in (1..).zip(counts) {
        if let Some(at) = nearest(pages * 4096) {
            sums[at] += count;
        }
    }
    sizes.iter().zip(sums).map(|(bytes, sum)| Share { bytes: *bytes, share: sum as f64 / all.max(1) as f64 }).collect()
}

/// Seconds a MB; none if a size that is asked for was not measured.
pub(super) fn seconds_per_mb(shares: &[Share], rates: &[Rate]) -> Option<f64> {
    shares.iter().filter(|share| share.share > 0.0).try_fold(0.0, |sum, share| {
        let rate = rates.iter().find(|rate| rate.bytes == share.bytes)?;
        Some(sum + share.share / rate.mb_per_s)
    })
}

/// The metric, in MB/s.
pub(super) fn throughput(reads: (&[Share], &[Rate]), writes: (&[Share], &[Rate])) -> Option<f64> {
    Some(1.0 / (seconds_per_mb(reads.0, reads.1)? + seconds_per_mb(writes.0, writes.1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The disk of the slides' first system, with the likelihoods and rates that its equations are computed from.
    #[test]
    fn the_slides_disk_has_the_slides_figure() {
        const KB: u64 = 1024;
        let list = |items: &[(u64, f64, f64)]| -> (Vec<Share>, Vec<Rate>) {
            items
                .iter()
                .map(|(kb, share, rate)| {
                    let bytes = kb * KB;
                    (Share { bytes, share: *share }, Rate { bytes, mb_per_s: *rate })
                })
                .unzip()
        };
        let reads =
            list(&[(4, 0.4737, 1.29), (8, 0.0970, 2.45), (12, 0.0475, 3.90), (16, 0.0326, 5.09), (64, 0.1764, 14.27)]);
        let writes = list(&[
            (4, 0.0113, 0.27),
            (8, 0.0039, 0.30),
            (64, 0.0020, 1.98),
            (100, 0.0013, 2.87),
            (1024, 0.9082, 22.26),
        ]);
        assert!((seconds_per_mb(&reads.0, &reads.1).unwrap() - 0.437).abs() < 0.001);
        assert!((seconds_per_mb(&writes.0, &writes.1).unwrap() - 0.097).abs() < 0.001);
        let metric = throughput((&reads.0, &reads.1), (&writes.0, &writes.1)).unwrap();
        assert!((metric - 1.87).abs() < 0.005, "{metric}");
    }

    #[test]
    fn every_request_counts_for_the_nearest_size() {
        let mut counts = vec![0; 256];
        (counts[0], counts[1], counts[2], counts[255]) = (5, 3, 1, 1);
        let shares = shares(&counts, &[4096, 8192, 1 << 20]);
        assert_eq!(shares.iter().map(|share| share.share).collect::<Vec<_>>(), [0.5, 0.4, 0.1]);
        assert_eq!(seconds_per_mb(&shares, &[Rate { bytes: 4096, mb_per_s: 1.0 }]), None);
    }
}
