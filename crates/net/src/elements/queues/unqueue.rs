//! Unqueue: pulls packets, and pushes them on.
//!
//! `Unqueue([BURST, LIMIT, ACTIVE])`: pull input, push output.
//!
//! - BURST: how many packets it moves at most each time its task runs; 1, and -1: all that there are.
//! - LIMIT (keyword): after how many packets it stops; -1: never.
//! - ACTIVE (keyword): whether it moves packets; true.
//!
//! Handlers: `count`, `active` (r/w), `burst` (r/w), `limit` (r/w), `reset` (`reset_counts`).
//!
//! Unlike Click's, a BURST of -1 ends after 1,024 packets, so that others have their turn.

use crate::args::{Amount, Args, Failed};
use crate::element::{Batch, Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
pub(super) struct Unqueue {
    burst: Amount,
    limit: Amount,
    is_active: bool,
    count: u64,
    pulled: Batch,
}

impl Default for Unqueue {
    fn default() -> Self {
        Self { burst: Amount(Some(1)), limit: Amount(None), is_active: true, count: 0, pulled: Batch::new() }
    }
}

impl Element for Unqueue {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("BURST", &mut self.burst).key("LIMIT", &mut self.limit).key("ACTIVE", &mut self.is_active).finish()?;
        if self.burst.0 == Some(0) {
            args.warning("BURST size 0, no packets will be pulled");
        }
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if self.is_active {
            cx.schedule();
        }
        Ok(())
    }

    fn run_tasks(&mut self, cx: &mut Cx<'_>, times: usize) -> Run {
        let left = self.limit.0.unwrap_or(u64::MAX).saturating_sub(self.count);
        if !self.is_active || left == 0 {
            return Run::Stop;
        }
        let burst = self.burst.0.unwrap_or(1024);
        // Whole bursts, of which the last one may be more than there is room for.
        let bursts = (times as u64).min((cx.room() as u64).div_ceil(burst.max(1)));
        let most = left.min(burst.saturating_mul(bursts)) as usize;
        let moved = cx.pull_batch(0, most, &mut self.pulled);
        for packet in self.pulled.drain(..) {
            cx.emit(0, packet);
        }
        self.count += moved as u64;
        if moved > 0 { Run::Worked } else { Run::Idle }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |unqueue: &mut Self, _| unqueue.count);
        handlers.read("burst", |unqueue: &mut Self, _| unqueue.burst);
        handlers.write("burst", |unqueue: &mut Self, cx, text| {
            unqueue.burst = cx.parse(text)?;
            cx.schedule();
            Ok(())
        });
        handlers.read("limit", |unqueue: &mut Self, _| unqueue.limit);
        handlers.read("active", |unqueue: &mut Self, _| unqueue.is_active);
        handlers.write("active", |unqueue: &mut Self, cx, text| {
            unqueue.is_active = cx.parse(text)?;
            cx.schedule();
            Ok(())
        });
        handlers.write("limit", |unqueue: &mut Self, cx, text| {
            unqueue.limit = cx.parse(text)?;
            cx.schedule();
            Ok(())
        });
        for name in ["reset", "reset_counts"] {
            handlers.button(name, |unqueue: &mut Self, cx| {
                unqueue.count = 0;
                cx.schedule();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    #[test]
    fn packets_are_moved_up_to_the_limit_and_while_it_is_active() {
        let mut harness =
            Harness::new("give :: Give -> Queue -> u :: Unqueue(2, LIMIT 5, ACTIVE false) -> take :: Take");
        harness.give("give", (0..9).map(|n| Packet::from_slice(&[n])));
        assert_eq!(harness.take_bytes("take"), Vec::<Vec<u8>>::new());
        harness.write("u.active", "true").unwrap();
        assert_eq!(harness.take_bytes("take"), [[0], [1], [2], [3], [4]]);
        harness.write("u.reset", "").unwrap();
        assert_eq!(harness.take_bytes("take"), [[5], [6], [7], [8]]);
        assert_eq!(harness.read("u.count"), "4");
    }

    #[test]
    fn settings_change_while_it_runs() {
        let mut harness = Harness::new("give :: Give -> q :: Queue -> u :: Unqueue(BURST 0) -> take :: Take");
        harness.give("give", (0..9).map(|n| Packet::from_slice(&[n])));
        assert_eq!((harness.read("q.length"), harness.read("u.burst")), ("9".to_owned(), "0".to_owned()));
        harness.write("u.limit", "4").unwrap();
        harness.write("u.burst", "-1").unwrap();
        assert_eq!((harness.take("take").len(), harness.read("u.burst")), (4, "-1".to_owned()));
        harness.write("u.limit", "-1").unwrap();
        assert_eq!((harness.take("take").len(), harness.read("u.count")), (5, "9".to_owned()));
        harness.write("u.reset_counts", "").unwrap();
        harness.write("u.active", "no").unwrap();
        assert_eq!((harness.read("u.count"), harness.read("u.active")), ("0".to_owned(), "false".to_owned()));
        let told = Harness::errors("Give -> Queue -> Unqueue(x, LIMIT y, ACTIVE z, 5) -> Take");
        for error in ["BURST: invalid number", "LIMIT: invalid number", "ACTIVE: type mismatch", "too many arguments"] {
            assert!(told.contains(error), "{told}");
        }
    }

    #[test]
    fn a_queue_and_its_task_may_stand_in_a_circle() {
        let mut harness = Harness::new(
            "InfiniteSource(LIMIT 1) -> q :: Queue(1) -> u :: Unqueue(LIMIT 500) -> t :: Tee -> q; t[1] -> take :: Take",
        );
        harness.run();
        assert_eq!((harness.take("take").len(), harness.read("q.drops")), (500, "0".to_owned()));
    }
}
