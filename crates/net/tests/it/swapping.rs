//! Another configuration in the place of one that runs, control connections, and what goes with them.

use bifolio_net::router::{self, Options, Rebuild, Router, Running};
use bifolio_net::{Clock, Log, Registry, lang};
use bifolio_testing::until;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A router in simulated time whose configuration may change, and what it says.
struct Changing {
    running: Running,
    said: Arc<Mutex<Vec<String>>>,
}

fn make(
    rebuild: &Arc<Mutex<Option<Rebuild>>>,
    (clock, replaces): (Clock, BTreeSet<String>),
    text: &str,
    log: &mut Log,
) -> Option<Running> {
    let registry = Registry::standard();
    let graph = lang::parse(text, "config", &lang::Globals::new(), &registry, log)?;
    let rebuild = rebuild.lock().unwrap().clone();
    let options = Options { clock, seed: 1, text: Some(text.to_owned()), rebuild, replaces, ..Options::default() };
    router::build(&graph, &registry, options, log)
}

impl Changing {
    fn new(text: &str) -> Self {
        let rebuild = Arc::new(Mutex::new(None));
        let own = Arc::clone(&rebuild);
        let again = move |old: &Router, text: &str, log: &mut Log| {
            make(&own, (old.clock().fork(), old.declarations()), text, log)
        };
        *rebuild.lock().unwrap() = Some(Rebuild::new(again));
        let mut log = Log::new();
        let clock = Clock::simulated();
        let running = make(&rebuild, (clock, BTreeSet::new()), text, &mut log).unwrap_or_else(|| panic!("{log}"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&said);
        running.listen(move |line| lines.lock().unwrap().push(line.to_owned()), |_| ());
        Self { running, said }
    }

    fn change(&mut self, text: &str) -> Result<(), String> {
        self.running.write("hotconfig", text)?;
        self.running.run_for(100);
        Ok(())
    }

    fn read(&mut self, handler: &str) -> String {
        self.running.read(handler).unwrap_or_else(|error| panic!("{handler}: {error}"))
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap())
    }
}

#[test]
fn queues_keep_their_packets() {
    for class in ["Queue", "SimpleQueue", "QuickNoteQueue", "MixedQueue"] {
        let mut router = Changing::new("InfiniteSource(LIMIT 7) -> q :: SimpleQueue -> Discard(ACTIVE false)");
        router.running.run_for(100);
        let second = if class == "MixedQueue" { "Idle -> [1] q" } else { "" };
        let text = format!("Idle -> q :: {class}(10) -> c :: Counter -> Discard(ACTIVE false); {second}");
        router.change(&text).unwrap();
        assert_eq!((router.read("q.length"), router.read("q.highwater_length")), ("7".into(), "7".into()));
        assert_eq!((router.read("q.class"), router.read("config")), (class.into(), text));
        // Whoever pulls is told that there are packets.
        router.change("Idle -> q :: Queue(5) -> c :: Counter -> Discard").unwrap();
        assert_eq!((router.read("q.length"), router.read("c.count")), ("0".into(), "5".into()));
        let lost = "  warning: some packets lost (old length 7, new capacity 5)";
        assert_eq!(router.said(), ["config:1: While hot-swapping state into 'q :: Queue':", lost]);
    }
}

/// Packets are in a Batcher, in batches and in a Debatcher, some of them changed already.
#[test]
fn paths_keep_their_packets() {
    let text = |source: &str, batch: usize, queue: usize, end: &str| {
        format!(
            "{source} -> b :: Batcher({batch}, 0, ADAPTIVE false) -> HostToDeviceMemcpy(host) -> GPUDecIPTTL -> DeviceToHostMemcpy
             -> GPUCompletionQueue(4) -> d :: Debatcher(3) -> q :: Queue({queue}) -> {end}"
        )
    };
    let header = "\\<4500 0014 0000 0000 4011 66d5 0a00 0001 0a00 0002>";
    let source = format!("InfiniteSource(DATA {header}, LIMIT 45) -> MarkIPHeader(0)");
    let mut router = Changing::new(&text(&source, 10, 12, "Discard(ACTIVE false)"));
    router.running.run_for(2000);
    assert_eq!(
        (router.read("q.length"), router.read("d.length"), router.read("b.length")),
        ("12".into(), "8".into(), "5".into())
    );
    let end =
        "Unqueue -> c :: IPClassifier(ip ttl 63, -) -> once :: Counter -> Discard; c[1] -> more :: Counter -> Discard";
    router.change(&text("Idle", 7, 100, end)).unwrap();
    router.running.run_for(2000);
    assert_eq!((router.read("once.count"), router.read("more.count")), ("41".into(), "0".into()));
    assert_eq!(router.read("b.length"), "4");
    assert_eq!(router.said(), [""; 0]);
}

#[test]
fn the_youngest_stay_where_the_oldest_are_dropped() {
    for (class, bytes) in [("FrontDropQueue", "198"), ("Queue", "120")] {
        let mut router = Changing::new(
            "InfiniteSource(LIMIT 4, LENGTH 60) -> q :: SimpleQueue -> Discard(ACTIVE false);
             late :: InfiniteSource(LIMIT 2, LENGTH 99, ACTIVE false) -> q",
        );
        router.running.run_for(100);
        router.running.write("late.active", "true").unwrap();
        router.running.run_for(100);
        assert_eq!(router.read("q.length"), "6");
        router.change(&format!("Idle -> q :: {class}(2) -> c :: Counter -> Discard")).unwrap();
        assert_eq!(router.read("c.byte_count"), bytes);
    }
}

/// Symptom: a script that changed the configuration and ended ended everything. Cause: its stop was added to that of the old
/// router, and the sum said that all of it had ended.
#[test]
fn a_stop_after_the_change_stops_nothing_else() {
    let text = "Idle -> other :: Discard";
    let mut router = Changing::new("Idle -> Discard");
    router.running.write("hotconfig", text).unwrap();
    for stops in ["1", "2147483647"] {
        router.running.write("stop", stops).unwrap();
    }
    router.running.run_for(100);
    assert_eq!((router.read("config"), router.read("runcount")), (text.into(), "1".into()));
    // What has ended has ended.
    router.running.router().end();
    router.running.write("hotconfig", "Idle -> third :: Discard").unwrap();
    router.running.router().set_runcount(5);
    router.running.run_for(100);
    assert_eq!(router.read("config"), text);
}

/// A rewriter that two hosts, with UDP, have sent packets to.
fn rewriting(class: &str, specs: &str) -> String {
    format!(
        "InfiniteSource(LIMIT 3) -> UDPIPEncap(10.0.0.1, 5, 2.0.0.2, 80) -> rw :: {class}({specs}, REAP_INTERVAL 0) -> Discard;
         InfiniteSource(LIMIT 3) -> UDPIPEncap(10.0.0.2, 6, 2.0.0.2, 80) -> [1] rw; rw [1] -> Discard;"
    )
}

#[test]
fn rewriters_keep_flows_that_they_would_make() {
    let [one, two] = ["pattern 1.0.0.1 1024-1027# - - 0 1", "pattern 1.0.0.2 - 3.0.0.3 - 0 1"];
    let specs = format!("{one}, {two}");
    let idle = |class: &str, specs: &str| rewriting(class, specs).replace("LIMIT 3", "LIMIT 0");
    // What flows come as, and what they become.
    let flows = |router: &mut Changing| {
        let table = router.read("rw.table");
        let forward = table.lines().filter(|line| line.contains("[*"));
        forward.map(|line| line.split(" [").next().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let mut router = Changing::new(&rewriting("UDPRewriter", &specs));
    router.running.run_for(100);
    let both = flows(&mut router);
    assert_eq!(both.len(), 2, "{both:?}");
    let table = router.read("rw.table");
    router.change(&idle("UDPRewriter", &specs)).unwrap();
    assert_eq!((router.read("rw.table"), router.read("rw.size")), (table, "2".into()));
    // The inputs have changed places, and what they say is said by a name.
    let named = format!(
        "IPRewriterPatterns(p 1.0.0.1 1024-1027 - -); {}",
        idle("UDPRewriter", &format!("{two}, pattern p 0 1"))
    );
    router.change(&named).unwrap();
    assert_eq!((flows(&mut router), router.read("rw.pattern0")), (both.clone(), "1.0.0.2 - 3.0.0.3 - [1]".into()));
    // Replies are known, and the port that a flow has is not given to another.
    let more = rewriting("UDPRewriter", &format!("{one}, {two}, CAPACITY 3")).replace("10.0.0.1, 5", "10.0.0.9, 9");
    router.change(&more).unwrap();
    router.running.run_for(100);
    let three = flows(&mut router);
    assert!(three.len() == 3 && both.is_subset(&three), "{three:?}");
    let rewritten: BTreeSet<_> = three.iter().map(|flow| flow.split(" => ").nth(1).unwrap()).collect();
    assert_eq!(rewritten.len(), 3, "{rewritten:?}");
    // Less room, another pattern, another class.
    router.change(&idle("UDPRewriter", &format!("{specs}, CAPACITY 2"))).unwrap();
    assert_eq!(router.read("rw.size"), "2");
    router.change(&idle("UDPRewriter", "drop, drop")).unwrap();
    assert_eq!(router.read("rw.size"), "0");
    let mut router = Changing::new(&rewriting("UDPRewriter", &specs));
    router.running.run_for(100);
    router.change(&idle("UDPRewriter", &specs.replace("1.0.0.1", "1.0.0.7"))).unwrap();
    let second = both.into_iter().filter(|flow| flow.starts_with("(10.0.0.2"));
    assert_eq!(flows(&mut router), second.collect());
    router.change(&idle("IPRewriter", &specs)).unwrap();
    assert_eq!((router.read("rw.size"), router.said()), ("0".into(), Vec::<String>::new()));
}

/// Ranges began anew, so that a port which was free again came back at once.
#[test]
fn ranges_go_on_where_they_stopped() {
    let named = "IPRewriterPatterns(p 1.0.0.1 1024-1027# - -);";
    let mapper = "m :: RoundRobinIPMapper(1.0.0.1 1024-1024# - - 0 1, 1.0.0.1 1025-1025# - - 0 1);";
    for (before, spec) in [("", "pattern 1.0.0.1 1024-1027# - - 0 1"), (named, "pattern p 0 1"), (mapper, "m")] {
        let text = format!("{before} {}", rewriting("UDPRewriter", &format!("{spec}, drop")));
        let mut router = Changing::new(&text);
        router.running.run_for(100);
        assert!(router.read("rw.table").contains("1.0.0.1, 1024"), "{}", router.read("rw.table"));
        router.running.write("rw.clear", "").unwrap();
        router.change(&text).unwrap();
        router.running.run_for(100);
        let table = router.read("rw.table");
        assert!(table.contains("1.0.0.1, 1025") && !table.contains("1.0.0.1, 1024"), "{text}\n{table}");
    }
}

#[test]
fn captures_go_on_where_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packets.pcap");
    let name = path.to_str().unwrap();
    let packets = || {
        let mut reader = bifolio_net::capture::Reader::open(name).unwrap();
        let mut lens = Vec::new();
        while let Some(record) = reader.read().unwrap() {
            lens.push(record.data.len());
        }
        lens
    };
    let writing =
        |len: usize, more: &str| format!("InfiniteSource(LIMIT 2, LENGTH {len}) -> d :: ToDump({name}{more})");
    let mut router = Changing::new(&writing(60, ""));
    router.running.run_for(100);
    router.change("Idle -> d :: ToDump(/nowhere/at/all)").unwrap_err();
    for len in 61..64 {
        router.change(&writing(len, "")).unwrap();
    }
    router.running.write("d.flush", "").unwrap();
    assert_eq!((packets(), router.read("d.count")), (vec![60, 60, 61, 61, 62, 62, 63, 63], "2".into()));
    let reading = |limit: u32, more: &str| {
        format!("f :: FromDump({name}{more}) -> Unqueue(LIMIT {limit}) -> c :: Counter -> Discard")
    };
    router.change(&reading(3, "")).unwrap();
    router.change(&reading(4, "")).unwrap();
    assert_eq!((router.read("c.byte_count"), router.read("f.count")), ("248".into(), "4".into()));
    router.change(&reading(9, "")).unwrap();
    assert_eq!(router.read("c.byte_count"), "63");
    // With another configuration, all begins anew.
    router.change(&reading(2, ", STOP false")).unwrap();
    assert_eq!(router.read("c.byte_count"), "120");
    router.change(&writing(99, ", NANO true")).unwrap();
    router.change("Idle -> Discard").unwrap();
    assert_eq!((packets(), router.said()), (vec![99, 99], Vec::<String>::new()));
}

#[test]
fn what_is_wrong_changes_nothing() {
    let text = "InfiniteSource(LIMIT 7) -> q :: Queue -> Discard(ACTIVE false)";
    let mut router = Changing::new(text);
    router.running.run_for(100);
    for (wrong, told) in [
        ("q :: Queue ->", "config:1: "),
        ("Idle -> q :: Queue(x) -> Discard", "  CAPACITY: "),
        ("Idle -> q :: Qeueu -> Discard", "unknown element class 'Qeueu'"),
        ("Idle -> q :: Queue", "'q :: Queue' output 0 unused"),
        ("ControlSocket(unix, /nowhere/at/all)", "bind: /nowhere/at/all: "),
    ] {
        let error = router.change(wrong).unwrap_err();
        assert!(error.contains(told), "{wrong}: {error}");
        assert_eq!((router.read("q.length"), router.read("config")), ("7".into(), text.into()));
    }
    assert_eq!(router.said(), Vec::<String>::new());
}

#[test]
fn addresses_and_averages_are_kept_and_counts_begin_anew() {
    let arp = "a :: ARPTable; Idle -> arpq :: ARPQuerier(1.0.0.1, 2:0:0:0:0:1) -> Discard; Idle -> [1] arpq;";
    let red = "InfiniteSource(LIMIT 50) -> c :: Counter -> r :: RED(100, 200, 0.1, STABILITY 1) -> q :: Queue -> Discard(ACTIVE false);";
    let mut router = Changing::new(&format!("{arp}{red}"));
    router.running.write("a.insert", "1.0.0.2 2:0:0:0:0:2").unwrap();
    router.running.write("arpq.insert", "1.0.0.3 2:0:0:0:0:3").unwrap();
    router.running.run_for(100);
    let before = ["a.table", "arpq.table", "r.avg_queue_size"].map(|handler| router.read(handler));
    assert_ne!(before[2], "0");
    assert_eq!(router.read("c.count"), "50");
    let idle = red.replace("InfiniteSource(LIMIT 50)", "Idle");
    router.change(&format!("{arp}{idle}")).unwrap();
    assert_eq!(["a.table", "arpq.table", "r.avg_queue_size"].map(|handler| router.read(handler)), before);
    assert_eq!((router.read("c.count"), router.read("q.length")), ("0".into(), "50".into()));
    // Another address is another host.
    router.change(&arp.replace("1.0.0.1", "1.0.0.9")).unwrap();
    assert_eq!((router.read("arpq.table"), router.read("a.table")), (String::new(), before[0].clone()));
    assert_eq!(router.said(), Vec::<String>::new());
}

#[test]
fn time_goes_on_and_who_looks_sees_the_new_router() {
    let mut router = Changing::new("Script(wait 5s)");
    let current = router.running.current().clone();
    router.running.run_for(1000);
    let now = current.router().clock().now();
    router.change("Idle -> only :: Discard").unwrap();
    assert!(current.router().find("only").is_some() && Arc::ptr_eq(&current.router(), router.running.router()));
    assert!(current.router().clock().now() >= now);
    // All of it ends, whatever waits to take its place.
    router.running.write("hotconfig", "Idle -> other :: Discard").unwrap();
    current.router().end();
    router.running.run();
    assert!(current.router().find("other").is_none());
}

#[test]
fn packets_of_a_router_that_ends_are_nobodys() {
    let mut router = Changing::new("InfiniteSource(LIMIT 7) -> gone :: Queue -> Discard(ACTIVE false)");
    router.running.run_for(100);
    router.change("Idle -> q :: Queue -> Discard").unwrap();
    assert_eq!(router.read("q.length"), "0");
    assert!(router.running.read("gone.length").is_err());
}

fn click(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_click"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A control connection.
struct Control(BufReader<UnixStream>);

impl Control {
    fn new(stream: UnixStream) -> Self {
        let mut control = Self(BufReader::new(stream));
        assert_eq!(control.line(), "Click::ControlSocket/1.3");
        control
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Says something, and gives the first line of the answer.
    fn ask(&mut self, text: &str) -> String {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        self.line()
    }

    /// A handler's value.
    fn read(&mut self, handler: &str) -> String {
        let answer = self.ask(&format!("READ {handler}\n"));
        assert!(answer.starts_with("200 "), "{answer}");
        let len = self.line().strip_prefix("DATA ").expect("data").parse().unwrap();
        let mut value = vec![0; len];
        self.0.read_exact(&mut value).unwrap();
        String::from_utf8(value).unwrap()
    }

    fn change(&mut self, text: &str) -> String {
        self.ask(&format!("WRITEDATA hotconfig {}\n{text}", text.len()))
    }
}

fn end(mut child: Child) -> (Option<i32>, String, String) {
    let done = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(done.success());
    let (mut out, mut error) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    (child.wait().unwrap().code(), out, error)
}

#[test]
fn a_configuration_is_changed_through_its_control_socket_which_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let before = "InfiniteSource(LIMIT 7) -> q :: Queue -> Discard(ACTIVE false)";
    let args = ["-R", "-j2", "-u", path.to_str().unwrap(), "-e", before, "-h", "config", "-h", "q.length"];
    let child = click(&args).spawn().unwrap();
    until("it listens", || UnixStream::connect(&path).is_ok());
    let mut control = Control::new(UnixStream::connect(&path).unwrap());
    assert_eq!(control.read("driver"), "userlevel");
    until("packets have come", || control.read("q.length") == "7");
    assert!(control.change("q :: Qeueu").starts_with("520-Write handler 'hotconfig' error:"));
    while control.line().starts_with("520-") {}
    assert_eq!(control.read("config"), before);
    for n in 1..4 {
        let text = format!("Idle -> q :: Queue({n}0) -> Discard(ACTIVE false) // {n}");
        assert_eq!(control.change(&text), "200 Write handler 'hotconfig' OK");
        until("it runs", || control.read("config") == text);
        assert_eq!(control.read("q.length"), "7");
        assert!(control.read("list").contains("click_driver@@ControlSocket\n"));
        let mut another = Control::new(UnixStream::connect(&path).unwrap());
        assert_eq!(another.read("q.capacity"), format!("{n}0"));
    }
    let (code, out, error) = end(child);
    let after = "config:\nIdle -> q :: Queue(30) -> Discard(ACTIVE false) // 3\nq.length:\n7\n\n";
    assert_eq!((code, out.as_str(), error.as_str()), (Some(0), after, ""));
    assert!(!path.exists());
}

#[test]
fn without_the_option_nothing_can_be_changed() {
    let (own, other) = UnixStream::pair().unwrap();
    let child = click(&["--socket", "0", "-e", "Idle -> Discard"]).stdin(OwnedFd::from(other)).spawn().unwrap();
    let mut control = Control::new(own);
    assert_eq!(control.change("Idle -> Idle"), "511 No handler named 'hotconfig'");
    assert!(end(child).0 == Some(0));
}

#[test]
fn a_connection_that_was_there_before_is_taken_and_kept() {
    let (own, other) = UnixStream::pair().unwrap();
    let args = ["-R", "--socket=0", "-e", "Idle -> a :: Discard"];
    let child = click(&args).stdin(OwnedFd::from(other)).spawn().unwrap();
    let mut control = Control::new(own);
    for name in ["b", "c"] {
        assert_eq!(control.change(&format!("Idle -> {name} :: Discard")), "200 Write handler 'hotconfig' OK");
        until("it runs", || control.read("list").contains(&format!("\n{name}\n")));
    }
    assert_eq!(control.ask("QUIT\n"), "200 Goodbye!");
    assert_eq!(control.line(), "");
    assert_eq!(end(child).0, Some(0));
    let output = click(&["--socket", "77", "-e", "Idle -> Discard"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("file descriptor 77: Bad file descriptor"), "{error}");
}

#[test]
fn threads_have_processors_of_their_own() {
    let allowed = |status: &str| {
        let status = std::fs::read_to_string(status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
        line.unwrap_or_default().to_owned()
    };
    let own = allowed("/proc/self/status");
    let first = own.split(['-', ',']).next().unwrap();
    let child = click(&[&format!("--affinity={first}"), "-e", "Idle -> Discard"]).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    until("its thread is where it is to be", || allowed(&status) == first);
    assert_eq!(end(child).0, Some(0));
    let output = click(&["--affinity=1023", "-e", "DriverManager(stop)"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && error.starts_with("thread 0: processor 1023: "), "{error}");
}

#[test]
fn the_routers_own_handlers_say_what_it_is() {
    let text = "require(package userlevel) // all\nIdle -> Discard";
    let output = click(&["-q", "-e", text, "-h", "driver", "-h", "requirements", "-h", "config"]).output().unwrap();
    let expected = format!("driver:\nuserlevel\n\nrequirements:\npackage \"userlevel\"\n\nconfig:\n{text}\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn a_configuration_may_stand_in_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let (file, bad) = (folder.path().join("good"), folder.path().join("bad"));
    let member =
        |name: &str, data: &str| format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n{data}", 0, 0, 0, 644, data.len());
    let other = member("other/", "xyz\n");
    std::fs::write(&file, format!("!<arch>\n{other}{}", member("config/", "a :: Idle -> Discard"))).unwrap();
    std::fs::write(&bad, format!("!<arch>\n{other}")).unwrap();
    let output = click(&["-q", file.to_str().unwrap(), "-h", "list"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\na\nDiscard@2\n");
    let output = click(&["-q", bad.to_str().unwrap()]).output().unwrap();
    let expected = format!("{}: archive has no 'config' section\n", bad.display());
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(1), expected));
}
