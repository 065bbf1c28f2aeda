//! KernelTun: exchanges packets with the host by a TUN or TAP device.
//!
//! `KernelTun(ADDR/MASK [, GATEWAY] [, keywords])`: an optional input, pushed or pulled, whose packets the host
//! receives, from their network header on; a push output with what the host sends; and an optional push output 1 with
//! what is no IP packet. Makes a virtual device, which is gone when the router is.
//!
//! - ADDR/MASK: the host's IP address at the device and the length of its network.
//! - GATEWAY: a host of that network that becomes the host's default route.
//! - TAP: whether packets have Ethernet headers, in both directions. Default false.
//! - HEADROOM: room before the packet, 0 to 8,192 bytes. Default 64, or 66 with TAP.
//! - BURST: packets in a row, at least 1. Default 32.
//! - ETHER: the host's Ethernet address at a TAP device; a TUN device has none, which is told. Default: one at random.
//! - IGNORE_QUEUE_OVERFLOWS: whether only the first packet is told that the host does not take. Default false.
//! - MTU: the longest packet that the host sends, in bytes, more than 20. Default 1,500.
//! - DEVNAME: name of the device. Default: `tun0`, `tap0` and so on, whichever is free.
//!
//! Packets have timestamp and network header. Needs CAP_NET_ADMIN.
//!
//! Handlers: `dev_name`, `packets` (from the host), `selected_calls` (how often the device had some), `drops` (packets
//! that the host did not take), `signal`, `count` (the same as `packets`).
//!
//! Unlike Click's: BURST is 32, not 1; its order is the same. `count`, `drops` and `signal` are new.

use super::device::Device;
use super::shape::Shape;
use crate::Packet;
use crate::args::{Args, Failed, Prefix};
use crate::capture::LinkType;
use crate::element::{Element, Interest, Run};
use crate::handler::Handlers;
use crate::headers::ether;
use crate::nic::Kind;
use crate::nic::tun::{Options, Tun};
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;

/// Bytes of the shortest IP header.
const IP_HEADER: u32 = 20;

/// The element.
pub(super) struct KernelTun {
    options: Options,
    shape: Shape,
    burst: usize,
    is_quiet: bool,
    device: Device,
    name: String,
    count: u64,
    calls: u64,
    drops: u64,
}

impl Default for KernelTun {
    fn default() -> Self {
        let shape = Shape { headroom: 0, timestamps: true, force_ip: true, link: LinkType::RAW, device: 0 };
        Self {
            options: Options::default(),
            shape,
            burst: 32,
            is_quiet: false,
            device: Device::default(),
            name: String::new(),
            count: 0,
            calls: 0,
            drops: 0,
        }
    }
}

impl KernelTun {
    /// Hands a packet to the host.
    fn give(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        let bytes = match self.for_host(packet) {
            Ok(bytes) => bytes,
            Err(why) => return self.drop_one(cx, &why),
        };
        let Some(nic) = self.device.nic() else { return };
        match nic.send(&[bytes]) {
            Ok(1..) => {}
            Ok(0) => self.drop_one(cx, "the host takes no packets now"),
            Err(error) if error.kind() == Kind::Gone => self.device.end(cx, &error),
            Err(error) => self.drop_one(cx, &format!("write failed: {}", error.line())),
        }
    }

    /// What the host gets of a packet, or why it gets nothing.
    fn for_host<'a>(&self, packet: &'a Packet) -> Result<&'a [u8], String> {
        let (bytes, len) = if self.options.ethernet {
            let len = packet.len().checked_sub(ether::LEN).ok_or("packet too small")?;
            (packet.bytes(), len)
        } else {
            let header = packet.network_header().filter(|header| header.len() >= IP_HEADER as usize);
            let header = header.ok_or("no network header")?;
            if !matches!(header[0] >> 4, 4 | 6) {
                return Err(format!("unknown IP version {}", header[0] >> 4));
            }
            (header, header.len())
        };
        let mtu = self.options.mtu.unwrap_or(u32::MAX);
        if len > mtu as usize { Err(format!("packet larger than MTU ({mtu})")) } else { Ok(bytes) }
    }

    fn drop_one(&mut self, cx: &mut Cx<'_>, why: &str) {
        self.drops += 1;
        if self.drops == 1 || !self.is_quiet {
            cx.say(format_args!("KernelTun({}): {why}", self.name));
        }
    }
}

impl Element for KernelTun {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut near, mut gateway, mut mtu) = (Prefix::default(), Ipv4Addr::UNSPECIFIED, 1500);
        let options = &mut self.options;
        args.must("ADDR", &mut near)
            .may("GATEWAY", &mut gateway)
            .key("TAP", &mut options.ethernet)
            .key("BURST", &mut self.burst)
            .key("ETHER", &mut options.address)
            .key("IGNORE_QUEUE_OVERFLOWS", &mut self.is_quiet)
            .key("MTU", &mut mtu)
            .key("DEV_NAME", &mut options.name)
            .key("DEVNAME", &mut options.name);
        self.shape.headroom = DEFAULT_HEADROOM + if options.ethernet { 2 } else { 0 };
        args.key("HEADROOM", &mut self.shape.headroom);
        options.mtu = Some(mtu);
        options.ip = Some((near.address, near.mask));
        options.gateway = (!gateway.is_unspecified()).then_some(gateway);
        if options.ethernet {
            self.shape.link = LinkType::ETHERNET;
        } else if options.address.take().is_some() {
            args.warning("could not set interface Ethernet address: Operation not supported");
        }
        if options.gateway.is_some_and(|gateway| !near.contains(gateway)) {
            args.error("bad GATEWAY");
        }
        if self.burst == 0 {
            args.error("BURST must be >= 1");
        }
        if mtu <= IP_HEADER {
            args.error(format_args!("MTU must be greater than {IP_HEADER}"));
        }
        if self.shape.headroom > 8192 {
            args.error("HEADROOM too big");
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let tun = Tun::open(&self.options).map_err(|error| error.line())?;
        self.name.clone_from(&tun.device().name);
        self.shape.device = tun.device().index;
        self.device.open(Box::new(tun));
        self.device.select(cx, Interest { read: true, write: false });
        if cx.input_is_pull(0) {
            cx.schedule();
        }
        Ok(())
    }

    fn selected(&mut self, cx: &mut Cx<'_>, _: RawFd, _: Interest) {
        self.calls += 1;
        let (shape, now) = (&self.shape, cx.now());
        let Some(nic) = self.device.nic() else { return };
        let result = nic.receive(self.burst, &mut |received| match shape.packet(&received, now) {
            Ok(packet) => cx.emit(0, packet),
            Err(packet) => drop(cx.emit_checked(1, packet)),
        });
        match result {
            Ok(count) => self.count += count as u64,
            Err(error) => self.device.end(cx, &error),
        }
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.give(cx, &packet);
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        for done in 0..self.burst {
            let Some(packet) = cx.pull(0) else { return if done > 0 { Run::Worked } else { Run::Idle } };
            self.give(cx, &packet);
        }
        Run::Worked
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.device.close(cx);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("dev_name", |tun: &mut Self, _| tun.name.clone());
        for name in ["packets", "count"] {
            handlers.read(name, |tun: &mut Self, _| tun.count);
        }
        handlers.read("selected_calls", |tun: &mut Self, _| tun.calls);
        handlers.read("drops", |tun: &mut Self, _| tun.drops);
        handlers.read("signal", |_: &mut Self, cx| cx.may_pull(0));
    }
}
