//! What several processes see of one cache.

use crate::support::{FRAME, PAGE, Program, Running, folder, options};
use bifolio_cache::{Advice, ErrorKind};
use bifolio_daemon::Client;
use bifolio_device::{Device, HostOptions};
use bifolio_testing::{noise, seed};

const LEN: u64 = 3 * FRAME + 5000;

#[test]
fn clients_see_what_others_have_released_and_the_file_has_it_after_a_sync() {
    let folder = folder();
    let path = folder.path().join("data");
    let mut oracle = noise(LEN as usize, 1);
    std::fs::write(&path, &oracle).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 8));
    let mut random = fastrand::Rng::with_seed(seed());
    let clients = [running.connect(), running.connect(), running.connect()];
    let files = clients.each_ref().map(|client| client.open_path(&path).unwrap());
    let mut programs = [0, 1, 0].map(|number| number).into_iter().zip(&files);
    let mut programs: Vec<Program> = programs.by_ref().map(|(number, file)| Program::on(file, number, true)).collect();
    for _ in 0..150 {
        let start = random.u64(..LEN);
        let part = start..(start + 1 + random.u64(..3 * PAGE)).min(LEN);
        let program = &mut programs[random.usize(..3)];
        program.mapping.acquire(part.clone()).unwrap();
        let (from, to) = (part.start as usize, part.end as usize);
        assert!(program.load(part.start, part.end - part.start) == oracle[from..to], "{part:?}");
        let bytes = noise(to - from, random.u64(..));
        program.store(part.start, &bytes);
        oracle[from..to].copy_from_slice(&bytes);
        program.mapping.release(part).unwrap();
        if random.u8(..8) == 0 {
            program.mapping.advise(0..LEN, Advice::DontNeed).unwrap();
        }
    }
    programs[1].mapping.sync().unwrap();
    assert!(std::fs::read(&path).unwrap() == oracle);
    // What is not released is nobody's.
    programs[0].mapping.acquire(0..10).unwrap();
    programs[0].store(0, b"unreleased");
    assert_eq!(programs[0].mapping.close().unwrap().discarded, 1);
    drop((programs, files, clients));
    running.end();
    assert!(std::fs::read(&path).unwrap() == oracle);
}

#[test]
fn who_may_only_read_sees_the_same_in_memory_of_its_own() {
    let folder = folder();
    let path = folder.path().join("data");
    let mut oracle = noise(LEN as usize, 1);
    std::fs::write(&path, &oracle).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 10));
    let (one, other) = (running.connect(), running.connect());
    let (written, read) = (one.open_path(&path).unwrap(), other.open(std::fs::File::open(&path).unwrap()).unwrap());
    assert!(written.is_lent() && !read.is_lent());
    assert_eq!(read.map_on(0, 0..LEN, true).unwrap_err().kind(), ErrorKind::Permission);
    let (mut writer, mut reader) = (Program::on(&written, 0, true), Program::on(&read, 0, false));
    let part = 100..FRAME + 100;
    for turn in 0..3 {
        writer.mapping.acquire(part.clone()).unwrap();
        writer.store(5000, &[turn; 20]);
        oracle[5000..5020].fill(turn);
        writer.mapping.release(part.clone()).unwrap();
        reader.mapping.acquire(part.clone()).unwrap();
        let seen = reader.load(0, 2 * FRAME);
        assert!(seen[100..FRAME as usize + 100] == oracle[100..FRAME as usize + 100]);
        assert!(seen[..100].iter().chain(&seen[FRAME as usize + 100..]).all(|byte| *byte == 0), "bytes around it");
        // What it stores there is its own.
        reader.store(6000, &[99; 20]);
        writer.mapping.acquire(part.clone()).unwrap();
        assert!(writer.load(6000, 20) == oracle[6000..6020]);
        writer.mapping.release(part.clone()).unwrap();
        reader.mapping.release(part.clone()).unwrap();
    }
    drop((writer, reader, written, read, one, other));
    running.end();
}

/// The addresses were the mapping's, and went with it.
#[test]
fn what_is_pinned_has_its_addresses_when_its_mapping_has_ended() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![3; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 10));
    let client = running.connect();
    let files = [client.open_path(&path).unwrap(), client.open(std::fs::File::open(&path).unwrap()).unwrap()];
    for (number, file) in files.iter().enumerate() {
        let mut program = Program::on(file, 1, number == 0);
        program.mapping.acquire(0..FRAME).unwrap();
        let pin = program.mapping.pin(0..FRAME).unwrap();
        program.mapping.close().unwrap();
        assert!(program.load(0, FRAME).iter().all(|byte| *byte == 3));
        let kept = program.at_its_addresses();
        assert!(kept.load(0, FRAME).iter().all(|byte| *byte == 3));
        drop(pin);
    }
    drop((files, client));
    running.end();
}

#[test]
fn where_nobody_serves_there_is_an_error_that_says_so() {
    let folder = folder();
    let error = Client::connect(folder.path().join("nobody")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.to_string().contains("start one first"), "{error}");
}

/// However devices come: each byte is read once, by one of them, and is right everywhere.
#[test]
fn devices_that_want_a_file_at_once_read_it_once() {
    const LEN: u64 = (70 << 20) + 4097;
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = folder();
    let path = folder.path().join("data");
    let mut options = options(folder.path(), 80);
    options.devices = ["host:0", "host:1", "host:2"].map(String::from).to_vec();
    for turn in 0..3 {
        let oracle = noise(LEN as usize, random.u64(..));
        std::fs::write(&path, &oracle).unwrap();
        let running = Running::start(folder.path(), &options);
        let kills = turn == 2;
        let reports: Vec<bifolio_cache::Report> = std::thread::scope(|scope| {
            let work = |number: usize| {
                let (running, path, oracle, seed) = (&running, &path, &oracle, random.u64(..));
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let client = running.connect();
                    let file = client.open_path(path).unwrap();
                    let device = Device::host(&HostOptions { index: number as u32, ..HostOptions::default() });
                    let mut program = Program::on_device(&device, &file, number, false);
                    std::thread::sleep(std::time::Duration::from_micros(random.u64(..20_000)));
                    let report = program.mapping.acquire(0..LEN).unwrap();
                    assert!(program.load(0, LEN) == *oracle, "device {number}");
                    report
                })
            };
            // Two of them on one device.
            let loaders: Vec<_> = [0, 1, 2, 0].into_iter().map(work).collect();
            if kills {
                std::thread::sleep(std::time::Duration::from_micros(random.u64(..30_000)));
                running.kill_server();
            }
            loaders.into_iter().map(|loader| loader.join().unwrap()).collect()
        });
        let pages = LEN.div_ceil(PAGE);
        let read: u64 = reports.iter().map(|report| report.fetched - report.from_peers).sum();
        let there: Vec<u64> = reports.iter().map(|report| report.fetched + report.hits).collect();
        if !kills {
            assert_eq!(read, pages, "{reports:?}");
            assert_eq!(there, [pages; 4], "{reports:?}");
        }
        running.end();
    }
}

#[test]
fn who_has_a_file_keeps_it_when_another_one_is_put_in_its_place() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 20));
    let (one, two) = (running.connect(), running.connect());
    let mut reader = Program::on(&one.open_path(&path).unwrap(), 0, false);
    reader.mapping.acquire(0..LEN).unwrap();
    std::fs::write(folder.path().join("new"), vec![2; LEN as usize]).unwrap();
    std::fs::rename(folder.path().join("new"), &path).unwrap();
    let mut later = Program::on(&two.open_path(&path).unwrap(), 0, false);
    for kill in [false, true] {
        if kill {
            running.kill_server();
        }
        later.mapping.acquire(0..LEN).unwrap();
        assert!(later.load(0, LEN).iter().all(|byte| *byte == 2), "who comes later has the new one");
        assert!(reader.load(0, LEN).iter().all(|byte| *byte == 1), "who was there has the old one");
        reader.mapping.release(0..LEN).unwrap();
        reader.mapping.acquire(0..LEN).unwrap();
        assert!(reader.load(0, LEN).iter().all(|byte| *byte == 1), "also when he acquires it again");
        later.mapping.release(0..LEN).unwrap();
    }
}

#[test]
fn who_has_acquired_a_version_keeps_it_until_he_acquires_again() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; LEN as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 20));
    let (one, two) = (running.connect(), running.connect());
    let mut reader = Program::on(&one.open_path(&path).unwrap(), 0, false);
    let mut later = Program::on(&two.open_path(&path).unwrap(), 0, true);
    reader.mapping.acquire(0..LEN).unwrap();
    std::fs::write(&path, vec![2; LEN as usize]).unwrap();
    later.mapping.acquire(0..LEN).unwrap();
    assert!(later.load(0, LEN).iter().all(|byte| *byte == 2), "who comes later has the new one");
    assert!(reader.load(0, LEN).iter().all(|byte| *byte == 1), "who was there has the old one");
    later.store(0, &vec![3; LEN as usize]);
    later.mapping.release(0..LEN).unwrap();
    assert!(reader.load(0, LEN).iter().all(|byte| *byte == 1), "who was there has it still");
    running.kill_server();
    reader.mapping.release(0..LEN).unwrap();
    reader.mapping.acquire(0..LEN).unwrap();
    assert!(reader.load(0, LEN).iter().all(|byte| *byte == 3), "who acquires again has what was released");
}

/// Readers and writers of one device and of two, of which each has what it acquired, whatever others do meanwhile.
#[test]
fn versions_of_readers_stay_while_others_write() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = folder();
    let path = folder.path().join("data");
    let mut oracle = noise(LEN as usize, 1);
    std::fs::write(&path, &oracle).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 16));
    let clients: Vec<Client> = (0..5).map(|_| running.connect()).collect();
    let files: Vec<_> = clients.iter().map(|client| client.open_path(&path).unwrap()).collect();
    // Three that read, on two devices, and two that write.
    let mut readers = [0, 1, 2].map(|at| (Program::on(&files[at], at % 2, false), None));
    let mut writers = [3, 4].map(|at| Program::on(&files[at], at % 2, true));
    for turn in 0..120 {
        let start = random.u64(..LEN);
        let part = start..(start + 1 + random.u64(..FRAME)).min(LEN);
        let (from, to) = (part.start as usize, part.end as usize);
        match random.u8(..8) {
            0 => {
                writers[0].mapping.sync().unwrap();
                let bytes = noise(to - from, random.u64(..));
                let home = std::fs::File::options().write(true).open(&path).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&home, &bytes, part.start).unwrap();
                oracle[from..to].copy_from_slice(&bytes);
            }
            1..=4 => {
                let (reader, held) = &mut readers[random.usize(..3)];
                if let Some((part, _)) = held.take() {
                    reader.mapping.release(part).unwrap();
                }
                reader.mapping.acquire(part.clone()).unwrap();
                *held = Some((part, oracle[from..to].to_vec()));
            }
            _ => {
                let writer = &mut writers[random.usize(..2)];
                writer.mapping.acquire(part.clone()).unwrap();
                assert!(writer.load(part.start, part.end - part.start) == oracle[from..to], "writer, turn {turn}");
                let bytes = noise(to - from, random.u64(..));
                writer.store(part.start, &bytes);
                if random.bool() {
                    // Whoever comes now sees what was released.
                    let (reader, held) = &mut readers[random.usize(..3)];
                    if let Some((part, _)) = held.take() {
                        reader.mapping.release(part).unwrap();
                    }
                    reader.mapping.acquire(part.clone()).unwrap();
                    *held = Some((part.clone(), oracle[from..to].to_vec()));
                    if random.u8(..8) == 0 {
                        running.kill_server();
                    }
                }
                writer.mapping.release(part).unwrap();
                oracle[from..to].copy_from_slice(&bytes);
            }
        }
        if random.u8(..20) == 0 {
            running.kill_server();
        }
        for (number, (reader, held)) in readers.iter().enumerate() {
            let Some((part, bytes)) = held else { continue };
            assert!(reader.load(part.start, part.end - part.start) == *bytes, "reader {number}, turn {turn}, {part:?}");
        }
    }
}
