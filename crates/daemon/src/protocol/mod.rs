//! Messages as words, and back: pure functions. `docs/protocol.md` says what they mean.
//!
//! A message is a sequence of 64-bit words in little-endian order: what it is, its number, and what it says. Text is its
//! length in bytes and the bytes, filled up to whole words. Whoever reads one believes nothing: what is too short, too
//! long, or says what cannot be, is no message.
//!
//! ```text
//!   messages   what is said       limits   how much of it
//!   requests   a client's, as words, and back      answers   a server's, and status: what there is
//!   words      one by one
//! ```

mod answers;
mod limits;
mod messages;
mod requests;
mod status;
mod words;

pub use answers::{decode_answer, encode_answer};
pub use limits::{CLIENTS_MAX, DATA_BYTES_MAX, FILES_MAX, FRAMES_MAX, HOLDERS_MAX, NUMBERS_MAX, VERSION};
pub use messages::{ClientStatus, DeviceStatus, Event, FileStatus, Status, ToClient, ToServer};
pub use requests::{decode_request, encode_request};

#[cfg(test)]
mod tests;
