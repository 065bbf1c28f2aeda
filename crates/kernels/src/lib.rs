//! GPU kernels from a single source, their parameter structs and their Rust oracles.
//!
//! ```text
//!   cl/kdef.h         the only file that asks which compiler reads it
//!   cl/<name>.h       per-thread functions: no barriers, no vector types, no templates
//!   cl/<name>.cl      thin kernels: group memory and barriers
//!   <name>.rs         the parameter struct, the oracle, the launch, inputs with known answers
//!   ../include        headers for programs' own kernels; each stands alone
//!   ../tests/native   the per-thread functions as native programs
//!
//!   KERNELS           the list: all that goes over every kernel goes over it
//!      |
//!   <name>.rs         one Kernel each; what it does is a method of Kernels or a function
//!      |    \
//!      |   page_list  what kernels over a list of pages share
//!      |    /
//!   load              compiles and tries a kernel; Kernels: those that a user has chosen
//!      |
//!   kernel            Kernel and Trial          addressing, launch, known_answer: below all
//! ```
//!
//! Invariants: an oracle is plain safe Rust and slow enough to be obviously right; on the `host`
//! device it *is* the kernel. Sizes of structs that travel are asserted on both sides. Every
//! thread reaches every barrier. A kernel reads and writes nothing outside the ranges it is given.
//!
//! On failure: a kernel is tried on a device against its oracle before it is used there. One that
//! does not compile or answers wrongly has no module, and [`KernelStatus`] says why. A kernel of
//! [`Kernels`] takes its host path then; in the place of others their user computes on the CPU. Results
//! are right either way.
//!
//! # Adding a kernel
//!
//! Five files, of which one is only a line longer:
//!
//! 1. `src/cl/<name>.h`: the per-thread functions and the parameter struct, which take an address space on every
//!    pointer and fields of fixed width, with `STATIC_ASSERT` on the struct's size.
//! 2. `src/cl/<name>.cl`: the thin kernel, which includes it.
//! 3. `src/<name>.rs`: the [`ModuleSource`](bifolio_device::ModuleSource) with the header last, the parameters'
//!    bytes, the oracle (slow and obvious), the kernel as the `host` device runs it, the launch, and a type that
//!    implements [`Kernel`]. Its trial draws inputs from the [`Trial`]'s numbers, poisons what is to be written and
//!    compares whole allocations; it is small for [`Effort::FirstUse`] and [`Effort::Interpreted`] and goes around
//!    every boundary for [`Effort::Exhaustive`]. Its last
//!    buffer is one that it writes.
//! 4. `src/lib.rs`: its module, and the type in [`KERNELS`].
//! 5. `tests/native/<name>.cpp`: the per-thread functions on buffers of exact size, against their definition. One
//!    program may serve several headers.
//!
//! The tiers find it there: NVRTC compiles it, devices and Oclgrind try it, a damaged device must be told by it, and
//! the native tier builds every program and misses the header of a kernel that has none. A kernel over a list of pages
//! implements `page_list::PageKernel` and gets launch, host path and lists with known answers from there.

mod addressing;
pub mod aes;
pub mod aes_ctr;
pub mod aes_gcm;
pub mod aes_xts;
pub mod byte_mask;
pub mod demand;
pub mod digest;
pub mod fold;
mod kernel;
pub mod known_answer;
mod launch;
mod load;
pub mod merge;
pub mod packets;
pub mod page_diff;
mod page_list;
pub mod raid6;
pub mod scatter;

pub use addressing::Addressing;
pub use kernel::{Effort, Kernel, Trial};
pub use load::{KernelPath, KernelStatus, Kernels, LoadedKernel};

pub use bifolio_device::{Error, ErrorKind, Result};

/// Every kernel of this crate. What goes over all kernels goes over this list.
pub const KERNELS: &[&dyn Kernel] = &[
    &page_diff::PageDiff,
    &scatter::Scatter,
    &merge::Merge,
    &byte_mask::ByteMask,
    &fold::Fold,
    &aes_xts::AesXts,
    &aes_ctr::AesCtr,
    &aes_gcm::AesGcm,
    &raid6::Raid6,
    &digest::Digest::Crc32c,
    &digest::Digest::Sha256,
    &packets::PacketBegin,
    &packets::IpHeader,
    &packets::IpLookup,
    &packets::FlowClassify,
    &packets::literal_match::LiteralMatch,
    &packets::esp::PacketEsp,
];
