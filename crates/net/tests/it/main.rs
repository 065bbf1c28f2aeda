//! Tests of the packet engine from outside.

mod captures;
mod clicktests;
mod corpus;
mod corpus_paths;
mod devices;
mod differential;
mod elements;
mod hosts;
mod literals;
mod live;
mod malformed;
mod namespaces;
mod nic;
mod nic_changes;
mod pipes;
mod swapping;
mod traffic;
mod watching;
mod wire;
mod world;
