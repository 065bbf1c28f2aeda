//! The sending end of an association: sequence numbers, and packets that are encrypted.

use super::association::{Association, Mode, TAG_BYTES, padded};
use super::frame::{ESP_BYTES, PROTOCOL_ESP, Plain, TOTAL_MAX, open_gap};
use super::refusals::Refusal;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::headers::ip::{DF, LEN, set_checksum};
use crate::headers::{Ip, IpMut};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The header of a tunnel.
#[derive(Debug, Clone, Copy)]
struct Outer {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    ttl: u8,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) association: Association,
    /// In tunnel mode.
    outer: Option<Outer>,
    /// The next sequence number.
    next: AtomicU64,
    /// In which bits IVs differ from sequence numbers.
    pub(crate) iv: u64,
}

impl Sender {
    /// Those of an association, and SRC, DST, TTL, NUMBER, IV.
    pub(crate) fn of(args: &mut Args<'_>) -> Result<Self, Failed> {
        let (mut source, mut destination, mut ttl) = (None::<Ipv4Addr>, None::<Ipv4Addr>, 64);
        let (mut next, mut iv) = (1_u64, None::<u64>);
        args.key("SRC", &mut source).key("DST", &mut destination).key("TTL", &mut ttl);
        args.key("NUMBER", &mut next).key("IV", &mut iv);
        let association = Association::of(args)?;
        args.finish()?;
        let outer = match (association.mode, source, destination) {
            (Mode::Tunnel, Some(source), Some(destination)) => Some(Outer { source, destination, ttl }),
            (Mode::Transport, None, None) => None,
            (Mode::Tunnel, ..) => return Err(args.error("SRC and DST are needed in tunnel mode")),
            (Mode::Transport, ..) => return Err(args.error("there is no SRC and no DST in transport mode")),
        };
        if next == 0 || next > association.number_max() {
            let most = association.number_max();
            return Err(args.error_of("NUMBER", format_args!("must be between 1 and {most}")));
        }
        // A key that is used again does not begin with the nonces that it had.
        let iv = iv.unwrap_or_else(|| fastrand::u64(..));
        Ok(Self { association, outer, next: next.into(), iv })
    }

    /// Sequence numbers for so many packets: the first of them.
    pub(crate) fn take(&self, count: usize) -> u64 {
        self.next.fetch_add(count as u64, Ordering::Relaxed)
    }

    /// The next sequence number.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Goes on where another one of the same association was.
    pub(crate) fn inherit(&self, old: &Self) {
        if self.association.is_same(&old.association) {
            self.next.fetch_max(old.next(), Ordering::Relaxed);
        }
    }

    /// The IV of a packet.
    pub(crate) fn iv_of(&self, number: u64) -> [u8; 8] {
        (number ^ self.iv).to_be_bytes()
    }

    /// Encrypts a packet. `sealed` begins with what that gives, ciphertext and tag, where somebody knows it. A packet that is
    /// refused stays as it was.
    pub(crate) fn seal(&self, packet: &mut Packet, number: u64, sealed: Option<&[u8]>) -> Result<(), Refusal> {
        let plain = Plain::of(packet, self.association.mode)?;
        let header_len = if self.outer.is_some() { LEN } else { plain.kept };
        let text_len = padded(plain.len());
        let total_len = header_len + ESP_BYTES + text_len + TAG_BYTES;
        if total_len > TOTAL_MAX {
            return Err(Refusal::TooLong);
        }
        if number > self.association.number_max() {
            return Err(Refusal::Exhausted);
        }
        let at = plain.frame.at;
        let header = self.header(packet, plain, number, total_len as u16);
        plain.frame.cut(packet);
        open_gap(packet, at + plain.kept, header_len - plain.kept + ESP_BYTES);
        let bytes = packet.put(text_len - plain.len() + TAG_BYTES);
        let (head, rest) = bytes[at..].split_at_mut(header_len);
        head[..LEN].copy_from_slice(&header);
        let _ = set_checksum(head);
        let (esp, sealed_at) = rest.split_at_mut(ESP_BYTES);
        esp[..4].copy_from_slice(&self.association.spi);
        esp[4..8].copy_from_slice(&(number as u32).to_be_bytes());
        esp[8..].copy_from_slice(&self.iv_of(number));
        if let Some(sealed) = sealed.and_then(|sealed| sealed.get(..sealed_at.len())) {
            sealed_at.copy_from_slice(sealed);
        } else {
            let (text, tag) = sealed_at.split_at_mut(text_len);
            plain.finish(text);
            tag.copy_from_slice(&self.association.encrypt(number, self.iv_of(number), text));
        }
        packet.set_network_header(at as isize, header_len);
        if let Some(outer) = self.outer {
            packet.set_dst_ip(outer.destination);
        }
        Ok(())
    }

    /// The first bytes of the IP header that a packet gets, without a checksum. In a tunnel, type of service and "don't fragment" are
    /// those of the packet inside (RFC 4301, 5.1.2.1).
    fn header(&self, packet: &Packet, plain: Plain, number: u64, total_len: u16) -> [u8; LEN] {
        let mut header: [u8; LEN] = packet.bytes()[plain.frame.at..].first_chunk().copied().unwrap_or_default();
        let inner = header;
        if let (Some(mut ip), Some(inner)) = (IpMut::new(&mut header), Ip::new(&inner)) {
            if let Some(Outer { source, destination, ttl }) = self.outer {
                ip.clear(LEN);
                ip.set_tos(inner.tos());
                ip.set_id(number as u16);
                ip.set_flags_offset(inner.flags_offset() & DF);
                ip.set_ttl(ttl);
                ip.set_source(source);
                ip.set_destination(destination);
            }
            ip.set_total_len(total_len);
            ip.set_protocol(PROTOCOL_ESP);
        }
        header
    }
}
