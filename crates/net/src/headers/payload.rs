//! What of an IP packet is for who receives it: what follows the headers of TCP, UDP and ICMP.

use super::ip::LEN;
use super::{Ip, Tcp};
use std::ops::Range;

/// What follows the headers of an IP packet; nothing where its length contradicts itself.
pub fn behind_headers(network: &[u8]) -> Option<&[u8]> {
    let (header, rest) = network.split_first_chunk()?;
    rest.get(payload_of(header, rest)?)
}

/// Where the payload of an IP packet lies in what follows the first 20 bytes of its header; nothing where its length
/// contradicts itself.
pub fn payload_of(header: &[u8; LEN], rest: &[u8]) -> Option<Range<usize>> {
    let ip = Ip::new(header).filter(|ip| ip.version() == 4)?;
    let (header_len, total_len) = (ip.header_len(), usize::from(ip.total_len()));
    if header_len < LEN || total_len < header_len || LEN + rest.len() < header_len {
        return None;
    }
    let (begin, end) = (header_len - LEN, (total_len - LEN).min(rest.len()));
    let body = &rest[begin..end.max(begin)];
    let header = match ip.protocol() {
        _ if ip.fragment_offset() > 0 => 0,
        1 | 17 => 8,
        6 => Tcp::new(body).map(Tcp::header_len).filter(|len| *len >= 20).unwrap_or(0),
        _ => 0,
    };
    // A header that is not all there is searched: nothing hides behind a length.
    let header = if header > body.len() { 0 } else { header };
    Some(begin + header..begin + body.len())
}
