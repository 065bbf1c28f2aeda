//! Discard: drops all packets.
//!
//! `Discard([ACTIVE, BURST])`: an input, pushed or pulled. Where it is pulled, Discard pulls as long as there are packets.
//!
//! - ACTIVE (keyword): whether it pulls; true.
//! - BURST (keyword): how many packets it pulls at most each time its task runs; 1, and 0: all that there are.
//!
//! Handlers: `count`, `reset_counts`, and where it is pulled `active` (r/w).
//!
//! Unlike Click's, it has `active` where it is pushed, too, where nothing depends on it, and a BURST of 0 ends after 65,536
//! packets, so that others have their turn.

use crate::args::{Args, Failed};
use crate::element::{Batch, Element, Run};
use crate::handler::Handlers;
use crate::packet::{self, Packet};
use crate::router::Cx;

/// How many packets are pulled together.
const TOGETHER: usize = 256;

/// The element.
pub(super) struct Discard {
    is_active: bool,
    burst: u32,
    count: u64,
    pulled: Batch,
}

impl Default for Discard {
    fn default() -> Self {
        Self { is_active: true, burst: 1, count: 0, pulled: Batch::new() }
    }
}

impl Element for Discard {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.key("ACTIVE", &mut self.is_active).key("BURST", &mut self.burst).finish()?;
        if self.burst == 0 {
            self.burst = 1 << 16;
        }
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if cx.input_is_pull(0) && self.is_active {
            cx.schedule();
        } else if !self.is_active && !cx.input_is_pull(0) {
            return Err("ACTIVE is meaningless in push context".to_owned());
        }
        Ok(())
    }

    fn push(&mut self, _: &mut Cx<'_>, _: usize, _: Packet) {
        self.count += 1;
    }

    fn push_batch(&mut self, _: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        self.count += batch.len() as u64;
        packet::release(batch);
    }

    fn run_tasks(&mut self, cx: &mut Cx<'_>, times: usize) -> Run {
        if !self.is_active {
            return Run::Stop;
        }
        let (before, mut left) = (self.count, times.saturating_mul(self.burst as usize));
        while left > 0 {
            let asked = left.min(TOGETHER);
            let pulled = cx.pull_batch(0, asked, &mut self.pulled);
            packet::release(&mut self.pulled);
            self.count += pulled as u64;
            left = if pulled < asked { 0 } else { left - pulled };
        }
        if self.count > before { Run::Worked } else { Run::Idle }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |discard: &mut Self, _| discard.count);
        handlers.button("reset_counts", |discard: &mut Self, _| discard.count = 0);
        handlers.read("active", |discard: &mut Self, _| discard.is_active);
        handlers.write("active", |discard: &mut Self, cx, text| {
            discard.is_active = cx.parse(text)?;
            if cx.input_is_pull(0) {
                cx.schedule();
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    #[test]
    fn what_is_pushed_and_pulled_is_counted() {
        for way in ["", "-> Queue", "-> Queue -> PullNull"] {
            for args in ["", "(BURST 2)", "(BURST 0)"] {
                let args = if way.is_empty() { "" } else { args };
                let mut harness = Harness::new(&format!("give :: Give {way} -> d :: Discard{args}"));
                harness.give("give", (0..50).map(|n| Packet::from_slice(&[n])));
                assert_eq!(harness.read("d.count"), "50");
                harness.write("d.reset_counts", "").unwrap();
                harness.give_bytes("give", b"x");
                assert_eq!(harness.read("d.count"), "1");
            }
        }
    }

    #[test]
    fn it_pulls_while_it_is_active() {
        let mut harness = Harness::new("give :: Give -> q :: Queue -> d :: Discard(ACTIVE false)");
        harness.give("give", (0..5).map(|n| Packet::from_slice(&[n])));
        assert_eq!((harness.read("d.count"), harness.read("q.length")), ("0".to_owned(), "5".to_owned()));
        harness.write("d.active", "true").unwrap();
        assert_eq!((harness.read("d.count"), harness.read("d.active")), ("5".to_owned(), "true".to_owned()));
        harness.write("d.active", "false").unwrap();
        harness.give_bytes("give", b"x");
        assert_eq!(harness.read("q.length"), "1");
        let told = Harness::errors("Give -> Discard(ACTIVE false)");
        assert!(told.contains("ACTIVE is meaningless in push context"), "{told}");
        let told = Harness::errors("Give -> Discard(5, BURST x)");
        assert!(told.contains("BURST: invalid number") && told.contains("too many arguments"), "{told}");
    }
}
