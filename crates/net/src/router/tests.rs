//! The engine by elements of its own: what comes where, in which order, with and without batches.

use super::*;
use crate::args::Args;
use crate::element::{Batch, Class, Element, Handlers, Notes, Run};
use crate::lang::{Connection, ElementDecl, Graph};
use crate::{Clock, Landmark, Log, Packet, Registry, Timestamp};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sends packets of two bytes, `count` of them, a few each time.
#[derive(Default)]
struct Source {
    left: u16,
    burst: usize,
}

impl Element for Source {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), crate::args::Failed> {
        self.burst = 1;
        args.must("COUNT", &mut self.left).may("BURST", &mut self.burst).finish()
    }
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        for _ in 0..self.burst {
            if self.left == 0 {
                return Run::Stop;
            }
            self.left -= 1;
            cx.emit(0, Packet::from_slice(&self.left.to_be_bytes()));
        }
        Run::Worked
    }
}

/// Sends each packet to every output, and says in it which.
#[derive(Default)]
struct Copies;

impl Element for Copies {
    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        for port in 0..cx.outputs() {
            let mut copy = packet.clone();
            if copy.len() < 64 {
                copy.put(1)[packet.len()] = port as u8;
            }
            cx.emit(port, copy);
        }
    }
}

/// Chooses an output by the packet's content, drops some, and numbers what it lets through.
#[derive(Default)]
struct Chooses {
    salt: u64,
    seen: u8,
}

impl Element for Chooses {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), crate::args::Failed> {
        args.may("SALT", &mut self.salt).finish()
    }
    fn push(&mut self, cx: &mut Cx<'_>, port: usize, mut packet: Packet) {
        self.seen = self.seen.wrapping_add(1);
        let Some(output) = choose(self.salt, port, packet.bytes(), cx.outputs()) else { return };
        let len = packet.len();
        packet.put(1)[len] = self.seen;
        cx.emit(output, packet);
    }
}

/// The output of a packet, unless it is dropped.
fn choose(salt: u64, port: usize, bytes: &[u8], outputs: usize) -> Option<usize> {
    let start = salt.wrapping_add(port as u64);
    let hash = bytes.iter().fold(start, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    (hash % 7 != 0 && bytes.len() <= 64).then_some((hash % 5) as usize % outputs)
}

/// The same, but all of them number packets together: the first one counts for the others.
#[derive(Default)]
struct Tallies {
    salt: u64,
    first: usize,
    seen: u8,
}

impl Element for Tallies {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), crate::args::Failed> {
        args.must("SALT", &mut self.salt).must("FIRST", &mut self.first).finish()
    }
    fn shares(&self) -> Vec<usize> {
        vec![self.first]
    }
    fn push(&mut self, cx: &mut Cx<'_>, port: usize, mut packet: Packet) {
        let count = |tallies: &mut Self| {
            tallies.seen = tallies.seen.wrapping_add(1);
            tallies.seen
        };
        let first = self.first;
        let number = if first == cx.id() { Some(count(self)) } else { cx.with(first, |first, _| count(first)) };
        let Some(output) = choose(self.salt, port, packet.bytes(), cx.outputs()) else { return };
        let len = packet.len();
        packet.put(1)[len] = number.expect("the first one");
        cx.emit(output, packet);
    }
}

/// Lets most packets through together, sends copies of some to its last output, and others there alone.
#[derive(Default)]
struct Filters;

impl Filters {
    /// Whether a packet passes, and whether it is copied before.
    fn fate(bytes: &[u8]) -> (bool, bool) {
        let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
        (!sum.is_multiple_of(5), sum.is_multiple_of(3))
    }
}

impl Element for Filters {
    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        let (passes, copies) = Self::fate(packet.bytes());
        if copies {
            cx.emit(cx.outputs() - 1, packet.clone());
        }
        if passes {
            cx.emit(0, packet);
        }
    }
    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        cx.filter_batch(batch, |cx, packet| {
            let (passes, copies) = Self::fate(packet.bytes());
            if copies {
                cx.emit(cx.outputs() - 1, packet.clone());
            }
            passes
        });
    }
}

/// Keeps what comes, with the input it came by.
#[derive(Default)]
struct Keeps(Vec<(usize, Vec<u8>)>);

impl Element for Keeps {
    fn push(&mut self, _: &mut Cx<'_>, port: usize, packet: Packet) {
        self.0.push((port, packet.bytes().to_vec()));
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("kept", |keeps: &mut Self, _| format!("{:?}", keeps.0));
    }
}

static CLASSES: &[Class] = &[
    Class::new::<Source>("Source", "0/1", "h", ""),
    Class::new::<Copies>("Copies", "1/-", "h", ""),
    Class::new::<Chooses>("Chooses", "-/-", "h", ""),
    Class::new::<Tallies>("Tallies", "-/-", "h", ""),
    Class::new::<Filters>("Filters", "1/-", "h", ""),
    Class::new::<Keeps>("Keeps", "-/0", "h", ""),
];

fn graph(elements: &[(&str, String)], connections: &[(usize, u32, usize, u32)]) -> Graph {
    let declare = |(number, (class, config)): (usize, &(&str, String))| ElementDecl {
        name: format!("e{number}"),
        class: (*class).to_owned(),
        config: config.clone(),
        landmark: Landmark::new("test", number as u32 + 1),
    };
    let connect = |(from, from_port, to, to_port): &(usize, u32, usize, u32)| Connection {
        from: *from,
        from_port: *from_port,
        to: *to,
        to_port: *to_port,
        landmark: Landmark::default(),
    };
    Graph {
        elements: elements.iter().enumerate().map(declare).collect(),
        connections: connections.iter().map(connect).collect(),
        ..Graph::default()
    }
}

fn registry() -> Registry {
    let mut registry = Registry::standard();
    registry.add(CLASSES);
    registry
}

fn start(graph: &Graph, is_batched: bool) -> Running {
    let mut log = Log::new();
    let options = Options { is_batched, clock: Clock::simulated(), ..Options::default() };
    build(graph, &registry(), options, &mut log).unwrap_or_else(|| panic!("{log}"))
}

fn kept(graph: &Graph, is_batched: bool) -> Vec<String> {
    let mut running = start(graph, is_batched);
    running.run_for(10_000);
    let sinks = graph.elements.iter().filter(|element| element.class == "Keeps");
    sinks.map(|element| running.read(&format!("{}.kept", element.name)).unwrap()).collect()
}

/// A graph whose inner elements lead to later ones, and which all end in one sink or another.
fn acyclic() -> impl Strategy<Value = Graph> {
    let inner = prop::collection::vec(
        (0..3usize, any::<u64>(), prop::collection::vec(any::<prop::sample::Index>(), 1..4)),
        1..10,
    );
    (inner, 1..40u16, 1..5usize, 1..3usize).prop_map(|(inner, count, burst, sinks)| {
        let mut elements = vec![("Source", format!("{count}, {burst}"))];
        let n = inner.len();
        elements.extend(inner.iter().map(|(class, salt, _)| match class {
            0 => ("Copies", String::new()),
            1 => ("Filters", String::new()),
            _ => ("Chooses", salt.to_string()),
        }));
        elements.extend((0..sinks).map(|_| ("Keeps", String::new())));
        let mut connections = vec![(0, 0, 1, 0)];
        let mut used = vec![0; elements.len()];
        used[1] = 1;
        for (number, (_, _, outputs)) in inner.iter().enumerate() {
            for (port, to) in outputs.iter().enumerate() {
                let to = number + 2 + to.index(n - number - 1 + sinks);
                // Some have one input; others get one for each connection, or share the first.
                let is_single = matches!(elements[to].0, "Copies" | "Filters")
                    || (salt_of(&inner, to).is_multiple_of(3) && used[to] > 0);
                let input = if is_single { 0 } else { used[to] };
                used[to] = used[to].max(input + 1);
                connections.push((number + 1, port as u32, to, input));
            }
        }
        // What nobody leads to has no input.
        for (number, (class, _)) in elements.iter().enumerate().skip(1) {
            if used[number] == 0 && matches!(*class, "Copies" | "Filters") {
                connections.push((0, 0, number, 0));
            }
        }
        connections.retain(|(from, _, to, _)| *from != 0 || *to == 1);
        graph(&elements, &connections)
    })
}

fn salt_of(inner: &[(usize, u64, Vec<prop::sample::Index>)], element: usize) -> u64 {
    inner.get(element - 1).map_or(1, |(_, salt, _)| *salt)
}

/// Unconnected inputs are an error, so whatever is not reached is left out.
fn connected(graph: &Graph) -> bool {
    let mut log = Log::new();
    build(graph, &registry(), Options { clock: Clock::simulated(), ..Options::default() }, &mut log).is_some()
}

proptest! {
    /// Every element sees the same packets in the same order, whether they come one by one or together.
    #[test]
    fn batches_change_nothing(graph in acyclic().prop_filter("all inputs are used", connected)) {
        prop_assert_eq!(kept(&graph, true), kept(&graph, false));
    }
}

/// Packets of a graph as calls would move them: each goes all its way, and what comes of it, before the next.
struct Walk<'a> {
    graph: &'a Graph,
    seen: Vec<u8>,
    kept: Vec<Vec<(usize, Vec<u8>)>>,
}

impl Walk<'_> {
    fn kept(graph: &Graph) -> Vec<String> {
        let n = graph.elements.len();
        let mut walk = Walk { graph, seen: vec![0; n], kept: vec![Vec::new(); n] };
        let count: u16 = graph.elements[0].config.split(',').next().unwrap().parse().unwrap();
        (0..count).rev().for_each(|left| walk.go(0, 0, &left.to_be_bytes()));
        let sinks = (0..n).filter(|element| graph.elements[*element].class == "Keeps");
        sinks.map(|sink| format!("{:?}", walk.kept[sink])).collect()
    }

    fn go(&mut self, from: usize, port: usize, bytes: &[u8]) {
        let leads = |c: &&Connection| (c.from, c.from_port as usize) == (from, port);
        let connection = self.graph.connections.iter().find(leads).unwrap();
        self.push(connection.to, connection.to_port as usize, bytes);
    }

    fn push(&mut self, element: usize, port: usize, bytes: &[u8]) {
        let outputs = self.graph.connections.iter().filter(|c| c.from == element).count();
        let mut numbers = self.graph.elements[element].config.split(", ").map(|word| word.parse::<u64>().unwrap_or(0));
        let (salt, first) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(element as u64) as usize);
        match self.graph.elements[element].class.as_str() {
            "Keeps" => self.kept[element].push((port, bytes.to_vec())),
            "Copies" if bytes.len() < 64 => {
                (0..outputs).for_each(|port| self.go(element, port, &[bytes, &[port as u8]].concat()));
            }
            "Copies" => (0..outputs).for_each(|port| self.go(element, port, bytes)),
            "Filters" => {
                let (passes, copies) = Filters::fate(bytes);
                let ways = [(copies, outputs - 1), (passes, 0)];
                ways.iter().filter(|(goes, _)| *goes).for_each(|(_, port)| self.go(element, *port, bytes));
            }
            _ => {
                self.seen[first] = self.seen[first].wrapping_add(1);
                let number = self.seen[first];
                if let Some(output) = choose(salt, port, bytes, outputs) {
                    self.go(element, output, &[bytes, &[number]].concat());
                }
            }
        }
    }
}

/// At most as many copies in a row as have places of their own.
fn has_few_copies(graph: &Graph) -> bool {
    graph.elements.iter().filter(|element| matches!(element.class.as_str(), "Copies" | "Filters")).count() < 6
}

proptest! {
    /// Elements that share state, whether one leads to another or not, see packets in the order of calls.
    #[test]
    fn who_shares_sees_packets_in_their_order(graph in acyclic().prop_filter("all inputs are used", connected)) {
        prop_assume!(has_few_copies(&graph));
        let mut graph = graph;
        let shares = |element: &ElementDecl| {
            element.class == "Chooses" && element.config.parse::<u64>().is_ok_and(|salt| salt % 4 < 3)
        };
        if let Some(first) = graph.elements.iter().position(shares) {
            for element in graph.elements.iter_mut().filter(|element| shares(element)) {
                element.class = "Tallies".to_owned();
                element.config = format!("{}, {first}", element.config);
            }
        }
        let expected = Walk::kept(&graph);
        prop_assert_eq!(&kept(&graph, true), &expected);
        prop_assert_eq!(&kept(&graph, false), &expected);
    }
}

#[test]
fn single_packets_go_all_their_way_before_the_next() {
    // Two copies meet again, one of them by a detour: that of output 0 is first, for each packet.
    let elements =
        [("Source", "3, 3".to_owned()), ("Copies", String::new()), ("Copies", String::new()), ("Keeps", String::new())];
    let graph = graph(&elements, &[(0, 0, 1, 0), (1, 0, 2, 0), (1, 1, 3, 1), (2, 0, 3, 0)]);
    let expected =
        "[(0, [0, 2, 0, 0]), (1, [0, 2, 1]), (0, [0, 1, 0, 0]), (1, [0, 1, 1]), (0, [0, 0, 0, 0]), (1, [0, 0, 1])]";
    assert_eq!(kept(&graph, true), [expected]);
    assert_eq!(kept(&graph, false), [expected]);
}

#[test]
fn a_queue_does_not_overflow_where_packets_are_taken_as_fast() {
    let elements = [
        ("Source", "1000".to_owned()),
        ("Queue", "5".to_owned()),
        ("Unqueue", String::new()),
        ("Keeps", String::new()),
    ];
    let graph = graph(&elements, &[(0, 0, 1, 0), (1, 0, 2, 0), (2, 0, 3, 0)]);
    let mut running = start(&graph, true);
    running.run_for(10_000);
    assert_eq!(running.read("e1.drops").unwrap(), "0");
    assert_eq!(running.read("e2.count").unwrap(), "1000");
    assert_eq!(running.router().packets_in(3, 0), 1000);
    assert_eq!(running.read("e2.scheduled").unwrap(), "false");
}

#[test]
fn everything_that_is_wrong_with_connections_is_told() {
    let elements =
        [("Source", "1".to_owned()), ("Queue", "x".to_owned()), ("Keeps", String::new()), ("Copies", String::new())];
    let mut log = Log::new();
    let graph = graph(&elements, &[(0, 0, 1, 0), (1, 0, 2, 0), (0, 1, 2, 0)]);
    assert!(build(&graph, &registry(), Options::default(), &mut log).is_none());
    assert_eq!(log.to_string(), "test:1: 'e0 :: Source' has no output 1\nRouter could not be initialized!\n");
    let mut wrong = graph.clone();
    wrong.connections.pop();
    let mut log = Log::new();
    assert!(build(&wrong, &registry(), Options::default(), &mut log).is_none());
    let expected = "test:2: 'e1 :: Queue' pull output 0 connected to 'e2 :: Keeps' push input 0\nRouter could not be initialized!\n";
    assert_eq!(log.to_string(), expected);
}

#[test]
fn errors_of_configurations_stand_below_their_element() {
    let elements = [
        ("Source", "1".to_owned()),
        ("Queue", "x, 5".to_owned()),
        ("Unqueue", "A".to_owned()),
        ("Keeps", String::new()),
    ];
    let graph = graph(&elements, &[(0, 0, 1, 0), (1, 0, 2, 0), (2, 0, 3, 0)]);
    let mut log = Log::new();
    assert!(build(&graph, &registry(), Options::default(), &mut log).is_none());
    let expected = "test:2: While configuring 'e1 :: Queue':\n  CAPACITY: invalid number\n  too many arguments\n\
                    test:3: While configuring 'e2 :: Unqueue':\n  BURST: invalid number\n\
                    Router could not be initialized!\n";
    assert_eq!(log.to_string(), expected);
}

/// Counts how often its timers expire, and what time it is then.
#[derive(Default)]
struct Alarm(Vec<(usize, i64)>);

impl Element for Alarm {
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.timer_after(1, Timestamp::new(10, 0));
        cx.timer_after(2, Timestamp::new(5, 0));
        cx.timer_after(3, Timestamp::new(1, 0));
        cx.timer_cancel(3);
        cx.timer_after(2, Timestamp::new(7, 0));
        Ok(())
    }
    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        self.0.push((timer, cx.now().secs() - 1_000_000_000));
        if self.0.len() < 3 {
            cx.timer_after(2, Timestamp::new(2, 0));
        }
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("rang", |alarm: &mut Self, _| format!("{:?}", alarm.0));
    }
}

static ALARM: &[Class] = &[Class::new::<Alarm>("Alarm", "0/0", "a", "")];

#[test]
fn simulated_time_goes_from_timer_to_timer() {
    let mut registry = registry();
    registry.add(ALARM);
    let mut log = Log::new();
    let options = Options { clock: Clock::simulated(), ..Options::default() };
    let mut running = build(&graph(&[("Alarm", String::new())], &[]), &registry, options, &mut log).unwrap();
    running.run_for(1000);
    assert_eq!(running.read("e0.rang").unwrap(), "[(2, 7), (2, 9), (1, 10), (2, 11)]");
}

#[test]
fn threads_meet_at_a_queue_and_lose_nothing() {
    let elements = [
        ("Source", "20000, 3".to_owned()),
        ("Source", "20000, 5".to_owned()),
        ("Queue", "50000".to_owned()),
        ("Unqueue", String::new()),
        ("Keeps", String::new()),
    ];
    let graph = graph(&elements, &[(0, 0, 2, 0), (1, 0, 2, 0), (2, 0, 3, 0), (3, 0, 4, 0)]);
    let mut log = Log::new();
    let options = Options { threads: 3, ..Options::default() };
    let mut running = build(&graph, &registry(), options, &mut log).unwrap();
    for (element, home) in [(0, 0), (1, 1), (3, 2)] {
        running.router.tasks[element].home.store(home, Ordering::Relaxed);
    }
    // They were scheduled in the first thread's heap: it gives them away.
    let router = Arc::clone(running.router());
    let watcher = std::thread::spawn(move || {
        while router.packets_in(4, 0) < 40_000 {
            std::thread::yield_now();
        }
        router.set_runcount(0);
    });
    running.run();
    watcher.join().unwrap();
    assert_eq!(running.read("e2.drops").unwrap(), "0");
}

/// Lets packets through while it is open, and says when it is closed.
#[derive(Default)]
struct Gate(bool);

impl Element for Gate {
    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let packet = if self.0 { cx.pull(0) } else { None };
        if packet.is_none() {
            cx.note(false);
        }
        packet
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.write("open", |gate: &mut Self, cx, text| {
            gate.0 = cx.parse(text)?;
            cx.note(true);
            Ok(())
        });
    }
}

/// Takes what it pulls, and counts how often it asked.
#[derive(Default)]
struct Asks(usize, usize);

impl Element for Asks {
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        cx.schedule();
        Ok(())
    }
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        self.0 += 1;
        let packet = cx.pull(0);
        self.1 += usize::from(packet.is_some());
        if packet.is_some() { Run::Worked } else { Run::Idle }
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("asked", |asks: &mut Self, _| asks.0);
        handlers.read("got", |asks: &mut Self, _| asks.1);
    }
}

static GATES: &[Class] = &[
    Class::new::<Gate>("Gate", "1/1", "l", "").notes_empty(Notes::Relays),
    Class::new::<Asks>("Asks", "1/0", "l", ""),
    Class::new::<Give>("Give", "0/1", "h", ""),
];

/// Sends a packet whenever it is told to.
#[derive(Default)]
struct Give;

impl Element for Give {
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        cx.emit(0, Packet::from_slice(b"x"));
        Run::Stop
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.button("give", |_: &mut Self, cx| cx.schedule());
    }
}

#[test]
fn who_sleeps_behind_relays_is_woken_by_what_is_before_them() {
    let mut registry = registry();
    registry.add(GATES);
    let mut log = Log::new();
    let elements = ["Give", "Queue", "Gate", "Gate", "Asks"].map(|class| (class, String::new()));
    let graph = graph(&elements, &[(0, 0, 1, 0), (1, 0, 2, 0), (2, 0, 3, 0), (3, 0, 4, 0)]);
    let options = Options { clock: Clock::simulated(), ..Options::default() };
    let mut running = build(&graph, &registry, options, &mut log).unwrap();
    running.write("e3.open", "true").unwrap();
    running.run_for(100);
    assert_eq!(
        (running.read("e4.asked").unwrap().as_str(), running.read("e4.scheduled").unwrap().as_str()),
        ("1", "false")
    );
    // A packet in the queue wakes who asks, in vain, through both gates.
    running.write("e0.give", "").unwrap();
    running.run_for(100);
    assert_eq!((running.read("e4.asked").unwrap().as_str(), running.read("e4.got").unwrap().as_str()), ("2", "0"));
    running.write("e2.open", "true").unwrap();
    running.run_for(100);
    assert_eq!(
        (running.read("e4.got").unwrap().as_str(), running.read("e4.scheduled").unwrap().as_str()),
        ("1", "false")
    );
    running.write("e0.give", "").unwrap();
    running.run_for(100);
    assert_eq!(running.read("e4.got").unwrap(), "2");
}

/// Looks at how many packets its neighbours have counted when one comes.
#[derive(Default)]
struct Watches(Vec<String>);

impl Element for Watches {
    fn push(&mut self, cx: &mut Cx<'_>, _: usize, _: Packet) {
        self.0.push(cx.read_handler("e0.left", "").unwrap_or_else(|error| error));
    }
    fn observes(&self) -> bool {
        true
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("saw", |watches: &mut Self, _| watches.0.join(" "));
    }
}

static WATCHES: &[Class] =
    &[Class::new::<Watches>("Watches", "1/0", "h", ""), Class::new::<Counted>("Counted", "0/1", "h", "")];

/// Sends three packets, and says how many are left.
#[derive(Default)]
struct Counted(u32);

impl Element for Counted {
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.0 = 3;
        cx.schedule();
        Ok(())
    }
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if self.0 == 0 {
            return Run::Stop;
        }
        self.0 -= 1;
        cx.emit(0, Packet::from_slice(b"x"));
        Run::Worked
    }
    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("left", |counted: &mut Self, _| counted.0);
    }
}

#[test]
fn who_is_watched_sends_one_packet_after_the_other() {
    let mut registry = registry();
    registry.add(WATCHES);
    let mut log = Log::new();
    let graph = graph(&["Counted", "Watches"].map(|class| (class, String::new())), &[(0, 0, 1, 0)]);
    let options = Options { clock: Clock::simulated(), ..Options::default() };
    let mut running = build(&graph, &registry, options, &mut log).unwrap();
    running.run_for(100);
    assert_eq!(running.read("e1.saw").unwrap(), "2 1 0");
}
