//! RATE, BURST_SIZE and the like: what elements with token buckets have in common.

use super::bucket::Bucket;
use crate::Packet;
use crate::args::{Args, Bandwidth, Failed, Interval};

/// The bucket of an element: of packets, or of bytes.
#[derive(Default)]
pub(super) struct Limit<const BYTES: bool>(pub(super) Bucket);

/// A RATE: packets a second, or bytes.
pub(super) fn rate_arg<const BYTES: bool>(args: &mut Args<'_>) -> u32 {
    let (mut packets, mut bytes) = (0u32, Bandwidth(0));
    if !BYTES {
        args.must("RATE", &mut packets);
        return packets;
    }
    args.must("RATE", &mut bytes);
    u32::try_from(bytes.0).unwrap_or_else(|_| {
        args.error_of("RATE", format_args!("out of range, bound {}", u32::MAX));
        0
    })
}

/// A rate as people write it.
pub(super) fn unparse_rate<const BYTES: bool>(rate: u32) -> String {
    if !BYTES {
        return rate.to_string();
    }
    let bits = u64::from(rate) * 8;
    let (unit, digits, scale) = match bits {
        0..1_000_000 => ("kbps", 3, 1000),
        1_000_000..1_000_000_000 => ("Mbps", 6, 1_000_000),
        _ => ("Gbps", 9, 1_000_000_000),
    };
    let number = format!("{}.{:0digits$}", bits / scale, bits % scale);
    format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

impl<const BYTES: bool> Limit<BYTES> {
    /// Reads RATE, BURST_DURATION and BURST_SIZE (or BURST_BYTES), all that there is.
    pub(super) fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let rate = rate_arg::<BYTES>(args);
        let (mut duration, mut burst) = (Interval::default(), 0u32);
        let has_duration = args.has_key("BURST_DURATION", &mut duration);
        let has_burst = args.has_key(if BYTES { "BURST_BYTES" } else { "BURST_SIZE" }, &mut burst);
        args.finish()?;
        if has_duration && has_burst {
            return Err(args.error("cannot specify both BURST_DURATION and BURST_SIZE"));
        }
        if !has_burst {
            let millis = if has_duration { duration.0.nanos() / 1_000_000 } else { 20 };
            let tokens = i128::from(rate) * i128::from(millis) / 1000;
            burst = u32::try_from(tokens).unwrap_or(u32::MAX);
        }
        self.0.change(rate, if BYTES { burst } else { burst.max(1) });
        Ok(())
    }

    /// How many tokens a packet needs to begin with: bytes may be owed.
    pub(super) const NEEDS: u32 = if BYTES { 0 } else { 1 };

    /// Takes what a packet costs.
    pub(super) fn take(&mut self, packet: &Packet) {
        self.0.take(if BYTES { packet.len() as u32 } else { 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        for (rate, text) in [
            (0, "0kbps"),
            (200, "1.6kbps"),
            (125_000, "1Mbps"),
            (1_250_001, "10.000008Mbps"),
            (u32::MAX, "34.35973836Gbps"),
        ] {
            assert_eq!(unparse_rate::<true>(rate), text);
        }
        assert_eq!(unparse_rate::<false>(200), "200");
    }
}
