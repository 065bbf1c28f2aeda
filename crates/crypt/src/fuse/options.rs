//! How a directory is mounted.

use std::sync::Arc;

/// Takes sentences about damage: names that are left out of listings, blocks that are not given out.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// How a directory is mounted.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct MountOptions {
    /// Nothing can be changed.
    pub is_read_only: bool,
    /// Other users have access, as files' permissions say; `user_allow_other` in `/etc/fuse.conf` has to permit it.
    pub allows_other: bool,
    /// Device files work as such.
    pub allows_devices: bool,
    /// Bits for another user and group in executables count.
    pub allows_suid: bool,
    /// Executables can be executed.
    pub allows_exec: bool,
    /// There may be files in the mount point, which are not seen meanwhile.
    pub allows_nonempty: bool,
    /// What `mount` shows as the source; the encrypted directory's path otherwise.
    pub source: Option<String>,
    /// Where sentences about damage go.
    pub warn: Warn,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            is_read_only: false,
            allows_other: false,
            allows_devices: false,
            allows_suid: false,
            allows_exec: true,
            allows_nonempty: false,
            source: None,
            warn: Arc::new(|sentence| eprintln!("bifolio: {sentence}")),
        }
    }
}

impl std::fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountOptions").field("is_read_only", &self.is_read_only).finish_non_exhaustive()
    }
}
