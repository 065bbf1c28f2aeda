//! Packets that are cut, and put together.

use crate::element::Class;

mod fragmenter;
mod reassembler;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<fragmenter::IpFragmenter>("IPFragmenter", "1/1-2", "h", "fragments large IP packets"),
    Class::new::<reassembler::IpReassembler>("IPReassembler", "1/1-2", "a/ah", "reassembles fragmented IP packets"),
];
