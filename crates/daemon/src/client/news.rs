//! What the daemon says unasked: that memory is needed, that a version is old, and that all is over.

use crate::protocol::ToClient;
use bifolio_cache::Window;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What a program is asked to release, as other programs need memory: whoever has kept it at the end of the time is
/// disconnected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recall {
    /// The number of the file, which [`super::SharedFile::recalls`] knows.
    pub(super) file: u64,
    /// The number of the device.
    pub device: usize,
    /// The bytes of the file.
    pub range: Range<u64>,
    /// The end of the time.
    pub until: Instant,
}

/// What was heard, and who is to do something about it.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Where files are seen, by their numbers and devices.
    windows: Mutex<Vec<(u64, usize, Window)>>,
    recalls: Mutex<Vec<Recall>>,
    gone: OnceLock<String>,
}

impl News {
    pub(super) fn add_window(&self, file: u64, device: usize, window: Window) {
        lock(&self.windows).push((file, device, window));
    }

    /// What a file's holder is asked to release.
    pub(super) fn recalls(&self, file: u64) -> Vec<Recall> {
        lock(&self.recalls).iter().filter(|recall| recall.file == file).cloned().collect()
    }

    /// Why the daemon has ended the connection, if it has said so.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.get().map(String::as_str)
    }

    /// Does what is to be done at once; whether it was something that is said unasked.
    pub(super) fn hear(&self, message: &ToClient) -> bool {
        match message {
            ToClient::Again => {}
            ToClient::Recall { file, device, range, within_ms } => {
                let part = if range.is_empty() { 0..u64::MAX } else { range.clone() };
                self.windows_of(*file, *device, |window| window.hide(&part));
                if !range.is_empty() {
                    self.note_recall(*file, *device, range, *within_ms);
                }
            }
            ToClient::NewVersion { file, device, range } => {
                self.windows_of(*file, *device, |window| window.note_old(range));
            }
            ToClient::Gone { why } => _ = self.gone.set(why.clone()),
            _ => return false,
        }
        true
    }

    fn note_recall(&self, file: u64, device: usize, range: &Range<u64>, within_ms: u64) {
        let mut recalls = lock(&self.recalls);
        recalls.retain(|recall| (recall.file, recall.device) != (file, device));
        let until = Instant::now().checked_add(Duration::from_millis(within_ms));
        if let Some(until) = until.filter(|_| within_ms > 0) {
            recalls.push(Recall { file, device, range: range.clone(), until });
        }
    }

    /// Those of mappings that are no more are forgotten.
    fn windows_of(&self, file: u64, device: usize, work: impl Fn(&Window) -> bool) {
        lock(&self.windows).retain(|(of, on, window)| (*of, *on) != (file, device) || work(window));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
