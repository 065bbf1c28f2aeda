//! A daemon as [`Replicas`]: the cache of all processes.
//!
//! ```text
//!   files     one connection: what programs read and write of shared files
//!   watch     another one, and a thread: which files are wanted, and what is to be recalled
//! ```
//!
//! What programs write is written once, also where a server is killed between the daemon's answer and its own: the number of
//! each write is noted, and the successor asks on the same connection, which is open still, what was done.
//!
//! While none answers, files are read and written plainly, and the thread tries to connect again. A file that is shared
//! when a daemon goes is plain from then on, and is opened anew with the next one.

use crate::replicas::{FileKey, Ledger, Once, Recall, Replicas, SharedFile};
use crate::sync::lock;
use bifolio_cache::{Error, ErrorKind};
use bifolio_daemon::Client;
use bifolio_daemon::protocol::Event;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// How often a daemon is looked for.
const RETRY: Duration = Duration::from_secs(1);

/// How long mounting waits for a daemon to say which files it has.
const FIRST_TIME_MAX: Duration = Duration::from_secs(10);

/// Whoever is told what becomes of the daemon.
type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// Files that programs share through a daemon, wherever it is.
pub struct Daemon {
    inner: Arc<Inner>,
}

struct Inner {
    socket: PathBuf,
    tell: Tell,
    ledger: OnceLock<Ledger>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    connected: Option<Connected>,
    /// Daemons that were connected to.
    count: u64,
    wanted: HashSet<FileKey>,
    is_over: bool,
}

#[derive(Clone)]
struct Connected {
    number: u64,
    files: Client,
    watch: Client,
}

impl fmt::Debug for Daemon {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Daemon").field("socket", &self.inner.socket).finish_non_exhaustive()
    }
}

impl Daemon {
    /// At a socket, where one may answer or not. What becomes of it is told in sentences.
    pub fn at(socket: impl Into<PathBuf>, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let (ledger, state, changed) = (OnceLock::new(), Mutex::default(), Condvar::new());
        Self { inner: Arc::new(Inner { socket: socket.into(), tell: Box::new(tell), ledger, state, changed }) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let mut state = lock(&self.inner.state);
        state.is_over = true;
        self.inner.changed.notify_all();
        if let Some(connected) = self.inner.disconnect(&mut state) {
            connected.watch.disconnect();
        }
    }
}

impl Replicas for Daemon {
    fn succeed(&self, ledger: Ledger) {
        if let Some(connection) = ledger.connection() {
            // SAFETY: what is noted is open: the predecessor has not closed it, and nobody has since.
            let connection = unsafe { BorrowedFd::borrow_raw(connection) };
            // With a daemon that has ended, nothing is known, and nobody is there whose bytes a second write could meet.
            let _ = bifolio_daemon::client::settle(connection, &mut |number| ledger.done(number));
        }
        ledger.settled();
        let _ = self.inner.ledger.set(ledger);
    }

    fn mounted(&self, mount: Weak<dyn Recall>) {
        let told = self.inner.connect().map_err(|error| {
            (self.inner.tell)(&self.inner.not_there(&error));
        });
        let (inner, is_first) = (Arc::clone(&self.inner), told.is_ok());
        let thread = std::thread::Builder::new().name("bifolio-watch".to_owned());
        let (known, knows) = std::sync::mpsc::channel();
        let work = move || inner.follow(&mount, &|| _ = known.send(()));
        match thread.spawn(work) {
            // The first program is to find what is wanted already.
            Ok(_) if is_first => _ = knows.recv_timeout(FIRST_TIME_MAX),
            Ok(_) => {}
            Err(error) => {
                drop(self.inner.disconnect(&mut lock(&self.inner.state)));
                (self.inner.tell)(&format!("no thread for the daemon ({error}): files are served plainly"));
            }
        }
    }

    fn is_wanted(&self, file: FileKey) -> bool {
        lock(&self.inner.state).wanted.contains(&file)
    }

    fn open(&self, file: BorrowedFd<'_>) -> io::Result<Box<dyn SharedFile>> {
        let source = File::from(file.try_clone_to_owned()?);
        let shared =
            Remote { inner: Arc::clone(&self.inner), source, writing: OnceLock::new(), file: Mutex::default() };
        // One that cannot be opened now is plain.
        let _ = shared.current();
        Ok(Box::new(shared))
    }
}

impl Inner {
    fn connected(&self) -> Option<Connected> {
        lock(&self.state).connected.clone()
    }

    fn connect(&self) -> Result<(), Error> {
        let (files, watch) = (Client::connect(&self.socket)?, Client::connect(&self.socket)?);
        let mut state = lock(&self.state);
        state.count += 1;
        self.ledger.get().inspect(|ledger| ledger.note_connection(Some(files.descriptor().as_raw_fd())));
        state.connected = Some(Connected { number: state.count, files, watch });
        Ok(())
    }

    /// Forgets the daemon, before its connections are closed.
    fn disconnect(&self, state: &mut State) -> Option<Connected> {
        self.ledger.get().inspect(|ledger| ledger.note_connection(None));
        state.connected.take()
    }

    /// Why no daemon is used.
    fn not_there(&self, error: &Error) -> String {
        let socket = self.socket.display();
        match error.os_code() {
            Some(libc::ENOENT | libc::ECONNREFUSED) => {
                format!("no daemon answers at {socket}: files are served plainly until one does")
            }
            _ => format!("the daemon at {socket} cannot be used: {error}; files are served plainly until it can"),
        }
    }

    /// Does what daemons tell, until nobody needs it any more.
    fn follow(&self, mount: &Weak<dyn Recall>, known: &dyn Fn()) {
        let mut was_plain = self.connected().is_none();
        loop {
            if let Some(connected) = self.connected() {
                let error = self.listen(&connected, mount, &mut || {
                    known();
                    if std::mem::take(&mut was_plain) {
                        (self.tell)(&format!("a daemon answers at {}: files are shared", self.socket.display()));
                    }
                });
                was_plain = true;
                self.lose(connected.number);
                if !lock(&self.state).is_over {
                    (self.tell)(&format!("{error}; files are served plainly until it answers again"));
                }
            }
            while self.connected().is_none() {
                let state = lock(&self.state);
                if state.is_over || mount.strong_count() == 0 {
                    return;
                }
                drop(self.changed.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner));
                let _ = self.connect();
            }
        }
    }

    /// Until it is gone, and why.
    fn listen(&self, connected: &Connected, mount: &Weak<dyn Recall>, known: &mut dyn FnMut()) -> Error {
        let (mut done, mut is_past) = (0, false);
        loop {
            let (number, event) = match connected.watch.watch(done, is_past) {
                Ok(told) => told,
                Err(error) => return error,
            };
            (done, is_past) = (number, false);
            match event {
                Event::Wanted(file) => _ = lock(&self.state).wanted.insert(key(file)),
                Event::Unwanted(file) => _ = lock(&self.state).wanted.remove(&key(file)),
                Event::All => known(),
                Event::Recall(file, range) => {
                    let Some(mount) = mount.upgrade() else { continue };
                    is_past = self.recall(&*mount, key(file), &range);
                }
            }
        }
    }

    /// Whether programs have the file open past the mount.
    fn recall(&self, mount: &dyn Recall, file: FileKey, range: &Range<u64>) -> bool {
        let most = i64::MAX as u64;
        if let Err(error) = mount.recall(file, range.start.min(most)..range.end.min(most)) {
            (self.tell)(&format!("what programs have mapped of a file cannot be had back: {error}"));
        }
        mount.is_open_past(file)
    }

    /// A daemon is gone, and nothing is wanted any more.
    fn lose(&self, number: u64) {
        let mut state = lock(&self.state);
        if state.connected.as_ref().is_some_and(|connected| connected.number == number) {
            state.wanted.clear();
            // The thread that listens hears of it.
            self.disconnect(&mut state).inspect(|connected| connected.watch.disconnect());
        }
    }
}

/// A file of whichever daemon answers.
struct Remote {
    inner: Arc<Inner>,
    source: File,
    /// The same, to be written.
    writing: OnceLock<File>,
    file: Mutex<Option<Opened>>,
}

/// A file of a daemon: none if it does not take it.
#[derive(Clone)]
struct Opened {
    number: u64,
    file: Option<bifolio_daemon::SharedFile>,
}

impl Remote {
    /// With the number of its daemon; none where the file is plain.
    fn current(&self) -> Option<(u64, bifolio_daemon::SharedFile)> {
        let connected = self.inner.connected()?;
        let mut file = lock(&self.file);
        let opened = match &*file {
            Some(opened) if opened.number == connected.number => opened.clone(),
            _ => {
                // The descriptor proves what this process may do with the file, and is closed at once.
                let opened = match reopened(&self.source) {
                    Ok(writing) => connected.files.open(&writing),
                    Err(_) => connected.files.open(&self.source),
                };
                if let Err(error) = &opened {
                    (self.inner.tell)(&format!("{error}; the file is served plainly"));
                }
                file.insert(Opened { number: connected.number, file: opened.ok() }).clone()
            }
        };
        Some((opened.number, opened.file?))
    }

    /// By the daemon, or plainly where it is gone.
    fn work<T>(
        &self,
        shared: impl FnOnce(&bifolio_daemon::SharedFile) -> bifolio_cache::Result<T>,
        plain: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some((number, file)) = self.current() else { return plain() };
        match shared(&file) {
            Err(error) if error.kind() == ErrorKind::Gone => {
                self.inner.lose(number);
                plain()
            }
            outcome => outcome.map_err(|error| io::Error::from_raw_os_error(error.os_code().unwrap_or(libc::EIO))),
        }
    }

    fn writing(&self) -> io::Result<&File> {
        if let Some(file) = self.writing.get() {
            return Ok(file);
        }
        let file = reopened(&self.source)?;
        Ok(self.writing.get_or_init(|| file))
    }

    /// Writes by the daemon, if it takes that.
    fn write_by(
        &self,
        offset: u64,
        bytes: &[u8],
        shared: impl FnOnce(&bifolio_daemon::SharedFile) -> bifolio_cache::Result<()>,
    ) -> io::Result<()> {
        let is_lent = self.current().is_some_and(|(_, file)| file.is_lent());
        if !is_lent {
            // As a program beside the mount does: the daemon finds it by looking.
            return self.write_plainly(offset, bytes);
        }
        self.work(shared, || self.write_plainly(offset, bytes))
    }

    fn write_plainly(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writing()?.write_all_at(bytes, offset)
    }
}

impl SharedFile for Remote {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let buffer = std::cell::RefCell::new(buffer);
        self.work(
            |file| file.read(offset, &mut buffer.borrow_mut()),
            || self.source.read_at(&mut buffer.borrow_mut(), offset),
        )
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_by(offset, bytes, |file| file.write(offset, bytes))
    }

    fn write_once(&self, offset: u64, bytes: &[u8], once: &dyn Once) -> io::Result<()> {
        self.write_by(offset, bytes, |file| file.write_once(offset, bytes, once))
    }

    fn sync(&self) -> io::Result<()> {
        self.work(bifolio_daemon::SharedFile::sync, || self.source.sync_data())
    }

    fn changed(&self) -> io::Result<()> {
        // A read of nothing looks at the file.
        self.work(|file| file.read(0, &mut []).map(drop), || Ok(()))
    }
}

/// The same file, to be read and written.
fn reopened(file: &File) -> io::Result<File> {
    crate::sys::reopen(file.as_fd(), libc::O_RDWR).map(File::from)
}

fn key((device, inode): (u64, u64)) -> FileKey {
    FileKey { device, inode }
}
