//! Queues, schedulers, and what chooses among paths.

use crate::element::{Class, Notes};

mod queue;
mod unqueue;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<queue::Queue>(
        "Queue",
        "1/1",
        "h/l",
        "stores packets in first-in-first-out order, and tells when it is empty",
    )
    .flow("x/x")
    .notes_empty(Notes::Own),
    Class::new::<unqueue::Unqueue>("Unqueue", "1/1", "l/h", "pulls packets, and pushes them on"),
];
