//! Storage services, on the CPU and on a device.
//!
//! ```text
//!   cpu/    AES in XTS, CTR and GCM, and P and Q of RAID-6, on the CPU
//!   keyed/  the same in device memory, with the keys there
//! ```

pub mod cpu;
pub mod keyed;
