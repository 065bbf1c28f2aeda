//! Tee, PullTee and Hub: copies of packets.
//!
//! - `Tee([N])`: push input, push outputs; each packet leaves by every output, in the order of these.
//! - `PullTee([N])`: pull input, pull output 0, push outputs; who pulls output 0 gets the packet, and the others are pushed
//!   copies.
//! - `Hub`: as many push inputs as push outputs; each packet leaves by all outputs but that of the input it came to.
//!
//! N, if it is given, has to be how many outputs there are. Copies share their bytes until somebody writes. No handlers.

use super::choices::copy_to_all;
use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::router::Cx;

fn configure(args: &mut Args<'_>) -> Result<(), Failed> {
    let outputs = args.ports().1;
    let mut n = outputs;
    args.may("N", &mut n).finish()?;
    if n != outputs {
        return Err(args.error(format_args!("{outputs} outputs implies {outputs} arms")));
    }
    Ok(())
}

/// The element.
#[derive(Default)]
pub(super) struct Tee;

impl Element for Tee {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        configure(args)
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        copy_to_all(cx, packet);
    }
}

/// The element.
#[derive(Default)]
pub(super) struct PullTee;

impl Element for PullTee {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        configure(args)
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let packet = cx.pull(0)?;
        for output in 1..cx.outputs() {
            cx.emit(output, packet.clone());
        }
        Some(packet)
    }
}

/// The element.
#[derive(Default)]
pub(super) struct Hub;

impl Element for Hub {
    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        for output in (0..cx.outputs()).filter(|output| *output != port) {
            cx.emit(output, packet.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    fn numbers(count: u8) -> impl Iterator<Item = Packet> {
        (0..count).map(|n| Packet::from_slice(&[n]))
    }

    #[test]
    fn each_output_gets_a_copy() {
        let config = "give :: Give -> t :: Tee(3) -> a :: Take; t[1] -> b :: Take; t[2] -> a";
        let mut harness = Harness::new(config);
        harness.give("give", numbers(3));
        assert_eq!(harness.take_bytes("a"), [[0], [0], [1], [1], [2], [2]]);
        assert_eq!(harness.take_bytes("b"), [[0], [1], [2]]);
        for (class, told) in [("Tee(2)", "3 outputs implies 3 arms"), ("Tee(x)", "N: invalid number")] {
            let errors = Harness::errors(&config.replace("Tee(3)", class));
            assert!(errors.contains(told), "{class}: {errors}");
        }
    }

    #[test]
    fn what_is_pulled_is_pushed_elsewhere() {
        let mut harness = Harness::new(
            "give :: Give -> Queue -> t :: PullTee -> take :: TakePull(MANUAL true); t[1] -> b :: Take; t[2] -> c :: Take",
        );
        harness.give("give", numbers(2));
        assert_eq!(harness.pull("take").unwrap().bytes(), [0]);
        assert_eq!((harness.take_bytes("b"), harness.take_bytes("c")), (vec![vec![0]], vec![vec![0]]));
        assert!(harness.pull("take").is_some() && harness.pull("take").is_none());
        assert_eq!(harness.take_bytes("b"), [[1]]);
        let told = Harness::errors("Idle -> PullTee(2) -> Discard");
        assert!(told.contains("1 outputs implies 1 arms"), "{told}");
    }

    #[test]
    fn a_hub_sends_to_all_others() {
        let mut harness = Harness::new(
            "g0 :: Give -> h :: Hub -> t0 :: Take; g1 :: Give -> [1]h[1] -> t1 :: Take; g2 :: Give -> [2]h[2] -> t2 :: Take",
        );
        for from in 0..3 {
            harness.give(&format!("g{from}"), numbers(2));
            for to in 0..3 {
                assert_eq!(harness.take(&format!("t{to}")).len(), if from == to { 0 } else { 2 });
            }
        }
        let told = Harness::errors("Give -> Hub(1) -> Take");
        assert!(told.contains("too many arguments"), "{told}");
    }
}
