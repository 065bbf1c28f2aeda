//! PullSwitch, SimplePullSwitch and StaticPullSwitch: pull from one input of several.
//!
//! `PullSwitch([INPUT])`, `SimplePullSwitch([INPUT])`, `StaticPullSwitch(INPUT)`: pull inputs, pull output.
//!
//! - INPUT: the input that is pulled from; 0, and -1 (or one that is not there): none.
//!
//! PullSwitch tells who pulls from it whether that input has packets; with the others, all inputs count.
//!
//! Handlers (not of StaticPullSwitch): `switch` (r/w), `config` (the input).

use crate::Packet;
use crate::args::{Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

/// The element: one that tells for itself, and one whose input is changed by handlers.
#[derive(Default)]
pub(super) struct PullSwitch<const TELLS: bool, const IS_STATIC: bool> {
    input: Option<usize>,
}

fn known(input: i32, inputs: usize) -> Option<usize> {
    usize::try_from(input).ok().filter(|input| *input < inputs)
}

impl<const TELLS: bool, const IS_STATIC: bool> PullSwitch<TELLS, IS_STATIC> {
    fn tell(&self, cx: &mut Cx<'_>) {
        if TELLS {
            let has_packets = self.input.is_some_and(|input| cx.may_pull(input));
            cx.note(has_packets);
        }
    }

    fn number(&self) -> String {
        self.input.map_or("-1".to_owned(), |input| input.to_string())
    }
}

impl<const TELLS: bool, const IS_STATIC: bool> Element for PullSwitch<TELLS, IS_STATIC> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut input = 0i32;
        if IS_STATIC {
            args.must("INPUT", &mut input);
        } else {
            args.may("INPUT", &mut input);
        }
        args.finish()?;
        self.input = known(input, args.ports().0);
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if TELLS {
            cx.note(self.input.is_some());
        }
        Ok(())
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let packet = self.input.and_then(|input| cx.pull(input));
        if packet.is_none() {
            self.tell(cx);
        }
        packet
    }

    fn reconfigures(&self) -> bool {
        !IS_STATIC
    }

    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        self.tell(cx);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        if IS_STATIC {
            return;
        }
        handlers.read("switch", |switch: &mut Self, _| switch.number());
        handlers.write("switch", |switch: &mut Self, cx, text| {
            let input = cx.parse(text).map_err(|_| "Switch input must be integer".to_owned())?;
            switch.input = known(input, cx.inputs());
            switch.tell(cx);
            Ok(())
        });
        handlers.read("config", |switch: &mut Self, _| switch.number());
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn who_pulls_knows_whether_the_input_has_packets() {
        let mut harness = Harness::new(
            "i1 :: InfiniteSource(\\<11>, LIMIT 4) -> [0]ps :: PullSwitch(-1) -> take :: TakePull;
             i2 :: InfiniteSource(\\<22>, LIMIT 4) -> [1]ps; Idle -> [2]ps;
             Idle -> ps2 :: PullSwitch -> d2 :: Discard",
        );
        harness.run();
        for (input, bytes) in
            [("-1", vec![]), ("2", vec![]), ("0", vec![[0x11]; 4]), ("1", vec![[0x22]; 4]), ("7", vec![])]
        {
            harness.write("ps.switch", input).unwrap();
            assert_eq!(harness.take_bytes("take"), bytes);
            assert_eq!(
                (harness.read("take.scheduled"), harness.read("d2.scheduled")),
                ("false".into(), "false".into())
            );
        }
        assert_eq!((harness.read("ps.switch"), harness.read("ps2.config")), ("-1".to_owned(), "0".to_owned()));
        harness.write("ps.config", "0").unwrap();
        harness.write("i1.reset", "").unwrap();
        assert_eq!(harness.take_bytes("take"), [[0x11]; 4]);
        // What is not pulled from wakes nobody for long.
        harness.write("i2.reset", "").unwrap();
        assert_eq!((harness.take("take").len(), harness.read("take.scheduled")), (0, "false".to_owned()));
        assert_eq!(harness.write("ps.switch", "x").unwrap_err(), "Switch input must be integer");
    }

    #[test]
    fn others_pull_without_telling() {
        for (class, input) in [("SimplePullSwitch", ""), ("SimplePullSwitch", "(1)"), ("StaticPullSwitch", "(1)")] {
            let mut harness = Harness::new(&format!(
                "InfiniteSource(0, LIMIT 3) -> [0]ps :: {class}{input} -> take :: TakePull(MANUAL true);
                 InfiniteSource(1, LIMIT 3) -> [1]ps"
            ));
            let expected = if input.is_empty() { b"0" } else { b"1" };
            assert_eq!(harness.pull("take").unwrap().bytes(), expected);
            if class == "SimplePullSwitch" {
                harness.write("ps.switch", "-1").unwrap();
                assert!(harness.pull("take").is_none());
            } else {
                assert!(harness.write("ps.switch", "0").unwrap_err().contains("no handler named 'ps.switch'"));
            }
        }
        let told = Harness::errors("Idle -> StaticPullSwitch -> Discard; Idle -> PullSwitch(x) -> Discard");
        assert!(told.contains("INPUT: required argument missing") && told.contains("INPUT: invalid number"), "{told}");
    }
}
