//! md RAID-6: arrays in the format of Linux's md, with superblocks of versions 1.0 to 1.2.
//!
//! ```text
//!   superblock   what a member says of its array
//!   choose       which members make up the array; pure
//!   layout       where data, P and Q lie; pure
//!   state        members, and how superblocks follow what happens to them
//!   array        Raid6: assembling, closing, and the volume itself
//!   load         into device memory
//!   read, write  stripes; which chunks a write reads first is decided by pure functions
//!   log          what closes the write hole
//!   replayed     members as they will be when the log has been carried out, for reading
//!   create, rebuild, scrub
//!   threads      long work divided
//! ```
//!
//! # What a loss of power leaves
//!
//! The state of the superblocks is md's: before the first write they are marked (`resync_offset` 0, "active"), and
//! by closing the array they are marked clean. An array that was not closed is resynchronised by Linux as a
//! whole. By this module it is put right when it is next opened for writing, as follows; where the members leave
//! room before their data (every array made here, and most made by mdadm) there is a [log](self#the-log). Opened for
//! reading only, it reads the same, and nothing is written: what the log has is laid over the members in memory.
//!
//! | when power was lost | with a log | without (no room, or a bitmap) |
//! |---|---|---|
//! | no member missing, none missing afterwards | P and Q of the regions written are computed again, at once | P and Q of all are in doubt until [`Raid6::resync`]; writes read no old parity until then |
//! | one or two missing | stripes under way are finished from the log, when reading only in memory; every other byte is as it was | the array opens for reading only, unless [`Options::force`]: a stripe that was under way may have lost the missing members' chunks |
//! | none missing, but one or two missing afterwards | opens for reading only, unless forced: of stripes that were under way, the missing members' chunks may be lost | likewise |
//!
//! So with a log, nothing that was flushed is lost by a loss of power, nor by one after a member was lost; what
//! remains is the loss of power and of a member at the same moment. Blocks of a write that was under way are old or
//! new.
//!
//! # The log
//!
//! See the `log` module. Linux does not know it and never reads it. It lies in space that md leaves to later
//! changes of the array's shape, at the end before the data, and becomes void when anything else writes the
//! superblocks. In an array with all its members a log costs a write and a flush for each 64 MiB region that
//! was not written before; in a degraded one every write is stored twice (three copies less one for each member missing), and
//! flushed, before it reaches its stripe.
//!
//! # Order of locks
//!
//! A stripe's lock, the state, the log's. Whoever changes the state holds neither the state nor the log, and
//! may hold a stripe's lock.

mod array;
mod choose;
mod create;
mod layout;
mod load;
mod log;
mod parts;
mod read;
mod rebuild;
mod replayed;
mod scrub;
mod state;
pub mod superblock;
mod write;

pub use array::{ArrayState, MemberInfo, Options, Raid6};
pub use choose::LeftOut;
pub use create::{Content, CreateOptions};
pub use layout::{Layout, Location, Rotation};
pub use replayed::Replay;
pub use scrub::{Finding, ScrubReport};
