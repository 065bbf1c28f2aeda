//! Ethernet and ARP.

use crate::element::Class;

mod arp_cache;
mod arp_querier;
mod arp_responder;
mod arp_table;
mod drop_broadcasts;
mod encap;
mod ether_vlan_encap;
mod frame;
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
