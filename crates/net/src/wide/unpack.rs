//! What was found, written into the packets.

use super::batch::PacketBatch;
use super::layout::Layout;
use super::pack::network;
use super::service::PathService;
use super::stage::Done;
use crate::Packet;
use bifolio_kernels::packets::NONE;

/// Packets that results are written into together: their headers fit the processor's nearest cache.
const TOGETHER: usize = 64;

/// Writes what was found into the next packets of a batch that is taken apart: a few at a time, as they have left the processor's
/// caches meanwhile. Where elements have found more than rows say, they look at all of a batch together, and say themselves what
/// they will need ([`Done::fetch`]).
pub(super) fn unpack(service: &PathService, layout: &Layout, batch: &mut PacketBatch, many: usize) {
    let Some(buffers) = batch.buffers.as_ref().filter(|_| batch.is_computed) else { return };
    let left_at = batch.count - batch.leaving.len();
    if left_at + many <= batch.unpacked {
        return;
    }
    let (places, _) = service.extras(batch.count, batch.span_bytes);
    let (all, row) = (buffers.output.bytes(), layout.output_bytes());
    let has_extras = places.iter().any(|(_, bytes)| *bytes > 0);
    let (end, together) = if has_extras { (batch.count, batch.count) } else { (left_at + many, TOGETHER) };
    let begin = batch.unpacked;
    let mut leaving = std::mem::take(&mut batch.leaving);
    let (packets, _) = leaving.as_mut_slices();
    let packets = &mut packets[begin - left_at..end - left_at];
    let outputs = all[begin * row..end * row].chunks(together * row);
    // Annotations lie beside packets: where nothing else is written, nobody waits for their bytes.
    let has_bytes = layout.ttl() != NONE || layout.wants.finds_header;
    let (rows, stages) = (batch.rows(layout), service.stages());
    let texts = layout.has_texts().then_some(&batch.texts);
    let of_stages = || stages.iter().zip(&*batch.snapshots).zip(&places);
    for (packets, output) in packets.chunks_mut(together).zip(outputs) {
        if !has_extras {
            fetch(packets, has_bytes);
        }
        for ((stage, snapshot), (at, bytes)) in of_stages() {
            let extra = &all[*at..at + bytes];
            stage.finish(&mut Done { layout, packets, texts, snapshot, rows, output, extra });
        }
        write_back(layout, packets, output);
        if let Some(((stage, snapshot), (at, bytes))) = of_stages().next_back().filter(|_| layout.wants.rewrites) {
            let extra = &all[*at..at + bytes];
            stage.rewrite(&mut Done { layout, packets, texts, snapshot, rows, output, extra });
        }
    }
    (batch.leaving, batch.unpacked) = (leaving, end);
}

/// Annotations, and changed headers.
fn write_back(layout: &Layout, packets: &mut [Packet], output: &[u8]) {
    let words: Vec<_> = layout.wants.words.iter().map(|word| (*word, layout.word(*word) as usize * 4)).collect();
    let (slots, ttl) = (&layout.wants.slots[..], layout.ttl());
    for (packet, row) in packets.iter_mut().zip(output.chunks_exact(layout.output_bytes())) {
        let anno = packet.anno_mut();
        for (slot, annotation) in row.iter().zip(slots) {
            anno[*annotation] = *slot;
        }
        for (annotation, at) in &words {
            if let Some(found) = row[*at..].first_chunk().copied().filter(|found| *found != [0; 4]) {
                anno[*annotation..*annotation + 4].copy_from_slice(&found);
            }
        }
        if ttl != NONE
            && let Some(changed) = row[ttl as usize * 4..].first_chunk::<4>()
        {
            set_ttl(layout, packet, *changed);
        }
    }
}

/// Has the processor load what it will need of packets, whose waits for memory so overlap.
#[inline]
fn fetch(packets: &[Packet], has_bytes: bool) {
    let first = |packet: &Packet| usize::from(packet.bytes().first().copied().unwrap_or_default());
    let found: usize = if has_bytes { packets.iter().map(first).sum() } else { packets.iter().map(Packet::len).sum() };
    std::hint::black_box(found);
}

/// Writes bytes 8 to 12 of the IP header, where they differ.
#[inline]
fn set_ttl(layout: &Layout, packet: &mut Packet, changed: [u8; 4]) {
    let Some(header) = network(layout, packet) else { return };
    if header.get(8..12).is_none_or(|bytes| bytes == changed) {
        return;
    }
    // Headers reach to the end of the data.
    let len = header.len();
    let header = if packet.network_header().is_some_and(|header| header.len() == len) {
        packet.network_header_mut()
    } else {
        let at = packet.len().checked_sub(len);
        at.and_then(|at| packet.bytes_mut().get_mut(at..))
    };
    if let Some(bytes) = header.and_then(|header| header.get_mut(8..12)) {
        bytes.copy_from_slice(&changed);
    }
}
