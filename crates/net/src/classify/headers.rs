//! The bytes of a packet that filters look at.

/// What a filter looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    /// The packet from its Ethernet header on; empty if it has none.
    pub mac: &'a [u8],
    /// The packet from its network header on.
    pub network: &'a [u8],
    /// Where in `network` the transport header begins; at its end or beyond: nowhere.
    pub transport: usize,
}

impl<'a> Headers<'a> {
    /// A packet's bytes for a [`Filter::classifier`](super::Filter::classifier).
    pub fn raw(data: &'a [u8]) -> Self {
        Self { mac: &[], network: data, transport: data.len() }
    }
}
