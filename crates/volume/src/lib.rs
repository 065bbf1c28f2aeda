//! Volumes: encrypted and redundant block devices in standard formats, and their way into device memory.
//!
//! ```text
//!   open        from paths to a volume, through all layers
//!   luks/       LUKS volumes over any device
//!   md/         md RAID-6
//!   load/       Load, the extension of BlockDevice: volumes, and files of authenticated blocks, into device memory
//! ```
//!
//! What volumes are made of and served by (files, faults, range locks, exports) is `bifolio-block`'s: a volume is a
//! [`BlockDevice`] like any other, and its errors as one are block's. [`Error`] has the kinds that opening, making,
//! repairing and loading a volume add; the two turn into each other without loss of subject, sentence and cause.

mod error;
pub mod load;
mod luks;
pub mod md;
mod open;

pub use bifolio_block::{BlockDevice, FileDevice, Geometry, Overwrite, signatures};
pub use error::{Error, ErrorKind, Result};
pub use load::{Load, Loader, RoutedFile, Sealed};
pub use luks::{FormatOptions, Keyslot, Luks, LuksInfo, Pbkdf, Unlock};
pub use open::{ArrayInfo, AskKey, Layer, OpenOptions, Opened, describe, open, unencrypted};
