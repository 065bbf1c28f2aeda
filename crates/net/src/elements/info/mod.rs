//! Elements that no packet passes: they say something about others, by name.

use crate::element::{Class, PHASE_INFO};

mod address;
mod alignment;
mod error;
mod port;
mod schedule;

/// All of this group.
#[rustfmt::skip] // a line for each element
pub(super) static CLASSES: &[Class] = &[
    Class::new::<address::AddressInfo>("AddressInfo", "0/0", "a", "gives names to addresses").phase(PHASE_INFO),
    Class::new::<alignment::AlignmentInfo>("AlignmentInfo", "0/0", "a", "says how packets are aligned").phase(PHASE_INFO),
    Class::new::<error::ErrorElement>("Error", "-/-", "a/a", "keeps a router from running"),
    Class::new::<port::PortInfo>("PortInfo", "0/0", "a", "gives names to TCP and UDP ports").phase(PHASE_INFO),
    Class::new::<schedule::ScheduleInfo>("ScheduleInfo", "0/0", "a", "says how often tasks are run").phase(PHASE_INFO),
];
