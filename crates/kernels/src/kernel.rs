//! What a kernel's own file says of it, for all that goes over every kernel: the loader with its known-answer test,
//! the compiler's and the devices' test tiers.

use crate::known_answer::Draw;
use bifolio_device::{Module, ModuleSource, Stream};
use std::fmt::Debug;

/// The header that every module includes.
pub(crate) const KDEF_H: (&str, &str) = ("kdef.h", include_str!("cl/kdef.h"));

/// The header of those that look for bytes that differ.
pub(crate) const DIFFER_H: (&str, &str) = ("differ.h", include_str!("cl/differ.h"));

/// A kernel, or several that share a source and do one work together.
pub trait Kernel: Debug + Sync {
    /// Its portable source, with the oracle of every entry point as the `host` device runs it.
    fn source(&self) -> &'static ModuleSource;

    /// Runs it on inputs whose answers its oracle knows; the error is a sentence about the first that is wrong.
    ///
    /// # Errors
    /// As said, and what the device refuses.
    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String>;

    /// Whether it has a path of its own over host memory for devices on which it does not work. Those without one are
    /// computed on the CPU by who uses them.
    fn has_host_path(&self) -> bool {
        false
    }

    /// Its name, in reports.
    fn name(&self) -> &'static str {
        self.source().name
    }
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Before a kernel is used on a device: every loop of it once, in milliseconds.
    FirstUse,
    /// On a device that interprets, where an instruction takes a microsecond: the smallest inputs that have all
    /// threads at work.
    Interpreted,
    /// In tests: sizes and counts around every boundary in the kernel.
    Exhaustive,
}

/// One trial of a kernel.
#[derive(Debug)]
pub struct Trial<'a> {
    stream: &'a Stream,
    module: Option<&'a Module>,
    effort: Effort,
    draw: Draw,
}

impl<'a> Trial<'a> {
    /// A trial of `module` on the stream's device, or of the host path where there is none.
    pub fn new(stream: &'a Stream, module: Option<&'a Module>, effort: Effort, draw: Draw) -> Self {
        Self { stream, module, effort, draw }
    }

    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    pub(crate) fn effort(&self) -> Effort {
        self.effort
    }

    /// Whether it is about every boundary.
    pub(crate) fn is_exhaustive(&self) -> bool {
        self.effort == Effort::Exhaustive
    }

    /// What inputs are drawn from.
    pub(crate) fn draw(&mut self) -> &mut Draw {
        &mut self.draw
    }

    /// The module, or none for the host path.
    pub(crate) fn module(&self) -> Option<&'a Module> {
        self.module
    }

    /// The module of a kernel without a host path.
    pub(crate) fn compiled(&self) -> Result<&'a Module, String> {
        self.module.ok_or_else(|| "there is no module to try".to_owned())
    }

    /// Whether tables may hold addresses.
    pub(crate) fn has_addresses(&self) -> bool {
        self.stream.device().capabilities().virtual_memory.is_yes()
    }
}
