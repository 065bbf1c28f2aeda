//! What the tests share: a source, mounted.

use bifolio_block::fuse::Mounted;
use bifolio_mount::{MountOptions, NoReplicas, Replicas, mount};
use bifolio_testing::skip;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether mounting is possible here, for all that root may.
pub(crate) fn can_mount() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() == 0 };
    let can = is_root && Path::new("/dev/fuse").exists();
    if !can {
        skip("mounting takes root and FUSE");
    }
    can
}

/// A folder below the build folder.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A source and its mount; unmounted in the end.
pub(crate) struct World {
    mounted: Option<Mounted>,
    folder: tempfile::TempDir,
}

impl World {
    pub(crate) fn new(serves_all: bool) -> Self {
        let replicas: Arc<dyn Replicas> = Arc::new(NoReplicas);
        Self::with(serves_all, &replicas)
    }

    pub(crate) fn with(serves_all: bool, replicas: &Arc<dyn Replicas>) -> Self {
        let folder = folder();
        let (source, place) = (folder.path().join("source"), folder.path().join("mount"));
        std::fs::create_dir(&source).unwrap();
        std::fs::create_dir(&place).unwrap();
        let options = MountOptions { allows_other: true, serves_all, ..MountOptions::default() };
        let mounted = mount(&source, &place, &options, replicas).unwrap();
        // So that other users reach it.
        let open = |path: &Path| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, mode).unwrap();
        };
        open(folder.path());
        Self { mounted: Some(mounted), folder }
    }

    /// The source by itself.
    pub(crate) fn source(&self, name: &str) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    /// The same through the mount.
    pub(crate) fn mount(&self, name: &str) -> PathBuf {
        self.folder.path().join("mount").join(name)
    }

    /// A folder beside both.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let unmounted = mounted.unmount();
            if !std::thread::panicking() {
                unmounted.unwrap();
                mounted.wait().unwrap();
            }
        }
    }
}
