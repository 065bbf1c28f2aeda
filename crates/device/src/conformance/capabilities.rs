//! Capabilities that are there work; the others have a reason, and are refused.

use super::content::{noise, where_capable};
use crate::{Device, ErrorKind};
use fastrand::Rng;

pub(super) fn direct_storage_is_honest(device: &Device, _: &mut Rng) {
    where_capable(
        &device.capabilities().direct_storage,
        || device.direct_storage(),
        || drop(device.direct_storage().unwrap()),
    );
}

pub(super) fn addresses_are_the_cpus_too(device: &Device, random: &mut Rng) {
    if !device.capabilities().host_addressable.is_yes() {
        return;
    }
    let (memory, data) = (device.alloc(5000).unwrap(), noise(random, 5000));
    device.create_stream().unwrap().upload(memory.slice(), &data).unwrap();
    // SAFETY: the CPU uses the memory, which has this many bytes, and nobody writes them.
    let seen = unsafe { std::slice::from_raw_parts(memory.ptr().0 as *const u8, 5000) };
    assert!(seen == data, "the CPU sees other bytes at the device's addresses");
}

pub(super) fn native_streams_are_adopted(device: &Device, _: &mut Rng) {
    // SAFETY: where it is adopted, 0 is the default stream, which always lives.
    let adopt = || unsafe { device.adopt_stream(0) };
    where_capable(&device.capabilities().native_streams, adopt, || adopt().unwrap().synchronize().unwrap());
}

pub(super) fn energy_grows(device: &Device, _: &mut Rng) {
    where_capable(
        &device.capabilities().energy,
        || device.energy_meter(),
        || {
            let meter = device.energy_meter().unwrap();
            let (watts, before) = (meter.watts(), meter.joules());
            assert!(watts.is_ok() || before.is_ok(), "a meter reads something");
            for refused in [&watts, &before].into_iter().filter_map(|reading| reading.as_ref().err()) {
                assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            }
            println!("  {watts:?} watts, {before:?} joules");
            assert!(watts.is_err() || watts.is_ok_and(|watts| (0.0..1e5).contains(&watts)));
            if let Ok(before) = before {
                let after = meter.joules().unwrap();
                assert!(before >= 0.0 && after >= before, "the counter went from {before} to {after} joules");
            }
        },
    );
}

pub(super) fn reasons_are_given(device: &Device, _: &mut Rng) {
    for (name, capability) in device.capabilities().iter() {
        let reasoned = capability.is_yes() || capability.reason().is_some_and(|reason| reason.len() > 10);
        assert!(reasoned, "{name} is absent without a reason");
    }
}
