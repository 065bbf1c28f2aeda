//! Modules: the kernels' oracles by name.

use crate::HostKernel;
use crate::backend::RawModule;

/// The kernels of a module, as oracles.
#[derive(Debug)]
pub(super) struct HostModule {
    pub(super) kernels: &'static [(&'static str, HostKernel)],
}

impl RawModule for HostModule {
    fn has_kernel(&self, name: &str) -> bool {
        self.kernels.iter().any(|(known, _)| *known == name)
    }
}
