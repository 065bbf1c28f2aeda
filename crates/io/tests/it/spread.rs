//! One file into several devices.

use crate::support::{Fault, FaultStorage, Faulty, content_of, file_of, folder, poisoned, random, small_options};
use bifolio_device::{Device, DeviceChoice, DeviceSlice, HostOptions, discover};
use bifolio_io::cache_state::{evict, load};
use bifolio_io::{ErrorKind, Exchange, ReadOptions, Router, RouterOptions, Spread, part_of, read_spread};
use bifolio_testing::skip;
use std::sync::Arc;

const SIZE: u64 = 9_000_001;

fn check(devices: &[Device]) {
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let routers: Vec<_> = devices.iter().map(|device| Router::new(device, RouterOptions::default())).collect();
    let routers: Vec<&Router> = routers.iter().collect();
    let file = routers[0].open(&path).unwrap();
    if !file.is_in_memory() {
        evict(&file, 0..SIZE).unwrap();
        load(&file, 0..SIZE / 3).unwrap();
    }
    for (offset, length) in [(0, None), (4097, Some(5_000_000)), (SIZE - 10, None), (0, Some(0)), (7, Some(3 << 20))] {
        let bytes = length.map_or(SIZE - offset, |length: u64| length.min(SIZE - offset));
        let range = offset..offset + bytes;
        for spread in [Spread::Shard, Spread::Replicate] {
            let part = |number| match spread {
                Spread::Shard => part_of(&range, number, devices.len()),
                Spread::Replicate => range.clone(),
            };
            let memories: Vec<_> = devices
                .iter()
                .enumerate()
                .map(|(number, device)| poisoned(device, part(number).end - part(number).start))
                .collect();
            let slices: Vec<DeviceSlice<'_>> = memories.iter().map(bifolio_device::Allocation::slice).collect();
            let report =
                read_spread(&routers, &file, offset, length, &slices, spread, &ReadOptions::default()).unwrap();
            for (number, memory) in memories.iter().enumerate() {
                let part = part(number);
                assert!(
                    content_of(memory) == content[part.start as usize..part.end as usize],
                    "{spread:?} {offset}+{length:?}, device {number}, {report:?}"
                );
            }
        }
    }
}

#[test]
fn host_devices_get_their_parts_or_all_of_it() {
    let hosts: Vec<_> = ["host:0", "host:1", "host:2"]
        .map(|name| bifolio_device::open(DeviceChoice::Exactly(name.parse().unwrap())).unwrap())
        .into();
    check(&hosts);
    check(&hosts[..1]);
}

#[test]
fn gpus_of_this_machine_get_their_parts_or_all_of_it() {
    let devices: Vec<_> = discover()
        .into_iter()
        .flat_map(|report| report.devices)
        .filter(|info| info.id.backend.name() == "cuda")
        .map(|info| bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap())
        .collect();
    if devices.is_empty() {
        return skip("this machine has no CUDA device");
    }
    check(&devices);
}

#[test]
fn the_first_failure_is_the_one_reported() {
    let folder = folder();
    let path = file_of(folder.path(), "data", &random().bytes(SIZE));
    let devices = [Device::host(&HostOptions::default()), Device::host(&HostOptions::default())];
    let storage = Arc::new(Faulty(FaultStorage::new(2, Fault::Error(libc::EIO))));
    let good = Router::new(&devices[0], small_options());
    let bad = Router::new(&devices[1], RouterOptions { storage, ..small_options() });
    let file = good.open(&path).unwrap();
    let memories = devices.each_ref().map(|device| poisoned(device, SIZE));
    let slices = memories.each_ref().map(bifolio_device::Allocation::slice);
    for spread in [Spread::Shard, Spread::Replicate] {
        let error = read_spread(&[&good, &bad], &file, 0, None, &slices, spread, &ReadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Read, "{error}");
        let short = slices.map(|slice| slice.part(0, 1000).unwrap());
        let error = read_spread(&[&good, &bad], &file, 0, None, &short, spread, &ReadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadDestination, "{error}");
    }
}

#[test]
fn where_devices_cannot_exchange_each_reads_everything() {
    let opencl =
        discover().into_iter().flat_map(|report| report.devices).find(|info| info.id.backend.name() == "opencl");
    let Some(info) = opencl else { return skip("this machine has no OpenCL device") };
    let device = bifolio_device::open(DeviceChoice::Exactly(info.id)).unwrap();
    let folder = folder();
    let content = random().bytes(SIZE);
    let path = file_of(folder.path(), "data", &content);
    let routers = [Router::new(&device, RouterOptions::default()), Router::new(&device, RouterOptions::default())];
    let file = routers[0].open(&path).unwrap();
    let memories = [poisoned(&device, SIZE), poisoned(&device, SIZE)];
    let slices = memories.each_ref().map(bifolio_device::Allocation::slice);
    let report = read_spread(&routers.each_ref(), &file, 0, None, &slices, Spread::Replicate, &ReadOptions::default());
    assert_eq!(report.unwrap().exchange, Exchange::EachReadAll);
    assert!(memories.iter().all(|memory| content_of(memory) == content));
}
