//! Answers to the kernel.

use crate::server::Entry;
use fuser::{Errno, Generation, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr};
use std::io;
use std::time::Duration;

/// How long the kernel may answer from what it knows. Others may change the source.
pub(crate) const TTL: Duration = Duration::from_secs(1);

pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

pub(crate) fn answer(done: io::Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn answer_entry(found: io::Result<Entry>, reply: ReplyEntry) {
    match found {
        Ok(entry) => reply.entry(&TTL, &entry.attr, Generation(entry.generation)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn answer_written(written: io::Result<usize>, reply: ReplyWrite) {
    match written {
        Ok(written) => reply.written(written as u32),
        Err(error) => reply.error(errno(&error)),
    }
}

/// An attribute, or a list of them: with no room its length.
pub(crate) fn answer_attribute(value: io::Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}
