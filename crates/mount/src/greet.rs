//! What the kernel and a server agree on when a folder is mounted (`FUSE_INIT`).

use crate::serve::Serve;
use crate::state::Word;
use fuser::{InitFlags, KernelConfig};
use std::sync::atomic::Ordering;

/// Bytes of a request at most.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel sends ahead of need, or writes back, at a time.
const BACKGROUND_MAX: u16 = 64;

impl Serve {
    /// Says what this server wants of the kernel.
    pub(crate) fn greet(&self, config: &mut KernelConfig) {
        self.note(config);
        // Whatever this kernel lacks, it goes without.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        if let Err(most) = config.set_max_readahead(REQUEST_BYTES_MAX) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        // Without FUSE_FLOCK_LOCKS: the library does not tell those locks from others, so they hold among programs on the
        // mount alone. Without FUSE_WRITEBACK_CACHE, which excludes passing files, and makes sizes the kernel's.
        for capability in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            // Modes come unmasked, as the source's folders may say what new files get.
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_POSIX_ACL,
            // What a killed server has not answered is sent to its successor.
            InitFlags::FUSE_HAS_RESEND,
        ] {
            let _ = config.add_capabilities(capability);
        }
        // A write does not ask for attributes first. Only root can leave the bits of a mode, or not, for others.
        if self.server.is_root {
            let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        }
        let can_pass = self.passes
            && self.server.is_root
            && self.server.state.get(Word::CannotPass) == 0
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(self.stack_depth).is_ok();
        self.server.can_pass.store(can_pass, Ordering::Relaxed);
    }

    /// Notes how the kernel has greeted, for successors, whom it does not greet.
    fn note(&self, config: &mut KernelConfig) {
        let state = &self.server.state;
        let version = config.kernel_abi();
        state.set(Word::Capabilities, config.capabilities().bits());
        state.set(Word::Version, u64::from(version.0) << 32 | u64::from(version.1));
        let most = config.set_max_readahead(u32::MAX).err().unwrap_or(u32::MAX);
        state.set(Word::ReadAhead, u64::from(most));
    }
}
