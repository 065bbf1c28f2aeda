//! Ctrl-C: the first one asks the work in flight to stop, the second one ends the process.

use crate::exit::{Failure, eprintln_quietly};
use bifolio_io::Cancel;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Starts to watch for signals; the result is set by the first one.
pub fn watch() -> Result<Cancel, Failure> {
    let cancel = Cancel::default();
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::failed(format!("watching for signals failed: {error}")))?;
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
    started.map_err(|error| Failure::failed(format!("starting a thread for signals failed: {error}")))?;
    Ok(cancel)
}

/// Does work that cannot be interrupted on a thread that is given up when the user interrupts
/// ([`Cancel::unless_cancelled`]). What it holds goes with the process, which its caller is to end.
#[cfg(feature = "volumes")]
pub fn until_interrupted<T: Send + 'static>(
    cancel: &Cancel,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let done = cancel.unless_cancelled("bifolio-work", work);
    let done = done.map_err(|error| Failure::failed(format!("starting a thread failed: {error}")))?;
    done.ok_or_else(Failure::interrupted)
}

/// An error once the user has interrupted, for work between requests.
pub fn check(cancel: &Cancel) -> Result<(), Failure> {
    if cancel.is_cancelled() { Err(Failure::interrupted()) } else { Ok(()) }
}
