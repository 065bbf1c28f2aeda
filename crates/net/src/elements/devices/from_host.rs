//! FromHost: reads what the host sends by a TAP device.
//!
//! `FromHost(DEVNAME [, DST] [, keywords])`: one push output. Makes a virtual Ethernet device, whose other end is this
//! element; ToHost with the same name sends to it. The device is gone when the router is.
//!
//! - DEVNAME: name of the device.
//! - DST: the host's IP address at it and the length of its network, such as `10.0.0.1/24`. Without one the device is
//!   up and has no address.
//! - GATEWAY: a host of that network that becomes the host's default route.
//! - ETHER: the host's Ethernet address at the device. Default: one at random.
//! - HEADROOM: room before the packet, 0 to 8,192 bytes. Default 66.
//! - MTU: the longest packet that the host sends, in bytes. Default 1,500.
//!
//! The host asks for Ethernet addresses by ARP; an ARPResponder answers. Packets have timestamp and MAC header, IP
//! packets their network header, those of IPv4 their destination annotation. While there is no room downstream, nothing
//! is read. Needs CAP_NET_ADMIN.
//!
//! Handlers: `dev_name`, `signal` (whether there is room downstream), `count`.
//!
//! Unlike Click's: what is no IP packet has no network header. The device has the MTU, and is up also without DST.
//! `count` is new.

use super::device::Device;
use super::shape::Shape;
use crate::Packet;
use crate::args::{Args, Failed, Prefix};
use crate::capture::LinkType;
use crate::element::{Element, Interest, Run};
use crate::handler::Handlers;
use crate::nic;
use crate::nic::tun::{Options, Tun};
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;

/// Packets in a row.
const BURST: usize = 32;

/// The element.
pub(super) struct FromHost {
    options: Options,
    shape: Shape,
    /// What its senders are duplicates of.
    sender: Option<Tun>,
    device: Device,
    count: u64,
}

impl Default for FromHost {
    fn default() -> Self {
        let (headroom, link) = (DEFAULT_HEADROOM + 2, LinkType::ETHERNET);
        Self {
            options: Options { ethernet: true, ..Options::default() },
            shape: Shape { headroom, timestamps: true, force_ip: false, link, device: 0 },
            sender: None,
            device: Device::default(),
            count: 0,
        }
    }
}

impl FromHost {
    /// Reads what the host has sent.
    fn read(&mut self, cx: &mut Cx<'_>) {
        let (shape, now) = (&self.shape, cx.now());
        let Some(nic) = self.device.nic() else { return };
        let result = nic.receive(BURST, &mut |received| {
            if let Ok(packet) = shape.packet(&received, now) {
                cx.emit(0, marked(packet));
            }
        });
        match result {
            Ok(count) => self.count += count as u64,
            Err(error) => self.device.end(cx, &error),
        }
    }

    /// A sender to the device, where its name is this one.
    pub(super) fn sender(&self, name: &str) -> Option<nic::Result<Tun>> {
        let tun = self.sender.as_ref().filter(|_| self.options.name == name)?;
        Some(tun.duplicate())
    }
}

/// An IP packet with its network header and the annotation of its destination; others as they are.
fn marked(mut packet: Packet) -> Packet {
    let Some(header) = LinkType::ETHERNET.network_header(packet.bytes()) else { return packet };
    packet.set_network_header(header.offset as isize, header.len);
    let destination = packet.bytes().get(header.offset + 16..).and_then(|bytes| bytes.first_chunk::<4>().copied());
    if let Some(destination) = destination.filter(|_| header.version == 4) {
        packet.set_dst_ip(destination.into());
    }
    packet
}

impl Element for FromHost {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut near, mut gateway, mut mtu) = (Prefix::default(), Ipv4Addr::UNSPECIFIED, 1500);
        args.must("DEVNAME", &mut self.options.name)
            .may("DST", &mut near)
            .key("GATEWAY", &mut gateway)
            .key("ETHER", &mut self.options.address)
            .key("HEADROOM", &mut self.shape.headroom)
            .key("MTU", &mut mtu);
        self.options.mtu = Some(mtu);
        self.options.ip = (!near.address.is_unspecified()).then_some((near.address, near.mask));
        self.options.gateway = (!gateway.is_unspecified()).then_some(gateway);
        if self.options.gateway.is_some_and(|gateway| self.options.ip.is_none() || !near.contains(gateway)) {
            args.error("bad GATEWAY");
        }
        if self.options.name.is_empty() {
            args.error("must specify device name");
        }
        if self.shape.headroom > 8192 {
            args.error("HEADROOM too large");
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let open = || -> nic::Result<(Tun, Tun)> {
            let tun = Tun::open(&self.options)?;
            let sender = tun.duplicate()?;
            Ok((tun, sender))
        };
        let (tun, sender) = open().map_err(|error| error.line())?;
        self.shape.device = tun.device().index;
        self.sender = Some(sender);
        self.device.open(Box::new(tun));
        self.device.select(cx, Interest { read: true, write: false });
        Ok(())
    }

    fn selected(&mut self, cx: &mut Cx<'_>, _: RawFd, _: Interest) {
        if cx.may_push(0) {
            return self.read(cx);
        }
        self.device.select(cx, Interest::default());
        cx.schedule();
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !cx.may_push(0) {
            return Run::Idle;
        }
        self.device.select(cx, Interest { read: true, write: false });
        Run::Stop
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.device.close(cx);
        self.sender = None;
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("dev_name", |host: &mut Self, _| host.options.name.clone());
        handlers.read("signal", |_: &mut Self, cx| cx.may_push(0));
        handlers.read("count", |host: &mut Self, _| host.count);
    }
}
