//! Key derivations in a thread that can be given up: they take seconds by design, and minutes where a header asks for
//! that, and no function of the library's can be interrupted.
//!
//! A thread that was given up goes on until its derivation is done, and then clears what it has: its secrets are its own
//! copies. Until then it holds the library's lock, so that others of this process who need the library wait; who gives
//! up is about to end.

use crate::{Error, ErrorKind, Result};
use bifolio_io::Cancel;

/// Does the work of a derivation for the volume of this name; without `cancel` in the calling thread.
pub(super) fn derive<T: Send + 'static>(
    name: &str,
    cancel: Option<&Cancel>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Some(cancel) = cancel else { return work() };
    let done = cancel.unless_cancelled("bifolio-key", work);
    let done = done.map_err(|error| Error::system(name, "starting a thread for its key", error))?;
    done.unwrap_or_else(|| Err(Error::new(ErrorKind::Cancelled, name, "computing its key was interrupted")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derivation_is_given_up_when_it_is_cancelled() {
        let (cancel, (_gate, gated)) = (Cancel::default(), std::sync::mpsc::channel::<()>());
        cancel.cancel();
        let given_up = derive("disk", Some(&cancel), move || Ok(gated.recv()));
        assert_eq!(given_up.unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn answers_and_errors_come_through() {
        let cancel = Cancel::default();
        for cancel in [None, Some(&cancel)] {
            assert_eq!(derive("disk", cancel, || Ok(7)).unwrap(), 7);
            let wrong = || Err::<(), _>(Error::new(ErrorKind::WrongKey, "disk", "wrong"));
            assert_eq!(derive("disk", cancel, wrong).unwrap_err().kind(), ErrorKind::WrongKey);
        }
    }
}
