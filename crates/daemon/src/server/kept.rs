//! Files that stay on a device until somebody says otherwise, and what is cached.
//!
//! Which ones is noted beside the file in the catalogue, so that the next server keeps them, too. Whoever asked for it pays
//! for it as for what a connection has acquired, also when that has ended.

use super::holding::Thing;
use super::users::Kind;
use super::{Server, say};
use crate::protocol::{FILES_MAX, FileStatus};
use bifolio_cache::{CachedFile, Client, Error, FileId, Mapping, Pin, Result};
use std::fs::read_link;
use std::ops::Bound;
use std::os::fd::AsRawFd;

/// A file that stays on a device. The pin goes first.
#[derive(Debug)]
pub(super) struct Kept {
    _memory: (Pin, Mapping),
    holder: Client,
    bytes: u64,
}

impl Server {
    /// Brings all of a file to a device, and keeps it there; at the expense of a user. It does not, where it is kept already.
    ///
    /// # Errors
    /// Those of an acquire, and `OutOfMemory` for more than the user may have.
    pub(super) fn keep(&self, id: FileId, device: usize, user: u32) -> Result<()> {
        let file = match self.files().get(&id) {
            Some(resident) if resident.kept.contains_key(&device) => return Ok(()),
            Some(resident) => resident.file.clone(),
            None => return Err(Error::bad_use("the file is not cached")),
        };
        let bytes = file.size();
        self.users.take(user, Kind::Used, bytes)?;
        let holder = self.holding.new_client();
        self.holding.note_alive(holder);
        let kept = pinned(&file, device, holder).map(|memory| Kept { _memory: memory, holder, bytes });
        let surplus = match kept {
            Ok(kept) => match self.files().get_mut(&id) {
                // Somebody else may have done the same meanwhile.
                Some(resident) => resident.kept.insert(device, kept),
                None => Some(kept),
            },
            Err(error) => {
                self.holding.note_gone(holder);
                self.users.give(user, Kind::Used, bytes);
                return Err(error);
            }
        };
        if let Some(kept) = surplus {
            self.end_kept(kept, user);
        }
        self.note_kept(id, user);
        Ok(())
    }

    /// Keeps it no longer.
    pub(super) fn unkeep(&self, id: FileId, device: usize) {
        let kept = self.files().get_mut(&id).and_then(|resident| resident.kept.remove(&device));
        let Some(kept) = kept else { return };
        let user = self.holding.get(Thing::File(id)).map_or(self.own_uid, |(_, notes)| notes[1] as u32);
        self.note_kept(id, user);
        self.end_kept(kept, user);
    }

    /// What a server before this one has kept.
    pub(super) fn keep_again(&self) {
        let noted = |thing: Thing| match thing {
            Thing::File(id) => Some((id, self.holding.get(thing)?.1)),
            _ => None,
        };
        for (id, [devices, user, _]) in self.holding.things().into_iter().filter_map(noted) {
            for device in (0..self.devices.len()).filter(|device| devices >> device & 1 == 1) {
                if let Err(error) = self.keep(id, device, user as u32) {
                    say(&format!("{error}; it is cached, but may leave the device"));
                }
            }
        }
    }

    fn end_kept(&self, kept: Kept, user: u32) {
        let (holder, bytes) = (kept.holder, kept.bytes);
        drop(kept);
        self.holding.note_gone(holder);
        self.users.give(user, Kind::Used, bytes);
    }

    fn note_kept(&self, id: FileId, user: u32) {
        let files = self.files();
        let Some(resident) = files.get(&id) else { return };
        let devices = resident.kept.keys().fold(0, |devices, device| devices | 1 << device);
        self.holding.note(Thing::File(id), [devices, user.into(), 0]);
    }

    /// What is cached, of the files behind one; whether that is all.
    pub(super) fn describe(&self, after: FileId) -> (bool, Vec<FileStatus>) {
        let (is_all, found) = {
            let files = self.files();
            let mut behind = files.range((Bound::Excluded(after), Bound::Unbounded));
            let found: Vec<_> = behind
                .by_ref()
                .take(FILES_MAX)
                .map(|(id, resident)| {
                    let kept: Vec<usize> = resident.kept.keys().copied().collect();
                    (*id, resident.file.clone(), resident.users as u64, kept)
                })
                .collect();
            (behind.next().is_none(), found)
        };
        let holders: Vec<_> = (0..self.devices.len()).flat_map(|device| self.holders(device)).collect();
        // Files are looked at without the others: one may wait for its disk.
        let status = |(id, file, users, kept): (FileId, CachedFile, u64, Vec<usize>)| {
            let bytes = file.cached_bytes().into_iter().enumerate();
            let devices = bytes.map(|(device, bytes)| (bytes, kept.contains(&device))).collect();
            let own = holders.iter().filter(|holder| holder.file == id);
            let holders = own.map(|holder| (self.process(holder.client), holder.device, holder.bytes)).collect();
            FileStatus { id, size: file.size(), users, devices, holders, path: self.path(id) }
        };
        (is_all, found.into_iter().map(status).collect())
    }

    pub(super) fn path(&self, id: FileId) -> String {
        let descriptor = self.holding.get(Thing::File(id)).and_then(|(descriptor, _)| descriptor);
        let path = descriptor.and_then(|fd| read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok());
        path.map_or_else(String::new, |path| path.display().to_string())
    }
}

/// All of a file on a device, where it stays.
fn pinned(file: &CachedFile, device: usize, holder: Client) -> Result<(Pin, Mapping)> {
    let mut mapping = file.for_client(holder).map_on(device, 0..u64::MAX, false)?;
    let all = 0..mapping.len();
    mapping.acquire(all.clone())?;
    let pin = mapping.pin(all.clone())?;
    mapping.release(all)?;
    Ok((pin, mapping))
}
