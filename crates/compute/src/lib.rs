//! Storage services, on the CPU and on a device.
//!
//! ```text
//!   cpu/    AES in XTS, CTR and GCM on the CPU
//! ```

pub mod cpu;
