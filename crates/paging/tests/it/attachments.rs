//! Disks that workers serve themselves, by each way that the kernel has: content, flushes and discards under kills, and the
//! end under load.

use crate::kills::{CONTENT, Over, Watchdog, again, kill, plays, words};
use bifolio_device::{Device, HostOptions};
use bifolio_keeper::{Event, SharedMemory};
use bifolio_paging::Mode;
use bifolio_paging::attach::choose::named;
use bifolio_paging::attach::{Attachment, Served};
use bifolio_paging::directory::{Directory, Head};
use bifolio_paging::pages::PAGE_BYTES;
use bifolio_paging::service::{ServedDisk, Service, ServiceOptions, WorkOptions, work};
use bifolio_paging::stats::Counter;
use bifolio_testing::{seed, skip, until};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const THREADS: u64 = 4;
/// `BLKDISCARD`.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// A page that direct I/O takes.
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES as usize]);

fn file_in(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn a_worker_serves_a_disk_when_a_keeper_starts_it() {
    let Some(folder) = plays("disk worker") else { return };
    let server = named(&file_in(&folder, "way")).unwrap().server().unwrap();
    let disk = ServedDisk { server, path: file_in(&folder, "node").into(), owner: folder.join("disk"), threads: 3 };
    let options = WorkOptions {
        backing: folder.join("swap.img"),
        open_device: Box::new(|| Ok(Device::host(&HostOptions::default()))),
        flush_interval: Duration::from_millis(50),
        locks: false,
        disk: Some(disk),
    };
    let worked = work(options, &|sentence| eprintln!("worker: {sentence}"));
    if let Err(error) = &worked {
        eprintln!("worker: {error}");
    }
    std::process::exit(i32::from(worked.is_err()));
}

#[test]
fn a_keeper_keeps_a_disk_when_a_test_starts_it() {
    let Some(folder) = plays("disk keeper") else { return };
    let options = ServiceOptions {
        backing: folder.join("swap.img"),
        size: CONTENT,
        mode: if file_in(&folder, "mode") == "back" { Mode::WriteBack } else { Mode::WriteThrough },
        memory_bytes: 8 << 20,
        memory_bytes_max: 8 << 20,
        left_bytes: 0,
        mount: None,
        directory: None,
        threads: 3,
    };
    let service = Service::new(&options).unwrap();
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), service.directory_fd()));
    let mut event = |event| {
        if matches!(event, Event::Ready) && !folder.join("directory").exists() {
            std::fs::write(folder.join("new"), path.to_str().unwrap()).unwrap();
            std::fs::rename(folder.join("new"), folder.join("directory")).unwrap();
        }
    };
    let worker = || again("attachments::a_worker_serves_a_disk_when_a_keeper_starts_it", "disk worker", &folder);
    let ended = service.run(&mut || worker(), &|| false, &mut event);
    std::process::exit(i32::from(ended.is_err()));
}

/// A keeper in a process of its own, and its disk; both go with this.
struct Kept {
    way: &'static dyn Attachment,
    folder: TempDir,
    disk: PathBuf,
    child: Child,
    directory: Option<Directory>,
}

impl Kept {
    /// None where the kernel has no such disks.
    fn start(way: &str, mode: &str) -> Option<Self> {
        let way = named(way).unwrap();
        // SAFETY: takes nothing and cannot fail.
        let lacks = if unsafe { libc::geteuid() } == 0 { way.why_not() } else { Some("it takes root".to_owned()) };
        if let Some(lacks) = lacks {
            skip(format!("{}: {lacks}", way.name()));
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let disk = way.server().unwrap().free_disk().unwrap();
        for (name, text) in [("way", way.name()), ("mode", mode), ("node", disk.to_str().unwrap())] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let keeper = "attachments::a_keeper_keeps_a_disk_when_a_test_starts_it";
        let child = again(keeper, "disk keeper", folder.path()).spawn().unwrap();
        let mut kept = Self { way, folder, disk, child, directory: None };
        let path = kept.folder.path().join("directory");
        until("the keeper's worker serves", || path.exists());
        let memory = SharedMemory::open(Path::new(&std::fs::read_to_string(&path).unwrap())).unwrap();
        kept.directory = Some(Directory::adopt(memory).unwrap());
        Some(kept)
    }

    fn directory(&self) -> &Directory {
        self.directory.as_ref().unwrap()
    }

    fn worker(&self) -> u32 {
        self.directory().head(Head::Worker).load(Ordering::Acquire) as u32
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&self.disk).unwrap()
    }

    fn take_apart(&self) -> bifolio_block::Result<()> {
        let served = Served { file: self.folder.path().join("disk"), disk: Some(self.disk.clone()) };
        self.way.detach(&self.disk, &served)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.take_apart();
        let _ = self.child.kill().and_then(|()| self.child.wait());
        // A worker goes on without its keeper as long as it has a disk.
        let _ = self.take_apart();
    }
}

/// Writes, reads, discards and flushes until it is over, and compares every word.
fn load(disk: &File, own: u64, seed: u64, is_over: &AtomicBool) -> u64 {
    let draw = &mut fastrand::Rng::with_seed(seed.wrapping_add(own));
    let mut versions = vec![0_u64; (CONTENT / PAGE_BYTES / THREADS) as usize];
    let mut page = Box::new(Page([0; PAGE_BYTES as usize]));
    let mut requests = 0;
    let place = |number: usize| (number as u64 * THREADS + own) * PAGE_BYTES;
    let check = |number: usize, versions: &[u64], page: &mut Page| {
        page.0.fill(0xee);
        disk.read_exact_at(&mut page.0, place(number)).unwrap();
        let version = versions[number];
        let is_right = match version {
            0 => page.0.iter().all(|byte| *byte == 0),
            _ => page.0[..] == words(place(number) / PAGE_BYTES, version),
        };
        assert!(is_right, "page {} of version {version}", place(number) / PAGE_BYTES);
    };
    let mut newest = 0;
    while !is_over.load(Ordering::Acquire) {
        let number = draw.usize(..versions.len());
        match draw.u32(..16) {
            0 => disk.sync_data().unwrap(),
            1 => {
                let range = [place(number), PAGE_BYTES];
                // SAFETY: two words of ours, which the call reads.
                assert_eq!(unsafe { libc::ioctl(disk.as_raw_fd(), BLKDISCARD, range.as_ptr()) }, 0);
                versions[number] = 0;
            }
            2..9 => {
                newest += 1;
                versions[number] = newest;
                page.0.copy_from_slice(&words(place(number) / PAGE_BYTES, newest));
                disk.write_all_at(&page.0, place(number)).unwrap();
            }
            _ => check(number, &versions, &mut page),
        }
        requests += 1;
    }
    (0..versions.len()).for_each(|number| check(number, &versions, &mut page));
    requests
}

/// A worker is killed again and again, and no word is lost; then the disk is taken apart under load.
fn survives(way: &str, mode: &str, kills: u64) {
    let Some(mut kept) = Kept::start(way, mode) else { return };
    let _watchdog = Watchdog::over(kept.child.id());
    let (is_over, seed) = (AtomicBool::new(false), seed());
    let disk = kept.open();
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let loads: Vec<_> = (0..THREADS)
            .map(|own| {
                let (disk, is_over) = (&disk, &is_over);
                scope.spawn(move || load(disk, own, seed, is_over))
            })
            .collect();
        let draw = &mut fastrand::Rng::with_seed(seed);
        let mut last = 0;
        for round in 0..kills {
            until(format_args!("worker {round} serves"), || {
                kept.worker() != last || loads.iter().any(ScopedJoinHandle::is_finished)
            });
            last = kept.worker();
            std::thread::sleep(Duration::from_micros(draw.u64(..60_000)));
            kill(last);
        }
        until("the last one has a successor", || kept.worker() != last);
        drop(over);
        let requests: u64 = loads.into_iter().map(|load| load.join().unwrap()).sum();
        eprintln!("{way}, write-{mode}: {requests} requests, {kills} kills");
        assert!(requests >= kills, "{requests} requests");
    });
    assert!(kept.directory().head(Head::Generation).load(Ordering::Acquire) > kills);
    assert!(kept.directory().stats().get(Counter::HitPages) > 0);
    assert_eq!(kept.directory().stats().get(Counter::LostPages), 0, "what the keeper held was adopted");

    std::thread::scope(|scope| {
        let mut page = Box::new(Page([0; PAGE_BYTES as usize]));
        let disk = &disk;
        scope.spawn(move || while disk.read_exact_at(&mut page.0, 0).is_ok() {});
        kept.take_apart().unwrap();
    });
    drop(disk);
    let mut status = None;
    until("the keeper ends", || {
        status = kept.child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success(), "{status:?}");
}

#[test]
fn a_ublk_worker_that_is_killed_thirty_times_loses_no_word() {
    survives("ublk", "through", 30);
}

#[test]
fn what_waited_in_device_memory_survives_a_ublk_worker() {
    survives("ublk", "back", 12);
}

#[test]
fn an_nbd_worker_that_is_killed_loses_no_word() {
    // Each of them takes the seconds after which the kernel sends again.
    survives("nbd", "through", 5);
}

#[test]
fn what_waited_in_device_memory_survives_an_nbd_worker() {
    survives("nbd", "back", 2);
}

#[test]
fn a_disk_of_another_owners_is_left_alone() {
    for way in ["ublk", "nbd"] {
        let Some(kept) = Kept::start(way, "through") else { continue };
        let stranger = Served { file: "/another/owner".into(), disk: Some(kept.disk.clone()) };
        kept.way.detach(&kept.disk, &stranger).unwrap();
        let mut page = Box::new(Page([1; PAGE_BYTES as usize]));
        kept.open().read_exact_at(&mut page.0, 0).unwrap();
        assert!(page.0.iter().all(|byte| *byte == 0));
    }
}
