//! Probabilities with which packets of a dump are taken.

use crate::args::{Arg, ArgCx, Args};
use std::fmt;

/// Bits behind the point: what Click has, so that handlers give the same numbers.
const BITS: u32 = 28;
const ONE: u32 = 1 << BITS;

/// A probability, in units of 2^-28.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample(u32);

impl Default for Sample {
    fn default() -> Self {
        Self(ONE)
    }
}

impl Sample {
    /// Reads SAMPLE.
    pub(super) fn read(&mut self, args: &mut Args<'_>) {
        args.key("SAMPLE", self);
        if self.0 > ONE {
            args.warning("SAMPLE probability reduced to 1");
            self.0 = ONE;
        } else if self.0 == 0 {
            args.warning("SAMPLE probability is 0; emitting no packets");
        }
    }

    /// Whether this packet is taken.
    #[inline]
    pub(super) fn takes(self, random: &mut fastrand::Rng) -> bool {
        self.0 >= ONE || random.u32(..ONE) < self.0
    }
}

impl Arg for Sample {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let value = f64::parse(text, cx)?;
        if value < 0.0 {
            return Err("must be >= 0".into());
        }
        Ok(Self((value * f64::from(ONE)).round() as u32))
    }
}

impl fmt::Display for Sample {
    /// As few digits as are read as this number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = f64::from(self.0) / f64::from(ONE);
        let text = |digits: usize| format!("{value:.digits$}");
        let same =
            |text: &String| text.parse::<f64>().is_ok_and(|read| (read * f64::from(ONE)).round() as u32 == self.0);
        f.write_str(&(0..10).map(text).find(same).unwrap_or_else(|| text(10)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{NameDb, NoElements};

    #[test]
    fn probabilities_are_written_as_they_are_read() {
        let names = NameDb::default();
        let cx = ArgCx { elements: &NoElements, names: &names, element: "" };
        for text in ["0", "1", "0.5", "0.1", "0.001", "0.25"] {
            assert_eq!(Sample::parse(text, &cx).unwrap().to_string(), text);
        }
        assert_eq!(Sample::parse("-1", &cx), Err("must be >= 0".into()));
        assert_eq!(Sample::parse("x", &cx), Err("type mismatch".into()));
    }

    #[test]
    fn about_as_many_packets_are_taken_as_the_probability_says() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let mut taken = |sample: Sample| (0..100_000).filter(|_| sample.takes(&mut random)).count();
        assert_eq!([taken(Sample(0)), taken(Sample(ONE))], [0, 100_000]);
        // Twenty standard deviations.
        assert!(taken(Sample(ONE / 4)).abs_diff(25_000) < 2800);
    }
}
