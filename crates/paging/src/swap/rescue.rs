//! Switching off a swap space whose keeper and worker were killed, where the kernel keeps the disk and its requests wait.
//!
//! In write-through mode the backing has everything, so this process serves the disk from there while everything comes back.
//! In write-back mode the newest writes went with the keeper. The directory that outlived it says which pages these are: they
//! read as errors, never as something older, and everything else comes back. Who may lose them says so (`--force`). Where
//! the directory went, too, it is refused.

use super::record::Instance;
use crate::attach::{DiskServer, Seat};
use crate::backing::Backing;
use crate::cache::{Legacy, OpenDevice, Options, PagingCache};
use crate::directory::{Directory, Head};
use bifolio_block::{BlockDevice, Error, ErrorKind, Result};
use bifolio_device::{Device, HostOptions};
use bifolio_keeper::{SharedMemory, process};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

/// Serves the disk until it is taken apart, in a thread of its own; returns when requests are answered.
///
/// # Errors
/// `BadState` where the backing does not have everything, unless that is known and `may_lose`, and those of serving.
pub(super) fn serve_from_backing(instance: &Instance, server: &'static dyn DiskServer, may_lose: bool) -> Result<()> {
    let record = &instance.record;
    let Some(disk) = record.disk.clone() else { return Ok(()) };
    // This process must not wait for what it is about to serve. Where that is not permitted, it was forced before.
    let _ = process::become_flusher();
    let _ = process::lock_memory();
    let cache = what_is_left(Arc::new(Backing::open(&record.backing)?), &instance.named_directory(), may_lose)?;
    // A page that is lost must not take others with it that the kernel reads in one request.
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let _ = std::fs::write(format!("/sys/block/{name}/queue/nomerges"), "2");
    let (owner, threads) = (instance.served(), record.threads);
    let (sender, answer) = sync_channel(2);
    let ready = sender.clone();
    let serve = move || {
        let seat = Seat { disk: &disk, owner: &owner, cache: &cache, threads, is_first: false };
        let served = server.serve(&seat, &|| {
            let _ = ready.send(Ok(()));
            Ok(())
        });
        // Nobody listens any more if it began well.
        let _ = sender.try_send(served);
    };
    let begun = std::thread::Builder::new().name("bifolio-rescue".to_owned()).spawn(serve);
    begun.map_err(|error| Error::system(record.backing.display(), "starting a thread that serves it", error))?;
    answer.recv().unwrap_or_else(|_| {
        let detail = "what should serve its disk from the backing ended";
        Err(Error::new(ErrorKind::BadState, record.backing.display(), detail))
    })
}

/// A cache without device memory on what killed processes have left.
fn what_is_left(backing: Arc<dyn BlockDevice>, directory: &Path, may_lose: bool) -> Result<PagingCache> {
    let name = backing.name();
    // Nothing is taken of it, and the device may be why they were killed.
    let open_device: OpenDevice = Box::new(|| Ok(Device::host(&HostOptions::default())));
    let options = Options::new(backing, open_device, 0);
    let Ok(memory) = SharedMemory::open(directory) else { return PagingCache::open(options) };
    let directory = Directory::adopt(memory)?;
    let shape = directory.shape();
    let lost: u64 = (0..shape.chunks * shape.chunk_slots).map(|slot| directory.slot(slot).dirty.count()).sum();
    if lost > 0 && !may_lose {
        let detail = format!(
            "{lost} pages that were not written back went with the processes that were killed; --force brings everything else \
             back, and programs that touch one of these get SIGBUS"
        );
        return Err(Error::new(ErrorKind::BadState, name, detail));
    }
    for word in [Head::TargetChunks, Head::FreeBytes] {
        directory.head(word).store(0, Ordering::Release);
    }
    PagingCache::adopt(options, Legacy { directory: directory.into_memory(), chunks: vec![] }, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Mode, format_backing, new_directory_at};
    use crate::header::HEADER_BYTES;
    use bifolio_block::faults::FaultyDevice;

    const CONTENT: u64 = 4 << 20;

    /// In write-back mode, everything waited until the system was started anew.
    #[test]
    fn what_was_not_written_back_is_an_error_and_everything_else_comes_back() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
            return bifolio_testing::skip("there is no file system of memory at /dev/shm");
        };
        let path = folder.path().join("directory");
        let backing = Arc::new(FaultyDevice::new("swap.img", vec![0; (CONTENT + HEADER_BYTES) as usize]));
        format_backing(&*backing, CONTENT).unwrap();
        let directory = new_directory_at(&path, CONTENT, CONTENT, Mode::WriteBack).unwrap();
        let open_device: OpenDevice = Box::new(|| Ok(Device::host(&HostOptions::default())));
        let options = Options::new(backing.clone(), open_device, CONTENT);
        let killed = PagingCache::adopt(options, Legacy { directory, chunks: vec![] }, None).unwrap();
        killed.set_target(CONTENT);
        killed.tick();
        killed.write(0, &[1; 3 * 4096]).unwrap();
        killed.flush().unwrap();
        killed.write(4096, &[2; 4096]).unwrap();
        killed.write(1 << 20, &[3; 4096]).unwrap();
        drop(killed);

        let error = what_is_left(backing.clone(), &path, false).unwrap_err();
        assert!(error.kind() == ErrorKind::BadState && error.to_string().contains("2 pages"), "{error}");
        let left = what_is_left(backing.clone(), &path, true).unwrap();
        let mut seen = [0; 4096];
        for at in [0, 8192] {
            left.read(at, &mut seen).unwrap();
            assert_eq!(seen, [1; 4096]);
        }
        for at in [4096, 1 << 20] {
            assert!(left.read(at, &mut seen).is_err(), "it is not read as something older");
        }
        left.write(4096, &[4; 4096]).unwrap();
        left.read(4096, &mut seen).unwrap();
        assert_eq!(seen, [4; 4096]);
        drop(left);
        // Who repeats it has no more of these pages than before.
        assert!(what_is_left(backing.clone(), &path, true).unwrap().read(1 << 20, &mut seen).is_err());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            what_is_left(backing, &path, true).unwrap_err().kind(),
            ErrorKind::BadState,
            "nobody knows any more"
        );
    }

    #[test]
    fn what_was_written_through_comes_back_without_a_directory() {
        let backing = Arc::new(FaultyDevice::new("swap.img", vec![0; (CONTENT + HEADER_BYTES) as usize]));
        format_backing(&*backing, CONTENT).unwrap();
        backing.write(HEADER_BYTES, &[5; 4096]).unwrap();
        let left = what_is_left(backing, Path::new("/no/such/directory"), false).unwrap();
        let mut seen = [0; 4096];
        left.read(0, &mut seen).unwrap();
        assert_eq!(seen, [5; 4096]);
    }
}
