//! Literals searched for in the packets of a batch.
//!
//! ```text
//!   params   what is searched, and what is done with what is found
//!   launch   two kernels in a row
//!   list     hits as the device leaves them
//!   oracle   every literal at every place
//!   host     the same for the `host` device
//!   case     random literals, packets and batches with known answers
//! ```
//!
//! Literals come as an *image*: an automaton in words, made by who has the literals (`matcher` of the crate for packets says
//! how it lies), with tables of the bytes by which literals begin. Each has a *rank*: longer ones come first, then those with
//! smaller numbers.
//!
//! The variable part of the batch is cut into units of 32 bytes, which threads take whatever packets they are of. No table
//! says which packet a byte is of: packets lie in the variable part in their order, so that the rows themselves are a table
//! to be halved. That costs the processor nothing, and the device about ten reads for a unit in which anything begins.
//!
//! Rows whose places are not in order are survived, but what is found is not what one would find.

mod case;
mod host;
mod launch;
mod list;
mod oracle;
mod params;

pub use launch::{Operands, launch};
pub use list::{LIST_BYTES, NOTHING, UNSEARCHED, hits, keep, list_bytes};
pub use oracle::{oracle, texts};
pub use params::{FirstHit, Listed, LiteralSearch};

use super::rows::PACKET_ROWS_H;
use crate::kernel::{KDEF_H, Kernel, Trial};
use bifolio_device::{ModuleSource, Result};

const BEGIN: &str = "literal_begin_packets";
const MATCH: &str = "literal_match";

const MODULE: ModuleSource = ModuleSource {
    name: MATCH,
    source: include_str!("../../cl/literal_match.cl"),
    headers: &[KDEF_H, PACKET_ROWS_H, ("literal_match.h", include_str!("../../cl/literal_match.h"))],
    kernels: &[(BEGIN, host::begin_on_host), (MATCH, host::match_on_host)],
};

/// The kernel; [`launch`] runs it.
#[derive(Debug)]
pub struct LiteralMatch;

impl Kernel for LiteralMatch {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        case::try_out(trial)
    }
}
