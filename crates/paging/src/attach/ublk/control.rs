//! `/dev/ublk-control`: adding, starting, recovering and deleting devices. Each command waits for its end.

use super::abi::{
    ADD_DEV, BASIC_AND_DISCARD, BasicParameters, CMD_IOCTL_ENCODE, ControlCommand, DEL_DEV, DEL_DEV_ASYNC, DeviceInfo,
    DiscardParameters, END_USER_RECOVERY, GET_DEV_INFO, GET_FEATURES, NO_QUEUE, Parameters, SECTOR_BYTES, SET_PARAMS,
    START_DEV, START_USER_RECOVERY, USER_RECOVERY, USER_RECOVERY_REISSUE, VOLATILE_CACHE, packed,
};
use crate::pages::PAGE_BYTES;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

pub(super) const PATH: &str = "/dev/ublk-control";
/// What a device has to survive its server.
pub(super) const NEEDED: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE | CMD_IOCTL_ENCODE;

/// The way to give commands.
pub(super) struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
}

/// A new device.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewDevice {
    pub number: u32,
    pub bytes: u64,
    pub depth: u16,
    pub request_bytes_max: u32,
    /// Tells it from other owners' devices.
    pub mark: u64,
}

impl Control {
    pub(super) fn open() -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(PATH)?;
        Ok(Self { ring: IoUring::builder().build(4)?, file })
    }

    /// What the kernel's ublk can do (Linux 6.5).
    pub(super) fn features(&mut self) -> io::Result<u64> {
        let mut features = 0_u64;
        self.exchange(GET_FEATURES, u32::MAX, &mut features)?;
        Ok(features)
    }

    pub(super) fn info(&mut self, number: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        self.exchange(GET_DEV_INFO, number, &mut info)?;
        Ok(info)
    }

    /// Adds a device, which is started when it is served.
    pub(super) fn add(&mut self, new: &NewDevice) -> io::Result<()> {
        let mut info = DeviceInfo {
            queues: 1,
            depth: new.depth,
            request_bytes_max: new.request_bytes_max,
            device: new.number,
            flags: NEEDED,
            server_flags: new.mark,
            ..DeviceInfo::default()
        };
        self.exchange(ADD_DEV, new.number, &mut info)?;
        if info.flags & NEEDED != NEEDED || info.depth != new.depth || info.request_bytes_max != new.request_bytes_max {
            let _ = self.delete(new.number);
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel made another device than was asked for",
            ));
        }
        let set = self.exchange(SET_PARAMS, new.number, &mut parameters(new));
        set.inspect_err(|_| drop(self.delete(new.number)))
    }

    /// Makes the disk; returns when the server has fetched all requests and the disk is there.
    pub(super) fn start(&mut self, number: u32) -> io::Result<()> {
        self.plain(START_DEV, number, std::process::id().into())
    }

    pub(super) fn start_recovery(&mut self, number: u32) -> io::Result<()> {
        self.plain(START_USER_RECOVERY, number, 0)
    }

    /// Gives requests to the new server, unanswered ones again; returns when it has fetched all requests.
    pub(super) fn end_recovery(&mut self, number: u32) -> io::Result<()> {
        self.plain(END_USER_RECOVERY, number, std::process::id().into())
    }

    /// Ends a device at once: its requests fail, now and later. Its number is free when its server and all who have the
    /// disk open have closed it, for which kernels before 6.10 wait here.
    pub(super) fn end(&mut self, number: u32) -> io::Result<()> {
        match self.plain(DEL_DEV_ASYNC, number, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => self.delete(number),
            done => done,
        }
    }

    /// Ends a device; returns when its server, and all who have the disk open, have closed it.
    pub(super) fn delete(&mut self, number: u32) -> io::Result<()> {
        self.plain(DEL_DEV, number, 0)
    }

    fn plain(&mut self, code: u32, number: u32, data: u64) -> io::Result<()> {
        self.send(code, &ControlCommand { device: number, queue: NO_QUEUE, data, ..ControlCommand::default() })
    }

    /// A command with a structure that the kernel reads, fills, or both.
    fn exchange<T: Copy>(&mut self, code: u32, number: u32, with: &mut T) -> io::Result<()> {
        self.send(
            code,
            &ControlCommand {
                device: number,
                queue: NO_QUEUE,
                len: size_of::<T>() as u16,
                addr: std::ptr::from_mut(with) as u64,
                ..ControlCommand::default()
            },
        )
    }

    fn send(&mut self, code: u32, command: &ControlCommand) -> io::Result<()> {
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), code).cmd(packed(command)).build();
        // SAFETY: what the command points to stays until its end, for which this waits.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
            if let Some(done) = self.ring.completion().next() {
                let result = done.result();
                return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }
}

/// Sectors of 4 KiB, flushes, and discards, which read as zeroes afterwards.
fn parameters(new: &NewDevice) -> Parameters {
    let page = PAGE_BYTES.trailing_zeros() as u8;
    Parameters {
        len: size_of::<Parameters>() as u32,
        types: BASIC_AND_DISCARD,
        basic: BasicParameters {
            attributes: VOLATILE_CACHE,
            logical_block: page,
            physical_block: page,
            io_optimal: page,
            io_min: page,
            sectors_max: new.request_bytes_max / SECTOR_BYTES as u32,
            sectors: new.bytes / SECTOR_BYTES,
            ..BasicParameters::default()
        },
        discard: DiscardParameters {
            granularity: PAGE_BYTES as u32,
            sectors_max: DISCARD_BYTES_MAX / SECTOR_BYTES as u32,
            zeroes_sectors_max: DISCARD_BYTES_MAX / SECTOR_BYTES as u32,
            segments_max: 1,
            ..DiscardParameters::default()
        },
    }
}

/// A discard holds back who wants to read its blocks, so it must not take long.
const DISCARD_BYTES_MAX: u32 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_whole_pages_and_all_of_its_bytes() {
        let new = NewDevice { number: 0, bytes: 5 << 20, depth: 64, request_bytes_max: 1 << 18, mark: 1 };
        let all = parameters(&new);
        assert_eq!((all.basic.logical_block, all.basic.sectors, all.basic.sectors_max), (12, 10240, 512));
        assert!(all.discard.granularity == 4096 && all.discard.segments_max == 1, "the kernel refuses others");
    }
}
