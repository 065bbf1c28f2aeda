//! Words and latches without a GPU, against streams that are slow to look; the kind of gate that
//! the GPU at hand would not choose, with one.

use super::*;
use crate::conformance::{Random, check_gates, fresh_seed};
use crate::{BackendKind, Device, DeviceChoice, DeviceId};

/// Words of a block of ordinary memory, all last used with `value`.
fn words(value: u32) -> Words {
    let block = Box::leak(vec![0_u32; BLOCK_BYTES / 4].into_boxed_slice());
    block.fill(value);
    let spare = words_of(NonNull::from(block).cast(), 0x1000).map(|word| Word { value, ..word });
    // Few of them, so that they are used again soon.
    Words(Mutex::new(State { spare: spare.take(3).collect(), blocks: vec![] }))
}

/// What the GPU does.
fn passes(word: Word) -> bool {
    // SAFETY: the block is leaked.
    let now = unsafe { word.host.as_ref() }.load(Ordering::Acquire);
    now.wrapping_sub(word.value).cast_signed() >= 0
}

/// Streams look at their waits at random times, long after the words went to other gates, also
/// where the values come round: a wait ends if and only if its own gate was opened.
#[test]
fn a_word_in_use_again_neither_opens_nor_closes_an_earlier_wait() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    let words = words(u32::MAX - 50);
    let mut closed: Vec<usize> = vec![];
    let mut waits: Vec<(Word, bool)> = vec![];
    for _ in 0..5000 {
        if closed.len() < 3 && random.below(2) == 0 {
            let word = words.lock().spare.pop().unwrap();
            let word = Word { value: word.value.wrapping_add(1), ..word };
            closed.push(waits.len());
            waits.push((word, false));
        } else if !closed.is_empty() {
            let number = closed.swap_remove(random.below(closed.len() as u64) as usize);
            let (word, is_open) = &mut waits[number];
            *is_open = true;
            // SAFETY: the block is leaked.
            unsafe { word.host.as_ref() }.store(word.value, Ordering::Release);
            words.give_back(*word);
        }
        for _ in 0..3.min(waits.len()) {
            let (word, is_open) = waits[random.below(waits.len() as u64) as usize];
            assert_eq!(passes(word), is_open, "a wait for {} of {} gates", word.value, waits.len());
        }
    }
    assert!(waits.iter().all(|(word, is_open)| passes(*word) == *is_open));
}

#[test]
fn words_of_a_block_lie_beside_each_other_and_inside_it() {
    let words = words(0);
    let state = words.lock();
    let devices: Vec<_> = state.spare.iter().map(|word| word.device).collect();
    assert_eq!(devices, [0x1000, 0x1004, 0x1008]);
    assert_eq!(words_of(NonNull::dangling(), 0).last().map(|word| word.device), Some(BLOCK_BYTES as u64 - 4));
}

#[test]
fn a_latch_holds_the_driver_s_thread_until_it_is_opened_before_or_after() {
    for opens_first in [true, false] {
        let gate = FunctionGate { latch: Arc::default() };
        let data = Arc::into_raw(gate.latch.clone()).expose_provenance();
        let (report, passed) = std::sync::mpsc::channel();
        let call = move || {
            // SAFETY: the reference is passed once.
            unsafe { wait_for_latch(std::ptr::with_exposed_provenance_mut(data)) };
            report.send(()).unwrap();
        };
        if opens_first {
            drop(gate);
            std::thread::spawn(call);
        } else {
            std::thread::spawn(call);
            assert!(passed.recv_timeout(std::time::Duration::from_millis(20)).is_err(), "the latch held nothing");
            drop(gate);
        }
        passed.recv_timeout(std::time::Duration::from_secs(10)).expect("the latch does not open");
    }
}

#[test]
fn gates_that_are_functions_conform() {
    let backend = match super::super::open_without_words(0) {
        Ok(backend) => backend,
        Err(error) => {
            println!("skipped: {error}");
            assert!(crate::open(DeviceChoice::Exactly(DeviceId::new(BackendKind::Cuda, 0))).is_err());
            return;
        }
    };
    check_gates(&Device::from_backend(backend));
}
