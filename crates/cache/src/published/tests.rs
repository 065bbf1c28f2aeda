use super::folder::Folder;
use super::format::{self, WORDS};
use super::identity::{Identity, started};
use super::writer::Pace;
use crate::stats::{Counts, Snapshot, Stats};
use bifolio_device::DeviceId;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant, SystemTime};

fn counts(from: u64) -> Counts {
    Counts {
        hits: from,
        fetched: from + 1,
        from_peers: from + 2,
        merged: from + 3,
        races: from + 4,
        released: from + 5,
        flushed: from + 6,
        compared: from + 7,
        evicted: from + 8,
        served: from + 9,
        discarded: from + 10,
        lost: from + 11,
        copied: from + 12,
    }
}

fn snapshot(devices: usize) -> Snapshot {
    let stats = |number: usize| Stats {
        device: format!("{}:{number}", ["cuda", "host", "opencl"][number % 3]).parse::<DeviceId>().unwrap(),
        used_bytes: 2 << number,
        budget_bytes: u64::MAX - number as u64,
        pages: 100 + number as u64,
        behind: number as u64,
        pending: 7,
        counts: counts(1000 * number as u64),
    };
    Snapshot { counts: counts(5), devices: (0..devices).map(stats).collect() }
}

#[test]
fn what_is_written_is_read() {
    let identity = Identity { pid: 77, started: 123_456, namespace: 42 };
    for devices in [0, 1, 5, crate::page::DEVICES_MAX] {
        let there = snapshot(devices.min(60));
        let taken = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123);
        let mut file = vec![13];
        file.extend(format::encode(identity, taken, 10, &there));
        assert!(file.len() <= WORDS);
        file.resize(WORDS, 0xa5a5);
        let (read, stats) = format::decode(&file).unwrap();
        assert_eq!((read, stats.operations_since, stats.taken), (identity, 3, taken));
        assert_eq!((&stats.counts, &stats.devices), (&there.counts, &there.devices));
    }
}

/// A reader that comes while a file is written sees some numbers of the old state and some of the new one.
#[test]
fn a_mixture_of_two_states_is_not_taken_for_one() {
    let identity = Identity { pid: 77, started: 123_456, namespace: 42 };
    let taken = SystemTime::UNIX_EPOCH;
    let [mut old, new] = [(3, 4), (4, 4)].map(|(operations, devices)| {
        let mut there = snapshot(devices);
        there.devices[2].pages += operations;
        there.counts.hits += 3 * operations;
        [vec![operations], format::encode(identity, taken, operations, &there)].concat()
    });
    let different = (0..old.len()).filter(|at| *at >= format::BODY && old[*at] != new[*at]).collect::<Vec<_>>();
    assert!(different.len() >= 4, "{different:?}");
    // The one with more devices is longer, as files are not.
    old.resize(new.len(), 0);
    for taken in 1..(1 << different.len()) - 1 {
        let mut mixed = old.clone();
        for (_, at) in different.iter().enumerate().filter(|(bit, _)| taken >> bit & 1 == 1) {
            mixed[*at] = new[*at];
        }
        assert!(format::decode(&mixed).is_none(), "{taken:b} of {different:?}");
    }
    assert!(format::decode(&old).is_some());
    for len in 0..new.len() {
        assert!(format::decode(&new[..len]).is_none(), "{len}");
    }
}

#[test]
fn processes_are_told_apart_by_when_they_were_started() {
    let line = "77 (a (b) c) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
    assert_eq!(started(line), Some(98765));
    assert_eq!(started(&line.replace(") S", ") Z")), None);
    assert_eq!(started("77 (cut"), None);
    let own = Identity::own().unwrap();
    assert_eq!(Identity::of(own.pid), Some(own));
    assert_eq!(Identity::of(u32::MAX), None);
}

#[test]
fn publishing_takes_its_share_of_the_time_and_no_more() {
    let start = Instant::now();
    let mut pace = Pace::new(start);
    let (cost, step) = (Duration::from_micros(300), Duration::from_micros(100));
    let steps = 100_000;
    let mut ran = 0;
    for at in 1..=steps {
        if pace.may_run(start + step * at) {
            pace.ran_for(cost);
            ran += 1;
        }
    }
    let share = f64::from(ran) * cost.as_secs_f64() / (step * steps).as_secs_f64();
    assert!((0.019..0.022).contains(&share), "{share}");
    // Whoever has done nothing for long is not owed more than a moment.
    let later = start + step * steps + Duration::from_hours(1);
    let burst = (0..1000).filter(|_| pace.may_run(later).then(|| pace.ran_for(cost)).is_some()).count();
    assert!((30..40).contains(&burst), "{burst}");
}

#[test]
fn a_folder_that_another_may_have_made_is_not_used() {
    let place = tempfile::tempdir().unwrap();
    let good = place.path().join("good");
    std::fs::create_dir(&good).unwrap();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for open in [0o755, 0o770, 0o707, 0o701] {
        mode(&good, open);
        assert!(Folder::at(good.clone()).is_none(), "{open:o}");
    }
    mode(&good, 0o700);
    let folder = Folder::at(good.clone()).unwrap();
    let link = place.path().join("link");
    symlink(&good, &link).unwrap();
    assert!(Folder::at(link).is_none());
    assert!(Folder::at("/".into()).is_none() && Folder::at(place.path().join("missing")).is_none());

    // Files in it are no links either, and one that was there is not written to.
    let (name, precious) = (c"cache-1".to_owned(), place.path().join("precious"));
    std::fs::write(&precious, "x").unwrap();
    symlink(&precious, good.join("cache-1")).unwrap();
    assert!(folder.open(&name).is_err());
    folder.create(&name).unwrap().set_len(5).unwrap();
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "x");
    assert_eq!(folder.names().unwrap(), [name]);

    // Another in its place is not entered.
    std::fs::rename(&good, place.path().join("moved")).unwrap();
    std::fs::create_dir(&good).unwrap();
    mode(&good, 0o700);
    assert!(folder.create(c"cache-2").is_err() && folder.names().is_err());
}
