//! Files of packets, read and written, and packets as text.

use crate::element::{Class, Notes, PHASE_DEFAULT};

mod from_dump;
mod sample;
#[cfg(test)]
mod tests;
mod to_dump;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<from_dump::FromDump>("FromDump", "0/1-2", "a/ah", "reads packets from a capture file")
        .notes_empty(Notes::Own),
    Class::new::<to_dump::ToDump>("ToDump", "1/0-1", "a", "writes packets to a capture file")
        .phase(PHASE_DEFAULT + 100),
];
