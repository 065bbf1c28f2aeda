//! Tier 3: the compiled kernels against their oracles on every device of this machine: the
//! embedded one, every OpenCL device (PoCL among them) and every GPU.

#[path = "support/devices.rs"]
mod opened;
mod support;

use bifolio_device::{BackendKind, DeviceChoice, DeviceId, Stream, open};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::{Base, KernelPath, Kernels, Service, byte_mask, merge, page_diff, scatter};
use opened::devices;

/// Bytes of which one group makes its word of the bitmap.
const GROUP: usize = 32 * 4096;

#[test]
fn page_diff_is_its_oracle_at_every_size() {
    let sizes = [
        1,
        4095,
        4096,
        4097,
        GROUP - 4096,
        GROUP - 1,
        GROUP,
        GROUP + 1,
        GROUP + 4096,
        2 * GROUP,
        5 * GROUP + 3 * 4096 + 17,
        64 * GROUP,
    ];
    for device in devices(BackendKind::ALL) {
        let (stream, module) = (device.create_stream().unwrap(), device.load_module(&page_diff::MODULE).unwrap());
        let mut draw = Draw::afresh();
        for bytes in sizes {
            let outcome = page_diff::Case::draw(&mut draw, bytes).run(&stream, &module);
            outcome.unwrap_or_else(|wrong| panic!("{}: {wrong}", device.id()));
        }
    }
}

#[test]
fn scatter_is_its_oracle_at_every_count_and_length() {
    for device in devices(BackendKind::ALL) {
        let (stream, module) = (device.create_stream().unwrap(), device.load_module(&scatter::MODULE).unwrap());
        let mut draw = Draw::afresh();
        for count in [0, 1, 7, 8, 9, 255, 1000] {
            for longest in [0, 1, 16, 100, 512, 4096] {
                let outcome = scatter::Case::draw(&mut draw, count, longest).run(&stream, &module);
                outcome.unwrap_or_else(|wrong| panic!("{}: {wrong}", device.id()));
            }
        }
    }
}

#[test]
fn more_extents_than_one_grid_holds_are_all_copied() {
    for device in devices(BackendKind::ALL) {
        let (stream, module) = (device.create_stream().unwrap(), device.load_module(&scatter::MODULE).unwrap());
        let case = scatter::Case::draw(&mut Draw::afresh(), 40_000, 20);
        case.run(&stream, &module).unwrap_or_else(|wrong| panic!("{}: {wrong}", device.id()));
    }
}

/// Lengths around the boundaries of 16 bytes and of one to three steps of a group, and a long page.
const PAGES: [u64; 13] = [1, 15, 16, 17, 31, 4095, 4096, 4097, 8191, 8192, 8193, 12304, 65536];

#[test]
fn merge_is_its_oracle_at_every_length_and_count() {
    for device in devices(BackendKind::ALL) {
        let (stream, module) = (device.create_stream().unwrap(), device.load_module(&merge::MODULE).unwrap());
        let mut draw = Draw::afresh();
        for (count, page_bytes) in PAGES.map(|bytes| (9, bytes)).into_iter().chain([(0, 4096), (1, 4096), (700, 512)]) {
            let case = merge::Case::draw(&mut draw, count, page_bytes);
            case.run(&stream, &module).unwrap_or_else(|wrong| panic!("{}: {wrong}", device.id()));
            if device.capabilities().virtual_memory.is_yes() {
                let outcome = case.by_address().run(&stream, &module);
                outcome.unwrap_or_else(|wrong| panic!("{}, by address: {wrong}", device.id()));
            }
        }
    }
}

#[test]
fn byte_mask_is_its_oracle_at_every_length_and_count() {
    for device in devices(BackendKind::ALL) {
        let (stream, module) = (device.create_stream().unwrap(), device.load_module(&byte_mask::MODULE).unwrap());
        let mut draw = Draw::afresh();
        for (count, page_bytes) in PAGES.map(|bytes| (9, bytes)).into_iter().chain([(0, 4096), (1, 4096), (700, 512)]) {
            let case = byte_mask::Case::draw(&mut draw, count, page_bytes);
            case.run(&stream, &module).unwrap_or_else(|wrong| panic!("{}: {wrong}", device.id()));
            if device.capabilities().virtual_memory.is_yes() {
                let outcome = case.by_address().run(&stream, &module);
                outcome.unwrap_or_else(|wrong| panic!("{}, by address: {wrong}", device.id()));
            }
        }
    }
}

#[test]
fn devices_without_addresses_refuse_lists_of_them() {
    for device in devices([BackendKind::OpenCl]) {
        let (stream, module) = (device.create_stream().unwrap(), device.load_module(&merge::MODULE).unwrap());
        let refused = merge::Case::draw(&mut Draw::afresh(), 2, 4096).by_address().run(&stream, &module).unwrap_err();
        assert!(refused.contains("cannot follow") && refused.contains("ranges and offsets"), "{refused}");
    }
}

#[test]
fn devices_that_compile_kernels_use_all_of_them() {
    for device in devices([BackendKind::Cuda, BackendKind::OpenCl]) {
        for status in Kernels::load(&device).unwrap().report() {
            println!("{}: {status}", device.id());
            assert_eq!(status.path, KernelPath::Device, "{}: {status}", device.id());
        }
    }
}

#[test]
fn devices_that_compile_kernels_use_those_of_every_storage_service() {
    for device in devices([BackendKind::Cuda, BackendKind::OpenCl]) {
        for service in Service::ALL {
            let (module, status) = service.load(&device).unwrap();
            assert!(module.is_some() && status.path == KernelPath::Device, "{}: {status}", device.id());
        }
    }
}

#[test]
fn wrong_ranges_are_refused_with_a_sentence() {
    let device = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
    let stream = device.create_stream().unwrap();
    let kernels = Kernels::load(&device).unwrap();
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
    let kernels = Kernels::load(&device).unwrap();
    let memory = device.alloc(16384).unwrap();
    let part = |at, len| memory.slice().part(at, len).unwrap();
    let refusal = |start, table, results| {
        let (current, twin, third) = (Base::Range(part(start, 4096)), Base::Addresses, Base::Addresses);
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
    assert!(refusal(0, part(8192, 33), part(12288, 8)).contains("32 bytes each"));
    assert!(refusal(0, part(8196, 32), part(12288, 8)).contains("32 bytes each"));
    assert!(refusal(0, part(8192, 64), part(12288, 7)).contains("need 8 bytes"));
    assert!(refusal(0, part(8192, 64), part(12289, 8)).contains("4-byte boundary"));
    assert!(refusal(8, part(8192, 64), part(12288, 8)).contains("no 16-byte boundary"));

    let operands =
        merge::Operands { current: Base::Range(part(0, 4096)), twin: Base::Addresses, incoming: Base::Addresses };
    let page = |current, twin, len| merge::check(&[merge::Entry { current, twin, incoming: 0, len }], &operands);
    page(4080, 16, 16).unwrap();
    assert!(page(4080, 16, 17).unwrap_err().to_string().contains("current page of 17 bytes"));
    assert!(page(0, 8, 16).unwrap_err().to_string().contains("twin page"));
    assert!(page(0, 0, 1 << 32).unwrap_err().to_string().contains("too long"));
}

fn compare(
    kernels: &Kernels,
    stream: &Stream,
    a: bifolio_device::DeviceSlice<'_>,
    b: bifolio_device::DeviceSlice<'_>,
    bitmap: bifolio_device::DeviceSlice<'_>,
) -> bifolio_device::Result<()> {
    // SAFETY: every call of this test is refused before anything is enqueued.
    unsafe { kernels.page_diff(stream, a, b, bitmap) }
}
