//! Regions that are not as any process leaves them: nobody goes on with what cannot be, and nothing that is found there
//! ends the process.

use super::keeper::Holder;
use super::{LIVING, cache};
use crate::support::{Draw, FRAME, PAGE, Program, World, host, options, random};
use bifolio_cache::inspect::records_and_marks;
use bifolio_cache::{FileId, Keeper, Mode};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

const LEN: u64 = 2 * FRAME;

/// Where a region has the time at which its file was made.
const BORN: u64 = 8 * 8;

/// The state of a file that two devices have, as a process leaves it that ends.
fn leave(folder: &Path, keeper: &Arc<Holder>) -> FileId {
    std::fs::write(folder.join("data"), vec![1; LEN as usize]).unwrap();
    let devices = [host(0), host(1)];
    let world = World::over(cache(&devices, options(PAGE, 8, Mode::Lazy), keeper), &devices, folder);
    let file = world.open().for_client(LIVING);
    for (number, device) in devices.iter().enumerate() {
        let mut program = Program::new(device, file.map_on(number, 0..LEN, true).unwrap());
        program.mapping.acquire(0..LEN).unwrap();
        (0..LEN).step_by(3 * PAGE as usize).for_each(|at| program.store(at + number as u64, &[2]));
        program.mapping.release(0..LEN).unwrap();
        program.mapping.acquire(0..FRAME).unwrap();
        program.store(9, &[3]);
        std::mem::forget(program);
    }
    std::mem::forget(file);
    let metadata = std::fs::metadata(folder.join("data")).unwrap();
    (metadata.dev(), metadata.ino())
}

/// The bytes of a region that have memory.
fn used(region: &File) -> Vec<u64> {
    let (mut used, mut at) = (vec![], 0);
    loop {
        // SAFETY: plain calls on an open descriptor.
        let [start, end] = [libc::SEEK_DATA, libc::SEEK_HOLE].map(|what| unsafe {
            at = libc::lseek(std::os::fd::AsRawFd::as_raw_fd(region), at, what);
            at
        });
        if start < 0 {
            return used;
        }
        let mut bytes = vec![0; (end - start) as usize];
        region.read_exact_at(&mut bytes, start as u64).unwrap();
        // Around what is written: the next rows are there as well.
        let written = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        used.extend(written.flat_map(|(place, _)| [0, 8, 40].map(|near| start as u64 + place as u64 + near)));
    }
}

#[test]
fn nothing_that_is_written_in_a_region_ends_the_process_that_finds_it() {
    let mut random = random();
    let (records, marks) = records_and_marks();
    let (mut refused, mut went_on) = (0, 0);
    for round in 0..80 {
        let (folder, keeper) = (crate::support::folder(), Arc::new(Holder::new([LIVING])));
        let id = leave(folder.path(), &keeper);
        let region = File::from(keeper.region(id).unwrap());
        let places = used(&region);
        for _ in 0..random.below(4) {
            let at = places[random.below(places.len() as u64) as usize];
            let value = if random.below(2) == 0 { random.below(4) as u8 } else { random.below(256) as u8 };
            region.write_all_at(&[value], at).unwrap();
        }
        // Also records of what was never begun.
        if random.below(2) == 0 {
            let record: Vec<u8> = (0..40).map(|at| if at % 8 == 0 { random.below(8) as u8 } else { 0 }).collect();
            region.write_all_at(&record, records + 40 * random.below(3)).unwrap();
            region.write_all_at(&[1 + random.below(7) as u8], records + 36).unwrap();
            for _ in 0..random.below(20) {
                region.write_all_at(&[1 + random.below(3) as u8], marks + 2 * random.below(600)).unwrap();
            }
        }
        let devices = [host(0), host(1)];
        let world = World::over(cache(&devices, options(PAGE, 8, Mode::Lazy), &keeper), &devices, folder.path());
        match world.cache.open(&world.path) {
            Ok(file) => {
                went_on += 1;
                assert!(file.is_sound(), "round {round}");
                let _ = file.read(0, &mut vec![0; LEN as usize]);
                let _ = file.sync();
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("cannot"), "{error}");
                // Whoever begins anew does.
                keeper.drop_region(id);
                world.open().sync().unwrap();
            }
        }
    }
    assert!(refused > 4 && went_on > 4, "{refused} refused, {went_on} went on");
}

#[test]
fn a_region_of_a_file_that_is_gone_is_not_another_ones() {
    let (folder, keeper) = (crate::support::folder(), Arc::new(Holder::new([LIVING])));
    let id = leave(folder.path(), &keeper);
    // As an inode that is given again: it was made at another time.
    let region = File::from(keeper.region(id).unwrap());
    let mut born = [0; 8];
    region.read_exact_at(&mut born, BORN).unwrap();
    if born == [0; 8] {
        bifolio_testing::skip("this file system does not know when a file was made");
        return;
    }
    region.write_all_at(&[born[0] ^ 1], BORN).unwrap();
    let devices = [host(0), host(1)];
    let world = World::over(cache(&devices, options(PAGE, 8, Mode::Lazy), &keeper), &devices, folder.path());
    let mut seen = vec![0; LEN as usize];
    world.open().read(0, &mut seen).unwrap();
    assert!(seen.iter().all(|byte| *byte == 1), "what was released of another file");
}
