//! Tests of the packet engine from outside.

mod nic;
mod pipes;
mod world;
