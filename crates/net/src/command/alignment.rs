//! How packets' data is aligned, for click-align.
//!
//! An alignment is a set of addresses: those that are an offset more than a multiple of a chunk, such as 2 more than multiples
//! of 4.

use std::fmt;

use Alignment::{Any, At, Impossible};

/// How packets' data is aligned: nothing known yet, or an address that is `offset` more than a multiple of `chunk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alignment {
    /// No packet has come yet, or nothing is wanted of one: whatever it is combined with wins.
    Any,
    /// `chunk` is at least 1; `offset` is less.
    At { chunk: u32, offset: u32 },
    /// No alignment fulfils what is wanted.
    Impossible,
}

pub(super) const UNKNOWN: Alignment = At { chunk: 1, offset: 0 };

/// So aligned; a chunk of 0 is one of 1.
pub(super) fn at(chunk: u32, offset: u32) -> Alignment {
    let chunk = chunk.max(1);
    At { chunk, offset: offset % chunk }
}

/// As Click writes it.
impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Any => f.write_str("EMPTY"),
            At { chunk, offset } => write!(f, "{chunk}/{offset}"),
            Impossible => f.write_str("BAD"),
        }
    }
}

impl Alignment {
    /// Whether what is so aligned is also aligned as `wanted`.
    pub(super) fn fulfils(self, wanted: Self) -> bool {
        match (self, wanted) {
            (_, Any | At { chunk: 1, .. }) | (Any, _) => true,
            (At { chunk, offset }, At { chunk: wanted, offset: at }) => chunk % wanted == 0 && offset % wanted == at,
            (Impossible, _) | (_, Impossible) => false,
        }
    }

    /// With data that starts `delta` bytes later.
    pub(super) fn shifted(self, delta: i64) -> Self {
        match self {
            At { chunk, offset } => at(chunk, (i64::from(offset) + delta).rem_euclid(i64::from(chunk)) as u32),
            other => other,
        }
    }

    /// What is known of packets of both kinds.
    pub(super) fn or(self, other: Self) -> Self {
        let (At { chunk: a, offset: x }, At { chunk: b, offset: y }) = (self, other) else {
            return if self == Any { other } else { self };
        };
        let chunk = gcd(gcd(a, b), x.abs_diff(y));
        at(chunk, x)
    }

    /// What fulfils both.
    pub(super) fn and(self, other: Self) -> Self {
        if other.fulfils(self) && other != Any {
            other
        } else if self.fulfils(other) {
            self
        } else {
            Impossible
        }
    }
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether all addresses below 64 that `have` allows are allowed by `want`.
    fn fulfils_slowly(have: Alignment, want: Alignment) -> bool {
        let allows = |alignment: Alignment, address: u32| match alignment {
            Any => true,
            At { chunk, offset } => address % chunk == offset,
            Impossible => false,
        };
        (0..64).all(|address| !allows(have, address) || allows(want, address))
    }

    proptest! {
        #[test]
        fn alignments_are_sets_of_addresses(a in 0..4u32, x in 0..8u32, b in 0..4u32, y in 0..8u32, delta in -20..20i64) {
            let (first, second) = (at(1 << a, x), at(1 << b, y));
            prop_assert_eq!(first.fulfils(second), fulfils_slowly(first, second));
            let both = first.or(second);
            prop_assert!(fulfils_slowly(first, both) && fulfils_slowly(second, both));
            let narrow = first.and(second);
            prop_assert!(narrow == Impossible || (narrow.fulfils(first) && narrow.fulfils(second)));
            prop_assert_eq!(first.shifted(delta).shifted(-delta), first);
        }
    }
}
