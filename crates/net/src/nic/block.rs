//! Keeping the kernel from what we receive.

use super::link::Link;
use super::{Error, Kind, Result, bpf};
use std::os::fd::AsFd;

/// While it exists, the kernel handles no packet that a device receives; packet sockets see them all the same. It goes
/// when the process ends, by whatever end. Needs Linux 6.6, `CAP_NET_ADMIN` and `CAP_BPF`.
#[derive(Debug)]
pub struct Block {
    _program: bpf::Attachment,
}

impl Block {
    /// Keeps the kernel from packets of the device.
    pub fn new(link: &Link) -> Result<Self> {
        let attach = || bpf::attach_block(bpf::load_block()?.as_fd(), link.index);
        let program = attach().map_err(|source| {
            Error::system(format!("{}: cannot keep the kernel from its packets", link.name), source)
                .hint(
                    Kind::Denied,
                    "this needs CAP_NET_ADMIN and CAP_BPF, so run as root or give the program these capabilities",
                )
                .hint(Kind::Unsupported, "this needs Linux 6.6 or newer; with METHOD AF_XDP it is so without this")
        })?;
        Ok(Self { _program: program })
    }
}
