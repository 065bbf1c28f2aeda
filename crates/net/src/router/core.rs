//! What all threads of a router share.

use super::detour::Detour;
use super::slot::Slot;
use super::task::TaskState;
use super::thread::{Mail, Mailbox, Thread};
use super::wiring::Wiring;
use crate::args::{Elements, NameDb};
use crate::element::{Class, Element, Handlers, Interest, Notes};
use crate::lang::Requirement;
use crate::{Clock, Landmark, Timestamp};
use std::any::Any;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// What a router knows of an element without entering it.
pub(super) struct Info {
    pub(super) name: String,
    pub(super) class: &'static Class,
    pub(super) config: Mutex<String>,
    pub(super) landmark: Landmark,
}

/// Whether an element has packets (or room), and whose tasks sleep until it has; in lines of the cache of its own.
#[repr(align(128))]
pub(super) struct Note {
    pub(super) is_active: AtomicBool,
    pub(super) is_of_room: bool,
    pub(super) listeners: Vec<usize>,
}

/// Packets that came to an input; in lines of the cache of its own, as each is written by one thread, and often.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Count(pub(super) AtomicU64);

/// The notes that a port depends on: it may have packets (or room) where one of them is active.
pub(super) type Signal = Option<Vec<(usize, bool)>>;

/// Where a line for people goes.
pub(super) type Say = Box<dyn FnMut(&str) + Send>;

/// How often a router that has ended has yet to be stopped.
const ENDED: i32 = i32::MIN;

/// What somebody outside wants a thread to do between batches.
pub(super) type Work = Box<dyn FnOnce(&Router, &mut Thread) + Send>;

/// A router whose elements are connected. [`Running`](super::Running) runs it.
pub struct Router {
    pub(super) elements: Vec<Info>,
    pub(super) numbers: HashMap<String, usize>,
    pub(super) slots: Vec<Slot<dyn Element>>,
    pub(super) handlers: OnceLock<Vec<Handlers>>,
    /// Handlers of the router itself.
    pub(super) root: Handlers,
    pub(super) wiring: Wiring,
    pub(super) tasks: Vec<TaskState>,
    pub(super) mailboxes: Vec<Mailbox>,
    /// What the first thread is asked to do.
    pub(super) asked: Mutex<Vec<Work>>,
    /// What takes its place as soon as its threads have stopped: a `Running`.
    pub(super) next: Mutex<Option<Box<dyn Any + Send>>>,
    /// The processor of the first thread, where each has one of its own.
    pub(super) affinity: Option<usize>,
    /// For each element, its note of packets; then, for each, its note of room.
    pub(super) notes: Vec<Note>,
    /// For each input, and for each output.
    pub(super) input_signals: Vec<Signal>,
    pub(super) output_signals: Vec<Signal>,
    /// Elements with room that packets of an element may come to.
    pub(super) storages: OnceLock<Vec<Vec<usize>>>,
    /// Elements whose packets come to one that observes.
    pub(super) is_watched: Vec<bool>,
    /// For each element, whether those who pull from it get packets of another one's, and of which input.
    pub(super) detours: Vec<Detour>,
    pub(super) counts: Vec<Count>,
    pub(super) names: NameDb,
    pub(super) requirements: Vec<Requirement>,
    pub(super) clock: Clock,
    pub(super) seed: AtomicU64,
    pub(super) quantum: usize,
    pub(super) is_batched: bool,
    /// Elements of the router whose place it takes, or has taken.
    pub(super) replaces: BTreeSet<String>,
    pub(super) runcount: AtomicI32,
    pub(super) driver: Mutex<Option<usize>>,
    pub(super) say: Mutex<Say>,
    pub(super) print: Mutex<Say>,
}

impl Router {
    // What it is made of.

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The number of an element, by its whole name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.number(name)
    }

    /// An element's name.
    pub fn name(&self, element: usize) -> &str {
        &self.elements[element].name
    }

    /// An element's class.
    pub fn class_of(&self, element: usize) -> &'static Class {
        self.elements[element].class
    }

    /// An element's configuration, as it was last written.
    pub fn config(&self, element: usize) -> String {
        self.elements[element].config.lock().expect("no panic in it").clone()
    }

    /// Where an element was declared.
    pub fn landmark(&self, element: usize) -> &Landmark {
        &self.elements[element].landmark
    }

    /// `name :: Class`, as messages have it.
    pub fn declaration(&self, element: usize) -> String {
        format!("{} :: {}", self.elements[element].name, self.elements[element].class.name)
    }

    /// Each element with its class and its configuration, for [`Options::replaces`](super::Options::replaces).
    pub fn declarations(&self) -> BTreeSet<String> {
        (0..self.len()).map(|element| self.declared(element)).collect()
    }

    /// `name :: Class(CONFIG)`.
    pub(super) fn declared(&self, element: usize) -> String {
        format!("{}({})", self.declaration(element), self.config(element))
    }

    /// All connections: element and output, element and input.
    pub fn connections(&self) -> Vec<((usize, usize), (usize, usize))> {
        self.wiring.connections().collect()
    }

    /// How many inputs and outputs an element has.
    pub fn ports_of(&self, element: usize) -> (usize, usize) {
        (self.wiring.inputs[element].len(), self.wiring.outputs[element].len())
    }

    /// How many packets have come to an input.
    pub fn packets_in(&self, element: usize, port: usize) -> u64 {
        self.counts[self.wiring.inputs[element].start + port].0.load(Ordering::Relaxed)
    }

    /// What the configuration requires.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The handlers of an element.
    pub fn handlers(&self, element: usize) -> Option<&Handlers> {
        self.handlers.get()?.get(element)
    }

    /// Whether a handler of an element, or of the router, can be read and written; nothing where there is none, or none that
    /// is for others than configurations.
    pub fn access(&self, element: Option<usize>, handler: &str) -> Option<(bool, bool)> {
        let handlers = match element {
            Some(element) => self.handlers(element)?,
            None => &self.root,
        };
        let found = handlers.find(handler).filter(|handler| !handler.is_private)?;
        Some((found.read.is_some(), found.write.is_some()))
    }

    /// The time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Says something to people: on standard error, unless [`Running::listen`](super::Running::listen) has it.
    pub fn say(&self, text: impl std::fmt::Display) {
        (self.say.lock().expect("no panic in it"))(&text.to_string());
    }

    /// Prints text as it is: on standard output, unless [`Running::listen`](super::Running::listen) has it.
    pub fn print(&self, text: &str) {
        (self.print.lock().expect("no panic in it"))(text);
    }

    // Whether it runs.

    /// Adds to how often it has yet to be stopped; at 0 it stops.
    pub fn adjust_runcount(&self, delta: i32) {
        self.change_runcount(|runcount| runcount.saturating_add(delta));
    }

    /// Sets how often it has yet to be stopped.
    pub fn set_runcount(&self, runcount: i32) {
        self.change_runcount(|_| runcount);
    }

    /// Changes how often it has yet to be stopped; whatever stops it, what takes its place goes on. What has ended has ended.
    fn change_runcount(&self, change: impl Fn(i32) -> i32) {
        let change = |runcount| (runcount != ENDED).then(|| change(runcount).max(ENDED + 1));
        let before = self.runcount.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        if before.is_ok() && self.is_stopping() {
            self.mailboxes.iter().for_each(Mailbox::wake);
        }
    }

    /// Ends all of it: nobody is asked whether it is to go on, and nothing takes its place.
    pub fn end(&self) {
        self.runcount.store(ENDED, Ordering::Release);
        self.mailboxes.iter().for_each(Mailbox::wake);
    }

    /// Its threads stop, for another one to take its place, unless all of it has ended.
    pub(super) fn replace(&self, next: Box<dyn Any + Send>) {
        *self.next.lock().expect("no panic in it") = Some(next);
        self.set_runcount(ENDED);
    }

    /// What takes its place.
    pub(super) fn take_next(&self) -> Option<Box<dyn Any + Send>> {
        let next = self.next.lock().expect("no panic in it").take();
        next.filter(|_| !self.has_ended())
    }

    pub(super) fn has_ended(&self) -> bool {
        self.runcount() == ENDED
    }

    /// How often it has yet to be stopped.
    pub fn runcount(&self) -> i32 {
        self.runcount.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.runcount.load(Ordering::Acquire) <= 0
    }

    // Tasks, timers, notes.

    pub(super) fn schedule(&self, thread: &mut Thread, element: usize) {
        if self.tasks[element].schedule() {
            self.tell(thread, element);
        }
    }

    pub(super) fn wake(&self, thread: &mut Thread, element: usize) {
        if self.tasks[element].wake() {
            self.tell(thread, element);
        }
    }

    /// Its thread puts it among the tasks that it runs.
    pub(super) fn tell(&self, thread: &mut Thread, element: usize) {
        match self.elsewhere(thread, element) {
            None => thread.schedule(element),
            Some(mailbox) => mailbox.post(Mail::Task { element }),
        }
    }

    pub(super) fn unschedule(&self, _: &mut Thread, element: usize) {
        self.tasks[element].unschedule();
    }

    pub(super) fn is_scheduled(&self, element: usize) -> bool {
        self.tasks[element].is_scheduled()
    }

    /// Where to leave mail for an element whose thread is not this one.
    pub(super) fn elsewhere(&self, thread: &Thread, element: usize) -> Option<&Mailbox> {
        let home = self.tasks[element].home.load(Ordering::Relaxed);
        (home != thread.number).then(|| &self.mailboxes[home as usize])
    }

    pub(super) fn set_timer(&self, thread: &mut Thread, element: usize, timer: usize, at: Option<Timestamp>) {
        match self.elsewhere(thread, element) {
            None => thread.set_timer(element, timer, at),
            Some(mailbox) => mailbox.post(Mail::Timer { element, timer, at }),
        }
    }

    pub(super) fn select(&self, thread: &mut Thread, element: usize, fd: RawFd, interest: Interest) {
        match self.elsewhere(thread, element) {
            None => thread.select(element, fd, interest),
            Some(mailbox) => mailbox.post(Mail::Select { element, fd, interest }),
        }
    }

    #[inline]
    pub(super) fn note(&self, thread: &mut Thread, element: usize, of_room: bool, is_active: bool) {
        let note = &self.notes[element + if of_room { self.len() } else { 0 }];
        if note.is_active.load(Ordering::Relaxed) == is_active {
            return;
        }
        note.is_active.store(is_active, Ordering::SeqCst);
        if is_active {
            self.spread(thread, note);
        }
    }

    /// Wakes those who listen, and those who listen to elements that relay.
    pub(super) fn spread<'a>(&'a self, thread: &mut Thread, note: &'a Note) {
        let mut open = Vec::new();
        let mut next = Some(note);
        while let Some(note) = next {
            for listener in &note.listeners {
                self.wake(thread, *listener);
                let relay = &self.notes[*listener];
                let relays = !note.is_of_room && self.elements[*listener].class.empty == Notes::Relays;
                if relays && !relay.is_active.swap(true, Ordering::SeqCst) {
                    open.push(relay);
                }
            }
            next = open.pop();
        }
    }

    pub(super) fn is_active(&self, note: &(usize, bool)) -> bool {
        self.notes[note.0 + if note.1 { self.len() } else { 0 }].is_active.load(Ordering::SeqCst)
    }

    pub(super) fn may_pull(&self, element: usize, port: usize) -> bool {
        let signal = &self.input_signals[self.wiring.inputs[element].start + port];
        signal.as_ref().is_none_or(|notes| notes.iter().any(|note| self.is_active(note)))
    }

    pub(super) fn may_push(&self, element: usize, port: usize) -> bool {
        let signal = &self.output_signals[self.wiring.outputs[element].start + port];
        signal.as_ref().is_none_or(|notes| notes.iter().any(|note| self.is_active(note)))
    }

    /// Whether somebody will wake an element's task when there is something to do for it.
    pub(super) fn is_asleep(&self, element: usize) -> bool {
        let (inputs, outputs) = (self.wiring.inputs[element].len(), self.wiring.outputs[element].len());
        let pulls = (0..inputs).any(|port| self.wiring.input_is_pull(element, port));
        let is_empty =
            pulls && (0..inputs).all(|port| !self.wiring.input_is_pull(element, port) || !self.may_pull(element, port));
        let is_full =
            || (0..outputs).any(|port| self.wiring.output_is_push(element, port) && !self.may_push(element, port));
        is_empty || is_full()
    }

    #[inline]
    pub(super) fn count(&self, input: usize, packets: u64) {
        // Whoever counts is in the element whose input it is, alone.
        let count = &self.counts[input].0;
        count.store(count.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
    }

    pub(super) fn room(&self, thread: &Thread, element: usize) -> usize {
        let storages = self.storages.get().map_or(&[][..], |storages| &storages[element]);
        let room = |storage: &usize| self.slots[*storage].enter(thread.number).and_then(|slot| slot.room());
        storages.iter().filter_map(room).min().unwrap_or(usize::MAX).clamp(1, self.quantum)
    }

    /// Where a pull input gets its packets, past those who only show the way.
    #[inline]
    pub(super) fn source(&self, element: usize, port: usize) -> Option<(usize, usize)> {
        let (mut from, mut output) = self.wiring.source(element, port)?;
        let mut ways = 2 * self.len();
        while let Some(input) = self.detours[from].input(output) {
            // Some lead round in a circle.
            ways = ways.checked_sub(1)?;
            (from, output) = self.wiring.source(from, input)?;
        }
        Some((from, output))
    }

    // Who reaches whom.

    /// Elements reached from a port (or all) of an element, along connections and flows; not beyond those that `stop`.
    pub(super) fn reach(
        &self,
        element: usize,
        port: Option<usize>,
        is_down: bool,
        stop: &dyn Fn(usize) -> bool,
    ) -> Vec<usize> {
        let connections: Vec<_> = self.wiring.connections().collect();
        let ports = if is_down { self.wiring.outputs[element].len() } else { self.wiring.inputs[element].len() };
        let mut open: Vec<_> =
            (0..ports).filter(|n| port.is_none_or(|port| port == *n)).map(|n| (element, n)).collect();
        let mut seen: HashSet<_> = open.iter().copied().collect();
        let mut found = Vec::new();
        while let Some(from) = open.pop() {
            for (output, input) in &connections {
                let (here, (to, port)) = if is_down { (output, *input) } else { (input, *output) };
                if *here != from {
                    continue;
                }
                if !found.contains(&to) {
                    found.push(to);
                }
                if stop(to) {
                    continue;
                }
                open.extend(self.through(to, port, is_down).into_iter().filter(|next| seen.insert(*next)));
            }
        }
        found.sort_unstable();
        found
    }

    /// The ports on an element's other side that packets of a port flow to or come from.
    pub(super) fn through(&self, element: usize, port: usize, is_down: bool) -> Vec<(usize, usize)> {
        let flows: Vec<bool> = if is_down {
            self.wiring.flows(element, port)
        } else {
            (0..self.wiring.inputs[element].len()).map(|input| self.wiring.flows(element, input)[port]).collect()
        };
        flows.iter().enumerate().filter(|(_, flows)| **flows).map(|(n, _)| (element, n)).collect()
    }

    pub(super) fn find_signals(&mut self) {
        for element in 0..self.len() {
            for port in 0..self.wiring.inputs[element].len() {
                let input = self.wiring.inputs[element].start + port;
                if self.wiring.input_is_pull(element, port) {
                    self.input_signals[input] = self.signal(element, port, false);
                }
            }
            for port in 0..self.wiring.outputs[element].len() {
                let output = self.wiring.outputs[element].start + port;
                if self.wiring.output_is_push(element, port) {
                    // Without anybody who tells, there is always room.
                    self.output_signals[output] = self.signal(element, port, true).filter(|notes| !notes.is_empty());
                }
            }
        }
        let of = |signals: &[Signal], ports: &std::ops::Range<usize>| -> Vec<(usize, bool)> {
            signals[ports.clone()].iter().flatten().flatten().copied().collect()
        };
        for element in 0..self.len() {
            let mut notes = of(&self.input_signals, &self.wiring.inputs[element]);
            notes.extend(of(&self.output_signals, &self.wiring.outputs[element]));
            let n = self.len();
            for (owner, of_room) in notes {
                let listeners = &mut self.notes[owner + if of_room { n } else { 0 }].listeners;
                if !listeners.contains(&element) {
                    listeners.push(element);
                }
            }
        }
    }

    /// The notes that a port depends on; nothing where an element is in the way of which nobody knows whether it has packets
    /// (or room): one that makes, stores or drops them, and does not tell.
    pub(super) fn signal(&self, element: usize, port: usize, is_down: bool) -> Signal {
        let mut notes = Vec::new();
        let tells = |element: usize| {
            let class = self.elements[element].class;
            if is_down { class.full } else { class.empty }
        };
        let reached = self.reach(element, Some(port), is_down, &|to| tells(to) != Notes::Passes);
        for to in reached {
            match tells(to) {
                Notes::Own | Notes::Relays => notes.push((to, is_down)),
                Notes::Passes if self.is_end(to, is_down) => return None,
                Notes::Never | Notes::Passes => {}
            }
        }
        Some(notes)
    }

    /// Whether pushed packets do not go on from one of an element's inputs as pushed ones, or pulled ones do not come to one
    /// of its outputs as pulled ones.
    fn is_end(&self, element: usize, is_down: bool) -> bool {
        let pulls = |port| self.wiring.input_is_pull(element, port);
        let pushes = |port| self.wiring.output_is_push(element, port);
        let ends = |port, crosses: &dyn Fn(usize) -> bool| {
            let next = self.through(element, port, is_down);
            next.is_empty() || next.iter().any(|(_, port)| crosses(*port))
        };
        if is_down {
            (0..self.wiring.inputs[element].len()).any(|port| !pulls(port) && ends(port, &|port| !pushes(port)))
        } else {
            (0..self.wiring.outputs[element].len()).any(|port| !pushes(port) && ends(port, &|port| !pulls(port)))
        }
    }
}

impl Elements for Router {
    fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }
    fn class(&self, number: usize) -> &str {
        self.elements[number].class.name
    }
    fn ports(&self, number: usize) -> (usize, usize) {
        self.ports_of(number)
    }
    fn within(&self, compound: &str) -> Vec<String> {
        let is_inside = |name: &&str| name.strip_prefix(compound).is_some_and(|rest| rest.starts_with('/'));
        self.elements.iter().map(|info| info.name.as_str()).filter(is_inside).map(str::to_owned).collect()
    }
}
