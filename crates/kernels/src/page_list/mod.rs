//! Kernels that work on a list of pages: a table on the device with a row for each page, which names its place in
//! three operands. One group of threads takes one page and writes one word about it.
//!
//! ```text
//!   row     the table, and what a kernel says of itself
//!   run     the launch, the kernel on the `host` device, and the path over host memory
//!   case    inputs with a known answer
//! ```

mod case;
mod row;
mod run;

pub(crate) use case::{LENGTHS, PageCase, try_lists};
pub(crate) use row::{PageKernel, ROW_BYTES, Row, check, check_len, count, encode};
pub(crate) use run::{run, run_on_host};
