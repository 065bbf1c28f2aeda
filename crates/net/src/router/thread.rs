//! What a thread of a router has: tasks by stride scheduling, timers, file descriptors, packets on their way. How it runs is
//! told in `drive`.

use super::region::Visitor;
use super::wave::{self, Wave};
use super::wiring::{Target, Wiring};
use crate::args::HandlerCall;
use crate::packet::{Batch, Place};
use crate::schedule::Interest;
use crate::{Packet, Timestamp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// No element's number.
pub(super) const NOBODY: usize = usize::MAX;

/// What others ask of a thread.
pub(super) enum Mail {
    Task {
        element: usize,
    },
    Timer {
        element: usize,
        timer: usize,
        at: Option<Timestamp>,
    },
    Select {
        element: usize,
        fd: RawFd,
        interest: Interest,
    },
    /// There is something in the router's list of what is asked.
    Asked,
}

/// Where others leave what they ask of a thread.
pub(super) struct Mailbox {
    mail: Mutex<Vec<Mail>>,
    has_mail: AtomicBool,
    pub(super) event: OwnedFd,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        assert!(fd >= 0, "an event descriptor: {}", std::io::Error::last_os_error());
        // SAFETY: fresh, and nobody else's.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Self { mail: Mutex::default(), has_mail: AtomicBool::new(false), event }
    }

    pub(super) fn post(&self, mail: Mail) {
        self.mail.lock().expect("no panic in it").push(mail);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if !self.has_mail.swap(true, Ordering::AcqRel) {
            // SAFETY: eight bytes that are alive; a full counter wakes as well.
            unsafe { libc::write(self.event.as_raw_fd(), std::ptr::from_ref(&1u64).cast(), 8) };
        }
    }

    pub(super) fn take(&self) -> Vec<Mail> {
        if !self.has_mail.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut count = 0u64;
        // SAFETY: eight bytes that are alive.
        unsafe { libc::read(self.event.as_raw_fd(), std::ptr::from_mut(&mut count).cast(), 8) };
        self.has_mail.store(false, Ordering::Release);
        std::mem::take(&mut *self.mail.lock().expect("no panic in it"))
    }
}

/// A thread of a router.
pub(super) struct Thread {
    pub(super) number: u32,
    pub(super) wave: Wave,
    /// Memory for those who pass a region.
    pub(super) visitors: Vec<Visitor>,
    /// The place of the packet that an element is working on, and how many came of it so far.
    pub(super) current: Place,
    pub(super) emitted: u32,
    /// The first of them: the last one that is kept, or where it waits.
    pub(super) is_first_kept: bool,
    pub(super) first: (Target, usize),
    /// The element whose packets for output 0 are kept until it is left, so that they go together; or nobody.
    pub(super) collects: usize,
    /// Whose packets are kept, also after it has sent a whole batch behind which nothing is kept.
    pub(super) keeper: usize,
    pub(super) kept: Batch,
    /// How many packets a task may emit, all in all, until they go their way.
    pub(super) room: usize,
    /// Whether packets come of a task or a timer, not of a packet.
    pub(super) is_root: bool,
    /// Whether they go their way one by one.
    pub(super) is_single: bool,
    pub(super) staged: VecDeque<(Target, Packet)>,
    /// Handlers to be called when nobody is in an element any more.
    pub(super) calls: VecDeque<(usize, HandlerCall)>,
    /// What handlers warned of since somebody asked.
    pub(super) warnings: Vec<String>,
    pub(super) now: Timestamp,
    /// Random numbers for each element, so that nobody's depend on when another one draws.
    pub(super) rngs: Vec<fastrand::Rng>,
    pub(super) tasks: BinaryHeap<Reverse<(u64, u64, usize)>>,
    pub(super) passes: Vec<u64>,
    /// The turn at which a task was put into the heap; what else is there of it has been taken back.
    pub(super) queued: Vec<u64>,
    pub(super) turn: u64,
    pub(super) timers: BinaryHeap<Reverse<(Timestamp, u64, usize, usize)>>,
    pub(super) armed: HashMap<(usize, usize), (Timestamp, u64)>,
    pub(super) selects: Vec<(RawFd, usize, Interest)>,
    /// How many tasks in a row had nothing to do.
    pub(super) idle: usize,
}

impl Thread {
    /// A thread of a router with so many inputs and elements.
    pub(super) fn new(number: u32, inputs: usize, elements: usize, now: Timestamp, seed: u64) -> Self {
        let nowhere = Target { element: 0, port: 0, input: 0, rank: 0 };
        let mut thread = Self {
            number,
            wave: Wave::new(inputs, elements),
            visitors: Vec::new(),
            current: Place::default(),
            emitted: 0,
            is_first_kept: false,
            first: (nowhere, 0),
            collects: NOBODY,
            keeper: NOBODY,
            kept: Batch::new(),
            room: usize::MAX,
            is_root: true,
            is_single: false,
            staged: VecDeque::new(),
            calls: VecDeque::new(),
            warnings: Vec::new(),
            now,
            rngs: Vec::new(),
            tasks: BinaryHeap::new(),
            passes: vec![0; elements],
            queued: vec![0; elements],
            turn: 0,
            timers: BinaryHeap::new(),
            armed: HashMap::new(),
            selects: Vec::new(),
            idle: 0,
        };
        thread.seed(seed);
        thread
    }

    /// Random numbers begin anew.
    pub(super) fn seed(&mut self, seed: u64) {
        let seed = seed.wrapping_add(u64::from(self.number) << 32);
        let draw = |element| fastrand::Rng::with_seed(seed.wrapping_add(element as u64));
        self.rngs = (0..self.passes.len()).map(draw).collect();
    }

    // Packets that an element emits.

    /// What was kept goes to its input.
    #[inline]
    pub(super) fn send_kept(&mut self, wiring: &Wiring) {
        if !self.kept.is_empty() {
            let target = wiring.target(self.keeper, 0);
            let index = self.wave.add_all(target, &mut self.kept);
            if self.is_first_kept {
                (self.first, self.is_first_kept) = ((target, index), false);
            }
        }
    }

    /// The same, where something is about to go to the same input behind it.
    #[inline]
    pub(super) fn send_before(&mut self, wiring: &Wiring, target: Target) {
        if !self.kept.is_empty() && wiring.target(self.keeper, 0).input == target.input {
            self.send_kept(wiring);
        }
    }

    /// The first packet that comes of one leaves places to those that follow.
    pub(super) fn narrow_first(&mut self) {
        let place = wave::part(self.current, 0);
        let (target, index) = self.first;
        if !self.is_first_kept {
            self.wave.narrow(target, index, place);
        } else if let Some(packet) = self.kept.last_mut() {
            packet.set_place(place);
        }
    }

    /// The place of a packet that comes of one behind others.
    #[cold]
    pub(super) fn next_place(&mut self) -> Place {
        let n = self.emitted;
        self.emitted += 1;
        if n == 1 {
            self.narrow_first();
        }
        wave::part(self.current, n)
    }

    // Tasks.

    pub(super) fn schedule(&mut self, element: usize) {
        // Whoever slept has no claim to the time that the others had.
        let now = self.tasks.peek().map_or(self.passes[element], |Reverse((pass, ..))| *pass);
        let pass = self.passes[element].max(now);
        self.passes[element] = pass;
        self.idle = 0;
        self.queue(element);
    }

    pub(super) fn queue(&mut self, element: usize) {
        self.turn += 1;
        self.queued[element] = self.turn;
        self.tasks.push(Reverse((self.passes[element], self.turn, element)));
    }

    // Timers.

    pub(super) fn set_timer(&mut self, element: usize, timer: usize, at: Option<Timestamp>) {
        let Some(at) = at else {
            self.armed.remove(&(element, timer));
            return;
        };
        self.turn += 1;
        self.armed.insert((element, timer), (at, self.turn));
        self.timers.push(Reverse((at, self.turn, element, timer)));
    }

    pub(super) fn is_armed(&self, (at, turn, element, timer): (Timestamp, u64, usize, usize)) -> bool {
        self.armed.get(&(element, timer)) == Some(&(at, turn))
    }

    pub(super) fn next_timer(&mut self) -> Option<Timestamp> {
        while let Some(Reverse(first)) = self.timers.peek().copied() {
            if self.is_armed(first) {
                return Some(first.0);
            }
            self.timers.pop();
        }
        None
    }

    // File descriptors.

    pub(super) fn select(&mut self, element: usize, fd: RawFd, interest: Interest) {
        self.selects.retain(|(other, of, _)| (*other, *of) != (fd, element));
        if interest != Interest::default() {
            self.selects.push((fd, element, interest));
        }
    }
}
