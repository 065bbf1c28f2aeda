//! What tasks say of their work, and what file descriptors are waited for.

/// What a task did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Something: it is run again, in its turn.
    Worked,
    /// Nothing. It sleeps until a queue that it pulls from has packets again, or one that it pushes to has room; where
    /// nothing upstream or downstream says so, it is asked again.
    Idle,
    /// What there was to do, or all that it will do: it is run when it is scheduled again.
    Stop,
}

/// What a file descriptor is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Whether it can be read.
    pub read: bool,
    /// Whether it can be written.
    pub write: bool,
}
