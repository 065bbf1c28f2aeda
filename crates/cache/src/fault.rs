//! Named places between two steps of an operation, at which tests make it fail or end the process. Without the
//! feature `fault-injection` nothing of it is compiled in.

use crate::error::{Error, ErrorKind, Result};
use std::io;
use std::path::Path;

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A place between two steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Point {
            $($(#[$doc])* $name,)*
        }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

points! {
    /// An acquire has looked for changes; nothing is pinned.
    AcquireLooked,
    /// Before each frame gets memory.
    AcquireMapped,
    /// What a CPU process has changed is known.
    AcquireCompared,
    /// Pages that cannot be folded, as there is no memory for bases, are in the file.
    AcquireFlushed,
    /// All that is folded is in scratch memory; nothing is changed.
    FoldRead,
    /// Pages are folded, which is noted whatever happens here.
    FoldMerged,
    /// It is noted.
    FoldNoted,
    /// Before home is read, when all locks are given up for it.
    HomeRead,
    /// Pages without changes of the device's own are read; there are no twins, and nothing is noted.
    FillRead,
    /// Pages with changes of the device's own are read beside them.
    MergeRead,
    /// That they will be merged is noted.
    MergeBegun,
    /// They are merged.
    MergeDone,
    /// The content is there, with twins; versions are not noted.
    FetchRead,
    /// Versions are noted; the acquire has not returned.
    AcquireFetched,
    /// What is evicted is home.
    EvictFlushed,
    /// The versions of what is evicted are gone; its memory is not.
    EvictDropped,
    /// A frame that readers see has a copy; nobody sees that.
    AsideCopied,
    /// It is left to its readers; the file has it as well.
    AsideLeft,
    /// The file has the copy in its place.
    AsideExchanged,
    /// The changes that are released are known.
    ReleaseCompared,
    /// There is room for bases, or there is none.
    ReleaseRoom,
    /// What cannot be kept is home; nothing is noted.
    DirectWritten,
    /// What was kept has a base.
    BaseKept,
    /// Versions are noted; the twin does not have the content yet.
    ReleaseNoted,
    /// The twin has the content; nothing is home.
    ReleaseKept,
    /// Everything is done and the release has not returned.
    Released,
    /// What is flushed is in host memory.
    FlushRead,
    /// The file is open for writing.
    HomeOpened,
    /// Before each run of bytes of a flush.
    HomeRun,
    /// The bytes are home, and the file was looked at; whether somebody has opened it is not asked.
    HomeLooked,
    /// The bytes are home; that is not noted.
    FlushWritten,
    /// It is noted; bases are still there.
    FlushNoted,
    /// The file was cut; nothing is zeroes.
    CutFound,
    /// What was cut off is zeroes; how long the file is was not noted.
    CutBlanked,
    /// Everything is home, and not durable.
    SyncFlushed,
    /// Before the first bytes of a CPU's write.
    WriteLooked,
    /// Half of a CPU's write is home.
    WriteHalf,
    /// All of it is home; that is not noted.
    Written,
    /// The changes that are taken back are known.
    DiscardCompared,
    /// What another process was doing is done, or was never begun; that is not noted.
    Recovered,
}

#[cfg(feature = "fault-injection")]
type Hook = Box<dyn FnMut(Point) -> io::Result<()>>;

#[cfg(feature = "fault-injection")]
thread_local! {
    static HOOK: std::cell::RefCell<Option<Hook>> = const { std::cell::RefCell::new(None) };
}

/// From now on asks `hook` at every point that an operation of this thread reaches; the operation fails with its
/// error.
#[cfg(feature = "fault-injection")]
pub fn inject(hook: impl FnMut(Point) -> io::Result<()> + 'static) {
    HOOK.set(Some(Box::new(hook)));
}

/// Operations of this thread go on undisturbed.
#[cfg(feature = "fault-injection")]
pub fn cease() {
    HOOK.set(None);
}

#[cfg(feature = "fault-injection")]
static WATCHER: std::sync::OnceLock<fn(Point)> = std::sync::OnceLock::new();

/// From now on tells `watcher` of every point that any thread of this process reaches. The first one stays.
#[cfg(feature = "fault-injection")]
pub fn watch(watcher: fn(Point)) {
    let _ = WATCHER.set(watcher);
}

/// A disk that does not answer: whoever comes to it waits until it is opened.
#[cfg(feature = "fault-injection")]
#[derive(Debug, Default)]
pub struct Gate {
    /// How many have come, and whether it is open.
    state: std::sync::Mutex<(usize, bool)>,
    changed: std::sync::Condvar,
}

#[cfg(feature = "fault-injection")]
impl Gate {
    /// Waits until it is open.
    pub fn pass(&self) {
        self.state().0 += 1;
        self.changed.notify_all();
        let is_shut = |state: &mut (usize, bool)| !state.1;
        drop(self.changed.wait_while(self.state(), is_shut).unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Waits until so many have come to it.
    pub fn until_reached(&self, times: usize) {
        let is_early = |state: &mut (usize, bool)| state.0 < times;
        drop(self.changed.wait_while(self.state(), is_early).unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Lets everybody through from now on.
    pub fn open(&self) {
        self.state().1 = true;
        self.changed.notify_all();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, (usize, bool)> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// An operation on the file has come to a point.
#[cfg(feature = "fault-injection")]
pub(crate) fn at(point: Point) -> io::Result<()> {
    if let Some(watcher) = WATCHER.get() {
        watcher(point);
    }
    // Operations at the end of a process come after the end of its threads' variables.
    let ask = |hook: &std::cell::RefCell<Option<Hook>>| hook.borrow_mut().as_mut().map_or(Ok(()), |hook| hook(point));
    HOOK.try_with(ask).unwrap_or(Ok(()))
}

/// See there.
#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
#[allow(clippy::unnecessary_wraps, reason = "it may fail where faults are injected")]
#[allow(clippy::inline_always, reason = "nothing is to be left of it")]
pub(crate) fn at(_: Point) -> io::Result<()> {
    Ok(())
}

/// An operation on a device has come to a point.
pub(crate) fn step(point: Point, path: &Path) -> Result<()> {
    at(point).map_err(|error| Error::new(ErrorKind::Device, path, error.to_string()).with_cause(error))
}
