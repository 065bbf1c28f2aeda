//! RoundRobinSched and PrioSched: pull from one of several inputs.
//!
//! `RoundRobinSched`, `PrioSched`: pull inputs, pull output. Each time somebody pulls, they give the first packet that an
//! input has: RoundRobinSched asks the inputs in a circle, beginning behind the one that had the last packet, and PrioSched
//! from the first on. Inputs that told that they are empty are not asked.
//!
//! Handlers: none.

use crate::Packet;
use crate::element::Element;
use crate::router::Cx;

fn ask(cx: &mut Cx<'_>, input: usize) -> Option<Packet> {
    if cx.may_pull(input) { cx.pull(input) } else { None }
}

/// The element.
#[derive(Default)]
pub(super) struct RoundRobinSched(usize);

impl Element for RoundRobinSched {
    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let n = cx.inputs();
        (0..n).find_map(|turn| {
            let input = (self.0 + turn) % n;
            let packet = ask(cx, input)?;
            self.0 = (input + 1) % n;
            Some(packet)
        })
    }
}

/// The element.
#[derive(Default)]
pub(super) struct PrioSched;

impl Element for PrioSched {
    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        (0..cx.inputs()).find_map(|input| ask(cx, input))
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    fn give(harness: &mut Harness, source: &str, count: u8) {
        harness.give(source, (0..count).map(|_| Packet::from_slice(source.as_bytes())));
    }

    fn order(class: &str, counts: [u8; 3]) -> String {
        let mut harness = Harness::new(&format!(
            "s :: {class} -> u :: Unqueue(ACTIVE false) -> take :: Take;
             a :: Give -> Queue -> [0]s; b :: Give -> SimpleQueue -> [1]s; c :: Give -> Queue -> [2]s"
        ));
        for (source, count) in ["a", "b", "c"].iter().zip(counts) {
            give(&mut harness, source, count);
        }
        harness.write("u.active", "true").unwrap();
        let taken = harness.take_bytes("take");
        taken.iter().map(|bytes| bytes[0] as char).collect()
    }

    #[test]
    fn inputs_are_asked_in_their_order() {
        assert_eq!(order("RoundRobinSched", [3, 1, 5]), "abcacaccc");
        assert_eq!(order("RoundRobinSched", [0, 2, 0]), "bb");
        assert_eq!(order("PrioSched", [2, 3, 1]), "aabbbc");
    }

    #[test]
    fn who_pulls_sleeps_while_all_are_empty() {
        for class in ["RoundRobinSched", "PrioSched"] {
            let mut harness = Harness::new(&format!(
                "i :: InfiniteSource(ACTIVE false, LIMIT 5) -> Queue -> p :: {class} -> u :: Unqueue -> d :: Discard; Idle -> [1]p"
            ));
            harness.run();
            assert_eq!(harness.read("u.scheduled"), "false");
            harness.write("i.active", "true").unwrap();
            assert_eq!((harness.read("d.count"), harness.read("u.scheduled")), ("5".to_owned(), "false".to_owned()));
            let told = Harness::errors(&format!("Idle -> {class}(5) -> Discard"));
            assert!(told.contains("too many arguments"), "{told}");
        }
    }
}
