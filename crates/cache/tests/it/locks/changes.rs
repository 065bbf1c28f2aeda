//! What happens to a file, and to memory, while somebody waits for a disk: failures, cuts, evictions, the end.

use super::{check, watched, while_waiting, world};
use crate::support::{FRAME, PAGE, Program, World, options};
use bifolio_cache::fault::{self, Gate, Point};
use bifolio_cache::{Advice, CacheOptions, CachedFile, ErrorKind, Mode};
use bifolio_testing::{noise, until};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// One failure of the disk is told to everybody who has asked for it to be durable, also to him whose own call went well.
#[test]
fn who_syncs_while_another_does_is_told_of_his_failure() {
    watched(1, |devices| {
        let (world, _) = world(devices, 8, 1);
        let files = [world.open(), world.open()];
        std::fs::write(world.folder().join("third"), [0; 10]).unwrap();
        let (gate, other) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
        thread::scope(|scope| {
            let shut = Arc::clone(&gate);
            let first = scope.spawn(|| {
                fault::inject(move |at| {
                    if at == Point::SyncFlushed {
                        shut.pass();
                        return Err(std::io::Error::from_raw_os_error(libc::EIO));
                    }
                    Ok(())
                });
                files[0].sync()
            });
            gate.until_reached(1);
            let second = scope.spawn(|| {
                other.store(true, Ordering::SeqCst);
                files[1].sync()
            });
            until("another syncs", || other.load(Ordering::SeqCst));
            // He has time to come back too early.
            let third = world.cache.open(world.folder().join("third")).unwrap();
            for value in 0..20 {
                third.write(0, &[value]).unwrap();
                third.sync().unwrap();
            }
            gate.open();
            assert_eq!([first, second].map(|sync| sync.join().unwrap().unwrap_err().kind()), [ErrorKind::Write; 2]);
        });
        for file in &files {
            file.sync().unwrap();
        }
    });
}

/// Whoever works before the place where somebody cuts the file goes on; who follows it there waits, and so does nobody
/// take away what another reads into.
#[test]
fn a_stranger_cuts_and_grows_the_file_while_a_disk_is_waited_for() {
    watched(2, |devices| {
        for size in [2 * FRAME + 100, 3 * FRAME + 5, 7 * FRAME + 3] {
            let (world, mut content) = world(devices, 40, 4);
            let file = world.open();
            let mut slow = Program::on(&world, &file, 0);
            let mut other = Program::on(&world, &file, 1);
            let stranger = File::options().write(true).open(&world.path).unwrap();
            let outcome = while_waiting(
                Point::HomeRead,
                || slow.mapping.acquire(2 * FRAME..3 * FRAME).map(drop),
                || {
                    stranger.set_len(size).unwrap();
                    check(&mut other, &content, 0..2 * FRAME);
                    let mut seen = vec![0; FRAME as usize];
                    assert_eq!(file.read(FRAME, &mut seen).unwrap(), seen.len());
                    assert!(seen == content[FRAME as usize..2 * FRAME as usize]);
                    file.write(5, &[5]).unwrap();
                    file.sync().unwrap();
                },
            );
            content[5] = 5;
            if size >= 3 * FRAME {
                outcome.unwrap();
            } else if let Err(error) = outcome {
                assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            }
            content.resize(size as usize, 0);
            assert!(world.file() == content, "the file of {size} bytes");
            content.resize(4 * FRAME as usize, 0);
            for program in [&mut slow, &mut other] {
                check(program, &content, 0..4 * FRAME);
            }
        }
    });
}

/// A cut of what is being read waits for the reader.
#[test]
fn a_cut_of_what_is_read_at_the_moment_is_followed_afterwards() {
    watched(2, |devices| {
        let (world, mut content) = world(devices, 40, 2);
        let file = world.open();
        let mut slow = Program::on(&world, &file, 0);
        slow.mapping.acquire(0..FRAME).unwrap();
        slow.store(10, &[1]);
        let has_asked = Arc::new(Gate::default());
        has_asked.open();
        thread::scope(|scope| {
            let again = while_waiting(
                Point::HomeRead,
                || slow.mapping.acquire(FRAME..2 * FRAME).map(drop),
                || {
                    File::options().write(true).open(&world.path).unwrap().set_len(FRAME + 100).unwrap();
                    let (world, file, asked) = (&world, &file, Arc::clone(&has_asked));
                    scope.spawn(move || {
                        asked.pass();
                        let mut seen = vec![5; FRAME as usize];
                        assert_eq!(file.read(FRAME, &mut seen).unwrap(), 100);
                        assert!(seen[..100] == world.file()[FRAME as usize..]);
                    });
                    has_asked.until_reached(1);
                },
            );
            if let Err(error) = again {
                assert_eq!(error.kind(), ErrorKind::Read, "{error}");
            }
        });
        content.resize(FRAME as usize + 100, 0);
        content.resize(2 * FRAME as usize, 0);
        content[10] = 1;
        slow.mapping.acquire(0..2 * FRAME).unwrap();
        assert!(slow.load(0, 2 * FRAME) == content);
    });
}

/// What another has locked is no victim, and there are others.
#[test]
fn memory_is_taken_where_nobody_is_at_work() {
    watched(1, |devices| {
        let (world, mut content) = world(devices, 5, 8);
        let file = world.open();
        let [mut slow, mut other] = [0; 2].map(|device| Program::on(&world, &file, device));
        let expected = content.clone();
        // Two frames of five: the pages and their twins.
        while_waiting(
            Point::HomeRead,
            move || assert_eq!(check(&mut slow, &expected, 0..FRAME), FRAME / PAGE),
            || {
                for frame in 1..8 {
                    let at = frame * FRAME;
                    check(&mut other, &content, at..at + FRAME);
                    other.mapping.acquire(at..at + 10).unwrap();
                    other.store(at, &[7]);
                    other.mapping.release(at..at + 10).unwrap();
                    content[at as usize] = 7;
                }
            },
        );
        file.sync().unwrap();
        assert!(world.file() == content);
    });
}

/// Whoever finds all memory in the hands of others waits for the end of what they do, and holds nothing meanwhile; of
/// another file, too.
#[test]
fn who_needs_the_memory_of_others_waits_for_them_and_they_for_nobody() {
    watched(1, |devices| {
        for is_one_file in [true, false] {
            let (world, content) = world(devices, 5, 8);
            let files = [world.open(), {
                let path = if is_one_file { world.path.clone() } else { world.folder().join("other") };
                if !is_one_file {
                    std::fs::write(&path, &content).unwrap();
                }
                world.cache.open(path).unwrap()
            }];
            let is_short = Arc::new(Gate::default());
            is_short.open();
            let open = |file: &CachedFile| Program::new(&devices[0], file.map_on(0, 0..8 * FRAME, false).unwrap());
            let programs = [open(&files[0]), open(&files[1])];
            let [mut slow, mut other] = programs;
            thread::scope(|scope| {
                while_waiting(
                    Point::HomeRead,
                    || _ = check(&mut slow, &content, 0..4 * FRAME),
                    || {
                        let (content, signal) = (&content, Arc::clone(&is_short));
                        scope.spawn(move || {
                            let mut frames = 0;
                            fault::inject(move |at| {
                                frames += u32::from(at == Point::AcquireMapped);
                                if frames == 2 {
                                    // For the second there is no memory.
                                    signal.pass();
                                }
                                Ok(())
                            });
                            // The other may have acquired it, when he has it, and not released it yet.
                            let part = 4 * FRAME..8 * FRAME;
                            until("there is room", || match other.mapping.acquire(part.clone()) {
                                Ok(_) => true,
                                Err(error) => {
                                    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                                    false
                                }
                            });
                            fault::cease();
                            assert!(other.load(4 * FRAME, 4 * FRAME) == content[4 * FRAME as usize..]);
                            other.mapping.release(part).unwrap();
                        });
                        is_short.until_reached(1);
                    },
                );
            });
        }
    });
}

/// The last holder of a file ends while it is brought ahead, or written back: nobody uses what is gone.
#[test]
fn files_are_opened_and_closed_while_threads_in_the_background_are_at_work() {
    watched(2, |devices| {
        let content = noise(4 * FRAME as usize, 7);
        // The last page is a part of one.
        let content = &content[..content.len() - 100];
        let options = CacheOptions { write_back_after: Duration::ZERO, ..options(PAGE, 24, Mode::Lazy) };
        let world = World::new(devices, options, content);
        for round in 0..30_u8 {
            let file = world.open();
            for device in 0..2 {
                let mut program = Program::on(&world, &file, device);
                program.mapping.advise(0..program.mapping.len(), Advice::WillNeed).unwrap();
                let at = u64::from(round) * 1000 + device as u64;
                program.mapping.acquire(at..at + 1).unwrap();
                program.store(at, &[round]);
                program.mapping.release(at..at + 1).unwrap();
            }
            drop(file);
            let seen = world.file();
            let at = usize::from(round) * 1000;
            assert_eq!(seen[at..at + 2], [round; 2]);
        }
    });
}
