//! ARPTable: which Ethernet address an IP address has.
//!
//! `ARPTable([CAPACITY, ENTRY_CAPACITY, ENTRY_PACKET_CAPACITY, CAPACITY_SLIM_FACTOR, TIMEOUT])`: no ports; several ARPQueriers may
//! share one by their argument TABLE. CAPACITY (2048; 0: any) is how many packets wait for addresses at most, in all; more than
//! that, and the oldest are dropped until there are CAPACITY - CAPACITY / CAPACITY_SLIM_FACTOR (2). ENTRY_PACKET_CAPACITY (0: any)
//! is how many wait for one address; more are dropped. ENTRY_CAPACITY (0: any) is how many addresses there are. An address is
//! forgotten after TIMEOUT (5 minutes; 0: never).
//!
//! Handlers: `table` (address, whether it is known, Ethernet address, age), `drops`, `count` (addresses), `length` (packets),
//! `insert` (`IP ETH`), `delete` (`IP`), `clear`.
//!
//! Differs from Click: times are exact, not counted in ticks.

use super::arp_cache::{Limits, Table};
use crate::args::{Args, Failed, Interval};
use crate::element::{Element, downcast};
use crate::handler::Handlers;
use crate::router::Cx;
use crate::{Log, Timestamp};
use std::sync::{Arc, Mutex};

/// A table that several elements have.
pub(super) type Shared = Arc<Mutex<Table>>;

/// The element.
#[derive(Default)]
pub(super) struct ArpTable {
    table: Shared,
}

impl ArpTable {
    /// The table, for others.
    pub(super) fn share(&self) -> Shared {
        Arc::clone(&self.table)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Table) -> R) -> R {
        work(&mut self.table.lock().expect("no panic in it"))
    }
}

/// How long after the last time a table is looked through for entries that are over their time.
pub(super) fn pause(timeout: Interval) -> Timestamp {
    Timestamp::new(timeout.0.secs() + 1, 0)
}

impl Element for ArpTable {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut limits = Limits::default();
        limits.read(args);
        args.finish()?;
        self.with(|table| table.set_limits(limits));
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let timeout = self.with(|table| table.limits().timeout);
        if !timeout.0.is_zero() {
            cx.timer_after(0, pause(timeout));
        }
        Ok(())
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        self.with(|table| table.slim_entries(cx.now(), 0));
        cx.timer_after(0, pause(self.with(|table| table.limits().timeout)));
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("table", |table: &mut Self, cx| table.with(|table| table.text(cx.now())));
        handlers.read("drops", |table: &mut Self, _| table.with(|table| table.drops()));
        handlers.read("count", |table: &mut Self, _| table.with(|table| table.count()));
        handlers.read("length", |table: &mut Self, _| table.with(|table| table.length()));
        handlers.write("insert", |table: &mut Self, cx, text| {
            table.with(|table| table.insert_text(cx.arg_cx(), text, cx.now()))
        });
        handlers.write("delete", |table: &mut Self, cx, text| {
            table.with(|table| table.delete_text(cx.arg_cx(), text, cx.now()))
        });
        handlers.button("clear", |table: &mut Self, _| table.with(Table::clear));
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, log: &mut Log) {
        let Some(old) = downcast::<Self>(old) else { return };
        if !self.with(|table| old.with(|old| table.take_over(old))) {
            log.error_here("late take_state");
        }
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn a_table_is_read_and_changed_by_handlers() {
        let mut harness = Harness::new("t :: ARPTable(TIMEOUT 10s)");
        harness.write("t.insert", "1.0.0.2 2:1:0:0:2:f").unwrap();
        harness.pass(2.0);
        harness.write("t.insert", "1.0.0.1 2:1:0:0:1:f").unwrap();
        assert_eq!(
            harness.read("t.table"),
            "1.0.0.2 1 02-01-00-00-02-0F 2.000000\n1.0.0.1 1 02-01-00-00-01-0F 0.000000\n"
        );
        harness.write("t.delete", "1.0.0.2").unwrap();
        assert_eq!(
            harness.read("t.table"),
            "1.0.0.1 1 02-01-00-00-01-0F 0.000000\n1.0.0.2 0 FF-FF-FF-FF-FF-FF 0.000000\n"
        );
        assert_eq!(harness.write("t.insert", "1.0.0.2").unwrap_err(), "ETH: required argument missing");
        assert!(harness.write("t.delete", "x").is_err());
        harness.pass(9.0);
        assert_eq!(harness.read("t.count"), "2");
        harness.pass(12.0);
        assert_eq!(
            (harness.read("t.count"), harness.read("t.length"), harness.read("t.drops")),
            ("0".into(), "0".into(), "0".into())
        );
        harness.write("t.clear", "").unwrap();
    }

    #[test]
    fn limits_are_numbers() {
        let told = Harness::errors("ARPTable(CAPACITY -1, CAPACITY_SLIM_FACTOR 0, TIMEOUT x)");
        for expected in ["CAPACITY: must be >= 0", "CAPACITY_SLIM_FACTOR cannot be zero", "TIMEOUT: type mismatch"] {
            assert!(told.contains(expected), "{told}");
        }
    }
}
