//! Elements: what packets go through.
//!
//! An element is a Rust type that implements [`Element`] and a line with its [`Class`] in a list; `docs/rooms/net.md` has an
//! example. It is called with `&mut self`, one call at a time, and gets a [`Cx`] by which it reaches the rest of the router.
//!
//! Rules that make batches invisible. An element says what becomes of one packet; the engine calls it for all packets of
//! a batch. What it emits is delivered after it returns, in the order in which single packets would have arrived there. So an
//! element's results may depend on its own state, the packet and the time, and not on what happens downstream while it
//! runs. One whose packets look at or change the state of others says whose by [`Element::shares`]; where that cannot be
//! told, it says so by [`Element::observes`].

use crate::args::{self, Args, Failed};
use crate::router::Cx;
use crate::{Log, Packet};
use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use crate::packet::Batch;
pub use crate::schedule::{Interest, Run};

/// An element. Everything has a default but what the element is for.
pub trait Element: Any + Send {
    /// Takes its configuration. Reports all that is wrong through `args`.
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.finish()
    }

    /// Gets ready to run: all elements are configured and connected. Returns what keeps it from running, in a line.
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let _ = cx;
        Ok(())
    }

    /// What becomes of a packet, for an element with an input and an output of the same kind, pushed or pulled; nothing: it
    /// was dropped, or went to another output by [`Cx::emit`].
    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        let _ = cx;
        Some(packet)
    }

    /// A packet arrives at an input.
    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        let _ = port;
        if let Some(packet) = self.action(cx, packet) {
            cx.emit(0, packet);
        }
    }

    /// Packets arrive at an input together: `push` for each, which is compiled into this loop. An element on hot paths that
    /// lets most packets through may call [`Cx::filter_batch`] instead. One packet alone comes by `push` in any case.
    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        cx.push_each(self, port, batch);
    }

    /// Somebody downstream asks an output for a packet.
    fn pull(&mut self, cx: &mut Cx<'_>, port: usize) -> Option<Packet> {
        let _ = port;
        let packet = cx.pull(0)?;
        self.action(cx, packet)
    }

    /// Somebody downstream asks an output for packets: as so many calls of `pull`, until one finds nothing.
    fn pull_batch(&mut self, cx: &mut Cx<'_>, port: usize, most: usize, into: &mut Batch) {
        into.extend((0..most).map_while(|_| self.pull(cx, port)));
    }

    /// Its task is run: a little work, such as one packet or one burst. The engine calls again, and batches what comes.
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let _ = cx;
        Run::Stop
    }

    /// Its task is run several times in a row, as long as it works and there is room for what it sends.
    fn run_tasks(&mut self, cx: &mut Cx<'_>, times: usize) -> Run {
        let mut did = Run::Worked;
        for _ in 0..times {
            did = self.run_task(cx);
            if did != Run::Worked || cx.room() == 0 {
                break;
            }
        }
        did
    }

    /// A timer of its own has expired.
    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        let _ = (cx, timer);
    }

    /// A file descriptor that it waits for is ready.
    fn selected(&mut self, cx: &mut Cx<'_>, fd: RawFd, ready: Interest) {
        let _ = (cx, fd, ready);
    }

    /// Says which handlers it has.
    fn handlers(&self, handlers: &mut Handlers) {
        let _ = handlers;
    }

    /// How many packets it can still store; nothing where it stores none. Sources stop a burst where a queue would overflow.
    fn room(&self) -> Option<usize> {
        None
    }

    /// How many packets it stores; nothing where it is no storage. RED looks at it.
    fn stored(&self) -> Option<usize> {
        None
    }

    /// Whether it looks at others' state while packets pass, such as at the lengths of queues: packets then come one by one.
    fn observes(&self) -> bool {
        false
    }

    /// Elements whose state its packets look at or change, so that packets pass all of them, and what lies between, in their
    /// order. It is asked once, when all are initialised. Those who share with one share with each other.
    fn shares(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Whether it takes a new configuration while it runs, by its `config` handler.
    fn reconfigures(&self) -> bool {
        false
    }

    /// It has taken a new configuration while it runs.
    fn reconfigured(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// Takes what an element of the same name has in the router whose place this one's takes: it has stopped, and this one is
    /// about to run. What is not taken ends; what goes wrong is reported.
    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, log: &mut Log) {
        let _ = (cx, old, log);
    }

    /// The router has stopped, and this element drives it ([`Cx::drive`]): by [`Router::set_runcount`] it lets it go on.
    ///
    /// [`Router::set_runcount`]: crate::router::Router::set_runcount
    fn stopped(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// The router ends, or could not be set up.
    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }
}

impl dyn Element {
    /// Packets come to an input: one alone is pushed alone.
    #[inline]
    pub(crate) fn arrive(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if batch.len() == 1
            && let Some(packet) = batch.pop()
        {
            cx.begin(&packet);
            return self.push(cx, port, packet);
        }
        self.push_batch(cx, port, batch);
    }
}

/// An element as what it is, where it is that.
pub fn downcast<E: Element>(element: &mut dyn Element) -> Option<&mut E> {
    let element: &mut dyn Any = element;
    element.downcast_mut()
}

/// Whether somebody is told when an element's packets end, and when there are some again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notes {
    /// Nobody: what is upstream (or downstream) of it counts.
    Passes,
    /// It tells by [`Cx::note`].
    Own,
    /// It tells by [`Cx::note`], and counts as having packets as soon as somebody upstream of it has some again. It begins
    /// as one that has.
    Relays,
    /// There is never a packet.
    Never,
}

/// A class of elements: its name and what connects them. The codes are those of Click's manual.
#[derive(Debug)]
pub struct Class {
    /// Its name in configurations.
    pub name: &'static str,
    /// Numbers of inputs and outputs, such as `1/1-2`, `1/-`, `-/=`.
    pub ports: &'static str,
    /// For each input and output: `h` push, `l` pull, `a` either, such as `a/ah`; the last counts for those that follow.
    pub processing: &'static str,
    /// From which inputs packets come to which outputs: `x/x` by default, `x/y` never, `#/#` to the same number.
    pub flow: &'static str,
    /// For each input and output: `w` wide, which takes whole batches of packets (`crate::wide`), `c` the same of an element
    /// that is computed in a path, `-` single packets, such as `-/w`; the last counts for those that follow.
    pub wide: &'static str,
    /// When it is configured and initialised: lower first.
    pub phase: i32,
    /// Whether its outputs tell when it is empty (pull).
    pub empty: Notes,
    /// Whether its inputs tell when it is full (push).
    pub full: Notes,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Makes one.
    pub make: fn() -> Box<dyn Element>,
}

/// When elements that others ask for names are configured.
pub const PHASE_INFO: i32 = 20;
/// When elements that drop privileges are configured.
pub const PHASE_PRIVILEGED: i32 = 90;
/// When elements are configured.
pub const PHASE_DEFAULT: i32 = 100;
/// When elements that want all others ready are configured.
pub const PHASE_LAST: i32 = 2000;

fn make<E: Element + Default>() -> Box<dyn Element> {
    Box::<E>::default()
}

impl Class {
    /// A class whose elements begin as `E::default()`; what it does stands in `summary`.
    pub const fn new<E: Element + Default>(
        name: &'static str,
        ports: &'static str,
        processing: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            name,
            ports,
            processing,
            flow: "x/x",
            wide: "-/-",
            phase: PHASE_DEFAULT,
            empty: Notes::Passes,
            full: Notes::Passes,
            summary,
            make: make::<E>,
        }
    }

    /// With this flow code.
    #[must_use]
    pub const fn flow(mut self, flow: &'static str) -> Self {
        self.flow = flow;
        self
    }

    /// With these wide ports.
    #[must_use]
    pub const fn wide(mut self, wide: &'static str) -> Self {
        self.wide = wide;
        self
    }

    /// Whether its elements are computed in a path, between a Batcher and its Debatcher.
    pub fn is_computed(&self) -> bool {
        self.wide.starts_with('c')
    }

    /// Configured and initialised in this phase.
    #[must_use]
    pub const fn phase(mut self, phase: i32) -> Self {
        self.phase = phase;
        self
    }

    /// Telling those who pull from it when it is empty and when not.
    #[must_use]
    pub const fn notes_empty(mut self, notes: Notes) -> Self {
        self.empty = notes;
        self
    }

    /// Telling those who push to it when it is full and when not.
    #[must_use]
    pub const fn notes_full(mut self, notes: Notes) -> Self {
        self.full = notes;
        self
    }
}

// Handlers: what people and scripts read and write of an element, as text.

/// Reads: the argument is what was given with the question, mostly nothing.
pub type ReadFn = Arc<dyn Fn(&mut dyn Element, &mut Cx<'_>, &str) -> Result<String, String> + Send + Sync>;
/// Writes.
pub type WriteFn = Arc<dyn Fn(&mut dyn Element, &mut Cx<'_>, &str) -> Result<(), String> + Send + Sync>;
/// The same without the element: it is not entered for it, so that it may be in the midst of something.
pub type FreeReadFn = Arc<dyn Fn(&mut Cx<'_>, &str) -> Result<String, String> + Send + Sync>;
/// Writes without the element.
pub type FreeWriteFn = Arc<dyn Fn(&mut Cx<'_>, &str) -> Result<(), String> + Send + Sync>;

/// How a handler is read.
#[derive(Clone)]
pub enum Read {
    /// From the element.
    Of(ReadFn),
    /// Without it.
    Free(FreeReadFn),
}

/// How a handler is written.
#[derive(Clone)]
pub enum Write {
    /// To the element.
    Of(WriteFn),
    /// Without it.
    Free(FreeWriteFn),
}

/// A handler of an element.
#[derive(Clone, Default)]
pub struct Handler {
    /// How it is read, if it can be.
    pub read: Option<Read>,
    /// How it is written, if it can be.
    pub write: Option<Write>,
    /// Whether it is written without a value.
    pub is_button: bool,
    /// Whether it is left out of lists.
    pub is_hidden: bool,
    /// Whether the text is taken and given as it is, quotes included.
    pub is_raw: bool,
    /// Whether only configurations may call it, and no socket.
    pub is_private: bool,
}

/// The handlers of an element, by their names.
#[derive(Clone, Default)]
pub struct Handlers {
    map: BTreeMap<String, Handler>,
    rest: Option<Arc<RestFn>>,
}

/// Makes the handler of a name.
type RestFn = dyn Fn(&str) -> Handler + Send + Sync;

fn of<E: Element>(element: &mut dyn Element) -> &mut E {
    downcast(element).expect("handlers are called with the element that has them")
}

impl Handlers {
    fn entry(&mut self, name: &str) -> &mut Handler {
        self.map.entry(name.to_owned()).or_default()
    }

    /// A value that is always there to be read.
    pub fn read<E: Element, T: ToString>(
        &mut self,
        name: &str,
        read: impl Fn(&mut E, &mut Cx<'_>) -> T + Send + Sync + 'static,
    ) {
        let call: ReadFn = Arc::new(move |element, cx, _| Ok(read(of(element), cx).to_string()));
        self.entry(name).read = Some(Read::Of(call));
    }

    /// A question with an argument.
    pub fn ask<E: Element>(
        &mut self,
        name: &str,
        read: impl Fn(&mut E, &mut Cx<'_>, &str) -> Result<String, String> + Send + Sync + 'static,
    ) {
        let call: ReadFn = Arc::new(move |element, cx, text| read(of(element), cx, text));
        self.entry(name).read = Some(Read::Of(call));
    }

    /// A value to be written. An error is a line without the handler's name.
    pub fn write<E: Element>(
        &mut self,
        name: &str,
        write: impl Fn(&mut E, &mut Cx<'_>, &str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let call: WriteFn = Arc::new(move |element, cx, text| write(of(element), cx, text));
        self.entry(name).write = Some(Write::Of(call));
    }

    /// Something that is done when it is written, whatever is written.
    pub fn button<E: Element>(&mut self, name: &str, press: impl Fn(&mut E, &mut Cx<'_>) + Send + Sync + 'static) {
        let call: WriteFn = Arc::new(move |element, cx, _| {
            press(of(element), cx);
            Ok(())
        });
        let entry = self.entry(name);
        (entry.write, entry.is_button) = (Some(Write::Of(call)), true);
    }

    /// A number or text that is read and written as an argument of its type would be.
    pub fn data<E: Element, T: args::Arg + ToString + 'static>(
        &mut self,
        name: &str,
        field: impl Fn(&mut E) -> &mut T + Send + Sync + Clone + 'static,
    ) {
        let of_read = field.clone();
        self.read(name, move |element: &mut E, _| of_read(element).to_string());
        self.write(name, move |element: &mut E, cx, text| {
            *field(element) = cx.parse::<T>(text)?;
            Ok(())
        });
    }

    /// An argument of the configuration, by its position and keyword: whoever writes it gives the element a new
    /// configuration, which it has to take while it runs.
    pub fn keyword(&mut self, name: &str, position: usize, keyword: &'static str) {
        self.free_read(name, move |cx, _| {
            Ok(args::argument(&cx.router().config(cx.id()), position, keyword).unwrap_or_default())
        });
        self.keyword_write(name, position, keyword);
    }

    /// The same, to be written only.
    pub fn keyword_write(&mut self, name: &str, position: usize, keyword: &'static str) {
        self.free_write(name, move |cx, text| {
            let config = args::with_argument(&cx.router().config(cx.id()), position, keyword, text);
            cx.reconfigure(&config)
        });
    }

    /// Reads without entering the element.
    pub fn free_read(
        &mut self,
        name: &str,
        read: impl Fn(&mut Cx<'_>, &str) -> Result<String, String> + Send + Sync + 'static,
    ) {
        self.entry(name).read = Some(Read::Free(Arc::new(read)));
    }

    /// Writes without entering the element.
    pub fn free_write(
        &mut self,
        name: &str,
        write: impl Fn(&mut Cx<'_>, &str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.entry(name).write = Some(Write::Free(Arc::new(write)));
    }

    /// Leaves a handler out of lists.
    pub fn hide(&mut self, name: &str) {
        self.entry(name).is_hidden = true;
    }

    /// A handler takes and gives text as it is.
    pub fn raw(&mut self, name: &str) {
        self.entry(name).is_raw = true;
    }

    /// Leaves a handler to configurations: it is in no list, and no socket calls it.
    pub fn private(&mut self, name: &str) {
        let entry = self.entry(name);
        (entry.is_hidden, entry.is_private) = (true, true);
    }

    /// Handlers of all names that have none: `make` is given the name.
    pub fn rest(&mut self, make: impl Fn(&str) -> Handler + Send + Sync + 'static) {
        self.rest = Some(Arc::new(make));
    }

    /// The handler of a name, if it was given one.
    pub fn get(&self, name: &str) -> Option<&Handler> {
        self.map.get(name)
    }

    /// The handler of a name, whether it was given one or is one of the rest.
    pub fn find(&self, name: &str) -> Option<Handler> {
        self.map.get(name).cloned().or_else(|| Some(self.rest.as_ref()?(name)))
    }

    /// All, by their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Handler)> {
        self.map.iter().map(|(name, handler)| (name.as_str(), handler))
    }
}
