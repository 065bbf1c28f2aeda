//! Striped sets (RAID-0, as the array of `GPUdrive`): several files that are one, so that several drives
//! feed one device.
//!
//! A range of the set is one contiguous range of each member; members are read and written at the
//! same time, each by its own engines with its own queue, and only the places in device memory are
//! interleaved. Members have exactly the sizes that the layout asks for: one that is missing, too
//! short or too long is refused, as it would shift or cut what the set holds.

mod descriptor;
mod layout;

pub use descriptor::{Description, Name, PREFIX, parse_descriptor, parse_name};
pub use layout::Layout;

use super::plain::{Access, PlainFile};
use crate::{Error, ErrorKind, Result};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A thousand members with long paths need less.
const DESCRIPTOR_BYTES_MAX: u64 = 16 << 20;

/// The open members of a set.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) files: Vec<Arc<PlainFile>>,
    pub(crate) layout: Layout,
    pub(crate) size: u64,
}

fn refuse(name: &Path, detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadStripe, name, detail)
}

/// Opens the set that is called `name`.
pub(crate) fn open(name: &Path, parsed: Result<Name, String>, access: Access) -> Result<Members> {
    let description = match parsed.map_err(|detail| refuse(name, detail))? {
        Name::Members(description) => description,
        Name::Descriptor(path) => read_descriptor(&path)?,
    };
    let layout = Layout::new(description.chunk_bytes, description.members.len());
    let open = |path: &PathBuf| PlainFile::open_with(path, access).map(Arc::new);
    let files: Vec<_> = description.members.iter().map(open).collect::<Result<_>>()?;
    let sizes = files.iter().map(|file| file.size()).collect::<Result<Vec<_>>>()?;
    let size = match description.size {
        Some(size) => size,
        None => size_of(name, &layout, &files, &sizes)?,
    };
    for (number, (file, found)) in files.iter().zip(&sizes).enumerate() {
        let wanted = layout.member_bytes(size, number);
        if *found != wanted {
            let detail = format!(
                "member {number} of the set {} must have {wanted} bytes, but this file has {found}",
                name.display()
            );
            return Err(refuse(file.path(), detail));
        }
    }
    for (number, file) in files.iter().enumerate() {
        if let Some(twin) = files[..number].iter().find(|other| other.is_same_file(file)) {
            let detail = format!("the same file as {}, another member of the set", twin.path().display());
            return Err(refuse(file.path(), detail));
        }
    }
    Ok(Members { files, layout, size })
}

fn read_descriptor(path: &Path) -> Result<Description> {
    let fail = |error| Error::system(path, "reading the descriptor", error);
    // Opened without waiting: it may be a pipe.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() || metadata.len() > DESCRIPTOR_BYTES_MAX {
        let detail = format!("not a descriptor: those are regular files of at most {DESCRIPTOR_BYTES_MAX} bytes");
        return Err(refuse(path, detail));
    }
    let mut text = String::new();
    file.take(DESCRIPTOR_BYTES_MAX).read_to_string(&mut text).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => refuse(path, "the descriptor is not text"),
        _ => fail(error),
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    parse_descriptor(&text, folder).map_err(|detail| refuse(path, format!("the descriptor is damaged: {detail}")))
}

/// Without a descriptor members are whole chunks and equally long.
fn size_of(name: &Path, layout: &Layout, files: &[Arc<PlainFile>], sizes: &[u64]) -> Result<u64> {
    let odd = sizes.iter().position(|size| *size != sizes[0] || !size.is_multiple_of(layout.chunk_bytes()));
    if let Some(number) = odd {
        let detail = format!(
            "the size is {} bytes; without a descriptor all members of {} must have the same size, a multiple of the chunk ({} bytes)",
            sizes[number],
            name.display(),
            layout.chunk_bytes()
        );
        return Err(refuse(files[number].path(), detail));
    }
    sizes[0].checked_mul(sizes.len() as u64).ok_or_else(|| refuse(name, "the members are too large together"))
}

/// Creates a set of `size` bytes: members that do not exist yet, with all of their blocks, and a
/// descriptor, whose name to open is returned.
///
/// # Errors
/// `BadStripe` for what cannot be a set, and those of creating files; what was created before the
/// error is removed again.
pub fn create(descriptor: &Path, chunk_bytes: u64, size: u64, members: &[PathBuf]) -> Result<String> {
    let description = Description { chunk_bytes, size: Some(size), members: members.to_vec() };
    let checked = descriptor::check(description).map_err(|detail| refuse(descriptor, detail))?;
    let layout = Layout::new(chunk_bytes, members.len());
    let folder = descriptor.parent().unwrap_or(Path::new(""));
    let text = descriptor::write_descriptor(&checked, size, folder).map_err(|detail| refuse(descriptor, detail))?;
    let mut made = Created(vec![]);
    for (number, path) in members.iter().enumerate() {
        let file = made.create(path)?;
        let bytes = layout.member_bytes(size, number);
        allocate(&file, bytes).map_err(|error| Error::writing(path, error))?;
    }
    let mut file = made.create(descriptor)?;
    let written = std::io::Write::write_all(&mut file, text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|error| Error::writing(descriptor, error))?;
    made.0.clear();
    Ok(format!("{PREFIX}{}", descriptor.display()))
}

/// Files that go again unless everything succeeds.
struct Created(Vec<PathBuf>);

impl Created {
    fn create(&mut self, path: &Path) -> Result<File> {
        let created = File::options().write(true).create_new(true).open(path);
        let file = created.map_err(|error| Error::system(path, "creating the file", error))?;
        self.0.push(path.to_owned());
        Ok(file)
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn allocate(file: &File, bytes: u64) -> std::io::Result<()> {
    use crate::storage::{OsStorage, Storage};
    if bytes == 0 {
        return Ok(());
    }
    match OsStorage.allocate(file, 0, bytes) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => file.set_len(bytes),
        outcome => outcome,
    }
}
