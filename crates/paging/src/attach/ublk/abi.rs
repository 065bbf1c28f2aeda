//! Commands and structures of ublk as the kernel has them (`include/uapi/linux/ublk_cmd.h`, `Documentation/block/ublk.rst`).
//!
//! Only commands with encoded sizes are used (Linux 6.4), since a kernel may be built without the older ones.

/// `_IOC`: direction (1 the kernel reads, 2 it writes), size, type `u`, number.
const fn encoded(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn reads(number: u32) -> u32 {
    encoded(2, number, size_of::<ControlCommand>())
}

const fn changes(number: u32) -> u32 {
    encoded(3, number, size_of::<ControlCommand>())
}

/// `UBLK_U_CMD_*`.
pub(super) const GET_DEV_INFO: u32 = reads(0x02);
pub(super) const ADD_DEV: u32 = changes(0x04);
pub(super) const DEL_DEV: u32 = changes(0x05);
pub(super) const START_DEV: u32 = changes(0x06);
pub(super) const SET_PARAMS: u32 = changes(0x08);
pub(super) const START_USER_RECOVERY: u32 = changes(0x10);
pub(super) const END_USER_RECOVERY: u32 = changes(0x11);
pub(super) const GET_FEATURES: u32 = reads(0x13);
pub(super) const DEL_DEV_ASYNC: u32 = reads(0x14);
/// `UBLK_U_IO_*`.
pub(super) const FETCH: u32 = encoded(3, 0x20, size_of::<IoCommand>());
pub(super) const COMMIT_AND_FETCH: u32 = encoded(3, 0x21, size_of::<IoCommand>());

/// `UBLK_F_*`: a device outlives its server, and what that had not answered is given to the next one.
pub(super) const USER_RECOVERY: u64 = 1 << 3;
pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(super) const CMD_IOCTL_ENCODE: u64 = 1 << 6;

/// `UBLK_S_DEV_DEAD`: not started, or taken apart.
pub(super) const DEAD: u16 = 0;
/// `UBLK_S_DEV_QUIESCED`: its server is gone, and requests wait for another.
pub(super) const QUIESCED: u16 = 2;

/// `UBLK_IO_OP_*`.
pub(super) const READ: u8 = 0;
pub(super) const WRITE: u8 = 1;
pub(super) const FLUSH: u8 = 2;
pub(super) const DISCARD: u8 = 3;
pub(super) const WRITE_ZEROES: u8 = 5;

/// `UBLK_ATTR_VOLATILE_CACHE`: flushes are wanted.
pub(super) const VOLATILE_CACHE: u32 = 1 << 2;
/// `UBLK_PARAM_TYPE_BASIC` and `UBLK_PARAM_TYPE_DISCARD`.
pub(super) const BASIC_AND_DISCARD: u32 = 1 << 0 | 1 << 1;
/// No queue in particular.
pub(super) const NO_QUEUE: u16 = u16::MAX;
/// Bytes of a sector, whatever the disk's sectors are.
pub(super) const SECTOR_BYTES: u64 = 512;

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ControlCommand {
    pub device: u32,
    pub queue: u16,
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    pub path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub request_bytes_max: u32,
    pub device: u32,
    pub server: i32,
    pub pad1: u32,
    pub flags: u64,
    /// The server's own.
    pub server_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved: [u64; 2],
}

/// `struct ublk_params`, as far as its members of the types that are set.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parameters {
    pub len: u32,
    pub types: u32,
    pub basic: BasicParameters,
    pub discard: DiscardParameters,
}

/// `struct ublk_param_basic`; sizes as powers of two.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BasicParameters {
    pub attributes: u32,
    pub logical_block: u8,
    pub physical_block: u8,
    pub io_optimal: u8,
    pub io_min: u8,
    pub sectors_max: u32,
    pub chunk_sectors: u32,
    pub sectors: u64,
    pub boundary_mask: u64,
}

/// `struct ublk_param_discard`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiscardParameters {
    pub alignment: u32,
    pub granularity: u32,
    pub sectors_max: u32,
    pub zeroes_sectors_max: u32,
    pub segments_max: u16,
    pub reserved: u16,
}

/// `struct ublksrv_io_cmd`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IoCommand {
    pub queue: u16,
    pub tag: u16,
    pub result: i32,
    pub addr: u64,
}

/// `struct ublksrv_io_desc`: a request.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// What to do in the lowest byte, flags above.
    pub operation_flags: u32,
    pub sectors: u32,
    pub first_sector: u64,
    pub addr: u64,
}

impl Descriptor {
    pub(super) fn operation(&self) -> u8 {
        self.operation_flags as u8
    }

    /// Where it begins; of no meaning for a flush, which the kernel gives the last sector that a number can name.
    pub(super) fn offset(&self) -> u64 {
        self.first_sector.saturating_mul(SECTOR_BYTES)
    }

    pub(super) fn len(&self) -> u64 {
        u64::from(self.sectors) * SECTOR_BYTES
    }
}

/// A command in the room that a submission has for it.
pub(super) fn packed<T: Copy>(command: &T) -> [u8; 80] {
    const { assert!(size_of::<T>() <= 80) };
    let mut bytes = [0; 80];
    // SAFETY: the structures of this module have no gaps, and fit.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *command).cast(), bytes.as_mut_ptr(), size_of::<T>()) };
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn structures_have_the_kernels_sizes_and_offsets() {
        assert_eq!((size_of::<ControlCommand>(), size_of::<DeviceInfo>(), size_of::<IoCommand>()), (32, 64, 16));
        assert_eq!((size_of::<Descriptor>(), size_of::<Parameters>()), (24, 64));
        assert_eq!((size_of::<BasicParameters>(), size_of::<DiscardParameters>()), (32, 20));
        assert_eq!((offset_of!(ControlCommand, addr), offset_of!(ControlCommand, data)), (8, 16));
        assert_eq!((offset_of!(DeviceInfo, flags), offset_of!(DeviceInfo, server_flags)), (24, 32));
        assert_eq!((offset_of!(Parameters, basic), offset_of!(Parameters, discard)), (8, 40));
        assert_eq!((offset_of!(Descriptor, first_sector), offset_of!(Descriptor, addr)), (8, 16));
    }

    #[test]
    fn commands_have_the_kernels_numbers() {
        // As a C compiler computes _IOR('u', 0x02, struct ublksrv_ctrl_cmd), and so on.
        assert_eq!([GET_DEV_INFO, ADD_DEV, DEL_DEV, START_DEV], [0x8020_7502, 0xc020_7504, 0xc020_7505, 0xc020_7506]);
        assert_eq!([SET_PARAMS, START_USER_RECOVERY, END_USER_RECOVERY], [0xc020_7508, 0xc020_7510, 0xc020_7511]);
        assert_eq!([GET_FEATURES, DEL_DEV_ASYNC], [0x8020_7513, 0x8020_7514]);
        assert_eq!([FETCH, COMMIT_AND_FETCH], [0xc010_7520, 0xc010_7521]);
    }

    #[test]
    fn a_command_is_packed_as_it_lies_in_memory() {
        let bytes = packed(&IoCommand { queue: 0x0102, tag: 0x0304, result: -5, addr: 0x1122_3344_5566_7788 });
        assert_eq!(bytes[..4], [2, 1, 4, 3]);
        assert_eq!(bytes[4..8], (-5_i32).to_ne_bytes());
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert!(bytes[16..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_request_has_its_operation_below_its_flags() {
        let request = Descriptor { operation_flags: 1 << 16 | 3, sectors: 16, first_sector: 8, addr: 0 };
        assert_eq!((request.operation(), request.offset(), request.len()), (DISCARD, 4096, 8192));
    }

    /// Symptom: `mkswap` hung at its end, as the thread that had taken its flush had panicked. Cause: a flush is at sector
    /// 2^64 - 1, which has no offset.
    #[test]
    fn a_flush_has_no_place() {
        let request = Descriptor { operation_flags: FLUSH.into(), sectors: 0, first_sector: u64::MAX, addr: 0 };
        assert_eq!((request.operation(), request.offset(), request.len()), (FLUSH, u64::MAX, 0));
    }
}
