//! Ways to do the same work, beside each other.
//!
//! A benchmark says what the ways are, what has to be so before a run, what is timed, and how to see that it did what
//! it should. Turns, rates and ratios are here.

use super::session::Session;
use super::turns::in_turns;
use super::usage::{Rates, Taken};
use crate::error::{ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// What a benchmark compares, under one set of conditions: a cache state, a size.
pub trait Comparison {
    /// One of the ways.
    type Way: Copy + PartialEq;
    /// What a run needs and does not count: open files, streams, buffers.
    type Ready;

    /// The way, for people who wait.
    fn name(&self, way: Self::Way) -> String;

    /// The way that its rate is divided by.
    fn rival(&self, way: Self::Way) -> Option<Self::Way>;

    /// Bytes that a run moves.
    fn bytes(&self, way: Self::Way) -> u64;

    /// Whether the others are still worth measuring where this one fails.
    fn may_fail(&self, _way: Self::Way) -> bool {
        false
    }

    /// Brings about what has to be so before a run; memory holds what no run would leave in it before the `first`.
    fn set_up(&self, way: Self::Way, first: bool) -> Result<Self::Ready>;

    /// What is timed.
    fn run(&self, way: Self::Way, ready: &mut Self::Ready) -> Result<()>;

    /// Compares what the first run has moved with what it should have; whether there was something to compare.
    fn verify(&self, way: Self::Way, ready: &Self::Ready) -> Result<bool>;
}

/// How one way did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row<W> {
    /// The way.
    pub way: W,
    /// Its rates.
    #[serde(flatten)]
    pub rates: Rates,
    /// The way beside it.
    pub rival: Option<W>,
    /// The median rate by the rival's.
    pub to_rival: Option<f64>,
    /// The least CPU time by the rival's.
    pub cpu_to_rival: Option<f64>,
    /// What the first run moved was compared with what it should have.
    pub verified: bool,
    /// Why it has no rate.
    pub failed: Option<String>,
}

impl<W> Row<W> {
    /// The same with other names for the ways.
    pub fn named<N>(self, name: impl Fn(W) -> N) -> Row<N> {
        let Self { way, rates, rival, to_rival, cpu_to_rival, verified, failed } = self;
        Row { way: name(way), rates, rival: rival.map(name), to_rival, cpu_to_rival, verified, failed }
    }
}

/// Runs all ways so many times and adds a row for each to `rows`. Where it is interrupted, rows have the runs until
/// then, and ways that never ran have none.
pub fn compare<C: Comparison>(
    session: &Session,
    repetitions: u32,
    comparison: &C,
    ways: &[C::Way],
    rows: &mut Vec<Row<C::Way>>,
) -> Result<()> {
    let mut runs: Vec<Runs<C::Way>> = ways.iter().map(|way| Runs::new(*way)).collect();
    let ended = in_turns(session, repetitions, &mut runs, |runs, repetition| {
        session.say(&format!("{}, run {}", comparison.name(runs.way), repetition + 1));
        runs.run_or_note(comparison)
    });
    rows.extend(rows_of(comparison, runs));
    ended
}

struct Runs<W> {
    way: W,
    taken: Vec<Taken>,
    verified: bool,
    failed: Option<String>,
}

impl<W: Copy + PartialEq> Runs<W> {
    fn new(way: W) -> Self {
        Self { way, taken: vec![], verified: false, failed: None }
    }

    fn run_or_note<C: Comparison<Way = W>>(&mut self, comparison: &C) -> Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        match self.run(comparison) {
            Err(error)
                if matches!(error.kind(), ErrorKind::Failed | ErrorKind::Unavailable)
                    && comparison.may_fail(self.way) =>
            {
                self.failed = Some(error.to_string());
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn run<C: Comparison<Way = W>>(&mut self, comparison: &C) -> Result<()> {
        let first = self.taken.is_empty();
        let mut ready = comparison.set_up(self.way, first)?;
        let taken = Taken::by(|| comparison.run(self.way, &mut ready))?;
        if first {
            self.verified = comparison.verify(self.way, &ready)?;
        }
        self.taken.push(taken);
        Ok(())
    }
}

fn rows_of<C: Comparison>(comparison: &C, runs: Vec<Runs<C::Way>>) -> Vec<Row<C::Way>> {
    let has_run = |runs: &Runs<C::Way>| !runs.taken.is_empty() || runs.failed.is_some();
    let row = |runs: Runs<C::Way>| Row {
        way: runs.way,
        rates: Rates::of(comparison.bytes(runs.way), &runs.taken),
        rival: comparison.rival(runs.way),
        to_rival: None,
        cpu_to_rival: None,
        verified: runs.verified,
        failed: runs.failed,
    };
    let mut rows: Vec<_> = runs.into_iter().filter(has_run).map(row).collect();
    let all: Vec<_> = rows.iter().map(|row| (row.way, row.rates.clone())).collect();
    for row in &mut rows {
        let rival = all.iter().find(|(way, _)| Some(*way) == row.rival).map(|(_, rates)| rates);
        let ratio =
            |of: fn(&Rates) -> f64| rival.map(of).filter(|rival| *rival > 0.0).map(|rival| of(&row.rates) / rival);
        let (to_rival, cpu_to_rival) = (ratio(|rates| rates.gb_per_s_median), ratio(|rates| rates.cpu_s_per_gb));
        (row.to_rival, row.cpu_to_rival) = (to_rival, cpu_to_rival);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::cell::Cell;

    /// Ways 0 to 2, of which 2 fails; the run with this number interrupts.
    struct Numbers<'a> {
        session: &'a Session,
        runs: Cell<u32>,
        interrupts_at: u32,
    }

    impl Comparison for Numbers<'_> {
        type Way = u8;
        type Ready = ();

        fn name(&self, way: u8) -> String {
            way.to_string()
        }

        fn rival(&self, way: u8) -> Option<u8> {
            (way == 1).then_some(0)
        }

        fn bytes(&self, _: u8) -> u64 {
            1000
        }

        fn may_fail(&self, way: u8) -> bool {
            way == 2
        }

        fn set_up(&self, _: u8, _: bool) -> Result<()> {
            Ok(())
        }

        fn run(&self, way: u8, (): &mut ()) -> Result<()> {
            self.runs.set(self.runs.get() + 1);
            if self.runs.get() == self.interrupts_at {
                self.session.cancel().cancel();
            }
            if way == 2 { Err(Error::failed("two", "refused")) } else { Ok(()) }
        }

        fn verify(&self, way: u8, (): &()) -> Result<bool> {
            Ok(way == 0)
        }
    }

    fn measured(interrupts_at: u32) -> (Result<()>, Vec<Row<u8>>) {
        let (session, mut rows) = (Session::default(), vec![]);
        let numbers = Numbers { session: &session, runs: Cell::new(0), interrupts_at };
        (compare(&session, 3, &numbers, &[0, 1, 2], &mut rows), rows)
    }

    #[test]
    fn every_way_has_a_row_with_its_rates_and_its_rival() {
        let (ended, rows) = measured(0);
        assert!(ended.is_ok());
        assert_eq!(rows.iter().map(|row| row.rates.seconds.len()).collect::<Vec<_>>(), [3, 3, 0]);
        assert!(rows[0].to_rival.is_none() && rows[1].to_rival.is_some() && rows[0].verified && !rows[1].verified);
        assert_eq!(rows[2].failed.as_deref(), Some("two: refused"));
    }

    #[test]
    fn an_interruption_leaves_the_rows_that_have_runs() {
        let (ended, rows) = measured(2);
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(rows.iter().map(|row| (row.way, row.rates.seconds.len())).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    }
}
