//! The order in which ways run.

use super::session::Session;
use crate::error::Result;

/// Runs every way so many times. They take turns, so that a drift of the machine meets all alike, and every
/// repetition begins with another one: who comes first pays for a link that slept, or for the disk's own cache.
///
/// Each run is a step of the session's progress.
pub fn in_turns<W>(
    session: &Session,
    repetitions: u32,
    ways: &mut [W],
    mut run: impl FnMut(&mut W, u32) -> Result<()>,
) -> Result<()> {
    let count = ways.len();
    for repetition in 0..repetitions {
        for turn in 0..count {
            session.check()?;
            run(&mut ways[(turn + repetition as usize) % count], repetition)?;
            session.advance(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn every_way_runs_in_every_repetition_and_each_is_first_once() {
        let (session, mut order) = (Session::default(), vec![]);
        let run = |way: &mut char, repetition| {
            order.push((*way, repetition));
            Ok(())
        };
        in_turns(&session, 3, &mut ['a', 'b', 'c'], run).unwrap();
        let names: String = order.iter().map(|(way, _)| *way).collect();
        assert_eq!(names, "abcbcacab");
        assert_eq!(session.progress().steps().0, 9);
    }

    #[test]
    fn an_interruption_ends_it_between_two_runs() {
        let (session, mut runs) = (Session::default(), 0);
        let run = |_: &mut u8, _| {
            runs += 1;
            session.cancel().cancel();
            Ok(())
        };
        assert_eq!(in_turns(&session, 3, &mut [0, 1], run).unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(runs, 1);
    }
}
