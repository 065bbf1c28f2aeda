//! A mount that outlives its server.
//!
//! ```text
//!   keeper     opens the source, makes the state, starts servers as its forks: serves nothing, and waits
//!   server 0   mounts, greets the kernel, serves                        killed: requests wait
//!   server 1   finds state and descriptors, has requests sent again, serves
//! ```
//!
//! All servers share the keeper's table of descriptors, so a kill closes none: files stay open, with their locks, and the
//! connection to the kernel stays. When the keeper ends, so does its server, and the mount: programs get errors, and nobody
//! waits.
//!
//! A server that is killed before the folder is mounted is not replaced: whoever mounts is told.

use crate::fault::{Point, at};
use crate::locks::LOCK_DESCRIPTOR;
use crate::mount::{Ground, MountOptions, of_keeper, recall_of, threads};
use crate::nodes::NODE_DESCRIPTOR;
use crate::openings::HANDLE_DESCRIPTOR;
use crate::replicas::{Ledger, Replicas};
use crate::resume;
use crate::state::{Rows, State, Word};
use crate::sync::lock;
use crate::sys;
use bifolio_block::fuse::{self, Unmounted};
use bifolio_block::{Error, ErrorKind, Result};
use bifolio_keeper::forks::{self, Fork};
use bifolio_keeper::{Ended, Event};
use fuser::InitFlags;
use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon an end, and a request to stop, is noticed.
const TICK: Duration = Duration::from_millis(20);

/// A folder that is to be mounted on another one, by servers that may be killed.
#[derive(Debug)]
pub struct KeptMount {
    ground: Ground,
    /// The mount point as it was named, and by its real path.
    named: PathBuf,
    at: PathBuf,
    options: MountOptions,
    can_resend: bool,
}

/// What a server needs of whoever runs it.
pub struct Served<'a> {
    /// Makes what shares files with devices: each server has its own.
    pub replicas: &'a dyn Fn() -> Arc<dyn Replicas>,
    /// Called by the first server when the folder is mounted.
    pub mounted: &'a dyn Fn(&Path),
    /// Called when files were still open as it was unmounted.
    pub detached: &'a dyn Fn(&Path),
    /// Called by a server that fails; the code with which it ends.
    pub failed: &'a dyn Fn(Error) -> i32,
}

impl KeptMount {
    /// Checks the folders, and mounts nothing yet.
    ///
    /// # Errors
    /// As of [`crate::mount`].
    pub fn new(source: &Path, mountpoint: &Path, options: &MountOptions) -> Result<Self> {
        let ground = Ground::new(source, mountpoint)?;
        // By its real path, as it is unmounted by it later, wherever this process is then.
        let at = mountpoint.canonicalize().unwrap_or_else(|_| mountpoint.to_owned());
        Ok(Self { ground, named: mountpoint.to_owned(), at, options: options.clone(), can_resend: true })
    }

    /// As on a kernel that does not send requests again (before Linux 6.9).
    #[must_use]
    pub fn without_resend(self) -> Self {
        Self { can_resend: false, ..self }
    }

    /// Mounts, and keeps a server running until it is unmounted and nobody has files of it open, or `is_stopped` says that it
    /// is to be unmounted. The process has no other threads than such as wait; the calling one has to stay.
    ///
    /// The code of the first server, if it failed and has told why.
    ///
    /// # Errors
    /// `BadState` if a server could not be replaced, or was killed before it had mounted; the folder is unmounted then.
    pub fn run(
        &self,
        served: &Served<'_>,
        is_stopped: &dyn Fn() -> bool,
        event: &mut dyn FnMut(&Event),
    ) -> Result<Option<i32>> {
        let mut work = |fork: &Fork<'_>| match self.serve(fork, served) {
            Ok(()) => 0,
            Err(error) => (served.failed)(error),
        };
        let (state, mut is_cut_off) = (&self.ground.state, false);
        let mut event = |what: Event| {
            // Where it is unmounted already, somebody may have mounted something else.
            if matches!(what, Event::Died(_)) && !self.can_resend() && state.get(Word::Unmounted) == 0 {
                // What it had read would wait for ever.
                is_cut_off = true;
                let _ = bifolio_keeper::fuse::abort(&self.at);
            }
            event(&what);
        };
        let ended = forks::run(&mut work, &|thread| state.is_recalling(thread), is_stopped, &mut event);
        if !matches!(ended, Ok(Ended::Well)) && state.get(Word::Version) != 0 && state.get(Word::Unmounted) == 0 {
            // Nobody serves it any more. It is no error that it is unmounted already.
            let _ = fuse::unmount(&self.at);
        }
        match ended.map_err(|error| of_keeper(&self.at, error))? {
            _ if is_cut_off => {
                let detail = "its server was killed, and this kernel does not send what it had not answered to another \
                              one, as Linux does from 6.9 on; it is unmounted";
                Err(Error::new(ErrorKind::BadState, self.at.display(), detail))
            }
            Ended::Well | Ended::Stopped => Ok(None),
            Ended::GaveUp(status) => {
                let died = || {
                    let detail = format!("its server ended ({status}) before the folder was mounted");
                    Error::new(ErrorKind::BadState, self.at.display(), detail)
                };
                status.code().map(Some).ok_or_else(died)
            }
        }
    }

    fn can_resend(&self) -> bool {
        let capabilities = InitFlags::from_bits_retain(self.ground.state.get(Word::Capabilities));
        self.can_resend && capabilities.contains(InitFlags::FUSE_HAS_RESEND)
    }

    /// A server, from its start to its end.
    fn serve(&self, fork: &Fork<'_>, served: &Served<'_>) -> Result<()> {
        let replicas = (served.replicas)();
        if fork.number() == 0 {
            let mounted = self.ground.mount(&self.named, &self.options, &replicas)?;
            (served.mounted)(mounted.at());
            fork.ready();
            return self.serve_until(fork, served, &|| mounted.is_over()).and_then(|()| mounted.wait());
        }
        let failed = |error| Error::system(self.at.display(), "serving on in the place of a killed server", error);
        let session = self.resume(fork, &replicas).map_err(failed)?;
        fork.ready();
        self.serve_until(fork, served, &|| session.is_finished())?;
        match session.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::ENODEV)) => Ok(()),
            Ok(Err(error)) => Err(Error::system(self.at.display(), "serving the mount", error)),
            Err(_) => {
                Err(Error::new(ErrorKind::BadState, self.at.display(), "a thread that served the mount panicked"))
            }
        }
    }

    /// Takes over from a server that was killed, wherever it was.
    fn resume(&self, fork: &Fork<'_>, replicas: &Arc<dyn Replicas>) -> io::Result<JoinHandle<io::Result<()>>> {
        let state = &self.ground.state;
        state.adopt();
        let named = descriptors_of(state);
        let devices: Vec<RawFd> = resume::devices()?.into_iter().filter(|fd| !named.contains(fd)).collect();
        let is_named = |fd: RawFd| named.contains(&fd) || devices.contains(&fd);
        // A server that fails before it serves closes nothing: the next one finds what this one has found.
        let left = ManuallyDrop::new(fork.left_open(&is_named));
        // SAFETY: they were the predecessor's, and are nobody else's now.
        let devices: Vec<OwnedFd> = devices.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
        let devices = ManuallyDrop::new(devices);
        replicas.succeed(Ledger::new(state));
        let serve = self.ground.server(&self.options, replicas)?;
        let server = Arc::clone(&serve.server);
        let kept = ManuallyDrop::new(Arc::clone(&server));
        let (made, left): (Vec<_>, Vec<_>) =
            ManuallyDrop::into_inner(left).into_iter().partition(|left| sys::is_closed_to(left.as_fd()));
        *lock(&server.made) = made;
        let left = ManuallyDrop::new(left);
        at(Point::Adopted);
        // Nobody reads before this server does, and so nothing else is asked for again later.
        let device = resume::resend(&devices)?;
        let device = Arc::new(device.try_clone()?);
        server.adopt_passed(&device);
        let ways = (threads(&self.options), self.options.allows_other);
        let session = resume::session(serve, state, device.as_fd(), ways)?;
        drop(server.notifier.set(session.notifier()));
        replicas.mounted(recall_of(&server));
        server.adopt_shared();
        drop(ManuallyDrop::into_inner(devices));
        let session = std::thread::Builder::new().name("bifolio-fuse".to_owned()).spawn(move || session.run())?;
        // The daemon waits for its predecessor's word on what a device is to acquire: the connection is closed when everything
        // is there that programs have stored.
        let recall = move || {
            server.recall_all();
            drop(ManuallyDrop::into_inner(left));
        };
        std::thread::Builder::new().name("bifolio-recall".to_owned()).spawn(recall)?;
        drop(ManuallyDrop::into_inner(kept));
        Ok(session)
    }

    fn serve_until(&self, fork: &Fork<'_>, served: &Served<'_>, is_over: &dyn Fn() -> bool) -> Result<()> {
        let state = &self.ground.state;
        while !is_over() && !fork.is_ending() {
            std::thread::sleep(TICK);
        }
        if !is_over() && state.get(Word::Unmounted) == 0 {
            // What a predecessor has unmounted is not looked for again: somebody may have mounted something else there.
            let unmounted = fuse::unmount(&self.at)?;
            state.set(Word::Unmounted, 1);
            if unmounted == Unmounted::Detached {
                (served.detached)(&self.at);
            }
        }
        while !is_over() {
            std::thread::sleep(TICK);
        }
        Ok(())
    }
}

/// The descriptors that rows name.
fn descriptors_of(state: &State) -> BTreeSet<RawFd> {
    let named = |rows: &Rows, at: usize| -> Vec<RawFd> {
        rows.all().filter_map(|row| rows.get(row, at).checked_sub(1)).map(|number| number as RawFd).collect()
    };
    let all = [
        named(&state.nodes, NODE_DESCRIPTOR),
        named(&state.handles, HANDLE_DESCRIPTOR),
        named(&state.locks, LOCK_DESCRIPTOR),
    ];
    all.into_iter().flatten().collect()
}
