//! GPU kernels from a single source, their parameter structs and their Rust oracles.
//!
//! ```text
//!   cl/kdef.h         the only file that asks which compiler reads it
//!   cl/<name>.h       per-thread functions: no barriers, no vector types, no templates
//!   cl/<name>.cl      thin kernels: group memory and barriers
//!   <name>.rs         the parameter struct, the oracle, the launch, the known-answer case
//!   ../include        headers for programs' own kernels; each stands alone
//! ```
//!
//! Invariants: an oracle is plain safe Rust and slow enough to be obviously right; on the `host`
//! device it *is* the kernel. Sizes of structs that travel are asserted on both sides. Every
//! thread reaches every barrier. A kernel reads and writes nothing outside the ranges it is given.
//!
//! On failure: [`Kernels::load`] tries each kernel on the device against its oracle. A kernel that
//! does not compile or answers wrongly is replaced by its host path, and [`KernelStatus`] says so
//! with the reason: results are right either way. A storage [`Service`] is tried in the same way when
//! it is first used; in the place of one that fails its user computes on the CPU.

mod addressing;
pub mod aes;
pub mod aes_ctr;
pub mod aes_gcm;
pub mod aes_xts;
pub mod byte_mask;
pub mod demand;
pub mod digest;
mod kernel;
pub mod known_answer;
mod launch;
mod load;
pub mod merge;
pub mod page_diff;
mod page_list;
pub mod raid6;
pub mod scatter;

pub use addressing::Addressing;
pub use kernel::{Effort, Kernel, Trial};
pub use load::{KernelPath, KernelStatus, Kernels, LoadedKernel};

pub use bifolio_device::{Error, ErrorKind, Result};

/// Every kernel of this crate.
pub const KERNELS: &[&dyn Kernel] = &[
    &page_diff::PageDiff,
    &scatter::Scatter,
    &merge::Merge,
    &byte_mask::ByteMask,
    &aes_xts::AesXts,
    &aes_ctr::AesCtr,
    &aes_gcm::AesGcm,
    &raid6::Raid6,
    &digest::Digest::Crc32c,
    &digest::Digest::Sha256,
];
