//! Switching swap off, and undoing what a crash or a failure has left.

use super::record::{Held, Instance, Place};
use super::rescue;
use super::system::{self, Crowded, Swap, swap_on};
use crate::attach;
use crate::directory::Head;
use bifolio_block::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a keeper may take to write back and end.
const END_MAX: Duration = Duration::from_secs(30);
/// What the system keeps for itself while everything comes back.
const ROOM_LEFT: u64 = 64 << 20;

/// What is to be switched off.
#[derive(Debug, Clone, Default)]
pub struct OffOptions {
    /// The one on this backing; the only one, if not named.
    pub backing: Option<PathBuf>,
    /// The backing stays, though it was made for it.
    pub keeps_backing: bool,
    /// It is tried even if memory seems not to suffice, and pages that went with both processes are given up.
    pub is_forced: bool,
}

/// Switches swap off, and undoes everything; `tell` hears how many bytes are left on it now and then.
///
/// # Errors
/// `BadState` if memory does not suffice for what is on it, which stays consistent and on; and the system's.
pub fn off(place: &Place, options: &OffOptions, tell: &(dyn Fn(u64) + Sync)) -> Result<()> {
    let held = place.hold()?;
    let mut instance = place.find(options.backing.as_deref())?;
    let on = instance.record.disk.as_deref().and_then(swap_on);
    if let (Some(on), false) = (&on, options.is_forced) {
        check_room(on, &system::swaps(), system::memory().1)?;
        check_groups(on, system::crowded_group())?;
    }
    instance.record.made_backing &= !options.keeps_backing;
    instance.save()?;
    take_down(&mut instance, &held, options.is_forced, tell)
}

/// Refuses what is sure to end without memory.
fn check_room(on: &Swap, all: &[Swap], available: u64) -> Result<()> {
    let others: u64 = all.iter().filter(|swap| swap.path != on.path).map(|swap| swap.size - swap.used).sum();
    let room = available.saturating_sub(ROOM_LEFT) + others;
    if on.used <= room {
        return Ok(());
    }
    let detail = format!(
        "{} MiB are on it and there is room for {} MiB elsewhere, so it stays on; end some programs first, or use --force",
        on.used >> 20,
        room >> 20
    );
    Err(Error::new(ErrorKind::BadState, on.path.display(), detail))
}

/// Refuses what would end programs of a cgroup.
fn check_groups(on: &Swap, crowded: Option<Crowded>) -> Result<()> {
    let Some(Crowded { group, swapped, room }) = crowded.filter(|_| on.used > 0) else { return Ok(()) };
    let detail = format!(
        "the cgroup {} has {} MiB swapped and room for {} MiB, so bringing it back would end its programs, and it stays on; \
         raise its limit or end them, or use --force",
        group.display(),
        swapped >> 20,
        room >> 20
    );
    Err(Error::new(ErrorKind::BadState, on.path.display(), detail))
}

/// Undoes everything that the record tells of, whatever of it is there.
pub(super) fn take_down(
    instance: &mut Instance,
    _held: &Held,
    is_forced: bool,
    tell: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let record = instance.record.clone();
    // Without its keeper nobody takes over: what waits for it, a worker that hangs included, is to fail.
    if !instance.is_kept() {
        let _ = bifolio_keeper::fuse::abort(&instance.served());
    }
    if let Some(disk) = &record.disk {
        let way = attach::choose::named(&record.attachment)?;
        if swap_on(disk).is_some() {
            if let Some(server) = way.server().filter(|_| !instance.is_kept())
                && server.is_orphan(disk, &instance.served())
            {
                rescue::serve_from_backing(instance, server, is_forced)?;
            }
            switch_off(disk, tell)?;
        }
        way.detach(disk, &instance.made_of())?;
    }
    // It is no error that it is not mounted any more.
    let _ = bifolio_keeper::fuse::unmount(&instance.served());
    if let Some(keeper) = record.keeper {
        let begin = Instant::now();
        while keeper.is_alive() {
            if begin.elapsed() > END_MAX {
                if !is_forced {
                    let detail = format!(
                        "swap is off, and the process {} does not end, as somebody has {} open; end that, and repeat this",
                        keeper.id,
                        instance.served().display()
                    );
                    return Err(Error::new(ErrorKind::BadState, record.backing.display(), detail));
                }
                // SAFETY: takes numbers; the process is the keeper, as its start says.
                unsafe { libc::kill(keeper.id as i32, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let gone = |path: &Path, removed: std::io::Result<()>| match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::writing(path.display(), "removing it", error))
        }
        _ => Ok(()),
    };
    if record.made_backing {
        gone(&record.backing, std::fs::remove_file(&record.backing))?;
    }
    gone(&instance.folder, std::fs::remove_dir_all(&instance.folder))
}

/// Brings everything back, while somebody may be told how far that is.
fn switch_off(disk: &Path, tell: &(dyn Fn(u64) + Sync)) -> Result<()> {
    // A signal interrupts the call if it comes to the thread that makes it, and the kernel prefers a process's first one.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let telling = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                if let Some(swap) = swap_on(disk) {
                    tell(swap.used);
                }
                std::thread::park_timeout(Duration::from_millis(200));
            }
        });
        let done = system::swapoff(disk);
        is_over.store(true, Ordering::Release);
        telling.thread().unpark();
        done
    })
}

impl Instance {
    /// Has the cache hold no device memory, before the system sleeps; returns when that is so.
    ///
    /// # Errors
    /// `BadState` if it is not after ten seconds: dirty pages could not be written back.
    pub fn suspend(&self) -> Result<()> {
        let directory = self.directory()?;
        directory.head(Head::Suspended).store(1, Ordering::Release);
        let begin = Instant::now();
        while directory.head(Head::PresentSlots).load(Ordering::Acquire) > 0 {
            if begin.elapsed() > Duration::from_secs(10) {
                let detail =
                    "device memory is still in use after 10 s; what was not written back may not survive the sleep";
                return Err(Error::new(ErrorKind::BadState, self.record.backing.display(), detail));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Has it use device memory again.
    ///
    /// # Errors
    /// Those of finding the directory.
    pub fn resume(&self) -> Result<()> {
        self.directory()?.head(Head::Suspended).store(0, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_elsewhere_stays_on() {
        let swap = |path: &str, size: u64, used: u64| Swap { path: path.into(), size, used, priority: 0 };
        let own = swap("/dev/loop0", 100 << 20, 90 << 20);
        let other = swap("/swap", 60 << 20, 10 << 20);
        let all = [own.clone(), other];
        check_room(&own, &all, ROOM_LEFT + (40 << 20)).unwrap();
        let error = check_room(&own, &all, ROOM_LEFT + (39 << 20)).unwrap_err();
        assert!(error.kind() == ErrorKind::BadState && error.to_string().contains("room for 89 MiB"), "{error}");
        assert!(check_room(&own, &all[..1], 0).is_err());
    }
}
