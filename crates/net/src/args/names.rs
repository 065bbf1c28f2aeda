//! Names of addresses, ports and protocols that configurations define (AddressInfo, PortInfo) or everybody knows.

use std::collections::HashMap;

/// Tickets of a task that is run as often as others.
pub(crate) const TICKETS: u32 = 1 << 10;
/// The most tickets.
const TICKETS_MAX: u32 = 1 << 15;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// An IP address, 4 bytes in network order.
    IpAddress,
    /// An IP address and a mask, 4 bytes each in network order.
    IpPrefix,
    /// An Ethernet address, 6 bytes.
    EtherAddress,
    /// A TCP port, 2 bytes in network order.
    TcpPort,
    /// A UDP port, 2 bytes in network order.
    UdpPort,
    /// An IP protocol, 1 byte.
    IpProtocol,
    /// How often a task is run, 4 bytes in network order: parts of 1,024.
    ScheduleTickets,
    /// The thread that runs an element's task, 4 bytes in network order.
    HomeThread,
    /// A pattern of IPRewriterPatterns: the element's number and the pattern's, 4 bytes each in network order.
    RewriterPattern,
}

/// Values by kind and name. A name of a compound (`a/b`) hides one of those around it.
#[derive(Debug, Clone, Default)]
pub struct NameDb(HashMap<(NameKind, String), Vec<u8>>);

impl NameDb {
    /// Defines a name; the last definition counts.
    pub fn define(&mut self, kind: NameKind, name: impl Into<String>, value: &[u8]) {
        self.0.insert((kind, name.into()), value.to_vec());
    }

    /// The value of a name as seen from an element: in its compound first, then in those around it.
    pub fn get(&self, kind: NameKind, name: &str, element: &str) -> Option<&[u8]> {
        let mut scope = element;
        loop {
            scope = scope.rsplit_once('/').map_or("", |(outer, _)| outer);
            let whole = if scope.is_empty() { name.to_owned() } else { format!("{scope}/{name}") };
            if let Some(value) = self.0.get(&(kind, whole)) {
                return Some(value);
            }
            if scope.is_empty() {
                return None;
            }
        }
    }

    /// Keeps what is said within a scope (`a/b`, or nothing) of how often an element's task is run, in parts of [`TICKETS`]:
    /// the kind and the name for it. No element is called like that.
    pub(crate) fn tickets_name(scope: &str, element: &str) -> (NameKind, String) {
        (NameKind::ScheduleTickets, format!("{scope}//{element}"))
    }

    /// How often an element's task is run, in parts of [`TICKETS`]; nothing where nobody said. What is said of a compound
    /// multiplies what is said of the parts within it; what is said of a part from outside counts alone.
    pub(crate) fn tickets(&self, element: &str) -> Option<u32> {
        let slashes: Vec<_> = element.match_indices('/').map(|(at, _)| at).collect();
        let mut factors: Vec<(usize, u32)> = Vec::new();
        // Scopes from the inner to the outer; in each, what is said of the most of the name.
        for depth in (0..=slashes.len()).rev() {
            let (scope, start) =
                if depth == 0 { ("", 0) } else { (&element[..slashes[depth - 1]], slashes[depth - 1] + 1) };
            let ends = std::iter::once(element.len()).chain(slashes[depth..].iter().rev().copied());
            let value = |end: usize| {
                let bytes = self.0.get(&Self::tickets_name(scope, &element[start..end]))?;
                Some((end, u32::from_be_bytes(bytes.as_slice().try_into().ok()?)))
            };
            if let Some((end, tickets)) = ends.into_iter().find_map(value) {
                // What was said further in, of the same or of what it is within, does not count.
                factors.retain(|(inner, _)| *inner > end);
                factors.push((end, tickets));
            }
        }
        let one = u64::from(TICKETS);
        let product = factors.iter().fold(one, |all, (_, tickets)| all * u64::from(*tickets) / one);
        (!factors.is_empty()).then_some((product as u32).clamp(1, TICKETS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_compound_elements_multiply() {
        let of = |all: &[(&str, &str, f64)], element: &str| {
            let mut names = NameDb::default();
            for (scope, name, value) in all {
                let (kind, name) = NameDb::tickets_name(scope, name);
                names.define(kind, name, &((value * f64::from(TICKETS)) as u32).to_be_bytes());
            }
            names.tickets(element).map(|tickets| f64::from(tickets) / f64::from(TICKETS))
        };
        assert_eq!(of(&[("", "a", 2.0)], "a"), Some(2.0));
        assert_eq!(of(&[("", "a", 2.0)], "b"), None);
        assert_eq!(of(&[("c", "i", 0.5), ("", "c", 4.0)], "c/i"), Some(2.0));
        assert_eq!(of(&[("c", "i", 0.5), ("", "c", 4.0), ("", "c/i", 10.5)], "c/i"), Some(10.5));
        assert_eq!(of(&[("", "c", 4.0)], "c/d/i"), Some(4.0));
        assert_eq!(of(&[("c", "d", 3.0), ("c/d", "i", 2.0), ("", "c/d", 0.5)], "c/d/i"), Some(1.0));
        assert_eq!(of(&[("", "a", 100.0)], "a"), Some(32.0));
        assert_eq!(of(&[("", "a", 0.0)], "a"), Some(1.0 / 1024.0));
    }
}
