//! Encrypted directories in gocryptfs's on-disk format: every file an encrypted file, every name an encrypted name.
//!
//! ```text
//!   CipherDir      a directory, opened by a passphrase or its master key
//!     Folder       one directory of the tree: its IV and names, by descriptor
//!     CryptFile    one file, read and written by plain offsets, every block authenticated
//!   mount          the whole as a file system, through FUSE
//!   CryptDevice    one file as a block device, and what it takes to decrypt it in device memory
//!
//!   config  keys  names  content      the format, without effects
//!   verdict  replace  holes          whether a master key is the right one, a new configuration, sparse files
//! ```
//!
//! [`content::layout`] and [`CipherDir::content_key`] are for those who decrypt elsewhere.

mod base64;
pub mod config;
pub mod content;
mod device;
mod dir;
mod eme;
mod error;
mod file;
mod folder;
mod format;
mod fuse;
mod holes;
mod keys;
mod names;
mod random;
mod replace;
mod sys;
mod verdict;

pub use bifolio_block::fuse::{Mounted, Unmounted};
pub use device::CryptDevice;
pub use dir::{CipherDir, InitOptions, Key, PassphraseChange};
pub use error::{Error, ErrorKind, Result};
pub use file::CryptFile;
pub use fuse::{MountOptions, Warn, mount};
pub use keys::{KEY_BYTES, MasterKey};
