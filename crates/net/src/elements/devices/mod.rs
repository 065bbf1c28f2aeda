//! Devices and sockets of the system's.

use crate::element::{Class, PHASE_PRIVILEGED};

mod device;
mod from_device;
mod from_host;
mod kernel_tun;
mod shape;
mod socket;
#[cfg(test)]
mod tests;
mod to_device;
mod to_host;

/// When elements that receive are opened: before those which send, and before rights are given up.
const PHASE_RECEIVE: i32 = PHASE_PRIVILEGED - 1;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<from_device::FromDevice<false>>("FromDevice", "0/1-2", "h", "reads packets from a network device")
        .phase(PHASE_RECEIVE),
    Class::new::<from_device::FromDevice<true>>(
        "PollDevice",
        "0/1-2",
        "h",
        "reads packets from a network device without ever waiting for them",
    )
    .phase(PHASE_RECEIVE),
    Class::new::<to_device::ToDevice>("ToDevice", "1/0-2", "l/h", "sends packets to a network device")
        .phase(PHASE_PRIVILEGED),
    Class::new::<from_host::FromHost>("FromHost", "0/1", "h", "reads what the host sends by a TAP device")
        .phase(PHASE_RECEIVE),
    Class::new::<to_host::ToHost>("ToHost", "1/0", "h", "hands packets to the host by a TAP device")
        .phase(PHASE_PRIVILEGED),
    Class::new::<kernel_tun::KernelTun>(
        "KernelTun",
        "0-1/1-2",
        "a/h",
        "exchanges packets with the host by a TUN or TAP device",
    )
    .flow("x/y")
    .phase(PHASE_RECEIVE),
    Class::new::<socket::Socket>("Socket", "0-1/0-1", "a/h", "exchanges packets by a TCP, UDP or Unix socket")
        .flow("x/y")
        .phase(PHASE_RECEIVE),
];
