//! Unqueue: pulls packets, and pushes them on.
//!
//! `Unqueue([BURST, LIMIT, ACTIVE])`: pull input, push output. Each time its task runs it moves up to BURST packets (1; negative:
//! all that there are). After LIMIT packets (none) it stops.
//!
//! Handlers: `count`, `active` (r/w), `burst` (r/w), `limit` (r/w), `reset`.

use crate::args::{Amount, Args, Failed};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;

/// The element.
pub(super) struct Unqueue {
    burst: Amount,
    limit: Amount,
    is_active: bool,
    count: u64,
}

impl Default for Unqueue {
    fn default() -> Self {
        Self { burst: Amount(Some(1)), limit: Amount(None), is_active: true, count: 0 }
    }
}

impl Element for Unqueue {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("BURST", &mut self.burst).key("LIMIT", &mut self.limit).key("ACTIVE", &mut self.is_active).finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let left = self.limit.0.unwrap_or(u64::MAX).saturating_sub(self.count);
        if !self.is_active || left == 0 {
            return Run::Stop;
        }
        let mut moved = 0;
        while moved < left.min(self.burst.0.unwrap_or(u64::MAX)) {
            let Some(packet) = cx.pull(0) else { break };
            cx.emit(0, packet);
            moved += 1;
        }
        self.count += moved;
        if moved > 0 { Run::Worked } else { Run::Idle }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |unqueue: &mut Self, _| unqueue.count);
        handlers.data("burst", |unqueue: &mut Self| &mut unqueue.burst);
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
        handlers.button("reset", |unqueue: &mut Self, cx| {
            unqueue.count = 0;
            cx.schedule();
        });
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
}
