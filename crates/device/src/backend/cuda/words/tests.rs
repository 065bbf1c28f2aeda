//! Words without a GPU, against streams that are slow to look.

use super::*;
use std::sync::atomic::Ordering;

/// Words of a block of ordinary memory, all last used with `value`.
fn words(value: u32) -> Words {
    let block = Box::leak(vec![0_u32; BLOCK_BYTES / 4].into_boxed_slice());
    block.fill(value);
    let spare = words_of(NonNull::from(block).cast(), 0x1000).map(|word| Word { value, ..word });
    // Few of them, so that they are used again soon.
    Words(Mutex::new(Pool { spare: spare.take(3).collect(), blocks: vec![] }))
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
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    let words = words(u32::MAX - 50);
    let mut closed: Vec<usize> = vec![];
    let mut waits: Vec<(Word, bool)> = vec![];
    for _ in 0..5000 {
        if closed.len() < 3 && random.bool() {
            let word = words.lock().spare.pop().unwrap();
            let word = Word { value: word.value.wrapping_add(1), ..word };
            closed.push(waits.len());
            waits.push((word, false));
        } else if !closed.is_empty() {
            let number = closed.swap_remove(random.usize(..closed.len()));
            let (word, is_open) = &mut waits[number];
            *is_open = true;
            // SAFETY: the block is leaked.
            unsafe { word.host.as_ref() }.store(word.value, Ordering::Release);
            words.give_back(*word);
        }
        for _ in 0..3.min(waits.len()) {
            let (word, is_open) = waits[random.usize(..waits.len())];
            assert_eq!(passes(word), is_open, "a wait for {} of {} gates", word.value, waits.len());
        }
    }
    assert!(waits.iter().all(|(word, is_open)| passes(*word) == *is_open));
}

#[test]
fn words_of_a_block_lie_beside_each_other_and_inside_it() {
    let words = words(0);
    let pool = words.lock();
    let devices: Vec<_> = pool.spare.iter().map(|word| word.device).collect();
    assert_eq!(devices, [0x1000, 0x1004, 0x1008]);
    assert_eq!(words_of(NonNull::dangling(), 0).last().map(|word| word.device), Some(BLOCK_BYTES as u64 - 4));
}
