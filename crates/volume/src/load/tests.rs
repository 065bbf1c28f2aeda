//! Loading against what was put in, on every device of this machine.

use super::follow::{Transform, load_followed};
use super::{ArraySnapshot, Cipher, Load, Loader, RoutedFile, load_encrypted, load_stripes};
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_compute::cpu;
use bifolio_compute::keyed::{DeviceRaid6, Workspace};
use bifolio_device::{Device, DeviceChoice, DeviceSlice, HostOptions, discover, open};
use bifolio_io::{EngineChoice, EngineKind, ReadOptions, Router, RouterOptions};
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::{self, IvUnit, Sectors};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::raid6::{self, Geometry};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use zeroize::Zeroizing;

fn loaders() -> Vec<Loader> {
    let found = discover().into_iter().flat_map(|report| report.devices);
    let devices = found.map(|info| open(DeviceChoice::Exactly(info.id)).unwrap());
    let router = |device: Device| Arc::new(Router::new(&device, RouterOptions::default()));
    devices.map(|device| Loader::new(router(device), ReadOptions::default())).collect()
}

/// Bytes of device memory that `load` fills from a place that is `shift` bytes into an allocation.
fn loaded(loader: &Loader, len: u64, shift: u64, load: impl FnOnce(DeviceSlice<'_>)) -> Vec<u8> {
    let memory = loader.device().alloc(len + shift + 64).unwrap();
    let stream = loader.device().create_stream().unwrap();
    stream.upload(memory.slice(), &vec![0xa5; memory.len() as usize]).unwrap();
    load(memory.slice().part(shift, len).unwrap());
    let mut bytes = vec![0; memory.len() as usize];
    stream.download(&mut bytes, memory.slice()).unwrap();
    let (before, after) = (&bytes[..shift as usize], &bytes[(shift + len) as usize..]);
    assert!(before.iter().chain(after).all(|byte| *byte == 0xa5), "something beside the destination was written");
    bytes[shift as usize..(shift + len) as usize].to_vec()
}

/// A file beside the test program, as files in memory have fewer engines.
fn on_disk() -> tempfile::TempPath {
    let program = std::env::current_exe().unwrap();
    tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap().into_temp_path()
}

/// Until the file system's clock has moved on since a file was written: pages of one that may still change within the same
/// tick are not kept.
fn wait_for_a_tick(path: &Path) {
    let modified = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let (written, other) = (modified(path), on_disk());
    bifolio_testing::until("the file system's clock ticks", || {
        std::fs::write(&other, "later").unwrap();
        modified(&other) > written
    });
}

#[test]
fn an_encrypted_range_is_decrypted_wherever_it_begins_and_lands() {
    let mut draw = Draw::afresh();
    let (data_at, sector) = (8192, 4096);
    let (key, plain) = (draw.bytes(64), draw.bytes(40 * sector));
    let first = Sectors { bytes: sector as u32, first_iv: 0, iv_unit: IvUnit::Bytes512 };
    let mut cipher_text = plain.clone();
    aes_xts::oracle(Direction::Encrypt, &key, first, &mut cipher_text);
    let image = [vec![7; data_at], cipher_text].concat();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &image).unwrap();
    let below: [Box<dyn Load>; 2] =
        [Box::new(RoutedFile::open(file.path(), false).unwrap()), Box::new(FaultyDevice::new("memory", image))];
    for loader in loaders() {
        for below in &below {
            let cipher = Cipher::new(Zeroizing::new(key.clone()), first);
            for (range, shift) in [
                (0..plain.len(), 0),
                (sector..3 * sector, 16),
                (sector..3 * sector, 3),
                (100..9 * sector + 5, 0),
                (100..9 * sector + 5, 100),
                (5..6, 0),
                (sector - 1..sector + 1, 0),
                (77..77, 0),
            ] {
                let seen = loaded(&loader, range.len() as u64, shift, |place| {
                    let below = (&**below, data_at as u64);
                    load_encrypted(below, &cipher, &loader, range.start as u64, place).unwrap();
                });
                assert!(seen == plain[range.clone()], "{}: {range:?} to {shift}", loader.device().id());
            }
        }
    }
}

/// Copies what has landed elsewhere.
#[derive(Debug)]
struct Copying {
    from: DeviceSlice<'static>,
    to: DeviceSlice<'static>,
    units: Mutex<Vec<Range<u64>>>,
    fails_at: Option<u64>,
}

impl Transform for Copying {
    fn scratch_bytes(&self, unit: u64) -> u64 {
        unit / 512
    }

    fn enqueue(&self, workspace: &mut Workspace, unit: Range<u64>) -> bifolio_device::Result<()> {
        if self.fails_at == Some(unit.start) {
            return Err(bifolio_device::Error::new(bifolio_device::ErrorKind::BadArgument, "planted"));
        }
        self.units.lock().unwrap().push(unit.clone());
        let len = unit.end - unit.start;
        // SAFETY: both are the test's, and apart.
        unsafe { workspace.stream().copy_on_device(self.to.part(unit.start, len)?, self.from.part(unit.start, len)?) }
    }
}

#[test]
fn work_follows_all_units_of_a_file_by_every_engine() {
    let mut draw = Draw::afresh();
    let (unit_bytes, at) = (1 << 20, 3000);
    let content = draw.bytes((9 << 20) + 1234);
    let path = on_disk();
    std::fs::write(&path, &content).unwrap();
    wait_for_a_tick(&path);
    let slow = HostOptions { latency: Some(std::time::Duration::from_micros(300)), ..HostOptions::default() };
    let slow = Device::host(&slow);
    let slow = Loader::new(Arc::new(Router::new(&slow, RouterOptions::default())), ReadOptions::default());
    for loader in loaders().into_iter().chain([slow]) {
        for engine in [EngineKind::Cached, EngineKind::Direct, EngineKind::Mapped] {
            if engine == EngineKind::Mapped && loader.device().capabilities().host_register_read_only.reason().is_some()
            {
                bifolio_testing::skip(format_args!("{} cannot fetch from the page cache", loader.device().id()));
                continue;
            }
            let options = ReadOptions { engine: EngineChoice::Only(engine), ..ReadOptions::default() };
            let loader = Loader::new(Arc::clone(&loader.router), options);
            let file = RoutedFile::open(&path, false).unwrap();
            let len = content.len() as u64 - at;
            let [from, to] = [0, 0].map(|_| loader.device().alloc(len).unwrap());
            for fails_at in [None, Some(3 << 20), None] {
                let stream = loader.device().create_stream().unwrap();
                for memory in [&from, &to] {
                    stream.upload(memory.slice(), &vec![0xa5; len as usize]).unwrap();
                }
                // SAFETY: both live until the end of the test, and nobody else has them.
                let [source, target] =
                    [&from, &to].map(|memory| unsafe { DeviceSlice::from_raw_ordered(memory.slice().ptr(), len) });
                let work = Arc::new(Copying { from: source, to: target, units: Mutex::default(), fails_at });
                let given = (Arc::clone(&work) as Arc<dyn Transform>, unit_bytes);
                // SAFETY: as above.
                let left = unsafe { load_followed(&file, &loader, at, from.slice(), given) };
                let id = loader.device().id();
                if fails_at.is_some() {
                    assert!(left.unwrap_err().to_string().contains("planted"), "{id} {engine}");
                    continue;
                }
                assert_eq!(left.unwrap(), Some(vec![]), "{id} {engine}: everything was followed");
                let mut units = work.units.lock().unwrap().clone();
                units.sort_by_key(|unit| unit.start);
                let expected = (0..len).step_by(unit_bytes as usize).map(|at| at..(at + unit_bytes).min(len));
                assert_eq!(units, expected.collect::<Vec<_>>(), "{id} {engine}");
                for memory in [&from, &to] {
                    let mut seen = vec![0; len as usize];
                    stream.download(&mut seen, memory.slice()).unwrap();
                    assert!(seen == content[at as usize..], "{id} {engine}");
                }
            }
        }
    }
}

/// Long enough for decryption to follow the bytes, where kernels do it.
#[test]
fn a_long_encrypted_range_is_decrypted_whichever_way_its_bytes_come() {
    let mut draw = Draw::afresh();
    let (data_at, sector) = (8192_usize, [512, 4096][draw.below(2) as usize]);
    let (key, plain) = (draw.bytes(64), draw.bytes((50 << 20) + 4096));
    let first = Sectors { bytes: sector, first_iv: 0, iv_unit: IvUnit::Bytes512 };
    let mut image = [vec![7; data_at], plain.clone()].concat();
    cpu::Xts::new(&key).unwrap().encrypt(first, &mut image[data_at..]).unwrap();
    // Nobody may have it open for writing, or its registered pages are not kept.
    let file = on_disk();
    std::fs::write(&file, &image).unwrap();
    for loader in loaders() {
        for engine in
            [EngineChoice::Auto, EngineChoice::Only(EngineKind::Cached), EngineChoice::Only(EngineKind::Direct)]
        {
            let options = ReadOptions { engine, ..ReadOptions::default() };
            let loader = Loader::new(Arc::clone(&loader.router), options);
            let below = RoutedFile::open(&file, false).unwrap();
            let cipher = Cipher::new(Zeroizing::new(key.clone()), first);
            let (from, to) = (draw.below(9 << 20) as usize, plain.len() - draw.below(9 << 20) as usize);
            // The second and the third time it may come from registered pages.
            for range in [0..plain.len(), 0..plain.len(), 0..plain.len(), from..to, 4096..33 << 20] {
                let place_shift = (range.start as u64).wrapping_neg() % 16;
                let seen = loaded(&loader, range.len() as u64, place_shift, |place| {
                    load_encrypted((&below, data_at as u64), &cipher, &loader, range.start as u64, place).unwrap();
                });
                assert!(seen == plain[range.clone()], "{} by {engine}: {range:?}", loader.device().id());
            }
        }
    }
}

/// An array whose parity moves by one member from stripe to stripe, and whose data is numbered from there.
struct Turning {
    geometry: Geometry,
    members: Vec<Option<FaultyDevice>>,
    first: u64,
}

impl ArraySnapshot for Turning {
    fn name(&self) -> String {
        "turning".to_owned()
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn slots(&self, stripe: u64) -> Vec<usize> {
        let members = self.members.len();
        (0..members).map(|slot| (slot + stripe as usize) % members).collect()
    }

    fn slot_of(&self, stripe: u64, number: u32) -> u32 {
        // Coefficients in another order than the content.
        (number + stripe as u32) % self.geometry.data
    }

    fn member(&self, number: usize) -> Option<(&dyn Load, u64)> {
        self.members[number].as_ref().map(|member| (member as _, self.first))
    }
}

fn turning(draw: &mut Draw, geometry: Geometry, stripes: u64) -> (Turning, Vec<u8>) {
    let (count, chunk, first) = (geometry.members() as usize, geometry.chunk_bytes as usize, 1024);
    let content = draw.bytes(stripes as usize * geometry.data as usize * chunk);
    let mut array = Turning { geometry, members: vec![], first };
    array.members.resize_with(count, || None);
    let mut images = vec![vec![0x11; first as usize + stripes as usize * chunk]; count];
    for stripe in 0..stripes {
        let slots = array.slots(stripe);
        let chunk_of = |slot: usize| {
            let number = (0..geometry.data).find(|number| array.slot_of(stripe, *number) as usize == slot).unwrap();
            let at = (stripe as usize * geometry.data as usize + number as usize) * chunk;
            &content[at..at + chunk]
        };
        let data: Vec<&[u8]> = (0..geometry.data as usize).map(chunk_of).collect();
        let [p, q] = raid6::oracle_generate(&data);
        for (slot, bytes) in data.into_iter().chain([&p[..], &q[..]]).enumerate() {
            images[slots[slot]][first as usize + stripe as usize * chunk..][..chunk].copy_from_slice(bytes);
        }
    }
    for (member, image) in array.members.iter_mut().zip(images) {
        *member = Some(FaultyDevice::new("member", image));
    }
    (array, content)
}

#[test]
fn an_array_is_whole_whichever_two_members_are_gone() {
    let mut draw = Draw::afresh();
    let loaders = loaders();
    let services: Vec<_> = loaders.iter().map(|loader| DeviceRaid6::new(loader.device()).unwrap()).collect();
    let geometry = Geometry { data: 3, chunk_bytes: 2048 };
    let members = geometry.members() as usize;
    for gone in (0..members).flat_map(|one| (one..members).map(move |two| [one, two])).chain([[9, 9]]) {
        let (mut array, content) = turning(&mut draw, geometry, 7);
        for member in gone {
            if let Some(member) = array.members.get_mut(member) {
                *member = None;
            }
        }
        let unit = 3 * 2048;
        let ranges: [(Range<usize>, u64); 6] = [
            (0..content.len(), 0),
            (0..content.len(), 5),
            (unit..3 * unit, 16),
            (1000..4 * unit + 700, 8),
            (2 * unit - 1..2 * unit + 1, 0),
            (2048..2048 + 600, 1),
        ];
        for (loader, service) in loaders.iter().zip(&services) {
            for (range, shift) in &ranges {
                let seen = loaded(loader, range.len() as u64, *shift, |place| {
                    load_stripes(&array, service, loader, range.start as u64, place).unwrap();
                });
                let id = loader.device().id();
                assert!(seen == content[range.clone()], "{id}: {range:?} to {shift}, without {gone:?}");
            }
        }
    }
}

#[test]
fn a_member_that_fails_is_named_and_three_are_too_many() {
    let mut draw = Draw::afresh();
    for loader in loaders() {
        let service = DeviceRaid6::new(loader.device()).unwrap();
        let (mut array, content) = turning(&mut draw, Geometry { data: 3, chunk_bytes: 2048 }, 4);
        let memory = loader.device().alloc(content.len() as u64).unwrap();
        let faults = Faults { reads_fail: true, ..Default::default() };
        array.members[2].as_ref().unwrap().set_faults(faults);
        let failed = load_stripes(&array, &service, &loader, 0, memory.slice()).unwrap_err();
        assert_eq!(failed.member, Some(2));
        for member in [0, 1, 2] {
            array.members[member] = None;
        }
        let failed = load_stripes(&array, &service, &loader, 0, memory.slice()).unwrap_err();
        assert_eq!(failed.error.kind(), crate::ErrorKind::TooFewMembers);
        assert!(failed.member.is_none());
    }
}
