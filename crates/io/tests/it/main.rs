//! The behaviour of the routers, held against `pread` and `pwrite`.

mod arrivals;
mod batches;
mod compare;
mod consistency;
mod engines;
mod faults;
mod many;
mod process;
mod readahead;
mod requests;
mod spread;
mod stripes;
mod support;
mod writes;
