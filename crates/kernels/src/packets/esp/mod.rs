//! ESP with AES-GCM (RFC 4303, RFC 4106): packets of a batch are encrypted, or verified and decrypted.
//!
//! ```text
//!   params   what is done, and where results and texts lie
//!   launch   one kernel for all packets of a batch
//!   oracle   a packet after the other, by the oracle of AES-GCM
//!   host     the same for the `host` device
//!   case     random packets with known answers
//! ```
//!
//! The kernel does what takes time, and no more: it gives ciphertext and tag of a packet, or what was encrypted, and leaves headers,
//! sequence numbers and their window to who makes packets of it. Keys are those of [`crate::aes_gcm::schedules`], and are as
//! secret in their buffer; see [`crate::aes`] for side channels. What is decrypted of a packet whose tag is wrong is cleared before
//! the kernel ends.
//!
//! Packets lie in the variable part of a batch at 4-byte boundaries, so texts are read and written in words.

mod case;
mod host;
mod launch;
mod oracle;
mod params;

pub use launch::{Operands, launch};
pub use oracle::oracle;
pub use params::{Esp, GROWTH, Mode, TAG_BYTES};

use super::rows::PACKET_ROWS_H;
use crate::kernel::{Kernel, Trial};
use crate::{aes, aes_ctr, aes_gcm};
use bifolio_device::ModuleSource;

const ESP: &str = "esp";

const MODULE: ModuleSource = ModuleSource {
    name: ESP,
    source: include_str!("../../cl/esp.cl"),
    headers: &[
        aes::HEADERS[0],
        aes::HEADERS[1],
        aes::HEADERS[2],
        aes_ctr::HEADER,
        aes_gcm::HEADER,
        PACKET_ROWS_H,
        ("esp.h", include_str!("../../cl/esp.h")),
    ],
    kernels: &[(ESP, host::on_host)],
};

/// The kernel; [`launch`] runs it.
#[derive(Debug)]
pub struct PacketEsp;

impl Kernel for PacketEsp {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        case::try_out(trial)
    }
}
