//! What the kernel had left to the device: VLAN tags beside the packet, and checksums that are not yet computed.
//!
//! A packet that another program of this machine sends through a virtual device arrives before any hardware has seen
//! it. Its TCP or UDP checksum holds the sum of the pseudo-header only, and its VLAN tag stands in the packet's
//! description. A capture would show both wrong, and a router would send both wrong to the next host.

/// Bytes that a VLAN tag takes.
pub(super) const TAG: usize = 4;

/// What the kernel says about a packet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    /// Flags, `TP_STATUS_*`.
    pub(super) status: u32,
    /// Tag of its VLAN, valid where the flags say so.
    pub(super) tag: u16,
    /// Protocol of the tag, valid where the flags say so.
    pub(super) tag_protocol: u16,
    /// Where the network header starts in the packet, in bytes, without the tag.
    pub(super) network: usize,
    /// Whether all of the packet is here.
    pub(super) whole: bool,
}

/// Finishes the packet in `room`, which starts with [`TAG`] free bytes, and returns where it starts now.
pub(super) fn finish(room: &mut [u8], state: State) -> usize {
    if state.status & libc::TP_STATUS_CSUMNOTREADY != 0 && state.whole {
        complete_checksum(&mut room[TAG..], state.network);
    }
    if state.status & libc::TP_STATUS_VLAN_VALID == 0 || state.network < 14 || room.len() < TAG + 12 {
        return TAG;
    }
    let protocol = if state.status & libc::TP_STATUS_VLAN_TPID_VALID == 0 { 0x8100 } else { state.tag_protocol };
    room.copy_within(TAG..TAG + 12, 0);
    room[12..14].copy_from_slice(&protocol.to_be_bytes());
    room[14..16].copy_from_slice(&state.tag.to_be_bytes());
    0
}

/// Computes the TCP or UDP checksum, whose field holds the sum of the pseudo-header. What is neither is left alone.
fn complete_checksum(packet: &mut [u8], network: usize) -> Option<()> {
    let ip = packet.get_mut(network..)?;
    let (transport, protocol, end) = match ip.first()? >> 4 {
        4 => {
            let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
            (usize::from(ip[0] & 15) * 4, *ip.get(9)?, total)
        }
        6 => (40, *ip.get(6)?, 40 + usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]))),
        _ => return None,
    };
    let segment = ip.get_mut(transport..end)?;
    let field = match i32::from(protocol) {
        libc::IPPROTO_TCP => 16,
        libc::IPPROTO_UDP => 6,
        _ => return None,
    };
    segment.get(field + 1)?;
    let checksum = match !sum(segment) {
        0 if field == 6 => 0xffff, // A UDP checksum of zero means that there is none.
        checksum => checksum,
    };
    segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

/// The sum of 16-bit words with end-around carry.
fn sum(bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum();
    sum += rest.first().map_or(0, |&last| u64::from(last) << 8);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_testing::{noise, seed};

    const IP: usize = 14;

    /// An Ethernet frame with IPv4 and `payload` bytes of a protocol, whose checksum field holds the pseudo-header's
    /// sum.
    fn partial(protocol: u8, payload: usize, seed: u64) -> Vec<u8> {
        let mut frame = noise(IP + 20 + payload, seed);
        let ip = &mut frame[IP..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
        ip[9] = protocol;
        let pseudo = pseudo(ip, payload);
        let field = 20 + if protocol == 6 { 16 } else { 6 };
        ip[field..field + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        frame
    }

    fn pseudo(ip: &[u8], payload: usize) -> Vec<u8> {
        let mut pseudo = ip[12..20].to_vec();
        pseudo.extend([0, ip[9], (payload >> 8) as u8, payload as u8]);
        pseudo
    }

    fn state(status: u32) -> State {
        State { status, tag: 0x2005, tag_protocol: 0x88a8, network: IP, whole: true }
    }

    fn with_room(frame: &[u8]) -> Vec<u8> {
        [&[0; TAG], frame].concat()
    }

    #[test]
    fn a_completed_checksum_is_valid() {
        let seed = seed();
        for (protocol, payload) in [(6, 20), (6, 33), (17, 8), (17, 1001)] {
            let mut room = with_room(&partial(protocol, payload, seed));
            assert_eq!(finish(&mut room, state(libc::TP_STATUS_CSUMNOTREADY)), TAG);
            let ip = &room[TAG + IP..];
            let whole = [pseudo(ip, payload), ip[20..].to_vec()].concat();
            assert_eq!(sum(&whole), 0xffff, "protocol {protocol}, {payload} bytes");
        }
    }

    #[test]
    fn a_tag_comes_back_between_addresses_and_type() {
        let frame = noise(64, seed());
        for (status, protocol) in [
            (libc::TP_STATUS_VLAN_VALID, [0x81, 0x00]),
            (libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID, [0x88, 0xa8]),
        ] {
            let mut room = with_room(&frame);
            assert_eq!(finish(&mut room, state(status)), 0);
            assert_eq!(room, [&frame[..12], &protocol, &[0x20, 0x05], &frame[12..]].concat());
        }
    }

    #[test]
    fn nothing_changes_where_nothing_is_left() {
        let frame = noise(64, seed());
        let mut room = with_room(&frame);
        assert_eq!(finish(&mut room, state(0)), TAG);
        assert_eq!(room[TAG..], frame);
    }

    #[test]
    fn any_bytes_of_any_length_are_survived() {
        let seed = seed();
        for round in 0..20_000 {
            let bytes = noise(96, seed.wrapping_add(round));
            let mut room = with_room(&bytes[..usize::from(bytes[0]) % 96]);
            if let Some(first) = room.get_mut(TAG + IP) {
                *first = [0x45, 0x46, 0x4f, 0x60, 0x40][usize::from(bytes[1]) % 5];
            }
            if let Some(protocol) = room.get_mut(TAG + IP + if bytes[2] & 1 == 0 { 9 } else { 6 }) {
                *protocol = [6, 17][usize::from(bytes[3]) % 2];
            }
            let network = if bytes[4] < 64 { usize::from(bytes[5]) } else { IP };
            finish(&mut room, State { network, ..state(u32::MAX) });
        }
    }
}
