//! One cache for all processes: a keeper that outlives everybody, a server that does the work, and clients with mappings
//! of the same kind as in process.
//!
//! ```text
//!   daemon    the keeper's process: it listens, holds descriptors, restarts the server      options
//!   server/   the server's process: connections, access, limits; the cache itself is `bifolio_cache`
//!     holding   what the keeper holds for it, and the catalogue that says what is what
//!     access    who gets what (pure)         limits    how much of it (pure)
//!     copies    memory of their own for those to whom no frame is lent
//!     session   what one client asks for      kept      files that stay on a device
//!     reclaim   memory that others need       pressure  what is done next for that (pure)
//!     news      what clients are told of versions
//!     log       what is said, by `tracing`
//!   client/   connections, files, mappings
//!   protocol  messages as words (pure)        socket    messages with descriptors
//! ```
//!
//! The protocol is in `docs/protocol.md`, who is protected from whom in `docs/threat-model.md`.
//!
//! Whoever dies: a *server* is started again by the keeper and goes on where it was, with the connections that the keeper
//! holds, and clients ask again what was not answered. A *client's* leases end. With the *keeper* the server ends, and
//! clients get errors, and keep what they have mapped.

pub mod client;
mod daemon;
#[cfg(feature = "fault-injection")]
pub mod fault;
#[cfg(not(feature = "fault-injection"))]
#[allow(dead_code, unreachable_pub, reason = "points are listed for the tests that end servers at them")]
mod fault;
mod options;
pub mod protocol;
mod server;
pub mod socket;

pub use bifolio_cache::{Error, ErrorKind, Result};
pub use client::{Client, Recall, SharedFile};
pub use daemon::{Daemon, Event, default_socket, line_of};
pub use options::{Limits, Options};
pub use server::serve;
