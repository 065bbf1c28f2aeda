//! Queue and its kin: they store packets.
//!
//! `Queue([CAPACITY])`, and likewise `SimpleQueue`, `NotifierQueue`, `FullNoteQueue`, `QuickNoteQueue`, `FrontDropQueue` and
//! `MixedQueue`: push input (`MixedQueue`: two), pull output, and a push output 1 for what is dropped, if it is connected.
//!
//! - CAPACITY: how many packets it holds, 0 or more; 1,000 unless said otherwise.
//!
//! Packets leave in the order in which they came. One that comes while the queue is full is dropped and counted, and the
//! first such drop is told. `FrontDropQueue` drops the packet that would have left next instead. What comes to input 1 of a
//! `MixedQueue` leaves next, and where that one is full, the packet that would have left last is dropped.
//!
//! ```text
//!                   tells that it is empty   tells that it is full
//!   SimpleQueue     no                       no
//!   NotifierQueue   when a pull finds none   no                      MixedQueue, FrontDropQueue
//!   FullNoteQueue   when a pull finds none   yes                     Queue
//!   QuickNoteQueue  with its last packet     yes
//! ```
//!
//! In the place of another router, it takes the packets of any queue of its name, as many as it has room for.
//!
//! Handlers: `length`, `highwater_length` (the longest that it was), `capacity` (r/w: a new configuration; packets that have
//! no room any more are dropped, the youngest first, or for `FrontDropQueue` the oldest), `drops`, `reset_counts`, `reset`
//! (drops all packets, which go to output 1).
//!
//! Unlike Click's, a queue tells that it is empty at the first pull that finds nothing, not at the ninth: a task that sleeps
//! costs nothing here. Packets that go because of a new capacity are not counted, as in Click.

use crate::args::{Args, Failed};
use crate::element::{Batch, Element, downcast};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Log, Packet};
use std::collections::VecDeque;
use std::marker::PhantomData;

/// What one of the family does.
pub(super) trait Kind: Send + 'static {
    /// Whether it tells that it is full.
    const TELLS_FULL: bool = false;
    /// Whether it tells that it is empty as soon as it is.
    const IS_QUICK: bool = false;
    /// Whether it drops what would leave next.
    const DROPS_FRONT: bool = false;
}

/// Of `SimpleQueue`, `NotifierQueue` and `MixedQueue`.
pub(super) struct Plain;
impl Kind for Plain {}

/// Of `Queue` and `FullNoteQueue`.
pub(super) struct TellsFull;
impl Kind for TellsFull {
    const TELLS_FULL: bool = true;
}

/// Of `QuickNoteQueue`.
pub(super) struct Quick;
impl Kind for Quick {
    const TELLS_FULL: bool = true;
    const IS_QUICK: bool = true;
}

/// Of `FrontDropQueue`.
pub(super) struct DropsFront;
impl Kind for DropsFront {
    const DROPS_FRONT: bool = true;
}

/// The element.
pub(super) struct Queue<K> {
    packets: VecDeque<Packet>,
    capacity: usize,
    highwater: usize,
    drops: u64,
    kind: PhantomData<K>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { packets: VecDeque::new(), capacity: 1000, highwater: 0, drops: 0, kind: PhantomData }
    }
}

impl<K: Kind> Queue<K> {
    fn drop_one(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        if self.drops == 0 && self.capacity > 0 {
            cx.say(format_args!("{}: overflow", cx.declaration()));
        }
        self.drops += 1;
        cx.emit_checked(1, packet);
    }

    /// Tells what is to be told after a change.
    #[inline]
    fn tell(&self, cx: &mut Cx<'_>) {
        if !self.packets.is_empty() {
            cx.note(true);
        } else if K::IS_QUICK {
            cx.note(false);
        }
        if K::TELLS_FULL {
            cx.note_room(self.packets.len() < self.capacity);
        }
    }

    fn push_last(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        if self.packets.len() >= self.capacity {
            let oldest = if K::DROPS_FRONT { self.packets.pop_front() } else { None };
            let Some(oldest) = oldest else { return self.drop_one(cx, packet) };
            self.drop_one(cx, oldest);
        }
        self.packets.push_back(packet);
        self.highwater = self.highwater.max(self.packets.len());
    }

    fn push_next(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        if self.packets.len() >= self.capacity {
            let Some(youngest) = self.packets.pop_back() else { return self.drop_one(cx, packet) };
            self.drop_one(cx, youngest);
        }
        self.packets.push_front(packet);
        self.highwater = self.highwater.max(self.packets.len());
    }

    /// Drops what has no room.
    fn cut(&mut self) {
        if K::DROPS_FRONT {
            let over = self.packets.len().saturating_sub(self.capacity);
            self.packets.drain(..over);
        }
        self.packets.truncate(self.capacity);
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        while let Some(packet) = self.packets.pop_front() {
            cx.emit_checked(1, packet);
        }
        cx.note(false);
        self.tell(cx);
    }
}

/// The packets of any of the family.
fn packets_of(element: &mut dyn Element) -> Option<&mut VecDeque<Packet>> {
    fn of<K: Kind>(element: &mut dyn Element) -> Option<&mut VecDeque<Packet>> {
        downcast::<Queue<K>>(element).map(|queue| &mut queue.packets)
    }
    let all = [of::<Plain>, of::<TellsFull>, of::<Quick>, of::<DropsFront>];
    let which = all.iter().position(|of| of(element).is_some())?;
    all[which](element)
}

impl<K: Kind> Element for Queue<K> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut capacity = 1000u32;
        args.may("CAPACITY", &mut capacity).finish()?;
        self.capacity = capacity as usize;
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        if port == 0 {
            self.push_last(cx, packet);
        } else {
            self.push_next(cx, packet);
        }
        self.tell(cx);
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if port == 0 && batch.len() <= self.capacity.saturating_sub(self.packets.len()) {
            self.packets.extend(batch.drain(..));
            self.highwater = self.highwater.max(self.packets.len());
            return self.tell(cx);
        }
        cx.push_each(self, port, batch);
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let packet = self.packets.pop_front();
        if packet.is_none() {
            cx.note(false);
        } else if K::TELLS_FULL {
            self.tell(cx);
        }
        packet
    }

    fn pull_batch(&mut self, cx: &mut Cx<'_>, _: usize, most: usize, into: &mut Batch) {
        let count = most.min(self.packets.len());
        into.extend(self.packets.drain(..count));
        if count > 0 && K::TELLS_FULL {
            self.tell(cx);
        }
        if count < most {
            cx.note(false);
        }
    }

    fn room(&self) -> Option<usize> {
        Some(self.capacity.saturating_sub(self.packets.len()))
    }

    fn stored(&self) -> Option<usize> {
        Some(self.packets.len())
    }

    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, log: &mut Log) {
        let Some(packets) = packets_of(old) else { return };
        if !self.packets.is_empty() {
            log.error_here("already have packets enqueued, can't take state");
            return;
        }
        self.packets = std::mem::take(packets);
        let (length, capacity) = (self.packets.len(), self.capacity);
        if length > capacity {
            log.warning_here(format_args!("some packets lost (old length {length}, new capacity {capacity})"));
        }
        self.cut();
        self.highwater = self.packets.len();
        self.tell(cx);
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        self.cut();
        self.tell(cx);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("length", |queue: &mut Self, _| queue.packets.len());
        handlers.read("highwater_length", |queue: &mut Self, _| queue.highwater);
        handlers.keyword_write("capacity", 0, "CAPACITY");
        handlers.read("capacity", |queue: &mut Self, _| queue.capacity);
        handlers.read("drops", |queue: &mut Self, _| queue.drops);
        handlers
            .button("reset_counts", |queue: &mut Self, _| (queue.drops, queue.highwater) = (0, queue.packets.len()));
        handlers.button("reset", Self::reset);
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;
    use proptest::prelude::*;

    fn numbers(range: std::ops::Range<u8>) -> impl Iterator<Item = Packet> {
        range.map(|n| Packet::from_slice(&[n]))
    }

    fn pull(harness: &mut Harness, times: usize) -> Vec<Option<u8>> {
        (0..times).map(|_| harness.pull("take").map(|packet| packet.bytes()[0])).collect()
    }

    #[test]
    fn packets_leave_in_the_order_in_which_they_came() {
        for class in ["Queue", "SimpleQueue", "NotifierQueue", "FullNoteQueue", "QuickNoteQueue", "MixedQueue"] {
            let second = if class == "MixedQueue" { "give2 :: Give -> [1]q" } else { "" };
            let mut harness = Harness::new(&format!(
                "give :: Give -> q :: {class}(3) -> take :: TakePull(MANUAL true); {second}; q[1] -> over :: Take"
            ));
            harness.give("give", numbers(0..5));
            assert_eq!((harness.read("q.length"), harness.read("q.drops")), ("3".to_owned(), "2".to_owned()));
            assert_eq!(harness.said(), [format!("q :: {class}: overflow")]);
            assert_eq!(harness.take_bytes("over"), [[3], [4]]);
            assert_eq!(pull(&mut harness, 4), [Some(0), Some(1), Some(2), None]);
            harness.write("q.capacity", "1").unwrap();
            assert_eq!((harness.read("q.config"), harness.read("q.capacity")), ("1".to_owned(), "1".to_owned()));
            harness.give("give", numbers(5..7));
            assert_eq!((harness.read("q.highwater_length"), harness.read("q.drops")), ("3".to_owned(), "3".to_owned()));
            harness.write("q.reset_counts", "").unwrap();
            assert_eq!((harness.read("q.highwater_length"), harness.read("q.drops")), ("1".to_owned(), "0".to_owned()));
            harness.write("q.reset", "").unwrap();
            assert_eq!(
                (harness.read("q.length"), harness.take_bytes("over")),
                ("0".to_owned(), vec![vec![6], vec![5]])
            );
        }
    }

    #[test]
    fn a_full_queue_may_drop_what_would_leave_next() {
        let mut harness = Harness::new("give :: Give -> q :: FrontDropQueue(3) -> take :: TakePull(MANUAL true)");
        harness.give("give", numbers(0..5));
        assert_eq!(harness.read("q.drops"), "2");
        harness.write("q.capacity", "2").unwrap();
        assert_eq!(pull(&mut harness, 3), [Some(3), Some(4), None]);
        harness.write("q.capacity", "0").unwrap();
        harness.give("give", numbers(0..2));
        assert_eq!((pull(&mut harness, 1), harness.read("q.drops")), (vec![None], "4".to_owned()));
    }

    #[test]
    fn a_smaller_capacity_drops_the_youngest() {
        let mut harness = Harness::new("give :: Give -> q :: Queue -> take :: TakePull(MANUAL true)");
        harness.give("give", numbers(0..5));
        harness.write("q.capacity", "2").unwrap();
        assert_eq!(
            (harness.read("q.config"), pull(&mut harness, 3)),
            ("CAPACITY 2".into(), vec![Some(0), Some(1), None])
        );
        assert!(harness.write("q.capacity", "many").unwrap_err().contains("CAPACITY: invalid number"));
        assert_eq!((harness.read("q.config"), harness.read("q.capacity")), ("CAPACITY 2".to_owned(), "2".to_owned()));
    }

    #[test]
    fn mixed_queues_have_an_input_for_what_leaves_next() {
        let mut harness = Harness::new(
            "a :: Give -> q :: MixedQueue(5) -> take :: TakePull(MANUAL true); b :: Give -> [1]q; q[1] -> over :: Take",
        );
        for (source, n) in [("a", 1), ("a", 2), ("b", 3), ("a", 4), ("b", 5), ("a", 6), ("b", 7)] {
            harness.give(source, numbers(n..n + 1));
        }
        assert_eq!(harness.take_bytes("over"), [[6], [4]]);
        assert_eq!(pull(&mut harness, 6), [Some(7), Some(5), Some(3), Some(1), Some(2), None]);
    }

    #[test]
    fn a_capacity_is_a_number() {
        let told = Harness::errors("Give -> q :: Queue(-1) -> TakePull");
        assert!(told.contains("  CAPACITY: must be >= 0"), "{told}");
        let told = Harness::errors("Give -> q :: Queue(5, 6) -> TakePull");
        assert!(told.contains("  too many arguments"), "{told}");
        let told = Harness::errors("Give -> q :: Queue -> TakePull; q[1] -> Take; q[2] -> Take");
        assert!(told.contains("'q :: Queue' has no output 2"), "{told}");
    }

    #[test]
    fn sources_sleep_while_a_queue_is_full() {
        let mut harness = Harness::new("i :: InfiniteSource -> q :: Queue -> take :: TakePull(MANUAL true)");
        harness.run();
        assert_eq!((harness.read("i.count"), harness.read("i.scheduled")), ("1000".to_owned(), "false".to_owned()));
        harness.write("q.capacity", "10").unwrap();
        assert_eq!((harness.read("i.count"), harness.read("q.length")), ("1000".to_owned(), "10".to_owned()));
        harness.write("q.capacity", "1000").unwrap();
        assert_eq!((harness.read("i.count"), harness.read("q.drops")), ("1990".to_owned(), "0".to_owned()));
        harness.pull("take").unwrap();
        harness.run();
        assert_eq!(harness.read("i.count"), "1991");
        harness.write("q.reset", "").unwrap();
        assert_eq!(harness.read("i.count"), "2991");
    }

    #[test]
    fn a_queue_that_does_not_tell_overflows() {
        for class in ["SimpleQueue", "NotifierQueue"] {
            let config = format!("i :: InfiniteSource(LIMIT 50) -> q :: {class}(10) -> TakePull(MANUAL true)");
            let mut harness = Harness::new(&config);
            harness.run();
            assert_eq!((harness.read("i.count"), harness.read("q.drops")), ("50".to_owned(), "40".to_owned()));
        }
    }

    #[test]
    fn one_full_queue_of_two_stops_nobody() {
        let mut harness = Harness::new(
            "i :: InfiniteSource(LIMIT 50) -> t :: Tee -> stuck :: Queue(5) -> TakePull(MANUAL true);
             t[1] -> Queue(7) -> Unqueue -> take :: Take",
        );
        harness.run();
        assert_eq!((harness.take("take").len(), harness.read("stuck.drops")), (50, "45".to_owned()));
    }

    #[test]
    fn a_queue_before_one_that_is_full_takes_what_comes() {
        let mut harness = Harness::new(
            "i :: InfiniteSource(LIMIT 30) -> q :: SimpleQueue -> Unqueue(ACTIVE false) -> full :: Queue(0)
             -> TakePull(MANUAL true)",
        );
        harness.run();
        assert_eq!(harness.read("q.length"), "30");
    }

    #[test]
    fn a_quick_queue_tells_with_its_last_packet() {
        // The task behind it asks once for each packet, and not once more.
        for (class, scheduled) in [("QuickNoteQueue", "false"), ("NotifierQueue", "false")] {
            let mut harness = Harness::new(&format!("give :: Give -> {class} -> d :: Discard"));
            harness.give("give", numbers(0..3));
            assert_eq!((harness.read("d.count"), harness.read("d.scheduled")), ("3".to_owned(), scheduled.to_owned()));
            harness.give("give", numbers(0..2));
            assert_eq!(harness.read("d.count"), "5");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        /// Against a list of numbers.
        #[test]
        fn queues_are_lists(
            front in any::<bool>(),
            steps in prop::collection::vec((0..4u8, 0..9usize), 1..40),
        ) {
            let class = if front { "FrontDropQueue" } else { "Queue" };
            let mut harness = Harness::new(&format!("give :: Give -> q :: {class}(4) -> take :: TakePull(MANUAL true)"));
            let (mut list, mut capacity, mut drops, mut highwater, mut next) = (Vec::new(), 4, 0, 0, 0u8);
            for (what, n) in steps {
                match what {
                    0 | 1 => {
                        for _ in 0..n {
                            list.push(next);
                            next = next.wrapping_add(1);
                            if list.len() > capacity {
                                drops += 1;
                                list.remove(if front { 0 } else { capacity });
                            }
                            highwater = highwater.max(list.len());
                        }
                        harness.give("give", (0..n).map(|at| Packet::from_slice(&[next.wrapping_sub((n - at) as u8)])));
                    }
                    2 => {
                        let expected: Vec<_> = (0..n).map(|_| (!list.is_empty()).then(|| list.remove(0))).collect();
                        prop_assert_eq!(pull(&mut harness, n), expected);
                    }
                    _ => {
                        capacity = n;
                        let over = list.len().saturating_sub(n);
                        list.drain(if front { 0..over } else { list.len() - over..list.len() });
                        harness.write("q.capacity", &n.to_string()).unwrap();
                    }
                }
                prop_assert_eq!(harness.read("q.length"), list.len().to_string());
                prop_assert_eq!(harness.read("q.drops"), drops.to_string());
                prop_assert_eq!(harness.read("q.highwater_length"), highwater.to_string());
            }
        }
    }
}
