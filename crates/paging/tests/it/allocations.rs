//! The I/O path takes no memory of the system's: it runs when there is none.

use crate::support::{CHUNK, host};
use bifolio_block::BlockDevice;
use bifolio_paging::{Backing, Mode, Options, PagingCache, format_backing};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn requests_allocate_nothing_whatever_they_meet() {
    let folder = tempfile::tempdir().unwrap();
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let backing = Backing::create(&folder.path().join(mode.to_string()), 16 << 20).unwrap();
        format_backing(&backing, 16 << 20).unwrap();
        let options = Options { mode, ..Options::new(Arc::new(backing), host(), 2 * CHUNK) };
        let cache = PagingCache::open(options).unwrap();
        let (mut bytes, draw) = (vec![7; 1 << 20], &mut fastrand::Rng::with_seed(1));
        // The first write notes in the header that the backing is in use.
        cache.write(0, &bytes).unwrap();
        let before = COUNT.get();
        for round in 0..3000_u64 {
            let at = draw.u64(..(15 << 20) / 4096) * 4096;
            let len = [4096, 8192, 32 << 10, 1 << 20, 100][draw.usize(..5)];
            match round % 5 {
                0 | 1 => cache.write(at, &bytes[..len]).unwrap(),
                2 | 3 => cache.read(at, &mut bytes[..len]).unwrap(),
                _ if round % 50 == 4 => cache.discard(at, len as u64).unwrap(),
                _ if round % 500 == 9 => cache.flush().unwrap(),
                _ => cache.tick(),
            }
        }
        assert_eq!(COUNT.get() - before, 0, "{mode}");
    }
}
