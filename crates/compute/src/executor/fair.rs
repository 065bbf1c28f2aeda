//! Turns by bytes: a queue for each caller, and a deficit round robin over them.
//!
//! A caller whose turn it is may take so many bytes as it has been given, a quantum a round; what it does not
//! use it keeps while it has something waiting. In the long run callers that always have work get the same
//! number of bytes, whatever the sizes of their requests.

use std::collections::VecDeque;

/// Work of several callers.
#[derive(Debug)]
pub(crate) struct Fair<C, T> {
    /// Callers that have something waiting, the one whose turn it is in front.
    turns: VecDeque<Caller<C, T>>,
    quantum_bytes: u64,
}

#[derive(Debug)]
struct Caller<C, T> {
    id: C,
    given_bytes: u64,
    waiting: VecDeque<(u64, T)>,
}

impl<C: PartialEq, T> Fair<C, T> {
    pub(crate) fn new(quantum_bytes: u64) -> Self {
        Self { turns: VecDeque::new(), quantum_bytes: quantum_bytes.max(1) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Puts work of so many bytes behind the caller's other work.
    pub(crate) fn push(&mut self, id: C, bytes: u64, item: T) {
        // Work without bytes takes a turn all the same.
        let entry = (bytes.max(1), item);
        match self.turns.iter_mut().find(|caller| caller.id == id) {
            Some(caller) => caller.waiting.push_back(entry),
            None => self.turns.push_back(Caller { id, given_bytes: 0, waiting: VecDeque::from([entry]) }),
        }
    }

    /// The next piece of work.
    pub(crate) fn pop(&mut self) -> Option<T> {
        loop {
            let caller = self.turns.front_mut()?;
            let bytes = caller.waiting.front().map(|(bytes, _)| *bytes)?;
            if caller.given_bytes >= bytes {
                return self.take(0);
            }
            caller.given_bytes += self.quantum_bytes;
            self.turns.rotate_left(1);
        }
    }

    /// The next piece of work that some caller has in front and that is wanted, each caller's once at most, in
    /// the order of their turns. It counts against its caller as if it had been its turn.
    pub(crate) fn pop_if(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let at = self.turns.iter().position(|caller| caller.waiting.front().is_some_and(|(_, item)| wanted(item)))?;
        self.take(at)
    }

    fn take(&mut self, at: usize) -> Option<T> {
        let caller = self.turns.get_mut(at)?;
        let (bytes, item) = caller.waiting.pop_front()?;
        caller.given_bytes = caller.given_bytes.saturating_sub(bytes);
        if caller.waiting.is_empty() {
            self.turns.remove(at);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everything_comes_out_once_and_in_its_callers_order(
            work in vec((0_u8..5, 0_u64..10_000), 0..200), quantum in 1_u64..5_000,
        ) {
            let mut fair = Fair::new(quantum);
            for (i, (caller, bytes)) in work.iter().enumerate() {
                fair.push(*caller, *bytes, i);
            }
            let out: Vec<usize> = std::iter::from_fn(|| fair.pop()).collect();
            prop_assert!(fair.is_empty());
            for caller in 0..5 {
                let of = |i: &usize| work[*i].0 == caller;
                let pushed: Vec<usize> = (0..work.len()).filter(|i| of(i)).collect();
                let popped: Vec<usize> = out.iter().copied().filter(|i| of(i)).collect();
                prop_assert_eq!(popped, pushed);
            }
            prop_assert_eq!(out.len(), work.len());
        }

        /// Callers with endless work of different sizes.
        #[test]
        fn callers_get_the_same_bytes_whatever_they_ask_for(
            sizes in vec(1_u64..5_000, 2..6), quantum in 1_000_u64..6_000,
        ) {
            let mut fair = Fair::new(quantum);
            let mut got = vec![0_u64; sizes.len()];
            for (caller, bytes) in sizes.iter().enumerate() {
                (0..3).for_each(|_| fair.push(caller, *bytes, caller));
            }
            for _ in 0..3_000 {
                let caller = fair.pop().unwrap();
                got[caller] += sizes[caller];
                fair.push(caller, sizes[caller], caller);
            }
            let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
            // A round gives a quantum, and a caller may be a piece of work ahead.
            let bound = 2 * (quantum + sizes.iter().max().unwrap());
            prop_assert!(most - least <= bound, "{got:?} beyond {bound}");
        }

        #[test]
        fn merging_takes_fronts_only_and_counts_them(work in vec((0_u8..4, 1_u64..2_000, any::<bool>()), 1..60)) {
            let mut fair = Fair::new(1_000);
            for (i, (caller, bytes, good)) in work.iter().enumerate() {
                fair.push(*caller, *bytes, (i, *good));
            }
            let taken: Vec<usize> = std::iter::from_fn(|| fair.pop_if(|(_, good)| *good)).map(|(i, _)| i).collect();
            for caller in 0..4 {
                let front = work.iter().enumerate().filter(|(_, work)| work.0 == caller).take_while(|(_, work)| work.2);
                let front: Vec<usize> = front.map(|(i, _)| i).collect();
                let found: Vec<usize> = taken.iter().copied().filter(|i| work[*i].0 == caller).collect();
                prop_assert_eq!(found, front);
            }
        }
    }
}
