//! Thousands of open files, no descriptors left, files that are replaced, and batches that are
//! cancelled.

use crate::support::{
    choices, content_of, file_of, folder, host, only, poisoned, ran_in_its_own_process, random, small_options,
};
use bifolio_io::cache_state::evict;
use bifolio_io::{Buffer, Cancel, EngineChoice, EngineKind, ErrorKind, ReadExtent, ReadOptions, Router};
use bifolio_testing::until;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A soft limit on descriptors, until it is dropped.
struct Limit(libc::rlimit);

impl Limit {
    fn set(descriptors: u64) -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the calls read and write one structure.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before), 0);
            let wanted = libc::rlimit { rlim_cur: descriptors.min(before.rlim_max), ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted), 0);
        }
        Self(before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // SAFETY: the call reads one structure.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.0) };
    }
}

#[test]
fn thousands_of_files_are_open_at_once_and_their_descriptors_come_back() {
    const LEN: u64 = 9000;
    if ran_in_its_own_process("many::thousands_of_files_are_open_at_once_and_their_descriptors_come_back") {
        return;
    }
    // Up to three descriptors a file.
    let limit = Limit::set(2000 * 3 + 200);
    let files_max = ((limit.0.rlim_max.min(6200) - 200) / 3) as usize;
    println!("{files_max} files");
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(LEN + files_max as u64);
    let paths: Vec<_> = (0..files_max).map(|number| folder.path().join(format!("file-{number}"))).collect();
    for (number, path) in paths.iter().enumerate() {
        std::fs::write(path, &content[number..number + LEN as usize]).unwrap();
    }
    // SAFETY: flushes files, so that some can be dropped from the page cache below.
    unsafe { libc::sync() };
    let router = Router::new(&host(), small_options());
    let memory = poisoned(router.device(), LEN);
    let before = open_descriptors();
    let files: Vec<_> = paths.iter().map(|path| router.open(path).unwrap()).collect();
    for (number, file) in files.iter().enumerate() {
        if number % 3 == 0 && !file.is_in_memory() {
            evict(file, 0..LEN).unwrap();
        }
        let choices = [EngineChoice::Auto, EngineChoice::Only(EngineKind::Direct), EngineChoice::Auto];
        let options = ReadOptions { engine: choices[number % 3], ..ReadOptions::default() };
        match router.read(file, 0, None, memory.slice(), &options) {
            Ok(report) => assert_eq!(report.bytes, LEN),
            Err(error) if error.kind() == ErrorKind::NoEngine && number % 3 == 1 => continue,
            Err(error) => panic!("{error}"),
        }
        assert!(content_of(&memory) == content[number..number + LEN as usize], "file {number}");
    }
    assert!(open_descriptors() >= before + files_max);
    drop(files);
    let left = open_descriptors().saturating_sub(before);
    assert!(left < 50, "{left} descriptors of closed files are still open");
    drop(limit);
}

/// Whatever cannot be opened is an error with advice, or done without; nothing is remembered when
/// there are descriptors again.
#[test]
fn without_descriptors_requests_are_right_or_say_what_to_do() {
    const LEN: u64 = 3_000_001;
    if ran_in_its_own_process("many::without_descriptors_requests_are_right_or_say_what_to_do") {
        return;
    }
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(LEN);
    let path = file_of(folder.path(), "data", &content);
    let mut refused = 0;
    for spare in 0..6 {
        let router = Router::new(&host(), small_options());
        let memory = poisoned(router.device(), LEN);
        let opened = router.open(&path);
        let file = opened.unwrap();
        if !file.is_in_memory() {
            evict(&file, 0..LEN).unwrap();
        }
        // All that there are, less the spare ones.
        let limit = Limit::set(256);
        let mut ballast: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        ballast.truncate(ballast.len() - spare);
        match router.open(&path) {
            Ok(other) => drop(other),
            Err(error) => {
                assert!(error.to_string().contains("ulimit -n"), "{error}");
                refused += 1;
            }
        }
        for choice in choices() {
            let options = ReadOptions { engine: choice, ..ReadOptions::default() };
            match router.read(&file, 0, None, memory.slice(), &options) {
                Ok(report) => {
                    assert_eq!(report.bytes, LEN);
                    assert!(content_of(&memory) == content, "{choice} with {spare} descriptors left");
                }
                Err(error) => assert_ne!(choice, EngineChoice::Auto, "{error}"),
            }
        }
        drop((ballast, limit));
        // What was refused for want of descriptors is there now.
        match router.read(&file, 0, None, memory.slice(), &only(EngineKind::Direct)) {
            Ok(_) => assert!(content_of(&memory) == content),
            Err(error) => assert!(!error.to_string().contains("descriptor"), "{error}"),
        }
    }
    assert!(refused > 0, "the limit was never met");
}

/// An open file stays the file that was opened, whatever its name leads to by then.
#[test]
fn a_file_that_is_replaced_is_read_to_its_end() {
    const LEN: u64 = 5_000_001;
    let (folder, mut random) = (folder(), random());
    let (old, new) = (random.bytes(LEN), random.bytes(LEN));
    let path = file_of(folder.path(), "data", &old);
    let other = file_of(folder.path(), "other", &new);
    let router = Router::new(&host(), small_options());
    let memory = poisoned(router.device(), LEN);
    let file = router.open(&path).unwrap();
    router.read(&file, 0, Some(4096), memory.slice(), &ReadOptions::default()).unwrap();
    std::fs::rename(&other, &path).unwrap();
    for choice in choices() {
        let options = ReadOptions { engine: choice, ..ReadOptions::default() };
        match router.read(&file, 0, None, memory.slice(), &options) {
            Ok(_) => assert!(content_of(&memory) == old, "{choice} read the new file through an old handle"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoEngine, "{error}"),
        }
    }
    let file = router.open(&path).unwrap();
    router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap();
    assert!(content_of(&memory) == new);
    std::fs::remove_file(&path).unwrap();
    router.read(&file, 0, None, memory.slice(), &ReadOptions::default()).unwrap();
    assert!(content_of(&memory) == new, "an unlinked file is still there for its handle");
}

/// A batch ends as cancelled or complete; its memory is its own until then, and the router serves
/// the next request.
#[test]
fn batches_can_be_cancelled_at_any_moment() {
    const LEN: u64 = 8 << 20;
    let (folder, mut random) = (folder(), random());
    let content = random.bytes(LEN);
    let path = file_of(folder.path(), "data", &content);
    let router = Arc::new(Router::new(&host(), small_options()));
    let file = router.open(&path).unwrap();
    let (mut cancelled, mut completed) = (0, 0);
    for round in 0..40 {
        if round % 2 == 0 && !file.is_in_memory() {
            evict(&file, 0..LEN).unwrap();
        }
        let extents: Vec<ReadExtent> = (0..1500)
            .map(|place| ReadExtent { offset: random.below(LEN - 4096), length: 4096, place: place * 4096 })
            .collect();
        let memory = Arc::new(poisoned(router.device(), 1500 * 4096));
        let options = ReadOptions { cancel: Cancel::default(), ..ReadOptions::default() };
        let pending = router.submit_batch(&file, extents.clone(), &Buffer::new(&memory), &options);
        let moved = random.below(1500 * 4096 / 2);
        until("some of it has moved", || options.progress.load(Ordering::Relaxed) >= moved || pending.is_done());
        if round % 4 == 3 {
            // Gives the handle up instead of asking.
            drop(pending);
            continue;
        }
        pending.cancel();
        match pending.wait() {
            Ok(_) => completed += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                cancelled += 1;
            }
        }
        // Nothing lands once the request is over.
        let before = content_of(&memory);
        let again = poisoned(router.device(), 1500 * 4096);
        let whole = router.read_batch(&file, &extents, again.slice(), &ReadOptions::default()).unwrap();
        assert!(content_of(&memory) == before, "a batch wrote after its end");
        assert_eq!(whole.bytes, 1500 * 4096);
        let seen = content_of(&again);
        for extent in &extents {
            let (at, from) = (extent.place as usize, extent.offset as usize);
            assert!(seen[at..at + 4096] == content[from..from + 4096]);
        }
    }
    println!("{cancelled} cancelled, {completed} completed");
    assert!(cancelled > 0, "no batch was cancelled in time");
}
