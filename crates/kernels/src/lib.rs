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

pub mod aes;
pub mod aes_ctr;
pub mod aes_gcm;
pub mod aes_xts;
pub mod byte_mask;
pub mod demand;
pub mod digest;
pub mod known_answer;
mod load;
pub mod merge;
pub mod page_diff;
mod page_list;
pub mod raid6;
pub mod scatter;

pub use load::{KernelPath, KernelStatus, Kernels, Service};
pub use page_list::Base;

pub use bifolio_device::{Error, ErrorKind, Result};

/// The header that every module includes.
const KDEF_H: (&str, &str) = ("kdef.h", include_str!("cl/kdef.h"));

/// The header of those that look for bytes that differ.
const DIFFER_H: (&str, &str) = ("differ.h", include_str!("cl/differ.h"));

/// Address boundary of the 16-byte loads and stores in the kernels.
const WORD_BYTES: u64 = 16;

/// Every module of this crate, for tools that compile them all.
pub const MODULES: [&bifolio_device::ModuleSource; 10] = [
    &page_diff::MODULE,
    &scatter::MODULE,
    &merge::MODULE,
    &byte_mask::MODULE,
    &aes_xts::MODULE,
    &aes_ctr::MODULE,
    &aes_gcm::MODULE,
    &raid6::MODULE,
    &digest::CRC32C,
    &digest::SHA256,
];
