//! File systems of every kind that can be made here, each in a mount namespace of the test's thread: however that ends,
//! nothing of it stays mounted.

use bifolio_testing::{command, has, skip};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A kind of file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The program that makes one in a file of so many bytes, which holes are most of, and its arguments.
    image: Option<(u64, &'static str, &'static [&'static str])>,
}

const fn of_memory(name: &'static str) -> Kind {
    Kind { name, image: None }
}

const fn of_image(
    name: &'static str,
    megabytes: u64,
    program: &'static str,
    arguments: &'static [&'static str],
) -> Kind {
    Kind { name, image: Some((megabytes << 20, program, arguments)) }
}

pub(crate) const KINDS: [Kind; 9] = [
    of_image("ext4", 16, "mkfs.ext4", &["-q", "-F"]),
    of_image("ext4 without nanoseconds", 16, "mkfs.ext4", &["-q", "-F", "-I", "128"]),
    of_image("ext2", 16, "mkfs.ext4", &["-q", "-F", "-t", "ext2"]),
    of_image("xfs", 300, "mkfs.xfs", &["-q", "-f"]),
    of_image("btrfs", 128, "mkfs.btrfs", &["-q", "-f"]),
    of_memory("tmpfs"),
    of_memory("ramfs"),
    of_memory("overlay over tmpfs"),
    of_memory("overlay over a disk"),
];

/// One that is mounted, for files to be made in. Whoever has another mount namespace does not see it.
#[derive(Debug)]
pub(crate) struct Mounted {
    points: Vec<PathBuf>,
    files: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mounted {
    /// None where this machine cannot; that is said.
    pub(crate) fn new(kind: Kind) -> Option<Self> {
        if kind.image.is_some_and(|(_, program, _)| !has(program)) {
            return None;
        }
        Self::of(kind).map_err(|error| skip(format_args!("{} cannot be mounted here: {error}", kind.name))).ok()
    }

    fn of(kind: Kind) -> io::Result<Self> {
        // SAFETY: a namespace of this thread alone, which threads that it starts have, too.
        checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "")?;
        let folder = crate::support::folder();
        let path = folder.path().to_owned();
        let mut mounted = Self { points: vec![], files: path.join("files"), _folder: folder };
        std::fs::create_dir(&mounted.files)?;
        if let Some((bytes, program, arguments)) = kind.image {
            let image = path.join("image");
            File::create(&image)?.set_len(bytes)?;
            run(command(program).args(arguments).arg(&image))?;
            run(command("mount").args(["-o", "loop"]).arg(&image).arg(&mounted.files))?;
            mounted.points.push(mounted.files.clone());
        } else if let Some(below) = kind.name.strip_prefix("overlay over ") {
            let layers = path.join("layers");
            std::fs::create_dir(&layers)?;
            if below == "tmpfs" {
                mount("tmpfs", &layers, "tmpfs", 0, "")?;
                mounted.points.push(layers.clone());
            }
            let [lower, upper, work] = ["lower", "upper", "work"].map(|name| layers.join(name));
            for layer in [&lower, &upper, &work] {
                std::fs::create_dir(layer)?;
            }
            let options =
                format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
            mount("overlay", &mounted.files, "overlay", 0, &options)?;
            mounted.points.push(mounted.files.clone());
        } else {
            mount(kind.name, &mounted.files, kind.name, 0, "")?;
            mounted.points.push(mounted.files.clone());
        }
        Ok(mounted)
    }

    /// The folder that is on it.
    pub(crate) fn path(&self) -> &Path {
        &self.files
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for point in self.points.iter().rev() {
            let point = CString::new(point.as_os_str().as_bytes()).unwrap();
            // SAFETY: the name is a C string. What is still open there goes with the last who has it.
            unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let [source, kind, options] = [source, kind, options].map(|text| CString::new(text).unwrap());
    let target = CString::new(target.as_os_str().as_bytes()).unwrap();
    let options = options.as_ptr().cast();
    // SAFETY: all of them are C strings.
    checked(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options) })
}

fn checked(outcome: i32) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn run(command: &mut std::process::Command) -> io::Result<()> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(io::Error::other(said.trim().to_owned())) }
}
