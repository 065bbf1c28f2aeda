//! How many items are launched at a time, and whether filling a part of what they miss pays. No memory, no device.

#[derive(Debug)]
pub(super) struct Pace {
    pub(super) window: usize,
    /// Tries left at filling a part; those that finish something cost none.
    credit: u8,
    /// The next launch tells what the last try was good for.
    is_trying: bool,
}

const CREDIT_MAX: u8 = 2;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Launch,
    FillPart,
    GiveUp,
}

/// Frames that there was memory for, and that were needed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frames {
    pub(super) had: usize,
    pub(super) needed: usize,
}

impl Pace {
    /// For so many items.
    pub(super) fn new(items: usize) -> Self {
        Self { window: items, credit: CREDIT_MAX, is_trying: false }
    }

    /// After a launch with `active` items. Where not all that it missed was filled, `short` has the frames that
    /// there was memory for, and those that were needed.
    pub(super) fn after(&mut self, active: usize, finished: usize, short: Option<Frames>) -> Step {
        let has_failed = self.is_trying && finished == 0;
        if self.is_trying {
            self.credit = if has_failed { self.credit - 1 } else { CREDIT_MAX.min(self.credit + 1) };
        }
        self.is_trying = short.is_some() && self.credit > 0 && !has_failed;
        self.window = match short {
            _ if self.is_trying => active,
            None if finished > 0 => active.saturating_mul(2),
            None => active,
            // What was used may have been for the finished: the same items again, to know what the others use.
            Some(_) if finished > 0 => active,
            Some(_) if active == 1 => return Step::GiveUp,
            Some(Frames { had, needed }) => {
                let share = (active as u128 * had as u128 / needed.max(1) as u128) as usize;
                share.clamp(1, active - 1)
            }
        };
        if self.is_trying { Step::FillPart } else { Step::Launch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(window: usize, credit: u8, is_trying: bool) -> Pace {
        Pace { window, credit, is_trying }
    }

    fn frames(had: usize, needed: usize) -> Frames {
        Frames { had, needed }
    }

    #[test]
    fn a_part_is_filled_for_as_long_as_that_finishes_items() {
        let mut pace = pace(100, 2, false);
        assert_eq!(pace.after(100, 0, Some(frames(4, 40))), Step::FillPart);
        for _ in 0..5 {
            assert_eq!((pace.after(90, 7, Some(frames(4, 40))), pace.window, pace.credit), (Step::FillPart, 90, 2));
        }
        assert_eq!((pace.after(60, 0, Some(frames(4, 40))), pace.window, pace.credit), (Step::Launch, 6, 1));
        assert_eq!(pace.after(6, 0, None), Step::Launch);
        assert_eq!((pace.after(6, 6, None), pace.window), (Step::Launch, 12));
        assert_eq!(pace.after(12, 0, Some(frames(4, 5))), Step::FillPart);
        assert_eq!((pace.after(12, 0, Some(frames(4, 5))), pace.window, pace.credit), (Step::Launch, 9, 0));
        assert_eq!((pace.after(9, 2, Some(frames(4, 5))), pace.window), (Step::Launch, 9), "then carefully");
    }

    #[test]
    fn launches_shrink_where_memory_is_short_and_grow_where_it_is_not() {
        let after = |active, finished, short| {
            let mut pace = pace(active, 0, false);
            (pace.after(active, finished, short), pace.window)
        };
        assert_eq!(after(100, 0, None), (Step::Launch, 100), "items go on with what was filled");
        assert_eq!(after(100, 3, None), (Step::Launch, 200));
        assert_eq!(after(usize::MAX, 1, None), (Step::Launch, usize::MAX));
        assert_eq!(
            after(100, 3, Some(frames(1, 50))),
            (Step::Launch, 100),
            "what was used may have been of the finished"
        );
        assert_eq!(after(100, 0, Some(frames(10, 40))), (Step::Launch, 25));
        assert_eq!(after(100, 0, Some(frames(0, 40))), (Step::Launch, 1));
        assert_eq!(after(100, 0, Some(frames(999, 1000))), (Step::Launch, 99), "always fewer");
        assert_eq!(after(2, 0, Some(frames(3, 4))), (Step::Launch, 1));
        assert_eq!(after(1, 0, Some(frames(3, 4))), (Step::GiveUp, 1));
        assert_eq!(after(1, 1, Some(frames(3, 4))), (Step::Launch, 1));
    }
}
