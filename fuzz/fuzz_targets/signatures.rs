//! Any first and last bytes of a device of any size: what is recognised lies inside, has a name that can be allowed, and
//! a sentence that no terminal acts on.

#![no_main]

use bifolio_block::is_unprintable;
use bifolio_volume::signatures::{Overwrite, Windows, names, recognise, refuse};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    size: u64,
    /// Bytes at places, which most of the time are those where signatures are.
    head: Vec<(Place, &'a [u8])>,
    tail: Vec<(u16, &'a [u8])>,
}

#[derive(Debug, Arbitrary)]
enum Place {
    Any(u16),
    Superblock(u8),
    Page(u8),
    Far(u8),
}

/// Longer than most windows, and short enough for many runs.
const WINDOW_BYTES: usize = 300 << 10;

fuzz_target!(|input: Input<'_>| {
    // Small devices, whose windows overlap, as often as large ones.
    let size = if input.size & 1 == 0 { input.size % (1 << 20) } else { input.size };
    let len = (size.min(WINDOW_BYTES as u64)) as usize;
    let (mut head, mut tail) = (vec![0; len], vec![0; len]);
    for (place, bytes) in &input.head {
        let at = match place {
            Place::Any(at) => usize::from(*at),
            Place::Superblock(at) => 1024 + usize::from(*at),
            Place::Page(at) => 4096 * usize::from(at % 64) + usize::from(at / 64) * 64,
            Place::Far(at) => 0x1_0000 + usize::from(*at),
        };
        put(&mut head, at, bytes);
    }
    for (before_end, bytes) in &input.tail {
        let at = tail.len().saturating_sub(usize::from(*before_end));
        put(&mut tail, at, bytes);
    }
    let found = recognise(&Windows { size, head: &head, tail: &tail });
    for found in &found {
        assert!(names().contains(&found.name), "{found:?}");
        assert!(!found.marks.is_empty(), "{found:?}");
        assert!(found.marks.iter().all(|mark| mark.start < mark.end && mark.end <= size), "{found:?} of {size}");
        assert!(!found.describe().contains(is_unprintable), "{found:?}");
    }
    let is_empty = head.iter().chain(&tail).all(|byte| *byte == 0);
    assert_eq!(found.is_empty(), is_empty, "what is not zero is something");
    let allowed = Overwrite::Named(found.iter().map(|found| found.name.to_owned()).collect());
    let all = [("device".to_owned(), found)];
    assert!(refuse(&all, &allowed).is_ok());
    assert_eq!(refuse(&all, &Overwrite::Nothing).is_ok(), is_empty);
});

fn put(window: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = window.get_mut(at..) {
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
    }
}
