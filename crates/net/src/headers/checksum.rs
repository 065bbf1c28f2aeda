//! The Internet checksum (RFC 1071): of whole data, of a pseudo-header, and adjusted to a change (RFC 1624).
//!
//! Sums are kept in the byte order of the data, as the one's complement sum is the same in each order but for the order of
//! its bytes: nothing is swapped until the end.

use std::net::Ipv4Addr;

/// A one's complement sum of data, of which all parts but the last have even lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum with `data` behind what it has.
    #[inline]
    #[must_use]
    pub fn with(self, data: &[u8]) -> Self {
        let (wide, rest) = data.as_chunks::<32>();
        let mut sum = u128::from(self.0);
        for chunk in wide {
            let (words, _) = chunk.as_chunks::<8>();
            for word in words {
                sum += u128::from(u64::from_ne_bytes(*word));
            }
        }
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            sum += u128::from(u64::from_ne_bytes(*word));
        }
        let mut last = 0;
        let rest = match rest.split_first_chunk::<4>() {
            Some((word, rest)) => {
                last += u64::from(u32::from_ne_bytes(*word));
                rest
            }
            None => rest,
        };
        last += u64::from(match *rest {
            [] => 0,
            [a] => u32::from(u16::from_ne_bytes([a, 0])),
            [a, b] => u32::from(u16::from_ne_bytes([a, b])),
            [a, b, c, ..] => u32::from_ne_bytes([a, b, c, 0]),
        });
        Self(fold64(sum + u128::from(last)))
    }

    /// The sum with a number of two bytes.
    #[inline]
    #[must_use]
    pub fn with16(self, value: u16) -> Self {
        Self(fold64(u128::from(self.0) + u128::from(value.to_be())))
    }

    /// The sum with a number of four bytes.
    #[inline]
    #[must_use]
    pub fn with32(self, value: u32) -> Self {
        Self(fold64(u128::from(self.0) + u128::from(value.to_be())))
    }

    /// The sum itself: 0xffff for data with a valid checksum in it, 0 for zeros only.
    #[inline]
    pub fn folded(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        u16::from_be((sum + (sum >> 16)) as u16)
    }

    /// The checksum: the complement of the sum.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// Whether the checksum in 20 bytes is right.
#[inline]
pub(super) fn is_valid20(data: &[u8; 20]) -> bool {
    let word = |at: usize| u64::from(u32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]));
    Sum(word(0) + word(4) + word(8) + word(12) + word(16)).folded() == 0xffff
}

/// A checksum, after the first of two bytes at an even place has got smaller by 1.
#[inline]
#[must_use]
pub(super) fn after_decrement(checksum: u16) -> u16 {
    let sum = u32::from(checksum) + 0x100;
    (sum + ((sum + 1) >> 16)) as u16
}

/// A sum of 64 bits that is the same modulo 2^16 - 1; 2^64 - 1 is a multiple of it. Of a sum of fewer than 2^63 words.
#[inline]
fn fold64(sum: u128) -> u64 {
    let (low, high) = (sum as u64, (sum >> 64) as u64);
    let (sum, carry) = low.overflowing_add(high);
    sum + u64::from(carry)
}

/// The checksum of `data`, in which the checksum's own field is zero; odd lengths are padded by a zero.
#[inline]
pub fn internet(data: &[u8]) -> u16 {
    Sum::default().with(data).checksum()
}

/// Whether the checksum in `data` is right.
#[inline]
pub fn is_valid(data: &[u8]) -> bool {
    Sum::default().with(data).folded() == 0xffff
}

/// The sum of the pseudo-header of TCP and UDP; `len` is the length of their header and data.
#[inline]
pub fn pseudo(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> Sum {
    let addresses =
        u64::from(u32::from_ne_bytes(source.octets())) + u64::from(u32::from_ne_bytes(destination.octets()));
    Sum(addresses + u64::from(u16::from(protocol).to_be()) + u64::from(len.to_be()))
}

/// The checksum of a TCP or UDP `segment`, in which the checksum's own field is zero. One of UDP that is 0 has to be sent
/// as 0xffff, see [`udp`].
#[inline]
pub fn transport(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, segment: &[u8]) -> u16 {
    pseudo(source, destination, protocol, segment.len() as u16).with(segment).checksum()
}

/// The checksum of a UDP `datagram`, in which the checksum's own field is zero; never 0, which means none.
#[inline]
pub fn udp(source: Ipv4Addr, destination: Ipv4Addr, datagram: &[u8]) -> u16 {
    match transport(source, destination, super::ip::PROTOCOL_UDP, datagram) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// A valid `checksum`, after two bytes at an even place have changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
#[must_use]
pub fn adjust16(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}

/// A valid `checksum`, after four bytes at an even place have changed from `old` to `new`.
#[inline]
#[must_use]
pub fn adjust32(checksum: u16, old: u32, new: u32) -> u16 {
    let sum = u64::from(!checksum) + u64::from(!old) + u64::from(new);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use bifolio_testing::{noise, seed};

    use super::*;

    /// The obvious loop: 16 bits at a time, each carry added at once.
    fn oracle(data: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in data.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn data_of_all_lengths_has_the_sum_of_the_obvious_loop() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for len in (0..200).chain([1500, 9000, 65535]) {
            let mut data = noise(len, rng.u64(..));
            assert_eq!(internet(&data), oracle(&data), "{len}");
            data.fill(0xff);
            assert_eq!(internet(&data), oracle(&data), "{len}");
            data.fill(0);
            assert_eq!(internet(&data), 0xffff);
        }
    }

    #[test]
    fn parts_of_even_lengths_add_up() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..2000 {
            let data = noise(rng.usize(..300), rng.u64(..));
            let at = rng.usize(..=data.len() / 2) * 2;
            let (one, two) = data.split_at(at);
            assert_eq!(Sum::default().with(one).with(two).checksum(), oracle(&data));
            let tail = [data.as_slice(), &vec![0; data.len() % 2]].concat();
            let (short, long) = (rng.u16(..), rng.u32(..));
            let whole = [tail.as_slice(), &short.to_be_bytes(), &long.to_be_bytes()].concat();
            assert_eq!(Sum::default().with(&tail).with16(short).with32(long).checksum(), oracle(&whole));
        }
    }

    #[test]
    fn a_checksum_in_its_data_makes_it_valid() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..2000 {
            let mut data = noise(rng.usize(2..100), rng.u64(..));
            data[..2].fill(0);
            let checksum = internet(&data);
            data[..2].copy_from_slice(&checksum.to_be_bytes());
            assert!(is_valid(&data));
            let at = rng.usize(..data.len());
            data[at] ^= 1 << rng.u8(..8);
            assert!(!is_valid(&data));
        }
    }

    #[test]
    fn adjusted_checksums_are_those_of_the_changed_data() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..20_000 {
            // A header that is not all zeros, as those of IP are: then 0xffff is no checksum, in either way.
            let mut data = noise(20, rng.u64(..));
            data[0] = 0x45;
            let before = oracle(&data);
            let at = rng.usize(1..9) * 2;
            let field = |data: &[u8]| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
            let (old, new) = (field(&data), [0, u32::MAX, 0xffff, rng.u32(..)][rng.usize(..4)]);
            data[at..at + 4].copy_from_slice(&new.to_be_bytes());
            assert_eq!(adjust32(before, old, new), oracle(&data));
            let halves = adjust16(before, (old >> 16) as u16, (new >> 16) as u16);
            assert_eq!(adjust16(halves, old as u16, new as u16), oracle(&data));
        }
    }

    #[test]
    fn a_smaller_byte_makes_each_checksum_greater() {
        for checksum in 0..=u16::MAX {
            assert_eq!(after_decrement(checksum), adjust16(checksum, 0x4011, 0x3f11), "{checksum:x}");
        }
    }

    #[test]
    fn twenty_bytes_are_valid_if_their_sum_is() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..20_000 {
            let mut data: [u8; 20] = noise(20, rng.u64(..)).try_into().unwrap();
            if rng.bool() {
                data.fill([0, 0xff][rng.usize(..2)]);
            }
            data[10..12].fill(0);
            let sum = oracle(&data).to_be_bytes();
            data[10..12].copy_from_slice(&sum);
            assert_eq!(is_valid20(&data), is_valid(&data));
            data[rng.usize(..20)] ^= rng.u8(..);
            assert_eq!(is_valid20(&data), is_valid(&data), "{data:x?}");
        }
    }

    #[test]
    fn transport_checksums_are_over_the_pseudo_header() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..2000 {
            let segment = noise(rng.usize(8..100), rng.u64(..));
            let (source, destination) = (Ipv4Addr::from_bits(rng.u32(..)), Ipv4Addr::from_bits(rng.u32(..)));
            let protocol = rng.u8(..);
            let len = (segment.len() as u16).to_be_bytes();
            let whole = [&source.octets()[..], &destination.octets(), &[0, protocol], &len, &segment].concat();
            assert_eq!(transport(source, destination, protocol, &segment), oracle(&whole));
        }
    }

    #[test]
    fn a_udp_checksum_is_never_zero() {
        let mut datagram = [0, 1, 0, 2, 0, 10, 0, 0, 0, 0];
        let addresses = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let rest = udp(addresses.0, addresses.1, &datagram);
        datagram[8..].copy_from_slice(&rest.to_be_bytes());
        assert_eq!(transport(addresses.0, addresses.1, 17, &datagram), 0);
        assert_eq!(udp(addresses.0, addresses.1, &datagram), 0xffff);
    }
}
