//! AES-GCM of many messages in device memory (NIST SP 800-38D): nonces of 12 or 16 bytes, up to 32
//! bytes of additional data, tags of 16 bytes. The blocks of gocryptfs are such messages.
//!
//! Two launches follow each other in the stream: one computes what every message begins with into
//! scratch memory of the caller's, the other has 32 threads for each message. Decryption hashes first
//! and decrypts afterwards: the plaintext of a message whose tag is wrong is not written, and its flag
//! is 0. The scratch is as secret as the plaintext: clear it with the schedules. See [`crate::aes`] for
//! keys and side channels; the products of the hash are made of integer products, without tables.
//!
//! The kernels are made for messages of some hundred bytes to some hundred KiB.

mod case;
mod host;
mod launch;
mod message;
mod oracle;

pub use case::Case;
pub use launch::{Keyed, START_BYTES, decrypt, encrypt, list};
pub use message::{AAD_MAX, Blocks, Layout, MESSAGE_BYTES, Message, Operands, check, encode, encode_into};
pub(crate) use oracle::SCHEDULES_BYTES;
pub use oracle::{oracle_decrypt, oracle_encrypt, schedules};

use crate::aes::{self, KeySize};
use crate::aes_ctr;
use crate::kernel::{Effort, Kernel, Trial};
use bifolio_device::ModuleSource;

/// The header of all kernels with AES-GCM; it wants those of AES and of counter mode.
pub(crate) const HEADER: (&str, &str) = ("aes_gcm.h", include_str!("../cl/aes_gcm.h"));

const MODULE: ModuleSource = ModuleSource {
    name: "aes_gcm",
    source: include_str!("../cl/aes_gcm.cl"),
    headers: &[aes::HEADERS[0], aes::HEADERS[1], aes::HEADERS[2], aes_ctr::HEADER, HEADER],
    kernels: &[
        (launch::MESSAGES, host::messages_on_host),
        (launch::STARTS, host::starts_on_host),
        (launch::ENCRYPT, host::encrypt_on_host),
        (launch::DECRYPT, host::decrypt_on_host),
    ],
};

/// The kernels.
#[derive(Debug)]
pub struct AesGcm;

impl Kernel for AesGcm {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        let module = trial.compiled()?;
        let (lists, sizes, shapes): (u32, &[KeySize], &[(usize, u64)]) = match trial.effort() {
            Effort::FirstUse => (1, &KeySize::ALL, &[(9, 5000)]),
            Effort::Interpreted => (0, &[KeySize::Aes128], &[(9, 100)]),
            // Lengths around a block, a thread's blocks and a step of a team, with more messages than a group takes.
            Effort::Exhaustive => (
                20,
                &KeySize::ALL,
                &[
                    (0, 16),
                    (1, 1),
                    (9, 15),
                    (8, 16),
                    (7, 17),
                    (9, 511),
                    (9, 512),
                    (17, 4096),
                    (9, 4097),
                    (3, 20_000),
                    (300, 40),
                ],
            ),
        };
        let stream = trial.stream();
        (0..lists).try_for_each(|_| case::try_list(trial.draw(), stream, module))?;
        let cases = shapes.iter().flat_map(|shape| sizes.iter().map(move |size| (shape, size)));
        cases.into_iter().try_for_each(|((count, bytes), size)| {
            Case::draw(trial.draw(), *size, *count, *bytes).run(trial.stream(), module)
        })
    }
}
