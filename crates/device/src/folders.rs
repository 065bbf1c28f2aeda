//! Where distributions, containers, toolkits and Python packages keep libraries.
//!
//! What depends on the processor is data ([`Architecture`]), so that the folders for one architecture can be seen
//! on another.

use std::path::{Path, PathBuf};

/// What the names of folders say about processors of one architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Architecture {
    /// In Debian's names (multiarch): `/usr/lib/<this>`.
    triplet: &'static str,
    /// In the names of CUDA's toolkits: `targets/<this>/lib`.
    targets: &'static [&'static str],
    /// Folders beside the libraries of all, in which boards (Jetson) have their driver.
    boards: &'static [&'static str],
}

impl Architecture {
    /// That of this process.
    pub(crate) fn here() -> Self {
        Self::named(std::env::consts::ARCH)
    }

    /// By the name that Rust gives it. Toolkits are made for two; the driver of another would lie where all
    /// libraries do.
    fn named(name: &str) -> Self {
        match name {
            "x86_64" => Self { triplet: "x86_64-linux-gnu", targets: &["x86_64-linux"], boards: &[] },
            // Servers (SBSA) and boards have toolkits of their own.
            "aarch64" => Self {
                triplet: "aarch64-linux-gnu",
                targets: &["sbsa-linux", "aarch64-linux"],
                boards: &["nvidia", "tegra"],
            },
            "riscv64" => Self { triplet: "riscv64-linux-gnu", targets: &[], boards: &[] },
            _ => Self { triplet: "", targets: &[], boards: &[] },
        }
    }

    /// The folders of a distribution's libraries.
    pub(crate) fn system_folders(self) -> Vec<PathBuf> {
        let multiarch = (!self.triplet.is_empty()).then(|| Path::new("/usr/lib").join(self.triplet));
        multiarch.into_iter().chain([PathBuf::from("/usr/lib64")]).collect()
    }

    /// The folders of NVIDIA's driver. Containers mount the host's at the first; WSL keeps it at the last.
    pub(crate) fn driver_folders(self) -> Vec<PathBuf> {
        let system = self.system_folders();
        let boards =
            system.first().into_iter().flat_map(|multiarch| self.boards.iter().map(|board| multiarch.join(board)));
        let mut folders = vec![PathBuf::from("/usr/local/nvidia/lib64")];
        folders.extend(boards);
        folders.extend(system.iter().cloned());
        folders.push(PathBuf::from("/usr/lib/wsl/lib"));
        folders
    }

    /// The folders of libraries in a toolkit of CUDA.
    pub(crate) fn toolkit_folders(self, root: &Path) -> Vec<PathBuf> {
        let targets = self.targets.iter().map(|target| root.join("targets").join(target).join("lib"));
        [root.join("lib64")].into_iter().chain(targets).collect()
    }

    /// The folders of loaders of OpenCL: the distribution's, which PoCL comes with, and those of vendors.
    pub(crate) fn opencl_folders(self) -> Vec<PathBuf> {
        let mut folders = self.system_folders();
        folders.extend(self.toolkit_folders(Path::new("/usr/local/cuda")));
        folders.push(PathBuf::from("/opt/rocm/lib"));
        folders
    }
}

/// The roots of CUDA's toolkits: those that the user named, and those that are installed, the newest first.
pub(crate) fn toolkits() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).filter(|root| !root.is_empty());
    let installed = ["/usr/local", "/opt"].into_iter().flat_map(|folder| versions_of(Path::new(folder), "cuda"));
    named.map(PathBuf::from).chain(installed).collect()
}

/// `site-packages` and `dist-packages` folders where people have the `nvidia` Python packages:
/// the active environment's, those of the `python3` on the path, and the system's.
pub(crate) fn python_package_folders() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME"]
        .iter()
        .filter_map(std::env::var_os)
        .map(|root| PathBuf::from(root).join("lib"))
        .collect();
    if let Some(path) = std::env::var_os("PATH") {
        let bins = std::env::split_paths(&path).filter(|bin| bin.join("python3").exists());
        roots.extend(bins.filter_map(|bin| bin.parent().map(|prefix| prefix.join("lib"))));
    }
    if let Some(home) = std::env::var_os("HOME") {
        roots.push(PathBuf::from(home).join(".local/lib"));
    }
    roots.extend(["/usr/local/lib", "/usr/lib"].map(PathBuf::from));
    let explicit =
        std::env::var_os("PYTHONPATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let mut folders = explicit;
    for root in roots {
        let versions = children(&root).into_iter().filter(|child| name_starts(child, "python3"));
        folders.extend(versions.flat_map(|version| [version.join("site-packages"), version.join("dist-packages")]));
    }
    folders.retain(|folder| folder.join("nvidia").is_dir());
    folders.dedup();
    folders
}

/// Files in `folder` whose names start with `prefix`, the highest version first.
pub(crate) fn versions_of(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = children(folder).into_iter().filter(|file| name_starts(file, prefix)).collect();
    files.sort_by_key(|file| std::cmp::Reverse(version_key(file)));
    files
}

/// The entries of a folder, sorted; none if it cannot be read.
pub(crate) fn children(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn name_starts(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

fn version_key(path: &Path) -> Vec<u64> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(folders: &[PathBuf]) -> Vec<&str> {
        folders.iter().filter_map(|folder| folder.to_str()).collect()
    }

    #[test]
    fn the_folders_of_x86_64_are_those_of_debian_containers_and_toolkits() {
        let x86 = Architecture::named("x86_64");
        assert_eq!(
            shown(&x86.driver_folders()),
            ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"]
        );
        assert_eq!(shown(&x86.toolkit_folders(Path::new("/t"))), ["/t/lib64", "/t/targets/x86_64-linux/lib"]);
        assert_eq!(shown(&x86.opencl_folders())[0], "/usr/lib/x86_64-linux-gnu");
    }

    #[test]
    fn the_folders_of_aarch64_are_those_of_servers_and_of_boards() {
        let arm = Architecture::named("aarch64");
        let multiarch = "/usr/lib/aarch64-linux-gnu";
        assert_eq!(
            shown(&arm.driver_folders()),
            [
                "/usr/local/nvidia/lib64",
                "/usr/lib/aarch64-linux-gnu/nvidia",
                "/usr/lib/aarch64-linux-gnu/tegra",
                multiarch,
                "/usr/lib64",
                "/usr/lib/wsl/lib"
            ]
        );
        let toolkit = arm.toolkit_folders(Path::new("/t"));
        assert_eq!(shown(&toolkit), ["/t/lib64", "/t/targets/sbsa-linux/lib", "/t/targets/aarch64-linux/lib"]);
        assert_eq!(shown(&arm.opencl_folders())[0], multiarch);
        assert!(shown(&arm.opencl_folders()).iter().all(|folder| !folder.contains("x86")));
    }

    #[test]
    fn an_architecture_that_nobody_knows_has_the_folders_of_all() {
        let other = Architecture::named("s390x");
        assert_eq!(shown(&other.system_folders()), ["/usr/lib64"]);
        assert_eq!(shown(&other.toolkit_folders(Path::new("/t"))), ["/t/lib64"]);
        assert_eq!(shown(&other.driver_folders()).len(), 3);
    }

    #[test]
    fn higher_versions_come_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["libnvrtc.so.9", "libnvrtc.so.13", "libnvrtc.so.12.4"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        let names: Vec<_> =
            versions_of(dir.path(), "libnvrtc.so").iter().map(|p| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["libnvrtc.so.13", "libnvrtc.so.12.4", "libnvrtc.so.9"]);
    }
}
