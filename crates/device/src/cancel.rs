//! Ending work early: what a request asks now and then, and a thread that can be given up for work that never asks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How often whoever waits for a thread looks whether to give it up.
const TICK: Duration = Duration::from_millis(20);

/// Asks running work to stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks; a request ends with its room's `ErrorKind::Cancelled` once what is in flight has landed.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Does work that cannot be interrupted, such as deriving a key from a passphrase, on a thread of its own: none as soon
    /// as this is cancelled. A thread that is given up goes on to the end of its work, and drops by itself what it
    /// has made and what it holds: secrets it has are to be its own copies. Work that changes files is done behind it, so
    /// that nothing is given up half done. A panic of the work comes through.
    ///
    /// # Errors
    /// The system's, if no thread can be started.
    pub fn unless_cancelled<T: Send + 'static>(
        &self,
        thread_name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (done, outcome) = sync_channel(1);
        // What nobody takes any more is dropped here.
        let work = move || drop(done.send(work()));
        let thread = std::thread::Builder::new().name(thread_name.to_owned()).spawn(work)?;
        loop {
            match outcome.recv_timeout(TICK) {
                Ok(outcome) => return Ok(Some(outcome)),
                Err(RecvTimeoutError::Timeout) if self.is_cancelled() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match thread.join() {
                    Err(panic) => std::panic::resume_unwind(panic),
                    Ok(()) => return Err(io::Error::other("a thread ended without its result")),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    struct OnDrop(std::sync::mpsc::Sender<()>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    /// Symptom: one signal did not end a key derivation, which went on for minutes. Cause: it ran in the thread that had
    /// to see the signal.
    #[test]
    fn work_is_given_up_when_it_is_cancelled_and_not_waited_for() {
        let (cancel, (gate, gated)) = (Cancel::default(), channel::<()>());
        let (dropped, is_dropped) = channel();
        cancel.cancel();
        let given_up = cancel.unless_cancelled("bifolio-test", move || {
            // Until the gate is opened, which is after the answer is there.
            let _ = gated.recv();
            OnDrop(dropped)
        });
        assert!(given_up.unwrap().is_none());
        drop(gate);
        // What it has made is dropped by its own thread.
        is_dropped.recv().unwrap();
    }

    #[test]
    fn results_and_panics_come_through() {
        let cancel = Cancel::default();
        assert_eq!(cancel.unless_cancelled("bifolio-test", || 7).unwrap(), Some(7));
        let panics =
            std::panic::catch_unwind(|| Cancel::default().unless_cancelled("bifolio-test", || panic!("on purpose")));
        assert!(panics.is_err());
    }
}
