//! Memory of a device and of its host, as values that free themselves and check their ranges.
//!
//! ```text
//!   allocation    device memory                    pinned         page-locked host memory
//!   frame         physical memory, in frames       pool           pinned slots that are used again
//!   range         addresses that frames map into   registration   page-locked file mappings
//! ```

mod allocation;
mod frame;
mod pinned;
mod pool;
mod range;
mod registration;

pub use allocation::Allocation;
pub use frame::Frame;
pub use pinned::PinnedBuffer;
pub use pool::{PinnedPool, PoolStats, Slot};
pub use range::AddressRange;
pub use registration::HostRegistration;
