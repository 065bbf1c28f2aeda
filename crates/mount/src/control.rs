//! Calls about open files (`ioctl`) that reach the source.

use crate::server::Server;
use crate::sys;
use std::io;

/// The calls, and how many bytes each takes: the flags that `lsattr` shows, and those with a project.
const CONTROLS: [(u32, usize); 4] = [(0x8008_6601, 8), (0x4008_6602, 8), (0x801c_581f, 28), (0x401c_5820, 28)];

impl Server {
    /// What a call returns, the bytes that it gives, and how many of these are wanted.
    pub(crate) fn control(
        &self,
        handle: u64,
        command: u32,
        given: &[u8],
        wanted: usize,
    ) -> io::Result<(i32, [u8; 64], usize)> {
        let known = CONTROLS.iter().find(|(known, _)| *known == command);
        let (_, len) = known.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTTY))?;
        let mut bytes = [0; 64];
        let given = &given[..given.len().min(*len)];
        bytes[..given.len()].copy_from_slice(given);
        let result = match self.openings.file(handle) {
            Ok(file) => sys::control(file.as_fd(), command, &mut bytes)?,
            Err(_) => sys::control(self.openings.folder(handle)?.as_fd(), command, &mut bytes)?,
        };
        Ok((result, bytes, wanted.min(*len)))
    }
}
