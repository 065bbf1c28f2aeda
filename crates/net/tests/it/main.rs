//! Tests of the packet engine from outside.

mod clicktests;
mod devices;
mod elements;
mod live;
mod nic;
mod pipes;
mod world;
