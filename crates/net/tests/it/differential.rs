//! Every example with random traffic, batched and packet by packet: what it writes is the same.
//!
//! Examples run on captures, in simulated time: sources become `FromDump`, sinks `ToDump`. Hosts at the links answer what an
//! example sends; for that it runs several times, each time with the answers to what it sent the time before.

use crate::live::{example, start_changed};
use crate::traffic::{BEGIN, SECOND, Timed, World, answers, read, write};
use bifolio_net::lang::{Connection, ElementDecl, Graph, config};
use bifolio_net::router::Options;
use bifolio_net::{Clock, Landmark};
use bifolio_testing::seed;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How often hosts answer: ARP, then what ARP has let through, then what came of that.
const ROUNDS: usize = 3;

/// Packets that hosts of a link send by themselves, and answers in a round.
const PACKETS: usize = 4000;

/// Parameters of examples: packets that are too long for a link are to come.
const VALUES: &[(&str, &str)] = &[("MTU0", "576"), ("MTU1", "600")];

/// All examples by their names, as configurations that run.
fn examples() -> Vec<(String, String)> {
    let files = std::fs::read_dir(example("")).unwrap().map(|entry| entry.unwrap().path());
    let mut examples: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "click")).collect();
    examples.sort();
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    examples.iter().map(|path| (name(path), running(&name(path), std::fs::read_to_string(path).unwrap()))).collect()
}

/// A configuration that runs an example: itself, or one that uses it, where it is a library.
fn running(name: &str, text: String) -> String {
    if name != "router-port.click" {
        return text;
    }
    // A router with one link: all that it forwards goes back to where it came from.
    "require(library router-port.click);
     port :: RouterPort(10.0.0.1, 02:00:00:00:00:01, 1, 576);
     FromDevice(eth0) -> [0] port [0] -> Queue(1000) -> ToDevice(eth0);
     port [1] -> StaticIPLookup(10.0.0.0/24 0, 0/0 10.0.0.254 0) -> [1] port;"
        .to_owned()
}

fn declare(graph: &mut Graph, class: &str, config: &str) -> usize {
    let name = format!("differential@{}", graph.elements.len());
    let (class, config) = (class.to_owned(), config.to_owned());
    graph.elements.push(ElementDecl { name, class, config, landmark: Landmark::default() });
    graph.elements.len() - 1
}

fn connect(graph: &mut Graph, from: usize, to: usize) {
    graph.connections.push(Connection { from, from_port: 0, to, to_port: 0, landmark: Landmark::default() });
}

/// The links of an example, as files of a folder.
struct Links(PathBuf);

impl Links {
    fn input(&self, link: usize) -> PathBuf {
        self.0.join(format!("in{link}.pcap"))
    }

    /// What leaves, with the times at which packets came, and with those at which they left.
    fn outputs(&self, link: usize) -> [PathBuf; 2] {
        ["came", "left"].map(|times| self.0.join(format!("{times}{link}.pcap")))
    }

    /// Puts a graph onto the files, until all that is to come has come.
    fn put(&self, graph: &mut Graph, seconds: i64) {
        let classes: Vec<_> = graph.elements.iter().map(|element| element.class.clone()).collect();
        let all =
            |wanted: [&str; 3]| (0..classes.len()).filter(|&e| wanted.contains(&&*classes[e])).collect::<Vec<_>>();
        for (link, source) in all(["FromDevice", "PollDevice", "FromDump"]).into_iter().enumerate() {
            self.put_source(graph, source, link);
        }
        for (link, sink) in all(["ToDevice", "ToDump", "ToHost"]).into_iter().enumerate() {
            self.put_sink(graph, sink, link);
        }
        if !classes.iter().any(|class| class == "DriverManager") {
            declare(graph, "DriverManager", &format!("wait {seconds}s"));
        }
        graph.sort_connections();
    }

    fn put_source(&self, graph: &mut Graph, source: usize, link: usize) {
        let element = &mut graph.elements[source];
        let mut args = vec![config::quote(self.input(link).to_str().unwrap())];
        if element.class == "FromDump" {
            args.extend(config::split_args(&element.config).into_iter().skip(1));
        } else {
            args.push("TIMING true".to_owned());
        }
        (element.class, element.config) = ("FromDump".to_owned(), config::join_args(&args));
        let received = declare(graph, "Received", "");
        graph.connections.iter_mut().filter(|c| c.from == source).for_each(|c| c.from = received);
        connect(graph, source, received);
    }

    fn put_sink(&self, graph: &mut Graph, sink: usize, link: usize) {
        let [came, left] =
            self.outputs(link).map(|path| format!("{}, NANO true", config::quote(path.to_str().unwrap())));
        let element = &mut graph.elements[sink];
        (element.class, element.config) = ("ToDump".to_owned(), came);
        let (stamp, last) = (declare(graph, "SetTimestamp", ""), declare(graph, "ToDump", &left));
        connect(graph, sink, stamp);
        connect(graph, stamp, last);
    }

    /// How many there are: as many ways out as in.
    fn count(&self, graph: &Graph) -> usize {
        let mut graph = graph.clone();
        self.put(&mut graph, 1);
        let of = |class| graph.elements.iter().filter(|element| element.class == class).count();
        let (inputs, outputs) = (of("FromDump"), of("ToDump") / 2);
        assert_eq!(inputs, outputs, "links of the example");
        assert!(inputs > 0, "the example has no link that this test knows");
        inputs
    }
}

/// Runs an example on what comes by its links. Returns how many packets came to which input, by the inputs' names.
fn run(text: &str, links: &Links, inputs: &[Vec<Timed>], is_batched: bool) -> BTreeMap<String, u64> {
    for (link, packets) in inputs.iter().enumerate() {
        write(&links.input(link), packets);
    }
    let end = inputs.iter().flatten().map(|(time, _)| *time).max().unwrap_or(BEGIN);
    let options = Options { clock: Clock::simulated(), is_batched, seed: 5, ..Options::default() };
    let mut live = start_changed(text, VALUES, options, |graph| links.put(graph, (end - BEGIN) / SECOND + 100));
    live.run();
    live.packets_in()
}

/// The first difference between two captures, if they have one.
fn difference(one: &Path, other: &Path) -> Option<String> {
    if std::fs::read(one).unwrap() == std::fs::read(other).unwrap() {
        return None;
    }
    let (one, other) = (read(one), read(other));
    let at = (0..one.len()).find(|&at| one.get(at) != other.get(at)).unwrap_or(one.len());
    Some(format!("packet {at} of {} and {}:\n  {:x?}\n  {:x?}", one.len(), other.len(), one.get(at), other.get(at)))
}

/// Traffic by each link, with the answers of hosts to what an example sends.
fn traffic(text: &str, links: &Links, random: &mut fastrand::Rng) -> Vec<Vec<Timed>> {
    let (mut world, mut count) = (None, 0);
    start_changed(text, VALUES, Options::default(), |graph| {
        (world, count) = (Some(World::of(graph)), links.count(graph));
        *graph = Graph::default();
    });
    let world = world.expect("the example's graph");
    let mut inputs: Vec<_> = (0..count).map(|_| world.traffic(PACKETS, random)).collect();
    for _ in 0..ROUNDS {
        run(text, links, &inputs, false);
        for (link, input) in inputs.iter_mut().enumerate() {
            let sent = read(&links.outputs(link)[1]);
            input.extend(answers(&sent, PACKETS, random));
            input.sort_by_key(|(time, _)| *time);
        }
    }
    inputs
}

fn compare(name: &str, text: &str, random: &mut fastrand::Rng) {
    let folder = tempfile::tempdir().unwrap();
    let [single, batched] = ["single", "batched"].map(|mode| Links(folder.path().join(mode)));
    for links in [&single, &batched] {
        std::fs::create_dir(&links.0).unwrap();
    }
    let inputs = traffic(text, &single, random);
    let came = run(text, &single, &inputs, false);
    let came_batched = run(text, &batched, &inputs, true);
    for link in 0..inputs.len() {
        for (one, other) in single.outputs(link).iter().zip(batched.outputs(link)) {
            if let Some(difference) = difference(one, &other) {
                panic!("{name}: {} differs, {difference}", one.file_name().unwrap().to_str().unwrap());
            }
        }
        assert!(read(&single.outputs(link)[0]).len() > 100, "{name}: hardly anything leaves by link {link}");
    }
    assert_eq!(came_batched, came, "{name}: packets that came to elements");
    let idle: Vec<_> = came.iter().filter(|(_, count)| **count == 0).map(|(input, _)| input).collect();
    assert!(idle.is_empty(), "{name}: nothing came to {idle:?}, which so are not compared");
}

#[test]
fn every_example_writes_the_same_whether_packets_go_together_or_one_by_one() {
    let mut random = fastrand::Rng::with_seed(seed());
    let examples = examples();
    assert!(examples.len() >= 5, "{examples:?}");
    for (name, text) in examples {
        compare(&name, &text, &mut random);
    }
}
