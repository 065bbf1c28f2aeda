//! What the executor makes of CPU and device. The two microbenchmarks of the paper
//! (Weibin Sun's thesis on `GPUstore`, figures 4.4 and 4.5), then every service: the CPU's library on one core, the
//! device, and the executor's choice.
//!
//! All ways at one size take turns, after runs from which the executor learns as it does from any request. Each
//! way's result is compared once, before it is timed: with the oracle up to 1 MiB, beyond with the CPU's library.

mod figures;
mod measure;
mod options;
mod page;
mod report;
mod results;
mod work;

pub use measure::run;
pub use options::Options;
pub use results::Results;
pub use work::Kind;
