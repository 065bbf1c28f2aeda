//! How a thread runs: packets in waves, tasks in turns, timers when they expire, file descriptors when they are ready.

use super::core::Router;
use super::cx::Cx;
use super::thread::{Mail, NOBODY, Thread};
use crate::element::Run;
use crate::packet::{Batch, release};
use crate::schedule::Interest;
use std::cmp::Reverse;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a stride is divided by (Waldspurger and Weihl, 1995).
const STRIDE: u64 = 1 << 20;
/// How many turns of tasks pass between two looks at timers and file descriptors.
const TURNS: usize = 16;
/// How long a thread rests whose tasks all have nothing to do, and nobody tells them when there is something.
const REST: Duration = Duration::from_micros(50);
/// Handlers that call each other do so at most so often before packets go on.
const MOST_CALLS: usize = 1000;
/// The longest sleep.
const SLEEP: Duration = Duration::from_secs(60);

impl Thread {
    // Packets.

    /// Runs `work` as something that packets begin with, then lets them go their way.
    pub(super) fn root<R>(&mut self, router: &Router, id: usize, work: impl FnOnce(&mut Cx<'_>) -> R) -> R {
        (self.is_root, self.emitted) = (true, 0);
        self.is_single = !router.is_batched || router.is_watched[id];
        (self.keeper, self.collects) = (id, if self.is_single { NOBODY } else { id });
        let result = work(&mut Cx { router, thread: self, id });
        self.leave(router);
        self.make_calls(router);
        self.is_root = false;
        while let Some((target, packet)) = self.staged.pop_front() {
            self.wave.add(target, packet);
            self.drain(router);
        }
        self.drain(router);
        result
    }

    /// What an element has emitted goes on.
    #[inline]
    fn leave(&mut self, router: &Router) {
        self.send_kept(&router.wiring);
        self.collects = NOBODY;
    }

    /// Packets go their way until none is on it.
    fn drain(&mut self, router: &Router) {
        while let Some(rank) = self.wave.first() {
            if let Some(region) = router.wiring.region(rank) {
                self.pass_region(router, region, rank);
                continue;
            }
            let id = router.wiring.by_rank[rank] as usize;
            let mut inputs = router.wiring.inputs[id].clone().filter(|input| self.wave.has(*input));
            match (inputs.next(), inputs.next()) {
                (None, _) => {}
                (Some(input), None) => {
                    let batch = self.wave.take(input);
                    self.deliver_all_the_way(router, id, input, batch);
                }
                _ => self.deliver_mixed(router, id),
            }
        }
    }

    /// Packets come to an input. Those that leave by output 0 go on from element to element, as long as no others are on
    /// their way: then they need not wait anywhere.
    fn deliver_all_the_way(&mut self, router: &Router, mut id: usize, mut input: usize, mut batch: Batch) {
        loop {
            self.arrive(router, id, input, &mut batch);
            if self.kept.is_empty() || !self.wave.is_idle() || !self.calls.is_empty() {
                break;
            }
            let target = router.wiring.target(id, 0);
            if router.wiring.region(target.rank as usize).is_some() {
                break;
            }
            std::mem::swap(&mut batch, &mut self.kept);
            (id, input) = (target.element as usize, target.input as usize);
        }
        self.leave(router);
        self.wave.give_back(batch);
        self.make_calls(router);
    }

    /// Packets come to an input, and what the element emits waits.
    pub(super) fn deliver(&mut self, router: &Router, id: usize, input: usize, mut batch: Batch) {
        self.arrive(router, id, input, &mut batch);
        self.leave(router);
        self.wave.give_back(batch);
        self.make_calls(router);
    }

    #[inline]
    fn arrive(&mut self, router: &Router, id: usize, input: usize, batch: &mut Batch) {
        let port = input - router.wiring.inputs[id].start;
        if let Some(mut slot) = router.slots[id].enter(self.number) {
            router.count(input, batch.len() as u64);
            (self.keeper, self.collects) = (id, id);
            slot.arrive(&mut Cx { router, thread: self, id }, port, batch);
        }
        release(batch);
    }

    /// Calls handlers that elements wanted called; those may want others called.
    #[inline]
    fn make_calls(&mut self, router: &Router) {
        let mut left = MOST_CALLS;
        while let Some((id, call)) = self.calls.pop_front() {
            left -= 1;
            let mut cx = Cx { router, thread: self, id };
            if let Err(error) = cx.call(&call) {
                router.say(format_args!(
                    "While calling '{}' for '{}':\n  {error}",
                    call.handler,
                    router.declaration(id)
                ));
            }
            if left == 0 {
                router.say(format_args!("{}: too many handler calls, giving up", router.declaration(id)));
                self.calls.clear();
            }
        }
    }

    /// Packets wait at several inputs: they come in the order of their places, whichever input that is.
    fn deliver_mixed(&mut self, router: &Router, id: usize) {
        let mut all = Vec::new();
        for input in router.wiring.inputs[id].clone() {
            let mut batch = self.wave.take(input);
            all.extend(batch.drain(..).map(|packet| (input, packet)));
            self.wave.give_back(batch);
        }
        all.sort_by_key(|(_, packet)| packet.place().at);
        let mut all = all.into_iter().peekable();
        while let Some((input, packet)) = all.next() {
            let mut batch = vec![packet];
            while let Some((_, packet)) = all.next_if(|(other, _)| *other == input) {
                batch.push(packet);
            }
            self.deliver(router, id, input, batch);
        }
    }

    fn next_task(&mut self, router: &Router) -> Option<usize> {
        loop {
            let Reverse((_, turn, element)) = self.tasks.pop()?;
            if self.queued[element] == turn && router.tasks[element].claim() {
                return Some(element);
            }
        }
    }

    /// Runs a task: several times in a row, but at most `most` times, as long as it works and there is room for what it
    /// sends. Says about how often it ran: once for each packet, and once without one.
    fn run_task(&mut self, router: &Router, element: usize, most: usize) -> usize {
        self.room = router.room(self, element);
        let (mut did, mut runs) = (Run::Stop, 0);
        self.root(router, element, |cx| {
            let Some(mut slot) = cx.router.slots[element].enter(cx.thread.number) else { return };
            // Whoever is watched may be changed by what its packets lead to, as in Click.
            did = slot.run_tasks(cx, if cx.router.is_watched[element] { 1 } else { most });
            runs = most.min(cx.thread.emitted as usize + 1);
        });
        let tickets = u64::from(router.tasks[element].tickets.load(Ordering::Relaxed).max(1));
        self.passes[element] += STRIDE / tickets.min(STRIDE);
        self.idle = if did == Run::Worked { 0 } else { self.idle + 1 };
        if router.tasks[element].release(did, router.is_asleep(element)) {
            self.queue(element);
        } else if did == Run::Idle && !router.is_asleep(element) {
            // There was something to do between the look and the sleep.
            router.wake(self, element);
        }
        runs
    }

    /// A task stopped the router in the last one of `runs` runs in a row: tasks that wait since before get as many, as if all
    /// had had their runs by turns.
    fn catch_up(&mut self, router: &Router, pass: u64, runs: usize) {
        let mut behind = Vec::new();
        while self.tasks.peek().is_some_and(|Reverse((other, ..))| *other <= pass)
            && let Some(element) = self.next_task(router)
        {
            behind.push(element);
        }
        for element in behind {
            self.run_task(router, element, runs);
        }
    }

    fn run_timers(&mut self, router: &Router) {
        // Those which are set meanwhile for a time that has passed have their turn later.
        let last = self.turn;
        while self.next_timer().is_some_and(|at| at <= self.now) && !router.is_stopping() {
            let Some(Reverse(first)) = self.timers.peek().copied() else { return };
            if first.1 > last {
                return;
            }
            self.timers.pop();
            let (_, _, element, timer) = first;
            self.armed.remove(&(element, timer));
            self.root(router, element, |cx| {
                if let Some(mut slot) = cx.router.slots[element].enter(cx.thread.number) {
                    slot.run_timer(cx, timer);
                }
            });
        }
    }

    /// Waits for file descriptors or mail for at most so long.
    fn poll(&mut self, router: &Router, patience: Duration) {
        let flags = |interest: Interest| {
            let read = if interest.read { libc::POLLIN } else { 0 };
            let write = if interest.write { libc::POLLOUT } else { 0 };
            read | write
        };
        let mail = router.mailboxes[self.number as usize].event.as_raw_fd();
        let of_mail = libc::pollfd { fd: mail, events: libc::POLLIN, revents: 0 };
        let of_selects =
            self.selects.iter().map(|(fd, _, interest)| libc::pollfd { fd: *fd, events: flags(*interest), revents: 0 });
        let mut fds: Vec<libc::pollfd> = std::iter::once(of_mail).chain(of_selects).collect();
        let patience = libc::timespec {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(patience.subsec_nanos()),
        };
        // SAFETY: as many descriptors as said, and a time, which are alive.
        let ready =
            unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const patience, std::ptr::null()) };
        if ready <= 0 {
            return;
        }
        self.now = router.clock.now();
        let ready: Vec<_> = fds[1..]
            .iter()
            .zip(&self.selects)
            .filter(|(fd, _)| fd.revents != 0)
            .map(|(fd, (_, element, _))| (fd.fd, *element, fd.revents))
            .collect();
        for (fd, element, events) in ready {
            // An error or the other side's end is found by whoever reads or writes.
            let failed = events & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
            let ready =
                Interest { read: events & libc::POLLIN != 0 || failed, write: events & libc::POLLOUT != 0 || failed };
            self.root(router, element, |cx| {
                if let Some(mut slot) = cx.router.slots[element].enter(cx.thread.number) {
                    slot.selected(cx, fd, ready);
                }
            });
        }
    }

    fn read_mail(&mut self, router: &Router) {
        for mail in router.mailboxes[self.number as usize].take() {
            match mail {
                Mail::Task { element } => self.schedule(element),
                Mail::Timer { element, timer, at } => self.set_timer(element, timer, at),
                Mail::Select { element, fd, interest } => self.select(element, fd, interest),
                Mail::Asked => self.answer(router),
            }
        }
    }

    /// Does what is asked from outside.
    fn answer(&mut self, router: &Router) {
        let asked = std::mem::take(&mut *router.asked.lock().expect("no panic in it"));
        self.now = router.clock.now();
        for work in asked {
            work(router, self);
        }
    }

    // All together.

    /// Runs until the router stops.
    pub(super) fn run(&mut self, router: &Router) {
        while !router.is_stopping() {
            self.turn(router, SLEEP);
        }
    }

    /// A few turns of tasks, all timers that have expired, and a look at file descriptors: for which it waits at most so
    /// long, where there is nothing else to do.
    pub(super) fn turn(&mut self, router: &Router, patience: Duration) {
        self.read_mail(router);
        self.now = router.clock.now();
        for _ in 0..TURNS {
            if router.is_stopping() {
                return;
            }
            let Some(element) = self.next_task(router) else { break };
            let pass = self.passes[element];
            let runs = self.run_task(router, element, router.quantum);
            if router.is_stopping() {
                self.catch_up(router, pass, runs);
            }
        }
        self.run_timers(router);
        if router.is_stopping() {
            return;
        }
        let has_nothing = self.tasks.is_empty();
        let rests = self.idle >= self.tasks.len();
        let next = self.next_timer();
        if router.clock.jumps()
            && rests
            && let Some(at) = next
        {
            self.poll(router, Duration::ZERO);
            router.clock.advance(at);
            return;
        }
        let until = next.map_or(SLEEP, |at| router.clock.until(at));
        let patience = match (has_nothing, rests) {
            (true, _) => until.min(patience),
            (_, true) => until.min(REST),
            _ if self.selects.is_empty() => return,
            _ => Duration::ZERO,
        };
        self.poll(router, patience);
    }

    /// Whether it has nothing to do, now or later.
    pub(super) fn is_done(&mut self, router: &Router) -> bool {
        let next = self.next_timer();
        self.tasks.is_empty() && next.is_none_or(|at| router.clock.is_held_before(at)) && self.selects.is_empty()
    }
}
