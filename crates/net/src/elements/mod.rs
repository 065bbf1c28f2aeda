//! The elements that come with the engine: a folder for each group, a file for each element or family.
//!
//! Each group has a list `CLASSES`, with a line for each element. Who adds an element adds its file, and that line.

use crate::element::Class;
use crate::registry::Registry;

mod analysis;
mod annotations;
mod classify;
mod control;
mod detection;
mod devices;
mod dumps;
mod ether;
mod fragments;
mod gpu;
mod icmp;
mod info;
mod ip;
mod ipsec;
mod queues;
mod rewriting;
mod sources;
#[cfg(test)]
#[allow(dead_code)] // what one group of elements needs, another one does not
mod testing;

/// Groups of classes, as the documentation has them.
#[rustfmt::skip] // a line for each group
pub static GROUPS: &[(&str, &[Class])] = &[
    ("Classification", classify::CLASSES),
    ("Control", control::CLASSES),
    ("Detection", detection::CLASSES),
    ("Devices and sockets", devices::CLASSES),
    ("Dumps", dumps::CLASSES),
    ("Ethernet and ARP", ether::CLASSES),
    ("Fragments", fragments::CLASSES),
    ("GPU", gpu::CLASSES),
    ("ICMP", icmp::CLASSES),
    ("Information", info::CLASSES),
    ("IP", ip::CLASSES),
    ("IPsec", ipsec::CLASSES),
    ("Measurement", analysis::CLASSES),
    ("Packets and annotations", annotations::CLASSES),
    ("Queues and schedulers", queues::CLASSES),
    ("Rewriting", rewriting::CLASSES),
    ("Sources and sinks", sources::CLASSES),
];

impl Registry {
    /// All classes that come with the engine.
    pub fn standard() -> Self {
        let mut registry = Self::new();
        for (_, classes) in GROUPS {
            registry.add(classes);
        }
        registry
    }
}
