//! Two mappings of one device whose parts share pages: what a kernel of one stores while the other is at work.

use crate::support::{FRAME, PAGE, Program, World, options, sets};
use bifolio_cache::fault::{self, Point};
use bifolio_cache::{Advice, Mode};
use bifolio_testing::until;
use std::rc::Rc;

/// Symptom: a store was gone, or was there and never came to the file. Cause: parts are acquired by bytes and fetched by
/// pages: a page that a kernel of another mapping was storing into was read over it, and copied to its twin.
#[test]
fn a_store_while_a_neighbour_acquires_stays_and_is_published() {
    let moments = [Point::AcquireCompared, Point::AcquireMapped, Point::FillRead, Point::MergeRead];
    for devices in sets(1) {
        for moment in moments.into_iter().chain([Point::FetchRead, Point::AcquireFetched]) {
            for page_bytes in [PAGE, 64 << 10] {
                let world = World::new(&devices, options(page_bytes, 8, Mode::Lazy), &vec![0; 300_000]);
                let file = world.open();
                let mut storing = Program::on(&world, &file, 0);
                storing.mapping.acquire(0..100).unwrap();
                let mut other = Program::on(&world, &file, 0);
                other.mapping.acquire(200..300_000).unwrap();
                file.write(50, &[9]).unwrap();
                let storing = Rc::new(storing);
                let kernel = Rc::clone(&storing);
                fault::inject(move |point| {
                    if point == moment {
                        kernel.store(10, &[7]);
                    }
                    Ok(())
                });
                other.mapping.acquire(200..300_000).unwrap();
                fault::cease();
                assert_eq!((storing.load(10, 1), storing.load(50, 1)), (vec![7], vec![9]), "{moment:?}");
                let mut storing = Rc::into_inner(storing).unwrap();
                storing.mapping.release(0..100).unwrap();
                file.sync().unwrap();
                assert_eq!((world.file()[10], world.file()[50]), (7, 9), "{moment:?}, pages of {page_bytes}");
            }
        }
    }
}

/// The same where what the neighbour acquires is another device's, and comes from there.
#[test]
fn a_store_while_a_neighbour_folds_stays_and_is_published() {
    for devices in sets(2) {
        for moment in [Point::AcquireCompared, Point::AcquireMapped, Point::FoldMerged, Point::FoldNoted] {
            for page_bytes in [PAGE, 64 << 10] {
                let world = World::new(&devices, options(page_bytes, 8, Mode::Lazy), &vec![0; 300_000]);
                let file = world.open();
                let mut storing = Program::on(&world, &file, 0);
                storing.mapping.acquire(0..100).unwrap();
                let mut other = Program::on(&world, &file, 0);
                other.mapping.acquire(200..300_000).unwrap();
                let mut far = Program::on(&world, &file, 1);
                far.mapping.acquire(0..300_000).unwrap();
                far.store(50, &[9]);
                far.mapping.release(0..300_000).unwrap();
                let storing = Rc::new(storing);
                let kernel = Rc::clone(&storing);
                fault::inject(move |point| {
                    if point == moment {
                        kernel.store(10, &[7]);
                    }
                    Ok(())
                });
                other.mapping.acquire(200..300_000).unwrap();
                fault::cease();
                assert_eq!((storing.load(10, 1), storing.load(50, 1)), (vec![7], vec![9]), "{moment:?}");
                let mut storing = Rc::into_inner(storing).unwrap();
                storing.mapping.release(0..100).unwrap();
                far.mapping.acquire(0..300_000).unwrap();
                assert_eq!(far.load(10, 1), [7], "{moment:?}, pages of {page_bytes}");
                file.sync().unwrap();
                assert_eq!((world.file()[10], world.file()[50]), (7, 9), "{moment:?}, pages of {page_bytes}");
            }
        }
    }
}

/// The same where a neighbour releases: in both modes, and where there is no room for what is released.
#[test]
fn a_store_while_a_neighbour_releases_stays_and_is_published() {
    for devices in sets(1) {
        for moment in Point::ALL {
            for (mode, frames) in [(Mode::Lazy, 8), (Mode::Eager, 8), (Mode::Lazy, 2), (Mode::Eager, 2)] {
                let world = World::new(&devices, options(PAGE, frames, mode), &vec![0; FRAME as usize]);
                let file = world.open();
                let mut storing = Program::on(&world, &file, 0);
                storing.mapping.acquire(0..100).unwrap();
                let mut other = Program::on(&world, &file, 0);
                other.mapping.acquire(200..FRAME).unwrap();
                other.store(300, &[5]);
                let (storing, moment) = (Rc::new(storing), *moment);
                let (kernel, mut value) = (Rc::clone(&storing), 0);
                fault::inject(move |point| {
                    if point == moment {
                        value += 1;
                        kernel.store(10, &[value]);
                    }
                    Ok(())
                });
                other.mapping.release(200..FRAME).unwrap();
                fault::cease();
                let stored = storing.load(10, 1)[0];
                let mut storing = Rc::into_inner(storing).unwrap();
                storing.mapping.release(0..100).unwrap();
                file.sync().unwrap();
                assert_eq!((world.file()[10], world.file()[300]), (stored, 5), "{moment:?}, {mode:?}, {frames} frames");
            }
        }
    }
}

/// Readahead leaves pages alone that are in use, and brings the others.
#[test]
fn nothing_is_brought_ahead_into_a_page_that_is_in_use() {
    for devices in sets(1) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &vec![0; 50_000]);
        let file = world.open();
        let mut storing = Program::on(&world, &file, 0);
        storing.mapping.acquire(0..100).unwrap();
        let mut other = Program::on(&world, &file, 0);
        file.write(50, &[9]).unwrap();
        assert!(file.page_state(0, 0).is_behind);
        other.mapping.advise(0..50_000, Advice::WillNeed).unwrap();
        until("the last page is brought", || file.page_state(0, 12).is_held);
        assert!(file.page_state(0, 0).is_behind);
        assert_eq!(storing.load(50, 1), [0]);
        // Whoever acquires it sees what has changed.
        assert_eq!(other.mapping.acquire(0..50_000).unwrap().fetched, 1);
        assert_eq!(other.load(50, 1), [9]);
    }
}

/// Symptom: what one mapping had stored was never published. Cause: another's close failed to take back its own changes
/// of the page, and dropped all of it.
#[test]
fn a_close_that_fails_to_take_its_changes_back_keeps_a_neighbours() {
    for devices in sets(1) {
        let world = World::new(&devices, options(PAGE, 8, Mode::Lazy), &[0; 5000]);
        let file = world.open();
        let [mut storing, mut other] = [0, 0].map(|device| Program::on(&world, &file, device));
        storing.mapping.acquire(0..100).unwrap();
        other.mapping.acquire(200..5000).unwrap();
        storing.store(10, &[7]);
        other.store(300, &[5]);
        fault::inject(|point| match point {
            Point::DiscardCompared => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        });
        other.mapping.close().unwrap();
        fault::cease();
        storing.mapping.release(0..100).unwrap();
        file.sync().unwrap();
        assert_eq!(world.file()[10], 7);
    }
}
