//! Probabilities and averages as binary fractions, as Click keeps and prints them.

use crate::args::{Arg, ArgCx};

/// A number with SHIFT bits behind the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fraction<const SHIFT: u32>(pub(super) u32);

impl<const SHIFT: u32> Fraction<SHIFT> {
    pub(super) const ONE: u32 = 1 << SHIFT;

    fn of(value: f64) -> Option<Self> {
        let scaled = (value * f64::from(Self::ONE)).round();
        (scaled >= 0.0 && scaled <= f64::from(u32::MAX)).then_some(Self(scaled as u32))
    }
}

impl<const SHIFT: u32> Arg for Fraction<SHIFT> {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let value = f64::parse(text, cx)?;
        if value < 0.0 {
            return Err("must be >= 0".to_owned());
        }
        Self::of(value).ok_or_else(|| "out of range".to_owned())
    }
}

impl<const SHIFT: u32> std::fmt::Display for Fraction<SHIFT> {
    /// With as many digits as it takes to read the same again.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = f64::from(self.0) / f64::from(Self::ONE);
        let shortest = (0..=SHIFT as usize).map(|digits| format!("{value:.digits$}"));
        let same = |text: &String| text.parse().ok().and_then(Self::of) == Some(*self);
        f.write_str(&shortest.into_iter().find(same).unwrap_or_else(|| value.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_read_as_they_are_printed() {
        for text in ["0", "1", "0.5", "0.02", "0.123", "2.75"] {
            let value = Fraction::<16>::of(text.parse().unwrap()).unwrap();
            assert_eq!(value.to_string(), text);
        }
        for bits in bifolio_testing::noise(400, bifolio_testing::seed()).chunks(4) {
            let value = Fraction::<28>(u32::from_le_bytes(bits.try_into().unwrap()));
            assert_eq!(Fraction::<28>::of(value.to_string().parse().unwrap()), Some(value));
        }
        assert_eq!((Fraction::<16>::of(-1.0), Fraction::<16>::of(1e9)), (None, None));
    }
}
