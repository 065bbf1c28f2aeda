//! Requests and answers of FUSE as the kernel has them (`include/uapi/linux/fuse.h`, version 7.31 and later), as far as a
//! single file needs them. Fields are in the machine's order.

/// The longest read or write.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The head of a request, and what precedes the bytes of a write.
pub(super) const HEAD_BYTES: usize = 40;
pub(super) const WRITE_HEAD_BYTES: usize = HEAD_BYTES + 40;
/// The head of an answer.
pub(super) const ANSWER_BYTES: usize = 16;
/// An answer to a question about attributes, without the head.
pub(super) const ATTRIBUTES_BYTES: usize = 104;

/// An answer to a question about sizes, without the head.
pub(super) const SIZES_BYTES: usize = 80;

/// The bit of a request's number by which the kernel says that it was sent before.
const RESENT: u64 = 1 << 63;

/// What the kernel wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The greeting: version and flags of the kernel.
    Init {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Bytes of readahead that it would like at most.
        readahead: u32,
        /// What it can do.
        flags: u64,
    },
    /// Size, mode and times.
    GetAttributes,
    /// Open the file.
    Open,
    /// Read bytes.
    Read {
        /// Where.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// Write the bytes that follow, see [`super::RequestBuffer::data`].
    Write {
        /// Where.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// Make everything safe that was written.
    Sync,
    /// Make a hole (`FALLOC_FL_PUNCH_HOLE`), or anything else that `fallocate` can do.
    Allocate {
        /// Where.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The flags of `fallocate`.
        mode: u32,
    },
    /// Sizes of the file system, by which a loop device decides whether it can make holes.
    GetSizes,
    /// A close, or the last one.
    Close,
    /// Something that gets no answer.
    Unanswered,
    /// Anything else, by its number.
    Other(u32),
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its number, which the answer repeats.
    pub unique: u64,
    /// What it wants.
    pub operation: Operation,
}

impl Request {
    /// Whether it was sent before, to somebody who did not answer.
    pub fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }
}

/// Reads a request; none for what is too short, which no kernel sends.
pub(super) fn parse(bytes: &[u8]) -> Option<Request> {
    let short = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (len, code, unique) = (short(0)?, short(4)?, long(8)?);
    if len as usize != bytes.len() || bytes.len() < HEAD_BYTES {
        return None;
    }
    let body = HEAD_BYTES;
    let operation = match code {
        3 => Operation::GetAttributes,
        14 => Operation::Open,
        15 => Operation::Read { offset: long(body + 8)?, len: short(body + 16)? },
        16 => {
            let (offset, len) = (long(body + 8)?, short(body + 16)?);
            if bytes.len() != WRITE_HEAD_BYTES + len as usize {
                return None;
            }
            Operation::Write { offset, len }
        }
        17 => Operation::GetSizes,
        20 => Operation::Sync,
        18 | 25 => Operation::Close,
        26 => {
            let flags = u64::from(short(body + 12)?);
            // Further flags follow where the first ones say so.
            let more = if flags & flag::EXTENDED != 0 { u64::from(short(body + 16)?) << 32 } else { 0 };
            let (major, minor, readahead) = (short(body)?, short(body + 4)?, short(body + 8)?);
            Operation::Init { major, minor, readahead, flags: flags | more }
        }
        43 => Operation::Allocate { offset: long(body + 8)?, len: long(body + 16)?, mode: short(body + 24)? },
        // Forget, interrupt, batch of forgets.
        2 | 36 | 42 => Operation::Unanswered,
        other => Operation::Other(other),
    };
    Some(Request { unique, operation })
}

/// Flags of the greeting.
pub(super) mod flag {
    /// Reads at the same time.
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    /// Writes of more than a page.
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// Direct requests of one caller at the same time, which a loop device makes.
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    /// Requests of up to 1 MiB.
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// More than 32 flags.
    pub(crate) const EXTENDED: u64 = 1 << 30;
    /// Unanswered requests are sent again on request.
    pub(crate) const RESEND: u64 = 1 << 39;
    /// What is wanted of the kernel.
    pub(crate) const WANTED: u64 = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | EXTENDED | RESEND;
}

/// The answer to the greeting.
pub(super) fn greeting(minor: u32, readahead: u32, flags: u64) -> [u8; 64] {
    let flags = flags & flag::WANTED;
    let mut answer = [0; 64];
    let mut put = |at: usize, bytes: &[u8]| answer[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &7_u32.to_ne_bytes());
    put(4, &minor.min(41).to_ne_bytes());
    put(8, &readahead.to_ne_bytes());
    put(12, &(flags as u32).to_ne_bytes());
    // Requests in the background at a time, and from when on it counts as busy.
    put(16, &128_u16.to_ne_bytes());
    put(18, &96_u16.to_ne_bytes());
    put(20, &(REQUEST_BYTES_MAX as u32).to_ne_bytes());
    put(24, &1_u32.to_ne_bytes());
    put(28, &((REQUEST_BYTES_MAX / 4096) as u16).to_ne_bytes());
    put(32, &((flags >> 32) as u32).to_ne_bytes());
    answer
}

/// The attributes of the file, for an hour.
pub(super) fn attributes(size: u64) -> [u8; ATTRIBUTES_BYTES] {
    let mut answer = [0; ATTRIBUTES_BYTES];
    let mut put = |at: usize, bytes: &[u8]| answer[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &3600_u64.to_ne_bytes());
    let file = 16;
    put(file, &1_u64.to_ne_bytes());
    put(file + 8, &size.to_ne_bytes());
    put(file + 16, &(size / 512).to_ne_bytes());
    put(file + 60, &(libc::S_IFREG | 0o600).to_ne_bytes());
    put(file + 64, &1_u32.to_ne_bytes());
    put(file + 80, &4096_u32.to_ne_bytes());
    answer
}

/// The sizes of a file system that the file fills (`struct fuse_kstatfs`).
pub(super) fn sizes(size: u64) -> [u8; SIZES_BYTES] {
    let mut answer = [0; SIZES_BYTES];
    let mut put = |at: usize, bytes: &[u8]| answer[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(size / 4096).to_ne_bytes());
    put(24, &1_u64.to_ne_bytes());
    // Bytes of a block, of a name at most, and of a fragment.
    put(40, &4096_u32.to_ne_bytes());
    put(44, &255_u32.to_ne_bytes());
    put(48, &4096_u32.to_ne_bytes());
    answer
}

/// The answer to an open: past the page cache, writes at the same time, and no word when it is closed. A keeper that has
/// the file open by accident would otherwise wait, when it starts a worker and the copies of its descriptors are closed, for
/// the answer of the worker that it is starting.
pub(super) fn opened() -> [u8; 16] {
    let mut answer = [0; 16];
    let flags: u32 = 1 << 0 | 1 << 5 | 1 << 6;
    answer[8..12].copy_from_slice(&flags.to_ne_bytes());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&((HEAD_BYTES + body.len()) as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&code.to_ne_bytes());
        bytes[8..16].copy_from_slice(&(0x77 | RESENT).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn requests_are_read_with_their_fields() {
        let mut body = vec![0; 40];
        body[8..16].copy_from_slice(&8192_u64.to_ne_bytes());
        body[16..20].copy_from_slice(&4096_u32.to_ne_bytes());
        let read = parse(&request(15, &body)).unwrap();
        assert_eq!(read.operation, Operation::Read { offset: 8192, len: 4096 });
        assert!(read.is_resent());
        assert_eq!(parse(&request(16, &body)), None, "the bytes are missing");
        body.resize(40 + 4096, 1);
        assert_eq!(parse(&request(16, &body)).unwrap().operation, Operation::Write { offset: 8192, len: 4096 });
        assert_eq!(parse(&request(9999, &[])).unwrap().operation, Operation::Other(9999));
    }

    #[test]
    fn what_no_kernel_sends_is_no_request() {
        let whole = request(15, &[0; 40]);
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        let draw = &mut fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..10_000 {
            let mut bytes = vec![0; draw.usize(..120)];
            draw.fill(&mut bytes);
            if bytes.len() >= 8 {
                let len = bytes.len() as u32;
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
                bytes[4..8].copy_from_slice(&draw.u32(..50).to_ne_bytes());
            }
            let _ = parse(&bytes);
        }
    }
}
