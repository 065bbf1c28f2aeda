//! What the tests share.

mod case;
mod devices;
mod memory;

pub(crate) use case::Case;
pub(crate) use devices::devices;
pub(crate) use memory::{Host, content, memory};
