//! The fields of a packet as rules look at them, from its row: eight words, see `FlowTable`'s keys.

use crate::packets::row_kernel::Packet;
use crate::packets::rows::{HAS_LINK, HAS_NETWORK, LINK_SHIFT, LINK_WORDS, NETWORK_WORDS, NONE, PacketRows};

const HAS_ETHER: u32 = 1;
const HAS_IP: u32 = 2;
const HAS_PORTS: u32 = 4;
const HAS_DETAIL: u32 = 8;
/// Of flags and fragment offset, the offset.
const OFFSET: u32 = 0x1fff;

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from(bytes[at]) << 8 | u32::from(bytes[at + 1])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    half(bytes, at) << 16 | half(bytes, at + 2)
}

/// The fields; zeros for those that it does not have.
pub(super) fn of_row(rows: &PacketRows, packet: &Packet<'_>) -> [u32; 8] {
    let mut key = [0; 8];
    if rows.link != NONE && packet.has(HAS_LINK) {
        read_link(&mut key, &packet.bytes(rows.link, LINK_WORDS), packet.row[0] >> LINK_SHIFT & 7);
    }
    if packet.has(HAS_NETWORK) && packet.captured() >= 20 {
        let transport = packet.bytes(rows.transport, 1);
        read_ip(&mut key, &packet.bytes(rows.network, NETWORK_WORDS), &transport, packet);
    }
    key
}

fn read_link(key: &mut [u32; 8], frame: &[u8], more: u32) {
    let len = 14 + 2 * more as usize;
    let is_tag = |kind| matches!(kind, 0x8100 | 0x88a8);
    let mut kind = half(frame, 12);
    let tag = if is_tag(kind) && len >= 16 { half(frame, 14) & 0xfff } else { 0 };
    for at in [16, 20] {
        if is_tag(kind) && len >= at + 2 {
            kind = half(frame, at);
        } else {
            break;
        }
    }
    key[4] |= kind << 16 | tag << 4 | HAS_ETHER;
    key[5] = word(frame, 8);
    key[6] = word(frame, 2);
    key[7] = half(frame, 6) << 16 | half(frame, 0);
}

fn read_ip(key: &mut [u32; 8], header: &[u8], transport: &[u8], packet: &Packet<'_>) {
    let (header_len, total_len) = (usize::from(header[0] & 15) * 4, half(header, 2) as usize);
    if header[0] >> 4 != 4 || !(20..=packet.captured()).contains(&header_len) {
        return;
    }
    let protocol = header[9];
    key[0] = word(header, 12);
    key[1] = word(header, 16);
    key[3] = u32::from(protocol) << 24 | u32::from(header[1]) << 16;
    key[4] |= HAS_IP;
    let is_first = half(header, 6) & OFFSET == 0;
    let Some(len) = total_len.min(packet.captured()).checked_sub(header_len).filter(|_| is_first) else { return };
    if protocol == 1 && len >= 2 {
        key[3] |= half(transport, 0);
        key[4] |= HAS_DETAIL;
    }
    if matches!(protocol, 6 | 17 | 33 | 132 | 136) && len >= 4 {
        key[2] = word(transport, 0);
        key[4] |= HAS_PORTS;
    }
    if protocol == 6 && len >= 14 {
        key[3] |= (packet.row[0] >> 16 & 0xff) << 8;
        key[4] |= HAS_DETAIL;
    }
}
