use super::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;

#[derive(Debug, Clone)]
enum Step {
    Push(Vec<u8>),
    Put(Vec<u8>),
    Pull(usize),
    Take(usize),
    PushBack(usize),
    Write(usize, u8),
    Shift(isize),
    Own,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200).prop_map(Step::Push),
        prop::collection::vec(any::<u8>(), 0..2500).prop_map(Step::Put),
        (0..300usize).prop_map(Step::Pull),
        (0..300usize).prop_map(Step::Take),
        (0..300usize).prop_map(Step::PushBack),
        (any::<usize>(), any::<u8>()).prop_map(|(at, value)| Step::Write(at, value)),
        (-300..300isize).prop_map(Step::Shift),
        Just(Step::Own),
    ]
}

/// What a packet has to have: its data, and what was pulled before it.
#[derive(Debug, Clone, Default)]
struct Oracle {
    pulled: Vec<u8>,
    data: Vec<u8>,
}

impl Oracle {
    fn apply(&mut self, step: &Step) {
        let data = &mut self.data;
        match step {
            Step::Push(bytes) => {
                self.pulled.truncate(self.pulled.len().saturating_sub(bytes.len()));
                data.splice(0..0, bytes.iter().copied());
            }
            Step::Put(bytes) => data.extend(bytes),
            Step::Pull(n) => self.pulled.extend(data.drain(..(*n).min(data.len()))),
            Step::Take(n) => data.truncate(data.len().saturating_sub(*n)),
            Step::PushBack(n) => {
                let back = self.pulled.split_off(self.pulled.len().saturating_sub(*n));
                let never = vec![0; n - back.len()];
                data.splice(0..0, never.into_iter().chain(back));
            }
            Step::Write(at, value) if !data.is_empty() => {
                let at = at % data.len();
                data[at] = *value;
            }
            Step::Write(..) | Step::Shift(_) | Step::Own => {}
        }
    }
}

fn apply(packet: &mut Packet, step: &Step) {
    match step {
        Step::Push(bytes) => packet.push(bytes.len())[..bytes.len()].copy_from_slice(bytes),
        Step::Put(bytes) => {
            let len = packet.len();
            packet.put(bytes.len())[len..].copy_from_slice(bytes);
        }
        Step::Pull(n) => packet.pull(*n),
        Step::Take(n) => packet.take(*n),
        Step::PushBack(n) => packet.push_back_pulled(*n),
        Step::Write(at, value) if !packet.is_empty() => {
            let at = at % packet.len();
            packet.bytes_mut()[at] = *value;
        }
        Step::Write(..) => {}
        Step::Shift(delta) => packet.shift(*delta),
        Step::Own => packet.own(),
    }
}

/// Memory that is used again shows nothing of the packet that was there; a thread of its own has none yet.
#[test]
fn a_new_packet_has_nothing_of_one_that_is_gone() {
    let check = || {
        for round in 0..4 {
            let mut batch: Vec<_> = (0..5).map(|n| Packet::new(n, b"bytes", 3)).collect();
            for packet in &mut batch {
                assert!(packet.anno().iter().all(|byte| *byte == 0) && packet.timestamp().is_zero());
                assert_eq!((packet.kind(), packet.place()), (PacketType::Host, Place::default()));
                assert_eq!([packet.mac_offset(), packet.network_offset(), packet.transport_offset()], [None; 3]);
                assert!(!packet.is_shared() && packet.bytes() == b"bytes");
                packet.anno_mut().fill(0xee);
                packet.set_timestamp(Timestamp::new(5, 5));
                packet.set_kind(PacketType::Multicast);
                packet.set_place(Place { at: 7, bits: 9 });
                packet.set_mac_header(0);
                packet.set_network_header(1, 2);
            }
            let clones: Vec<_> = batch.clone();
            if round % 2 == 0 {
                release(&mut batch);
            }
            assert!(clones.iter().all(|clone| clone.bytes() == b"bytes" && clone.is_shared() == (round % 2 == 1)));
            drop(batch);
            assert!(clones.iter().all(|clone| !clone.is_shared() && clone.anno()[0] == 0xee));
        }
    };
    std::thread::spawn(check).join().unwrap();
}

proptest! {
    /// Clones share bytes until one of them writes, and none sees what another writes. What is put back before the data is
    /// what was pulled, and zero where nothing was: memory that was used before shows nothing of that.
    #[test]
    fn clones_are_packets_of_their_own(
        data in prop::collection::vec(any::<u8>(), 0..3000),
        steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), step()), 1..40),
    ) {
        let mut packets = vec![(Packet::from_slice(&data), Oracle { pulled: Vec::new(), data })];
        for (which, cloned, step) in steps {
            let which = which.index(packets.len());
            if cloned {
                let (packet, oracle) = &packets[which];
                packets.push((packet.clone(), oracle.clone()));
            }
            let (packet, oracle) = &mut packets[which];
            apply(packet, &step);
            oracle.apply(&step);
            for (packet, oracle) in &packets {
                prop_assert_eq!(packet.bytes(), &oracle.data[..]);
            }
        }
    }
}

#[test]
fn headers_stay_where_they_are_while_data_moves() {
    let data: Vec<u8> = (0..60).collect();
    let mut packet = Packet::new(2, &data, 0);
    packet.set_mac_header(0);
    packet.set_network_header(14, 20);
    packet.pull(14);
    let clone = packet.clone();
    packet.push(100);
    packet.pull(100);
    packet.shift(1);
    for packet in [packet, clone] {
        assert_eq!(packet.network_header().unwrap()[0], 14);
        assert_eq!(packet.transport_header().unwrap()[0], 34);
        assert_eq!(packet.network_header_len(), 20);
        assert_eq!(packet.mac_header().unwrap(), data);
        assert_eq!((packet.mac_offset(), packet.network_offset()), (Some(-14), Some(0)));
    }
}

/// A header may lie in what was pulled, and nowhere else before the data.
#[test]
fn what_was_never_in_a_packet_is_no_header() {
    let mut packet = Packet::from_slice(b"0123456789");
    packet.pull(4);
    for (offset, expected) in [(-4, Some(&b"0123456789"[..])), (-5, None), (6, Some(b"")), (-100, None)] {
        packet.set_mac_header(offset);
        assert_eq!(packet.mac_header(), expected, "{offset}");
    }
}

#[test]
fn annotations_lie_where_their_numbers_say() {
    let mut packet = Packet::from_slice(&[1]);
    packet.set_dst_ip(Ipv4Addr::new(1, 2, 3, 4));
    packet.set_anno_u8(anno::PAINT, 7);
    packet.set_anno_u32(anno::AGGREGATE, 0x0102_0304);
    let clone = packet.clone();
    packet.clear_annotations();
    assert_eq!(packet.anno(), &[0; ANNO_BYTES]);
    assert_eq!(&clone.anno()[..4], [1, 2, 3, 4]);
    assert_eq!((clone.anno_u8(16), clone.anno_u32(20)), (7, 0x0102_0304));
}

#[test]
fn bytes_go_back_to_the_pool_of_the_thread_that_lets_go_of_them() {
    let packet = Packet::from_slice(&[5; 100]);
    let clone = packet.clone();
    std::thread::spawn(move || assert_eq!(clone.bytes(), [5; 100])).join().unwrap();
    assert!(!packet.is_shared());
}
