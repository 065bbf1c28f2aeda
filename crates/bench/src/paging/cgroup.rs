//! A memory cgroup: a process in it has so much memory and no more, so that it swaps while the machine does not.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where cgroups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// A group, which goes with this.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
}

impl Group {
    /// A group of so much memory.
    ///
    /// # Errors
    /// `Unavailable` where no memory cgroups can be made.
    pub fn new(bytes: u64) -> Result<Self> {
        let (parent, limit) = if Path::new(ROOT).join("memory/memory.limit_in_bytes").exists() {
            (Path::new(ROOT).join("memory"), "memory.limit_in_bytes")
        } else {
            (PathBuf::from(ROOT), "memory.max")
        };
        let unavailable = |path: &Path, error: std::io::Error| {
            Error::unavailable(format!("{}: a memory cgroup cannot be made: {error}", path.display()))
        };
        if limit == "memory.max" {
            // Children have a limit of their own only if their parent says so; it may have said so already.
            let _ = std::fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let folder = parent.join(format!("bifolio-{}-{:x}", std::process::id(), fastrand::u32(..)));
        std::fs::create_dir(&folder).map_err(|error| unavailable(&folder, error))?;
        let group = Self { folder };
        let path = group.folder.join(limit);
        std::fs::write(&path, bytes.to_string()).map_err(|error| unavailable(&path, error))?;
        Ok(group)
    }

    /// The file into which a process writes 0 to be in it.
    pub fn entrance(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

/// Enters a group, by its [`Group::entrance`].
///
/// # Errors
/// The system's.
pub fn enter(entrance: &Path) -> Result<()> {
    std::fs::write(entrance, "0").map_err(|error| Error::system(entrance.display(), "entering the cgroup", error))
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may still be counted.
        let begin = Instant::now();
        while std::fs::remove_dir(&self.folder).is_err() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
