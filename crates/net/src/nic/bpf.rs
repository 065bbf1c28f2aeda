//! The programs for devices, and how they get into the kernel: bpf(2). One hands packets to `AF_XDP` sockets, one
//! throws them away.

use super::sys;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

// Commands of bpf(2).
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const LINK_DETACH: i32 = 34;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const PROG_TYPE_SCHED_CLS: u32 = 3;
const ATTACH_TYPE_XDP: u32 = 37;
const ATTACH_TYPE_TCX_INGRESS: u32 = 46;

/// In which layer of the kernel packets are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// By the driver, before the kernel makes a packet of its own of it.
    Driver,
    /// By the network stack, for drivers without XDP; slower.
    Stack,
}

impl Layer {
    /// `XDP_FLAGS_DRV_MODE` or `XDP_FLAGS_SKB_MODE`.
    fn flags(self) -> u32 {
        match self {
            Self::Driver => 1 << 2,
            Self::Stack => 1 << 1,
        }
    }
}

/// Calls bpf(2) with the first bytes of its argument; the kernel takes the rest as zero.
///
/// # Safety
/// `attributes` is what `command` takes, and all addresses in it are of memory that is valid for it.
unsafe fn bpf<T>(command: i32, attributes: &T) -> io::Result<i32> {
    let len = size_of::<T>();
    // SAFETY: `attributes` is `len` bytes; the rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), len) };
    sys::check(result as i32)
}

/// A table from receive queues to sockets.
pub(super) fn new_table(entries: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        key_len: u32,
        value_len: u32,
        entries: u32,
    }
    let attributes = Attributes { kind: MAP_TYPE_XSKMAP, key_len: 4, value_len: 4, entries };
    // SAFETY: the command takes these numbers.
    unsafe { bpf(MAP_CREATE, &attributes) }.map(sys::owned)
}

/// Enters the socket of a queue into a table.
pub(super) fn enter(table: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        table: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let value = socket.as_raw_fd() as u32;
    let attributes = Attributes {
        table: table.as_raw_fd() as u32,
        padding: 0,
        key: &raw const queue as u64,
        value: &raw const value as u64,
        flags: 0,
    };
    // SAFETY: the addresses are of a key and a value of the table's sizes, which live during the call.
    unsafe { bpf(MAP_UPDATE_ELEM, &attributes) }.map(drop)
}

// Codes of instructions.
const LOAD_WORD: u8 = 0x61;
const LOAD_64: u8 = 0x18;
const MOVE: u8 = 0xb7;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The program: a packet goes to the socket of its receive queue, or on to the kernel where there is none.
fn instructions(table: BorrowedFd<'_>) -> [u64; 6] {
    /// Offset of `rx_queue_index` in `struct xdp_md`, which register 1 points to.
    const QUEUE: i16 = 16;
    /// A source register of 1 says that the number is a table's descriptor.
    const TABLE: u8 = 1;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    [
        instruction(LOAD_WORD, 2, 1, QUEUE, 0),
        instruction(LOAD_64, 1, TABLE, 0, table.as_raw_fd()),
        instruction(0, 0, 0, 0, 0), // Upper half of the 64-bit number.
        instruction(MOVE, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

/// An instruction as the kernel reads it from memory.
fn instruction(code: u8, destination: u8, source: u8, offset: i16, number: i32) -> u64 {
    let [o0, o1] = offset.to_ne_bytes();
    let [n0, n1, n2, n3] = number.to_ne_bytes();
    let registers = if cfg!(target_endian = "little") { destination | source << 4 } else { destination << 4 | source };
    u64::from_ne_bytes([code, registers, o0, o1, n0, n1, n2, n3])
}

/// Loads the program that hands packets to the sockets of a table.
pub(super) fn load_redirect(table: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    load(PROG_TYPE_XDP, ATTACH_TYPE_XDP, *b"bifolio_xsk\0\0\0\0\0", &instructions(table))
}

/// Loads the program that throws packets away.
pub(super) fn load_block() -> io::Result<OwnedFd> {
    const DROP: i32 = 2;
    let program = [instruction(MOVE, 0, 0, 0, DROP), instruction(EXIT, 0, 0, 0, 0)];
    load(PROG_TYPE_SCHED_CLS, 0, *b"bifolio_block\0\0\0", &program)
}

fn load(kind: u32, attach_type: u32, name: [u8; 16], program: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        instruction_count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_len: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        device: u32,
        attach_type: u32,
    }
    let attributes = Attributes {
        kind,
        instruction_count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"MIT OR Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_len: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name,
        device: 0,
        attach_type,
    };
    // SAFETY: the addresses are of the instructions, with their count, and of a string that ends with zero.
    unsafe { bpf(PROG_LOAD, &attributes) }.map(sys::owned)
}

/// A program at a device. It stays until this is dropped, or the process ends, by whatever end.
#[derive(Debug)]
pub(super) struct Attachment(OwnedFd);

impl Drop for Attachment {
    fn drop(&mut self) {
        #[repr(C)]
        struct Attributes {
            link: u32,
        }
        // Closing alone detaches a little later, and whoever attaches next would find the device busy.
        let attributes = Attributes { link: self.0.as_raw_fd() as u32 };
        // SAFETY: the command takes this number.
        let _ = unsafe { bpf(LINK_DETACH, &attributes) };
    }
}

/// Attaches the program of sockets to a device.
pub(super) fn attach_redirect(program: BorrowedFd<'_>, device: u32, layer: Layer) -> io::Result<Attachment> {
    attach(program, device, ATTACH_TYPE_XDP, layer.flags())
}

/// Attaches the program that throws packets away, after packet sockets have seen them and before the kernel handles
/// them.
pub(super) fn attach_block(program: BorrowedFd<'_>, device: u32) -> io::Result<Attachment> {
    attach(program, device, ATTACH_TYPE_TCX_INGRESS, 0)
}

fn attach(program: BorrowedFd<'_>, device: u32, attach_type: u32, flags: u32) -> io::Result<Attachment> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        device: u32,
        attach_type: u32,
        flags: u32,
    }
    let attributes = Attributes { program: program.as_raw_fd() as u32, device, attach_type, flags };
    // SAFETY: the command takes these numbers.
    unsafe { bpf(LINK_CREATE, &attributes) }.map(|fd| Attachment(sys::owned(fd)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_laid_out_as_the_kernel_documents_them() {
        // r2 = *(u32 *)(r1 + 16)
        assert_eq!(instruction(0x61, 2, 1, 16, 0).to_le_bytes(), [0x61, 0x12, 16, 0, 0, 0, 0, 0]);
        // call 51
        assert_eq!(instruction(0x85, 0, 0, 0, 51).to_le_bytes(), [0x85, 0, 0, 0, 51, 0, 0, 0]);
    }
}
