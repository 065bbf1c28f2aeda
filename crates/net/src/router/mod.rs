//! Routers: a graph of elements that run.
//!
//! ```text
//!   codes     what a class says of its ports
//!   wiring    connections, checked and resolved
//!   rank      the order in which a wave visits elements
//!   wave      packets on their way
//!   slot      one call at a time enters an element
//!   task      whether a task is scheduled
//!   thread    tasks, timers, file descriptors
//!   cx        what an element reaches
//!   detour    elements that show the way to others
//!   call      handlers
//! ```
//!
//! Locks. A thread is in one element while packets are pushed, and in a chain of elements, each upstream of the one before,
//! while packets are pulled; [`Cx::with`] and handlers enter one more. What it emits waits in the thread's own wave. So
//! threads wait for each other at an element for the length of a batch, and never in a circle.

mod call;
mod codes;
mod cx;
mod detour;
mod rank;
mod slot;
mod task;
#[cfg(test)]
mod tests;
mod thread;
mod wave;
mod wiring;

pub use cx::Cx;

use crate::args::{ArgCx, Args, Elements, HandlerCall, NameDb, NameKind};
use crate::element::{Class, Interest, Notes};
use crate::handler::Handlers;
use crate::lang::{Graph, Requirement};
use crate::registry::Registry;
use crate::{Clock, Landmark, Log, Timestamp};
use detour::Detour;
use slot::Slot;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use task::TaskState;
use thread::{Mail, Mailbox, Thread};
use wiring::Wiring;

/// How a router runs.
#[derive(Debug)]
pub struct Options {
    /// What time it is.
    pub clock: Clock,
    /// How many threads run tasks, at least 1.
    pub threads: usize,
    /// How often in a row a task is run before its packets go their way, at least 1. With 1, tasks alternate as in Click.
    pub quantum: usize,
    /// Whether packets go together. The results are the same; it is for comparisons.
    pub is_batched: bool,
    /// Where random numbers begin.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: Clock::system(), threads: 1, quantum: 32, is_batched: true, seed: fastrand::u64(..) }
    }
}

/// What a router knows of an element without entering it.
struct Info {
    name: String,
    class: &'static Class,
    config: Mutex<String>,
    landmark: Landmark,
}

/// Whether an element has packets (or room), and whose tasks sleep until it has.
struct Note {
    is_active: AtomicBool,
    is_of_room: bool,
    listeners: Vec<usize>,
}

/// The notes that a port depends on: it may have packets (or room) where one of them (all) is active.
type Signal = Option<Vec<(usize, bool)>>;

/// Where a line for people goes.
type Say = Box<dyn FnMut(&str) + Send>;

/// A router whose elements are connected. [`Running`] runs it.
pub struct Router {
    elements: Vec<Info>,
    numbers: HashMap<String, usize>,
    slots: Vec<Slot>,
    handlers: OnceLock<Vec<Handlers>>,
    wiring: Wiring,
    tasks: Vec<TaskState>,
    mailboxes: Vec<Mailbox>,
    /// For each element, its note of packets; then, for each, its note of room.
    notes: Vec<Note>,
    /// For each input, and for each output.
    input_signals: Vec<Signal>,
    output_signals: Vec<Signal>,
    /// Elements with room that packets of an element may come to.
    storages: OnceLock<Vec<Vec<usize>>>,
    /// Elements whose packets come to one that observes.
    is_watched: Vec<bool>,
    /// For each element, whether those who pull from it get packets of another one's, and of which input.
    detours: Vec<Detour>,
    counts: Vec<AtomicU64>,
    names: NameDb,
    requirements: Vec<Requirement>,
    clock: Clock,
    seed: AtomicU64,
    quantum: usize,
    is_batched: bool,
    runcount: AtomicI32,
    driver: Mutex<Option<usize>>,
    say: Mutex<Say>,
    print: Mutex<Say>,
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

    /// All connections: element and output, element and input.
    pub fn connections(&self) -> Vec<((usize, usize), (usize, usize))> {
        self.wiring.connections().collect()
    }

    /// How many packets have come to an input.
    pub fn packets_in(&self, element: usize, port: usize) -> u64 {
        self.counts[self.wiring.inputs[element].start + port].load(Ordering::Relaxed)
    }

    /// What the configuration requires.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The handlers of an element.
    pub fn handlers(&self, element: usize) -> Option<&Handlers> {
        self.handlers.get()?.get(element)
    }

    /// Whether a handler of an element, or of the router, can be read and written; nothing where there is none.
    pub fn access(&self, element: Option<usize>, handler: &str) -> Option<(bool, bool)> {
        let root = call::root();
        let handlers = match element {
            Some(element) => self.handlers(element)?,
            None => &root,
        };
        handlers.get(handler).map(|handler| (handler.read.is_some(), handler.write.is_some()))
    }

    /// The time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Says something to people: on standard error, unless [`Running::listen`] has it.
    pub fn say(&self, text: impl std::fmt::Display) {
        (self.say.lock().expect("no panic in it"))(&text.to_string());
    }

    /// Prints text as it is: on standard output, unless [`Running::listen`] has it.
    pub fn print(&self, text: &str) {
        (self.print.lock().expect("no panic in it"))(text);
    }

    // Whether it runs.

    /// Adds to how often it has yet to be stopped; at 0 it stops.
    pub fn adjust_runcount(&self, delta: i32) {
        self.set_runcount(self.runcount.load(Ordering::Relaxed).saturating_add(delta));
    }

    /// Sets how often it has yet to be stopped.
    pub fn set_runcount(&self, runcount: i32) {
        self.runcount.store(runcount, Ordering::Release);
        if runcount <= 0 {
            self.mailboxes.iter().for_each(Mailbox::wake);
        }
    }

    /// How often it has yet to be stopped.
    pub fn runcount(&self) -> i32 {
        self.runcount.load(Ordering::Relaxed)
    }

    #[inline]
    fn is_stopping(&self) -> bool {
        self.runcount.load(Ordering::Acquire) <= 0
    }

    // Tasks, timers, notes.

    fn schedule(&self, thread: &mut Thread, element: usize) {
        if self.tasks[element].schedule() {
            self.tell(thread, element);
        }
    }

    fn wake(&self, thread: &mut Thread, element: usize) {
        if self.tasks[element].wake() {
            self.tell(thread, element);
        }
    }

    /// Its thread puts it among the tasks that it runs.
    fn tell(&self, thread: &mut Thread, element: usize) {
        match self.elsewhere(thread, element) {
            None => thread.schedule(element),
            Some(mailbox) => mailbox.post(Mail::Task { element }),
        }
    }

    fn unschedule(&self, _: &mut Thread, element: usize) {
        self.tasks[element].unschedule();
    }

    fn is_scheduled(&self, element: usize) -> bool {
        self.tasks[element].is_scheduled()
    }

    /// Where to leave mail for an element whose thread is not this one.
    fn elsewhere(&self, thread: &Thread, element: usize) -> Option<&Mailbox> {
        let home = self.tasks[element].home.load(Ordering::Relaxed);
        (home != thread.number).then(|| &self.mailboxes[home as usize])
    }

    fn set_timer(&self, thread: &mut Thread, element: usize, timer: usize, at: Option<Timestamp>) {
        match self.elsewhere(thread, element) {
            None => thread.set_timer(element, timer, at),
            Some(mailbox) => mailbox.post(Mail::Timer { element, timer, at }),
        }
    }

    fn select(&self, thread: &mut Thread, element: usize, fd: RawFd, interest: Interest) {
        match self.elsewhere(thread, element) {
            None => thread.select(element, fd, interest),
            Some(mailbox) => mailbox.post(Mail::Select { element, fd, interest }),
        }
    }

    #[inline]
    fn note(&self, thread: &mut Thread, element: usize, of_room: bool, is_active: bool) {
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
    fn spread<'a>(&'a self, thread: &mut Thread, note: &'a Note) {
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

    fn is_active(&self, note: &(usize, bool)) -> bool {
        self.notes[note.0 + if note.1 { self.len() } else { 0 }].is_active.load(Ordering::SeqCst)
    }

    fn may_pull(&self, element: usize, port: usize) -> bool {
        let signal = &self.input_signals[self.wiring.inputs[element].start + port];
        signal.as_ref().is_none_or(|notes| notes.iter().any(|note| self.is_active(note)))
    }

    fn may_push(&self, element: usize, port: usize) -> bool {
        let signal = &self.output_signals[self.wiring.outputs[element].start + port];
        signal.as_ref().is_none_or(|notes| notes.iter().all(|note| self.is_active(note)))
    }

    /// Whether somebody will wake an element's task when there is something to do for it.
    fn is_asleep(&self, element: usize) -> bool {
        let (inputs, outputs) = (self.wiring.inputs[element].len(), self.wiring.outputs[element].len());
        let pulls = (0..inputs).any(|port| self.wiring.input_is_pull(element, port));
        let is_empty =
            pulls && (0..inputs).all(|port| !self.wiring.input_is_pull(element, port) || !self.may_pull(element, port));
        let is_full =
            || (0..outputs).any(|port| self.wiring.output_is_push(element, port) && !self.may_push(element, port));
        is_empty || is_full()
    }

    #[inline]
    fn count(&self, input: usize, packets: u64) {
        // Whoever counts is in the element whose input it is, alone.
        let count = &self.counts[input];
        count.store(count.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
    }

    fn room(&self, thread: &Thread, element: usize) -> usize {
        let storages = self.storages.get().map_or(&[][..], |storages| &storages[element]);
        let room = |storage: &usize| self.slots[*storage].enter(thread.number).and_then(|slot| slot.room());
        storages.iter().filter_map(room).min().unwrap_or(usize::MAX).clamp(1, self.quantum)
    }

    /// Where a pull input gets its packets, past those who only show the way.
    #[inline]
    fn source(&self, element: usize, port: usize) -> Option<(usize, usize)> {
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
    fn reach(&self, element: usize, port: Option<usize>, is_down: bool, stop: &dyn Fn(usize) -> bool) -> Vec<usize> {
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
    fn through(&self, element: usize, port: usize, is_down: bool) -> Vec<(usize, usize)> {
        let flows: Vec<bool> = if is_down {
            self.wiring.flows(element, port)
        } else {
            (0..self.wiring.inputs[element].len()).map(|input| self.wiring.flows(element, input)[port]).collect()
        };
        flows.iter().enumerate().filter(|(_, flows)| **flows).map(|(n, _)| (element, n)).collect()
    }

    fn find_signals(&mut self) {
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

    /// The notes that a port depends on; nothing where an element is in the way of which nobody knows whether it has packets.
    fn signal(&self, element: usize, port: usize, is_down: bool) -> Signal {
        let mut notes = Vec::new();
        let tells = |element: usize| {
            let class = self.elements[element].class;
            if is_down { class.full } else { class.empty }
        };
        let reached = self.reach(element, Some(port), is_down, &|to| tells(to) != Notes::Passes);
        for to in reached {
            match tells(to) {
                Notes::Own | Notes::Relays => notes.push((to, is_down)),
                Notes::Never => {}
                Notes::Passes if is_down => {}
                // Whoever makes packets that are pulled, and does not tell.
                Notes::Passes => {
                    let ports = 0..self.wiring.outputs[to].len();
                    let is_source = ports.clone().any(|port| self.through(to, port, false).is_empty());
                    if is_source {
                        return None;
                    }
                }
            }
        }
        Some(notes)
    }
}

/// A router with its threads.
pub struct Running {
    router: Arc<Router>,
    threads: Vec<Thread>,
}

/// Makes a router of a graph: all elements are configured, connected and initialised, or everything that is wrong is
/// reported and nothing has started.
pub fn build(graph: &Graph, registry: &Registry, options: Options, log: &mut Log) -> Option<Running> {
    let before = log.errors();
    let mut classes = Vec::new();
    for element in &graph.elements {
        match registry.get(&element.class) {
            Some(class) => classes.push(class),
            None => log.error(&element.landmark, format_args!("unknown element class '{}'", element.class)),
        }
    }
    if log.errors() > before {
        return None;
    }
    let built =
        Wiring::new(graph, &classes, log).and_then(|wiring| Build::new(graph, &classes, wiring, options).finish(log));
    if built.is_none() {
        log.error(&Landmark::default(), "Router could not be initialized!");
    }
    built
}

/// A router that is being made.
struct Build {
    router: Router,
    threads: usize,
    order: Vec<usize>,
}

impl Build {
    fn new(graph: &Graph, classes: &[&'static Class], wiring: Wiring, options: Options) -> Self {
        let n = classes.len();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|element| classes[*element].phase);
        let slots = classes.iter().map(|class| Slot::new((class.make)())).collect();
        let numbers =
            graph.elements.iter().enumerate().map(|(number, element)| (element.name.clone(), number)).collect();
        let elements = graph.elements.iter().zip(classes).map(|(element, class)| Info {
            name: element.name.clone(),
            class,
            config: Mutex::new(element.config.clone()),
            landmark: element.landmark.clone(),
        });
        let (inputs, outputs) =
            (wiring.inputs.last().map_or(0, |range| range.end), wiring.outputs.last().map_or(0, |range| range.end));
        let note = |note: usize| {
            let is_of_room = note >= n;
            let is_active = is_of_room || classes[note].empty == Notes::Relays;
            Note { is_active: AtomicBool::new(is_active), is_of_room, listeners: Vec::new() }
        };
        let notes = (0..2 * n).map(note).collect();
        let router = Router {
            elements: elements.collect(),
            numbers,
            slots,
            handlers: OnceLock::new(),
            wiring,
            tasks: Vec::new(),
            mailboxes: (0..options.threads.max(1)).map(|_| Mailbox::new()).collect(),
            notes,
            input_signals: vec![None; inputs],
            output_signals: vec![None; outputs],
            storages: OnceLock::new(),
            is_watched: vec![false; n],
            detours: (0..n).map(|_| Detour::default()).collect(),
            counts: (0..inputs).map(|_| AtomicU64::new(0)).collect(),
            names: NameDb::default(),
            requirements: graph.requirements.clone(),
            clock: options.clock,
            seed: AtomicU64::new(options.seed),
            quantum: options.quantum.max(1),
            is_batched: options.is_batched,
            runcount: AtomicI32::new(1),
            driver: Mutex::new(None),
            say: Mutex::new(Box::new(|text| eprintln!("{text}"))),
            print: Mutex::new(Box::new(|text| {
                // A reader who has gone is no reason to end.
                let mut out = std::io::stdout().lock();
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            })),
        };
        Self { router, threads: options.threads.max(1), order }
    }

    fn finish(mut self, log: &mut Log) -> Option<Running> {
        self.configure(log)?;
        self.router.find_signals();
        let number = |bytes: Option<&[u8]>| bytes.and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        let names = &self.router.names;
        let tasks = self.router.elements.iter().map(|info| {
            let tickets = crate::elements::info::schedule::tickets(names, &info.name);
            let home = number(names.get(NameKind::HomeThread, &info.name, ""));
            TaskState::new(tickets, home.filter(|home| (*home as usize) < self.threads).unwrap_or(0))
        });
        self.router.tasks = tasks.collect();
        let handlers = self.router.slots.iter().map(|slot| {
            let mut handlers = call::defaults();
            slot.enter(0).expect("nobody is in it").handlers(&mut handlers);
            handlers
        });
        let _ = self.router.handlers.set(handlers.collect());
        let mut threads: Vec<_> = (0..self.threads).map(|number| Thread::new(number as u32, &self.router)).collect();
        if !self.initialize(&mut threads[0], log) {
            return None;
        }
        self.look_around();
        let seed = self.router.seed.load(Ordering::Relaxed);
        for (number, thread) in threads.iter_mut().enumerate().skip(1) {
            thread.rng = fastrand::Rng::with_seed(seed.wrapping_add(number as u64));
        }
        Some(Running { router: Arc::new(self.router), threads })
    }

    fn configure(&mut self, log: &mut Log) -> Option<()> {
        let before = log.errors();
        for element in &self.order {
            let (defined, router) = (Mutex::new(Vec::new()), &self.router);
            let info = &router.elements[*element];
            let context = format!("While configuring '{}':", router.declaration(*element));
            log.within(&info.landmark, context, |log| {
                let before = log.errors();
                let config = info.config.lock().expect("no panic in it").clone();
                let cx = ArgCx { elements: router, names: &router.names, element: &info.name };
                let mut args = Args::new(&config, cx, log);
                let result = router.slots[*element].enter(0).expect("nobody is in it").configure(&mut args);
                defined.lock().expect("no panic in it").append(&mut args.take_definitions());
                if result.is_err() && log.errors() == before {
                    log.error_here("unspecified error");
                }
            });
            for (kind, name, value) in defined.into_inner().expect("no panic in it") {
                self.router.names.define(kind, name, &value);
            }
        }
        (log.errors() == before).then_some(())
    }

    fn initialize(&self, thread: &mut Thread, log: &mut Log) -> bool {
        for (done, element) in self.order.iter().enumerate() {
            let router = &self.router;
            let result = thread
                .root(router, *element, |cx| router.slots[*element].enter(0).expect("nobody is in it").initialize(cx));
            let Err(error) = result else { continue };
            let context = format!("While initializing '{}':", router.declaration(*element));
            log.within(&router.elements[*element].landmark, context, |log| {
                error.lines().for_each(|line| log.error_here(line));
            });
            for element in self.order[..done].iter().rev() {
                thread
                    .root(router, *element, |cx| router.slots[*element].enter(0).expect("nobody is in it").cleanup(cx));
            }
            return false;
        }
        true
    }

    /// Finds who stores packets of whom, and who is watched.
    fn look_around(&mut self) {
        let router = &mut self.router;
        let all = 0..router.len();
        let stores: Vec<bool> =
            all.clone().map(|e| router.slots[e].enter(0).is_some_and(|slot| slot.room().is_some())).collect();
        let down: Vec<Vec<usize>> = all.clone().map(|e| router.reach(e, None, true, &|to| stores[to])).collect();
        for element in all {
            let observes = |e: &usize| router.slots[*e].enter(0).is_some_and(|slot| slot.observes());
            router.is_watched[element] = observes(&element) || down[element].iter().any(observes);
        }
        let storages = down.into_iter().map(|down| down.into_iter().filter(|e| stores[*e]).collect()).collect();
        let _ = router.storages.set(storages);
    }
}

impl Running {
    /// The router.
    pub fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// Where lines for people, and what is printed, go from now on.
    pub fn listen(&self, say: impl FnMut(&str) + Send + 'static, print: impl FnMut(&str) + Send + 'static) {
        *self.router.say.lock().expect("no panic in it") = Box::new(say);
        *self.router.print.lock().expect("no panic in it") = Box::new(print);
    }

    /// Runs until the router is stopped, and nobody wants it to go on.
    pub fn run(&mut self) {
        loop {
            self.run_threads();
            if !self.ask_driver() {
                return;
            }
        }
    }

    fn run_threads(&mut self) {
        let (first, others) = self.threads.split_first_mut().expect("a router has a thread");
        let router = &*self.router;
        std::thread::scope(|scope| {
            for thread in others {
                scope.spawn(|| thread.run(router));
            }
            first.run(router);
        });
    }

    /// The router has stopped: whether the element that drives it lets it go on.
    fn ask_driver(&mut self) -> bool {
        let Some(driver) = *self.router.driver.lock().expect("no panic in it") else { return false };
        let router = &*self.router;
        self.threads[0].root(router, driver, |cx| {
            let Some(mut slot) = router.slots[driver].enter(0) else { return };
            slot.stopped(cx);
        });
        !router.is_stopping()
    }

    /// Runs until nothing is left to do, now or by a timer, or the router is stopped, for at most so many turns. For tests,
    /// and where a router is part of another program.
    pub fn run_for(&mut self, turns: usize) {
        for _ in 0..turns {
            let router = &*self.router;
            if router.is_stopping() && !self.ask_driver() {
                return;
            }
            let router = &*self.router;
            self.threads.iter_mut().for_each(|thread| thread.turn(router, Duration::ZERO));
            if self.threads.iter_mut().all(|thread| thread.is_done(router)) {
                return;
            }
        }
    }

    /// Runs `work` as if an element did it, whichever that is: for handlers, and for tests.
    pub fn enter<R>(&mut self, element: usize, work: impl FnOnce(&mut Cx<'_>) -> R) -> R {
        let thread = &mut self.threads[0];
        thread.now = self.router.clock.now();
        thread.root(&self.router, element, work)
    }

    /// Reads a handler: `element.handler`, or `handler` of the router.
    pub fn read(&mut self, name: &str) -> Result<String, String> {
        let (name, argument) = name.split_once(' ').unwrap_or((name, ""));
        let call = self.call(name)?;
        self.enter(0, |cx| call::read(cx, call.element, &call.handler, argument))
    }

    /// Writes a handler.
    pub fn write(&mut self, name: &str, value: &str) -> Result<(), String> {
        let call = self.call(name)?;
        self.enter(0, |cx| call::write(cx, call.element, &call.handler, value))
    }

    fn call(&self, name: &str) -> Result<HandlerCall, String> {
        let cx = ArgCx { elements: &*self.router, names: &self.router.names, element: "" };
        crate::args::Arg::parse(name, &cx)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let router = Arc::clone(&self.router);
        for element in (0..router.len()).rev() {
            self.enter(element, |cx| {
                if let Some(mut slot) = router.slots[element].enter(0) {
                    slot.cleanup(cx);
                }
            });
        }
    }
}
