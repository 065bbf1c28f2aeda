//! Volumes into device memory.
//!
//! ```text
//!   device    Load: the extension of BlockDevice
//!   file      RoutedFile: the router's engines, by the cache state of the file
//!   xts       for Luks: ciphertext by the device below, decrypted where it lands
//!   gcm       Sealed: blocks with tags, verified and decrypted where they land
//!   stripes   for Raid6: members at the same time, each chunk to its place; what is lost is computed there
//!   follow    work that follows the bytes of one request
//!   parts     long ranges divided
//!   loader    what loads of one device share
//! ```
//!
//! Encrypted files come by one request of the router, and what lands is decrypted behind it by a stream of its own
//! (`follow`). Other long requests are cut into parts, and a few threads take one part after the other: while one part is
//! decrypted or recovered, others are on their way over the link. So of the computation only that of the
//! last part is seen. A thread's part is whole when it takes the next.
//!
//! Plaintext and recovered data exist in device memory only, except on devices whose kernels do not work.

mod device;
mod file;
mod follow;
mod gcm;
mod loader;
mod parts;
mod stripes;
#[cfg(test)]
mod tests;
mod xts;

pub use device::Load;
pub(crate) use device::through_host;
pub use file::RoutedFile;
pub use gcm::Sealed;
pub use loader::Loader;
pub(crate) use stripes::{ArraySnapshot, Failed, load_stripes};
pub(crate) use xts::{Cipher, load_encrypted};
