//! Packets by sockets.

use bifolio_net::nic::socket::{Event, Options, PacketPipe, Place};
use bifolio_net::nic::{Kind, Nic};
use bifolio_testing::{noise, seed, until};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn tcp(port: u16) -> Place {
    Place::Tcp(SocketAddrV4::new(LOCAL, port))
}

fn udp(port: u16) -> Place {
    Place::Udp(SocketAddrV4::new(LOCAL, port))
}

fn server(place: &Place) -> PacketPipe {
    PacketPipe::open(place, &Options::default()).unwrap()
}

fn client(place: &Place) -> PacketPipe {
    PacketPipe::open(place, &Options { client: true, ..Options::default() }).unwrap()
}

/// Receives until `enough` of what came.
fn receive_until(pipe: &mut PacketPipe, mut enough: impl FnMut(&[Vec<u8>]) -> bool) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    until("packets come", || {
        pipe.receive(8, &mut |packet| seen.push(packet.bytes.to_vec())).unwrap();
        enough(&seen)
    });
    seen
}

/// Receives `len` bytes, in pieces of any length.
fn receive_len(pipe: &mut PacketPipe, len: usize) -> Vec<u8> {
    let all = receive_until(pipe, |seen| seen.iter().map(Vec::len).sum::<usize>() >= len).concat();
    assert_eq!(all.len(), len);
    all
}

/// Two pipes that are connected, of each kind.
fn ends(folder: &std::path::Path) -> Vec<(PacketPipe, PacketPipe)> {
    let (stream, datagram) = (folder.join("stream"), folder.join("datagram"));
    let own = folder.join("own");
    let servers = [tcp(0), udp(0), Place::Unix(stream), Place::UnixDatagram(datagram)];
    servers
        .into_iter()
        .map(|place| {
            let server = server(&place);
            let (place, local) = match place {
                Place::Tcp(_) => (tcp(server.port().unwrap()), None),
                Place::Udp(_) => (udp(server.port().unwrap()), None),
                Place::UnixDatagram(_) => (place, Some(Place::UnixDatagram(own.clone()))),
                Place::Unix(_) => (place, None),
            };
            let options = Options { client: true, local, ..Options::default() };
            (server, PacketPipe::open(&place, &options).unwrap())
        })
        .collect()
}

#[test]
fn what_one_end_sends_the_other_receives_both_ways() {
    let seed = seed();
    let folder = tempfile::tempdir().unwrap();
    for (mut server, mut client) in ends(folder.path()) {
        assert!(client.is_connected() && !server.is_connected());
        for round in 0..50 {
            let sent = noise(1 + usize::from(noise(1, seed ^ round)[0]) * 8, seed.wrapping_add(round));
            until("the packet is taken", || client.send(&[&sent]).unwrap() == 1);
            assert_eq!(receive_len(&mut server, sent.len()), sent);
            until("the answer is taken", || server.send(&[&sent]).unwrap() == 1);
            assert_eq!(receive_len(&mut client, sent.len()), sent);
        }
        assert_eq!(server.statistics().sent, 50);
    }
}

#[test]
fn a_datagram_is_a_packet_and_its_end_is_cut_off() {
    let mut server = PacketPipe::open(&udp(0), &Options { snap_len: 100, ..Options::default() }).unwrap();
    let mut client = client(&udp(server.port().unwrap()));
    assert_eq!(client.send(&[b"one", &[7; 300], b""]).unwrap(), 3);
    let seen = receive_until(&mut server, |seen| seen.len() == 3);
    assert_eq!(seen, [b"one".to_vec(), vec![7; 100], vec![]]);
}

#[test]
fn a_server_talks_to_one_client_after_the_other() {
    let mut server = server(&tcp(0));
    let address = (LOCAL, server.port().unwrap());
    let mut first = TcpStream::connect(address).unwrap();
    let mut second = TcpStream::connect(address).unwrap();
    second.write_all(b"second").unwrap();
    first.write_all(b"first").unwrap();
    assert_eq!(receive_len(&mut server, 5), b"first");
    assert!(matches!(server.event(), Some(Event::Opened(_))));
    first.shutdown(Shutdown::Both).unwrap();
    assert_eq!(receive_len(&mut server, 6), b"second");
    assert!(matches!(server.event(), Some(Event::Closed(_))));
    server.send(&[b"hello"]).unwrap();
    let mut hello = [0; 5];
    second.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
}

#[test]
fn a_peer_that_does_not_read_stops_no_one_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deaf");
    let mut server = server(&Place::Unix(path.clone()));
    let mut deaf = UnixStream::connect(path).unwrap();
    deaf.write_all(b"x").unwrap();
    receive_len(&mut server, 1);
    let packet = noise(1500, seed());
    let mut taken = 0;
    while server.send(&[&packet]).unwrap() == 1 {
        taken += 1;
        assert!(taken < 1_000_000, "a peer that reads nothing takes all");
    }
    assert_eq!(server.send(&[&packet]).unwrap(), 0);
    let mut heard = vec![0; 1500];
    for _ in 0..taken {
        // Reading makes room for what waits; nobody else pushes it on.
        server.send(&[]).unwrap();
        deaf.read_exact(&mut heard[..750]).unwrap();
        server.send(&[]).unwrap();
        deaf.read_exact(&mut heard[750..]).unwrap();
        assert!(heard == packet);
    }
    until("there is room again", || server.send(&[&packet]).unwrap() == 1);
}

#[test]
fn a_flood_of_connections_is_survived() {
    let mut server = server(&tcp(0));
    let address = (LOCAL, server.port().unwrap());
    let mut denied = 0;
    for _ in 0..200 {
        let _peer = TcpStream::connect(address);
        assert_eq!(server.receive_from(1, &mut |_| false, &mut |_| ()), 0);
        while let Some(event) = server.event() {
            assert_eq!(event, Event::Denied(LOCAL));
            denied += 1;
        }
    }
    assert!(denied > 0 && !server.is_connected());
}

#[test]
fn a_datagram_of_a_host_that_is_not_let_in_is_left_out() {
    let allowed = Ipv4Addr::new(127, 0, 0, 2);
    let mut server = server(&udp(0));
    let to = (LOCAL, server.port().unwrap());
    let (bad, good) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.2:0").unwrap());
    bad.send_to(b"bad", to).unwrap();
    good.send_to(b"good", to).unwrap();
    bad.send_to(b"bad", to).unwrap();
    good.send_to(b"last", to).unwrap();
    let mut seen = Vec::new();
    until("packets come", || {
        server.receive_from(8, &mut |host| host == allowed, &mut |packet| seen.push(packet.bytes.to_vec()));
        seen.len() == 2
    });
    assert_eq!(seen, [b"good", b"last"]);
    assert_eq!(server.send(&[b"answer"]).unwrap(), 1);
    let mut answer = [0; 8];
    assert_eq!(good.recv(&mut answer).unwrap(), 6);
}

#[test]
fn a_packet_goes_to_the_host_that_it_names() {
    let receiver = UdpSocket::bind("127.0.0.3:0").unwrap();
    let place = Place::Udp(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, receiver.local_addr().unwrap().port()));
    let mut pipe = client(&place);
    assert!(pipe.send_to(Ipv4Addr::new(127, 0, 0, 3), b"named").unwrap());
    let mut bytes = [0; 8];
    assert_eq!(receiver.recv(&mut bytes).unwrap(), 5);
}

#[test]
fn a_client_without_a_server_is_an_error() {
    let free = TcpStream::connect((LOCAL, 1)).is_err();
    assert!(free, "a server at port 1");
    let options = Options { client: true, ..Options::default() };
    let error = PacketPipe::open(&tcp(1), &options).unwrap_err();
    assert_eq!(error.line(), "TCP 127.0.0.1:1: connect: Connection refused (os error 111)");
    let missing = Place::Unix("/nowhere/at/all".into());
    assert_eq!(PacketPipe::open(&missing, &options).unwrap_err().number(), libc::ENOENT);
    let long = Place::Unix("x".repeat(108).into());
    assert_eq!(PacketPipe::open(&long, &options).unwrap_err().kind(), Kind::Missing);
}

#[test]
fn the_file_of_a_server_that_was_killed_is_taken_over_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    for datagrams in [false, true] {
        let path = folder.path().join(if datagrams { "datagrams" } else { "streams" });
        let place = if datagrams { Place::UnixDatagram(path.clone()) } else { Place::Unix(path.clone()) };
        if datagrams {
            drop(UnixDatagram::bind(&path).unwrap());
        } else {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        }
        assert!(path.exists());
        let server = server(&place);
        let error = PacketPipe::open(&place, &Options::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{}", error.line());
        assert!(path.exists());
        drop(server);
        assert!(!path.exists());
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert_eq!(PacketPipe::open(&Place::Unix(file.clone()), &Options::default()).unwrap_err().kind(), Kind::Busy);
    assert!(file.exists());
}

#[test]
fn a_client_comes_from_where_it_is_told_to() {
    let mut server = server(&tcp(0));
    let port = TcpStream::connect((LOCAL, server.port().unwrap())).unwrap().local_addr().unwrap().port();
    receive_until(&mut server, |_| true);
    let local = Some(Place::Tcp(SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), port)));
    let options = Options { client: true, local, ..Options::default() };
    let client = PacketPipe::open(&tcp(server.port().unwrap()), &options).unwrap();
    until("the client is there", || {
        server.receive(1, &mut |_| ()).unwrap();
        std::iter::from_fn(|| server.event()).any(|event| event == Event::Opened(format!("127.0.0.9:{port}")))
    });
    drop(client);
}
