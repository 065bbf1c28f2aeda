use super::*;
use crate::ErrorKind::{BadRange, BadUse, Permission, Read};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

const HOST: DeviceChoice = DeviceChoice::Exactly(DeviceId::HOST);
const OTHER: DeviceChoice = DeviceChoice::Exactly(DeviceId::new(BackendKind::Host, 1));
const SHARED: i32 = libc::MAP_SHARED | MAP_ONGPU;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Tests look at what is nobody's, which another test's mapping may be the next moment.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file_of(len: usize) -> (tempfile::TempDir, PathBuf, File) {
    let folder = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![b'.'; len]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    (folder, path, file)
}

/// Memory of a host device, which the CPU can touch while it is acquired.
fn bytes_at<'a>(ptr: DevicePtr, at: u64, len: usize) -> &'a mut [u8] {
    let place = std::ptr::with_exposed_provenance_mut((ptr.0 + at) as usize);
    // SAFETY: the callers have acquired it, and look at it once at a time.
    unsafe { std::slice::from_raw_parts_mut(place, len) }
}

#[test]
fn parts_are_named_by_their_addresses_on_two_devices() {
    let _alone = alone();
    let (_folder, path, file) = file_of(300_000);
    let fd = file.as_raw_fd();
    // Longer than the file, as programs round up.
    let [one, two] = [HOST, OTHER].map(|device| mmap(1 << 20, BOTH, SHARED, fd, 0, device).unwrap());
    assert_ne!(one, two);
    acquire(one, 1 << 20).unwrap();
    acquire(two.offset_by(100_000), 100).unwrap();
    bytes_at(one, 299_999, 1)[0] = b'1';
    bytes_at(two, 100_000, 100).fill(b'2');
    release(one, 1 << 20).unwrap();
    assert_eq!(release(two, 100).unwrap_err().kind(), BadUse, "another part than was acquired");
    release(two.offset_by(100_000), 100).unwrap();
    let report = acquire(one.offset_by(100_099), 2).unwrap();
    assert_eq!((report.fetched, &*bytes_at(one, 100_099, 2)), (1, &b"2."[..]));
    release(one.offset_by(100_099), 2).unwrap();
    sync(two, 1).unwrap();
    let mut expected = vec![b'.'; 300_000];
    expected[100_000..100_100].fill(b'2');
    expected[299_999] = b'1';
    assert!(std::fs::read(path).unwrap() == expected);
    unmap(one, 1 << 20).unwrap();
    unmap(two, (1 << 20) - 5).unwrap();
}

#[test]
fn only_addresses_of_mappings_are_held() {
    let _alone = alone();
    let (_folder, _, file) = file_of(10_000);
    let ptr = mmap(10_000, libc::PROT_READ, SHARED, file.as_raw_fd(), 0, HOST).unwrap();
    for (address, held) in [(0, true), (9_999, true), (12_287, true), (12_288, false)] {
        assert_eq!(holds(ptr.0 + address), held, "{address}");
    }
    let here = 5_u8;
    assert!(!holds(ptr.0 - 1) && !holds(0) && !holds(u64::MAX) && !holds(&raw const here as u64));
    for (at, len) in [(0, 0), (0, 12_289), (12_288, 1), (10_000, 1), (u64::MAX - ptr.0, 1), (9_999, u64::MAX)] {
        let error = acquire(DevicePtr(ptr.0.wrapping_add(at)), len).unwrap_err();
        assert_eq!(error.kind(), BadRange, "{at} {len}: {error}");
    }
    for (at, len) in [(0, 0), (0, 4096), (0, 20_000), (4096, 5904), (8, 10_000), (0, u64::MAX)] {
        assert_eq!(unmap(ptr.offset_by(at), len).unwrap_err().kind(), BadRange, "{at} {len}");
    }
    unmap(ptr, 10_000).unwrap();
    assert!(!holds(ptr.0));
    for outcome in [unmap(ptr, 10_000), sync(ptr, 1), acquire(ptr, 1).map(drop), release(ptr, 1).map(drop)] {
        assert_eq!(outcome.unwrap_err().kind(), BadRange);
    }
}

/// Symptom: what one part of a program had acquired was gone when another had unmapped the same range. Cause: a
/// mapping by address is what all have who mapped it.
#[test]
fn a_range_that_is_mapped_twice_is_unmapped_twice() {
    let _alone = alone();
    let (_folder, path, file) = file_of(5000);
    let map = || mmap(5000, BOTH, SHARED, file.as_raw_fd(), 0, HOST).unwrap();
    let (one, two) = (map(), map());
    assert_eq!(one, two);
    acquire(one, 5000).unwrap();
    bytes_at(one, 7, 1)[0] = b'x';
    unmap(two, 5000).unwrap();
    assert_eq!(bytes_at(one, 7, 1), b"x");
    release(one, 5000).unwrap();
    unmap(one, 5000).unwrap();
    assert!(!holds(one.0));
    // The last of them was the last of the file's, so that it has everything.
    assert_eq!(std::fs::read(path).unwrap()[7], b'x');
}

#[test]
fn what_no_mapping_can_be_is_refused() {
    let _alone = alone();
    let (_folder, path, file) = file_of(5000);
    let fd = file.as_raw_fd();
    let readable = File::open(&path).unwrap();
    let write_only = File::options().write(true).open(&path).unwrap();
    let refused = |len, protection, flags, fd, offset, device| {
        let error = mmap(len, protection, flags, fd, offset, device).unwrap_err();
        assert!(error.to_string().len() > 20, "{error}");
        (error.kind(), error.os_code())
    };
    let nowhere = DeviceChoice::Exactly(DeviceId::new(BackendKind::Host, 77));
    for (len, protection, flags, offset, kind) in [
        (0, BOTH, SHARED, 0, BadUse),
        (100, BOTH, SHARED, 100, BadUse),
        (100, BOTH, SHARED, 8192, BadRange),
        (u64::MAX, BOTH, SHARED, 4096, BadRange),
        (u64::MAX, BOTH, SHARED, 0, BadRange),
        (100, libc::PROT_NONE, SHARED, 0, BadUse),
        (100, BOTH | libc::PROT_EXEC, SHARED, 0, BadUse),
        (100, BOTH, libc::MAP_PRIVATE | MAP_ONGPU, 0, BadUse),
        (100, BOTH, SHARED | libc::MAP_FIXED, 0, BadUse),
        (100, BOTH, SHARED | libc::MAP_ANONYMOUS, 0, BadUse),
        (100, BOTH, 0, 0, BadUse),
    ] {
        assert_eq!(refused(len, protection, flags, fd, offset, HOST).0, kind, "{len} {protection} {flags} {offset}");
    }
    assert_eq!(refused(100, BOTH, SHARED, fd, 0, nowhere).0, BadUse);
    assert_eq!(refused(100, BOTH, SHARED, readable.as_raw_fd(), 0, HOST).0, Permission);
    assert_eq!(refused(100, libc::PROT_READ, SHARED, write_only.as_raw_fd(), 0, HOST).0, Permission);
    assert_eq!(refused(100, BOTH, SHARED, -1, 0, HOST), (Read, Some(libc::EBADF)));
    assert_eq!(refused(100, BOTH, SHARED, 999_999, 0, HOST), (Read, Some(libc::EBADF)));
    let folder = File::open("/").unwrap();
    assert_eq!(refused(100, libc::PROT_READ, SHARED, folder.as_raw_fd(), 0, HOST).0, Read);
    let ptr = mmap(100, libc::PROT_READ, SHARED | libc::MAP_POPULATE, readable.as_raw_fd(), 0, HOST).unwrap();
    unmap(ptr, 100).unwrap();
}

/// Symptom: a child waited for a lock that a thread of its parent's had.
#[test]
fn a_child_is_refused_and_does_not_wait() {
    let _alone = alone();
    let (_folder, _, file) = file_of(5000);
    let ptr = mmap(5000, BOTH, SHARED, file.as_raw_fd(), 0, HOST).unwrap();
    let held = table();
    // SAFETY: the child calls what must not take a lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a child that waits is ended by the signal.
        unsafe { libc::alarm(20) };
        let outcomes = [acquire(ptr, 1).map(drop), release(ptr, 1).map(drop), sync(ptr, 1), unmap(ptr, 5000)];
        let refused = |outcome: Result<()>| outcome.is_err_and(|error| error.kind() == ErrorKind::Forked);
        let all = outcomes.into_iter().all(refused) && refused(mmap(1, 1, 1, 0, 0, HOST).map(drop)) && holds(ptr.0);
        end_all();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    drop(held);
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    unmap(ptr, 5000).unwrap();
}

/// Files of four threads on two devices, at the same time.
#[test]
fn threads_use_mappings_of_their_own() {
    let _alone = alone();
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let (_folder, path, file) = file_of(200_000);
                let device = [HOST, OTHER][number % 2];
                for round in 0..100_u64 {
                    let ptr = mmap(200_000, BOTH, SHARED, file.as_raw_fd(), 0, device).unwrap();
                    let at = ptr.offset_by(round * 1999);
                    acquire(at, 1000).unwrap();
                    bytes_at(at, 0, 1000).fill(round as u8);
                    release(at, 1000).unwrap();
                    unmap(ptr, 200_000).unwrap();
                }
                let mut expected = vec![b'.'; 200_000];
                (0..100).for_each(|round| expected[round * 1999..][..1000].fill(round as u8));
                assert!(std::fs::read(path).unwrap() == expected);
            });
        }
    });
}

/// Symptom: what one had released before was not seen. Cause: a file whose last mapping was just ending was opened
/// anew before everything had reached it.
#[test]
fn a_file_that_one_leaves_while_another_comes_loses_nothing() {
    let _alone = alone();
    let (_folder, path, file) = file_of(40_000);
    let turn = Mutex::new(0_u32);
    std::thread::scope(|scope| {
        for device in [HOST, OTHER, HOST] {
            let (fd, turn) = (file.as_raw_fd(), &turn);
            scope.spawn(move || {
                for _ in 0..60 {
                    let mut count = turn.lock().unwrap();
                    let ptr = mmap(40_000, BOTH, SHARED, fd, 0, device).unwrap();
                    acquire(ptr, 40_000).unwrap();
                    let seen = bytes_at(ptr, 20_000, 4);
                    if *count > 0 {
                        assert_eq!(seen, count.to_le_bytes(), "what was released before is not seen");
                    }
                    *count += 1;
                    seen.copy_from_slice(&count.to_le_bytes());
                    release(ptr, 40_000).unwrap();
                    // The next one comes while this one leaves.
                    drop(count);
                    unmap(ptr, 40_000).unwrap();
                }
            });
        }
    });
    assert_eq!(std::fs::read(path).unwrap()[20_000..20_004], 180_u32.to_le_bytes());
}

/// Symptom: what was released and could not be written was gone, and `munmap` had said 0.
#[test]
#[cfg(feature = "fault-injection")]
fn the_last_unmap_of_a_file_is_told_what_cannot_be_written() {
    use crate::fault::{self, Point};
    let _alone = alone();
    let (_folder, path, file) = file_of(5000);
    let fd = file.as_raw_fd();
    let [ptr, other] = [HOST, OTHER].map(|device| mmap(5000, BOTH, SHARED, fd, 0, device).unwrap());
    acquire(ptr, 5000).unwrap();
    bytes_at(ptr, 10, 1)[0] = b'1';
    release(ptr, 5000).unwrap();
    fault::inject(|point| match point {
        Point::HomeOpened => Err(std::io::Error::from_raw_os_error(libc::EIO)),
        _ => Ok(()),
    });
    unmap(other, 5000).unwrap();
    let error = unmap(ptr, 5000).unwrap_err();
    fault::cease();
    assert_eq!((error.kind(), error.os_code()), (ErrorKind::Write, Some(libc::EIO)), "{error}");
    assert!(!holds(ptr.0), "it is unmapped all the same");
    // Whoever maps it again finds it.
    let ptr = mmap(5000, BOTH, SHARED, fd, 0, HOST).unwrap();
    unmap(ptr, 5000).unwrap();
    assert_eq!(std::fs::read(path).unwrap()[10], b'1');
}
