//! What the devices of this machine do.

mod conformance;
