//! Contention beside the measured requests: all processors busy, or the disk.
//!
//! Its threads live for one run. They are at work before the run's clock starts and joined after it stops, on every
//! way out, so that setting a state up and comparing bytes are never measured under contention, and so that the CPU
//! time they report is all of theirs.

use super::choices::Contention;
use super::options::Options;
use crate::error::{Error, Result};
use crate::harness::baseline::Aligned;
use crate::harness::session::Session;
use bifolio_io::OpenFile;
use bifolio_io::cache_state::{evict, write_incompressible};
use fastrand::Rng;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One read of the disk contention, and its threads, each with one read in flight.
const READ_BYTES: u64 = 512 << 10;
const DISK_THREADS: usize = 8;

/// Arithmetic between two looks at whether it is over: about 50 us.
const CPU_STEPS: u64 = 1 << 15;

/// The scratch file is written in parts, between which an interrupt is noticed.
const PART_BYTES: u64 = 64 << 20;

/// What is needed for the contention that was asked for.
#[derive(Debug)]
pub(super) struct Contenders {
    scratch: Option<Scratch>,
    seed: u64,
}

/// What it did beside one run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Done {
    /// Bytes read, or steps of arithmetic.
    work: u64,
    seconds: f64,
    /// CPU seconds of its threads.
    pub(super) cpu_s: f64,
}

impl Done {
    /// Work of 1e9 in a second: GB/s of the disk contention, 1e9 steps/s of the CPU contention.
    pub(super) fn rate(self) -> f64 {
        if self.seconds > 0.0 { self.work as f64 / self.seconds / 1e9 } else { 0.0 }
    }
}

impl Contenders {
    /// Makes the scratch file beside `near`, if the disk contention was asked for.
    pub(super) fn prepare(options: &Options, near: &Path, session: &Session) -> Result<Self> {
        let wanted = options.contention.contains(&Contention::Disk);
        let scratch = if wanted { Some(Scratch::create(near, options, session)?) } else { None };
        Ok(Self { scratch, seed: options.seed })
    }

    /// Starts it and returns once all of its threads are at work.
    pub(super) fn start(&self, kind: Contention) -> Result<Running> {
        let mut running = Running::default();
        match (kind, &self.scratch) {
            (Contention::None, _) | (Contention::Disk, None) => {}
            (Contention::Cpu, _) => {
                for seed in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64 {
                    running.spawn(move || compute(seed))?;
                }
            }
            (Contention::Disk, Some(scratch)) => {
                for number in 0..DISK_THREADS as u64 {
                    let (file, random) = (Arc::clone(&scratch.file), Rng::with_seed(self.seed ^ number << 32));
                    running.spawn(move || file.reader(random))?;
                }
            }
        }
        running.wait_until_at_work();
        Ok(running)
    }

    /// What it is, for a reader of the results.
    pub(super) fn describe(&self, kind: Contention) -> String {
        match (kind, &self.scratch) {
            (Contention::None, _) | (Contention::Disk, None) => "nothing".to_owned(),
            (Contention::Cpu, _) => "one spinning thread for each processor".to_owned(),
            (Contention::Disk, Some(scratch)) => {
                let how = if scratch.file.unbuffered {
                    "O_DIRECT"
                } else {
                    "buffered, dropped after each read: no O_DIRECT here"
                };
                format!("{DISK_THREADS} threads, random reads of 512K ({how})")
            }
        }
    }
}

/// Contention at work, until it is stopped or dropped.
#[derive(Debug, Default)]
pub(super) struct Running {
    stop: Arc<AtomicBool>,
    at_work: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<io::Result<(u64, f64)>>>,
    started: Option<Instant>,
}

impl Running {
    /// A thread that works in steps, each of which says how much it did.
    fn spawn<W: FnMut() -> io::Result<u64>>(&mut self, make: impl FnOnce() -> W + Send + 'static) -> Result<()> {
        let (stop, at_work) = (Arc::clone(&self.stop), Arc::clone(&self.at_work));
        let work = move || {
            let mut step = make();
            let mut done = step()?;
            at_work.fetch_add(1, Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                done += step()?;
            }
            Ok((done, thread_cpu_seconds()))
        };
        let thread = std::thread::Builder::new().name("bifolio-load".to_owned()).spawn(work);
        self.threads.push(thread.map_err(|error| Error::system("contention", "starting a thread", error))?);
        Ok(())
    }

    fn wait_until_at_work(&mut self) {
        let failed = |thread: &JoinHandle<_>| thread.is_finished();
        while self.at_work.load(Ordering::Relaxed) < self.threads.len() && !self.threads.iter().any(failed) {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.started = Some(Instant::now());
    }

    /// Ends it.
    ///
    /// # Errors
    /// A read of the scratch file that failed: the run was not measured under contention.
    pub(super) fn stop(mut self) -> Result<Done> {
        self.stop.store(true, Ordering::Relaxed);
        let mut done = Done::default();
        for thread in self.threads.drain(..) {
            let outcome = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            let (work, cpu_s) =
                outcome.map_err(|error| Error::system("contention", "reading its scratch file", error))?;
            (done.work, done.cpu_s) = (done.work + work, done.cpu_s + cpu_s);
        }
        done.seconds = self.started.map_or(0.0, |started| started.elapsed().as_secs_f64());
        Ok(done)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Arithmetic that no compiler can leave out.
fn compute(seed: u64) -> impl FnMut() -> io::Result<u64> {
    let mut random = Rng::with_seed(seed);
    move || {
        for _ in 0..CPU_STEPS {
            std::hint::black_box(random.u64(..));
        }
        Ok(CPU_STEPS)
    }
}

/// CPU seconds of the calling thread.
fn thread_cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A file that has no name any more: it is gone when the process is, however that ends.
#[derive(Debug)]
struct Scratch {
    file: Arc<ScratchFile>,
}

#[derive(Debug)]
struct ScratchFile {
    file: File,
    bytes: u64,
    unbuffered: bool,
}

impl Scratch {
    fn create(near: &Path, options: &Options, session: &Session) -> Result<Self> {
        let path = beside(near);
        let fail = |doing: &str, error| {
            Error::system(path.display(), format!("{doing} the scratch file of the disk contention"), error)
        };
        let create = File::options().write(true).create_new(true).open(&path);
        let writer = create.map_err(|error| fail("creating", error))?;
        let opened = OpenFile::open(&path);
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path);
        let buffered = File::open(&path);
        std::fs::remove_file(&path).map_err(|error| fail("unlinking", error))?;
        let opened = opened?;
        if opened.is_in_memory() {
            let detail = "the folder is kept in memory, so the disk contention would not reach a disk; measure a file on \
                          a disk";
            return Err(Error::failed(path.display(), detail));
        }
        let bytes = (options.contention_bytes / READ_BYTES * READ_BYTES).max(2 * READ_BYTES);
        let mut at = 0;
        while at < bytes {
            session.check()?;
            let part = PART_BYTES.min(bytes - at);
            write_incompressible(&writer, &path, part, options.seed.wrapping_add(at), &mut |_| {})?;
            at += part;
        }
        evict(&opened, 0..bytes)?;
        // The open may promise what the first read breaks.
        let direct = direct.ok().filter(|file| Aligned::new(4096).read_at(file, 0).is_ok());
        let unbuffered = direct.is_some();
        let file = direct.map_or(buffered, Ok).map_err(|error| fail("opening", error))?;
        Ok(Self { file: Arc::new(ScratchFile { file, bytes, unbuffered }) })
    }
}

/// A name in the folder that holds the file, not in that of a link to it.
fn beside(near: &Path) -> PathBuf {
    let real = near.canonicalize().unwrap_or_else(|_| near.to_owned());
    let folder = real.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder.join(format!(".bifolio-contention-{}", std::process::id()))
}

impl ScratchFile {
    /// Reads a random place at every call.
    fn reader(self: Arc<Self>, mut random: Rng) -> impl FnMut() -> io::Result<u64> {
        let mut buffer = Aligned::new(READ_BYTES as usize);
        move || {
            let offset = random.u64(0..self.bytes / READ_BYTES) * READ_BYTES;
            let read = buffer.read_at(&self.file, offset)?;
            if !self.unbuffered {
                let (fd, len) = (self.file.as_raw_fd(), READ_BYTES as i64);
                // SAFETY: advice on an open descriptor.
                unsafe { libc::posix_fadvise(fd, offset as i64, len, libc::POSIX_FADV_DONTNEED) };
            }
            Ok(read as u64)
        }
    }
}

impl Aligned {
    fn read_at(&mut self, file: &File, offset: u64) -> io::Result<usize> {
        file.read_at(self.bytes_mut(), offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contentions(near: &Path) -> Result<Contenders> {
        let options = Options {
            contention: vec![Contention::Cpu, Contention::Disk],
            contention_bytes: 4 << 20,
            ..Options::new(vec![])
        };
        Contenders::prepare(&options, near, &Session::default())
    }

    #[test]
    fn contention_works_while_they_run_and_leave_nothing_behind() {
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let contentions = match contentions(&folder.path().join("file")) {
            Err(error) if error.detail().contains("in memory") => {
                return bifolio_testing::skip("the build folder is in memory");
            }
            other => other.unwrap(),
        };
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        for kind in [Contention::Cpu, Contention::Disk] {
            let done = contentions.start(kind).unwrap().stop().unwrap();
            assert!(done.work > 0 && done.cpu_s > 0.0 && done.rate() > 0.0, "{kind:?}");
            // Dropping, as an error on the way does, ends the threads as well.
            let running = contentions.start(kind).unwrap();
            let stop = Arc::clone(&running.stop);
            assert!(Arc::strong_count(&stop) > 2, "{kind:?}");
            drop(running);
            assert_eq!(Arc::strong_count(&stop), 1, "{kind:?}");
        }
        let nothing = contentions.start(Contention::None).unwrap();
        assert!(nothing.threads.is_empty() && nothing.stop().unwrap().work == 0);
    }

    #[test]
    fn contention_whose_reads_fail_says_so_instead_of_measuring_nothing() {
        let mut running = Running::default();
        let mut left = 3;
        running
            .spawn(move || {
                move || {
                    left -= 1;
                    if left > 0 { Ok(1) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
                }
            })
            .unwrap();
        running.wait_until_at_work();
        while !running.threads[0].is_finished() {
            std::thread::yield_now();
        }
        assert!(running.stop().unwrap_err().detail().contains("scratch file"));
    }

    #[test]
    fn a_folder_in_memory_is_refused() {
        let error = contentions(Path::new("/dev/shm/file")).unwrap_err();
        if error.detail().contains("creating") {
            return bifolio_testing::skip("/dev/shm is not writable here");
        }
        assert!(error.detail().contains("kept in memory"), "{error}");
    }
}
