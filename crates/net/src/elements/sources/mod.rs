//! Sources and sinks.

use crate::element::{Class, Notes};

mod discard;
mod idle;
mod infinite;
mod payload;
mod quota;
mod random;
mod rated;
mod timed;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<discard::Discard>("Discard", "1/0", "a", "drops all packets"),
    Class::new::<idle::Idle>("Idle", "-/-", "a/a", "never emits a packet, and drops what comes")
        .flow("x/y")
        .notes_empty(Notes::Never),
    Class::new::<infinite::InfiniteSource>("InfiniteSource", "0/1", "a", "makes packets as fast as they are taken")
        .notes_empty(Notes::Own),
    Class::new::<random::RandomSource>("RandomSource", "0/1", "a", "sends packets of random bytes")
        .notes_empty(Notes::Own),
    Class::new::<rated::RatedSource>("RatedSource", "0/1", "a", "makes packets at a rate").notes_empty(Notes::Own),
    Class::new::<timed::TimedSink>("TimedSink", "1/0", "l", "drops a packet now and then"),
    Class::new::<timed::TimedSource>("TimedSource", "0/1", "h", "sends a packet now and then"),
];
