//! Routers that run in the calling thread, and so in its network namespace.

use bifolio_net::args::{Args, Failed};
use bifolio_net::element::{Class, Element, Run};
use bifolio_net::handler::Handlers;
use bifolio_net::router::{self, Cx, Options, Running};
use bifolio_net::{Log, Packet, PacketType, Registry, Timestamp, lang};
use bifolio_testing::until;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// `Keep`: keeps what is pushed to it.
#[derive(Default)]
struct Keep(Vec<Packet>);

impl Element for Keep {
    fn push(&mut self, _: &mut Cx<'_>, _: usize, packet: Packet) {
        self.0.push(packet);
    }
}

/// `Send`: pushes what a test gives it, or gives it to those who pull.
#[derive(Default)]
struct Send(VecDeque<Packet>);

impl Element for Send {
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Some(packet) = self.0.pop_front() else { return Run::Stop };
        cx.emit(0, packet);
        Run::Worked
    }
    fn pull(&mut self, _: &mut Cx<'_>, _: usize) -> Option<Packet> {
        self.0.pop_front()
    }
}

/// Drops.
#[derive(Default)]
struct Discard;

impl Element for Discard {
    fn push(&mut self, _: &mut Cx<'_>, _: usize, _: Packet) {}
}

/// `Only(PREFIX)`: says that it has a route for addresses that begin so.
#[derive(Default)]
struct Only(String);

impl Element for Only {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("PREFIX", &mut self.0).finish()
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.ask("lookup", |only: &mut Self, _, host| {
            Ok(if host.starts_with(&only.0) { "0" } else { "-1" }.to_owned())
        });
    }
}

/// `Received`: packets get the type that a device gives them, by the address to which they go.
#[derive(Default)]
struct Received;

impl Element for Received {
    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        packet.set_kind(match packet.bytes() {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => PacketType::Broadcast,
            [first, ..] if first & 1 == 1 => PacketType::Multicast,
            _ => PacketType::Host,
        });
        Some(packet)
    }
}

static CLASSES: &[Class] = &[
    Class::new::<Keep>("Keep", "1/0", "h", "keeps packets"),
    Class::new::<Discard>("Discard", "1/0", "a", "drops packets"),
    Class::new::<Send>("Send", "0/1", "a", "sends packets"),
    Class::new::<Only>("Only", "0/0", "a", "has routes"),
    Class::new::<Received>("Received", "1/1", "a/a", "sets packets' types"),
];

/// All classes, and the examples as libraries.
struct Known(Registry);

impl lang::ClassInfo for Known {
    fn has_class(&self, name: &str) -> bool {
        self.0.has_class(name)
    }
    fn library(&self, name: &str, _: &str) -> Option<lang::Library> {
        Some(lang::Library { file: name.to_owned(), text: std::fs::read_to_string(example(name)).ok()? })
    }
}

/// An example's file.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/net").join(name)
}

/// A router, and what it said.
pub(crate) struct Live {
    running: Running,
    said: Arc<Mutex<Vec<String>>>,
}

/// Makes a router, or says what is wrong.
pub(crate) fn try_start(config: &str) -> Result<Live, String> {
    make(config, "config", &lang::Globals::new(), Options::default(), |_| ())
}

/// Makes a router that runs as the options say, or says what is wrong.
pub(crate) fn try_start_with(config: &str, options: Options) -> Result<Live, String> {
    make(config, "config", &lang::Globals::new(), options, |_| ())
}

/// Makes the router of an example, with values for its parameters.
pub(crate) fn start_example(name: &str, values: &[(&str, &str)], options: Options) -> Live {
    let text = std::fs::read_to_string(example(name)).unwrap();
    make(&text, name, &globals(values), options, |_| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// Makes a router of a configuration that is changed by `change` before, with values for its parameters.
pub(crate) fn start_changed(
    config: &str,
    values: &[(&str, &str)],
    options: Options,
    change: impl FnOnce(&mut lang::Graph),
) -> Live {
    make(config, "config", &globals(values), options, change).unwrap_or_else(|error| panic!("{error}"))
}

fn globals(values: &[(&str, &str)]) -> lang::Globals {
    let mut globals = lang::Globals::new();
    for (name, value) in values {
        globals.define(name, value);
    }
    globals
}

fn make(
    config: &str,
    file: &str,
    globals: &lang::Globals,
    options: Options,
    change: impl FnOnce(&mut lang::Graph),
) -> Result<Live, String> {
    let (mut log, mut registry) = (Log::new(), Registry::standard());
    registry.add(CLASSES);
    let known = Known(registry);
    let mut graph = lang::parse(config, file, globals, &known, &mut log);
    if let Some(graph) = &mut graph {
        change(graph);
    }
    let running = graph.and_then(|graph| router::build(&graph, &known.0, options, &mut log));
    let running = running.ok_or_else(|| log.to_string())?;
    let said = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&said);
    running.listen(move |line| lines.lock().unwrap().push(line.to_owned()), |text| print!("{text}"));
    Ok(Live { running, said })
}

/// Makes a router of a configuration that is right.
pub(crate) fn start(config: &str) -> Live {
    try_start(config).unwrap_or_else(|error| panic!("{error}"))
}

impl Live {
    /// Runs until it stops by itself.
    pub(crate) fn run(&mut self) {
        self.running.run();
    }

    /// Runs for a moment.
    pub(crate) fn turn(&mut self) {
        self.running.run_for(100);
    }

    /// Runs for so many seconds of simulated time, and until there is nothing left to do in them.
    pub(crate) fn settle(&mut self, seconds: i64) {
        let clock = self.running.router().clock();
        clock.hold_at(clock.now() + Timestamp::new(seconds, 0));
        self.running.run_for(usize::MAX);
        let clock = self.running.router().clock();
        clock.advance(clock.now() + Timestamp::new(seconds, 0));
    }

    /// Runs until `condition` holds, and fails with `what` after a minute.
    pub(crate) fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        until(what, || {
            self.turn();
            condition(self)
        });
    }

    /// Reads a handler.
    pub(crate) fn read(&mut self, handler: &str) -> String {
        self.running.read(handler).unwrap_or_else(|error| panic!("{handler}: {error}"))
    }

    /// Writes a handler.
    pub(crate) fn write(&mut self, handler: &str, value: &str) {
        self.running.write(handler, value).unwrap_or_else(|error| panic!("{handler}: {error}"));
    }

    /// Runs until a handler has a value.
    pub(crate) fn until_is(&mut self, handler: &str, value: &str) {
        self.until(&format!("{handler} is {value}"), |live| live.read(handler) == value);
    }

    /// What has come to a `Keep` since somebody last asked.
    pub(crate) fn kept(&mut self, name: &str) -> Vec<Packet> {
        let id = self.running.router().find(name).expect("an element of this name");
        let take = |keep: &mut Keep, _: &mut Cx<'_>| std::mem::take(&mut keep.0);
        self.running.enter(id, |cx| cx.with(id, take)).expect("a Keep")
    }

    /// Runs until so many packets have come to a `Keep`.
    pub(crate) fn keep(&mut self, name: &str, count: usize) -> Vec<Packet> {
        let mut kept = Vec::new();
        self.until(&format!("{count} packets come to {name}"), |live| {
            kept.extend(live.kept(name));
            kept.len() >= count
        });
        kept
    }

    /// Gives packets to a `Send`.
    pub(crate) fn send(&mut self, name: &str, packets: impl IntoIterator<Item = Packet>) {
        let id = self.running.router().find(name).expect("an element of this name");
        let packets: Vec<_> = packets.into_iter().collect();
        let give = |send: &mut Send, cx: &mut Cx<'_>| {
            send.0.extend(packets);
            if cx.output_is_push(0) {
                cx.schedule();
            }
        };
        self.running.enter(id, |cx| cx.with(id, give)).expect("a Send");
    }

    /// Runs while a command runs, and returns what it printed.
    pub(crate) fn during(&mut self, command: &mut Command) -> Output {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a program that runs");
        self.until(&format!("{command:?} ends"), |_| child.try_wait().expect("a child").is_some());
        child.wait_with_output().expect("what it printed")
    }

    /// Inputs with connections, each as `element [port]` with the packets that have come to it.
    pub(crate) fn packets_in(&self) -> BTreeMap<String, u64> {
        let router = self.running.router();
        let inputs = router.connections().into_iter().map(|(_, input)| input);
        // Batches are as large as they happen to be.
        let is_wide = |element: usize| router.class_of(element).wide.starts_with(['w', 'c']);
        let inputs = inputs.filter(|(element, _)| !is_wide(*element));
        inputs.map(|(e, port)| (format!("{} [{port}]", router.name(e)), router.packets_in(e, port))).collect()
    }

    /// Lines that it has said.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }
}
