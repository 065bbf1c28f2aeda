//! Devices that are changed while they are in use.

use crate::nic::{SENDERS, WAYS, Way, frame, receive, sendall};
use crate::world::{Namespace, pair};
use bifolio_net::nic::Kind;
use bifolio_testing::until;

const ALL: [u8; 6] = [0xff; 6];

/// Gives both ends of a pair an MTU.
fn set_mtu(left: &Namespace, right: &Namespace, mtu: u32) {
    left.ip(&format!("link set dev a mtu {mtu}"));
    right.ip(&format!("link set dev b mtu {mtu}"));
}

#[test]
fn a_device_sends_what_its_mtu_allows_now() {
    for way in SENDERS {
        let Some([left, right]) = pair() else { return };
        let (mut from, mut to) = (way.open(&left, "a"), Way::Plain.open(&right, "b"));
        let long = frame(ALL, 1600, 1);
        assert_eq!(from.send(&[&long]).unwrap_err().kind(), Kind::Refused, "{way:?}");
        set_mtu(&left, &right, 1700);
        sendall(&mut *from, std::slice::from_ref(&long));
        assert_eq!(receive(&mut *to, 1)[0].bytes, long, "{way:?}");
        if !way.is_xdp() {
            set_mtu(&left, &right, 1000);
            assert_eq!(from.send(&[&long]).unwrap_err().kind(), Kind::Refused, "{way:?}");
        }
        let short = frame(ALL, 900, 1);
        sendall(&mut *from, std::slice::from_ref(&short));
        assert_eq!(receive(&mut *to, 1)[0].bytes, short, "{way:?}");
    }
}

#[test]
fn a_tag_of_a_vlan_does_not_count_for_the_mtu() {
    for way in SENDERS {
        let Some([left, right]) = pair() else { return };
        let (mut from, mut to) = (way.open(&left, "a"), Way::Plain.open(&right, "b"));
        // Every eighth number makes a frame with a tag.
        let (tagged, plain) = (frame(ALL, 1518, 8), frame(ALL, 1518, 1));
        assert_eq!(from.send(&[&plain]).unwrap_err().kind(), Kind::Refused, "{way:?}");
        sendall(&mut *from, std::slice::from_ref(&tagged));
        assert_eq!(receive(&mut *to, 1)[0].bytes, tagged, "{way:?}");
    }
}

#[test]
fn longer_packets_come_when_the_mtu_is_raised() {
    for way in WAYS {
        let Some([left, right]) = pair() else { return };
        let mut to = way.open(&right, "b");
        set_mtu(&left, &right, 1700);
        let long = frame(ALL, 1600, 1);
        sendall(&mut *Way::Plain.open(&left, "a"), std::slice::from_ref(&long));
        assert_eq!(receive(&mut *to, 1)[0].bytes, long, "{way:?}");
    }
}

#[test]
fn a_packet_that_fits_into_no_frame_is_counted_and_the_next_comes() {
    for way in [Way::Driver, Way::Stack] {
        let Some([left, right]) = pair() else { return };
        let mut to = way.open(&right, "b");
        set_mtu(&left, &right, 2000);
        let (long, short) = (frame(ALL, 1900, 1), frame(ALL, 100, 1));
        sendall(&mut *Way::Plain.open(&left, "a"), &[long, short.clone()]);
        assert_eq!(receive(&mut *to, 1)[0].bytes, short, "{way:?}");
        assert_eq!(to.statistics().dropped, 1, "{way:?}");
    }
}

#[test]
fn a_sender_goes_on_when_its_device_was_down() {
    for way in SENDERS {
        let Some([left, right]) = pair() else { return };
        let (mut from, mut to) = (way.open(&left, "a"), Way::Plain.open(&right, "b"));
        left.ip("link set dev a down");
        let (early, late) = (frame(ALL, 60, 1), frame(ALL, 99, 1));
        for _ in 0..3 {
            if let Err(error) = from.send(&[&early]) {
                assert_eq!((error.kind(), error.number()), (Kind::System, libc::ENETDOWN), "{way:?}: {}", error.line());
            }
        }
        left.ip("link set dev a up");
        let mut last = 0;
        until("a packet comes through", || {
            // The kernel throws packets away until it has noticed that the device has a carrier again.
            from.send(&[&late]).unwrap();
            to.receive(64, &mut |packet| last = packet.bytes.len()).unwrap();
            last == late.len()
        });
    }
}
