//! LUKS volumes (versions 1 and 2) with AES-XTS, over any device below.
//!
//! ```text
//!   ffi       libcryptsetup: headers, keyslots, digests
//!   memory    the copy of a header that the library works on
//!   header    what a header says, and the key out of it
//!   segment   where the data lies: claims of the header, checked
//!   json      LUKS2's description of a volume, checked
//!   diagnose  what is wrong with a header that the library refuses
//!   derive    key derivations, which can be given up
//!   format    new volumes
//!   open      opening and making volumes
//!   info      what a header says without its key
//!   data      the BlockDevice: sectors decrypted and encrypted
//! ```
//!
//! Opening never writes. Keys and passphrases are cleared when they are dropped, and no error or debug
//! output carries them.

mod data;
mod derive;
mod diagnose;
mod ffi;
mod format;
mod header;
mod info;
mod json;
mod memory;
mod open;
mod segment;

pub use data::Luks;
pub use format::{FormatOptions, Pbkdf};
pub use info::{Keyslot, LuksInfo, Unlock};
