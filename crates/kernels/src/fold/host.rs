//! The kernel as the `host` device runs it.

use super::entry::{ENTRY_BYTES, Entry, decode};
use super::launch::memory_at;
use super::oracle::{AHEAD, LOST, OWN_CHANGED};
use crate::merge::{self, differing, merge_byte, merge_word};
use bifolio_device::{DevicePtr, HostLaunch, KernelArg};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn run_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(memory), KernelArg::Buffer(table), KernelArg::Buffer(flags), KernelArg::Bytes(params)] =
        launch.args
    else {
        unreachable!("fold has three buffers and one parameter struct");
    };
    let Some(start) = memory_at(params) else { unreachable!("fold has 8 bytes of parameters") };
    let pages = launch.groups as usize;
    // SAFETY: the caller passes the host address of an entry for each group.
    let entries = decode(unsafe { slice::from_raw_parts(table.0 as *const u8, pages * ENTRY_BYTES as usize) });
    // SAFETY: as above, of a word for each group, at a 4-byte boundary, that nobody else uses.
    let flags = unsafe { slice::from_raw_parts_mut(flags.0 as *mut u32, pages) };
    for (entry, flags) in entries.iter().zip(flags) {
        *flags = 0;
        if entry.len > 0 {
            // SAFETY: the caller vouches that the page's parts lie there, and for who else uses them. One without
            // bytes may have no memory at all.
            *flags = unsafe { fold_shared(&Places::of(entry, memory.offset_by(start))) };
        }
    }
}

/// Where a page lies in host memory. Its parts may be the same, so there are no references to them.
struct Places {
    current: *mut u8,
    twin: Option<*mut u8>,
    base: Option<*mut u8>,
    content: *const u8,
    origin: Option<*const u8>,
    donors: [Option<[*const u8; 2]>; super::entry::DONORS_MAX],
    len: usize,
}

impl Places {
    fn of(entry: &Entry, memory: DevicePtr) -> Self {
        let place = |place: u64| memory.offset_by(place).0 as *mut u8;
        let read = |at: u64| place(at).cast_const();
        Self {
            current: place(entry.current),
            twin: entry.twin.map(place),
            base: entry.base.map(place),
            content: read(entry.content),
            origin: entry.origin.map(read),
            donors: entry.donors.map(|donor| donor.map(|donor| [read(donor.twin), read(donor.base)])),
            len: entry.len as usize,
        }
    }
}

/// [`oracle`](super::oracle()) for a page that others may be storing into, by words of 8 bytes.
///
/// # Safety
/// All that the page has is memory of its length at 16-byte boundaries; others use of it only `current`, if there is a
/// twin, and do not write what is read.
unsafe fn fold_shared(page: &Places) -> u32 {
    let whole = page.len / 8 * 8;
    // SAFETY: the caller's promise; these are all words and bytes of the page.
    let words = (0..whole).step_by(8).fold(0, |flags, at| flags | unsafe { fold_part::<8>(page, at) });
    // SAFETY: as above.
    (whole..page.len).fold(words, |flags, at| flags | unsafe { fold_part::<1>(page, at) })
}

/// Folds the word (`WIDTH` 8) or the byte (`WIDTH` 1) at `at`.
///
/// # Safety
/// As for [`fold_shared`]; it lies in the page, at a multiple of its width.
unsafe fn fold_part<const WIDTH: usize>(page: &Places, at: usize) -> u32 {
    // SAFETY: the caller's promise.
    let read = |from: *const u8| word(unsafe { from.add(at).cast::<[u8; WIDTH]>().read() });
    // SAFETY: the caller's promise; nobody else uses what is written by this.
    let write = |to: *mut u8, word: u64| unsafe { to.add(at).cast::<[u8; WIDTH]>().write(bytes(word)) };
    let content = read(page.content);
    let origin = page.origin.map_or(content, read);
    let (mut folded, mut flags) = (content, 0);
    for [twin, base] in page.donors.iter().flatten().map(|donor| donor.map(read)) {
        let (released, taken) = (differing(twin ^ base), differing(folded ^ base));
        let apart = folded ^ twin;
        flags |= if apart & released & taken != 0 { LOST } else { 0 };
        folded ^= apart & released & !taken;
    }
    flags |= if folded == origin { 0 } else { AHEAD };
    if let Some(twin) = page.twin {
        let old = read(twin);
        // SAFETY: the caller's promise, at a boundary of the width.
        let found = unsafe {
            if WIDTH == 8 {
                merge_word(AtomicU64::from_ptr(page.current.add(at).cast()), old.to_le(), folded.to_le())
            } else {
                merge_byte(AtomicU8::from_ptr(page.current.add(at)), old as u8, folded as u8)
            }
        };
        flags |= if found & merge::OWN_CHANGED == 0 { 0 } else { OWN_CHANGED };
        if old != folded {
            write(twin, folded);
        }
    } else {
        write(page.current, folded);
    }
    if let Some(base) = page.base {
        write(base, origin);
    }
    flags
}

/// Bytes as a word, the first one lowest, with zeroes behind.
fn word<const WIDTH: usize>(bytes: [u8; WIDTH]) -> u64 {
    let mut word = [0; 8];
    word[..WIDTH].copy_from_slice(&bytes);
    u64::from_le_bytes(word)
}

/// The first bytes of a word.
fn bytes<const WIDTH: usize>(word: u64) -> [u8; WIDTH] {
    let mut bytes = [0; WIDTH];
    bytes.copy_from_slice(&word.to_le_bytes()[..WIDTH]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// What a kernel stores while its page is folded stays, though another device has released its neighbours.
    #[test]
    fn what_others_store_meanwhile_stays() {
        let mut page = vec![0_u64; 512];
        let current = page.as_mut_ptr().cast::<u8>() as usize;
        let (mut twin, mut base, content) = (vec![0_u8; 4096], vec![0xa5; 4096], vec![0_u8; 4096]);
        // SAFETY: inside the page, which outlives its users.
        let byte = |at: usize| unsafe { AtomicU8::from_ptr((current + at) as *mut u8) };
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                // Every eighth byte is the others', who look at what they have stored.
                for round in 0..200_000_u32 {
                    let (at, value) = (round as usize % 512 * 8 + 3, (round % 255) as u8 + 1);
                    byte(at).store(value, Ordering::Relaxed);
                    std::hint::spin_loop();
                    assert_eq!(byte(at).load(Ordering::Relaxed), value);
                }
            });
            let mut round = 0_u8;
            while !others.is_finished() {
                round = round.wrapping_add(1);
                let mut released = vec![round; 4096];
                (3..4096).step_by(8).for_each(|at| released[at] = 0);
                let places = Places {
                    current: current as *mut u8,
                    twin: Some(twin.as_mut_ptr()),
                    base: Some(base.as_mut_ptr()),
                    content: content.as_ptr(),
                    origin: None,
                    donors: [Some([released.as_ptr(), content.as_ptr()]), None, None],
                    len: 4096,
                };
                // SAFETY: all have 4096 bytes, and others only use the first.
                unsafe { fold_shared(&places) };
                assert!((0..4096).all(|at| at % 8 == 3 || byte(at).load(Ordering::Relaxed) == round));
                assert!(twin == released && base == content);
            }
        });
    }
}
