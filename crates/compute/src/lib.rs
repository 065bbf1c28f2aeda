//! Storage services, on the CPU and on a device.
//!
//! ```text
//!   cpu/    AES in XTS, CTR and GCM, and P and Q of RAID-6, on the CPU
//! ```

pub mod cpu;
