//! Engines by cache state, beside what disk and link can do.
//!
//! ```text
//!   for each file, state, request size, pattern and contention:
//!       for each repetition:              drift of the machine hits all engines alike
//!           for each engine (and the disk alone):
//!               set the state up, look at what was reached, run, verify once
//! ```
//!
//! What can be asked for is in `options` in the words of `choices`, what it means in `states` and `requests`, the
//! measuring in `measure`, `run` and `contention`, the arithmetic in `results`, the reports in `table` and
//! `page`.

mod choices;
mod contention;
mod measure;
mod options;
mod page;
mod requests;
mod results;
mod run;
mod states;
mod table;

pub use choices::{Contention, Pattern, RegionState, RequestSize, States, parse_cell, parse_seconds};
pub use measure::run;
pub use options::Options;
pub use results::Results;
