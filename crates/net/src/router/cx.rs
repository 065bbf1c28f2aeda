//! What an element reaches while it is called.

use super::core::Router;
use super::thread::{NOBODY, Thread};
use super::wave;
use crate::args::{Arg, ArgCx, Args, HandlerCall};
use crate::element::{Batch, Element, Handler, Interest, Read, Write};
use crate::{Log, Packet, Timestamp};
use std::any::Any;
use std::fmt::Display;
use std::os::fd::RawFd;

/// The router as seen from an element that is being called.
pub struct Cx<'a> {
    pub(super) router: &'a Router,
    pub(super) thread: &'a mut Thread,
    pub(super) id: usize,
}

impl Cx<'_> {
    // Packets.

    /// What is emitted from now on comes of this packet: `push_batch` says so for each packet that it takes.
    #[inline]
    pub fn begin(&mut self, packet: &Packet) {
        self.thread.current = packet.place();
        self.thread.emitted = 0;
    }

    /// Sends a packet to a push output. It arrives after this call has returned.
    #[inline]
    pub fn emit(&mut self, port: usize, mut packet: Packet) {
        let thread = &mut *self.thread;
        if port == 0 && thread.collects == self.id && (thread.emitted == 0 || thread.is_root) {
            packet.set_place(if thread.is_root { wave::begin(thread.emitted) } else { thread.current });
            thread.emitted += 1;
            thread.is_first_kept = true;
            thread.kept.push(packet);
            return;
        }
        self.emit_apart(port, packet);
    }

    /// What does not leave by output 0 together with others goes to its input at once.
    fn emit_apart(&mut self, port: usize, mut packet: Packet) {
        let target = self.router.wiring.target(self.id, port);
        let thread = &mut *self.thread;
        let n = thread.emitted;
        thread.emitted += 1;
        if thread.is_root && thread.is_single {
            packet.set_place(wave::begin(n));
            thread.staged.push_back((target, packet));
            return;
        }
        if n == 1 && !thread.is_root {
            thread.narrow_first();
        }
        thread.send_before(&self.router.wiring, target);
        packet.set_place(match n {
            _ if thread.is_root => wave::begin(n),
            0 => thread.current,
            _ => wave::part(thread.current, n),
        });
        let index = thread.wave.add(target, packet);
        if n == 0 {
            (thread.first, thread.is_first_kept) = ((target, index), false);
        }
    }

    /// The same, where there may be no such output: then the packet is dropped. Says whether there is one.
    #[inline]
    pub fn emit_checked(&mut self, port: usize, packet: Packet) -> bool {
        let is_there = port < self.outputs();
        if is_there {
            self.emit(port, packet);
        }
        is_there
    }

    /// For `push_batch`: keeps the packets for which `keep` says so, and sends them to output 0 together. A packet that it
    /// refuses is dropped; one that goes elsewhere is cloned and emitted by `keep`. What `keep` emits comes before a packet
    /// that it keeps.
    #[inline]
    pub fn filter_batch(&mut self, batch: &mut Batch, mut keep: impl FnMut(&mut Self, &mut Packet) -> bool) {
        let mut kept = 0;
        for at in 0..batch.len() {
            let packet = &mut batch[at];
            self.begin(packet);
            if keep(self, packet) {
                if self.thread.emitted > 0 {
                    packet.set_place(self.thread.next_place());
                }
                if at > kept {
                    batch.swap(at, kept);
                }
                kept += 1;
            }
        }
        batch.truncate(kept);
        self.emit_batch(0, batch);
    }

    /// For `push_batch`: calls `push` for each packet.
    #[inline]
    pub fn push_each<E: Element + ?Sized>(&mut self, element: &mut E, port: usize, batch: &mut Batch) {
        for packet in batch.drain(..) {
            self.begin(&packet);
            element.push(self, port, packet);
        }
    }

    /// Sends packets that came together to a push output, in their order.
    #[inline]
    pub fn emit_batch(&mut self, port: usize, batch: &mut Batch) {
        let thread = &mut *self.thread;
        if port == 0 && thread.collects == self.id && thread.kept.is_empty() && !thread.is_root {
            // What is emitted after it need not come behind it.
            thread.collects = NOBODY;
            std::mem::swap(&mut thread.kept, batch);
            return;
        }
        let target = self.router.wiring.target(self.id, port);
        thread.send_before(&self.router.wiring, target);
        thread.wave.add_all(target, batch);
    }

    /// Asks a pull input for a packet.
    #[inline]
    pub fn pull(&mut self, port: usize) -> Option<Packet> {
        let (from, output) = self.router.source(self.id, port)?;
        let mut slot = self.router.slots[from].enter(self.thread.number)?;
        let mut cx = Cx { router: self.router, thread: &mut *self.thread, id: from };
        let packet = slot.pull(&mut cx, output);
        if packet.is_some() {
            self.router.count(self.router.wiring.inputs[self.id].start + port, 1);
        }
        packet
    }

    /// Asks a pull input for packets: as so many calls of `pull`, until one finds nothing. Says how many came.
    #[inline]
    pub fn pull_batch(&mut self, port: usize, most: usize, into: &mut Batch) -> usize {
        let before = into.len();
        if let Some((from, output)) = self.router.source(self.id, port)
            && let Some(mut slot) = self.router.slots[from].enter(self.thread.number)
        {
            let mut cx = Cx { router: self.router, thread: &mut *self.thread, id: from };
            slot.pull_batch(&mut cx, output, most, into);
        }
        let came = into.len() - before;
        self.router.count(self.router.wiring.inputs[self.id].start + port, came as u64);
        came
    }

    /// How many more packets a task that is run may emit until it has to let others go on.
    #[inline]
    pub fn room(&self) -> usize {
        self.thread.room.saturating_sub(self.thread.emitted as usize)
    }

    // Ports.

    /// How many inputs the element has.
    #[inline]
    pub fn inputs(&self) -> usize {
        self.router.wiring.inputs[self.id].len()
    }

    /// How many outputs the element has.
    #[inline]
    pub fn outputs(&self) -> usize {
        self.router.wiring.outputs[self.id].len()
    }

    /// Whether an input is pulled from.
    pub fn input_is_pull(&self, port: usize) -> bool {
        port < self.inputs() && self.router.wiring.input_is_pull(self.id, port)
    }

    /// Whether an output is pushed to.
    pub fn output_is_push(&self, port: usize) -> bool {
        port < self.outputs() && self.router.wiring.output_is_push(self.id, port)
    }

    // Time.

    /// The time: the system's, or simulated. It stands still while a task or a timer is run.
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.thread.now
    }

    /// The time at this very moment, asked of the system.
    pub fn exact_now(&self) -> Timestamp {
        self.router.clock.now()
    }

    /// Random numbers, the element's own; RandomSeed says where they begin.
    pub fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.thread.rngs[self.id]
    }

    /// Random numbers of all threads begin here.
    pub fn seed(&mut self, seed: u64) {
        self.router.seed.store(seed, std::sync::atomic::Ordering::Relaxed);
        self.thread.seed(seed);
    }

    // Tasks and timers.

    /// Schedules the element's task.
    pub fn schedule(&mut self) {
        self.router.schedule(self.thread, self.id);
    }

    /// The element's task is not run until it is scheduled again.
    pub fn unschedule(&mut self) {
        self.router.unschedule(self.thread, self.id);
    }

    /// Whether the element's task is scheduled.
    pub fn is_scheduled(&self) -> bool {
        self.router.is_scheduled(self.id)
    }

    /// Sets one of the element's timers, which it numbers itself; a timer that is set already is moved.
    pub fn timer_at(&mut self, timer: usize, at: Timestamp) {
        self.router.set_timer(self.thread, self.id, timer, Some(at));
    }

    /// The same, from now on.
    pub fn timer_after(&mut self, timer: usize, delay: Timestamp) {
        self.timer_at(timer, self.now() + delay);
    }

    /// Takes a timer back.
    pub fn timer_cancel(&mut self, timer: usize) {
        self.router.set_timer(self.thread, self.id, timer, None);
    }

    /// Waits for a file descriptor, in the element's thread. Neither to be read nor written: does not any more.
    pub fn select(&mut self, fd: RawFd, interest: Interest) {
        self.router.select(self.thread, self.id, fd, interest);
    }

    // Empty and full.

    /// Tells those who pull from this element whether it has packets.
    #[inline]
    pub fn note(&mut self, has_packets: bool) {
        self.router.note(self.thread, self.id, false, has_packets);
    }

    /// Tells those who push to this element whether it has room.
    #[inline]
    pub fn note_room(&mut self, has_room: bool) {
        self.router.note(self.thread, self.id, true, has_room);
    }

    /// Whether there may be packets at a pull input: an element upstream has not said that there are none.
    #[inline]
    pub fn may_pull(&self, port: usize) -> bool {
        self.router.may_pull(self.id, port)
    }

    /// Whether there may be room behind a push output: not all elements downstream have said that there is none.
    #[inline]
    pub fn may_push(&self, port: usize) -> bool {
        self.router.may_push(self.id, port)
    }

    // Others.

    /// The element's number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// The element's name, with its compounds before it.
    pub fn name(&self) -> &str {
        &self.router.elements[self.id].name
    }

    /// `name :: Class`, as messages have it.
    pub fn declaration(&self) -> String {
        self.router.declaration(self.id)
    }

    /// The router.
    pub fn router(&self) -> &Router {
        self.router
    }

    /// The number of the thread that runs this.
    pub fn thread_number(&self) -> usize {
        self.thread.number as usize
    }

    /// Enters another element of a known type. Nothing where it is of another type, or this very thread is in it. Never from
    /// two elements into each other, which would wait for each other in two threads.
    pub fn with<E: Element, R>(&mut self, element: usize, work: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> Option<R> {
        let mut slot = self.router.slots.get(element)?.enter(self.thread.number)?;
        let mut cx = Cx { router: self.router, thread: &mut *self.thread, id: element };
        let any: &mut dyn Any = &mut *slot;
        any.downcast_mut().map(|element| work(element, &mut cx))
    }

    /// How many packets an element can still store; nothing where it stores none.
    pub fn room_of(&mut self, element: usize) -> Option<usize> {
        self.router.slots.get(element)?.enter(self.thread.number)?.room()
    }

    /// How many packets an element stores; nothing where it is no storage, or is being called.
    pub fn stored_of(&mut self, element: usize) -> Option<usize> {
        self.router.slots.get(element)?.enter(self.thread.number)?.stored()
    }

    /// From now on, who pulls from this element pulls from whatever is connected to its inputs: output 0 stands for input 1
    /// (or, where it is not `on`, for input 0), and output 1 for input 0. The element itself is not entered any more.
    pub fn detour(&mut self, on: bool) {
        self.router.detours[self.id].set(on);
    }

    /// Takes a new configuration, as the handler `config` does. Only from handlers that do not enter the element.
    pub fn reconfigure(&mut self, config: &str) -> Result<(), String> {
        reconfigure(self, config)
    }

    /// Elements that packets may come to by push from an output of this element (all: nothing), up to and including those
    /// for which `stop` says so.
    pub fn downstream(&self, port: Option<usize>, stop: impl Fn(usize) -> bool) -> Vec<usize> {
        self.router.reach(self.id, port, true, &stop)
    }

    /// Elements that packets come from to an input of this element, likewise.
    pub fn upstream(&self, port: Option<usize>, stop: impl Fn(usize) -> bool) -> Vec<usize> {
        self.router.reach(self.id, port, false, &stop)
    }

    /// What arguments of this element may refer to.
    pub fn arg_cx(&self) -> ArgCx<'_> {
        ArgCx { elements: self.router, names: &self.router.names, element: self.name() }
    }

    /// Reads a value as an argument is read.
    pub fn parse<T: Arg>(&self, text: &str) -> Result<T, String> {
        T::parse(text, &self.arg_cx())
    }

    /// Reads the arguments of a handler, with the same calls as those of a configuration.
    pub fn parse_args<R>(&self, text: &str, work: impl FnOnce(&mut Args<'_>) -> R) -> Result<R, String> {
        let mut log = Log::new();
        let result = work(&mut Args::new(text, self.arg_cx(), &mut log));
        if log.errors() == 0 { Ok(result) } else { Err(log.to_string().trim_end().to_owned()) }
    }

    /// Calls a handler: reads it where there is no value and it can be read, else writes it.
    pub fn call(&mut self, call: &HandlerCall) -> Result<String, String> {
        let element = call.element.or_else(|| self.own(&call.handler));
        any(self, &HandlerCall { element, ..call.clone() })
    }

    /// Calls a handler as soon as this call has returned, so that it may be one of this element; an error is said. What the
    /// element has emitted goes its way afterwards.
    pub fn call_later(&mut self, call: &HandlerCall) {
        self.thread.calls.push_back((self.id, call.clone()));
    }

    /// Whether there is a handler to be written by this name; an error in Click's words. Those of the router are not looked at.
    pub fn check_write(&self, call: &HandlerCall) -> Result<(), String> {
        let Some(element) = call.element else { return Ok(()) };
        let handler = self.router.handlers(element).and_then(|handlers| handlers.get(&call.handler));
        if handler.is_some_and(|handler| handler.write.is_some()) {
            return Ok(());
        }
        Err(format!("no '{}.{}' write handler", self.router.name(element), call.handler))
    }

    /// A handler named without an element is this one's, if it has such a one, and else the router's.
    fn own(&self, handler: &str) -> Option<usize> {
        self.router.handlers(self.id)?.get(handler).map(|_| self.id)
    }

    /// Reads a handler, named as `element.handler` as seen from this element.
    pub fn read_handler(&mut self, name: &str, argument: &str) -> Result<String, String> {
        let call = HandlerCall::parse(name, &self.arg_cx())?;
        read(self, call.element.or_else(|| self.own(&call.handler)), &call.handler, argument)
    }

    /// Writes a handler.
    pub fn write_handler(&mut self, name: &str, value: &str) -> Result<(), String> {
        let call = HandlerCall::parse(name, &self.arg_cx())?;
        write(self, call.element.or_else(|| self.own(&call.handler)), &call.handler, value)
    }

    /// Reads a handler of an element, or of the router.
    pub fn read_of(&mut self, element: Option<usize>, handler: &str, argument: &str) -> Result<String, String> {
        read(self, element, handler, argument)
    }

    /// Writes a handler of an element, or of the router.
    pub fn write_of(&mut self, element: Option<usize>, handler: &str, value: &str) -> Result<(), String> {
        write(self, element, handler, value)
    }

    /// What handlers warned of that were written meanwhile, a line each.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.thread.warnings)
    }

    /// Whoever waits for the router's stop gets it, once for each wait.
    pub fn stop_driver(&mut self) {
        self.router.adjust_runcount(-1);
    }

    /// Whether the router takes the place of one that has the same element, with the same configuration: what this one does
    /// not make anew, it may take when the other has stopped ([`Element::take_state`]).
    pub fn replaces(&self) -> bool {
        self.router.replaces.contains(&self.router.declared(self.id))
    }

    /// The element is asked what to do whenever the router stops ([`Element::stopped`]). Says whether it is the only one.
    pub fn drive(&mut self) -> bool {
        *self.router.driver.lock().expect("no panic in it").get_or_insert(self.id) == self.id
    }

    /// Prints text on standard output, as it is.
    pub fn print(&self, text: &str) {
        self.router.print(text);
    }

    /// Says something on standard error, in a line.
    pub fn say(&self, text: impl Display) {
        self.router.say(text);
    }
}

/// Calls a handler: reads it where there is no value and it can be read, else writes it.
pub(super) fn any(cx: &mut Cx<'_>, call: &HandlerCall) -> Result<String, String> {
    let can_read = call.value.is_empty() && find(cx, call.element, &call.handler)?.read.is_some();
    if can_read {
        read(cx, call.element, &call.handler, "")
    } else {
        write(cx, call.element, &call.handler, &call.value).map(|()| String::new())
    }
}

fn find(cx: &Cx<'_>, element: Option<usize>, name: &str) -> Result<Handler, String> {
    let found = match element {
        Some(element) => cx.router.handlers(element).and_then(|handlers| handlers.find(name)),
        None => cx.router.root.get(name).cloned(),
    };
    found.ok_or_else(|| match element {
        Some(element) => format!("no handler named '{}.{name}'", cx.router.name(element)),
        None => format!("no handler named '{name}'"),
    })
}

fn whole(router: &Router, element: Option<usize>, name: &str) -> String {
    element.map_or_else(|| name.to_owned(), |element| format!("{}.{name}", router.name(element)))
}

pub(super) fn read(cx: &mut Cx<'_>, element: Option<usize>, name: &str, argument: &str) -> Result<String, String> {
    let Some(read) = find(cx, element, name)?.read else {
        return Err(format!("'{}' is a write handler", whole(cx.router, element, name)));
    };
    let id = element.unwrap_or(cx.id);
    let mut inner = Cx { router: cx.router, thread: &mut *cx.thread, id };
    match read {
        Read::Free(read) => read(&mut inner, argument),
        Read::Of(read) => match inner.router.slots[id].enter(inner.thread.number) {
            Some(mut slot) => read(&mut *slot, &mut inner, argument),
            None => Err(format!("'{}' is busy", whole(cx.router, element, name))),
        },
    }
}

pub(super) fn write(cx: &mut Cx<'_>, element: Option<usize>, name: &str, value: &str) -> Result<(), String> {
    let Some(write) = find(cx, element, name)?.write else {
        return Err(format!("'{}' is a read handler", whole(cx.router, element, name)));
    };
    let id = element.unwrap_or(cx.id);
    let mut inner = Cx { router: cx.router, thread: &mut *cx.thread, id };
    match write {
        Write::Free(write) => write(&mut inner, value),
        Write::Of(write) => match inner.router.slots[id].enter(inner.thread.number) {
            Some(mut slot) => write(&mut *slot, &mut inner, value),
            None => Err(format!("'{}' is busy", whole(cx.router, element, name))),
        },
    }
}

pub(super) fn reconfigure(cx: &mut Cx<'_>, text: &str) -> Result<(), String> {
    let router = cx.router;
    let busy = || format!("'{}' is busy", router.name(cx.id));
    let mut slot = router.slots[cx.id].enter(cx.thread.number).ok_or_else(busy)?;
    if !slot.reconfigures() {
        return Err(format!("'{}' does not take a new configuration while it runs", cx.declaration()));
    }
    let mut log = Log::new();
    let result = slot.configure(&mut Args::new(text, cx.arg_cx(), &mut log));
    if result.is_err() {
        return Err(log.to_string().trim_end().to_owned());
    }
    cx.thread.warnings.extend(log.to_string().lines().map(str::to_owned));
    text.clone_into(&mut router.elements[cx.id].config.lock().expect("no panic in it"));
    slot.reconfigured(cx);
    Ok(())
}
