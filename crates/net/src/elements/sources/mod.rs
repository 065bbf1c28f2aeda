//! Sources and sinks.

use crate::element::{Class, Notes};

mod discard;
mod idle;
mod infinite;
mod payload;
mod rated;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<discard::Discard>("Discard", "1/0", "a", "drops all packets"),
    Class::new::<idle::Idle>("Idle", "-/-", "a/a", "never emits a packet, and drops what comes")
        .flow("x/y")
        .notes_empty(Notes::Never),
    Class::new::<infinite::InfiniteSource>("InfiniteSource", "0/1", "a", "makes packets as fast as they are taken")
        .notes_empty(Notes::Own),
    Class::new::<rated::RatedSource>("RatedSource", "0/1", "a", "makes packets at a rate").notes_empty(Notes::Own),
];
