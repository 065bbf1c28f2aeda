//! From received bytes to packets.

use crate::capture::LinkType;
use crate::nic::{Destination, Link, Received};
use crate::packet::anno;
use crate::{Packet, PacketType, Timestamp};

/// What a packet gets beside its bytes.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Room before it, in bytes.
    pub(super) headroom: usize,
    /// Whether it gets a timestamp: the kernel's, or the time now.
    pub(super) timestamps: bool,
    /// Whether it has to be an IP packet.
    pub(super) force_ip: bool,
    /// What it begins with.
    pub(super) link: LinkType,
    /// Number of the device that it came from.
    pub(super) device: u32,
}

impl Shape {
    /// What packets of a device begin with.
    pub(super) fn link_of(link: &Link) -> LinkType {
        LinkType::parse(link.encapsulation()).unwrap_or(LinkType::NULL)
    }

    /// The packet of what was received; as an error where it has to be an IP packet and is none.
    #[inline]
    pub(super) fn packet(&self, received: &Received<'_>, now: Timestamp) -> Result<Packet, Packet> {
        let mut packet = Packet::new(self.headroom, received.bytes, 0);
        packet.set_mac_header(0);
        packet.set_anno_u32(anno::DEVICE, self.device);
        if self.timestamps {
            packet.set_timestamp(received.timestamp.map_or(now, Timestamp::from));
        }
        if let Some(destination) = received.destination {
            packet.set_kind(kind(destination));
        }
        let missing = received.wire_len - received.bytes.len();
        if missing > 0 {
            packet.set_anno_u32(anno::EXTRA_LENGTH, missing as u32);
        }
        if !self.force_ip {
            return Ok(packet);
        }
        let Some(header) = self.link.network_header(received.bytes) else { return Err(packet) };
        packet.set_network_header(header.offset as isize, header.len);
        Ok(packet)
    }
}

fn kind(destination: Destination) -> PacketType {
    match destination {
        Destination::Host => PacketType::Host,
        Destination::Broadcast => PacketType::Broadcast,
        Destination::Multicast => PacketType::Multicast,
        Destination::Other => PacketType::OtherHost,
        Destination::Outgoing => PacketType::Outgoing,
    }
}
