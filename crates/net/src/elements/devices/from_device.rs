//! FromDevice and PollDevice: read packets from a network device.
//!
//! `FromDevice(DEVNAME [, PROMISC, SNAPLEN] [, keywords])`, `PollDevice(DEVNAME [, PROMISC, BURST] [, keywords])`: one
//! push output, and an optional second one. FromDevice waits for packets; PollDevice asks for them whenever its task has
//! a turn, and so keeps a processor busy.
//!
//! - DEVNAME: name of the device.
//! - PROMISC: whether packets for other hosts are read, too. Default false.
//! - SNAPLEN: longest part of a packet that is read, 14 to 65,535 bytes. Default 2,046.
//! - SNIFFER: if false, the kernel does not handle what the device receives (Linux 6.6). Default true: packets are
//!   handled twice, by the router and by the kernel.
//! - FORCE_IP: IP packets only, with their network header set; others leave by output 1 where there is one. Default
//!   false.
//! - METHOD: LINUX (AF_PACKET by a ring, the default), LINUX_RING and PCAP (the same), or AF_XDP, which is faster and takes the packets from the
//!   kernel as SNIFFER false does; see the module [`nic`](crate::nic) for what each of them needs. CAPTURE is an old
//!   name of it.
//! - PROTOCOL: the one link protocol that is read (LINUX). Default 0: all.
//! - OUTBOUND: whether packets are read that the host sends by the device, but for those of a ToDevice (LINUX). Default
//!   false.
//! - HEADROOM: room before the packet, 0 to 8,190 bytes. Default 66, which aligns an IP header behind an Ethernet
//!   header.
//! - ENCAP: what packets begin with, such as ETHER or IP, if not what the kernel says.
//! - BURST: packets in a row, at least 1. Default 32.
//! - TIMESTAMP: whether packets get timestamps: of the kernel, with AF_XDP of the router. Default true.
//! - BPF_FILTER: is not supported; an IPClassifier behind it does the same.
//! - FANOUT: number of a group, from 1; elements of a group share the packets of the device, flow by flow (LINUX).
//!   Default 0: none.
//!
//! PollDevice alone:
//!
//! - QUIET: whether nothing is told when the device disappears and when it is back. Default false.
//! - ALLOW_NONEXISTENT: whether a device that is not there is waited for. Default false: the router does not start.
//! - UP_CALL, DOWN_CALL: handlers that are written when the device is back (or there, where it was waited for), and when
//!   it disappears.
//! - LENGTH: has no meaning here.
//!
//! Sets timestamp, packet type (LINUX), MAC header, device, and extra length of packets that were cut.
//!
//! Handlers: `count`, `reset_counts`, `kernel_drops`, `encap`.
//!
//! Unlike Click's: BURST is 32, not 1, so that packets go together; their order is the same. A device that disappears
//! is told once, and read again when one of its name is there. FANOUT and METHOD AF_XDP are new, NETMAP is missing, and
//! SNIFFER false keeps the kernel from ARP, too. PollDevice exists in Click's kernel module only, where
//! UP_CALL and DOWN_CALL are also called when a device that stays is set up and down.

use super::device::{Device, LOOK_TIMER, Method};
use super::shape::Shape;
use crate::args::{Args, Failed, Word};
use crate::capture::LinkType;
use crate::element::{Element, Interest, Run};
use crate::handler::Handlers;
use crate::nic::packet::{self, PacketSocket, Spread};
use crate::nic::xdp::{self, XdpSocket};
use crate::nic::{self, Block, Kind, Link, Nic};
use crate::router::Cx;
use std::os::fd::RawFd;

/// Room that aligns what follows an Ethernet header to four bytes.
const HEADROOM: usize = crate::packet::DEFAULT_HEADROOM + 2;

/// The element; PollDevice where it `POLLS`.
pub(super) struct FromDevice<const POLLS: bool> {
    name: String,
    method: Method,
    options: packet::Options,
    sniffer: bool,
    shape: Shape,
    encap: Option<LinkType>,
    burst: usize,
    device: Device,
    /// Whether the device may be missing at the start.
    is_optional: bool,
    block: Option<Block>,
    link: Option<Link>,
    count: u64,
}

impl<const POLLS: bool> Default for FromDevice<POLLS> {
    fn default() -> Self {
        let shape =
            Shape { headroom: HEADROOM, timestamps: true, force_ip: false, link: LinkType::ETHERNET, device: 0 };
        Self {
            name: String::new(),
            method: Method::Linux,
            options: packet::Options::default(),
            sniffer: true,
            shape,
            encap: None,
            burst: 32,
            device: Device::default(),
            is_optional: false,
            block: None,
            link: None,
            count: 0,
        }
    }
}

impl<const POLLS: bool> FromDevice<POLLS> {
    fn open(&self) -> nic::Result<Box<dyn Nic>> {
        if self.method != Method::Xdp {
            return Ok(Box::new(PacketSocket::open(&self.name, &self.options)?));
        }
        let (promiscuous, snap_len) = (self.options.promiscuous, self.options.snap_len);
        let options = xdp::Options { promiscuous, snap_len, ..xdp::Options::default() };
        Ok(Box::new(XdpSocket::receiver(&self.name, &options)?))
    }

    /// Begins to read a device that has been opened.
    fn begin(&mut self, cx: &mut Cx<'_>) -> nic::Result<()> {
        let Some(link) = self.device.nic().and_then(|nic| nic.link().cloned()) else { return Ok(()) };
        if !self.sniffer && self.method != Method::Xdp {
            self.block = Some(Block::new(&link)?);
        }
        self.shape.link = self.encap.unwrap_or_else(|| Shape::link_of(&link));
        self.shape.device = link.index;
        self.link = Some(link);
        self.listen(cx);
        Device::look_later(cx);
        Ok(())
    }

    /// Waits for packets.
    fn listen(&self, cx: &mut Cx<'_>) {
        if POLLS {
            cx.schedule();
        } else {
            self.device.select(cx, Interest { read: true, write: false });
        }
    }

    /// Reads a burst, and returns how many packets it was.
    fn read(&mut self, cx: &mut Cx<'_>) -> usize {
        let (shape, now) = (&self.shape, cx.now());
        let Some(nic) = self.device.nic() else { return 0 };
        let result = nic.receive(self.burst, &mut |received| match shape.packet(&received, now) {
            Ok(packet) => cx.emit(0, packet),
            Err(packet) => drop(cx.emit_checked(1, packet)),
        });
        match result {
            Ok(count) => {
                self.count += count as u64;
                count
            }
            Err(error) => {
                self.device.fail(cx, &error);
                0
            }
        }
    }
}

impl<const POLLS: bool> Element for FromDevice<POLLS> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut method, mut filter, mut fanout) = (Word::default(), String::new(), 0);
        let (mut encap, mut length) = (Word::default(), 0u32);
        let options = &mut self.options;
        args.must("DEVNAME", &mut self.name).may("PROMISC", &mut options.promiscuous);
        if POLLS {
            args.may("BURST", &mut self.burst)
                .key("QUIET", &mut self.device.is_quiet)
                .key("ALLOW_NONEXISTENT", &mut self.is_optional)
                .key("UP_CALL", &mut self.device.calls[0])
                .key("DOWN_CALL", &mut self.device.calls[1])
                .key("LENGTH", &mut length);
        } else {
            args.may("SNAPLEN", &mut options.snap_len);
        }
        args.key("SNAPLEN", &mut options.snap_len)
            .key("BURST", &mut self.burst)
            .key("SNIFFER", &mut self.sniffer)
            .key("FORCE_IP", &mut self.shape.force_ip)
            .key("METHOD", &mut method)
            .key("CAPTURE", &mut method)
            .key("BPF_FILTER", &mut filter)
            .key("PROTOCOL", &mut options.protocol)
            .key("OUTBOUND", &mut options.outgoing)
            .key("HEADROOM", &mut self.shape.headroom)
            .key("ENCAP", &mut encap)
            .key("TIMESTAMP", &mut self.shape.timestamps)
            .key("FANOUT", &mut fanout);
        options.fanout = (fanout > 0).then_some((fanout, Spread::Hash));
        if !(14..=65_535).contains(&options.snap_len) {
            args.error("SNAPLEN out of range");
        }
        if self.shape.headroom > 8190 {
            args.error("HEADROOM out of range");
        }
        if self.burst == 0 {
            args.error("BURST out of range");
        }
        self.method = Method::named(&method.0, args);
        if !encap.0.is_empty() {
            self.encap = LinkType::parse(&encap.0);
            if self.encap.is_none() {
                args.error("bad encapsulation type");
            }
        }
        if !filter.is_empty() {
            args.error_of("BPF_FILTER", "not supported, use an IPClassifier or IPFilter");
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if self.name.is_empty() {
            return Err("interface not set".to_owned());
        }
        self.device.calls.iter().flatten().try_for_each(|call| cx.check_write(call))?;
        match self.open() {
            Err(error) if error.kind() == Kind::Missing && self.is_optional => {
                cx.say(format_args!("{}: warning: {}", cx.declaration(), error.line()));
                Device::look_later(cx);
                return Ok(());
            }
            opened => self.device.open(opened.map_err(|error| error.line())?),
        }
        self.begin(cx).map_err(|error| error.line())
    }

    fn selected(&mut self, cx: &mut Cx<'_>, _: RawFd, _: Interest) {
        if self.read(cx) == self.burst {
            // There is more: it comes by the task, in larger batches, until there is none.
            self.device.select(cx, Interest::default());
            cx.schedule();
        }
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if self.read(cx) > 0 {
            return Run::Worked;
        }
        if POLLS {
            return if self.device.is_open() { Run::Idle } else { Run::Stop };
        }
        self.listen(cx);
        Run::Stop
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        debug_assert_eq!(timer, LOOK_TIMER);
        if self.device.is_open() {
            // Whoever finds nothing looks whether the device is still there.
            if self.read(cx) == 0 && self.device.is_open() {
                Device::look_later(cx);
            }
            return;
        }
        self.block = None;
        let opened = self.open();
        if self.device.look(cx, opened)
            && let Err(error) = self.begin(cx)
        {
            self.device.fail(cx, &error);
        }
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.device.close(cx);
        self.block = None;
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |device: &mut Self, _| device.count);
        handlers.button("reset_counts", |device: &mut Self, _| device.count = 0);
        handlers.read("kernel_drops", |device: &mut Self, _| device.device.statistics().dropped);
        handlers.read("encap", |device: &mut Self, _| {
            let own = device.link.as_ref().map_or("?", Link::encapsulation);
            device.encap.map_or_else(|| own.to_owned(), |encap| encap.to_string())
        });
    }
}
