//! Requests under way, and what they end with where nobody carries them out.

use crate::{Error, ErrorKind, Result};
use bifolio_device::Cancel;
use bifolio_device::pending::{self, Lost};
use std::path::Path;

/// A request under way. It goes on when this is dropped; `cancel` ends it early, with
/// [`ErrorKind::Cancelled`] unless its result came first.
pub type Pending<T> = bifolio_device::Pending<Result<T>>;

/// The other end of a request.
pub(crate) type Promise<T> = bifolio_device::Promise<Result<T>>;

/// A request about `path` that `cancel` can end.
pub(crate) fn promise<T>(path: &Path, cancel: &Cancel) -> (Promise<T>, Pending<T>) {
    let path = path.to_owned();
    pending::promise(cancel, move |lost| {
        Err(match lost {
            Lost::Forked => Error::forked(&path),
            Lost::Broken => {
                let detail = "the request ended without a result, which is a bug; please report it";
                Error::new(ErrorKind::Panicked, &path, detail)
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_promise_is_an_error_and_not_a_hang() {
        let (promise, pending) = promise::<()>(Path::new("data"), &Cancel::default());
        std::thread::spawn(move || drop(promise));
        assert_eq!(pending.wait().unwrap_err().kind(), ErrorKind::Panicked);
    }
}
