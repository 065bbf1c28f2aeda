//! From packets to rows and spans: what is sliced out of a packet, and nothing else, travels.

use super::layout::Layout;
use crate::Packet;
use crate::headers::Ip;
use crate::headers::ether::{Ether, TYPE_IP};
use bifolio_kernels::packets::{CAPTURED_MAX, HAS_BYTE_13, HAS_LINK, HAS_NETWORK, HAS_TRANSPORT, LINK_SHIFT, NONE};

/// Bytes of the IP header without options.
const IP_BYTES: usize = 20;

/// Where the network header is.
#[inline]
pub(super) fn network<'a>(layout: &Layout, packet: &'a Packet) -> Option<&'a [u8]> {
    match layout.wants.offset {
        Some(offset) => packet.bytes().get(offset..),
        None => packet.network_header().or_else(|| inner(packet)),
    }
}

/// What an Ethernet frame has inside, if that is IP and nobody has marked it.
#[cold]
fn inner(packet: &Packet) -> Option<&[u8]> {
    let frame = packet.mac_header().unwrap_or(packet.bytes());
    let (kind, len) = Ether::new(frame)?.inner(2);
    frame.get(len..).filter(|_| kind == TYPE_IP)
}

/// The first bytes of `from`, and zeroes behind them.
#[inline]
fn copy_padded(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    to[..len].copy_from_slice(&from[..len]);
    to[len..].fill(0);
}

/// The part of a row that begins with a word.
#[inline]
fn part(row: &mut [u8], word: u32, bytes: usize) -> &mut [u8] {
    &mut row[word as usize * 4..][..bytes]
}

/// A packet's transport header, as far as it is there.
#[inline]
fn transport(network: &[u8]) -> &[u8] {
    let Some(ip) = Ip::new(network).filter(|ip| ip.version() == 4 && ip.fragment_offset() == 0) else { return &[] };
    let end = usize::from(ip.total_len()).min(network.len());
    let header_len = ip.header_len();
    if header_len < IP_BYTES { &[] } else { network.get(header_len..end).unwrap_or_default() }
}

/// Writes a packet's row; returns what of it goes into the variable part.
#[inline]
pub(super) fn pack<'a>(layout: &Layout, packet: &'a Packet, row: &mut [u8]) -> &'a [u8] {
    let mut descriptor = 0;
    let mut span: &[u8] = &[];
    if layout.link() != NONE {
        let frame = packet.mac_header().or_else(|| packet.network_header().is_none().then(|| packet.bytes()));
        copy_padded(part(row, layout.link(), 24), frame.unwrap_or_default());
        // How much of it is there, beyond the header without tags.
        let more = frame.and_then(|frame| frame.len().checked_sub(14));
        descriptor |= more.map_or(0, |more| HAS_LINK | (more as u32 / 2).min(4) << LINK_SHIFT);
    }
    if layout.network() != NONE {
        let found = network(layout, packet);
        let bytes = found.unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(CAPTURED_MAX as usize)];
        descriptor |= bytes.len() as u32 | if found.is_some() { HAS_NETWORK } else { 0 };
        match bytes.first_chunk::<IP_BYTES>() {
            Some(header) => part(row, layout.network(), IP_BYTES).copy_from_slice(header),
            None => copy_padded(part(row, layout.network(), IP_BYTES), bytes),
        }
        if layout.transport() != NONE {
            let transport = transport(bytes);
            match transport.first_chunk::<4>() {
                Some(first) => {
                    part(row, layout.transport(), 4).copy_from_slice(first);
                    descriptor |= HAS_TRANSPORT;
                }
                None => copy_padded(part(row, layout.transport(), 4), transport),
            }
            descriptor |= transport.get(13).map_or(0, |detail| HAS_BYTE_13 | u32::from(*detail) << 16);
        }
        if layout.wants.payload {
            span = bytes.get(IP_BYTES..).unwrap_or_default();
        } else if layout.wants.options {
            let end = bytes.first().map_or(0, |first| usize::from(first & 15) * 4).min(bytes.len());
            span = bytes.get(IP_BYTES..end).unwrap_or_default();
        }
    }
    if layout.slots_in() != NONE {
        let slots = part(row, layout.slots_in(), 4);
        slots.fill(0);
        for (slot, annotation) in slots.iter_mut().zip(&layout.wants.slots) {
            *slot = if layout.wants.fresh.contains(annotation) { 0 } else { packet.anno_u8(*annotation) };
        }
    }
    for annotation in &layout.wants.annotations {
        let word = packet.anno_u32(*annotation);
        part(row, layout.annotation(*annotation), 4).copy_from_slice(&word.to_ne_bytes());
    }
    part(row, 0, 4).copy_from_slice(&descriptor.to_le_bytes());
    span
}
