//! Memory of the embedded device that the CPU cannot touch, as that of a GPU: the address that a program has
//! faults, and system calls refuse it with `EFAULT`; the device works on the same pages by another address.
//! For testing, without a GPU, what is done with the addresses of a GPU.

use super::lock::lock;
use super::memory::{map_anonymous, unmap};
use crate::located::Located;
use crate::{DeviceId, DevicePtr, Error, Result};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranges by their fenced address: length, and where the device has them.
static FENCED: Mutex<BTreeMap<u64, (u64, u64)>> = Mutex::new(BTreeMap::new());
/// How many there are, for looking without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A range of memory of `host:0` behind a fence.
#[derive(Debug)]
pub struct FencedMemory {
    address: u64,
    device_address: u64,
    len: u64,
}

impl FencedMemory {
    /// Allocates `len > 0` bytes of zeroes.
    pub fn alloc(len: u64) -> Result<Self> {
        // SAFETY: the name is a C string, and the call touches no memory of ours.
        let raw = unsafe { libc::memfd_create(c"bifolio-fenced".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(Error::last_os("creating fenced memory (memfd)"));
        }
        // SAFETY: the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a plain call on an open descriptor, and a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            if libc::ftruncate(fd.as_raw_fd(), i64::try_from(len).unwrap_or(i64::MAX)) != 0 {
                return Err(Error::last_os(format_args!("sizing {len} bytes of fenced memory")));
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len as usize, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(Error::last_os(format_args!("mapping {len} bytes of fenced memory")));
        }
        let device_address = mapped as u64;
        let fence = map_anonymous(len as usize, libc::PROT_NONE);
        // SAFETY: on failure the mapping just made is given up.
        let address = fence.inspect_err(|_| _ = unsafe { unmap(device_address, len) })?.as_ptr() as u64;
        lock(&FENCED).insert(address, (len, device_address));
        COUNT.fetch_add(1, Ordering::Release);
        Ok(Self { address, device_address, len })
    }

    /// The address behind the fence.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The bytes, from the other side.
    pub fn to_vec(&self) -> Vec<u8> {
        // SAFETY: the mapping has `len` bytes for as long as `self` lives; nobody holds a reference to them.
        unsafe { std::slice::from_raw_parts(self.device_address as *const u8, self.len as usize) }.to_vec()
    }
}

impl Drop for FencedMemory {
    fn drop(&mut self) {
        lock(&FENCED).remove(&self.address);
        COUNT.fetch_sub(1, Ordering::Release);
        // SAFETY: both mappings are ours, and their owner gives them up.
        unsafe {
            let _ = unmap(self.address, self.len);
            let _ = unmap(self.device_address, self.len);
        }
    }
}

/// The fenced memory at an address.
pub(crate) fn locate(address: u64) -> Option<Located> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let fenced = lock(&FENCED);
    let (start, (len, device_address)) = fenced.range(..=address).next_back()?;
    let offset = address - start;
    (offset < *len).then(|| Located {
        device: DeviceId::HOST,
        context: 0,
        incarnation: 0,
        address: DevicePtr(device_address + offset),
        start: *start,
        len: *len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer;

    #[test]
    fn fenced_memory_is_found_and_the_kernel_refuses_its_address() {
        let memory = FencedMemory::alloc(10_000).unwrap();
        let found = pointer::locate(memory.address() + 9_999).unwrap();
        assert_eq!((found.device, found.start, found.len), (DeviceId::HOST, memory.address(), 10_000));
        assert_eq!(found.bytes_left(memory.address() + 9_999), 1);
        let zeroes = std::fs::File::open("/dev/zero").unwrap();
        // SAFETY: the kernel checks the address, which is reserved and has no pages.
        let read = unsafe { libc::read(zeroes.as_raw_fd(), memory.address() as *mut libc::c_void, 10) };
        assert_eq!((read, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
        // SAFETY: the device's address of the last byte, which nobody else uses.
        unsafe { (found.address.0 as *mut u8).write(7) };
        assert_eq!(memory.to_vec()[9_998..], [0, 7]);
        let address = memory.address();
        drop(memory);
        assert_eq!(pointer::locate(address), None);
    }
}
