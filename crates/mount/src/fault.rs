//! Named places between two steps of a server, at which tests end its process. Without the feature `fault-injection`
//! nothing of it is compiled in.

/// A place between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// It is noted that the source is about to be changed.
    Begun,
    /// The source is changed.
    Changed,
    /// That it was is noted; the answer is not sent.
    Done,
    /// A file is opened, which is not noted.
    Opened,
    /// It is noted; the answer is not sent.
    Noted,
    /// An opening is noted no longer; it is still open.
    Released,
    /// Bytes are written, and the answer is not sent.
    Written,
    /// Whoever shares a file has written a part, which is not noted.
    Answered,
    /// The kernel was given pages of a shared file, by what is noted, and has not got them.
    Given,
    /// The locks of an owner are gone, and he is noted still.
    Unlocking,
    /// Attributes are asked for.
    Asked,
    /// A successor knows everything, and has not asked for requests again.
    Adopted,
}

impl Point {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Begun,
        Self::Changed,
        Self::Done,
        Self::Opened,
        Self::Noted,
        Self::Released,
        Self::Written,
        Self::Answered,
        Self::Given,
        Self::Unlocking,
        Self::Asked,
        Self::Adopted,
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
pub(crate) fn at(_: Point) {}
