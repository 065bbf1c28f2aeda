//! Every example with random traffic, batched and packet by packet: what it writes is the same.
//!
//! Examples run on captures, in simulated time: sources become `FromDump`, sinks `ToDump`. Hosts at the links answer what an
//! example sends; for that it runs several times, each time with the answers to what it sent the time before.

use crate::live::{Live, example, start_changed};
use crate::traffic::{BEGIN, SECOND, Timed, World, answers, read, write};
use bifolio_device::{DeviceChoice, DeviceId};
use bifolio_net::lang::{Connection, ElementDecl, Graph, config};
use bifolio_net::router::Options;
use bifolio_net::{Clock, Landmark};
use bifolio_testing::seed;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// How often hosts answer: ARP, then what ARP has let through, then what came of that.
const ROUNDS: usize = 3;

/// Packets that hosts of a link send by themselves, and answers in a round.
const PACKETS: usize = 4000;

/// Parameters of examples: packets that are too long for a link are to come, and files are where the examples are.
static VALUES: LazyLock<Vec<(&str, String)>> = LazyLock::new(|| {
    let file = |name| config::quote(example(name).to_str().unwrap());
    vec![
        ("MTU0", "576".to_owned()),
        ("MTU1", "600".to_owned()),
        ("WEB", file("web.rules")),
        ("MAIL", file("mail.rules")),
        ("FLOWS", file("flows.rules")),
    ]
});

fn start(text: &str, values: &[(&str, &str)], options: Options, change: impl FnOnce(&mut Graph)) -> Live {
    let values: Vec<_> = VALUES.iter().map(|(name, value)| (*name, &**value)).chain(values.iter().copied()).collect();
    start_changed(text, &values, options, change)
}

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

    /// How many there are: as many ways out as in, and what else is written behind them.
    fn count(&self, graph: &Graph) -> (usize, usize) {
        let mut graph = graph.clone();
        self.put(&mut graph, 1);
        let of = |class| graph.elements.iter().filter(|element| element.class == class).count();
        let (inputs, outputs) = (of("FromDump"), of("ToDump") / 2);
        assert!(inputs <= outputs, "links of the example");
        assert!(inputs > 0, "the example has no link that this test knows");
        (inputs, outputs)
    }
}

/// Runs an example on what comes by its links. Returns how many packets came to which input, by the inputs' names.
fn run(text: &str, links: &Links, inputs: &[Vec<Timed>], is_batched: bool) -> BTreeMap<String, u64> {
    run_at(text, &[], links, inputs, is_batched)
}

/// The same with more values for its parameters.
fn run_at(
    text: &str,
    values: &[(&str, &str)],
    links: &Links,
    inputs: &[Vec<Timed>],
    is_batched: bool,
) -> BTreeMap<String, u64> {
    for (link, packets) in inputs.iter().enumerate() {
        write(&links.input(link), packets);
    }
    let end = inputs.iter().flatten().map(|(time, _)| *time).max().unwrap_or(BEGIN);
    let options = Options { clock: Clock::simulated(), is_batched, seed: 5, ..Options::default() };
    let mut live = start(text, values, options, |graph| links.put(graph, (end - BEGIN) / SECOND + 100));
    live.run();
    live.packets_in()
}

/// A frame with an ICMP error has no IP id, nor the checksum that goes with it: `ICMPError` numbers its packets as they come to it,
/// and inside a circle, in which it is, what goes round comes after its burst.
fn without_id((time, mut frame): Timed) -> Timed {
    let is_error = |ip: &[u8]| {
        let header_len = usize::from(ip[0] & 15) * 4;
        ip[9] == 1 && ip.get(header_len).is_some_and(|kind| [3, 4, 5, 11, 12].contains(kind))
    };
    if frame.len() >= 34 && frame[12..14] == [8, 0] && frame[14] >> 4 == 4 && is_error(&frame[14..]) {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    (time, frame)
}

/// The first difference between two captures, if they have one.
fn difference(one: &Path, other: &Path) -> Option<String> {
    if std::fs::read(one).unwrap() == std::fs::read(other).unwrap() {
        return None;
    }
    let read = |path| read(path).into_iter().map(without_id).collect::<Vec<_>>();
    let (one, other) = (read(one), read(other));
    if one == other {
        return None;
    }
    let at = (0..one.len()).find(|&at| one.get(at) != other.get(at)).unwrap_or(one.len());
    Some(format!("packet {at} of {} and {}:\n  {:x?}\n  {:x?}", one.len(), other.len(), one.get(at), other.get(at)))
}

/// Traffic by each link, with the answers of hosts to what an example sends; and how many captures it writes.
fn traffic(text: &str, links: &Links, random: &mut fastrand::Rng) -> (Vec<Vec<Timed>>, usize) {
    let (mut world, mut counts) = (None, (0, 0));
    start(text, &[], Options::default(), |graph| {
        (world, counts) = (Some(World::of(graph)), links.count(graph));
        *graph = Graph::default();
    });
    let (world, (links_in, outputs)) = (world.expect("the example's graph"), counts);
    let mut inputs: Vec<_> = (0..links_in).map(|_| world.traffic(PACKETS, random)).collect();
    for _ in 0..ROUNDS {
        run(text, links, &inputs, false);
        for (link, input) in inputs.iter_mut().enumerate() {
            let sent = read(&links.outputs(link)[1]);
            input.extend(answers(&sent, PACKETS, random));
            input.sort_by_key(|(time, _)| *time);
        }
    }
    (inputs, outputs)
}

/// Both runs have written the same, and enough of it.
#[track_caller]
fn assert_same(what: &str, outputs: usize, one: &Links, other: &Links) {
    for link in 0..outputs {
        for (one, other) in one.outputs(link).iter().zip(other.outputs(link)) {
            if let Some(difference) = difference(one, &other) {
                panic!("{what}: {} differs, {difference}", one.file_name().unwrap().to_str().unwrap());
            }
        }
        assert!(read(&one.outputs(link)[0]).len() > 100, "{what}: hardly anything leaves by link {link}");
    }
}

fn compare(name: &str, text: &str, random: &mut fastrand::Rng) {
    let folder = tempfile::tempdir().unwrap();
    let [single, batched] = ["single", "batched"].map(|mode| Links(folder.path().join(mode)));
    for links in [&single, &batched] {
        std::fs::create_dir(&links.0).unwrap();
    }
    let (inputs, outputs) = traffic(text, &single, random);
    let came = run(text, &single, &inputs, false);
    let came_batched = run(text, &batched, &inputs, true);
    assert_same(name, outputs, &single, &batched);
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

/// Examples whose other form is computed in paths.
const PAIRS: &[&str] =
    &["sdn-forwarder", "forwarding-path", "dpi-router", "ids-router", "full-router", "diverging-ids", "ipsec-gateway"];

/// Where paths are computed: by the CPU's twins, by the oracles, by every device, and by whoever is chosen.
pub(crate) fn places() -> Vec<(String, &'static str)> {
    let devices = bifolio_device::discover().into_iter().flat_map(|report| report.devices).map(|device| device.id);
    let works = |id: &DeviceId| bifolio_device::open(DeviceChoice::Exactly(*id)).is_ok();
    let by_device = devices.filter(works).map(|id| (id.to_string(), "device"));
    [("host".to_owned(), "cpu")].into_iter().chain(by_device).chain([("auto".to_owned(), "auto")]).collect()
}

#[test]
fn paths_write_what_the_elements_of_the_cpu_write() {
    let mut random = fastrand::Rng::with_seed(seed());
    let places = places();
    assert!(places.iter().any(|(device, user)| device.starts_with("host") && *user == "device"), "{places:?}");
    for name in PAIRS {
        let folder = tempfile::tempdir().unwrap();
        let text = |form: &str| std::fs::read_to_string(example(&format!("{name}{form}.click"))).unwrap();
        let links = |form: &str| {
            let links = Links(folder.path().join(form));
            std::fs::create_dir(&links.0).unwrap();
            links
        };
        let elements = links("elements");
        let (inputs, outputs) = traffic(&text(""), &elements, &mut random);
        run(&text(""), &elements, &inputs, true);
        for (device, user) in &places {
            let by_path = links(&format!("{device}-{user}"));
            run_at(&text("-gpu"), &[("DEVICE", device), ("USE", user)], &by_path, &inputs, true);
            assert_same(&format!("{name}, {device}, USE {user}"), outputs, &elements, &by_path);
        }
    }
}

#[test]
fn every_example_of_a_path_has_a_pair() {
    let of_paths = examples().into_iter().filter_map(|(name, _)| Some(name.strip_suffix("-gpu.click")?.to_owned()));
    let missing: Vec<_> = of_paths.filter(|name| !PAIRS.contains(&&**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
