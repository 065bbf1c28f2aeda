//! How a striped file is named: `stripe:512K:a,b,c,d`, or `stripe:set.toml` with a descriptor.

use crate::size;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a name must begin with; a file whose name does is reached as `./stripe:...`.
pub const PREFIX: &str = "stripe:";

/// The version of descriptors; others are refused.
const VERSION: u32 = 1;

/// Chunks are multiples of this: every file system's boundary of unbuffered reads.
const CHUNK_MULTIPLE: u64 = 4096;

/// A striped set, as named or described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Bytes of the file; without them the members' sizes say.
    pub size: Option<u64>,
    /// The files, in order.
    pub members: Vec<PathBuf>,
}

/// A descriptor, as it lies on disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    chunk: Bytes,
    size: Bytes,
    members: Vec<PathBuf>,
}

/// Bytes, as a number or with a suffix.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes {
    Number(u64),
    Text(String),
}

impl Bytes {
    fn get(&self) -> Result<u64, String> {
        match self {
            Self::Number(bytes) => Ok(*bytes),
            Self::Text(text) => size::parse(text),
        }
    }
}

/// How a striped file was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// Chunk and members.
    Members(Description),
    /// A descriptor's path.
    Descriptor(PathBuf),
}

/// Reads a name; none if it is not one of a striped file.
///
/// # Errors
/// A sentence without its full stop.
pub fn parse_name(name: &str) -> Option<Result<Name, String>> {
    let rest = name.strip_prefix(PREFIX)?;
    Some(match rest.split_once(':') {
        Some((chunk, members)) => size::parse(chunk).and_then(|chunk_bytes| {
            let members = members.split(',').map(PathBuf::from).collect();
            check(Description { chunk_bytes, size: None, members }).map(Name::Members)
        }),
        None if rest.is_empty() || rest.contains(',') => {
            Err("name it as stripe:CHUNK:FILE,FILE,... or stripe:DESCRIPTOR.toml".to_owned())
        }
        None => Ok(Name::Descriptor(rest.into())),
    })
}

/// Reads a descriptor whose members are named relative to `folder`.
///
/// # Errors
/// A sentence without its full stop.
pub fn parse_descriptor(text: &str, folder: &Path) -> Result<Description, String> {
    let stored: Stored = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count());
        format!("line {}: {}", place.max(1), error.message())
    })?;
    if stored.version != VERSION {
        return Err(format!("version {} is not supported; this program knows version {VERSION}", stored.version));
    }
    let members = stored.members.iter().map(|member| folder.join(member)).collect();
    check(Description { chunk_bytes: stored.chunk.get()?, size: Some(stored.size.get()?), members })
}

/// Writes a descriptor.
///
/// # Errors
/// A sentence without its full stop.
pub(super) fn write_descriptor(description: &Description, size: u64, folder: &Path) -> Result<String, String> {
    // Relative to the descriptor where members lie below its folder, so that the set can be moved.
    let stored = |member: &PathBuf| match member.strip_prefix(folder) {
        Ok(below) => Ok(below.to_owned()),
        Err(_) => std::path::absolute(member).map_err(|error| format!("{}: {error}", member.display())),
    };
    let members = description.members.iter().map(stored).collect::<Result<_, _>>()?;
    let (chunk, size) = (Bytes::Text(size::exact(description.chunk_bytes)), Bytes::Text(size::exact(size)));
    let stored = Stored { version: VERSION, chunk, size, members };
    toml::to_string(&stored).map_err(|error| format!("the descriptor cannot be written: {error}"))
}

pub(super) fn check(description: Description) -> Result<Description, String> {
    let Description { chunk_bytes, members, size } = &description;
    if *chunk_bytes == 0 || !chunk_bytes.is_multiple_of(CHUNK_MULTIPLE) || *chunk_bytes > 1 << 40 {
        return Err(format!(
            "a chunk of {chunk_bytes} bytes is not possible; use a multiple of {CHUNK_MULTIPLE} up to 1 TiB"
        ));
    }
    if size.is_some_and(|size| i64::try_from(size).is_err()) {
        return Err("the size is larger than any file can be".to_owned());
    }
    if members.len() > 1024 {
        return Err(format!("{} members are too many; up to 1024 are possible", members.len()));
    }
    if let Some(number) = members.iter().position(|member| member.as_os_str().is_empty()) {
        return Err(format!("member {number} has no name"));
    }
    let twice = members.iter().enumerate().find(|(number, member)| members[..*number].contains(member));
    match twice {
        _ if members.is_empty() => Err("there are no members".to_owned()),
        Some((_, member)) => Err(format!("{} is a member twice", member.display())),
        None => Ok(description),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str) -> String {
        parse_name(name).unwrap().unwrap_err()
    }

    #[test]
    fn names_are_read_and_bad_ones_refused_with_a_sentence() {
        assert_eq!(parse_name("data.bin"), None);
        let Some(Ok(Name::Members(set))) = parse_name("stripe:512K:a,b/c,d") else { panic!("not a set") };
        assert_eq!((set.chunk_bytes, set.members.len(), set.size), (512 << 10, 3, None));
        assert_eq!(parse_name("stripe:x.toml"), Some(Ok(Name::Descriptor("x.toml".into()))));
        assert!(refused("stripe:").contains("name it as"));
        assert!(refused("stripe:5:a").contains("multiple of 4096"));
        assert!(refused("stripe:x:a").contains("not a size"));
        assert!(refused("stripe:4K:a,,b").contains("has no name"));
        assert!(refused("stripe:4K:a,b,a").contains("member twice"));
        assert!(refused("stripe:99999999999999999999T:a").contains("64 bits"));
    }

    #[test]
    fn a_descriptor_is_read_as_it_was_written() {
        let members = vec![PathBuf::from("/d/a"), PathBuf::from("/e/b")];
        let set = Description { chunk_bytes: 8192, size: Some(12_345), members };
        let text = write_descriptor(&set, 12_345, Path::new("/d")).unwrap();
        assert_eq!(parse_descriptor(&text, Path::new("/d")).unwrap(), set);
    }

    /// Symptom: a set whose descriptor lay in another folder than its members could not be opened.
    /// Cause: their paths were stored as given, and read relative to the descriptor.
    #[test]
    fn members_beside_the_descriptors_folder_are_found() {
        let set = Description { chunk_bytes: 8192, size: Some(1), members: vec!["a".into(), "sub/b".into()] };
        let text = write_descriptor(&set, 1, Path::new("sub")).unwrap();
        let read = parse_descriptor(&text, Path::new("sub")).unwrap();
        assert_eq!(read.members, [std::env::current_dir().unwrap().join("a"), "sub/b".into()]);
    }

    #[test]
    fn damaged_descriptors_are_refused_with_their_line() {
        let refused = |text: &str| parse_descriptor(text, Path::new("/d")).unwrap_err();
        let good = "version = 1\nchunk = 4096\nsize = 8192\nmembers = [\"a\", \"b\"]\n";
        assert!(parse_descriptor(good, Path::new("/d")).is_ok());
        assert!(refused(&good.replace("chunk = 4096", "chunk = []")).starts_with("line 2"));
        assert!(refused(&good.replace("chunk = 4096", "chunk = \"4Q\"")).contains("not a size"));
        assert!(refused(&good.replace("version = 1", "version = 2")).contains("version 2"));
        assert!(refused(&format!("{good}more = 1\n")).contains("unknown field"));
        assert!(refused(&good.replace("\"a\", \"b\"", "")).contains("no members"));
        assert!(refused("").contains("missing field"));
    }
}
