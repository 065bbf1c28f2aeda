//! A program's side: it connects, opens files by descriptors, and maps them as in process.

mod connection;
mod news;
mod once;

pub use news::Recall;
pub use once::{Once, settle};

use crate::daemon::check_folder;
use crate::protocol::{DATA_BYTES_MAX, Event, FileStatus, Status, ToClient, ToServer, VERSION};
use bifolio_cache::service::{Answer, Lender, Request, Service};
use bifolio_cache::{Error, ErrorKind, Mapping, Result};
use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, HostOptions};
use connection::{Connection, unexpected};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections at most that end before they have begun.
const TRIES_MAX: usize = 8;

/// A connection to a daemon. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connection: Arc<Connection>,
    devices: Vec<DeviceId>,
    opened: Mutex<BTreeMap<usize, Device>>,
    next_file: AtomicU64,
}

/// A file of a daemon's cache. Clones share it; it is closed with the last of them and of its mappings.
#[derive(Debug, Clone)]
pub struct SharedFile {
    shared: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    client: Client,
    number: u64,
    size: u64,
    is_lent: bool,
    path: String,
}

impl Client {
    /// Connects to the daemon that listens at a path. It must be one of the same user, or root's.
    ///
    /// # Errors
    /// `Gone` if none listens there, `Permission` if it is somebody else's or the folder is another's to write to, `BadUse`
    /// if it speaks another version of the protocol.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_to(path.as_ref(), None)
    }

    /// The same, of another user who is trusted with what is cached.
    ///
    /// # Errors
    /// As above.
    pub fn connect_trusting(path: impl AsRef<Path>, user: u32) -> Result<Self> {
        Self::connect_to(path.as_ref(), Some(user))
    }

    fn connect_to(path: &Path, trusted: Option<u32>) -> Result<Self> {
        if trusted.is_none() {
            check_folder(path)?;
        }
        // A server may die that has accepted a connection and not handed it to the keeper yet; the next one listens.
        let mut tries = 0;
        let (connection, answer) = loop {
            let connection = Connection::to(path, trusted)?;
            match connection.ask(&ToServer::Hello { version: VERSION }, None) {
                Ok((answer, _)) => break (connection, answer),
                Err(error) if error.kind() == ErrorKind::Gone && tries < TRIES_MAX => tries += 1,
                Err(error) => return Err(error),
            }
        };
        let ToClient::Welcome { version, devices } = answer else { return Err(unexpected()) };
        if version != VERSION {
            let detail = format!("the daemon speaks version {version} of the protocol, and this program {VERSION}");
            return Err(Error::told(ErrorKind::BadUse, &path.display().to_string(), detail, None));
        }
        let devices = devices.iter().map(|name| name.parse().ok()).collect::<Option<_>>().ok_or_else(unexpected)?;
        let connection = Arc::new(connection);
        connection.listen();
        let (opened, next_file) = (Mutex::default(), AtomicU64::new(1));
        Ok(Self { shared: Arc::new(Shared { connection, devices, opened, next_file }) })
    }

    /// The daemon's devices.
    pub fn devices(&self) -> &[DeviceId] {
        &self.shared.devices
    }

    /// Opens a file by its path: to be written as well where that is permitted, as frames are lent to those who may write.
    ///
    /// # Errors
    /// `Read` if it cannot be opened, and those of [`Client::open`].
    pub fn open_path(&self, path: impl AsRef<Path>) -> Result<SharedFile> {
        let path = path.as_ref();
        let file = File::options().read(true).write(true).open(path).or_else(|_| File::open(path));
        let refused = |error: std::io::Error| {
            let detail = format!("cannot be opened: {error}");
            Error::told(ErrorKind::Read, &path.display().to_string(), detail, error.raw_os_error())
        };
        self.open(file.map_err(refused)?)
    }

    /// Opens the file of a descriptor, which proves what the program may do with it and may be closed afterwards. Of one
    /// that may only read, or to another user than the daemon's, copies are given.
    ///
    /// # Errors
    /// `Read` for what is no regular file, `Permission` if the daemon may not open it, `Gone`.
    pub fn open(&self, file: impl AsFd) -> Result<SharedFile> {
        self.open_descriptor(file.as_fd())
    }

    fn open_descriptor(&self, descriptor: BorrowedFd<'_>) -> Result<SharedFile> {
        use std::os::fd::AsRawFd;
        let number = self.shared.next_file.fetch_add(1, Ordering::Relaxed);
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let path = std::fs::read_link(link).map_or_else(|_| "a file".to_owned(), |path| path.display().to_string());
        // The daemon knows no name of what it was handed.
        let named = |error: Error| match error.subject() {
            "a descriptor" => Error::told(error.kind(), &path, error.detail().to_owned(), error.os_code()),
            _ => error,
        };
        let message = ToServer::Open { file: number };
        let (answer, _) = self.shared.connection.ask(&message, Some(descriptor)).map_err(named)?;
        let ToClient::Opened { size, is_lent } = answer else { return Err(unexpected()) };
        Ok(SharedFile { shared: Arc::new(Opened { client: self.clone(), number, size, is_lent, path }) })
    }

    /// Asks for nothing but an answer.
    ///
    /// # Errors
    /// `Gone`.
    pub fn greet(&self) -> Result<()> {
        self.shared.connection.ask(&ToServer::Hello { version: VERSION }, None).map(drop)
    }

    /// What is cached, whoever has it open; of the daemon's own user, its group and root alone.
    ///
    /// # Errors
    /// `Permission`, `Gone`.
    pub fn files(&self) -> Result<Vec<FileStatus>> {
        let (mut all, mut after): (Vec<FileStatus>, _) = (vec![], (0, 0));
        loop {
            let (answer, _) = self.shared.connection.ask(&ToServer::Files { after }, None)?;
            let ToClient::Files { is_all, files } = answer else { return Err(unexpected()) };
            let last = files.last().map(|file| file.id);
            all.extend(files);
            match last {
                Some(last) if !is_all && last > after => after = last,
                _ => return Ok(all),
            }
        }
    }

    /// What it holds and has done; of the daemon's own user, its group and root alone.
    ///
    /// # Errors
    /// `Permission`, `Gone`.
    pub fn status(&self) -> Result<Status> {
        match self.shared.connection.ask(&ToServer::Status, None)? {
            (ToClient::Status(status), _) => Ok(status),
            _ => Err(unexpected()),
        }
    }

    /// For a mount that shows files of the cache to programs of the CPU: waits until it is told something, which has a number.
    /// It has done by then what it was told before under the number `done`, of a file that programs have open past it or not.
    /// Nothing else can be asked on this connection meanwhile.
    ///
    /// # Errors
    /// `Permission` for other users than the daemon's own, its group and root, `Gone`.
    pub fn watch(&self, done: u64, is_past: bool) -> Result<(u64, Event)> {
        match self.shared.connection.ask(&ToServer::Watch { done, is_past }, None)?.0 {
            ToClient::Watched { number, event } => Ok((number, event)),
            _ => Err(unexpected()),
        }
    }

    /// The socket of the connection: whoever has it open when this process is gone may [`settle`] it.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.connection.descriptor()
    }

    /// Ends the connection, also for who waits for an answer.
    pub fn disconnect(&self) {
        self.shared.connection.shut_down();
    }

    /// The device with a number there, in this process.
    fn device(&self, number: usize) -> Result<Device> {
        let mut opened = self.shared.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = opened.get(&number) {
            return Ok(device.clone());
        }
        let id = self.shared.devices[number];
        let device = match id.backend {
            BackendKind::Host => Device::host(&HostOptions { index: id.index, ..HostOptions::default() }),
            _ => bifolio_device::open(DeviceChoice::Exactly(id))
                .map_err(|error| Error::told(ErrorKind::Device, &id.to_string(), error.to_string(), error.os_code()))?,
        };
        Ok(opened.entry(number).or_insert(device).clone())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connection.say(&ToServer::Bye);
        // Nobody listens any more.
        self.connection.shut_down();
    }
}

impl SharedFile {
    /// Its size when it was opened.
    pub fn size(&self) -> u64 {
        self.shared.size
    }

    /// Whether its frames are lent: else mappings are of copies, and cannot be written.
    pub fn is_lent(&self) -> bool {
        self.shared.is_lent
    }

    /// Keeps all of it on the device with this number, also when nobody has it open and the daemon's server is another one;
    /// or does so no longer.
    ///
    /// # Errors
    /// Those of an acquire, `Permission` for other users, `Gone`.
    pub fn keep(&self, number: usize, is_kept: bool) -> Result<()> {
        self.done(&ToServer::Keep { file: self.shared.number, device: number, is_kept })
    }

    /// Reads as a CPU does: everything that devices have released is seen. Less than was asked for at the end of the file.
    ///
    /// # Errors
    /// Those of [`bifolio_cache::CachedFile::read`], `Gone`.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut read = 0;
        loop {
            let len = (buffer.len() - read).min(DATA_BYTES_MAX);
            let message = ToServer::Read { file: self.shared.number, offset: offset.saturating_add(read as u64), len };
            let ToClient::Data { bytes } = self.shared.ask(&message)?.0 else { return Err(unexpected()) };
            let part = buffer.get_mut(read..read + bytes.len()).ok_or_else(unexpected)?;
            part.copy_from_slice(&bytes);
            read += bytes.len();
            if bytes.len() < len || read == buffer.len() {
                return Ok(read);
            }
        }
    }

    /// Writes as a CPU does: devices see it from their next acquire on, and only the pages that it touched move.
    ///
    /// # Errors
    /// Those of [`bifolio_cache::CachedFile::write`], `Permission` where [`SharedFile::is_lent`] says no, `Gone`.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_parts(offset, bytes, None)
    }

    /// The same for a client that may be killed: what `once` says to have been done is not done again.
    ///
    /// # Errors
    /// As above.
    pub fn write_once(&self, offset: u64, bytes: &[u8], once: &dyn Once) -> Result<()> {
        self.write_parts(offset, bytes, Some(once))
    }

    fn write_parts(&self, offset: u64, bytes: &[u8], once: Option<&dyn Once>) -> Result<()> {
        for (number, part) in bytes.chunks(DATA_BYTES_MAX).enumerate() {
            if once.is_some_and(Once::skips) {
                continue;
            }
            let offset = offset.saturating_add((number * DATA_BYTES_MAX) as u64);
            let message = ToServer::Write { file: self.shared.number, offset, bytes: part.to_vec() };
            match self.shared.client.shared.connection.ask_once(&message, None, once)?.0 {
                ToClient::Answered(Answer::Done) => {}
                _ => return Err(unexpected()),
            }
        }
        Ok(())
    }

    /// Has everything that was released, by whomever, on the disk.
    ///
    /// # Errors
    /// Those of [`bifolio_cache::CachedFile::sync`], `Gone`.
    pub fn sync(&self) -> Result<()> {
        self.done(&ToServer::Sync { file: self.shared.number })
    }

    fn done(&self, message: &ToServer) -> Result<()> {
        match self.shared.ask(message)?.0 {
            ToClient::Answered(Answer::Done) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Maps a range of it on a device of the daemon's, as [`bifolio_cache::CachedFile::map`] does in process.
    ///
    /// # Errors
    /// As there; `Permission` for a writable mapping of a file that this program may not write, `Gone`.
    pub fn map(&self, device: DeviceId, range: Range<u64>, writable: bool) -> Result<Mapping> {
        let number = self.shared.client.devices().iter().position(|known| *known == device);
        let unknown = || Error::bad_use(format!("{device} is no device of the daemon's"));
        self.map_on(number.ok_or_else(unknown)?, range, writable)
    }

    /// The same on the device with this number.
    ///
    /// # Errors
    /// As above.
    pub fn map_on(&self, number: usize, range: Range<u64>, writable: bool) -> Result<Mapping> {
        if number >= self.shared.client.devices().len() {
            return Err(Error::bad_use(format!("the daemon has no device with the number {number}")));
        }
        if writable && !self.is_lent() {
            let detail = "this program may not write to it, or the daemon is another user's: map it to be read";
            return Err(Error::told(ErrorKind::Permission, &self.shared.path, detail, None));
        }
        let device = self.shared.client.device(number)?;
        let (service, lender) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let mapping = Mapping::apart(service, lender, (number, &device), range, writable)?;
        self.shared.client.shared.connection.news.add_window(self.shared.number, number, mapping.window());
        Ok(mapping)
    }

    /// What is to be released of it, as other programs need memory of a device: a program that has kept it at the end of the
    /// time is disconnected.
    pub fn recalls(&self) -> Vec<Recall> {
        self.shared.client.shared.connection.news.recalls(self.shared.number)
    }
}

impl Opened {
    fn ask(&self, message: &ToServer) -> Result<(ToClient, Option<OwnedFd>)> {
        self.client.shared.connection.ask(message, None)
    }
}

impl Service for Opened {
    fn ask(&self, _: bifolio_cache::Client, request: Request) -> Result<Answer> {
        let Request::Frames { lease, device, mut range } = request else {
            return match self.ask(&ToServer::Ask { file: self.number, request })?.0 {
                ToClient::Answered(answer) => Ok(answer),
                _ => Err(unexpected()),
            };
        };
        let (mut all, wanted) = (vec![], range.end);
        loop {
            let request = Request::Frames { lease, device, range: range.clone() };
            let answer = self.ask(&ToServer::Ask { file: self.number, request })?.0;
            let ToClient::Frames { frame_bytes, end, frames } = answer else { return Err(unexpected()) };
            all.extend(frames);
            if end >= wanted {
                return Ok(Answer::Frames { frame_bytes, frames: all });
            }
            if end <= range.start {
                return Err(unexpected());
            }
            range.start = end;
        }
    }
}

impl Lender for Opened {
    fn lend(&self, device: usize, at: u64, frame: u32) -> Result<Option<(u64, OwnedFd)>> {
        match self.ask(&ToServer::Lend { file: self.number, device, at, frame })? {
            (ToClient::Lent { bytes }, Some(descriptor)) => Ok(Some((bytes, descriptor))),
            (ToClient::NotLent, _) => Ok(None),
            _ => Err(unexpected()),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = self.ask(&ToServer::Close { file: self.number });
    }
}
