//! Storage services, on the CPU and on a device.
//!
//! ```text
//!   cpu/    AES in XTS, CTR and GCM on the CPU
//!   keyed/  the same in device memory, with the keys there
//! ```

pub mod cpu;
pub mod keyed;
