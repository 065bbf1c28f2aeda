//! Names of addresses, ports and protocols that configurations define (AddressInfo, PortInfo) or everybody knows.

use std::collections::HashMap;

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
}
