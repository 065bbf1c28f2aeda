//! What is concurrent in the cache, in many schedules of its threads (shuttle): the same source as in the crate, over
//! locks that a scheduler decides about.

#[allow(dead_code, reason = "the crate uses more of it")]
#[path = "../../src/budget.rs"]
mod budget;
#[allow(dead_code, reason = "the crate uses more of it")]
#[path = "../../src/lending.rs"]
mod lending;
#[allow(dead_code, reason = "the crate uses more of it")]
#[path = "../../src/monitor.rs"]
mod monitor;
#[allow(dead_code, reason = "the crate uses more of it")]
#[path = "../../src/table.rs"]
mod table;

/// Locks of the scheduler's.
mod sync {
    pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
    pub(crate) use std::sync::PoisonError;
}

use budget::{Budget, Content, Long, Owner};
use lending::{Lending, Use};
use monitor::{Guarded, Hold, Locked, Monitor};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::{check_pct, check_random, thread};
use std::ops::Range;
use std::sync::Arc;
use table::Table;

/// A frame, and whose bytes are in it.
#[derive(Debug)]
struct Piece(u64, Option<Owner>);

impl Long for Piece {
    fn bytes(&self) -> u64 {
        self.0
    }
}

impl Piece {
    fn content_for(&self, owner: Owner) -> Content {
        match self.1 {
            None => Content::New,
            Some(other) if other == owner => Content::Own,
            Some(_) => Content::Foreign,
        }
    }
}

const SCHEDULES: usize = 2000;

/// By chance, and with few switches at chosen places.
fn check(test: fn()) {
    check_random(test, SCHEDULES);
    check_pct(test, SCHEDULES, 3);
}

/// A file and what a cache has released of it: it is home when the last holder has ended.
struct Released {
    home: Arc<AtomicU32>,
    open: Arc<AtomicU32>,
    seen: u32,
    pending: AtomicU32,
}

impl Released {
    fn open(home: &Arc<AtomicU32>, open: &Arc<AtomicU32>) -> Self {
        assert_eq!(open.fetch_add(1, Ordering::SeqCst), 0, "it is open twice");
        let seen = home.load(Ordering::SeqCst);
        Self { home: Arc::clone(home), open: Arc::clone(open), seen, pending: AtomicU32::new(0) }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        let pending = self.pending.load(Ordering::SeqCst);
        thread::yield_now();
        self.home.store(self.seen + pending, Ordering::SeqCst);
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Symptom: a file that was opened again while its last holder ended showed what it had been before. Cause: the
/// table forgot the file when its last holder let go, and not when the released pages were home.
#[test]
fn who_opens_a_file_that_ends_sees_all_that_was_released() {
    check(|| {
        let table: Arc<Table<u8, Released>> = Table::new();
        let [home, open] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let use_it = |table: Arc<Table<u8, Released>>, home: Arc<AtomicU32>, open: Arc<AtomicU32>| {
            move || {
                for _ in 0..2 {
                    let file = table.open(&7, || Ok::<_, ()>(Released::open(&home, &open))).unwrap();
                    file.pending.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                }
            }
        };
        let threads: Vec<_> =
            (0..3).map(|_| thread::spawn(use_it(Arc::clone(&table), Arc::clone(&home), Arc::clone(&open)))).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((home.load(Ordering::SeqCst), open.load(Ordering::SeqCst)), (6, 0));
        // What cannot be made leaves nothing behind.
        assert!(table.open(&7, || Err(())).is_err());
        assert_eq!(table.open(&7, || Ok::<_, ()>(Released::open(&home, &open))).unwrap().seen, 6);
    });
}

/// Symptom: the count of used bytes went below zero. Cause: a frame came back between its two halves.
#[test]
fn frames_never_exceed_the_budget_and_all_of_them_come_back() {
    check(|| {
        let budget = Arc::new(Budget::<Piece>::new(4));
        let in_use = Arc::new(AtomicU32::new(0));
        let take = |number: u32, budget: Arc<Budget<Piece>>, in_use: Arc<AtomicU32>| {
            move || {
                let owner = Owner::new();
                for round in 0..3 {
                    let bytes = u64::from(1 + number % 2);
                    // Now and then the device has none.
                    let create = || if (number + round) % 4 == 3 { Err(()) } else { Ok(Piece(bytes, None)) };
                    if let Ok(Some((mut frame, content))) = budget.take(owner, bytes, create) {
                        assert_eq!(content, frame.content_for(owner));
                        frame.1 = Some(owner);
                        let before = in_use.fetch_add(bytes as u32, Ordering::SeqCst);
                        assert!(before + bytes as u32 <= 4, "more frames than the budget has");
                        thread::yield_now();
                        in_use.fetch_sub(bytes as u32, Ordering::SeqCst);
                        budget.give(frame, Some(owner));
                    }
                    assert!(budget.used_bytes() <= 4);
                }
            }
        };
        let threads: Vec<_> =
            (0..3).map(|number| thread::spawn(take(number, Arc::clone(&budget), Arc::clone(&in_use)))).collect();
        for _ in 0..2 {
            assert!(budget.used_bytes() <= 4);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(budget.used_bytes(), 0);
        // Nothing has leaked: the whole budget is there.
        let owner = Owner::new();
        let take = || budget.take(owner, 2, || Ok::<_, ()>(Piece(2, None))).unwrap();
        let all: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!((all.len(), budget.used_bytes()), (2, 4));
    });
}

/// A file that gets its own frames back need not wait for their being cleared.
#[test]
fn of_frames_that_came_back_ones_own_are_taken_first() {
    // One thread, and so one schedule.
    let test = || {
        let budget = Budget::<Piece>::new(5);
        let take = |owner: Owner| {
            let taken = budget.take(owner, 1, || Ok::<_, ()>(Piece(1, None))).unwrap();
            taken.map(|(_, content)| content)
        };
        let [one, two, three] = [(); 3].map(|()| Owner::new());
        assert_eq!([one, two, two, two].map(take), [Some(Content::New); 4]);
        for owner in [Some(one), Some(two), None, Some(two)] {
            budget.give(Piece(1, owner), owner);
        }
        assert_eq!([one, two, two].map(take), [Some(Content::Own); 3]);
        assert_eq!([one, three, two].map(take), [Some(Content::Foreign), Some(Content::New), None]);
    };
    check_random(test, 1);
}

/// Pages, and who is at work on each; and how many pages each operation has worked on.
#[derive(Debug, Default)]
struct Pages {
    at_work: [Option<u64>; 8],
    counted: u64,
    counted_by_all: u64,
}

impl Guarded for Pages {
    type Operation = u64;

    fn exchange(&mut self, operation: &mut u64) {
        std::mem::swap(&mut self.counted, operation);
    }

    fn end(&mut self, operation: u64) {
        self.counted_by_all += operation;
    }
}

/// Works on locked pages, and waits for a disk in the midst of it.
fn work_on(pages: &mut Locked<'_, Pages>, range: &Range<u64>, who: u64) {
    for page in range.clone() {
        let before = pages.at_work[page as usize].replace(who);
        assert_eq!(before, None, "two are at work on page {page}");
        pages.counted += 1;
    }
    pages.wait(thread::yield_now);
    for page in range.clone() {
        assert_eq!(pages.at_work[page as usize].take(), Some(who), "somebody else was at work on page {page}");
    }
}

/// Also of units that ranges share, of several ranges at once, and of further ones that are taken if they are free. That
/// it ends at all is half of what is tested.
#[test]
fn whoever_works_on_locked_pages_is_alone_with_them_and_everybody_has_his_turn() {
    check(|| {
        let monitor = Arc::new(Monitor::new(Pages::default()));
        monitor.lock().widen_unit(2);
        let work = |who: u64, monitor: Arc<Monitor<Pages>>| {
            move || {
                for round in 0..2 {
                    let first = (who + 2 * round) % 6;
                    let own = [first..first + 2, 7..8];
                    let mut pages = monitor.lock();
                    pages.take(own.clone(), Hold::Change);
                    for range in &own {
                        work_on(&mut pages, range, who);
                    }
                    let further = (first + 3) % 7..(first + 3) % 7 + 1;
                    let mut done = 3;
                    if let Some(key) = pages.try_take(further.clone(), Hold::Write) {
                        work_on(&mut pages, &further, who);
                        pages.give(&key);
                        done += 1;
                    }
                    assert_eq!(pages.counted, done, "others count by themselves");
                }
            }
        };
        let threads: Vec<_> = (0..3).map(|who| thread::spawn(work(who, Arc::clone(&monitor)))).collect();
        monitor.wait_for_others();
        for thread in threads {
            thread.join().unwrap();
        }
        let pages = monitor.lock();
        assert!((18..=24).contains(&pages.counted_by_all), "{}", pages.counted_by_all);
    });
}

/// Who finds a range as he needs it is not in the way of who has it written, and sees who changes it.
#[test]
fn what_is_changed_is_told_from_what_is_written_to_the_byte() {
    let test = || {
        let monitor = Monitor::new(Pages::default());
        monitor.lock().widen_unit(4);
        let other = &monitor;
        let seen = move |range: Range<u64>| {
            let mut pages = other.lock();
            let is_changed = pages.is_changed_by_others(&range);
            (is_changed, pages.try_take(range, Hold::Change).is_none())
        };
        let mut pages = monitor.lock();
        pages.take([1..2], Hold::Change);
        assert_eq!(pages.wait(|| [1..2, 2..3, 4..5].map(seen)), [(true, true), (false, true), (false, false)]);
        pages.give_all();
        pages.take([1..2], Hold::Write);
        assert_eq!(pages.wait(|| seen(1..2)), (false, true));
        // What is one's own is in nobody's way.
        assert!(pages.try_take(0..4, Hold::Write).is_some() && !pages.has_others());
    };
    check_random(test, 1);
}

/// Whoever waits for a disk with something lent leaves one for those who do not, and who cannot make another waits for
/// one that is lent.
#[test]
fn who_is_quick_with_what_is_lent_waits_for_nobody_who_is_not() {
    check(|| {
        let lending = Arc::new(Lending::<u8>::new(3));
        let made = Arc::new(AtomicU32::new(0));
        let make = |made: &AtomicU32| if made.fetch_add(1, Ordering::SeqCst) == 2 { Err(()) } else { Ok(0) };
        let slow = |lending: Arc<Lending<u8>>, made: Arc<AtomicU32>| {
            move || {
                let lent = lending.borrow(Use::Slow, || make(&made));
                // The disk answers when somebody has been quick.
                thread::yield_now();
                drop(lending.borrow(Use::Quick, || make(&made)).unwrap());
                drop(lent);
            }
        };
        let threads: Vec<_> = (0..3).map(|_| thread::spawn(slow(Arc::clone(&lending), Arc::clone(&made)))).collect();
        drop(lending.borrow(Use::Quick, || make(&made)).unwrap());
        for thread in threads {
            thread.join().unwrap();
        }
        assert!((2..=4).contains(&made.load(Ordering::SeqCst)));
    });
}
