//! Switching off a swap space whose keeper and worker were killed, where the kernel keeps the disk and its requests wait.
//!
//! In write-through mode the backing has everything, so this process serves the disk from there while everything comes back.
//! In write-back mode the newest writes went with the keeper, and it is refused: something older would be read.

use super::record::Instance;
use crate::attach::{DiskServer, Seat};
use crate::backing::Backing;
use crate::cache::{OpenDevice, Options, PagingCache};
use bifolio_block::{Error, ErrorKind, Result};
use bifolio_keeper::process;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Serves the disk until it is taken apart, in a thread of its own; returns when requests are answered.
///
/// # Errors
/// `BadState` where the backing does not have everything, and those of serving.
pub(super) fn serve_from_backing(instance: &Instance, server: &'static dyn DiskServer) -> Result<()> {
    let record = &instance.record;
    let Some(disk) = record.disk.clone() else { return Ok(()) };
    // This process must not wait for what it is about to serve. Where that is not permitted, it was forced before.
    let _ = process::become_flusher();
    let _ = process::lock_memory();
    let open_device: OpenDevice = Box::new(|| {
        let detail = "the processes that used the device were killed";
        Err(bifolio_device::Error::new(bifolio_device::ErrorKind::Unsupported, detail))
    });
    let cache = PagingCache::open(Options::new(Arc::new(Backing::open(&record.backing)?), open_device, 0))?;
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
