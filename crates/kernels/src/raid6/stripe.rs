//! Stripes, what they have lost and what a scrub says of them, with the tables as the device reads them.

use super::field;
use crate::addressing::{self, Addressing};
use crate::launch::bad;
use bifolio_device::Result;

/// What a group takes of each member, and what a scrub gives a verdict on.
pub const PIECE_BYTES: u64 = 4096;

/// Most data members: beyond, powers of 2 repeat.
pub const DATA_MAX: u32 = 255;

/// No member, as the device has it.
const NONE: u32 = u32::MAX;

/// No single member explains what is wrong, as the device has it.
const UNKNOWN: u32 = u32::MAX - 1;

/// The shape of the stripes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Data members, 1 to [`DATA_MAX`].
    pub data: u32,
    /// Bytes of one member in a stripe; a multiple of 16.
    pub chunk_bytes: u64,
}

impl Geometry {
    /// The member that is P.
    pub fn p(self) -> u32 {
        self.data
    }

    /// The member that is Q.
    pub fn q(self) -> u32 {
        self.data + 1
    }

    /// Members of a stripe, P and Q included.
    pub fn members(self) -> u32 {
        self.data + 2
    }

    /// Pieces in a chunk: verdicts of a scrub on one stripe.
    pub fn pieces(self) -> u64 {
        self.chunk_bytes.div_ceil(PIECE_BYTES)
    }
}

/// What a stripe has lost: at most two members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    pub(super) first: u32,
    pub(super) second: u32,
}

/// Size of a [`Loss`] in the device's array.
pub const LOSS_BYTES: u64 = 16;

impl Loss {
    /// Nothing is lost: the stripe is left alone.
    pub const NOTHING: Self = Self { first: NONE, second: NONE };

    /// One member.
    pub fn one(member: u32) -> Self {
        Self { first: member, second: NONE }
    }

    /// Two different members.
    ///
    /// # Panics
    /// If they are the same.
    pub fn two(one: u32, other: u32) -> Self {
        assert_ne!(one, other, "two lost members differ");
        Self { first: one.min(other), second: one.max(other) }
    }

    /// The lost members.
    pub fn members(self) -> impl Iterator<Item = u32> {
        [self.first, self.second].into_iter().filter(|member| *member != NONE)
    }

    /// The factors of both syndromes, as the kernel wants them.
    fn factors(self, geometry: Geometry) -> [u8; 2] {
        let (p, q) = (geometry.p(), geometry.q());
        match (self.first, self.second) {
            (a, b) if a < p && b < p => {
                let apart = field::power(b - a);
                let of_p = field::divide(apart, apart ^ 1);
                [of_p, field::divide(1, field::times(field::power(a), apart ^ 1))]
            }
            (a, b) if a < p && b == p => [0, field::divide(1, field::power(a))],
            (a, b) if a < p && b == q => [0, field::power(a)],
            _ => [0, 0],
        }
    }

    fn fits(self, geometry: Geometry) -> bool {
        self.members().all(|member| member < geometry.members())
    }
}

/// The array of losses, one for each stripe, as the device reads it.
pub fn encode_losses(losses: &[Loss], geometry: Geometry) -> Vec<u8> {
    let words = |loss: &Loss| {
        let [of_p, of_q] = loss.factors(geometry).map(u32::from);
        [loss.first, loss.second, of_p, of_q].map(u32::to_ne_bytes).concat()
    };
    losses.iter().flat_map(words).collect()
}

/// The table of places as the device reads it: for each stripe those of the data members, of P and
/// of Q. Places are multiples of 16.
pub fn encode(stripes: &[Vec<u64>]) -> Vec<u8> {
    stripes.iter().flatten().flat_map(|place| place.to_ne_bytes()).collect()
}

/// What a scrub says of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// P and Q fit the data.
    Clean,
    /// This member alone is wrong, or the damage looks as if it were.
    Member(u32),
    /// More than one member is wrong.
    Unknown,
}

impl Verdict {
    fn of_word(word: u32) -> Self {
        match word {
            NONE => Self::Clean,
            UNKNOWN => Self::Unknown,
            member => Self::Member(member),
        }
    }

    /// How a scrub writes it.
    pub fn to_word(self) -> u32 {
        match self {
            Self::Clean => NONE,
            Self::Unknown => UNKNOWN,
            Self::Member(member) => member,
        }
    }
}

/// The verdicts that a scrub wrote, [`Geometry::pieces`] for each stripe.
pub fn decode_verdicts(bytes: &[u8]) -> Vec<Verdict> {
    addressing::u32s(bytes).into_iter().map(Verdict::of_word).collect()
}

/// Refuses places that do not lie at 16-byte boundaries inside the base, and losses that name
/// members that are not there. The kernels cannot, as both are on the device.
pub fn check(stripes: &[Vec<u64>], losses: &[Loss], geometry: Geometry, base: Addressing<'_>) -> Result<()> {
    if let Some(stripe) = stripes.iter().find(|stripe| stripe.len() != geometry.members() as usize) {
        return Err(bad(format!("a stripe lists {} members, expected {}", stripe.len(), geometry.members())));
    }
    if let Some(loss) = losses.iter().find(|loss| !loss.fits(geometry)) {
        return Err(bad(format!("{loss:?} names a member beyond the {} of a stripe", geometry.members())));
    }
    stripes.iter().flatten().try_for_each(|place| base.check("member", *place, geometry.chunk_bytes))
}
