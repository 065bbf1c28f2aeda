//! Fold: brings pages of a device up to what all devices have released, without the file.
//!
//! Each page takes the content of its home, which may be another device's memory; gets what each donor has released laid
//! on it, in the order of the list; and goes under what the device itself has changed and not released. The twin becomes
//! what was folded, so that what then differs from it is the device's own; the base becomes the origin, which is what
//! the file has, so that what then differs from it is what the file lacks.
//!
//! A donor has released the bytes in which its twin differs from its base. Where the folded byte is no longer that base,
//! somebody else's is newer and stays, and the page's flags say so unless both are the same.
//!
//! Kernels may be storing into the page as the device has it meanwhile: what they store stays, as for
//! [`merge`]. A page without a twin is used by nobody and is written over, which is how more than
//! [`DONORS_MAX`] donors are folded: the first ones into scratch memory (no twin, no base), which is the content of the
//! next launch, with the first content as its origin if there is no other. It may be folded in place.
//!
//! Pages are listed in a table on the device, see [`Entry`]. One group of threads folds one page, and reads everything
//! once: what is written may be read too, so a page's own twin and base may be those of a donor, or content and origin.

mod case;
mod copies;
mod entry;
mod host;
mod launch;
mod oracle;

pub use entry::{DONORS_MAX, Donor, ENTRY_BYTES, Entry, check, encode};
pub use oracle::{AHEAD, LOST, OWN_CHANGED, Page, oracle};

use crate::addressing::Addressing;
use crate::kernel::{DIFFER_H, KDEF_H, Kernel, Trial};
use crate::load::Kernels;
use crate::merge;
use bifolio_device::{DeviceSlice, ModuleSource, Result, Stream};

const MODULE: ModuleSource = ModuleSource {
    name: launch::KERNEL,
    source: include_str!("../cl/fold.cl"),
    headers: &[KDEF_H, DIFFER_H, merge::HEADER, ("fold.h", include_str!("../cl/fold.h"))],
    kernels: &[(launch::KERNEL, host::run_on_host)],
};

/// The kernel; [`Kernels::fold`] runs it.
#[derive(Debug)]
pub struct Fold;

impl Kernel for Fold {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        case::try_lists(trial)
    }

    fn has_host_path(&self) -> bool {
        true
    }
}

impl Kernels {
    /// Folds the pages of a table on the device. `entries` is an array of [`Entry`] at an 8-byte boundary, see
    /// [`encode`]; `flags` gets a u32 for each, at a 4-byte boundary.
    ///
    /// # Errors
    /// Ranges that do not fit, and what the device refuses.
    ///
    /// # Safety
    /// The ranges are memory of the stream's device, which is the one the kernels were loaded on. So are the pages, of
    /// which content, origin and donors may also be memory of another device that this one reaches. All of it stays
    /// valid until the work completes. Every page passes [`check`]. What is written nobody else uses (`current` of a page
    /// with a twin may be in use by kernels), and it overlaps nothing else here, except that what one page reads may be
    /// exactly what the same page writes.
    pub unsafe fn fold(
        &self,
        stream: &Stream,
        memory: Addressing<'_>,
        entries: DeviceSlice<'_>,
        flags: DeviceSlice<'_>,
    ) -> Result<()> {
        let module = self.module(&Fold)?;
        // SAFETY: the caller's promise; the module is the right one.
        unsafe { launch::run(stream, module, memory, entries, flags) }
    }
}
