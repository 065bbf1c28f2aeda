//! How a served file becomes a disk of the system's: swap cannot be on a file that FUSE serves.
//!
//! One trait, and a file for each way. A way says itself what it lacks here, so that [`choose`] can say why it took which.

mod loop_disk;

pub use loop_disk::LoopDisk;

use bifolio_block::{Error, ErrorKind, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// A way.
pub trait Attachment: fmt::Debug + Sync {
    /// Its name, as users say it.
    fn name(&self) -> &'static str;

    /// What this machine lacks for it.
    fn why_not(&self) -> Option<String>;

    /// Makes a disk of a served file, with direct I/O and sectors of 4 KiB. Unless it `stays`, the disk goes by itself when
    /// its last user closes it, the [`Disk`] included, so that whatever ends in between, none stays behind.
    ///
    /// # Errors
    /// The system's.
    fn attach(&self, served: &Path, stays: bool) -> Result<Disk>;

    /// Takes the disk apart that stands on this file; nothing to do is no error. While somebody uses it, it stays until
    /// they end.
    ///
    /// # Errors
    /// The system's.
    fn detach(&self, disk: &Path, served: &Path) -> Result<()>;
}

/// A disk, held.
#[derive(Debug)]
pub struct Disk {
    /// Its device node.
    pub path: PathBuf,
    /// Keeps it from going by itself.
    _open: std::fs::File,
}

/// All ways, the best first.
pub const ALL: [&dyn Attachment; 1] = [&LoopDisk];

/// The way of this name, or the first that works here.
///
/// # Errors
/// `BadUse` for a name that no way has, `Missing` with every way's reason where none works.
pub fn choose(name: Option<&str>) -> Result<&'static dyn Attachment> {
    choose_among(&ALL, name)
}

fn choose_among<'a>(all: &[&'a dyn Attachment], name: Option<&str>) -> Result<&'a dyn Attachment> {
    let mut asked = all.iter().filter(|way| name.is_none_or(|name| name == way.name())).peekable();
    if asked.peek().is_none() {
        let names: Vec<&str> = all.iter().map(|way| way.name()).collect();
        let detail = format!("there is no such way to attach a disk; choose one of: {}", names.join(", "));
        return Err(Error::new(ErrorKind::BadUse, name.unwrap_or_default(), detail));
    }
    let mut reasons = vec![];
    for way in asked {
        match way.why_not() {
            None => return Ok(*way),
            Some(reason) => reasons.push(format!("{}: {reason}", way.name())),
        }
    }
    Err(Error::new(ErrorKind::Missing, "attaching a disk", format!("no way works here ({})", reasons.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake(&'static str, bool);

    impl Attachment for Fake {
        fn name(&self) -> &'static str {
            self.0
        }

        fn why_not(&self) -> Option<String> {
            self.1.then(|| format!("no {} in this kernel", self.0))
        }

        fn attach(&self, served: &Path, _: bool) -> Result<Disk> {
            Err(Error::new(ErrorKind::Missing, served.display(), "a test's"))
        }

        fn detach(&self, _: &Path, _: &Path) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_first_that_works_is_taken_and_each_reason_is_told() {
        let (good, bad) = (Fake("good", false), Fake("bad", true));
        let all: [&dyn Attachment; 2] = [&bad, &good];
        assert_eq!(choose_among(&all, None).unwrap().name(), "good");
        assert_eq!(choose_among(&all, Some("good")).unwrap().name(), "good");
        let error = choose_among(&all, Some("bad")).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Missing && error.to_string().contains("bad: no bad in this kernel"),
            "{error}"
        );
        assert_eq!(choose_among(&all, Some("other")).unwrap_err().kind(), ErrorKind::BadUse);
    }
}
