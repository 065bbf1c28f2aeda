//! Named places between two steps of a server, at which tests end its process; those of the cache are beside them. Without
//! the feature `fault-injection` nothing of it is compiled in.

/// A place between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Somebody has connected, of which the keeper knows nothing.
    Accepted,
    /// A request has come; nothing is done.
    Received,
    /// It is done; the answer is not sent.
    Done,
    /// The keeper has a descriptor of which no row says what it is.
    Kept,
    /// The row is there; whoever wanted it does not know.
    Noted,
    /// The row is empty; the keeper still has the descriptor.
    Emptied,
    /// A file is cached for who opens it, which is not noted.
    Opened,
    /// Leases of who closes a file are ended; it is still noted as open.
    Closed,
    /// Another server has found everything, and has not said that it serves.
    FoundAll,
    /// Memory that nobody uses was given back, as others need it.
    Reclaimed,
    /// Clients were asked to release.
    Recalled,
    /// One that did not is about to be disconnected.
    Detaching,
}

impl Point {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Accepted,
        Self::Received,
        Self::Done,
        Self::Kept,
        Self::Noted,
        Self::Emptied,
        Self::Opened,
        Self::Closed,
        Self::FoundAll,
        Self::Reclaimed,
        Self::Recalled,
        Self::Detaching,
    ];
}

#[cfg(feature = "fault-injection")]
static WATCHER: std::sync::OnceLock<fn(Point)> = std::sync::OnceLock::new();

/// From now on tells `watcher` of every point that any thread of this process reaches. The first one stays.
#[cfg(feature = "fault-injection")]
pub fn watch(watcher: fn(Point)) {
    let _ = WATCHER.set(watcher);
}

/// The server has come to a point.
#[cfg(feature = "fault-injection")]
pub(crate) fn at(point: Point) {
    if let Some(watcher) = WATCHER.get() {
        watcher(point);
    }
}

/// See there.
#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
#[allow(clippy::inline_always, reason = "nothing is to be left of it")]
pub(crate) fn at(_: Point) {}

#[cfg(feature = "fault-injection")]
static METER: std::sync::OnceLock<fn(usize) -> Option<u64>> = std::sync::OnceLock::new();

/// From now on asks `meter` how many bytes of the device with a number are free. The first one stays.
#[cfg(feature = "fault-injection")]
pub fn measure(meter: fn(usize) -> Option<u64>) {
    let _ = METER.set(meter);
}

/// What tests say that is free.
#[cfg(feature = "fault-injection")]
pub(crate) fn free_bytes(device: usize) -> Option<u64> {
    METER.get().and_then(|meter| meter(device))
}

/// See there.
#[cfg(not(feature = "fault-injection"))]
pub(crate) fn free_bytes(_: usize) -> Option<u64> {
    None
}
