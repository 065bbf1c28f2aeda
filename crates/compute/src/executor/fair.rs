//! Turns by bytes: start-time fair queueing (Goyal, Vin and Cheng, 1996).
//!
//! A piece of work has a start tag: where its caller's piece before it ended, and not before the tag of what was taken last, the
//! time here. It ends as many bytes later. The piece with the smallest tag is the next one. In the long run callers that always
//! have work get the same number of bytes, whatever the sizes of their requests; and one that comes waits for at most one piece
//! of each other's, however many bytes these are behind.

use std::collections::VecDeque;

/// Work of several callers.
#[derive(Debug)]
pub(crate) struct Fair<C, T> {
    /// Those with work, and those without whose last piece ends later than now.
    callers: Vec<Caller<C, T>>,
    /// The start tag of what was taken last.
    now: u64,
    /// How many pieces were ever put here: among equal tags the first comer is the next one.
    pushed: u64,
    waiting: usize,
}

#[derive(Debug)]
struct Caller<C, T> {
    id: C,
    /// The start tag of its first piece, or where its last one ended.
    at: u64,
    waiting: VecDeque<Piece<T>>,
}

#[derive(Debug)]
struct Piece<T> {
    bytes: u64,
    number: u64,
    item: T,
}

impl<C, T> Default for Fair<C, T> {
    fn default() -> Self {
        Self { callers: Vec::new(), now: 0, pushed: 0, waiting: 0 }
    }
}

impl<C: PartialEq, T> Fair<C, T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Puts work of so many bytes behind the caller's other work.
    pub(crate) fn push(&mut self, id: C, bytes: u64, item: T) {
        // Work without bytes takes a turn all the same.
        let piece = Piece { bytes: bytes.max(1), number: self.pushed, item };
        (self.pushed, self.waiting) = (self.pushed + 1, self.waiting + 1);
        let now = self.now;
        match self.callers.iter_mut().find(|caller| caller.id == id) {
            Some(caller) => {
                caller.at = caller.at.max(if caller.waiting.is_empty() { now } else { 0 });
                caller.waiting.push_back(piece);
            }
            None => self.callers.push(Caller { id, at: now, waiting: VecDeque::from([piece]) }),
        }
    }

    /// The next piece of work.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_if(|_| true)
    }

    /// The next piece of work among those that callers have in front and that are wanted. It counts against its caller as if it
    /// had been its turn.
    pub(crate) fn pop_if(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let turn = |(at, caller): (usize, &Caller<C, T>)| {
            let first = caller.waiting.front().filter(|piece| wanted(&piece.item))?;
            Some((caller.at, first.number, at))
        };
        let (start, _, at) = self.callers.iter().enumerate().filter_map(turn).min()?;
        let piece = self.callers[at].waiting.pop_front()?;
        self.callers[at].at = start + piece.bytes;
        self.waiting -= 1;
        // Where somebody was passed over whose turn it was, it stays the next one.
        let waiting = self.callers.iter().filter(|caller| !caller.waiting.is_empty());
        self.now = waiting.map(|caller| caller.at).fold(start, u64::min).max(self.now);
        let now = self.now;
        self.callers.retain(|caller| !caller.waiting.is_empty() || caller.at > now);
        Some(piece.item)
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
            work in vec((0_u8..5, 0_u64..10_000), 0..200),
        ) {
            let mut fair = Fair::default();
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
            sizes in vec(1_u64..5_000, 2..6), depth in 1_usize..4,
        ) {
            let mut fair = Fair::default();
            let mut got = vec![0_u64; sizes.len()];
            for (caller, bytes) in sizes.iter().enumerate() {
                (0..depth).for_each(|_| fair.push(caller, *bytes, caller));
            }
            for _ in 0..3_000 {
                let caller = fair.pop().unwrap();
                got[caller] += sizes[caller];
                fair.push(caller, sizes[caller], caller);
            }
            let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
            // A caller may be a piece of work ahead.
            let bound = *sizes.iter().max().unwrap();
            prop_assert!(most - least <= bound, "{got:?} beyond {bound}");
        }

        /// Symptom: with small batches packets of one source waited for a second. Cause: whose turn it was had it until it had been
        /// given a slot's bytes, which are hundreds of small batches.
        #[test]
        fn who_comes_waits_for_one_piece_of_each_other_caller(
            work in vec((0_u8..5, 1_u64..5_000), 1..200), taken in 0_usize..200,
        ) {
            let mut fair = Fair::default();
            let callers: std::collections::HashSet<u8> = work.iter().map(|(caller, _)| *caller).collect();
            for (caller, bytes) in &work {
                fair.push(*caller, *bytes, false);
            }
            (0..taken).for_each(|_| _ = fair.pop());
            fair.push(9, 1, true);
            let before = std::iter::from_fn(|| fair.pop()).take_while(|is_new| !is_new).count();
            prop_assert!(before <= callers.len(), "{before} pieces of {} callers came first", callers.len());
        }

        #[test]
        fn merging_takes_fronts_only_and_counts_them(work in vec((0_u8..4, 1_u64..2_000, any::<bool>()), 1..60)) {
            let mut fair = Fair::default();
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
