//! Socket: exchanges packets by a TCP, UDP or Unix socket.
//!
//! `Socket(TCP, ADDR, PORT [, LOCAL_ADDR, LOCAL_PORT] [, keywords])`, `Socket(UDP, …)` likewise, `Socket(UNIX, FILENAME
//! [, LOCAL_FILENAME] [, keywords])`, `Socket(UNIX_DGRAM, …)` likewise: an optional input, pushed or pulled, whose
//! packets are sent, and an optional push output with what is received.
//!
//! A client connects to its place; a server waits there. A server of streams talks to one peer at a time; a server of
//! datagrams sends to whom it heard last. A UDP client of 0.0.0.0 sends each packet to its destination annotation. A
//! stream has no borders: a packet is what one read gave.
//!
//! - CLIENT: whether it is a client. Default: where it has no output, or a local place is given.
//! - SNAPLEN: longest packet that is received, in bytes, at least 1. Default 2,048.
//! - HEADROOM: room before the packet, in bytes. Default 64.
//! - NODELAY: whether TCP sends at once. Default true.
//! - SNDBUF, RCVBUF: the system's room for what is sent and received, in bytes. Default: the system's.
//! - TIMESTAMP: whether packets get the time of their receipt. Default true.
//! - ALLOW, DENY: elements with a table of routes. A server talks to hosts for which ALLOW has a route, and to others
//!   for which DENY has none.
//! - VERBOSE: whether connections are told. Default false.
//! - PROPER: has no meaning here.
//!
//! Handlers: `count` (received), `drops` (packets to nobody, or to a peer that does not read), `connected`.
//!
//! Unlike Click's: a pushed packet never blocks the router; what a peer does not take at once is dropped, and counted.
//! A peer that has vanished is found within two minutes, also if it says nothing. The handlers are new.

use super::shape::Shape;
use crate::args::{Arg, ArgCx, Args, ElementRef, Failed, NameKind};
use crate::capture::LinkType;
use crate::element::{Element, Interest, Run};
use crate::handler::Handlers;
use crate::nic::Nic;
use crate::nic::socket::{Event, Options, PacketPipe, Place};
use crate::packet::DEFAULT_HEADROOM;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};

/// Packets in a row.
const BURST: usize = 32;
/// How long to wait for a socket of datagrams that is full, which does not tell when it has room.
const WAIT: Timestamp = Timestamp::new(0, 1_000_000);

/// Bytes of the longest name of a Unix socket.
const PATH_MAX: usize = 107;

/// The element.
pub(super) struct Socket {
    place: Option<Place>,
    options: Options,
    shape: Shape,
    allow: Option<ElementRef>,
    deny: Option<ElementRef>,
    is_verbose: bool,
    pipe: Option<PacketPipe>,
    /// A packet that was pulled, and that the socket does not take now.
    waiting: Option<Packet>,
    /// What was just received.
    fresh: Vec<Packet>,
    count: u64,
    drops: u64,
}

impl Default for Socket {
    fn default() -> Self {
        let (headroom, link) = (DEFAULT_HEADROOM, LinkType::NULL);
        Self {
            place: None,
            options: Options::default(),
            shape: Shape { headroom, timestamps: true, force_ip: false, link, device: 0 },
            allow: None,
            deny: None,
            is_verbose: false,
            pipe: None,
            waiting: None,
            fresh: Vec::new(),
            count: 0,
            drops: 0,
        }
    }
}

/// A port: a number, or a name of TCP's or UDP's.
#[derive(Default)]
struct Port<const TCP: bool>(u16);

impl<const TCP: bool> Arg for Port<TCP> {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let name = String::parse(text, cx)?;
        let kind = if TCP { NameKind::TcpPort } else { NameKind::UdpPort };
        if let Some([high, low]) = cx.names.get(kind, &name, cx.element) {
            return Ok(Self(u16::from_be_bytes([*high, *low])));
        }
        u16::parse(text, cx).map(Self)
    }
}

/// Reads the arguments of a place with a host and a port; also where a client comes from.
fn hosts<const TCP: bool>(args: &mut Args<'_>) -> (SocketAddrV4, Option<SocketAddrV4>) {
    let any = Ipv4Addr::UNSPECIFIED;
    let (mut address, mut port) = (any, Port::<TCP>(0));
    let (mut local, mut local_port) = (any, Port::<TCP>(0));
    args.must("ADDR", &mut address).must("PORT", &mut port);
    let has_address = args.has("LOCAL_ADDR", &mut local);
    let has_local = args.has("LOCAL_PORT", &mut local_port) || has_address;
    (SocketAddrV4::new(address, port.0), has_local.then(|| SocketAddrV4::new(local, local_port.0)))
}

/// Reads the arguments of a place that is a file; also where a client comes from.
fn files(args: &mut Args<'_>) -> (String, Option<String>) {
    let (mut path, mut local) = (String::new(), String::new());
    args.must("FILENAME", &mut path);
    let has_local = args.has("LOCAL_FILENAME", &mut local);
    for (end, name) in [("remote", &path), ("local", &local)] {
        if name.len() > PATH_MAX {
            args.error(format_args!("{end} filename '{name}' too long"));
        }
    }
    (path, has_local.then_some(local))
}

/// Reads a place, and where a client comes from.
fn places(kind: &str, args: &mut Args<'_>) -> Option<(Place, Option<Place>)> {
    let of_hosts = |(there, local): (_, Option<_>), make: fn(SocketAddrV4) -> Place| (make(there), local.map(make));
    let of_files = |(there, local): (String, Option<String>), make: fn(std::path::PathBuf) -> Place| {
        (make(there.into()), local.map(|local| make(local.into())))
    };
    match kind {
        "TCP" => Some(of_hosts(hosts::<true>(args), Place::Tcp)),
        "UDP" => Some(of_hosts(hosts::<false>(args), Place::Udp)),
        "UNIX" => Some(of_files(files(args), Place::Unix)),
        "UNIX_DGRAM" => Some(of_files(files(args), Place::UnixDatagram)),
        _ => {
            args.error(format_args!("unknown socket type `{kind}'"));
            None
        }
    }
}

impl Socket {
    /// Reads what has come, and tells what has happened.
    fn read(&mut self, cx: &mut Cx<'_>) {
        let Some(pipe) = &mut self.pipe else { return };
        let (now, tables) = (cx.now(), (self.allow, self.deny));
        let (shape, fresh) = (&self.shape, &mut self.fresh);
        pipe.receive_from(BURST, &mut |host| is_let_in(cx, tables, host), &mut |received| {
            fresh.extend(shape.packet(&received, now));
        });
        self.count += self.fresh.len() as u64;
        for packet in self.fresh.drain(..) {
            cx.emit_checked(0, packet);
        }
        while let Some(event) = pipe.event() {
            if self.is_verbose {
                cx.say(format_args!("{}: {}", cx.declaration(), told(&event)));
            }
        }
    }

    /// Sends a packet; false where the socket takes none now.
    fn send(&mut self, cx: &mut Cx<'_>, packet: &Packet) -> bool {
        let Some(pipe) = &mut self.pipe else { return true };
        let is_by_anno = matches!(&self.place, Some(Place::Udp(address)) if address.ip().is_unspecified());
        let sent = if is_by_anno && self.options.client {
            pipe.send_to(packet.dst_ip(), packet.bytes())
        } else {
            pipe.send(&[packet.bytes()]).map(|count| count > 0)
        };
        sent.unwrap_or_else(|error| {
            self.drops += 1;
            if self.is_verbose || self.drops == 1 {
                cx.say(format_args!("{}: {}", cx.declaration(), error.line()));
            }
            true
        })
    }

    fn is_connected(&self) -> bool {
        self.pipe.as_ref().is_some_and(PacketPipe::is_connected)
    }
}

/// Whether a server talks to a host.
fn is_let_in(cx: &mut Cx<'_>, tables: (Option<ElementRef>, Option<ElementRef>), host: Ipv4Addr) -> bool {
    let mut has_route = |table: ElementRef| {
        let answer = route(cx, table, host);
        answer.is_ok_and(|answer| !answer.trim_start().starts_with('-'))
    };
    match tables {
        (Some(allow), _) if has_route(allow) => true,
        (_, Some(deny)) => !has_route(deny),
        _ => true,
    }
}

/// What a table of routes says of a host.
fn route(cx: &mut Cx<'_>, table: ElementRef, host: Ipv4Addr) -> Result<String, String> {
    let handler = format!("{}.lookup", cx.router().name(table.0));
    cx.read_handler(&handler, &host.to_string())
}

fn told(event: &Event) -> String {
    match event {
        Event::Opened(peer) => format!("opened connection from {peer}"),
        Event::Closed(peer) => format!("closed connection with {peer}"),
        Event::Denied(host) => format!("denied access from {host}"),
    }
}

impl Element for Socket {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut kind, mut client, mut proper) = (String::new(), None, false);
        args.must("TYPE", &mut kind)
            .key("VERBOSE", &mut self.is_verbose)
            .key("SNAPLEN", &mut self.options.snap_len)
            .key("HEADROOM", &mut self.shape.headroom)
            .key("TIMESTAMP", &mut self.shape.timestamps)
            .key("RCVBUF", &mut self.options.receive_buffer)
            .key("SNDBUF", &mut self.options.send_buffer)
            .key("NODELAY", &mut self.options.no_delay)
            .key("CLIENT", &mut client)
            .key("PROPER", &mut proper)
            .key("ALLOW", &mut self.allow)
            .key("DENY", &mut self.deny);
        if self.options.snap_len == 0 || self.options.snap_len > 1 << 20 {
            args.error("SNAPLEN out of range");
        }
        if self.shape.headroom > 8190 {
            args.error("HEADROOM out of range");
        }
        let Some((place, local)) = places(&kind.to_ascii_uppercase(), args) else { return args.result() };
        let own = args.cx().elements;
        let outputs = own.number(args.cx().element).map_or(0, |number| own.ports(number).1);
        self.options.client = client.unwrap_or(outputs == 0 || local.is_some());
        self.options.local = local.filter(|_| self.options.client);
        self.place = Some(place);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        for table in [self.allow, self.deny].into_iter().flatten() {
            route(cx, table, Ipv4Addr::UNSPECIFIED)
                .map_err(|_| format!("{} is not an IPRouteTable", cx.router().name(table.0)))?;
        }
        let Some(place) = &self.place else { return Ok(()) };
        let pipe = PacketPipe::open(place, &self.options).map_err(|error| error.line())?;
        cx.select(pipe.descriptor().as_raw_fd(), Interest { read: true, write: false });
        self.pipe = Some(pipe);
        if cx.input_is_pull(0) {
            cx.schedule();
        }
        Ok(())
    }

    fn selected(&mut self, cx: &mut Cx<'_>, _: RawFd, _: Interest) {
        self.read(cx);
        // There may be somebody to send to now, or room.
        if cx.input_is_pull(0) && self.is_connected() {
            cx.schedule();
        }
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        if !self.is_connected() || !self.send(cx, &packet) {
            self.drops += 1;
        }
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !self.is_connected() {
            return Run::Stop;
        }
        let Some(packet) = self.waiting.take().or_else(|| cx.pull(0)) else { return Run::Idle };
        if self.send(cx, &packet) {
            return Run::Worked;
        }
        self.waiting = Some(packet);
        if matches!(self.place, Some(Place::Udp(_) | Place::UnixDatagram(_))) {
            cx.timer_after(0, WAIT);
        }
        Run::Stop
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        cx.schedule();
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        if let Some(pipe) = self.pipe.take() {
            cx.select(pipe.descriptor().as_raw_fd(), Interest::default());
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |socket: &mut Self, _| socket.count);
        handlers.read("drops", |socket: &mut Self, _| socket.drops);
        handlers.read("connected", |socket: &mut Self, _| socket.is_connected());
    }
}
