//! A worker, or its keeper, is killed at any moment.

use bifolio_block::{BlockDevice, ErrorKind};
use bifolio_device::{Device, HostOptions};
use bifolio_keeper::{Event, SharedMemory};
use bifolio_paging::directory::{Directory, Head};
use bifolio_paging::header::{HEADER_BYTES, Header, Left};
use bifolio_paging::pages::PAGE_BYTES;
use bifolio_paging::service::{Service, ServiceOptions, WorkOptions, work};
use bifolio_paging::stats::Counter;
use bifolio_paging::{Backing, Mode};
use bifolio_testing::{seed, skip, until};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, ScopedJoinHandle};
use std::time::Duration;
use tempfile::TempDir;

/// How long requests may take until somebody ends them.
const PATIENCE: Duration = Duration::from_secs(180);
pub(crate) const CONTENT: u64 = 16 << 20;
const ROLE: &str = "BIFOLIO_TEST_PAGING_ROLE";
const FOLDER: &str = "BIFOLIO_TEST_PAGING_FOLDER";

/// Whether a file can be mounted here.
pub(crate) fn can_mount() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let is_root = unsafe { libc::geteuid() == 0 };
    if !is_root || !Path::new("/dev/fuse").exists() {
        skip("mounting a file takes root and /dev/fuse");
        return false;
    }
    true
}

/// Whether requests of a killed worker are sent again here.
fn can_resend() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let is_new = (numbers.next(), numbers.next()) >= (Some(6), Some(9));
    if !is_new {
        skip("Linux sends unanswered requests again from 6.9 on");
    }
    is_new && can_mount()
}

/// This program again, in another role.
pub(crate) fn again(test: &str, role: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role).env(FOLDER, folder);
    command.stdout(std::process::Stdio::null());
    command
}

pub(crate) fn plays(role: &str) -> Option<PathBuf> {
    (std::env::var(ROLE).ok()? == role).then(|| std::env::var_os(FOLDER).map(PathBuf::from))?
}

fn worker(folder: &Path) -> Command {
    again("kills::a_worker_serves_when_a_keeper_starts_it", "worker", folder)
}

#[test]
fn a_worker_serves_when_a_keeper_starts_it() {
    let Some(folder) = plays("worker") else { return };
    let open_device = || Ok(Device::host(&HostOptions::default()));
    let options = WorkOptions {
        backing: folder.join("swap.img"),
        open_device: Box::new(open_device),
        flush_interval: Duration::from_millis(50),
        locks: false,
        disk: None,
    };
    let worked = work(options, &|sentence| eprintln!("worker: {sentence}"));
    if let Err(error) = &worked {
        eprintln!("worker: {error}");
    }
    std::process::exit(i32::from(worked.is_err()));
}

fn options(folder: &Path, mode: Mode) -> ServiceOptions {
    std::fs::write(folder.join("disk"), "").unwrap();
    ServiceOptions {
        backing: folder.join("swap.img"),
        size: CONTENT,
        mode,
        memory_bytes: 8 << 20,
        memory_bytes_max: 8 << 20,
        left_bytes: 0,
        mount: Some(folder.join("disk")),
        directory: None,
        threads: 3,
    }
}

/// A keeper in a process of its own, as it has to be: its user waits for answers in this one. It ends with this, whatever
/// happened.
struct Keeping {
    child: Child,
    folder: TempDir,
    directory: Directory,
}

impl Keeping {
    fn start(role: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = again("kills::a_keeper_serves_when_a_test_starts_it", role, folder.path()).spawn().unwrap();
        let mut keeping = Unready(Some((child, folder)));
        let path = keeping.0.as_ref().unwrap().1.path().join("directory");
        until("the keeper's worker serves", || path.exists());
        let memory = SharedMemory::open(Path::new(&std::fs::read_to_string(&path).unwrap())).unwrap();
        let (child, folder) = keeping.0.take().unwrap();
        Self { child, folder, directory: Directory::adopt(memory).unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn worker(&self) -> u32 {
        self.directory.head(Head::Worker).load(Ordering::Acquire) as u32
    }

    /// The file is unmounted, and worker and keeper end by themselves.
    fn end_well(mut self) {
        bifolio_keeper::fuse::unmount(&self.file()).unwrap();
        let mut status = None;
        until("the keeper ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        end(&mut self.child, self.folder.path());
    }
}

/// One that is not known to serve yet.
struct Unready(Option<(Child, TempDir)>);

impl Drop for Unready {
    fn drop(&mut self) {
        if let Some((child, folder)) = &mut self.0 {
            end(child, folder.path());
        }
    }
}

fn end(child: &mut Child, folder: &Path) {
    let _ = child.kill().and_then(|()| child.wait());
    let _ = bifolio_keeper::fuse::unmount(&folder.join("disk"));
}

/// Ends the load at the end, whatever happened.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A page's words: which page and which version they are of.
pub(crate) fn words(page: u64, version: u64) -> Vec<u8> {
    (0..PAGE_BYTES / 8).flat_map(|at| (page << 40 ^ version << 16 ^ at).to_le_bytes()).collect()
}

/// Writes and reads its own pages until it is over, and compares every word. A write that was under way while the worker
/// was killed succeeds as well: it is sent again.
fn load(file: &File, own: u64, threads: u64, seed: u64, is_over: &AtomicBool) -> u64 {
    let draw = &mut fastrand::Rng::with_seed(seed.wrapping_add(own));
    let mut versions = vec![0_u64; (CONTENT / PAGE_BYTES / threads) as usize];
    let mut requests = 0;
    let check = |number: usize, versions: &[u64]| {
        let page = number as u64 * threads + own;
        let mut seen = vec![0xee; PAGE_BYTES as usize];
        file.read_exact_at(&mut seen, page * PAGE_BYTES).unwrap();
        let expected = if versions[number] == 0 { vec![0; seen.len()] } else { words(page, versions[number]) };
        assert!(seen == expected, "page {page} of version {}", versions[number]);
    };
    while !is_over.load(Ordering::Acquire) {
        let number = draw.usize(..versions.len());
        if draw.bool() {
            versions[number] += 1;
            let page = number as u64 * threads + own;
            file.write_all_at(&words(page, versions[number]), page * PAGE_BYTES).unwrap();
        } else {
            check(number, &versions);
        }
        requests += 1;
    }
    (0..versions.len()).for_each(|number| check(number, &versions));
    requests
}

pub(crate) fn kill(process: u32) {
    // SAFETY: takes numbers; the process is a child that has not been waited for, or gone.
    unsafe { libc::kill(process as i32, libc::SIGKILL) };
}

/// Kills the keeper if this is not dropped in time, so that requests fail instead of waiting for ever.
pub(crate) struct Watchdog(Option<(Sender<()>, JoinHandle<()>)>);

impl Watchdog {
    pub(crate) fn over(process: u32) -> Self {
        let (sender, dropped) = channel::<()>();
        let watch = move || {
            if dropped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("requests have waited for {} s: killing the keeper", PATIENCE.as_secs());
                kill(process);
            }
        };
        Self(Some((sender, std::thread::spawn(watch))))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

fn survives(role: &str, kills: u32) {
    const THREADS: u64 = 4;
    let keeping = Keeping::start(role);
    let _watchdog = Watchdog::over(keeping.child.id());
    let (is_over, seed, directory) = (AtomicBool::new(false), seed(), &keeping.directory);
    let file = File::options().read(true).write(true).open(keeping.file()).unwrap();
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let loads: Vec<_> = (0..THREADS)
            .map(|own| {
                let (file, is_over) = (&file, &is_over);
                scope.spawn(move || load(file, own, THREADS, seed, is_over))
            })
            .collect();
        let draw = &mut fastrand::Rng::with_seed(seed);
        let mut last = 0;
        for round in 0..kills {
            until(format_args!("worker {round} serves"), || {
                keeping.worker() != last || loads.iter().any(ScopedJoinHandle::is_finished)
            });
            last = keeping.worker();
            std::thread::sleep(Duration::from_micros(draw.u64(..8000)));
            kill(last);
        }
        drop(over);
        let requests: u64 = loads.into_iter().map(|load| load.join().unwrap()).sum();
        assert!(requests >= u64::from(kills), "{requests} requests");
    });
    assert!(directory.head(Head::Generation).load(Ordering::Acquire) > u64::from(kills));
    assert!(directory.stats().get(Counter::HitPages) > 0);
    assert_eq!(directory.stats().get(Counter::LostPages), 0, "what the keeper held was adopted");
    drop(file);
    keeping.end_well();
}

#[test]
fn a_worker_that_is_killed_sixty_times_under_load_loses_no_word() {
    if can_resend() {
        survives("write-through keeper", 60);
    }
}

#[test]
fn what_waited_in_device_memory_survives_its_worker() {
    if can_resend() {
        survives("write-back keeper", 20);
    }
}

#[test]
fn a_keeper_serves_when_a_test_starts_it() {
    let through = plays("write-through keeper").map(|folder| (folder, Mode::WriteThrough));
    let role = through.or_else(|| plays("write-back keeper").map(|folder| (folder, Mode::WriteBack)));
    let is_old = role.is_none();
    let role = role.or_else(|| plays("old write-back keeper").map(|folder| (folder, Mode::WriteBack)));
    let Some((folder, mode)) = role else { return };
    let service = Service::new(&options(&folder, mode)).unwrap();
    let service = if is_old { service.without_resend() } else { service };
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), service.directory_fd()));
    let mut event = |event| {
        if matches!(event, Event::Ready) && !folder.join("directory").exists() {
            std::fs::write(folder.join("new"), path.to_str().unwrap()).unwrap();
            std::fs::rename(folder.join("new"), folder.join("directory")).unwrap();
        }
    };
    let ended = service.run(&mut || worker(&folder), &|| false, &mut event);
    std::process::exit(i32::from(ended.is_err()));
}

#[test]
fn a_keeper_that_is_killed_leaves_errors_and_nobody_hangs() {
    if !can_mount() {
        return;
    }
    let mut keeping = Keeping::start("write-through keeper");
    let file = File::options().read(true).write(true).open(keeping.file()).unwrap();
    file.write_all_at(&[7; 4096], 4096).unwrap();
    keeping.child.kill().unwrap();
    keeping.child.wait().unwrap();
    // Requests of which the worker hears before the kernel has ended it are answered.
    until("requests fail", || file.read_exact_at(&mut [0; 4096], 4096).is_err());
    drop(file);
    // The claim went with the keeper, and what was acknowledged is in the backing.
    let claim = || Backing::open(&keeping.folder.path().join("swap.img"));
    until("the backing is free", || claim().is_ok());
    let mut seen = [0; 4096];
    claim().unwrap().read(HEADER_BYTES + 4096, &mut seen).unwrap();
    assert_eq!(seen, [7; 4096]);
}

/// Before Linux 6.9 whatever a worker had read when it died waited for ever.
#[test]
fn where_requests_are_not_sent_again_they_fail_with_their_worker_and_what_was_written_is_written_back() {
    if !can_mount() {
        return;
    }
    let mut keeping = Keeping::start("old write-back keeper");
    let _watchdog = Watchdog::over(keeping.child.id());
    let file = File::options().read(true).write(true).open(keeping.file()).unwrap();
    file.write_all_at(&words(9, 1), 9 * PAGE_BYTES).unwrap();
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..3)
            .map(|own: u64| {
                let file = &file;
                let mut seen = [0; PAGE_BYTES as usize];
                scope.spawn(move || while file.read_exact_at(&mut seen, (own + 1) * PAGE_BYTES).is_ok() {})
            })
            .collect();
        kill(keeping.worker());
        until("all requests fail", || loads.iter().all(ScopedJoinHandle::is_finished));
    });
    drop(file);
    let mut status = None;
    until("the keeper ends", || {
        status = keeping.child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success(), "{status:?}");
    let mut seen = vec![0; PAGE_BYTES as usize];
    let backing = Backing::open(&keeping.folder.path().join("swap.img")).unwrap();
    backing.read(HEADER_BYTES + 9 * PAGE_BYTES, &mut seen).unwrap();
    assert!(seen == words(9, 1), "the successor has written back what only device memory had");
    assert_eq!(Header::read(&backing).unwrap().left, Left::Whole);
}

#[test]
fn a_second_service_on_one_backing_is_refused() {
    if !can_mount() {
        return;
    }
    let keeping = Keeping::start("write-through keeper");
    let other = tempfile::tempdir().unwrap();
    let both =
        ServiceOptions { backing: keeping.folder.path().join("swap.img"), ..options(other.path(), Mode::WriteThrough) };
    let error = Service::new(&both).unwrap_err();
    assert!(error.kind() == ErrorKind::InUse && error.to_string().contains("swap.img"), "{error}");
    keeping.end_well();
}

#[test]
fn a_worker_that_never_comes_up_is_given_up_and_its_file_fails() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let service = Service::new(&options(folder.path(), Mode::WriteThrough)).unwrap();
    let error = service.run(&mut || Command::new("false"), &|| false, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
    assert!(error.to_string().contains("before it served"), "{error}");
    assert_eq!(folder.path().join("disk").metadata().unwrap().len(), 0, "it is unmounted");
}
