//! What work takes on each path, measured and kept up to date, and who is chosen for it.

mod choice;
mod curve;
mod kind;
mod path;
mod tally;

pub(crate) use choice::{Choice, Outlook, choose, trial_ratio};
pub use kind::ServiceStatistics;
pub(crate) use kind::{Kind, TIME_EVERY};
pub use path::{Path, Route};
