//! Volumes against other programs, against damage and faults, and into the memory of every device of this machine.

mod load;
mod luks;
mod md;
mod sealed;
mod signatures;
mod support;
