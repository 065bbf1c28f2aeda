//! File systems of user space: the one way to mount them, and a device as a mounted file.

mod file;
mod mount;

pub use file::{MountedDevice, export};
pub use mount::{MountOptions, Mounted, Unmounted, mount, mount_notified, unmount};
