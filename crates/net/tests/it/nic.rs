//! Devices of the system: the same behaviour by each method, on veth pairs.

use crate::world::{Namespace, namespaces, pair};
use bifolio_net::headers::ether::EtherAddress;
use bifolio_net::nic::packet::{self, PacketSocket, Spread};
use bifolio_net::nic::tun::{self, Tun};
use bifolio_net::nic::xdp::{self, Layer, XdpSocket};
use bifolio_net::nic::{Destination, Kind, Nic};
use bifolio_testing::{noise, seed, until};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

/// Ways to open a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Way {
    Ring,
    Plain,
    SendRing,
    Driver,
    Stack,
}

/// The ways to receive.
pub(crate) const WAYS: [Way; 4] = [Way::Ring, Way::Plain, Way::Driver, Way::Stack];
/// The ways to send.
pub(crate) const SENDERS: [Way; 5] = [Way::Ring, Way::Plain, Way::SendRing, Way::Driver, Way::Stack];

impl Way {
    pub(crate) fn is_xdp(self) -> bool {
        matches!(self, Self::Driver | Self::Stack)
    }

    pub(crate) fn open(self, space: &Namespace, name: &str) -> Box<dyn Nic> {
        let layer = if self == Self::Driver { Layer::Driver } else { Layer::Stack };
        space.run(|| {
            if self.is_xdp() {
                let options = xdp::Options { layer: Some(layer), ..xdp::Options::default() };
                let socket = XdpSocket::open(name, &options).unwrap();
                assert_eq!(socket.layer(), Some(layer));
                return Box::new(socket) as Box<dyn Nic>;
            }
            if self == Self::SendRing {
                let socket = PacketSocket::ring_sender(name).unwrap();
                assert!(socket.has_send_ring());
                return Box::new(socket);
            }
            let options = packet::Options { ring: self == Self::Ring, ..packet::Options::default() };
            let socket = PacketSocket::open(name, &options).unwrap();
            assert_eq!(socket.has_ring(), self == Self::Ring);
            Box::new(socket)
        })
    }
}

/// Waits until a descriptor is readable, or has failed.
fn wait(nic: &dyn Nic) -> i16 {
    let mut poll = libc::pollfd { fd: nic.descriptor().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that lives during the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 60_000) };
    assert_eq!(ready, 1, "nothing came for a minute");
    poll.revents
}

/// What a packet was when it came.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) bytes: Vec<u8>,
    wire_len: usize,
    timestamp: Option<Duration>,
    destination: Option<Destination>,
}

/// Receives until there are `count` packets.
pub(crate) fn receive(nic: &mut dyn Nic, count: usize) -> Vec<Seen> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let before = seen.len();
        let given = nic
            .receive(32, &mut |packet| {
                let bytes = packet.bytes.to_vec();
                let (wire_len, timestamp, destination) = (packet.wire_len, packet.timestamp, packet.destination);
                seen.push(Seen { bytes, wire_len, timestamp, destination });
            })
            .unwrap();
        assert_eq!(seen.len() - before, given);
        if given == 0 {
            wait(nic);
        }
    }
    seen
}

/// An Ethernet frame of `len` bytes without meaning, which starts with a destination and ends with a number.
pub(crate) fn frame(destination: [u8; 6], len: usize, number: u64) -> Vec<u8> {
    let mut frame = noise(len, number);
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    // A type for experiments, which no kernel handles; every eighth frame has a VLAN tag before it.
    let kind: &[u8] = if number.is_multiple_of(8) { &[0x81, 0, 0x21, 7, 0x88, 0xb5] } else { &[0x88, 0xb5] };
    frame[12..12 + kind.len()].copy_from_slice(kind);
    frame
}

pub(crate) fn sendall(nic: &mut dyn Nic, frames: &[Vec<u8>]) {
    let all: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut rest = &all[..];
    until("all packets are sent", || {
        rest = &rest[nic.send(rest).unwrap()..];
        rest.is_empty()
    });
}

#[test]
fn packets_arrive_as_they_were_sent_by_every_way() {
    let seed = seed();
    for (sender, receiver) in SENDERS.into_iter().flat_map(|sender| WAYS.map(|receiver| (sender, receiver))) {
        let Some([left, right]) = pair() else { return };
        let (mut from, mut to) = (sender.open(&left, "a"), receiver.open(&right, "b"));
        let own = to.link().unwrap().address.0;
        for round in 0..40 {
            let lens = noise(64, seed.wrapping_add(round));
            let frames: Vec<_> = lens
                .iter()
                .zip(round * 64..)
                .map(|(&len, number)| frame(own, (20 + usize::from(len) * 6).min(1514), number))
                .collect();
            sendall(&mut *from, &frames);
            let seen = receive(&mut *to, frames.len());
            for (frame, seen) in frames.iter().zip(&seen) {
                assert_eq!(
                    (&seen.bytes, seen.wire_len),
                    (frame, frame.len()),
                    "{sender:?} to {receiver:?}, seed {seed}"
                );
            }
        }
        assert_eq!((to.statistics().received, from.statistics().sent), (2560, 2560), "{sender:?} to {receiver:?}");
        assert_eq!((to.statistics().dropped, from.statistics().received), (0, 0), "{sender:?} to {receiver:?}");
    }
}

#[test]
fn the_kernel_tells_whom_a_packet_is_for_and_when_it_came() {
    for way in [Way::Ring, Way::Plain] {
        let Some([left, right]) = pair() else { return };
        let (mut from, mut to) = (way.open(&left, "a"), way.open(&right, "b"));
        let own = to.link().unwrap().address.0;
        let cases = [
            (own, Destination::Host),
            ([0xff; 6], Destination::Broadcast),
            ([1, 0, 0x5e, 0, 0, 1], Destination::Multicast),
            ([2, 3, 4, 5, 6, 7], Destination::Other),
        ];
        let frames: Vec<_> = cases.iter().map(|(to, _)| frame(*to, 60, 1)).collect();
        let before = SystemTime::now();
        sendall(&mut *from, &frames);
        let seen = receive(&mut *to, cases.len());
        for ((_, expected), seen) in cases.iter().zip(&seen) {
            assert_eq!(seen.destination, Some(*expected), "{way:?}");
            let came = SystemTime::UNIX_EPOCH + seen.timestamp.unwrap();
            assert!(before <= came && came <= SystemTime::now(), "{way:?}: {came:?} after {before:?}");
        }
    }
}

#[test]
fn a_packet_is_cut_to_the_snapshot_length() {
    let Some([left, right]) = pair() else { return };
    let mut from = Way::Plain.open(&left, "a");
    for way in WAYS {
        let mut to: Box<dyn Nic> = right.run(|| {
            let ring = way == Way::Ring;
            if way.is_xdp() {
                let options = xdp::Options { snap_len: 100, ..xdp::Options::default() };
                return Box::new(XdpSocket::receiver("b", &options).unwrap()) as Box<dyn Nic>;
            }
            let options = packet::Options { snap_len: 100, ring, ..packet::Options::default() };
            Box::new(PacketSocket::open("b", &options).unwrap())
        });
        let sent = frame([0xff; 6], 1000, 8);
        sendall(&mut *from, std::slice::from_ref(&sent));
        let seen = receive(&mut *to, 1).remove(0);
        assert_eq!((seen.bytes.as_slice(), seen.wire_len), (&sent[..100], 1000), "{way:?}");
    }
}

/// Sends a UDP packet of `len` bytes from namespace `left` to 10.0.0.2, by the kernel.
fn send_udp(left: &Namespace, len: usize) {
    left.run(|| {
        // Any port: a program that another test starts holds the socket until it runs, also when it is closed here.
        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        socket.send_to(&noise(len, 3), "10.0.0.2:4001").unwrap();
    });
}

/// Gives both ends addresses, and each the other's link address, so that neither asks.
fn address_pair(left: &Namespace, right: &Namespace) {
    for (space, name, own, other) in [(left, "a", "1", "2"), (right, "b", "2", "1")] {
        space.ip(&format!("address add 10.0.0.{own}/24 dev {name}"));
        space.ip(&format!("neighbour add 10.0.0.{other} lladdr 02:00:00:00:00:0{other} dev {name}"));
    }
}

/// The sum of 16-bit words with end-around carry, one word after the other.
fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum: u16, pair| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

#[test]
fn a_checksum_that_was_left_to_the_device_is_there() {
    // A veth device claims to compute checksums, so the kernel does not, and a packet between two namespaces has none.
    for way in [Way::Ring, Way::Plain] {
        let Some([left, right]) = pair() else { return };
        address_pair(&left, &right);
        let mut to = way.open(&right, "b");
        for len in [0, 1, 777] {
            send_udp(&left, len);
            let packet = receive(&mut *to, 1).remove(0).bytes;
            let udp = &packet[34..];
            assert_eq!(udp.len(), 8 + len);
            let pseudo = [&packet[26..34], &[0, 17], &udp[4..6]].concat();
            assert_eq!(sum(&[pseudo, udp.to_vec()].concat()), 0xffff, "{way:?}, {len} bytes");
        }
    }
}

#[test]
fn what_the_host_sends_is_seen_on_request_and_what_we_send_is_not() {
    for (outgoing, ring) in [(false, true), (true, true), (false, false), (true, false)] {
        let Some([left, right]) = pair() else { return };
        address_pair(&left, &right);
        let (mut nic, mut sender) = left.run(|| {
            let options = packet::Options { outgoing, ring, ..packet::Options::default() };
            (PacketSocket::open("a", &options).unwrap(), PacketSocket::sender("a").unwrap())
        });
        let mut other = Way::Plain.open(&right, "b");
        sendall(&mut sender, &[frame([2; 6], 60, 1)]);
        send_udp(&left, 10);
        sendall(&mut *other, &[frame([0xff; 6], 61, 1)]);
        let seen = receive(&mut nic, 1 + usize::from(outgoing));
        let lens: Vec<_> = seen.iter().map(|seen| seen.bytes.len()).collect();
        assert_eq!(lens, if outgoing { vec![52, 61] } else { vec![61] }, "outgoing {outgoing}, ring {ring}");
        assert_eq!(seen[0].destination == Some(Destination::Outgoing), outgoing);
    }
}

#[test]
fn a_device_is_promiscuous_while_it_is_asked_to_be() {
    let Some([left, _right]) = pair() else { return };
    let promiscuity = || left.ip("-details link show dev a").contains("promiscuity 1");
    let options = packet::Options { promiscuous: true, ..packet::Options::default() };
    let nic = left.run(|| PacketSocket::open("a", &options).unwrap());
    assert!(promiscuity());
    drop(nic);
    until("the device is no longer promiscuous", || !promiscuity());
    let options = xdp::Options { promiscuous: true, ..xdp::Options::default() };
    let nic = left.run(|| XdpSocket::open("a", &options).unwrap());
    assert!(promiscuity());
    drop(nic);
    until("the device is no longer promiscuous", || !promiscuity());
}

#[test]
fn sockets_of_a_group_share_packets() {
    let Some([left, right]) = pair() else { return };
    let options = packet::Options { fanout: Some((7, Spread::RoundRobin)), ..packet::Options::default() };
    let mut group = right.run(|| [(); 2].map(|()| PacketSocket::open("b", &options).unwrap()));
    let mut from = Way::Ring.open(&left, "a");
    let frames: Vec<_> = (1..=100).map(|number| frame([0xff; 6], 100, number)).collect();
    sendall(&mut *from, &frames);
    for nic in &mut group {
        assert_eq!(receive(nic, 50).len(), 50);
    }
    let other = packet::Options { fanout: Some((7, Spread::Hash)), ..packet::Options::default() };
    let error = right.run(|| PacketSocket::open("b", &other).unwrap_err());
    assert_eq!(error.kind(), Kind::Unsupported, "{}", error.line());
}

#[test]
fn a_packet_that_is_too_long_is_refused_and_the_next_goes() {
    let Some([left, right]) = pair() else { return };
    // The longer one fits into no frame of ours, the shorter one into frames, but not through the device.
    for (way, len) in SENDERS.into_iter().flat_map(|way| [(way, 5000), (way, 1600)]) {
        let (mut from, mut to) = (way.open(&left, "a"), Way::Plain.open(&right, "b"));
        let (good, bad) = (frame([0xff; 6], 200, 1), frame([0xff; 6], len, 1));
        assert_eq!(from.send(&[&good, &bad, &good]).unwrap(), 1, "{way:?}");
        let error = from.send(&[&bad, &good]).unwrap_err();
        assert_eq!((error.kind(), error.number()), (Kind::Refused, libc::EMSGSIZE), "{way:?}: {}", error.line());
        assert_eq!(from.send(&[&good]).unwrap(), 1, "{way:?}");
        assert_eq!(receive(&mut *to, 2).len(), 2);
        assert_eq!(to.receive(8, &mut |_| ()).unwrap(), 0, "{way:?}: {len} bytes came through");
    }
}

#[test]
fn a_device_that_disappears_is_told_once_and_may_come_back() {
    for way in WAYS {
        let Some([left, right]) = pair() else { return };
        left.connect("c", &right, "d");
        let (mut gone, mut stays) = (way.open(&left, "a"), way.open(&left, "c"));
        left.ip("link delete dev a");
        until("the end of the device is told", || match gone.receive(1, &mut |_| ()) {
            Ok(count) => {
                assert_eq!(count, 0);
                false
            }
            Err(error) => {
                assert_eq!((error.kind(), error.to_string()), (Kind::Gone, "device 'a' has disappeared".to_owned()));
                true
            }
        });
        assert_eq!(gone.receive(1, &mut |_| ()).unwrap(), 0, "{way:?}");
        let frame = frame([0xff; 6], 60, 1);
        assert_eq!(gone.send(&[&frame]).unwrap_err().kind(), Kind::Gone, "{way:?}");
        assert_eq!(stays.receive(1, &mut |_| ()).unwrap(), 0, "{way:?}");

        left.connect("a", &right, "b");
        let (mut back, mut other) = (way.open(&left, "a"), way.open(&right, "b"));
        sendall(&mut *other, std::slice::from_ref(&frame));
        assert_eq!(receive(&mut *back, 1)[0].bytes, frame, "{way:?}");
    }
}

#[test]
fn a_device_that_goes_down_and_comes_up_goes_on() {
    for way in WAYS {
        let Some([left, right]) = pair() else { return };
        let (mut to, mut from) = (way.open(&left, "a"), way.open(&right, "b"));
        left.ip("link set dev a down");
        assert_eq!(to.receive(1, &mut |_| ()).unwrap(), 0, "{way:?}");
        left.ip("link set dev a up");
        let frame = frame([0xff; 6], 60, 1);
        sendall(&mut *from, std::slice::from_ref(&frame));
        assert_eq!(receive(&mut *to, 1)[0].bytes, frame, "{way:?}");
    }
}

#[test]
fn a_receiver_and_a_sender_of_one_device_share_its_socket() {
    let Some([left, right]) = pair() else { return };
    let options = xdp::Options::default();
    let (receiver, sender) =
        left.run(|| (XdpSocket::receiver("a", &options).unwrap(), XdpSocket::sender("a").unwrap()));
    let busy = left.run(|| [XdpSocket::receiver("a", &options).unwrap_err(), XdpSocket::sender("a").unwrap_err()]);
    assert_eq!(busy.map(|error| error.kind()), [Kind::Busy; 2]);
    let mut other = Way::Driver.open(&right, "b");
    let frame = frame([0xff; 6], 60, 1);
    let mut parts: [Box<dyn Nic>; 2] = [Box::new(receiver), Box::new(sender)];
    sendall(&mut *parts[1], std::slice::from_ref(&frame));
    assert_eq!(receive(&mut *other, 1)[0].bytes, frame);
    sendall(&mut *other, std::slice::from_ref(&frame));
    assert_eq!(receive(&mut *parts[0], 1)[0].bytes, frame);

    // What comes while nobody receives goes to the kernel; who receives next begins anew.
    let [receiver, sender] = parts;
    drop(receiver);
    sendall(&mut *other, std::slice::from_ref(&frame));
    let mut receiver = left.run(|| XdpSocket::receiver("a", &options).unwrap());
    sendall(&mut *other, &[self::frame([0xff; 6], 77, 1)]);
    assert_eq!(receive(&mut receiver, 1)[0].bytes.len(), 77);
    drop(sender);
}

#[test]
fn several_receive_queues_are_received() {
    let Some([left]) = namespaces() else { return };
    left.ip("link add name a numtxqueues 2 numrxqueues 2 type veth peer name b numtxqueues 2 numrxqueues 2");
    left.ip("link set dev a up");
    left.ip("link set dev b up");
    for layer in [Layer::Driver, Layer::Stack] {
        let options = xdp::Options { layer: Some(layer), ..xdp::Options::default() };
        let mut to = left.run(|| XdpSocket::open("b", &options).unwrap());
        let mut from = Way::Ring.open(&left, "a");
        let frames: Vec<_> = (0..200).map(|number| frame([0xff; 6], 100, number)).collect();
        sendall(&mut *from, &frames);
        let mut seen: Vec<_> = receive(&mut to, 200).into_iter().map(|seen| seen.bytes).collect();
        let mut expected = frames;
        seen.sort();
        expected.sort();
        assert!(seen == expected, "{layer:?}");
    }
}

/// What ip(8) says about the XDP program of a device.
fn has_program(space: &Namespace, name: &str) -> bool {
    space.ip(&format!("link show dev {name}")).contains("xdp")
}

#[test]
fn the_program_is_detached_at_the_end_also_of_a_killed_process() {
    let Some([left, right]) = pair() else { return };
    let nic = left.run(|| XdpSocket::open("a", &xdp::Options::default()).unwrap());
    assert!(has_program(&left, "a"));
    drop(nic);
    until("the program is detached", || !has_program(&left, "a"));

    let own = std::env::current_exe().unwrap();
    let mut command = right.command(own.to_str().unwrap());
    command.args(["--exact", "nic::holds_a_device_when_told_to"]).env(HOLD, "b").stdout(Stdio::null());
    let mut holder = command.spawn().unwrap();
    until("the other process has attached its program", || has_program(&right, "b"));
    let busy = right.run(|| XdpSocket::open("b", &xdp::Options::default()).unwrap_err());
    assert_eq!(busy.kind(), Kind::Busy, "{}", busy.line());
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the program is detached", || !has_program(&right, "b"));
    right.run(|| XdpSocket::open("b", &xdp::Options::default()).unwrap());
}

const HOLD: &str = "BIFOLIO_NET_TEST_HOLD";

/// The process that the test above kills.
#[test]
fn holds_a_device_when_told_to() {
    let Some(name) = std::env::var_os(HOLD) else { return };
    let _nic = XdpSocket::open(name.to_str().unwrap(), &xdp::Options::default()).unwrap();
    loop {
        std::thread::park();
    }
}

/// Keeps only the capabilities `kept` (numbers) in the calling thread.
fn keep_capabilities(kept: &[u32]) {
    #[repr(C)]
    struct Header {
        version: u32,
        process: i32,
    }
    let header = Header { version: 0x2008_0522, process: 0 };
    let mask: u64 = kept.iter().map(|number| 1 << number).sum();
    // Effective, permitted, inheritable; the lower words, then the upper ones.
    let sets = [mask as u32, mask as u32, 0, (mask >> 32) as u32, (mask >> 32) as u32, 0];
    // SAFETY: version 3 of the call takes this header and two sets of three words.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    assert_eq!(result, 0);
}

#[test]
fn each_way_needs_its_capabilities_and_says_so() {
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const IPC_LOCK: u32 = 14;
    const BPF: u32 = 39;
    let Some([left, _right]) = pair() else { return };
    let packet = |kept: &[u32]| {
        left.run(|| {
            keep_capabilities(kept);
            PacketSocket::open("a", &packet::Options::default()).map(drop)
        })
    };
    let xdp = |kept: &[u32]| {
        left.run(|| {
            keep_capabilities(kept);
            XdpSocket::open("a", &xdp::Options::default()).map(drop)
        })
    };
    let tun = |kept: &[u32]| {
        left.run(|| {
            keep_capabilities(kept);
            Tun::open(&tun::Options::default()).map(drop)
        })
    };
    packet(&[NET_RAW]).unwrap();
    xdp(&[NET_RAW, NET_ADMIN, BPF, IPC_LOCK]).unwrap();
    tun(&[NET_ADMIN]).unwrap();
    left.run(|| {
        keep_capabilities(&[NET_RAW, IPC_LOCK]);
        XdpSocket::sender("a").map(drop)
    })
    .unwrap();
    let denied = [
        (packet(&[NET_ADMIN]), "CAP_NET_RAW"),
        (xdp(&[NET_ADMIN, BPF, IPC_LOCK]), "CAP_NET_RAW"),
        (xdp(&[NET_RAW, NET_ADMIN, IPC_LOCK]), "CAP_BPF"),
        (xdp(&[NET_RAW, BPF, IPC_LOCK]), "CAP_NET_ADMIN"),
        (tun(&[NET_RAW]), "CAP_NET_ADMIN"),
    ];
    for (result, missing) in denied {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{}", error.line());
        assert!(error.to_string().contains(missing), "{}", error.line());
    }
}

#[test]
fn devices_that_are_not_there_are_missing() {
    assert_eq!(PacketSocket::sender("nosuchdevice").unwrap_err().kind(), Kind::Missing);
    assert_eq!(XdpSocket::sender("nosuchdevice").unwrap_err().kind(), Kind::Missing);
}

#[test]
fn a_long_mtu_is_too_much_for_xdp() {
    let Some([left, _right]) = pair() else { return };
    left.ip("link set dev a mtu 9000");
    let error = left.run(|| XdpSocket::open("a", &xdp::Options::default()).unwrap_err());
    assert_eq!(error.kind(), Kind::Unsupported);
    assert_eq!(error.line(), "a: its MTU of 9000 is too long for AF_XDP: lower it, or use LINUX");
}

/// The answer of the host at 10.1.0.1 to a ping, by a TUN device.
#[test]
fn the_host_talks_by_a_tun_device() {
    let Some([space]) = namespaces() else { return };
    let options = tun::Options {
        ip: Some((Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(255, 255, 255, 0))),
        gateway: Some(Ipv4Addr::new(10, 1, 0, 2)),
        mtu: Some(1400),
        ..tun::Options::default()
    };
    let mut tun = space.run(|| Tun::open(&options).unwrap());
    let link = tun.link().unwrap().clone();
    assert_eq!((link.name.as_str(), link.mtu, link.encapsulation()), ("tun0", 1400, "IP"));
    let mut ping = [
        0x45, 0, 0, 32, 0, 1, 0, 0, 64, 1, 0, 0, 10, 1, 0, 2, 10, 1, 0, 1, // IP
        8, 0, 0, 0, 0, 7, 0, 1, b'p', b'i', b'n', b'g', // ICMP
    ];
    let (ip_sum, icmp_sum) = (!sum(&ping[..20]), !sum(&ping[20..]));
    ping[10..12].copy_from_slice(&ip_sum.to_be_bytes());
    ping[22..24].copy_from_slice(&icmp_sum.to_be_bytes());
    assert_eq!(tun.send(&[&ping]).unwrap(), 1);
    let reply = receive(&mut tun, 1).remove(0).bytes;
    assert_eq!((reply[20], &reply[24..]), (0, &ping[24..]));

    // By the default route, what the host sends anywhere comes here, finished.
    space.run(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"far", "192.0.2.1:9").unwrap());
    let far = receive(&mut tun, 1).remove(0).bytes;
    let pseudo = [&far[12..20], &[0, 17], &far[24..26]].concat();
    assert_eq!((&far[16..20], sum(&[pseudo, far[20..].to_vec()].concat())), (&[192, 0, 2, 1][..], 0xffff));
    assert_eq!(tun.send(&[&[0x05; 30]]).unwrap_err().kind(), Kind::Refused);
}

#[test]
fn the_host_talks_by_a_tap_device_until_it_is_deleted() {
    let Some([space]) = namespaces() else { return };
    let address = EtherAddress([2, 1, 2, 3, 4, 5]);
    let options = tun::Options {
        name: "tapped".to_owned(),
        ethernet: true,
        address: Some(address),
        ip: Some((Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(255, 255, 255, 0))),
        ..tun::Options::default()
    };
    let mut tap = space.run(|| Tun::open(&options).unwrap());
    assert_eq!(tap.link().unwrap().address, address);
    space.run(|| UdpSocket::bind("10.1.0.1:0").unwrap().send_to(b"x", "10.1.0.2:9").unwrap());
    let question = loop {
        let frame = receive(&mut tap, 1).remove(0).bytes;
        if frame[12..14] == [8, 6] {
            break frame;
        }
    };
    assert_eq!((&question[6..12], &question[38..42]), (&address.0[..], &[10, 1, 0, 2][..]));

    let second = space.run(|| Tun::open(&options).unwrap_err());
    assert_eq!(second.kind(), Kind::Busy, "{}", second.line());
    space.ip("link delete dev tapped");
    until("the end of the device is told", || {
        tap.receive(8, &mut |_| ()).is_err_and(|error| error.kind() == Kind::Gone)
    });
    assert_eq!(tap.receive(1, &mut |_| ()).unwrap(), 0);
    assert_eq!(tap.send(&[&question]).unwrap_err().kind(), Kind::Gone);
    space.run(|| Tun::open(&options).unwrap());
}

#[test]
fn a_busy_ring_counts_what_it_drops() {
    for way in WAYS {
        let Some([left, right]) = pair() else { return };
        let (mut from, mut to) = (way.open(&left, "a"), way.open(&right, "b"));
        let frames: Vec<_> = (0..1000).map(|number| frame([0xff; 6], 1400, number)).collect();
        until("packets are dropped", || {
            sendall(&mut *from, &frames);
            to.statistics().dropped > 0
        });
        // What was kept is received, and so is what comes later.
        while to.receive(64, &mut |_| ()).unwrap() > 0 {}
        sendall(&mut *from, &[frame([0xff; 6], 99, 1)]);
        until("the last packet comes", || {
            let mut last = 0;
            while to.receive(64, &mut |packet| last = packet.bytes.len()).unwrap() > 0 {}
            last == 99
        });
    }
}
