//! The tiers that need more than this crate: a compiler, a device, an interpreter of kernels, a backend that fails.
//! Those that go over all kernels go over [`bifolio_kernels::KERNELS`].

mod demand;
mod devices;
mod fallback;
mod native;
mod nvrtc;
mod oclgrind;
#[path = "../support/devices.rs"]
mod opened;
mod parallel;
#[path = "../demand/mod.rs"]
mod probe;
mod vectors;
