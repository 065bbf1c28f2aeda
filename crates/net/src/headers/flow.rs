//! What names a flow: addresses and ports.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::Ipv4Addr;

use super::Ip;

/// Addresses and ports of a flow in one direction. The protocol is no part of it.
///
/// Its hash is made for tables that senders of packets must not be able to slow down: it depends on a key, which each table
/// draws for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId {
    /// Who sends.
    pub source: Ipv4Addr,
    /// The sender's port.
    pub source_port: u16,
    /// Who receives.
    pub destination: Ipv4Addr,
    /// The receiver's port.
    pub destination_port: u16,
}

impl FlowId {
    /// A flow of its parts.
    #[inline]
    pub fn new(source: Ipv4Addr, source_port: u16, destination: Ipv4Addr, destination_port: u16) -> Self {
        Self { source, source_port, destination, destination_port }
    }

    /// The flow of a packet whose protocol has ports where UDP has them (TCP, UDP, DCCP): `None` where its ports are not
    /// there, as it is too short or no first fragment.
    #[inline]
    pub fn of(ip: Ip<'_>) -> Option<Self> {
        let ports = ip.payload().first_chunk::<4>().filter(|_| ip.is_first_fragment())?;
        let [a, b, c, d] = *ports;
        Some(Self::new(ip.source(), u16::from_be_bytes([a, b]), ip.destination(), u16::from_be_bytes([c, d])))
    }

    /// The addresses of a packet, with ports 0.
    #[inline]
    pub fn addresses(ip: Ip<'_>) -> Self {
        Self::new(ip.source(), 0, ip.destination(), 0)
    }

    /// The same flow in the other direction.
    #[inline]
    #[must_use]
    pub fn reverse(self) -> Self {
        Self::new(self.destination, self.destination_port, self.source, self.source_port)
    }

    /// Addresses and ports as numbers: the source above the destination.
    #[inline]
    pub fn to_bits(self) -> (u64, u32) {
        let addresses = u64::from(self.source.to_bits()) << 32 | u64::from(self.destination.to_bits());
        (addresses, u32::from(self.source_port) << 16 | u32::from(self.destination_port))
    }

    /// A hash that nobody can tell who doesn't know the key: SipHash-1-3.
    #[inline]
    pub fn hash_with(self, HashKey([k0, k1]): HashKey) -> u64 {
        let (addresses, ports) = self.to_bits();
        let mut v = Sip([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ]);
        // Two words, the second one with the number of bytes.
        for word in [addresses, 12 << 56 | u64::from(ports)] {
            v.0[3] ^= word;
            v.round();
            v.0[0] ^= word;
        }
        v.0[2] ^= 0xff;
        (0..3).for_each(|_| v.round());
        v.0[0] ^ v.0[1] ^ v.0[2] ^ v.0[3]
    }
}

/// What hashes depend on.
#[derive(Debug, Clone, Copy, Default)]
pub struct HashKey([u64; 2]);

impl HashKey {
    /// A key that nobody knows.
    pub fn random() -> Self {
        let state = RandomState::new();
        Self([0, 1].map(|half: u64| state.hash_one(half)))
    }
}

/// The state of SipHash (Aumasson and Bernstein, 2012).
struct Sip([u64; 4]);

impl Sip {
    #[inline]
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *c = c.wrapping_add(*d);
        *b = b.rotate_left(13) ^ *a;
        *d = d.rotate_left(16) ^ *c;
        *a = a.rotate_left(32).wrapping_add(*d);
        *c = c.wrapping_add(*b);
        *d = d.rotate_left(21) ^ *a;
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

impl Hash for FlowId {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (addresses, ports) = self.to_bits();
        state.write_u64(addresses);
        state.write_u32(ports);
    }
}

impl fmt::Display for FlowId {
    /// `(1.0.0.1, 20, 2.0.0.2, 80)`, as Click writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, source_port, destination, destination_port } = self;
        write!(f, "({source}, {source_port}, {destination}, {destination_port})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use bifolio_testing::seed;

    use super::*;

    #[test]
    fn a_flow_is_read_from_first_fragments_only() {
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[12..24].copy_from_slice(&[1, 0, 0, 1, 2, 0, 0, 2, 0, 20, 1, 0]);
        let flow = FlowId::of(Ip::new(&packet).unwrap()).unwrap();
        assert_eq!(flow.to_string(), "(1.0.0.1, 20, 2.0.0.2, 256)");
        assert_eq!(flow.reverse().to_string(), "(2.0.0.2, 256, 1.0.0.1, 20)");
        assert_eq!(FlowId::addresses(Ip::new(&packet).unwrap()).to_string(), "(1.0.0.1, 0, 2.0.0.2, 0)");
        packet[7] = 1;
        assert_eq!(FlowId::of(Ip::new(&packet).unwrap()), None);
        packet[7] = 0;
        packet[3] = 23;
        assert_eq!(FlowId::of(Ip::new(&packet).unwrap()), None);
    }

    #[test]
    fn a_hash_is_that_of_the_standard_library() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..1000 {
            let address = |rng: &mut fastrand::Rng| Ipv4Addr::from_bits(rng.u32(..));
            let flow = FlowId::new(address(&mut rng), rng.u16(..), address(&mut rng), rng.u16(..));
            // The standard library's has no other key that is known.
            let mut hasher = std::collections::hash_map::DefaultHasher::new();
            flow.hash(&mut hasher);
            assert_eq!(flow.hash_with(HashKey::default()), hasher.finish());
            assert_ne!(flow.hash_with(HashKey::random()), flow.hash_with(HashKey::random()));
        }
    }

    /// Flows that differ in a few low bits only, such as all ports of one pair of hosts, fill a table as chance would, or
    /// better: of `n` keys in `n` slots, chance leaves a share of 1/e empty.
    #[test]
    fn similar_flows_spread() {
        let mut rng = fastrand::Rng::with_seed(seed());
        let base = FlowId::new(Ipv4Addr::new(10, 0, 0, 1), 1024, Ipv4Addr::new(10, 0, 0, 2), 80);
        let families: [fn(FlowId, u32) -> FlowId; 4] = [
            |flow, i| FlowId { source_port: i as u16, ..flow },
            |flow, i| FlowId { destination_port: i as u16, ..flow },
            |flow, i| FlowId { source: Ipv4Addr::from_bits(flow.source.to_bits() + i), ..flow },
            |flow, i| FlowId { destination: Ipv4Addr::from_bits(flow.destination.to_bits() + (i << 8)), ..flow },
        ];
        for (i, family) in families.into_iter().enumerate() {
            for shift in [0, 48] {
                let key = HashKey([rng.u64(..), rng.u64(..)]);
                let used: HashSet<_> = (0..65536).map(|n| (family(base, n).hash_with(key) >> shift) as u16).collect();
                assert!(used.len() > 38_000, "{i} {shift}: {}", used.len());
            }
        }
    }
}
