//! Packets and captures that say wrong things of themselves. The fuzzer of packets begins with them, too.

use crate::wire::{Header, Ip, arp, frame, icmp, ip, sum_header, tcp, udp};

const A: Ip = [10, 0, 0, 2];
const B: Ip = [10, 0, 1, 2];

/// A packet from A to B.
fn of(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ip(&Header { id: 7, ttl: 64, protocol, ..Header::default() }, A, B, payload)
}

/// A packet of each of the usual kinds, in order.
fn good() -> [Vec<u8>; 4] {
    [
        of(17, &udp(A, B, [1000, 53], b"question")),
        of(6, &tcp(A, B, [1000, 80], 2, b"GET")),
        of(1, &icmp(8, 0, [0, 1, 0, 1], b"ping")),
        of(1, &icmp(11, 0, [0; 4], &ip(&Header { ttl: 1, protocol: 17, ..Header::default() }, B, A, &[0; 8]))),
    ]
}

/// A packet with other bytes at a place of its header, and a checksum that is right again.
fn with(packet: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    if (20..=packet.len()).contains(&(usize::from(packet[0] & 15) * 4)) {
        sum_header(&mut packet);
    }
    packet
}

/// Packets that end anywhere.
fn truncated() -> Vec<Vec<u8>> {
    good().iter().flat_map(|packet| (0..packet.len()).map(|len| packet[..len].to_vec())).collect()
}

/// Lengths that are not those of the packet: of IP and its header, UDP, TCP.
fn lying() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for packet in good() {
        let len = packet.len() as u16;
        for lie in [0, 1, 19, 20, 21, 27, 28, len - 1, len + 1, 0x7fff, 0xffff] {
            all.push(with(&packet, 2, &lie.to_be_bytes()));
            all.push(with(&packet, 24, &lie.to_be_bytes()));
        }
        all.extend((0..=255).step_by(3).map(|first| with(&packet, 0, &[first])));
        if packet.len() > 32 {
            all.extend((0..16).map(|words| with(&packet, 32, &[words << 4])));
        }
        all.extend((0..4).map(|ecn| with(&packet, 1, &[0xfc | ecn])));
        all.push([&packet[..], &[0xee; 30]].concat());
        all.push(packet);
    }
    all
}

/// IP options that point at themselves, outside, and nowhere.
fn options() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        vec![vec![1; 40], vec![0; 40], vec![7], vec![68], vec![131], vec![1, 1, 7], vec![1, 0, 7, 3]];
    for kind in [7, 68, 131, 137, 148, 130, 255] {
        for len in [0, 1, 2, 3, 7, 11, 12, 40, 255] {
            for pointer in [0, 1, 4, 5, 9, 37, 255] {
                let mut option = vec![kind, len, pointer, 0xf1, 10, 0, 0, 1, 10, 0, 0, 9];
                option.resize(usize::from(len).clamp(3, 40), 0);
                all.push(option);
            }
        }
    }
    all.push([&[68, 8, 5, 1][..], &[0; 4], &[7, 7, 4, 0, 0, 0, 0, 131, 7, 4, 10, 0, 0, 1]].concat());
    let header = |options| Header { ttl: 9, protocol: 17, options, ..Header::default() };
    all.into_iter().map(|options| ip(&header(options), A, B, &udp(A, B, [1, 2], b"optional"))).collect()
}

/// Fragments that overlap, contradict each other, have no end, or one beyond the longest packet.
fn fragments() -> Vec<Vec<u8>> {
    let part = |id, at: u16, more: bool, len: usize, byte: u8| {
        let fragment = at / 8 + if more { 0x2000 } else { 0 };
        ip(&Header { id, fragment, ttl: 64, protocol: 17, ..Header::default() }, A, B, &vec![byte; len])
    };
    let mut all = vec![
        // Each byte twice, the second time another one.
        part(1, 0, true, 24, 1),
        part(1, 16, true, 24, 2),
        part(1, 32, false, 16, 3),
        // A second one within the first.
        part(2, 0, true, 80, 1),
        part(2, 8, false, 8, 2),
        // Two ends.
        part(3, 40, false, 8, 1),
        part(3, 80, false, 8, 2),
        part(3, 0, true, 80, 3),
        // Beyond 65,535 bytes.
        part(4, 65_528, false, 100, 1),
        part(4, 65_528, true, 8, 1),
        part(4, 0, true, 1480, 1),
        // Nothing in it; a length that is no multiple of eight.
        part(5, 0, true, 0, 1),
        part(5, 8, false, 0, 1),
        part(6, 0, true, 13, 1),
        part(6, 8, false, 5, 2),
        // Too little for the header that follows.
        part(7, 0, true, 8, 1),
        part(7, 8, false, 400, 1),
    ];
    all.extend((0..200).map(|at| part(8, at * 16, true, 8, at as u8)));
    all.extend((0..200).map(|id| part(1000 + id, 0, true, 8, 1)));
    all
}

/// ICMP errors about packets that are no packets, and about errors.
fn errors() -> Vec<Vec<u8>> {
    let about = |kind, quoted: &[u8]| of(1, &icmp(kind, 4, [0, 0, 0, 5], quoted));
    let mut all = Vec::new();
    for quoted in good() {
        for kind in [3, 4, 5, 11, 12, 13] {
            all.push(about(kind, &quoted));
        }
        all.extend((0..quoted.len()).step_by(3).map(|len| about(3, &quoted[..len])));
        all.extend([0, 0x40, 0x4f, 0x65, 0xff].map(|first| about(11, &with(&quoted, 0, &[first]))));
        let nested = (0..20).fold(quoted, |inner, _| about(3, &inner));
        all.push(nested);
    }
    all
}

/// Commands of FTP whose addresses are none.
fn commands() -> Vec<Vec<u8>> {
    let lines = [
        "PORT 10,0,0,2,4,1\r\n",
        "PORT 10,0,0,2,4\r\n",
        "PORT 10,0,0,2,4,1,1\r\n",
        "PORT 999,0,0,2,4,1\r\n",
        "PORT 10,0,0,2,99999999999999999999,1\r\n",
        "PORT ,,,,,\r\n",
        "PORT 10,0,0,2,4,1",
        "PORT ",
        "port 1,2,3,4,5,6\n",
        "\r\n\r\n",
    ];
    lines.map(|line| of(6, &tcp(A, B, [1025, 21], 24, line.as_bytes()))).to_vec()
}

/// Addresses that nobody has.
fn addresses() -> Vec<Vec<u8>> {
    let odd = [[0; 4], [255; 4], [127, 0, 0, 1], [224, 0, 0, 1], [10, 0, 0, 255]];
    let good = good();
    good.iter().flat_map(|packet| odd.iter().flat_map(|ip| [12, 16].map(|at| with(packet, at, ip)))).collect()
}

/// IP packets.
pub(crate) fn packets() -> Vec<Vec<u8>> {
    let mut all = [truncated(), lying(), options(), fragments(), errors(), commands(), addresses()].concat();
    all.push(vec![0x45; 70_000]);
    all.push(of(17, &udp(A, B, [1, 2], &vec![5; 65_000])));
    all
}

/// Frames: those packets, VLAN tags on top of each other, and ARP.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let (to, from) = ([2, 0, 0, 0, 0, 1], [4, 0, 10, 0, 0, 2]);
    let mut all: Vec<_> = packets().iter().map(|packet| frame(to, from, 0x800, packet)).collect();
    for (tags, packet) in good().iter().enumerate() {
        let tag = |kind: u16, inner: Vec<u8>| [&[0x0f, 0xff][..], &kind.to_be_bytes(), &inner].concat();
        let mut inner = tag(0x800, packet.clone());
        for n in 0..tags * 3 {
            inner = tag([0x8100, 0x88a8, 0x9100][n % 3], inner);
        }
        let tagged = frame(to, from, 0x8100, &inner);
        all.extend((0..tagged.len()).map(|len| tagged[..len].to_vec()));
    }
    let message = arp(1, (from, A), ([0; 6], B));
    all.extend((0..=message.len()).map(|len| frame([0xff; 6], from, 0x806, &message[..len])));
    for (at, byte) in [(0, 9), (1, 2), (2, 9), (4, 255), (5, 0), (5, 16), (6, 1), (7, 0), (7, 9)] {
        let mut wrong = message.clone();
        wrong[at] = byte;
        all.push(frame(to, from, 0x806, &wrong));
    }
    all
}

/// A capture with these records: what is captured, and both lengths as they are written there.
fn pcap(magic: [u8; 4], snaplen: u32, records: &[(&[u8], u32, u32)]) -> Vec<u8> {
    let mut file = magic.to_vec();
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend([snaplen, 1].map(u32::to_le_bytes).concat());
    for (data, len, wire_len) in records {
        file.extend([5, 2_000_000_000, *len, *wire_len].map(u32::to_le_bytes).concat());
        file.extend(*data);
    }
    file
}

/// A block of a pcapng file, with its length as it is written there.
fn block(kind: u32, body: &[u8], len: u32) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
}

/// Captures: some that end too early, with lengths that lie, and of no format.
pub(crate) fn captures() -> Vec<Vec<u8>> {
    const MAGIC: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];
    let packet = &frame([2; 6], [4; 6], 0x800, &good()[0])[..];
    let len = packet.len() as u32;
    let whole = pcap(MAGIC, 65_535, &[(packet, len, len), (packet, len, 1500)]);
    let mut all: Vec<_> = (0..=whole.len()).map(|end| whole[..end].to_vec()).collect();
    for lie in [0, 1, len - 1, len + 1, 65_536, 262_144, 262_145, 0x7fff_ffff, 0xffff_ffff] {
        for snaplen in [0, 1, 65_535, 0xffff_ffff] {
            all.push(pcap(MAGIC, snaplen, &[(packet, lie, len), (packet, len, len)]));
            all.push(pcap(MAGIC, snaplen, &[(packet, len, lie), (packet, len, len)]));
        }
    }
    for magic in [
        [0; 4],
        [0xff; 4],
        [0xa1, 0xb2, 0xc3, 0xd4],
        [0x4d, 0x3c, 0xb2, 0xa1],
        [0x34, 0xcd, 0xb2, 0xa1],
        *b"\x1f\x8b\x08\0",
    ] {
        all.push(pcap(magic, 65_535, &[(packet, len, len), (&[], 0, 0), (packet, len, len)]));
    }
    let section = block(0x0a0d_0d0a, &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], 28);
    let interface = block(1, &[1, 0, 0, 0, 0, 0, 1, 0], 20);
    let times = |interface: u32, len: u32| [interface, 0, 1, len, len].map(u32::to_le_bytes).concat();
    let body = [times(0, 12), packet[..12].to_vec()].concat();
    let good = [section.clone(), interface.clone(), block(6, &body, 44)].concat();
    all.extend((0..good.len()).map(|end| good[..end].to_vec()));
    for lie in [0, 4, 11, 12, 13, 40, 43, 45, 48, 0x7fff_fffc, 0xffff_ffff] {
        all.push([section.clone(), interface.clone(), block(6, &body, lie), block(6, &body, 44)].concat());
        all.push([section.clone(), block(1, &[1, 0, 0, 0, 0, 0, 1, 0], lie), block(6, &body, 44)].concat());
        all.push([block(0x0a0d_0d0a, &section[8..24], lie), interface.clone(), block(6, &body, 44)].concat());
        let captured = [times(0, lie), packet[..12].to_vec()].concat();
        all.push([section.clone(), interface.clone(), block(6, &captured, 44)].concat());
    }
    all.push([section.clone(), block(6, &body, 44)].concat());
    all.push([section, interface, block(6, &[times(9, 12), packet[..12].to_vec()].concat(), 44)].concat());
    all
}
