//! Key derivations in a thread that can be given up: they take seconds by design, and minutes where a header asks for
//! that, and no function of the library's can be interrupted.
//!
//! A thread that was given up goes on until its derivation is done, and then clears what it has: its secrets are its own
//! copies. Until then it holds the library's lock, so that others of this process who need the library wait; who gives
//! up is about to end.

use crate::{Error, ErrorKind, Result};
use bifolio_io::Cancel;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often whoever waits looks whether to give up.
const TICK: Duration = Duration::from_millis(20);

/// Does the work of a derivation for the volume of this name; without `cancel` in the calling thread.
pub(super) fn derive<T: Send + 'static>(
    name: &str,
    cancel: Option<&Cancel>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Some(cancel) = cancel else { return work() };
    let (sender, receiver) = channel();
    // What nobody takes any more is dropped, and by that cleared.
    let thread = std::thread::Builder::new().name("bifolio-key".to_owned()).spawn(move || drop(sender.send(work())));
    let thread = thread.map_err(|error| Error::system(name, "starting a thread for its key", error))?;
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                return Err(Error::new(ErrorKind::Cancelled, name, "computing its key was interrupted"));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => {
                    return Err(Error::new(ErrorKind::BadState, name, "computing its key ended without an answer"));
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: one signal did not end a derivation, which went on for minutes. Cause: it ran in the thread that had to
    /// see the signal.
    #[test]
    fn a_derivation_is_given_up_when_it_is_cancelled_and_not_waited_for() {
        let (cancel, (gate, gated)) = (Cancel::default(), channel::<()>());
        let (dropped, is_dropped) = channel();
        cancel.cancel();
        let given_up = derive("disk", Some(&cancel), move || {
            // Until the gate is opened, which is after the answer is there.
            let _ = gated.recv();
            Ok(OnDrop(dropped))
        });
        let error = given_up.err().unwrap();
        assert_eq!((error.kind(), error.to_string().contains("interrupted")), (ErrorKind::Cancelled, true));
        drop(gate);
        // What it has made is dropped by its own thread.
        is_dropped.recv().unwrap();
    }

    #[derive(Debug)]
    struct OnDrop(std::sync::mpsc::Sender<()>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn answers_errors_and_panics_come_through() {
        let cancel = Cancel::default();
        for cancel in [None, Some(&cancel)] {
            assert_eq!(derive("disk", cancel, || Ok(7)).unwrap(), 7);
            let wrong = || Err::<(), _>(Error::new(ErrorKind::WrongKey, "disk", "wrong"));
            assert_eq!(derive("disk", cancel, wrong).unwrap_err().kind(), ErrorKind::WrongKey);
        }
        let panics =
            std::panic::catch_unwind(|| derive::<()>("disk", Some(&Cancel::default()), || panic!("on purpose")));
        assert!(panics.is_err());
    }
}
