//! IPsec: ESP with AES-GCM (RFC 4303, RFC 4106), by the CPU; GPUIPsecESP does the same on a device.
//!
//! ```text
//!   encap, unencap   the elements
//!   sender           sequence numbers, and packets to be encrypted      receiver   the window, and packets to be decrypted
//!   association      what both ends of it know                          window     sequence numbers that were seen
//!   frame            where things lie in packets                        refusals   packets that are refused, counted
//! ```

use crate::element::Class;

pub(super) mod association;
mod encap;
pub(super) mod frame;
pub(super) mod receiver;
pub(super) mod refusals;
pub(super) mod sender;
#[cfg(test)]
mod tests;
mod unencap;
pub(super) mod window;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<encap::Encap>(
        "IPsecESPEncap",
        "1/1-2",
        "a/ah",
        "encrypts and authenticates packets by ESP with AES-GCM",
    ),
    Class::new::<unencap::Unencap>(
        "IPsecESPUnencap",
        "1/1-2",
        "a/ah",
        "verifies and decrypts ESP packets with AES-GCM",
    ),
];
