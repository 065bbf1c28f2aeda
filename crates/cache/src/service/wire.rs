//! A service as it is asked from elsewhere: requests and answers, and errors, are bytes on the way.

use super::{Answer, Request, Service};
use crate::error::{Error, ErrorKind, Result};
use crate::state::lease::Client;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Wire(pub(crate) Arc<dyn Service>);

/// An error, as numbers and text.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    kind: usize,
    subject: String,
    detail: String,
    os_code: Option<i32>,
}

impl Refusal {
    fn of(error: &Error) -> Self {
        let kind = ErrorKind::ALL.iter().position(|kind| *kind == error.kind()).unwrap_or(0);
        let (subject, detail) = (error.subject().to_owned(), error.detail().to_owned());
        Self { kind, subject, detail, os_code: error.os_code() }
    }

    fn error(self) -> Error {
        let kind = ErrorKind::ALL[self.kind % ErrorKind::ALL.len()];
        Error::told(kind, &self.subject, self.detail, self.os_code)
    }
}

impl Service for Wire {
    fn ask(&self, client: Client, request: Request) -> Result<Answer> {
        let asked = cross(&(client, request));
        let answer: Result<Answer> = self.0.ask(asked.0, asked.1);
        cross(&answer.map_err(|error| Refusal::of(&error))).map_err(Refusal::error)
    }
}

/// As it comes out of a socket at the other end.
fn cross<T: Serialize + for<'a> Deserialize<'a>>(value: &T) -> T {
    let bytes = serde_json::to_vec(value).expect("numbers and text");
    serde_json::from_slice(&bytes).expect("what was written")
}
