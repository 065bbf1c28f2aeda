//! Requests and answers of NBD, as its protocol has them (`include/uapi/linux/nbd.h`). Numbers are in the network's order.

pub(super) const REQUEST_BYTES: usize = 28;
pub(super) const ANSWER_BYTES: usize = 16;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const ANSWER_MAGIC: u32 = 0x6744_6698;

/// `NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_TRIM`.
pub(super) const FLAGS: u64 = 1 << 0 | 1 << 2 | 1 << 5;

/// What the kernel wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    /// There will be no more, and no answer is wanted.
    Disconnect,
    Flush,
    Trim,
    Other,
}

/// A request without the bytes of a write, which follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub operation: Operation,
    /// Its number, which the answer repeats.
    pub handle: [u8; 8],
    pub offset: u64,
    pub len: u32,
}

/// Reads a request; none for what is none.
pub(super) fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
    let short = |at: usize| bytes[at..at + 4].try_into().ok().map(u32::from_be_bytes);
    if short(0)? != REQUEST_MAGIC {
        return None;
    }
    // Flags are in the upper half; none of them was offered.
    let operation = match short(4)? & 0xffff {
        0 => Operation::Read,
        1 => Operation::Write,
        2 => Operation::Disconnect,
        3 => Operation::Flush,
        4 => Operation::Trim,
        _ => Operation::Other,
    };
    let offset = u64::from_be_bytes(bytes[16..24].try_into().ok()?);
    Some(Request { operation, handle: bytes[8..16].try_into().ok()?, offset, len: short(24)? })
}

/// An answer's head; `code` is 0 or a failure's number.
pub(super) fn answer(handle: [u8; 8], code: i32) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&ANSWER_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&code.to_be_bytes());
    bytes[8..].copy_from_slice(&handle);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_with_their_fields_and_answers_repeat_the_number() {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[7] = 4;
        bytes[8..16].copy_from_slice(b"a handle");
        bytes[22] = 0x10;
        bytes[26] = 0x20;
        let request = parse(&bytes).unwrap();
        assert_eq!(request, Request { operation: Operation::Trim, handle: *b"a handle", offset: 4096, len: 8192 });
        bytes[0] = 0;
        assert_eq!(parse(&bytes), None);
        let answer = answer(request.handle, libc::EIO);
        assert_eq!(answer[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5]);
        assert_eq!(&answer[8..], b"a handle");
    }
}
