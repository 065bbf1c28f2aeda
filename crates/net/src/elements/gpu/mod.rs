//! Packets on a GPU: batches, their way to a device and back, and elements that are computed there.
//!
//! ```text
//!   batcher -> memcpy -> element (ip_lookup, sdn_classifier, ...) -> memcpy -> completion_queue -> debatcher -> dispatcher
//!   carrier   what stands for a batch on wide connections
//! ```

use crate::element::{Class, Element, Notes};

mod batcher;
mod carrier;
#[cfg(test)]
mod changes;
mod completion_queue;
mod debatcher;
mod dispatcher;
mod element;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fetching;
mod headers;
mod ids_matcher;
mod ip_lookup;
mod ipsec_esp;
mod memcpy;
mod sdn_classifier;
#[cfg(test)]
mod tests;

/// A class of elements that are computed in a path.
const fn gpu(name: &'static str, summary: &'static str, make: fn() -> Box<dyn Element>) -> Class {
    Class { make, ..Class::new::<element::Unmade>(name, "1/1", "h", summary).wide("c/c") }
}

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<batcher::Batcher>("Batcher", "1/1", "h", "collects packets into batches for a device")
        .wide("-/w")
        .notes_full(Notes::Own)
        .phase(crate::element::PHASE_LAST),
    Class::new::<debatcher::Debatcher>("Debatcher", "1/1", "l/h", "takes batches apart into packets").wide("w/-"),
    Class::new::<memcpy::DeviceToHost>("DeviceToHostMemcpy", "1/1", "h", "has a batch computed and brought back")
        .wide("w/w"),
    Class::new::<dispatcher::Dispatcher>(
        "Dispatcher",
        "1/1-",
        "h",
        "sends packets to the output that an annotation says",
    ),
    gpu("GPUCheckIPHeader", "checks IP headers on a device", element::of::<headers::Check>),
    Class::new::<completion_queue::GpuCompletionQueue>(
        "GPUCompletionQueue",
        "1/1",
        "h/l",
        "keeps batches in their order until a device has computed them",
    )
    .wide("w/w")
    .notes_empty(Notes::Own),
    gpu("GPUDecIPTTL", "decrements the TTL of IP packets on a device", element::of::<headers::DecTtl>),
    gpu("GPUIDSMatcher", "searches payloads for rules or literals on a device", element::of::<ids_matcher::IdsMatcher>),
    gpu("GPUIPLookup", "looks up routes on a device", element::of::<ip_lookup::IpLookup>),
    gpu("GPUIPsecESP", "encrypts or decrypts ESP packets with AES-GCM on a device", element::of::<ipsec_esp::IpsecEsp>),
    gpu(
        "GPUSDNClassifier",
        "sorts packets by thousands of rules on a device",
        element::of::<sdn_classifier::SdnClassifier>,
    ),
    gpu("GPUSetIPChecksum", "sets the checksum of IP headers on a device", element::of::<headers::SetChecksum>),
    Class::new::<memcpy::HostToDevice>("HostToDeviceMemcpy", "1/1", "h", "begins what a device computes of a batch")
        .wide("w/w"),
];
