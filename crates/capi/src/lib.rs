//! Bifolio for C and for whatever can call C.
//!
//! ```text
//!   bf_context     a device and its router          context.rs
//!   bf_file        an open file or striped set      file.rs
//!   bf_request     a request that runs by itself    request.rs
//!   bf_order_after what comes before a call          order.rs
//!   bf_mmap        files mapped on devices          mapping.rs
//!   bf_paged_alloc memory larger than its share     paged.rs
//!   bf_status      why something failed             status.rs
//! ```
//!
//! The documentation of the functions is that of `include/bifolio.h`, which is generated from this
//! source (`cargo test -p bifolio-capi` compares the two, and writes it with `BIFOLIO_BLESS=1`).
//!
//! Handles are counted: a file keeps its context and a request its file, so they may be closed in any
//! order. No panic crosses the boundary: it becomes `BF_ERROR_PANIC`.

mod context;
mod file;
mod mapping;
mod order;
mod paged;
mod request;
mod status;

pub use context::{
    bf_alloc, bf_calibrate, bf_context, bf_context_close, bf_context_open, bf_copy_from_host, bf_copy_to_host,
    bf_device, bf_free, bf_options,
};
pub use file::{
    BF_CREATE, BF_DONTNEED, BF_DURABLE, BF_NORMAL, BF_RANDOM, BF_READ, BF_SEQUENTIAL, BF_WILLNEED, BF_WRITE, bf_advise,
    bf_close, bf_explain, bf_extent, bf_file, bf_open, bf_read, bf_read_batch, bf_size, bf_stripe_create, bf_sync,
    bf_write,
};
pub use mapping::{BF_MAP_ONGPU, bf_cache_stats, bf_macquire, bf_madvise, bf_mmap, bf_mrelease, bf_msync, bf_munmap};
pub use order::{BF_AFTER_DEFAULT_STREAMS, BF_AFTER_NOTHING, BF_AFTER_STREAM, bf_order_after};
pub use paged::{
    bf_paged_alloc, bf_paged_free, bf_paged_set_budget, bf_paged_statistics, bf_paged_stats, bf_paged_trouble,
};
pub use request::{
    bf_read_on_stream, bf_request, bf_request_cancel, bf_request_free, bf_request_is_done, bf_request_wait,
    bf_submit_batch, bf_submit_read, bf_submit_write,
};
pub use status::{bf_last_error, bf_status, bf_string_free, bf_version};

/// An address in device memory: a `CUdeviceptr`, or on the device `host` any address of this process.
#[allow(non_camel_case_types, reason = "C names")]
pub type bf_ptr = u64;
