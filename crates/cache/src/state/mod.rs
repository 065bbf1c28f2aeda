//! What must outlive a process, of one file: plain numbers in one region, which mean the same to every process that
//! finds them.
//!
//! ```text
//!   region   the memory, by file               layout    where its tables lie
//!   table    rows of numbers
//!   pages    who has which version             replicas  which frame has which content
//!   lease    who uses what                     record    what is being done at the moment
//!   plan     what is done with what was being done
//!   keeper   who holds the descriptors of regions and frames
//! ```
//!
//! All of it is read and written under the file's lock. What can be found out again is not here: addresses, which the
//! next process chooses anew; what was seen of the file, which has to be looked at anew; and hints that save a look.

pub(crate) mod keeper;
pub(crate) mod layout;
pub(crate) mod lease;
pub(crate) mod pages;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod region;
pub(crate) mod replicas;
pub(crate) mod table;
