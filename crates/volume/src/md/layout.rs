//! Where data, P and Q lie: md's layouts of RAID-6. Pure.
//!
//! A stripe is a row of chunks, one of each member, at the same offset in their data. A chunk has two numbers:
//! its *index* is the order of the array's bytes, its *slot* the power of 2 that it is multiplied by in Q.
//! In the symmetric layouts the two are the same. In the others data counts from the first member on, while
//! slots count from the member behind Q on and around; md has done so since Linux 2.6, for all but the layouts of DDF,
//! which are not implemented. P has the slot behind the data's and Q the last one, as in `bifolio_kernels::raid6`.

use std::fmt;
use std::str::FromStr;

/// How parity moves from stripe to stripe; md's names and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are md's own, and the arithmetic below is their definition")]
pub enum Rotation {
    LeftAsymmetric,
    RightAsymmetric,
    LeftSymmetric,
    RightSymmetric,
    ParityFirst,
    ParityLast,
    /// RAID-5's layouts with Q on the last member, as after growing from RAID-5.
    LeftAsymmetric6,
    RightAsymmetric6,
    LeftSymmetric6,
    RightSymmetric6,
    ParityFirst6,
}

impl Rotation {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LeftAsymmetric,
        Self::RightAsymmetric,
        Self::LeftSymmetric,
        Self::RightSymmetric,
        Self::ParityFirst,
        Self::ParityLast,
        Self::LeftAsymmetric6,
        Self::RightAsymmetric6,
        Self::LeftSymmetric6,
        Self::RightSymmetric6,
        Self::ParityFirst6,
    ];

    /// The number in a superblock.
    pub fn number(self) -> u32 {
        match self {
            Self::LeftAsymmetric => 0,
            Self::RightAsymmetric => 1,
            Self::LeftSymmetric => 2,
            Self::RightSymmetric => 3,
            Self::ParityFirst => 4,
            Self::ParityLast => 5,
            Self::LeftAsymmetric6 => 16,
            Self::RightAsymmetric6 => 17,
            Self::LeftSymmetric6 => 18,
            Self::RightSymmetric6 => 19,
            Self::ParityFirst6 => 20,
        }
    }

    /// The one with a number.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|rotation| rotation.number() == number)
    }

    /// mdadm's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::LeftAsymmetric => "left-asymmetric",
            Self::RightAsymmetric => "right-asymmetric",
            Self::LeftSymmetric => "left-symmetric",
            Self::RightSymmetric => "right-symmetric",
            Self::ParityFirst => "parity-first",
            Self::ParityLast => "parity-last",
            Self::LeftAsymmetric6 => "left-asymmetric-6",
            Self::RightAsymmetric6 => "right-asymmetric-6",
            Self::LeftSymmetric6 => "left-symmetric-6",
            Self::RightSymmetric6 => "right-symmetric-6",
            Self::ParityFirst6 => "parity-first-6",
        }
    }
}

impl fmt::Display for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rotation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|rotation| rotation.name() == text);
        found.ok_or_else(|| format!("there is no layout {text}; there are {}", names()))
    }
}

/// Where a byte of the array lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The stripe.
    pub stripe: u64,
    /// The number of its chunk among the stripe's data, in the order of the array's bytes.
    pub index: usize,
    /// The member that holds it.
    pub member: usize,
    /// The byte in its chunk.
    pub inside: u64,
}

/// The layout of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    rotation: Rotation,
    members: usize,
    chunk_bytes: u64,
}

/// Fewest members: md knows no smaller RAID-6.
pub(super) const MEMBERS_MIN: usize = 4;
/// Most members: beyond, powers of 2 repeat.
pub(super) const MEMBERS_MAX: usize = 257;
/// Largest chunk; buffers are made of it.
pub(super) const CHUNK_BYTES_MAX: u64 = 256 << 20;

impl Layout {
    /// Chunks of `chunk_bytes` over as many members.
    ///
    /// # Errors
    /// A sentence, for shapes that md does not have.
    pub fn new(rotation: Rotation, members: usize, chunk_bytes: u64) -> Result<Self, String> {
        if !(MEMBERS_MIN..=MEMBERS_MAX).contains(&members) {
            return Err(format!("a RAID-6 has {MEMBERS_MIN} to {MEMBERS_MAX} members, not {members}"));
        }
        if !chunk_bytes.is_power_of_two() || !(4096..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            return Err(format!("a chunk has a power of 2 from 4 KiB to 256 MiB, not {chunk_bytes} bytes"));
        }
        Ok(Self { rotation, members, chunk_bytes })
    }

    /// How parity moves.
    pub fn rotation(&self) -> Rotation {
        self.rotation
    }

    /// Members, P and Q included.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Data chunks of a stripe.
    pub fn data(&self) -> usize {
        self.members - 2
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Bytes of the array in a stripe.
    pub fn stripe_bytes(&self) -> u64 {
        self.chunk_bytes * self.data() as u64
    }

    /// The member with P of a stripe.
    pub fn p(&self, stripe: u64) -> usize {
        let turn = |of: usize| (stripe % of as u64) as usize;
        let (last, members) = (self.members - 1, self.members);
        match self.rotation {
            Rotation::LeftAsymmetric | Rotation::LeftSymmetric => last - turn(members),
            Rotation::RightAsymmetric | Rotation::RightSymmetric => turn(members),
            Rotation::ParityFirst | Rotation::ParityFirst6 => 0,
            Rotation::ParityLast => self.data(),
            Rotation::LeftAsymmetric6 | Rotation::LeftSymmetric6 => self.data() - turn(last),
            Rotation::RightAsymmetric6 | Rotation::RightSymmetric6 => turn(last),
        }
    }

    /// The member with Q of a stripe.
    pub fn q(&self, stripe: u64) -> usize {
        match self.rotation {
            Rotation::LeftAsymmetric6
            | Rotation::RightAsymmetric6
            | Rotation::LeftSymmetric6
            | Rotation::RightSymmetric6
            | Rotation::ParityFirst6 => self.members - 1,
            _ => (self.p(stripe) + 1) % self.members,
        }
    }

    /// The member with data chunk `index` of a stripe.
    pub fn member(&self, stripe: u64, index: usize) -> usize {
        let (p, q) = (self.p(stripe), self.q(stripe));
        match self.rotation {
            Rotation::LeftSymmetric | Rotation::RightSymmetric => (p + 2 + index) % self.members,
            Rotation::LeftSymmetric6 | Rotation::RightSymmetric6 => (p + 1 + index) % (self.members - 1),
            // In the order of members, P and Q left out.
            _ => {
                let (low, high) = (p.min(q), p.max(q));
                let behind_low = index + usize::from(index >= low);
                behind_low + usize::from(behind_low >= high)
            }
        }
    }

    /// The number of a member's data chunk; None if it has P or Q.
    pub fn index(&self, stripe: u64, member: usize) -> Option<usize> {
        (0..self.data()).find(|index| self.member(stripe, *index) == member)
    }

    /// The slot of a member in a stripe: data, then P, then Q.
    pub fn slot(&self, stripe: u64, member: usize) -> usize {
        let (p, q) = (self.p(stripe), self.q(stripe));
        if member == p {
            return self.data();
        }
        if member == q {
            return self.data() + 1;
        }
        // From the member behind Q on and around; P is passed over.
        let distance = |to: usize| (to + self.members - q - 1) % self.members;
        distance(member) - usize::from(distance(p) < distance(member))
    }

    /// The members of a stripe by slot: data, then P, then Q.
    pub fn by_slot(&self, stripe: u64) -> Vec<usize> {
        let (p, q) = (self.p(stripe), self.q(stripe));
        let around = (1..self.members).map(|step| (q + step) % self.members).filter(|member| *member != p);
        around.chain([p, q]).collect()
    }

    /// The offset of a stripe in every member's data.
    pub fn member_offset(&self, stripe: u64) -> u64 {
        stripe * self.chunk_bytes
    }

    /// Where a byte of the array lies.
    pub fn locate(&self, offset: u64) -> Location {
        let (stripe, within) = (offset / self.stripe_bytes(), offset % self.stripe_bytes());
        let index = (within / self.chunk_bytes) as usize;
        Location { stripe, index, member: self.member(stripe, index), inside: within % self.chunk_bytes }
    }

    /// The byte of the array at an offset of a member's data; None if P or Q is there.
    pub fn offset_of(&self, member: usize, member_offset: u64) -> Option<u64> {
        let (stripe, inside) = (member_offset / self.chunk_bytes, member_offset % self.chunk_bytes);
        let index = self.index(stripe, member)? as u64;
        Some(stripe * self.stripe_bytes() + index * self.chunk_bytes + inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn rotation() -> impl Strategy<Value = Rotation> {
        prop::sample::select(Rotation::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn every_member_has_one_chunk_of_a_stripe(rotation in rotation(), members in 4_usize..20, stripe in 0_u64..1 << 40) {
            let layout = Layout::new(rotation, members, 4096).unwrap();
            let data: Vec<usize> = (0..layout.data()).map(|index| layout.member(stripe, index)).collect();
            let all: BTreeSet<usize> = data.iter().copied().chain([layout.p(stripe), layout.q(stripe)]).collect();
            prop_assert_eq!(all, (0..members).collect::<BTreeSet<_>>());
            for (slot, member) in layout.by_slot(stripe).into_iter().enumerate() {
                prop_assert_eq!(layout.slot(stripe, member), slot);
            }
        }

        #[test]
        fn bytes_are_found_where_they_were_put(rotation in rotation(), members in 4_usize..20, offset in 0_u64..1 << 50) {
            let layout = Layout::new(rotation, members, 8192).unwrap();
            let place = layout.locate(offset);
            let at = layout.member_offset(place.stripe) + place.inside;
            prop_assert_eq!(layout.offset_of(place.member, at), Some(offset));
            prop_assert_eq!(layout.offset_of(layout.p(place.stripe), at), None);
        }
    }

    /// The first stripes of five members, as md's manual page and source have them.
    #[test]
    fn stripes_look_as_in_md() {
        let drawn = |rotation, stripe| -> String {
            let layout = Layout::new(rotation, 5, 4096).unwrap();
            let chunk = |member| match layout.slot(stripe, member) {
                3 => 'P',
                4 => 'Q',
                _ => char::from(b'0' + layout.index(stripe, member).unwrap() as u8),
            };
            (0..5).map(chunk).collect()
        };
        let cases = [
            (Rotation::LeftAsymmetric, ["Q012P", "012PQ", "01PQ2", "0PQ12", "PQ012"]),
            (Rotation::RightAsymmetric, ["PQ012", "0PQ12", "01PQ2", "012PQ", "Q012P"]),
            (Rotation::LeftSymmetric, ["Q012P", "012PQ", "12PQ0", "2PQ01", "PQ012"]),
            (Rotation::RightSymmetric, ["PQ012", "2PQ01", "12PQ0", "012PQ", "Q012P"]),
            (Rotation::ParityFirst, ["PQ012"; 5]),
            (Rotation::ParityLast, ["012PQ"; 5]),
            (Rotation::LeftAsymmetric6, ["012PQ", "01P2Q", "0P12Q", "P012Q", "012PQ"]),
            (Rotation::RightAsymmetric6, ["P012Q", "0P12Q", "01P2Q", "012PQ", "P012Q"]),
            (Rotation::LeftSymmetric6, ["012PQ", "12P0Q", "2P01Q", "P012Q", "012PQ"]),
            (Rotation::RightSymmetric6, ["P012Q", "2P01Q", "12P0Q", "012PQ", "P012Q"]),
            (Rotation::ParityFirst6, ["P012Q"; 5]),
        ];
        for (rotation, expected) in cases {
            let found: Vec<String> = (0..5).map(|stripe| drawn(rotation, stripe)).collect();
            assert_eq!(found, expected, "{rotation}");
        }
    }

    #[test]
    fn shapes_that_md_does_not_have_are_refused() {
        for (members, chunk) in [(3, 4096), (258, 4096), (5, 0), (5, 5000), (5, 2048), (5, 1 << 40)] {
            assert!(Layout::new(Rotation::LeftSymmetric, members, chunk).is_err());
        }
        assert!("left".parse::<Rotation>().unwrap_err().contains("left-symmetric"));
    }
}
