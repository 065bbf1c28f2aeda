//! Files that are made for a benchmark, and removed however it ends.

use std::path::{Path, PathBuf};

/// Files that remove themselves.
#[derive(Debug, Default)]
pub struct Scratch(Vec<PathBuf>);

impl Scratch {
    /// Remembers a file that is about to be made, or was.
    pub fn add(&mut self, path: impl Into<PathBuf>) {
        self.0.push(path.into());
    }

    /// A name in a folder that no other process uses for this.
    pub fn name(folder: &Path, what: &str) -> PathBuf {
        folder.join(format!(".bifolio-{what}-{}", std::process::id()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
