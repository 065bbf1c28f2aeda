//! Tier 3: the compiled kernels against their oracles on every device of this machine: the
//! embedded one, every OpenCL device (PoCL among them) and every GPU.

use crate::opened::devices;
use crate::parallel;
use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, DeviceSlice, Result, Stream, open};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::{Addressing, Effort, KERNELS, Kernel, KernelPath, Kernels, LoadedKernel, Trial};
use bifolio_kernels::{byte_mask, fold, merge};

#[test]
fn every_kernel_is_its_oracle_around_every_boundary() {
    let devices = devices(BackendKind::ALL);
    let seed = bifolio_testing::seed();
    let pairs: Vec<(&Device, &dyn Kernel)> =
        devices.iter().flat_map(|device| KERNELS.iter().map(move |kernel| (device, *kernel))).collect();
    parallel::for_each(&pairs, |(device, kernel)| {
        let (stream, module) = (device.create_stream().unwrap(), device.load_module(kernel.source()).unwrap());
        let mut trial = Trial::new(&stream, Some(&module), Effort::Exhaustive, Draw::from_seed(seed));
        kernel.try_out(&mut trial).unwrap_or_else(|wrong| panic!("{}, {}: {wrong}", device.id(), kernel.name()));
    });
}

#[test]
fn every_host_path_is_the_oracle_around_every_boundary() {
    let seed = bifolio_testing::seed();
    for device in devices(BackendKind::ALL) {
        let stream = device.create_stream().unwrap();
        for kernel in KERNELS.iter().filter(|kernel| kernel.has_host_path()) {
            let mut trial = Trial::new(&stream, None, Effort::Exhaustive, Draw::from_seed(seed));
            kernel.try_out(&mut trial).unwrap_or_else(|wrong| panic!("{}, {}: {wrong}", device.id(), kernel.name()));
        }
    }
}

#[test]
fn devices_that_compile_kernels_use_all_of_them() {
    for device in devices([BackendKind::Cuda, BackendKind::OpenCl]) {
        parallel::for_each(KERNELS, |kernel| {
            let loaded = LoadedKernel::load(*kernel, &device).unwrap();
            let status = loaded.status();
            println!("{}: {status}", device.id());
            assert!(loaded.module().is_some() && status.path == KernelPath::Device, "{}: {status}", device.id());
        });
    }
}

/// A set of kernels finds them by their names.
#[test]
fn no_two_kernels_have_the_same_name() {
    let mut names: Vec<_> = KERNELS.iter().map(|kernel| kernel.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), KERNELS.len(), "{names:?}");
}

#[test]
fn devices_without_addresses_refuse_lists_of_them() {
    for device in devices([BackendKind::OpenCl]) {
        let (stream, kernels) = (device.create_stream().unwrap(), Kernels::load(&device, &[&merge::Merge]).unwrap());
        let (table, flags) = (device.alloc(merge::ENTRY_BYTES).unwrap(), device.alloc(4).unwrap());
        let all = Addressing::Absolute;
        let operands = merge::Operands { current: all, twin: all, incoming: all };
        // SAFETY: it is refused before anything is enqueued.
        let refused = unsafe { kernels.merge(&stream, operands, table.slice(), flags.slice()) }.unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("cannot use absolute addresses") && refused.contains("ranges and offsets"),
            "{refused}"
        );
        let (kernels, table) =
            (Kernels::load(&device, &[&fold::Fold]).unwrap(), device.alloc(fold::ENTRY_BYTES).unwrap());
        // SAFETY: as above.
        let folded = unsafe { kernels.fold(&stream, Addressing::Absolute, table.slice(), flags.slice()) }.unwrap_err();
        assert_eq!(folded.to_string(), refused);
    }
}

#[test]
fn a_kernel_that_was_not_loaded_is_refused_by_name() {
    let device = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    let (stream, memory) = (device.create_stream().unwrap(), device.alloc(16384).unwrap());
    let kernels = Kernels::load(&device, &[&merge::Merge]).unwrap();
    let refused = compare(&kernels, &stream, memory.slice(), memory.slice(), memory.slice()).unwrap_err();
    assert!(refused.to_string().contains("page_diff was not loaded"), "{refused}");
}

#[test]
fn wrong_ranges_are_refused_with_a_sentence() {
    let device = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    let stream = device.create_stream().unwrap();
    let kernels = Kernels::load(&device, KERNELS).unwrap();
    let (memory, bitmap) = (device.alloc(16384).unwrap(), device.alloc(4).unwrap());
    let page = |at, len| memory.slice().part(at, len).unwrap();
    let refusal = |a, b, bitmap| compare(&kernels, &stream, a, b, bitmap).unwrap_err().to_string();
    assert!(refusal(page(0, 4096), page(4096, 4095), bitmap.slice()).contains("4095"));
    assert!(refusal(page(0, 4096), page(4100, 4096), bitmap.slice()).contains("16-byte"));
    assert!(refusal(page(0, 4096), page(4096, 4096), bitmap.slice().part(0, 3).unwrap()).contains("needs 4"));
    // SAFETY: the array is refused before anything is enqueued.
    let refused = unsafe { kernels.scatter(&stream, page(0, 16), page(16, 25), page(64, 16)) };
    assert!(refused.unwrap_err().to_string().contains("24 bytes"));
}

#[test]
fn wrong_lists_of_pages_are_refused_with_a_sentence() {
    let device = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    let stream = device.create_stream().unwrap();
    let kernels = Kernels::load(&device, &[&merge::Merge, &byte_mask::ByteMask]).unwrap();
    let memory = device.alloc(16384).unwrap();
    let part = |at, len| memory.slice().part(at, len).unwrap();
    let refusal = |start, table, results| {
        let (current, twin, third) =
            (Addressing::Relative(part(start, 4096)), Addressing::Absolute, Addressing::Absolute);
        // SAFETY: every call of this test is refused before anything is enqueued.
        let merged =
            unsafe { kernels.merge(&stream, merge::Operands { current, twin, incoming: third }, table, results) };
        // SAFETY: as above.
        let masked =
            unsafe { kernels.byte_mask(&stream, byte_mask::Operands { current, twin, mask: third }, table, results) };
        let [merged, masked] = [merged, masked].map(|refused| refused.unwrap_err().to_string());
        assert_eq!(merged, masked);
        merged
    };
    assert!(refusal(0, part(8192, 33), part(12288, 8)).contains("rows of 32 bytes"));
    assert!(refusal(0, part(8196, 32), part(12288, 8)).contains("8-byte boundary"));
    assert!(refusal(0, part(8192, 64), part(12288, 7)).contains("need 8 bytes"));
    assert!(refusal(0, part(8192, 64), part(12289, 8)).contains("4-byte boundary"));
    assert!(refusal(8, part(8192, 64), part(12288, 8)).contains("not at a 16-byte boundary"));

    let operands = merge::Operands {
        current: Addressing::Relative(part(0, 4096)),
        twin: Addressing::Absolute,
        incoming: Addressing::Absolute,
    };
    let page = |current, twin, len| merge::check(&[merge::Entry { current, twin, incoming: 0, len }], &operands);
    page(4080, 16, 16).unwrap();
    assert!(page(4080, 16, 17).unwrap_err().to_string().contains("current page of 17 bytes"));
    assert!(page(0, 8, 16).unwrap_err().to_string().contains("twin page"));
    assert!(page(0, 0, 1 << 32).unwrap_err().to_string().contains("too long"));
}

#[test]
fn wrong_lists_of_pages_to_fold_are_refused_with_a_sentence() {
    let device = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    let stream = device.create_stream().unwrap();
    let kernels = Kernels::load(&device, &[&fold::Fold]).unwrap();
    let memory = device.alloc(16384).unwrap();
    let part = |at, len| memory.slice().part(at, len).unwrap();
    let refusal = |start, table, flags| {
        let pages = Addressing::Relative(part(start, 4096));
        // SAFETY: every call of this test is refused before anything is enqueued.
        unsafe { kernels.fold(&stream, pages, table, flags) }.unwrap_err().to_string()
    };
    assert!(refusal(0, part(8192, 97), part(12288, 8)).contains("rows of 96 bytes"));
    assert!(refusal(0, part(8196, 96), part(12288, 8)).contains("8-byte boundary"));
    assert!(refusal(0, part(8192, 192), part(12288, 7)).contains("need 8 bytes"));
    assert!(refusal(0, part(8192, 192), part(12289, 8)).contains("4-byte boundary"));
    assert!(refusal(8, part(8192, 192), part(12288, 8)).contains("not at a 16-byte boundary"));
}

fn compare(
    kernels: &Kernels,
    stream: &Stream,
    a: DeviceSlice<'_>,
    b: DeviceSlice<'_>,
    bitmap: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: every call of these tests is refused before anything is enqueued.
    unsafe { kernels.page_diff(stream, a, b, bitmap) }
}
