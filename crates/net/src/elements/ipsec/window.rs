//! Sequence numbers that were seen (RFC 4303, 3.4.3): the highest, and which of those before it.

/// The window of a receiver.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    size: u64,
    /// The highest number that was seen.
    top: u64,
    /// A bit for each number of the window, at its remainder.
    seen: Vec<u64>,
}

impl Window {
    /// A window of so many numbers, at least 1, none of which was seen.
    pub(crate) fn new(size: u64) -> Self {
        Self { size, top: 0, seen: vec![0; size.div_ceil(64) as usize] }
    }

    /// The highest number that was seen.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// The lowest number that is not too old.
    pub(crate) fn lowest(&self) -> u64 {
        self.top.saturating_sub(self.size - 1)
    }

    fn place(&self, number: u64) -> (usize, u64) {
        let bit = number % (self.seen.len() as u64 * 64);
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// Whether a number is neither too old nor seen. 0 is never sent.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        number != 0 && number >= self.lowest() && (number > self.top || self.seen[word] & bit == 0)
    }

    /// A number that is new has been seen.
    pub(crate) fn see(&mut self, number: u64) {
        let bits = self.seen.len() as u64 * 64;
        if number > self.top {
            // Places of numbers that fall out of the window are those of numbers that come into it.
            for passed in (self.top + 1..=number).rev().take(bits as usize) {
                let (word, bit) = self.place(passed);
                self.seen[word] &= !bit;
            }
            self.top = number;
        }
        let (word, bit) = self.place(number);
        self.seen[word] |= bit;
    }

    /// What was seen by a window of another size, as far as it reaches.
    pub(crate) fn inherit(&mut self, other: &Self) {
        let mut fresh = Self::new(self.size);
        let seen = |number: &u64| !other.is_new(*number) && *number >= other.lowest();
        (other.lowest().max(1)..=other.top).filter(seen).for_each(|number| fresh.see(number));
        *self = fresh;
    }
}

/// The number whose lower bits a packet has: the lowest that is not below `lowest` (RFC 4303, appendix A).
pub(crate) fn extend(lowest: u64, low: u32) -> u64 {
    lowest.wrapping_add(low.wrapping_sub(lowest as u32).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_window_is_a_set_of_what_was_seen(
            size in prop_oneof![1..5_u64, 60..70_u64, Just(128), 1000..1100_u64],
            steps in vec((0..3_u8, 0..200_u64), 1..300),
        ) {
            let (mut window, mut seen) = (Window::new(size), BTreeSet::new());
            for (kind, step) in steps {
                let top = seen.last().copied().unwrap_or(0_u64);
                let number = match kind {
                    0 => top.saturating_sub(step),
                    1 => top + step,
                    _ => top + 1 + step / 90 * size,
                };
                let is_new = number != 0 && !seen.contains(&number) && number + size > top;
                prop_assert_eq!(window.is_new(number), is_new, "{} of {} at {}", number, size, top);
                if is_new {
                    window.see(number);
                    seen.insert(number);
                }
                prop_assert_eq!(window.top(), seen.last().copied().unwrap_or(0));
            }
            let mut other = Window::new(size / 2 + 1);
            other.inherit(&window);
            for number in window.lowest().saturating_sub(3)..window.top() + 3 {
                let is_there = number >= other.lowest();
                prop_assert_eq!(other.is_new(number), is_there && window.is_new(number));
            }
        }

        #[test]
        fn numbers_are_extended_around_the_window(top in any::<u64>(), size in 1..5000_u64, ahead in 0..1_u64 << 31) {
            let mut window = Window::new(size);
            window.top = top;
            for number in [window.lowest(), top, top.saturating_add(ahead)] {
                prop_assert_eq!(extend(window.lowest(), number as u32), number);
            }
        }
    }

    #[test]
    fn half_a_number_before_a_turn_is_the_old_turns() {
        assert_eq!(extend((1 << 32) - 10, 5), (1 << 32) + 5);
        assert_eq!(extend((1 << 32) - 10, u32::MAX - 3), (1 << 32) - 4);
        assert_eq!(extend(0, u32::MAX), u64::from(u32::MAX));
    }
}
