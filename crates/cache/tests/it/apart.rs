//! What a mapping needs of the state of its file crosses as bytes, and content is seen wherever its frames are shown: as it
//! will be between processes.

use crate::crash::keeper::Holder;
use crate::support::{Draw, FRAME, PAGE, Program, World, folder, host, options, random, routers};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::service::{Answer, Lender, Request, Service};
use bifolio_cache::{Advice, Cache, CachedFile, ErrorKind, Keeper, Mode};
use bifolio_device::{Access, Device};
use std::io;
use std::sync::Arc;

const LEN: u64 = 3 * FRAME + 5000;

/// A cache whose frames somebody keeps, in the same process here.
fn world(folder: &std::path::Path, frames: u64) -> World {
    std::fs::write(folder.join("data"), vec![1; LEN as usize]).unwrap();
    let devices = [host(0), host(1)];
    let keeper: Arc<dyn Keeper> = Arc::new(Holder::new([]));
    let cache = Cache::kept(&routers(&devices), options(PAGE, frames, Mode::Lazy), keeper).unwrap();
    World::over(cache, &devices, folder)
}

#[test]
fn a_mapping_that_shares_no_memory_with_who_serves_it_sees_what_others_see() {
    let (folder, mut random) = (folder(), random());
    // Too few frames for all, so that they go and come back as others.
    let world = world(folder.path(), 6);
    let file = world.open();
    let apart = |number: usize| {
        let device = &world.devices[number];
        Program::new(device, file.map_apart(number, device, 0..u64::MAX, true).unwrap())
    };
    let mut programs = [apart(0), apart(1), Program::on(&world, &file, 0)];
    assert_ne!(programs[0].mapping.ptr(), programs[2].mapping.ptr());
    let mut oracle = vec![1; LEN as usize];
    for _ in 0..200 {
        let start = random.below(LEN);
        let part = start..(start + 1 + random.below(3 * PAGE)).min(LEN);
        let program = &mut programs[random.below(3) as usize];
        program.mapping.acquire(part.clone()).unwrap();
        let (from, to) = (part.start as usize, part.end as usize);
        assert!(program.load(part.start, part.end - part.start) == oracle[from..to], "{part:?}");
        let bytes = random.bytes(part.end - part.start);
        program.store(part.start, &bytes);
        if random.below(4) > 0 {
            oracle[from..to].copy_from_slice(&bytes);
        } else {
            // As it was: nothing is released.
            program.store(part.start, &oracle[from..to]);
        }
        program.mapping.release(part.clone()).unwrap();
        if random.below(8) == 0 {
            program.mapping.advise(0..LEN, Advice::DontNeed).unwrap();
        }
    }
    let mut seen = vec![0; LEN as usize];
    file.read(0, &mut seen).unwrap();
    assert!(seen == oracle);
    programs[0].mapping.sync().unwrap();
    assert!(world.file() == oracle);
}

#[test]
fn errors_and_pins_cross_as_well() {
    let folder = folder();
    let world = world(folder.path(), 6);
    let file = world.open();
    let mut program = Program::new(&world.devices[0], file.map_apart(0, &world.devices[0], 0..LEN, true).unwrap());
    let full = program.mapping.acquire(0..LEN).unwrap_err();
    assert_eq!((full.kind(), full.subject()), (ErrorKind::OutOfMemory, world.path.to_str().unwrap()));
    assert_eq!(program.mapping.release(0..10).unwrap_err().kind(), ErrorKind::BadUse);
    let outside = file.map_apart(0, &world.devices[0], LEN..LEN + 1, true).unwrap_err();
    assert_eq!(outside.kind(), ErrorKind::BadRange);
    program.mapping.acquire(0..10).unwrap();
    program.store(3, b"seen");
    let pin = program.mapping.pin(0..10).unwrap();
    program.mapping.release(0..10).unwrap();
    for part in [FRAME..2 * FRAME, 2 * FRAME..3 * FRAME] {
        program.mapping.acquire(part.clone()).unwrap();
        program.mapping.release(part).unwrap();
    }
    assert_eq!(program.load(3, 4), b"seen");
    drop(pin);
    let report = program.mapping.close().unwrap();
    assert_eq!(report.discarded, 0);
    assert_eq!(program.mapping.acquire(0..10).unwrap_err().kind(), ErrorKind::BadUse);
    let other = World::new(&world.devices, options(PAGE, 6, Mode::Lazy), b"nobody keeps this");
    let error = other.open().map_apart(0, &world.devices[0], 0..5, false).unwrap_err();
    assert!(error.to_string().contains("nobody keeps the frames"), "{error}");
}

/// What a client sees of the first frame of what it has acquired under number 2, in the frame that it is lent.
fn seen(file: &CachedFile, client: u64, device: &Device) -> Vec<u8> {
    let frames = file.ask(client, Request::Frames { lease: 2, device: 0, range: 0..PAGE });
    let Answer::Frames { frames, .. } = frames.unwrap() else { panic!("frames") };
    let (bytes, descriptor) = file.lend(0, frames[0].0, frames[0].1).unwrap().expect("it is that frame");
    let frame = device.import_frame_of(descriptor, bytes).unwrap();
    let place = device.reserve(bytes).unwrap();
    place.map(0, &frame, Access::ReadWrite).unwrap();
    let mut seen = vec![0x5a; bytes as usize];
    // SAFETY: the frame is mapped there.
    device.create_stream().unwrap().download(&mut seen, unsafe { place.slice() }).unwrap();
    seen
}

/// A frame that a reader sees is left to him once the file has a copy, wherever that fails before, and given back with him.
#[test]
fn a_version_stays_its_readers_whatever_fails() {
    let folder = folder();
    let world = world(folder.path(), 12);
    let (device, file) = (&world.devices[0], world.open());
    let used = || world.cache.stats()[0].used_bytes;
    let reader = file.for_client(7);
    for (number, point) in [Point::AsideCopied, Point::AsideLeft, Point::AsideExchanged].into_iter().enumerate() {
        let now = number as u8 + 1;
        reader.ask(7, Request::Map { lease: 1, device: 0, range: 0..LEN }).unwrap();
        let acquire = Request::Acquire { lease: 2, device: 0, range: 0..LEN, writable: false };
        reader.ask(7, acquire).unwrap();
        let mut writer = Program::new(device, file.for_client(8).map_on(0, 0..LEN, true).unwrap());
        let before = used();
        fault::inject(move |at| if at == point { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) });
        let error = writer.mapping.acquire(0..PAGE).unwrap_err();
        fault::cease();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(seen(&reader, 7, device)[..PAGE as usize].iter().all(|byte| *byte == now), "{point:?}");
        let left = if point == Point::AsideExchanged { FRAME } else { 0 };
        assert_eq!(used() - before, left, "{point:?}");
        writer.mapping.acquire(0..PAGE).unwrap();
        writer.store(0, &vec![now + 1; PAGE as usize]);
        writer.mapping.release(0..PAGE).unwrap();
        assert!(seen(&reader, 7, device)[..PAGE as usize].iter().all(|byte| *byte == now), "{point:?}");
        drop(writer);
        // With the reader goes what was left to him.
        let all = used();
        reader.end_leases();
        assert_eq!(all - used(), FRAME, "{point:?}");
    }
}
