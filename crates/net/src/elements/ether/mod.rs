//! Ethernet and ARP.

use crate::Packet;
use crate::args::{Arg, ArgCx};
use crate::element::Class;
use crate::headers::EtherAddress;
use crate::headers::ether::LEN;
use crate::packet::anno;

mod arp_cache;
mod arp_querier;
mod arp_responder;
mod arp_table;
mod drop_broadcasts;
mod encap;
mod ether_vlan_encap;
mod host_filter;
mod mirror;
mod set_vlan_anno;
mod strip_vlan;
mod switch;
mod vlan;
mod vlan_decap;
mod vlan_encap;

/// All of this group.
#[rustfmt::skip] // a line for each element
pub(super) static CLASSES: &[Class] = &[
    Class::new::<arp_querier::ArpQuerier>("ARPQuerier", "2/1-2", "h", "puts IP packets into Ethernet frames, by ARP").flow("xy/x"),
    Class::new::<arp_responder::ArpResponder>("ARPResponder", "1/1-2", "a/ah", "answers ARP questions"),
    Class::new::<arp_table::ArpTable>("ARPTable", "0/0", "a", "stores which Ethernet address an IP address has"),
    Class::new::<drop_broadcasts::DropBroadcasts>("DropBroadcasts", "1/1-2", "a/ah", "drops packets for everybody and for groups"),
    Class::new::<encap::EtherEncap>("EtherEncap", "1/1", "a", "puts packets into Ethernet frames"),
    Class::new::<mirror::EtherMirror>("EtherMirror", "1/1", "a", "exchanges source and destination of Ethernet frames"),
    Class::new::<switch::EtherSwitch>("EtherSwitch", "2-/=", "h", "a switch for Ethernet frames that learns where hosts are").flow("#/[^#]"),
    Class::new::<ether_vlan_encap::EtherVlanEncap>("EtherVLANEncap", "1/1", "a", "puts packets into Ethernet frames with a VLAN tag"),
    Class::new::<host_filter::HostEtherFilter>("HostEtherFilter", "1/1-2", "a/ah", "drops Ethernet frames for other hosts"),
    Class::new::<set_vlan_anno::SetVlanAnno>("SetVLANAnno", "1/1", "a", "annotates packets with a VLAN tag"),
    Class::new::<strip_vlan::StripEtherVlanHeader>("StripEtherVLANHeader", "1/1-2", "a/ah", "takes Ethernet headers off, VLAN tags included"),
    Class::new::<vlan_decap::VlanDecap>("VLANDecap", "1/1", "a", "takes a VLAN tag out of Ethernet frames"),
    Class::new::<vlan_encap::VlanEncap>("VLANEncap", "1/1", "a", "puts a VLAN tag into Ethernet frames"),
];

/// A whole number of `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounded<const MIN: i32, const MAX: i32>(i32);

impl<const MIN: i32, const MAX: i32> Arg for Bounded<MIN, MAX> {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        match i32::parse(text, cx)? {
            value if value < MIN => Err(format!("out of range, bound {MIN}")),
            value if value > MAX => Err(format!("out of range, bound {MAX}")),
            value => Ok(Self(value)),
        }
    }
}

impl<const MIN: i32, const MAX: i32> std::fmt::Display for Bounded<MIN, MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// An Ethernet header as it stands before packets.
fn header(destination: EtherAddress, source: EtherAddress, kind: u16) -> [u8; LEN] {
    let mut header = [0; LEN];
    header[..6].copy_from_slice(&destination.0);
    header[6..12].copy_from_slice(&source.0);
    header[12..].copy_from_slice(&kind.to_be_bytes());
    header
}

/// The VLAN tag that a packet is annotated with.
fn vlan_tci(packet: &Packet) -> u16 {
    u16::from_be_bytes([packet.anno_u8(anno::VLAN_TCI), packet.anno_u8(anno::VLAN_TCI + 1)])
}

/// Annotates a packet with a VLAN tag.
fn set_vlan_tci(packet: &mut Packet, tci: u16) {
    packet.set_anno_u16(anno::VLAN_TCI, u16::from_ne_bytes(tci.to_be_bytes()));
}
