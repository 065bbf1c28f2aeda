//! EtherSwitch: a switch for Ethernet frames that learns where hosts are.
//!
//! `EtherSwitch([TIMEOUT])`: two or more inputs and as many outputs, all push; those of one number belong to one network. A frame
//! with source address A at input I means that A is behind output I. A frame for an address that was heard of goes to its output,
//! or nowhere if that is where it came from; others go to all outputs but that one. After TIMEOUT (300 seconds; 0: learn nothing)
//! without a frame of its own a host is forgotten. Time is the packets' timestamps.
//!
//! Handlers: `table` (an address and an output in each line), `timeout` (r/w).
//!
//! Differs from Click: frames that end within their addresses are dropped. The table has at most 65536 addresses; a full one
//! loses those that are over their time, and else learns nothing new. It is printed in the order of addresses.

use crate::args::{Args, Failed, Interval};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::EtherAddress;
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::collections::HashMap;
use std::fmt::Write;

/// How many addresses are known at most: sources are for everybody to invent.
const ADDRESSES_MAX: usize = 1 << 16;

struct Port {
    port: usize,
    heard: Timestamp,
}

/// The element.
pub(super) struct EtherSwitch {
    timeout: Interval,
    table: HashMap<EtherAddress, Port>,
}

impl Default for EtherSwitch {
    fn default() -> Self {
        Self { timeout: Interval(Timestamp::new(300, 0)), table: HashMap::new() }
    }
}

impl EtherSwitch {
    fn learn(&mut self, address: EtherAddress, port: usize, now: Timestamp) {
        let timeout = self.timeout.0;
        if self.table.len() >= ADDRESSES_MAX && !self.table.contains_key(&address) {
            self.table.retain(|_, known| now < known.heard + timeout);
            if self.table.len() >= ADDRESSES_MAX {
                return;
            }
        }
        self.table.insert(address, Port { port, heard: now });
    }

    /// The output of an address, if it is known.
    fn find(&mut self, address: EtherAddress, now: Timestamp) -> Option<usize> {
        if address.is_group() {
            return None;
        }
        let known = self.table.get(&address)?;
        if now < known.heard + self.timeout.0 {
            return Some(known.port);
        }
        self.table.remove(&address);
        None
    }

    fn text(&self) -> String {
        let mut lines: Vec<_> = self.table.iter().map(|(address, known)| (*address, known.port)).collect();
        lines.sort_unstable();
        lines.iter().fold(String::new(), |mut text, (address, port)| {
            let _ = writeln!(text, "{address} {port}");
            text
        })
    }
}

/// A time of whole seconds.
fn seconds(interval: Interval) -> Interval {
    Interval(Timestamp::new(interval.0.secs(), 0))
}

impl Element for EtherSwitch {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.key("TIMEOUT", &mut self.timeout).finish()?;
        self.timeout = seconds(self.timeout);
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, from: usize, packet: Packet) {
        let Some((destination, rest)) = packet.bytes().split_first_chunk() else { return };
        let Some(source) = rest.first_chunk() else { return };
        let (destination, source) = (EtherAddress(*destination), EtherAddress(*source));
        let mut to = None;
        if !self.timeout.0.is_zero() {
            self.learn(source, from, packet.timestamp());
            to = self.find(destination, packet.timestamp());
        }
        match to {
            Some(to) if to == from => {}
            Some(to) => cx.emit(to, packet),
            None => {
                for port in (0..cx.outputs()).rev().filter(|&port| port != from) {
                    cx.emit(port, packet.clone());
                }
            }
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("table", |switch: &mut Self, _| switch.text());
        handlers.read("timeout", |switch: &mut Self, _| switch.timeout.0.secs());
        handlers.write("timeout", |switch: &mut Self, cx, text| {
            let timeout = cx.parse(text).map_err(|_| "expected timeout (integer)")?;
            switch.timeout = seconds(timeout);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, noise};
    use crate::{Packet, Timestamp};

    const CONFIG: &str = "a :: Give -> s :: EtherSwitch(TIMEOUT 10); b :: Give -> [1]s; c :: Give -> [2]s;\n\
                          s[0] -> a2 :: Take; s[1] -> b2 :: Take; s[2] -> c2 :: Take";

    fn frame(destination: u8, source: u8, at: i64) -> Packet {
        let mut packet = Packet::from_slice(&[[destination; 6], [source; 6]].concat());
        packet.set_timestamp(Timestamp::new(at, 0));
        packet
    }

    fn counts(harness: &mut Harness) -> [usize; 3] {
        ["a2", "b2", "c2"].map(|sink| harness.take(sink).len())
    }

    #[test]
    fn frames_go_where_their_destination_was_heard() {
        let mut harness = Harness::new(CONFIG);
        harness.give("a", [frame(4, 2, 1)]);
        assert_eq!(counts(&mut harness), [0, 1, 1]);
        harness.give("b", [frame(2, 4, 2)]);
        assert_eq!(counts(&mut harness), [1, 0, 0]);
        harness.give("a", [frame(4, 2, 3), frame(0xff, 2, 3), frame(2, 2, 3)]);
        assert_eq!(counts(&mut harness), [0, 2, 1]);
        assert_eq!(harness.read("s.table"), "02-02-02-02-02-02 0\n04-04-04-04-04-04 1\n");
        // The host moves, and is forgotten in the end.
        harness.give("c", [frame(2, 4, 4)]);
        harness.give("a", [frame(4, 2, 13)]);
        assert_eq!(counts(&mut harness), [1, 0, 1]);
        harness.give("a", [frame(4, 2, 14)]);
        assert_eq!(counts(&mut harness), [0, 1, 1]);
        assert_eq!(harness.read("s.table"), "02-02-02-02-02-02 0\n");
    }

    #[test]
    fn without_a_timeout_nothing_is_learned() {
        let mut harness = Harness::new(CONFIG);
        assert_eq!(harness.read("s.timeout"), "10");
        harness.write("s.timeout", "0").unwrap();
        harness.give("a", [frame(4, 2, 1)]);
        harness.give("b", [frame(2, 4, 1)]);
        assert_eq!((counts(&mut harness), harness.read("s.table")), ([1, 1, 2], String::new()));
        assert_eq!(harness.write("s.timeout", "x").unwrap_err(), "expected timeout (integer)");
    }

    #[test]
    fn a_flood_of_sources_is_bounded() {
        let mut switch = super::EtherSwitch::default();
        for number in 0..super::ADDRESSES_MAX as u32 + 10 {
            let [a, b, c, d] = number.to_be_bytes();
            switch.learn(crate::headers::EtherAddress([2, 0, a, b, c, d]), 0, Timestamp::new(1, 0));
        }
        assert_eq!(switch.table.len(), super::ADDRESSES_MAX);
        switch.learn(crate::headers::EtherAddress([4; 6]), 1, Timestamp::new(400, 0));
        assert_eq!(switch.table.len(), 1);
    }

    #[test]
    fn any_frames_may_come() {
        let mut harness = Harness::new(CONFIG);
        for source in ["a", "b", "c", "a"] {
            harness.give(source, noise(100));
        }
        counts(&mut harness);
    }

    #[test]
    fn there_are_as_many_outputs_as_inputs() {
        assert!(Harness::errors("Give -> s :: EtherSwitch -> Take; Give -> [1]s").contains("EtherSwitch"));
        let told = Harness::errors("Give -> s :: EtherSwitch(TIMEOUT x) -> Take; Give -> [1]s[1] -> Take");
        assert!(told.contains("TIMEOUT: type mismatch"), "{told}");
    }
}
