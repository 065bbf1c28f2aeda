//! Lost devices: what was on them is given up, what others have of it is written to the file, and everybody is told what
//! is gone.
//!
//! A device answers every call with an error once it is lost, and so does a copy from it that another device makes, or a
//! kernel there that reads its memory. So whoever meets an error in the middle of an operation asks all devices of the file
//! which of them is lost, takes note, and begins the operation again: without that device, or to be told that it is gone.
//! An operation that has failed has noted what it has done, as after any other error, and has given up all that it held.
//!
//! A device is given up by who has locked all pages. So nobody's replica goes while he waits for a disk: he meets the loss
//! by himself, does the same, and finds it done if he comes second. An operation begins again only if a device was given up
//! since it had begun, and none is given up twice; so it comes to an end.
//!
//! A loss is known of the device, for all files of the cache: each takes note when it is next locked and nobody is at work
//! on it, or by who meets it.

use super::failures::describe;
use super::flush::flush_each;
use super::wait::with_ranges;
use super::{Directory, Locked};
use crate::copies::Copies;
use crate::error::{ErrorKind, Result};
use crate::memory::Memory;
use crate::monitor::Hold;
use crate::page::Device;
use std::ops::Range;

/// All that may be locked.
const ALL: Range<u64> = 0..u64::MAX;

/// Runs an operation, which holds nothing when it has failed; again if a device turns out to be lost, which is given up.
pub(crate) fn surviving<T>(
    directory: &mut Locked<'_>,
    mut operation: impl FnMut(&mut Locked<'_>) -> Result<T>,
) -> Result<T> {
    loop {
        let before = directory.copies.losses();
        let outcome = operation(directory);
        let is_suspect = outcome.as_ref().is_err_and(|error| may_be_a_loss(error.kind()));
        if !is_suspect {
            return outcome;
        }
        find(directory);
        if directory.copies.losses() == before {
            return outcome;
        }
    }
}

/// Gives up the devices that are known to be lost, unless somebody is at work on the file: who needs one of them then
/// meets the loss.
pub(crate) fn give_up(directory: &mut Locked<'_>) {
    if first_known(directory).is_some()
        && let Some(key) = directory.try_take(ALL, Hold::Change)
    {
        give_up_locked(directory);
        directory.give(&key);
    }
}

/// Asks all devices of the file, and gives up those that are lost, once nobody is at work on the file; whether there were
/// any.
pub(crate) fn find(directory: &mut Locked<'_>) -> bool {
    let is_any = !directory.copies.devices_where(Memory::is_lost).is_empty();
    if is_any {
        with_ranges(directory, [ALL], Hold::Change, give_up_locked);
    }
    is_any
}

/// By whoever has locked all pages.
fn give_up_locked(directory: &mut Locked<'_>) {
    // What survivors have may have to be written from one that is lost, too.
    while let Some(device) = first_known(directory) {
        give_up_one(directory, device);
    }
}

fn first_known(directory: &Directory) -> Option<Device> {
    directory.copies.devices_where(|memory| memory.loss().is_some()).first().copied()
}

/// Asking takes a call of the driver for each device, and the memory that there may be is used up often.
fn may_be_a_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Device | ErrorKind::Read | ErrorKind::Write)
}

fn give_up_one(directory: &mut Locked<'_>, device: Device) {
    let (gone, left) = directory.versions.note_lost(device);
    let what = describe(&directory.versions, &gone);
    if !gone.is_empty() {
        let sentence = format!(
            "{} what was released of {what} and lay there alone is gone: the file has what it had before; write it again",
            subject(&directory.copies, device)
        );
        directory.failures.note_lost(sentence);
    }
    let detail = if gone.is_empty() {
        "nothing that was released is gone: close its mappings there, and map it on another device".to_owned()
    } else {
        format!(
            "what was released of {what} and lay there alone is gone: close its mappings there, map it on another device, \
             and write that again"
        )
    };
    directory.copies.lose(device, detail);
    // What cannot be written stays pending, as after any flush.
    if flush_each(directory, &left).is_err() {
        directory.copies.devices_where(Memory::is_lost);
    }
}

fn subject(copies: &Copies, device: Device) -> String {
    copies.get(device).map_or_else(String::new, |replica| {
        format!("{} is lost ({}), and", replica.memory.device.id(), replica.memory.loss().unwrap_or_default())
    })
}
