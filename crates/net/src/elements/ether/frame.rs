//! What several elements put into frames, and note about them.

use crate::Packet;
use crate::headers::EtherAddress;
use crate::headers::ether::LEN;
use crate::packet::anno;

/// An Ethernet header as it stands before packets.
pub(super) fn header(destination: EtherAddress, source: EtherAddress, kind: u16) -> [u8; LEN] {
    let mut header = [0; LEN];
    header[..6].copy_from_slice(&destination.0);
    header[6..12].copy_from_slice(&source.0);
    header[12..].copy_from_slice(&kind.to_be_bytes());
    header
}

/// The VLAN tag that a packet is annotated with.
pub(super) fn vlan_tci(packet: &Packet) -> u16 {
    u16::from_be_bytes([packet.anno_u8(anno::VLAN_TCI), packet.anno_u8(anno::VLAN_TCI + 1)])
}

/// Annotates a packet with a VLAN tag.
pub(super) fn set_vlan_tci(packet: &mut Packet, tci: u16) {
    packet.set_anno_u16(anno::VLAN_TCI, u16::from_ne_bytes(tci.to_be_bytes()));
}
