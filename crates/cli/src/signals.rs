//! Ctrl-C: the first one asks the work in flight to stop, the second one ends the process.

use crate::exit::{Failure, eprintln_quietly};
use bifolio_io::Cancel;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How soon work is given up.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Starts to watch for signals; the result is set by the first one.
pub fn watch() -> Result<Cancel, Failure> {
    let cancel = Cancel::default();
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::failed(format!("signals cannot be watched: {error}")))?;
    let asked = cancel.clone();
    let watch = move || {
        for signal in signals.forever() {
            if asked.is_cancelled() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            asked.cancel();
            eprintln_quietly("bifolio: stopping; once more to stop at once");
        }
    };
    let started = std::thread::Builder::new().name("bifolio-signals".to_owned()).spawn(watch);
    started.map_err(|error| Failure::failed(format!("a thread for signals cannot be started: {error}")))?;
    Ok(cancel)
}

/// Does work that cannot be interrupted, such as deriving a key from a passphrase, on a thread that is given up when the
/// user interrupts. What it holds goes with the process, which its caller is to end. Work that changes files is done
/// behind it, so that nothing is given up half done.
pub fn until_interrupted<T: Send + 'static>(
    cancel: &Cancel,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let (done, outcome) = sync_channel(1);
    let worker = std::thread::Builder::new().name("bifolio-work".to_owned()).spawn(move || {
        // Nobody may wait any more.
        let _ = done.send(work());
    });
    let worker = worker.map_err(|error| Failure::failed(format!("a thread cannot be started: {error}")))?;
    loop {
        match outcome.recv_timeout(LOOK_EVERY) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Timeout) => check(cancel)?,
            Err(RecvTimeoutError::Disconnected) => {
                if let Err(panic) = worker.join() {
                    std::panic::resume_unwind(panic);
                }
                return Err(Failure::failed("a thread ended without its result"));
            }
        }
    }
}

/// An error once the user has interrupted, for work between requests.
pub fn check(cancel: &Cancel) -> Result<(), Failure> {
    if cancel.is_cancelled() { Err(Failure::interrupted()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    /// A key that takes long was derived to its end, and an interrupt only noted.
    #[test]
    fn work_that_goes_on_is_given_up_at_the_first_interrupt() {
        let cancel = Cancel::default();
        assert_eq!(until_interrupted(&cancel, || 7).unwrap(), 7);
        let asked = cancel.clone();
        let (_never, waits) = sync_channel::<()>(0);
        let outcome = until_interrupted(&cancel, move || {
            asked.cancel();
            // As long as the test runs.
            waits.recv()
        });
        assert_eq!(outcome.unwrap_err().code(), Code::Interrupted);
    }
}
