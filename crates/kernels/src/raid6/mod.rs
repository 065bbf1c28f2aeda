//! RAID-6 over stripes in device memory: P and Q, the recovery of one or two lost members, and a
//! scrub that names the member that is wrong.
//!
//! P is the sum of a stripe's data chunks and Q the sum of 2^i times chunk i, in GF(2^8) modulo
//! x^8 + x^4 + x^3 + x^2 + 1: what Linux md and the literature call RAID-6 (H. P. Anvin, "The
//! mathematics of RAID-6"). Every chunk has a place of its own, see [`encode`], so that members may be
//! separate buffers and parity may rotate: members are numbered by their role in a stripe, data
//! first, then P, then Q.
//!
//! One group of threads takes a piece of 4 KiB of all members of a stripe.

mod case;
pub mod field;
mod host;
mod launch;
mod oracle;
mod stripe;

pub use case::Case;
pub use launch::{generate, recover, scrub};
pub use oracle::{oracle_generate, oracle_recover, oracle_scrub};
pub use stripe::{
    DATA_MAX, Geometry, LOSS_BYTES, Loss, PIECE_BYTES, Verdict, check, decode_verdicts, encode, encode_losses,
};

use crate::kernel::{Effort, KDEF_H, Kernel, Trial};
use bifolio_device::ModuleSource;

const MODULE: ModuleSource = ModuleSource {
    name: "raid6",
    source: include_str!("../cl/raid6.cl"),
    headers: &[KDEF_H, ("raid6.h", include_str!("../cl/raid6.h"))],
    kernels: &[
        (launch::GENERATE, host::generate_on_host),
        (launch::RECOVER, host::recover_on_host),
        (launch::SCRUB, host::scrub_on_host),
    ],
};

/// The kernels.
#[derive(Debug)]
pub struct Raid6;

impl Kernel for Raid6 {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        let module = trial.compiled()?;
        let (counts, shapes): (&[usize], &[(u32, u64)]) = match trial.effort() {
            Effort::FirstUse => (&[8], &[(5, 5120)]),
            Effort::Interpreted => (&[8], &[(2, 16), (5, 4112)]),
            // Data members around the batches of four, chunks around a piece of 4 KiB.
            Effort::Exhaustive => {
                (&[0, 1, 17], &[(1, 16), (2, 48), (3, 4080), (4, 4096), (5, 4112), (9, 8192), (10, 65536), (255, 32)])
            }
        };
        for (data, chunk_bytes) in shapes.iter().copied() {
            for stripes in counts {
                let case = Case::draw(trial.draw(), Geometry { data, chunk_bytes }, *stripes);
                case.run(trial.stream(), module)?;
                if trial.is_exhaustive() && trial.has_addresses() {
                    case.by_address().run(trial.stream(), module)?;
                }
            }
        }
        Ok(())
    }
}
