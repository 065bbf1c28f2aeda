//! Open files.
//!
//! ```text
//!   open         what users hold: one plain file, or a striped set of them, and the order of its reads and writes
//!     stripe     sets: their names, their layout, opening and creating them
//!     ranges     locks of ranges, first come first served
//!     change     whether a plain file has changed since
//!       plain    one file or block device: what it is, how large, whether it may be written
//!         file_system   what holds it, and what the times and leases of that tell of changes
//!         descriptors   how it is read and written
//!         attachments   what engines and readahead keep with it, without the file knowing what that is
//! ```

mod attachments;
mod change;
mod descriptors;
mod file_system;
mod open;
mod plain;
mod ranges;
pub mod stripe;

pub(crate) use attachments::{Attachment, Keeper, Kept};
pub use change::Observation;
pub(crate) use change::Stamp;
pub use open::OpenFile;
pub use plain::PlainFile;
pub(crate) use ranges::{Mode, Ticket};
