//! From a graph to a router that is ready to run.

use super::codes::Codes;
use super::core::{Count, Info, Note, Router};
use super::defaults;
use super::detour::Detour;
use super::run::Running;
use super::sharing;
use super::slot::Slot;
use super::swap::Rebuild;
use super::task::TaskState;
use super::thread::{Mailbox, Thread};
use super::wiring::Wiring;
use crate::args::{ArgCx, Args, NameDb, NameKind};
use crate::element::{Class, Notes};
use crate::lang::Graph;
use crate::registry::Registry;
use crate::{Clock, Landmark, Log};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

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
    /// The text that the graph is from, for the handler `config`; where there is none, it gives the graph's.
    pub text: Option<String>,
    /// Makes routers that take this one's place, by the handler `hotconfig`.
    pub rebuild: Option<Rebuild>,
    /// The elements of the router whose place this one takes ([`Router::declarations`]).
    pub replaces: BTreeSet<String>,
    /// The processor of the first thread, where each has one of its own: the next ones have those that follow.
    pub affinity: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            threads: 1,
            quantum: 32,
            is_batched: true,
            seed: fastrand::u64(..),
            text: None,
            rebuild: None,
            replaces: BTreeSet::new(),
            affinity: None,
        }
    }
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
    let codes: Vec<Codes> = classes.iter().map(|class| codes(class)).collect();
    let built =
        Wiring::new(graph, &codes, log).and_then(|wiring| Build::new(graph, &classes, wiring, options).finish(log));
    if built.is_none() {
        log.error(&Landmark::default(), "Router could not be initialized!");
    }
    built
}

fn codes(class: &Class) -> Codes {
    Codes { ports: class.ports, processing: class.processing, flow: class.flow, wide: class.wide }
}

/// Which ports of a graph pull: of an element, the input or output of a number. Nothing where classes are not known, or what
/// they say is contradicted.
pub(crate) fn pulls(graph: &Graph, registry: &Registry) -> Option<impl Fn(usize, bool, usize) -> bool + use<>> {
    let classes: Option<Vec<_>> = graph.elements.iter().map(|element| registry.get(&element.class)).collect();
    let wiring = Wiring::new(graph, &classes?.into_iter().map(codes).collect::<Vec<_>>(), &mut Log::new())?;
    Some(
        move |element, is_output, port| {
            if is_output { !wiring.output_is_push(element, port) } else { wiring.input_is_pull(element, port) }
        },
    )
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
            root: defaults::root(options.text, options.rebuild),
            wiring,
            tasks: Vec::new(),
            mailboxes: (0..options.threads.max(1)).map(|_| Mailbox::new()).collect(),
            asked: Mutex::default(),
            next: Mutex::default(),
            replaces: options.replaces,
            affinity: options.affinity,
            notes,
            input_signals: vec![None; inputs],
            output_signals: vec![None; outputs],
            storages: OnceLock::new(),
            is_watched: vec![false; n],
            detours: (0..n).map(|_| Detour::default()).collect(),
            counts: (0..inputs).map(|_| Count::default()).collect(),
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
            let tickets = names.tickets(&info.name);
            let home = number(names.get(NameKind::HomeThread, &info.name, ""));
            TaskState::new(tickets, home.filter(|home| (*home as usize) < self.threads).unwrap_or(0))
        });
        self.router.tasks = tasks.collect();
        let handlers = self.router.slots.iter().map(|slot| {
            let element = slot.enter(0).expect("nobody is in it");
            let mut handlers = defaults::defaults(element.reconfigures());
            element.handlers(&mut handlers);
            handlers
        });
        let _ = self.router.handlers.set(handlers.collect());
        let mut threads: Vec<_> = (0..self.threads).map(|number| self.thread(number)).collect();
        if !self.initialize(&mut threads[0], log) {
            return None;
        }
        self.look_around();
        let seed = self.router.seed.load(Ordering::Relaxed);
        for thread in threads.iter_mut().skip(1) {
            thread.seed(seed);
        }
        Some(Running::new(Arc::new(self.router), threads))
    }

    fn thread(&self, number: usize) -> Thread {
        let router = &self.router;
        let inputs = router.wiring.inputs.last().map_or(0, |range| range.end);
        let seed = router.seed.load(Ordering::Relaxed);
        Thread::new(number as u32, inputs, router.len(), router.clock.now(), seed)
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
            // Timers of elements that are set for the same time from now expire in the order of the elements.
            thread.now = router.clock.now();
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

    /// Finds who stores packets of whom, who shares with whom, and who is watched.
    fn look_around(&mut self) {
        let router = &mut self.router;
        let groups = sharing::groups(router);
        router.wiring.rank(&groups);
        let all = 0..router.len();
        let stores: Vec<bool> =
            all.clone().map(|e| router.slots[e].enter(0).is_some_and(|slot| slot.room().is_some())).collect();
        let down: Vec<Vec<usize>> = all.clone().map(|e| router.reach(e, None, true, &|to| stores[to])).collect();
        for element in all {
            let observes = |e: &usize| router.slots[*e].enter(0).is_some_and(|slot| slot.observes());
            router.is_watched[element] = observes(&element)
                || down[element].iter().any(observes)
                || sharing::joins(router, element, &down[element], &groups);
        }
        let storages = down.into_iter().map(|down| down.into_iter().filter(|e| stores[*e]).collect()).collect();
        let _ = router.storages.set(storages);
    }
}
