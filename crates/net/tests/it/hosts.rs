//! Elements whose other end is the host itself, in network namespaces.

use crate::live::start;
use crate::world::namespaces;
use bifolio_net::Packet;
use std::net::UdpSocket;

#[test]
fn the_host_and_a_router_exchange_packets_by_a_tun_device() {
    let Some([space]) = namespaces() else { return };
    space.run(|| {
        let mut live = start(
            "send :: Send -> tun :: KernelTun(10.9.0.1/24, DEVNAME click0, MTU 1400); tun -> came :: Keep;
             push :: Send -> other :: KernelTun(10.10.0.1/24, TAP true, ETHER 2:1:2:3:4:5) -> framed :: Keep;
             other[1] -> arp :: Keep",
        );
        assert_eq!((live.read("tun.dev_name"), live.read("other.dev_name")), ("click0".to_owned(), "tap0".to_owned()));
        assert!(space.ip("link show dev click0").contains("mtu 1400"));
        assert!(space.ip("link show dev tap0").contains("02:01:02:03:04:05"));
        let socket = UdpSocket::bind("10.9.0.1:5000").unwrap();
        socket.send_to(b"to the router", "10.9.0.2:6000").unwrap();
        let mut packet = live.keep("came", 1).remove(0);
        assert_eq!((packet.network_offset(), &packet.bytes()[28..]), (Some(0), &b"to the router"[..]));
        // Back to where it came from: the sum does not change.
        let bytes = packet.bytes_mut();
        for at in 0..4 {
            bytes.swap(12 + at, 16 + at);
        }
        for at in 20..22 {
            bytes.swap(at, at + 2);
        }
        // What is before the network header does not go to the host.
        let mut framed = Packet::from_slice(&[&[0xee; 14], packet.bytes()].concat());
        framed.set_network_header(14, 20);
        let marked = |bytes: &[u8]| {
            let mut packet = Packet::from_slice(bytes);
            packet.set_network_header(0, 20);
            packet
        };
        let refused = [Packet::from_slice(packet.bytes()), marked(&[0x15; 30]), marked(&[0x45; 1401])];
        live.send("send", refused.into_iter().chain([framed]));
        socket.set_nonblocking(true).unwrap();
        let mut answer = [0; 32];
        live.until("the answer is there", |_| socket.recv(&mut answer).is_ok_and(|len| len == 13));
        assert_eq!(&answer[..13], b"to the router");
        live.send("push", [&[1; 13][..], &[1; 1515]].map(Packet::from_slice));
        live.until_is("other.drops", "2");
        let said = [
            "KernelTun(click0): no network header",
            "KernelTun(click0): unknown IP version 1",
            "KernelTun(click0): packet larger than MTU (1400)",
            "KernelTun(tap0): packet too small",
            "KernelTun(tap0): packet larger than MTU (1500)",
        ];
        assert_eq!((live.read("tun.drops").as_str(), live.said()), ("3", said.map(str::to_owned).to_vec()));
        assert_eq!((live.read("tun.packets"), live.read("tun.selected_calls")), ("1".to_owned(), "1".to_owned()));
        socket.send_to(b"x", "10.10.0.2:1").unwrap();
        assert_eq!(live.keep("arp", 1)[0].bytes()[12..14], [8, 6]);

        space.ip("link delete dev click0");
        live.until("the end of the device is told", |live| live.said().len() == 6);
        assert_eq!(live.said()[5], "tun :: KernelTun: device 'click0' has disappeared");
    });
}

#[test]
fn the_host_and_a_router_exchange_frames_by_a_tap_device() {
    let Some([space]) = namespaces() else { return };
    space.run(|| {
        let mut live = start(
            "host :: FromHost(fake0, 10.8.0.1/24, ETHER 2:1:2:3:4:5, GATEWAY 10.8.0.9) -> came :: Keep;
             send :: Send -> to :: ToHost(fake0)",
        );
        assert!(space.ip("route show").contains("default via 10.8.0.9 dev fake0"));
        let question = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 8, 0, 2, 0, 0, 0, 0, 0, 0, 10, 8, 0,
            1, // who has 10.8.0.1
        ];
        live.send("send", [Packet::from_slice(&question), Packet::from_slice(&[1; 13])]);
        let answer = live.keep("came", 1).remove(0);
        assert_eq!(answer.bytes()[..14], [2, 0, 0, 0, 0, 2, 2, 1, 2, 3, 4, 5, 8, 6]);
        assert_eq!(answer.bytes()[20..28], [0, 2, 2, 1, 2, 3, 4, 5]);
        assert_eq!((live.read("to.count"), live.read("to.drops")), ("1".to_owned(), "1".to_owned()));
        assert_eq!(live.said(), ["to :: ToHost: packet too small"]);
        assert_eq!((answer.network_offset(), live.read("host.signal")), (None, "true".to_owned()));
        space.ip("neighbour replace 10.8.0.2 lladdr 02:00:00:00:00:02 dev fake0");
        UdpSocket::bind("10.8.0.1:0").unwrap().send_to(b"x", "10.8.0.2:9").unwrap();
        let packet = live.keep("came", 1).remove(0);
        assert_eq!((packet.network_offset(), packet.dst_ip()), (Some(14), [10, 8, 0, 2].into()));
    });
    assert!(!space.ip("link show").contains("fake0"), "the device is there after the router's end");
}

#[test]
fn what_the_host_sends_waits_while_there_is_no_room() {
    let Some([space]) = namespaces() else { return };
    space.run(|| {
        let mut live = start("host :: FromHost(fake0, 10.8.0.1/24) -> q :: Queue(3) -> Idle");
        space.ip("neighbour add 10.8.0.2 lladdr 02:00:00:00:00:02 dev fake0");
        let socket = UdpSocket::bind("10.8.0.1:0").unwrap();
        let send = |count: usize| (0..count).for_each(|_| _ = socket.send_to(b"x", "10.8.0.2:9").unwrap());
        send(3);
        live.until_is("q.length", "3");
        let before = live.read("host.count");
        send(5);
        (0..10).for_each(|_| live.turn());
        assert_eq!((live.read("host.count"), live.read("host.signal")), (before.clone(), "false".to_owned()));
        live.write("q.reset", "");
        live.until("what had waited comes", |live| live.read("host.count") != before);
    });
}
