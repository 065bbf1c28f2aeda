//! What is known of swap spaces that are on.

use crate::Mode;
use crate::attach::Served;
use crate::directory::{Directory, Head};
use bifolio_block::{Error, ErrorKind, Result};
use bifolio_keeper::SharedMemory;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Choices and state of a swap space, as its folder keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The backing, by its whole path.
    pub backing: PathBuf,
    /// The backing was made for it, and goes with it.
    pub made_backing: bool,
    /// Bytes of content.
    pub size: u64,
    /// Writes may wait in device memory.
    pub writes_back: bool,
    /// In that mode, how long at most before they are on their way, in milliseconds.
    pub flush_interval_ms: u64,
    /// The device, as users name it.
    pub device: String,
    /// Bytes of device memory to begin with.
    pub memory_bytes: u64,
    /// Bytes of device memory at most.
    pub memory_bytes_max: u64,
    /// Bytes of device memory that are left to others.
    pub left_bytes: u64,
    /// Serving threads.
    pub threads: usize,
    /// The swap priority.
    pub priority: u16,
    /// The system tells of what it does not need any more.
    pub discards: bool,
    /// How the disk is attached.
    pub attachment: String,
    /// Why it is attached like that.
    #[serde(default)]
    pub attachment_reason: String,
    /// The keeper's process, when there is one.
    pub keeper: Option<Process>,
    /// The descriptor of the directory in that process.
    pub directory_fd: Option<u32>,
    /// The disk's device node, when there is one, or before it is made.
    pub disk: Option<PathBuf>,
}

impl Record {
    /// When writes have ended.
    pub fn mode(&self) -> Mode {
        if self.writes_back { Mode::WriteBack } else { Mode::WriteThrough }
    }
}

/// A process that is told from a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// When it was started, in the kernel's ticks.
    pub started: u64,
}

impl Process {
    /// The running process of this number.
    pub fn of(id: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // After the name, which may have anything in it: the state, and as the twentieth of them the start.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let started = fields.nth(18)?.parse().ok()?;
        (state != "Z" && state != "X").then_some(Self { id, started })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.id) == Some(self)
    }
}

/// Where swap spaces have their folders.
#[derive(Debug, Clone)]
pub struct Place(PathBuf);

/// Held while something is switched on or off, so that nothing else is at the same time.
#[derive(Debug)]
pub struct Held(#[allow(dead_code, reason = "the lock goes when it is closed")] File);

impl Place {
    /// `$BIFOLIO_RUN_DIR/swap`, or `/run/bifolio/swap`.
    pub fn of_system() -> Self {
        let run = std::env::var_os("BIFOLIO_RUN_DIR").map_or_else(|| PathBuf::from("/run/bifolio"), PathBuf::from);
        Self(run.join("swap"))
    }

    /// Another place, for tests and measurements.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the place, readable by its owner only, and waits for whoever switches something at the moment.
    ///
    /// # Errors
    /// The system's; `InUse` if that takes longer than a minute.
    pub fn hold(&self) -> Result<Held> {
        let failed = |doing, error| Error::writing(self.0.display(), doing, error);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|error| failed("making the folder for swap spaces", error))?;
        let file = File::options().create(true).truncate(false).write(true).open(self.0.join("lock"));
        let file = file.map_err(|error| failed("opening the lock in it", error))?;
        let begin = Instant::now();
        loop {
            // SAFETY: takes numbers; the descriptor is open.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(Held(file));
            }
            if begin.elapsed() > Duration::from_secs(60) {
                let detail = "another command switches swap on or off since a minute; wait for it";
                return Err(Error::new(ErrorKind::InUse, self.0.display(), detail));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A new folder, for a record that is written into it.
    ///
    /// # Errors
    /// The system's.
    pub fn create(&self, _held: &Held, record: Record) -> Result<Instance> {
        for number in 0..u32::MAX {
            let folder = self.0.join(number.to_string());
            match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    let instance = Instance { folder, record };
                    let served = instance.served();
                    std::fs::write(&served, "")
                        .map_err(|error| Error::writing(served.display(), "making it", error))?;
                    instance.save()?;
                    return Ok(instance);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::writing(folder.display(), "making a folder", error)),
            }
        }
        Err(Error::new(ErrorKind::NoSpace, self.0.display(), "there are too many swap spaces"))
    }

    /// Everything that is on, or was left by a crash, in the order of its numbers.
    ///
    /// # Errors
    /// `Damaged` for a record that cannot be read.
    pub fn instances(&self) -> Result<Vec<Instance>> {
        let Ok(entries) = std::fs::read_dir(&self.0) else { return Ok(vec![]) };
        let mut numbers: Vec<u32> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| Instance::load(self.0.join(number.to_string()))).collect()
    }

    /// The one on this backing, or the only one.
    ///
    /// # Errors
    /// `NotFound`, and `BadUse` where several could be meant.
    pub fn find(&self, backing: Option<&Path>) -> Result<Instance> {
        let mut all = self.instances()?;
        if let Some(backing) = backing {
            let whole = std::path::absolute(backing).unwrap_or_else(|_| backing.to_owned());
            let found = all.into_iter().find(|one| one.record.backing == whole);
            return found.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    backing.display(),
                    "no swap space is on with this backing; see `swap status`",
                )
            });
        }
        match (all.len(), all.pop()) {
            (1, Some(only)) => Ok(only),
            (0, _) | (_, None) => Err(Error::new(ErrorKind::NotFound, "swap", "no swap space of this kind is on")),
            (count, _) => {
                let detail = format!("{count} swap spaces are on; name one by its backing, see `swap status`");
                Err(Error::new(ErrorKind::BadUse, "swap", detail))
            }
        }
    }
}

/// One swap space.
#[derive(Debug, Clone)]
pub struct Instance {
    /// Its folder.
    pub folder: PathBuf,
    /// What is known of it.
    pub record: Record,
}

impl Instance {
    /// The one in this folder.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn load(folder: PathBuf) -> Result<Self> {
        let path = folder.join("record.json");
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|error| Error::system(path.display(), "reading it", error))?;
        let record = serde_json::from_str(&text).map_err(|error| {
            let detail = format!("it is not the record of a swap space: {error}; undo by hand with swapoff and umount");
            Error::new(ErrorKind::Damaged, path.display(), detail)
        })?;
        Ok(Self { folder, record })
    }

    /// Writes the record, whole or not at all.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self) -> Result<()> {
        let (path, new) = (self.folder.join("record.json"), self.folder.join("record.new"));
        let text = serde_json::to_string_pretty(&self.record).unwrap_or_default();
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|error| Error::writing(path.display(), "writing the record", error))
    }

    /// The file that is served, and by its name, who owns a disk without one.
    pub fn served(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// What its disk is made of.
    pub(super) fn made_of(&self) -> Served {
        Served { file: self.served(), disk: self.record.disk.clone() }
    }

    /// The directory of its cache, where it outlives the keeper.
    pub(super) fn named_directory(&self) -> PathBuf {
        self.folder.join("directory")
    }

    /// What its processes had to say.
    pub fn messages(&self) -> PathBuf {
        self.folder.join("messages")
    }

    /// Whether its keeper runs.
    pub fn is_kept(&self) -> bool {
        self.record.keeper.is_some_and(Process::is_alive)
    }

    /// The directory of its cache.
    ///
    /// # Errors
    /// `BadState` without a keeper, and those of opening.
    pub fn directory(&self) -> Result<Directory> {
        let about = |detail: String| Error::new(ErrorKind::BadState, self.record.backing.display(), detail);
        let (Some(keeper), Some(fd), true) = (self.record.keeper, self.record.directory_fd, self.is_kept()) else {
            let detail = "its keeper has died, and what only it held is lost; `swap off` cleans up";
            return Err(about(detail.to_owned()));
        };
        let path = PathBuf::from(format!("/proc/{}/fd/{fd}", keeper.id));
        Directory::adopt(SharedMemory::open(&path).map_err(|error| about(error.to_string()))?)
    }

    /// Asks for a size of device memory, in bytes; returns what it is rounded down to.
    ///
    /// # Errors
    /// `BadUse` for more than it was switched on for.
    pub fn resize(&self, bytes: u64) -> Result<u64> {
        let directory = self.directory()?;
        let (chunk, most) = (directory.chunk_bytes(), directory.chunk_bytes() * u64::from(directory.shape().chunks));
        if bytes > most {
            let detail = format!("{bytes} bytes of device memory are more than the {most} that it was switched on for");
            return Err(Error::new(ErrorKind::BadUse, self.record.backing.display(), detail));
        }
        directory.head(Head::TargetChunks).store(bytes / chunk, std::sync::atomic::Ordering::Release);
        Ok(bytes / chunk * chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn record(backing: &str) -> Record {
        Record {
            backing: backing.into(),
            made_backing: true,
            size: 1 << 20,
            writes_back: false,
            flush_interval_ms: 1000,
            device: "host".to_owned(),
            memory_bytes: 1 << 20,
            memory_bytes_max: 1 << 20,
            left_bytes: 0,
            threads: 2,
            priority: 5,
            discards: false,
            attachment: "loop".to_owned(),
            attachment_reason: String::new(),
            keeper: None,
            directory_fd: None,
            disk: None,
        }
    }

    #[test]
    fn records_are_found_by_their_backing_and_a_damaged_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::at(folder.path().join("swap"));
        assert_eq!(place.find(None).unwrap_err().kind(), ErrorKind::NotFound);
        let held = place.hold().unwrap();
        let first = place.create(&held, record("/a b")).unwrap();
        assert_eq!(place.find(None).unwrap().record, first.record);
        let second = place.create(&held, record("/b")).unwrap();
        assert_eq!(place.find(None).unwrap_err().kind(), ErrorKind::BadUse);
        assert_eq!(place.find(Some(Path::new("/b"))).unwrap().folder, second.folder);
        assert_eq!(place.find(Some(Path::new("/c"))).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(second.directory().unwrap_err().kind(), ErrorKind::BadState);
        std::fs::write(second.folder.join("record.json"), "{").unwrap();
        let error = place.instances().unwrap_err();
        assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains("record.json"), "{error}");
    }

    #[test]
    fn a_process_is_told_from_a_later_one_of_its_number() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        child.wait().unwrap();
        assert_eq!(Process::of(id), None);
    }
}
