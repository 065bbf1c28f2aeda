//! `AF_XDP`: the packets of a network device, taken before the kernel's own network stack sees them.
//!
//! A small program in the kernel sends each packet of a receive queue to the socket of that queue, and packets pass by
//! rings in shared memory. Unlike with `AF_PACKET`, the kernel does not see what is received: no ARP, no ping, unless
//! the configuration hands packets to it.
//!
//! The program is attached by a link that lives as long as its descriptor, so it is detached when the process ends,
//! also when it is killed. Where the driver has no XDP, the network stack runs the program. Where the driver can,
//! packets are not copied.
//!
//! Needs `CAP_NET_RAW` for the sockets, `CAP_NET_ADMIN` and `CAP_BPF` (Linux 5.9 or newer) for the program, and memory
//! that may be locked: 8 MiB a receive queue by `ulimit -l`, or `CAP_IPC_LOCK`. Sending alone needs `CAP_NET_RAW` only.
//!
//! On veth the kernel makes a packet of its own of what we send, copies it once more to give the program room before
//! it, and handles each packet in an interrupt of its own. That is most of the time of a packet, and the same for
//! `AF_PACKET`, so rings of our own are not what limits it. Interrupts could be put off and packets polled for in
//! bursts, but the kernel polls for sockets without copying only, and the timer that takes its place costs more than it
//! saves on virtual machines.
//!
//! What it cannot do: packets longer than about 3,800 bytes, timestamps, and saying whom a packet is for. A VLAN tag
//! that the device takes off is lost, and a checksum that another program of this machine left to a virtual device
//! stays unfinished (`ethtool -K DEVICE tx off` at the other end).

mod queue;
mod ring;

pub use super::bpf::Layer;
use super::link::{self, Link};
use super::watch::Watch;
use super::{Error, Kind, Nic, Received, Result, Statistics, bpf, packet, sys};
use queue::{Queue, ReceiveHalf, SendHalf};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of an Ethernet header with two VLAN tags.
const HEADER: u32 = 22;

/// Whether the kernel copies packets to our memory and from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copying {
    /// Where the driver cannot do without.
    #[default]
    AsPossible,
    /// In any case.
    Always,
    /// Never: an error where the driver cannot do without.
    Never,
}

/// How a device is received from.
#[derive(Debug, Clone)]
pub struct Options {
    /// Also packets for other hosts.
    pub promiscuous: bool,
    /// Longest part of a packet that is given out, in bytes.
    pub snap_len: usize,
    /// Which layer takes the packets; nothing: the driver where it can, else the stack.
    pub layer: Option<Layer>,
    /// Whether packets are copied.
    pub copying: Copying,
    /// The one receive queue that is read; nothing: all. Packets of other queues go to the kernel.
    pub queue: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self { promiscuous: false, snap_len: 2046, layer: None, copying: Copying::AsPossible, queue: None }
    }
}

/// `AF_XDP` sockets of a device: its receiver, its sender, or both.
#[derive(Debug)]
pub struct XdpSocket {
    // In the order in which they have to go: first nothing is handed to the sockets any more.
    attached: Option<Attached>,
    receivers: Vec<ReceiveHalf>,
    sender: Option<SendHalf>,
    poll: Option<Watch>,
    sockets: Arc<Sockets>,
    snap_len: usize,
    /// The longest packet that the device sends, without its link header, in bytes; as it was when we looked.
    mtu: u32,
    statistics: Statistics,
    told_gone: bool,
}

/// A program at a device, and what else lasts as long.
#[derive(Debug)]
struct Attached {
    _program: bpf::Attachment,
    layer: Layer,
    _promiscuous: Option<packet::Promiscuous>,
}

/// The sockets of a device. There is one for each queue, which a receiver and a sender of ours share, since the kernel
/// allows one for a queue.
#[derive(Debug)]
struct Sockets {
    device: link::Device,
    queues: Vec<(u32, Arc<Queue>)>,
    halves: Mutex<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    receivers: Option<Vec<ReceiveHalf>>,
    sender: Option<SendHalf>,
}

/// Devices with sockets, by network namespace and index.
static DEVICES: Mutex<Vec<(u64, u32, Weak<Sockets>)>> = Mutex::new(Vec::new());

impl XdpSocket {
    /// Receives from and sends to the device `name`. The sender is left out where somebody else has it.
    pub fn open(name: &str, options: &Options) -> Result<Self> {
        let mut socket = Self::receiver(name, options)?;
        socket.sender = socket.sockets.halves().sender.take();
        Ok(socket)
    }

    /// Receives from the device `name`.
    pub fn receiver(name: &str, options: &Options) -> Result<Self> {
        let sockets = Sockets::named(name, options)?;
        let receivers = sockets.halves().receivers.take().ok_or_else(|| sockets.busy("received from"))?;
        let mut socket = Self::over(sockets, options.snap_len);
        socket.receivers = receivers;
        for receiver in &mut socket.receivers {
            receiver.clear();
        }
        socket.attached = Some(socket.sockets.attach(options)?);
        if socket.receivers.len() > 1 {
            socket.poll = Some(poll_all(&socket.receivers).map_err(|source| socket.sockets.error("poll", source))?);
        }
        Ok(socket)
    }

    /// Sends to the device `name`, by its first queue.
    pub fn sender(name: &str) -> Result<Self> {
        let sockets = Sockets::named(name, &Options::default())?;
        let sender = sockets.halves().sender.take().ok_or_else(|| sockets.busy("sent to"))?;
        let mut socket = Self::over(sockets, usize::MAX);
        socket.sender = Some(sender);
        Ok(socket)
    }

    fn over(sockets: Arc<Sockets>, snap_len: usize) -> Self {
        Self {
            attached: None,
            receivers: Vec::new(),
            sender: None,
            poll: None,
            mtu: sockets.device.link.mtu,
            sockets,
            snap_len,
            statistics: Statistics::default(),
            told_gone: false,
        }
    }

    /// Which layer takes the packets; nothing where it does not receive.
    pub fn layer(&self) -> Option<Layer> {
        self.attached.as_ref().map(|attached| attached.layer)
    }

    /// Whether packets pass without being copied.
    pub fn is_zero_copy(&self) -> bool {
        self.sockets.queues.iter().all(|(_, queue)| queue.is_zero_copy())
    }

    /// How many of the first of `packets` the device sends. The kernel would drop a longer one and say nothing.
    fn fitting(&mut self, packets: &[&[u8]]) -> usize {
        let count = packets.iter().take_while(|packet| fits(packet, self.mtu)).count();
        if count == packets.len() {
            return count;
        }
        // It may have been raised.
        self.mtu = self.sockets.device.mtu().unwrap_or(self.mtu);
        packets.iter().take_while(|packet| fits(packet, self.mtu)).count()
    }

    /// An error, once, where the device has disappeared. The sockets' own errors are no sure sign of that: whoever
    /// sends may have taken them.
    fn nothing_received(&mut self) -> Result<()> {
        for receiver in &self.receivers {
            receiver.queue().clear_error();
        }
        if self.sockets.device.exists() || std::mem::replace(&mut self.told_gone, true) {
            return Ok(());
        }
        Err(self.sockets.device.gone())
    }
}

impl Nic for XdpSocket {
    fn receive(&mut self, max: usize, take: &mut dyn FnMut(Received<'_>)) -> Result<usize> {
        let mut count = 0;
        for receiver in &mut self.receivers {
            count += receiver.receive(max - count, self.snap_len, take);
        }
        // The first queue comes last the next time.
        if self.receivers.len() > 1 {
            self.receivers.rotate_left(1);
        }
        self.statistics.received += count as u64;
        if count == 0 && max > 0 {
            self.nothing_received()?;
        }
        Ok(count)
    }

    fn send(&mut self, packets: &[&[u8]]) -> Result<usize> {
        let fitting = self.fitting(packets);
        let Some(sender) = &mut self.sender else { return Ok(0) };
        let count = sender.send(&packets[..fitting]);
        self.statistics.sent += count as u64;
        let pushed = sender.push_on();
        let longest = sender.packet_len_max();
        if pushed.is_err() && !self.sockets.device.exists() {
            return Err(self.sockets.device.gone());
        }
        match packets.first() {
            Some(packet) if count == 0 && (fitting == 0 || packet.len() > longest) => {
                let source = io::Error::from_raw_os_error(libc::EMSGSIZE);
                Err(self.sockets.error("send a packet", source).of_kind(Kind::Refused))
            }
            // A device that is down keeps what waits, and sends it when it is up.
            _ => Ok(count),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.poll {
            Some(poll) => poll.as_fd(),
            None => self.sockets.queues[0].1.as_fd(),
        }
    }

    fn statistics(&mut self) -> Statistics {
        let dropped = self.receivers.iter().map(|receiver| receiver.queue().dropped()).sum();
        Statistics { dropped, ..self.statistics }
    }

    fn link(&self) -> Option<&Link> {
        Some(&self.sockets.device.link)
    }
}

impl Drop for XdpSocket {
    fn drop(&mut self) {
        self.attached = None;
        let mut halves = self.sockets.halves();
        if !self.receivers.is_empty() {
            halves.receivers = Some(std::mem::take(&mut self.receivers));
        }
        if let Some(sender) = self.sender.take() {
            halves.sender = Some(sender);
        }
    }
}

impl Sockets {
    /// The device `name`, which is opened where nobody has it.
    fn named(name: &str, options: &Options) -> Result<Arc<Self>> {
        let device = link::Device::named(name)?;
        let socket = new_socket(name)?;
        let key = (packet::namespace(socket.as_fd()), device.link.index);
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|(_, _, sockets)| sockets.strong_count() > 0);
        let found = devices.iter().find(|(space, index, _)| (*space, *index) == key);
        if let Some(sockets) = found.and_then(|(_, _, sockets)| sockets.upgrade()) {
            return Ok(sockets);
        }
        let sockets = Arc::new(Self::open(device, socket, options)?);
        devices.push((key.0, key.1, Arc::downgrade(&sockets)));
        Ok(sockets)
    }

    fn open(device: link::Device, socket: OwnedFd, options: &Options) -> Result<Self> {
        let link = &device.link;
        let Some(frame_len) = queue::frame_len(link.mtu + HEADER) else {
            let text = format!("{}: its MTU of {} is too long for AF_XDP: lower it, or use LINUX", link.name, link.mtu);
            return Err(Error::new(Kind::Unsupported, text));
        };
        let numbers = match options.queue {
            Some(number) => number..number + 1,
            None => 0..device.receive_queues(),
        };
        let (mut queues, mut receivers, mut sender) = (Vec::new(), Vec::new(), None);
        let mut first = Some(socket);
        for number in numbers {
            let socket = first.take().map_or_else(|| new_socket(&link.name), Ok)?;
            let (queue, receive_half, send_half) = queue::open(socket, link.index, number, frame_len, options.copying)
                .map_err(|source| refused(&link.name, number, source))?;
            queues.push((number, queue));
            receivers.push(receive_half);
            sender.get_or_insert(send_half);
        }
        Ok(Self { device, queues, halves: Mutex::new(Halves { receivers: Some(receivers), sender }) })
    }

    fn halves(&self) -> MutexGuard<'_, Halves> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self, what: &str) -> Error {
        Error::new(Kind::Busy, format!("{}: it is already {what} by AF_XDP here", self.device.link.name))
    }

    fn error(&self, what: &str, source: io::Error) -> Error {
        Error::system(format!("{}: cannot {what} by AF_XDP", self.device.link.name), source)
    }

    /// Makes the device's packets come to the sockets.
    fn attach(&self, options: &Options) -> Result<Attached> {
        let load = || {
            let last = self.queues.iter().map(|(number, _)| *number).max().unwrap_or(0);
            let table = bpf::new_table(last + 1)?;
            for (number, queue) in &self.queues {
                bpf::enter(table.as_fd(), *number, queue.as_fd())?;
            }
            bpf::load_redirect(table.as_fd())
        };
        let program = load().map_err(|source| {
            self.error("load the program that receives", source).hint(
                Kind::Denied,
                "this needs CAP_NET_ADMIN and CAP_BPF, so run as root or give the program these capabilities",
            )
        })?;
        let (link, layer) = self.attach_by(program.as_fd(), options.layer)?;
        let promiscuous = options.promiscuous.then(|| packet::Promiscuous::new(&self.device.link)).transpose()?;
        Ok(Attached { _program: link, layer, _promiscuous: promiscuous })
    }

    fn attach_by(&self, program: BorrowedFd<'_>, layer: Option<Layer>) -> Result<(bpf::Attachment, Layer)> {
        let index = self.device.link.index;
        let (link, layer) = match layer {
            Some(layer) => (bpf::attach_redirect(program, index, layer), layer),
            None => match bpf::attach_redirect(program, index, Layer::Driver) {
                Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
                    (bpf::attach_redirect(program, index, Layer::Stack), Layer::Stack)
                }
                result => (result, Layer::Driver),
            },
        };
        let link = link.map_err(|source| {
            self.error("attach the program that receives", source)
                .hint(Kind::Busy, "another XDP program is attached, see `ip link show`; detach it first")
                .hint(Kind::Unsupported, "this needs Linux 5.9 or newer, and a driver with XDP for the driver's layer")
        })?;
        Ok((link, layer))
    }
}

/// Whether a device of this MTU sends the packet, whose Ethernet header may have a VLAN tag.
fn fits(packet: &[u8], mtu: u32) -> bool {
    let is_tagged = matches!(packet.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
    packet.len() <= mtu as usize + if is_tagged { 18 } else { 14 }
}

fn new_socket(name: &str) -> Result<OwnedFd> {
    sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(|source| {
        Error::system(format!("{name}: cannot open an AF_XDP socket"), source)
            .hint(Kind::Denied, "this needs CAP_NET_RAW, so run as root or give the program that capability")
            .hint(Kind::Unsupported, "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use LINUX")
    })
}

/// The error of a queue that could not be opened.
fn refused(name: &str, number: u32, source: io::Error) -> Error {
    let memory = source.raw_os_error() == Some(libc::ENOBUFS);
    let error = Error::system(format!("{name}: cannot receive queue {number} by AF_XDP"), source)
        .hint(Kind::Busy, "another program has the queue")
        .hint(Kind::Unsupported, "the device has no such queue, or its driver cannot do without copying");
    if memory {
        return error.hint(Kind::System, "too little memory may be locked, so raise `ulimit -l` or give CAP_IPC_LOCK");
    }
    error
}

/// One descriptor that is readable when one of several sockets is.
fn poll_all(receivers: &[ReceiveHalf]) -> io::Result<Watch> {
    let watch = Watch::new()?;
    for receiver in receivers {
        watch.add(receiver.queue().as_fd())?;
    }
    Ok(watch)
}
