//! Frames: physical memory of a GPU, which other processes of it may import.

use super::abi::HANDLE_FD;
use super::context::Context;
use crate::backend::RawFrame;
use crate::{Error, ErrorKind, Result};
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// One physical frame; the driver keeps its memory while it is mapped or imported elsewhere.
#[derive(Debug)]
pub(super) struct CudaFrame {
    pub(super) context: Arc<Context>,
    pub(super) handle: u64,
    pub(super) is_exportable: bool,
}

impl RawFrame for CudaFrame {
    fn export(&self) -> Result<OwnedFd> {
        if !self.is_exportable {
            let detail = "this GPU and driver cannot export memory as file descriptors";
            return Err(Error::new(ErrorKind::Unsupported, detail));
        }
        let _entered = self.context.enter_relaxed()?;
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver stores a descriptor, an integer.
        let status = unsafe {
            (self.context.cuda.cuMemExportToShareableHandle)((&raw mut fd).cast(), self.handle, HANDLE_FD, 0)
        };
        self.context.cuda.check(status, format_args!("exporting a frame of device memory"))?;
        // SAFETY: the driver just opened the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for CudaFrame {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the handle has no other owner. A failure means that the context is gone.
            unsafe { (self.context.cuda.cuMemRelease)(self.handle) };
        }
    }
}
