//! Batches to measure a path with: UDP packets with random addresses and text.

use super::batch::Extent;
use super::layout::Layout;
use super::pack::pack;
use super::texts::{entry, payload};
use crate::Packet;
use crate::headers::ip;

/// Bytes of a packet, behind its Ethernet header.
const SHORT: usize = 46;
/// The same where spans travel.
const LONG: usize = 512;

fn packet(random: &mut fastrand::Rng, len: usize) -> Packet {
    let mut bytes = vec![0; 14 + len];
    random.fill(&mut bytes);
    // What is searched looks like text.
    bytes[42..].iter_mut().for_each(|byte| *byte = b' ' + *byte % 64);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let header = &mut bytes[14..34];
    header[..2].copy_from_slice(&[0x45, 0]);
    header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    header[6..10].copy_from_slice(&[0, 0, 64, 17]);
    ip::set_checksum(&mut bytes[14..]);
    let mut packet = Packet::from_slice(&bytes);
    packet.set_mac_header(0);
    packet.set_network_header(14, 20);
    packet
}

/// Rows of about so many bytes, with their spans.
pub(super) fn sample(layout: &Layout, about_bytes: usize) -> (Extent, Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(1);
    let len = if layout.has_spans() { LONG } else { SHORT };
    let parts = usize::from(layout.wants.payload) + usize::from(layout.has_texts());
    let span = (len - 20) * parts;
    let count = (about_bytes / (layout.input_bytes() + span)).max(1);
    let (mut rows, mut spans, mut texts) =
        (vec![0; count * layout.input_bytes()], Vec::with_capacity(count * span), Vec::new());
    for row in rows.chunks_exact_mut(layout.input_bytes()) {
        let packet = packet(&mut random, len);
        let span = pack(layout, &packet, row);
        if layout.has_spans() {
            row[4..8].copy_from_slice(&((spans.len() / 4) as u32).to_le_bytes());
            spans.extend(span);
            spans.resize(spans.len().next_multiple_of(4), 0);
        }
        if layout.has_texts() {
            let text = payload(&packet).unwrap_or_default();
            texts.extend(entry(spans.len(), text.len()));
            spans.extend(text);
            spans.resize(spans.len().next_multiple_of(4), 0);
        }
    }
    let extent = Extent::new(layout, count, spans.len(), false);
    if layout.has_options_alone() {
        // These packets have none.
        return (extent, rows);
    }
    for (at, part) in [(extent.rows_at, rows), (extent.texts_at, texts)] {
        spans.resize(at, 0);
        spans.extend(part);
    }
    (extent, spans)
}
