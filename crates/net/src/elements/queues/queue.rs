//! Queue: stores packets in first-in-first-out order.
//!
//! `Queue([CAPACITY])`: push input, pull output. CAPACITY is 1,000 packets unless said otherwise; a packet that comes while
//! it is full is dropped and counted, and the first such drop is told.
//!
//! Handlers: `length`, `highwater_length`, `capacity` (r/w), `drops`, `reset_counts`, `reset`.

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;
use std::collections::VecDeque;

/// The element.
pub(super) struct Queue {
    packets: VecDeque<Packet>,
    capacity: usize,
    highwater: usize,
    drops: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { packets: VecDeque::new(), capacity: 1000, highwater: 0, drops: 0 }
    }
}

impl Element for Queue {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("CAPACITY", &mut self.capacity).finish()
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        if self.packets.len() >= self.capacity {
            if self.drops == 0 {
                cx.say(format_args!("{}: overflow", cx.declaration()));
            }
            self.drops += 1;
            return;
        }
        self.packets.push_back(packet);
        self.highwater = self.highwater.max(self.packets.len());
        cx.note(true);
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let packet = self.packets.pop_front();
        if packet.is_none() {
            cx.note(false);
        }
        packet
    }

    fn room(&self) -> Option<usize> {
        Some(self.capacity.saturating_sub(self.packets.len()))
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("length", |queue: &mut Self, _| queue.packets.len());
        handlers.read("highwater_length", |queue: &mut Self, _| queue.highwater);
        handlers.data("capacity", |queue: &mut Self| &mut queue.capacity);
        handlers.read("drops", |queue: &mut Self, _| queue.drops);
        handlers
            .button("reset_counts", |queue: &mut Self, _| (queue.drops, queue.highwater) = (0, queue.packets.len()));
        handlers.button("reset", |queue: &mut Self, _| queue.packets.clear());
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    #[test]
    fn packets_leave_in_the_order_in_which_they_came() {
        let mut harness = Harness::new("give :: Give -> q :: Queue(3) -> take :: TakePull(MANUAL true)");
        harness.give("give", (0..5).map(|n| Packet::from_slice(&[n])));
        assert_eq!((harness.read("q.length"), harness.read("q.drops")), ("3".to_owned(), "2".to_owned()));
        assert_eq!(harness.said(), ["q :: Queue: overflow"]);
        let pulled: Vec<_> = (0..4).map(|_| harness.pull("take").map(|packet| packet.bytes()[0])).collect();
        assert_eq!(pulled, [Some(0), Some(1), Some(2), None]);
        harness.write("q.capacity", "1").unwrap();
        harness.give("give", (5..7).map(|n| Packet::from_slice(&[n])));
        assert_eq!((harness.read("q.highwater_length"), harness.read("q.drops")), ("3".to_owned(), "3".to_owned()));
        harness.write("q.reset", "").unwrap();
        assert_eq!(harness.read("q.length"), "0");
    }

    #[test]
    fn a_capacity_is_a_number() {
        let told = Harness::errors("Give -> q :: Queue(-1) -> TakePull");
        assert!(told.contains("config:1:   CAPACITY: must be >= 0"), "{told}");
    }
}
