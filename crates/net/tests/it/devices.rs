//! Elements of devices and sockets, in network namespaces.

use crate::live::{Live, start, try_start};
use crate::world::{Namespace, namespaces, pair};
use bifolio_net::headers::checksum;
use bifolio_net::nic::Nic;
use bifolio_net::nic::packet::{Options, PacketSocket};
use bifolio_net::packet::anno;
use bifolio_net::{Packet, PacketType, Timestamp};
use bifolio_testing::{has, noise, require, seed, until};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::SystemTime;

const METHODS: [&str; 3] = ["LINUX", "LINUX_RING", "AF_XDP"];

fn open(space: &Namespace, name: &str) -> PacketSocket {
    space.run(|| PacketSocket::open(name, &Options::default()).unwrap())
}

fn sendall(nic: &mut dyn Nic, frames: &[Vec<u8>]) {
    let all: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut rest = &all[..];
    until("all packets are sent", || {
        rest = &rest[nic.send(rest).unwrap()..];
        rest.is_empty()
    });
}

/// A frame of a type for experiments, to everybody.
fn frame(len: usize, seed: u64) -> Vec<u8> {
    let mut frame = noise(len, seed);
    frame[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame
}

/// An Ethernet frame to everybody with an IP packet whose header is `ip`, finished, and `payload`.
fn ip_frame(ip: &[u8; 20], payload: &[u8]) -> Vec<u8> {
    let mut header = *ip;
    header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    let sum = checksum::internet(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let ether = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 0];
    [&ether[..], &header, payload].concat()
}

/// A ping from 10.0.0.1 to 10.0.0.2.
fn ping_frame() -> Vec<u8> {
    let mut icmp = [8, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4];
    let sum = checksum::internet(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ip_frame(&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2], &icmp)
}

#[test]
fn packets_pass_from_device_to_device_in_their_order() {
    let seed = seed();
    for method in METHODS {
        let Some([left, middle, right]) = namespaces() else { return };
        left.connect("a", &middle, "b");
        middle.connect("c", &right, "d");
        let (mut from, mut to) = (open(&left, "a"), open(&right, "d"));
        let frames: Vec<_> = (0..3000).map(|n| frame(60 + (n * 7) as usize % 1400, seed.wrapping_add(n))).collect();
        let mut seen = Vec::new();
        middle.run(|| {
            let mut live = start(&format!(
                "FromDevice(b, METHOD {method}) -> q :: Queue(10000) -> to :: ToDevice(c, METHOD {method});
                 back :: FromDevice(c, METHOD {method}) -> Discarded :: Keep"
            ));
            for some in frames.chunks(50) {
                sendall(&mut from, some);
                live.until("packets pass", |_| {
                    to.receive(64, &mut |packet| seen.push(packet.bytes.to_vec())).unwrap();
                    seen.len() % 50 == 0 && !seen.is_empty() && seen.last() == some.last()
                });
            }
            assert_eq!(live.read("to.count"), "3000");
            assert_eq!(live.read("back.count"), "0", "what a ToDevice sends comes back by {method}");
            assert_eq!((live.read("to.q"), live.read("to.refused")), ("false".to_owned(), "0".to_owned()));
        });
        assert!(seen == frames, "{method}");
    }
}

#[test]
fn packets_of_a_device_have_their_annotations() {
    let Some([left, right]) = pair() else { return };
    let mut from = open(&left, "a");
    right.run(|| {
        let mut live = start(
            "from :: FromDevice(b, SNAPLEN 100, HEADROOM 80, BURST 7); from -> all :: Keep;
             ip :: FromDevice(b, FORCE_IP true); ip[0] -> good :: Keep; ip[1] -> bad :: Keep;
             poll :: PollDevice(b, TIMESTAMP false, ENCAP IP) -> polled :: Keep",
        );
        let before = Timestamp::from(SystemTime::UNIX_EPOCH.elapsed().unwrap());
        let mut other = frame(300, 2);
        other[0] = 2;
        let sent = [frame(99, 1), other, ping_frame()];
        sendall(&mut from, &sent);
        let all = live.keep("all", 3);
        let after = Timestamp::from(SystemTime::UNIX_EPOCH.elapsed().unwrap());
        for (packet, sent) in all.iter().zip(&sent) {
            assert_eq!(packet.bytes(), &sent[..sent.len().min(100)]);
            assert_eq!(packet.anno_u32(anno::EXTRA_LENGTH) as usize, sent.len().saturating_sub(100));
            assert!(packet.headroom() >= 80 && packet.mac_offset() == Some(0) && packet.network_offset().is_none());
            assert!(before <= packet.timestamp() && packet.timestamp() <= after);
            assert!(packet.anno_u32(anno::DEVICE) > 0);
        }
        assert_eq!([0, 1].map(|n| all[n].kind()), [PacketType::Broadcast, PacketType::OtherHost]);
        let good = live.keep("good", 1);
        assert_eq!((good[0].network_offset(), good[0].network_header_len()), (Some(14), 20));
        assert_eq!(live.keep("bad", 2).len(), 2);
        assert!(live.keep("polled", 3).iter().all(|packet| packet.timestamp().is_zero()));
        assert_eq!((live.read("from.encap"), live.read("poll.encap")), ("ETHER".to_owned(), "IP".to_owned()));
        assert_eq!((live.read("from.count"), live.read("from.kernel_drops")), ("3".to_owned(), "0".to_owned()));
    });
}

/// How many pings the kernel has seen in the namespace of this thread.
fn kernel_pings() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Icmp:"));
    let names = lines.next().unwrap().split_whitespace();
    let values = lines.next().unwrap().split_whitespace();
    names.zip(values).find(|(name, _)| *name == "InEchos").unwrap().1.parse().unwrap()
}

#[test]
fn the_kernel_handles_packets_too_unless_it_is_kept_from_them() {
    for (config, kernel_sees) in [
        ("from :: FromDevice(b) -> Keep", true),
        ("from :: FromDevice(b, SNIFFER false) -> Keep", false),
        ("from :: FromDevice(b, METHOD AF_XDP) -> Keep", false),
    ] {
        let Some([left, right]) = pair() else { return };
        let mut from = open(&left, "a");
        right.ip("address add 10.0.0.2/24 dev b");
        right.run(|| {
            let mut live = start(config);
            // The kernel has done with a packet before the next one comes.
            for count in 1..=2 {
                sendall(&mut from, &[ping_frame()]);
                live.until_is("from.count", &count.to_string());
            }
            assert_eq!(kernel_pings() > 0, kernel_sees, "{config}");
            drop(live);
            until("the kernel sees packets again", || {
                sendall(&mut from, &[ping_frame()]);
                kernel_pings() > 0
            });
        });
    }
}

#[test]
fn what_was_sent_and_what_was_refused_leave_by_different_outputs() {
    for method in METHODS {
        let Some([left, right]) = pair() else { return };
        let mut to = open(&right, "b");
        left.run(|| {
            let mut live = start(&format!(
                "send :: Send -> to :: ToDevice(a, METHOD {method}); to[0] -> sent :: Keep; to[1] -> refused :: Keep"
            ));
            let lens = [100, 5000, 200, 6000, 7000, 300];
            live.send("send", lens.map(|len| Packet::from_slice(&frame(len, 1))));
            let kept = |packets: Vec<Packet>| packets.iter().map(Packet::len).collect::<Vec<_>>();
            let (sent, refused) = (live.keep("sent", 3), live.keep("refused", 3));
            assert_eq!((kept(sent), kept(refused)), (vec![100, 200, 300], vec![5000, 6000, 7000]), "{method}");
            assert_eq!((live.read("to.count"), live.read("to.refused")), ("3".to_owned(), "3".to_owned()));
            assert!(live.read("to.pulls").parse::<u64>().unwrap() >= 6, "{}", live.read("to.pulls"));
            assert_eq!(live.said().len(), 1, "{:?}", live.said());
            assert!(live.said()[0].starts_with("to :: ToDevice: a: cannot send a packet"), "{:?}", live.said());
            let mut seen = Vec::new();
            until("the packets arrive", || {
                to.receive(8, &mut |packet| seen.push(packet.bytes.len())).unwrap();
                seen.len() == 3
            });
            assert_eq!(seen, [100, 200, 300]);
        });
    }
}

#[test]
fn a_device_has_one_writer() {
    let Some([left, _right]) = pair() else { return };
    left.run(|| {
        let said = try_start("Send -> ToDevice(a); Send -> ToDevice(lo); Send -> ToDevice(a)").err().unwrap();
        assert!(said.contains("duplicate writer for device 'a'"), "{said}");
        start("Send -> ToDevice(a); Send -> ToDevice(lo)");
    });
}

#[test]
fn a_device_that_disappears_is_told_once_and_used_again_when_it_is_back() {
    for method in METHODS {
        let Some([left, right]) = pair() else { return };
        left.connect("c", &right, "d");
        let mut other = open(&right, "d");
        left.run(|| {
            let mut live = start(&format!(
                "from :: FromDevice(a, METHOD {method}) -> came :: Keep;
                 send :: Send -> to :: ToDevice(a, METHOD {method}) -> sent :: Keep;
                 stays :: FromDevice(c) -> Queue -> ToDevice(c) -> went :: Keep"
            ));
            left.ip("link delete dev a");
            live.send("send", [Packet::from_slice(&frame(100, 1))]);
            live.until("the end of the device is told", |live| live.said().len() == 2);
            let mut said = live.said();
            said.sort();
            let ends =
                ["from :: FromDevice", "to :: ToDevice"].map(|name| format!("{name}: device 'a' has disappeared"));
            assert_eq!(said, ends, "{method}");

            sendall(&mut other, &[frame(100, 1)]);
            live.keep("went", 1);

            left.connect("a", &right, "b");
            live.until("the device is used again", |live| live.said().len() == 4);
            let mut back = open(&right, "b");
            sendall(&mut back, &[frame(99, 1)]);
            assert_eq!(live.keep("came", 1)[0].len(), 99);
            assert_eq!(live.keep("sent", 1)[0].len(), 100, "what had waited is sent");
            assert_eq!(live.said().len(), 4, "{:?}", live.said());
        });
    }
}

#[test]
fn a_device_that_is_polled_may_come_later_and_go_quietly() {
    let Some([left, right]) = namespaces() else { return };
    left.run(|| {
        let mut live = start(
            "poll :: PollDevice(a, false, 8, ALLOW_NONEXISTENT true, QUIET true, UP_CALL up.run, DOWN_CALL down.run) -> came :: Keep;
             up, down :: Script(TYPE PASSIVE, init n 0, set n $(add $n 1))",
        );
        let calls = |live: &mut Live| ["up.get n", "down.get n"].map(|handler| live.read(handler));
        for round in 1..3 {
            left.connect("a", &right, "b");
            let mut other = open(&right, "b");
            live.until("the device is read", |live| {
                other.send(&[&frame(99, 4)]).unwrap();
                !live.kept("came").is_empty()
            });
            live.until_is("up.get n", &round.to_string());
            assert_eq!(calls(&mut live), [round.to_string(), (round - 1).to_string()]);
            left.ip("link delete dev a");
            live.until_is("down.get n", &round.to_string());
        }
        assert_eq!(live.said(), [""; 0]);
    });
}

#[test]
fn a_device_that_goes_down_and_comes_up_is_used_on() {
    for method in METHODS {
        let Some([left, right]) = pair() else { return };
        let mut other = open(&right, "b");
        left.run(|| {
            let mut live = start(&format!(
                "from :: FromDevice(a, METHOD {method}) -> came :: Keep;
                 send :: Send -> to :: ToDevice(a, METHOD {method})"
            ));
            left.ip("link set dev a down");
            live.send("send", [1, 2].map(|number| Packet::from_slice(&frame(100, number))));
            live.turn();
            left.ip("link set dev a up");
            live.until("packets go out again", |live| {
                live.send("send", [Packet::from_slice(&frame(77, 3))]);
                live.turn();
                let mut last = 0;
                other.receive(64, &mut |packet| last = packet.bytes.len()).unwrap();
                last == 77
            });
            sendall(&mut other, &[frame(99, 4)]);
            assert_eq!(live.keep("came", 1)[0].len(), 99, "{method}");
            let said = live.said();
            let expected = "to :: ToDevice: a: cannot send a packet: Network is down (os error 100)";
            assert!(said.iter().all(|line| line == expected) && said.len() < 2, "{method}: {said:?}");
        });
    }
}

#[test]
fn a_socket_talks_to_its_peers() {
    let Some([space]) = namespaces() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    space.run(|| {
        for (queue, kind) in [("", "push"), ("-> Queue", "pull")] {
            let mut live = start(&format!(
                "tcp :: Socket(TCP, 0.0.0.0, 7, VERBOSE true) {queue} -> tcp;
                 udp :: Socket(UDP, 0.0.0.0, 7) {queue} -> udp;
                 unix :: Socket(UNIX, \"{}\") {queue} -> unix",
                path.display()
            ));
            let mut text = [0; 5];
            for name in ["tcp", "unix"] {
                let mut stream: Box<dyn ReadWrite> = match name {
                    "tcp" => Box::new(TcpStream::connect("127.0.0.1:7").unwrap()),
                    _ => Box::new(std::os::unix::net::UnixStream::connect(&path).unwrap()),
                };
                stream.write_all(b"hello").unwrap();
                let before = live.read(&format!("{name}.count"));
                live.until("the packet comes", |live| live.read(&format!("{name}.count")) != before);
                live.turn();
                stream.read_exact(&mut text).unwrap();
                assert_eq!(&text, b"hello", "{name}, {kind}");
                live.until_is(&format!("{name}.connected"), "true");
                drop(stream);
                live.until_is(&format!("{name}.connected"), "false");
            }
            let said = live.said();
            assert!(said[0].starts_with("tcp :: Socket: opened connection from 127.0.0.1:"), "{said:?}");
            assert!(said[1].starts_with("tcp :: Socket: closed connection with 127.0.0.1:"), "{said:?}");
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"hello", "127.0.0.1:7").unwrap();
            socket.set_nonblocking(true).unwrap();
            live.until("the answer comes", |_| socket.recv(&mut text).is_ok());
            assert_eq!(&text, b"hello", "{kind}");
        }
    });
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[test]
fn clients_send_to_their_server_or_to_the_annotation() {
    let Some([space]) = namespaces() else { return };
    space.run(|| {
        let mut live = start(
            "server :: Socket(TCP, 0.0.0.0, 9) -> came :: Keep; all :: Socket(UDP, 0.0.0.0, 99) -> datagrams :: Keep",
        );
        let mut client = start(
            "tcp :: Send -> Socket(TCP, 127.0.0.1, 9); udp :: Send -> Socket(UDP, 0.0.0.0, 99);
             back :: Socket(UDP, 127.0.0.1, 99, 127.0.0.5, 1234) -> Keep",
        );
        client.send("tcp", [Packet::from_slice(b"by tcp")]);
        let mut packet = Packet::from_slice(b"by udp");
        packet.set_dst_ip([127, 0, 0, 6].into());
        client.send("udp", [packet]);
        client.turn();
        assert_eq!(live.keep("came", 1)[0].bytes(), b"by tcp");
        assert_eq!(live.keep("datagrams", 1)[0].bytes(), b"by udp");
        assert_eq!(client.read("back.connected"), "true");
        assert!(UdpSocket::bind("127.0.0.5:1234").is_err(), "the client has its own place");
    });
}

#[test]
fn a_server_talks_to_whom_its_tables_let_in() {
    let Some([space]) = namespaces() else { return };
    space.run(|| {
        let mut live = start(
            "allow :: Only(127.0.0.2); deny :: Only(127.); all :: Only(10.);
             some :: Socket(UDP, 0.0.0.0, 7, ALLOW allow, DENY deny) -> came :: Keep;
             most :: Socket(UDP, 0.0.0.0, 8, DENY allow) -> most_came :: Keep;
             tcp :: Socket(TCP, 0.0.0.0, 9, DENY deny, VERBOSE true) -> Keep",
        );
        for (from, text) in [("127.0.0.3:0", b"no"), ("127.0.0.2:0", b"ok")] {
            let socket = UdpSocket::bind(from).unwrap();
            socket.send_to(text, "127.0.0.1:7").unwrap();
            socket.send_to(text, "127.0.0.1:8").unwrap();
        }
        assert_eq!(live.keep("came", 1)[0].bytes(), b"ok");
        assert_eq!(live.keep("most_came", 1)[0].bytes(), b"no");
        let mut peer = TcpStream::connect("127.0.0.1:9").unwrap();
        live.until("the peer is told", |live| !live.said().is_empty());
        assert_eq!(live.said(), ["tcp :: Socket: denied access from 127.0.0.1"]);
        assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
    });
}

#[test]
fn a_peer_that_does_not_read_stops_nobody_else() {
    let Some([space]) = namespaces() else { return };
    space.run(|| {
        let mut live = start(
            "pushed :: Send -> s :: Socket(TCP, 0.0.0.0, 7) -> Keep;
             pulled :: Send -> p :: Socket(TCP, 0.0.0.0, 8) -> Keep;
             other :: Send -> fine :: Keep",
        );
        let [mut deaf, _mute] = ["127.0.0.1:7", "127.0.0.1:8"].map(|place| TcpStream::connect(place).unwrap());
        for name in ["s", "p"] {
            live.until_is(&format!("{name}.connected"), "true");
        }
        let packet = Packet::from_slice(&noise(1400, 3));
        live.until("packets for the first are dropped", |live| {
            live.send("pushed", vec![packet.clone(); 100]);
            live.send("pulled", vec![packet.clone(); 100]);
            live.read("s.drops") != "0"
        });
        live.send("other", [packet]);
        live.keep("fine", 1);
        let mut heard = [0; 1400];
        deaf.read_exact(&mut heard).unwrap();
        assert!(heard[..] == noise(1400, 3)[..], "packets are not torn");
    });
}

#[test]
fn a_real_ping_goes_through_a_router_of_two_devices() {
    if !has("ping") {
        require("ping (iputils-ping): pings through a router are left out");
        return;
    }
    for method in METHODS {
        let Some([left, middle, right]) = namespaces() else { return };
        left.connect("a", &middle, "b");
        middle.connect("c", &right, "d");
        left.ip("address add 10.0.0.1/24 dev a");
        right.ip("address add 10.0.0.2/24 dev d");
        middle.run(|| {
            let mut live = start(&format!(
                "FromDevice(b, PROMISC true, METHOD {method}) -> Queue -> ToDevice(c, METHOD {method});
                 FromDevice(c, PROMISC true, METHOD {method}) -> Queue -> ToDevice(b, METHOD {method})"
            ));
            // With a deadline it waits for answers, however late they are on a machine with much to do.
            let output =
                live.during(left.command("ping").args(["-c", "3", "-w", "60", "-i", "0.01", "-s", "1472", "10.0.0.2"]));
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("3 received"), "{method}: {text}");
        });
    }
}
