//! The command, run as a program on the embedded device: what it does, prints and leaves behind, never how quick it is.

mod bench_compute;
mod bench_net;
mod bench_paging;
mod bench_plan;
mod bench_read;
mod bench_volume;
mod cache;
mod crypt;
mod daemon;
mod faults;
mod interrupted;
#[cfg(feature = "mount")]
mod mount;
mod net;
mod raid;
mod read;
mod read_volume;
mod support;
mod swap;
mod volume;
mod write;
