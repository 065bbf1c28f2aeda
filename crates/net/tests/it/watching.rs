//! Routers are watched while they run: rates on a terminal and in a pipe, metrics and drawings for whoever asks.

use bifolio_net::router::{self, Options, Running};
use bifolio_net::watch::Watch;
use bifolio_net::watch::server::{Listener, Server};
use bifolio_net::watch::views::Views;
use bifolio_net::{Log, Registry, lang};
use bifolio_testing::{has, noise, seed, until};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};

const ENDLESS: &str =
    "i :: InfiniteSource(DATA 12345678) -> c :: Counter -> q :: SimpleQueue(10) -> RatedUnqueue(1000) -> Discard";

fn click(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_click"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a run that ends by itself says: its exit code, standard output and standard error.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = click(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn interrupt(child: &Child) {
    let done = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_run_that_ends_shows_all_of_it() {
    let config = "InfiniteSource(LIMIT 1234, STOP true) -> c :: Counter -> Discard";
    let (code, out, error) = run(&["--stats=100", "-e", config]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let lines: Vec<Vec<_>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(out.starts_with("all of it: ") && !out.contains('\x1b'), "{out}");
    assert_eq!(lines[1], ["ELEMENT", "CLASS", "PACKETS/S", "BITS/S", "PACKETS"]);
    let counter = lines.iter().find(|line| line[0] == "c").expect("a line for c");
    assert_eq!((counter[1], counter[4]), ("Counter", "1234"));
}

#[test]
fn blocks_follow_each_other_until_an_interrupt() {
    let mut child = click(&["--stats=0.1", "-e", ENDLESS]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut totals = Vec::new();
    while totals.len() < 3 {
        let line = lines.next().expect("it runs");
        if let Some(rest) = line.strip_prefix("c ") {
            totals.push(rest.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap());
        }
    }
    assert!(totals[0] > 0 && totals.is_sorted_by(|a, b| a < b), "{totals:?}");
    interrupt(&child);
    let rest: Vec<_> = lines.collect();
    assert_eq!(rest.iter().filter(|line| line.starts_with("all of it: ")).count(), 1, "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn who_does_not_read_stops_nobody() {
    let mut child = click(&["--stats=0.1", "-e", ENDLESS]).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_terminal_has_a_page_in_place_and_is_as_before_afterwards() {
    if !has("script") {
        return;
    }
    let config = "InfiniteSource -> c :: Counter -> q :: Queue(10) -> RatedUnqueue(1000) -> Discard";
    let line = format!("stty rows 7 cols 50; exec {} --stats=0.1 -e '{config}'", env!("CARGO_BIN_EXE_click"));
    let mut child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut seen = Vec::new();
    // Two pages, each of which begins at the upper left.
    while seen.windows(3).filter(|bytes| *bytes == b"\x1b[H").count() < 3 {
        let mut piece = [0; 512];
        let n = out.read(&mut piece).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..n]);
    }
    keys.write_all(b"\x03").unwrap();
    out.read_to_end(&mut seen).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let seen = String::from_utf8(seen).unwrap();
    let (pages, last) = seen.split_once("\x1b[?25h\x1b[?1049l").expect("the screen is left");
    assert!(pages.contains("\x1b[?1049h\x1b[?25l\x1b[H") && last.starts_with("all of it: "), "{seen:?}");
    assert!(!last.contains('\x1b') && last.contains("RatedUnqueue"), "{last:?}");
    let page = pages.split("\x1b[H").nth(1).unwrap().trim_end_matches("\x1b[J");
    let lines: Vec<_> = page.split("\r\n").map(|line| line.replace("\x1b[K", "")).collect();
    assert!(lines.len() <= 7 && lines.iter().all(|line| line.chars().count() <= 50), "{lines:?}");
    assert!(lines[1].starts_with("ELEMENT") && !lines[1].contains("CLASS"), "{lines:?}");
}

#[test]
fn what_is_wrong_is_said_and_nothing_starts() {
    let config = "Message(started) ; Idle -> Discard";
    for (args, told) in [
        (&["--stats=0"][..], "'0' is no time from 0.1 to 86400 seconds\n"),
        (&["--stats=often"], "'often' is no time from 0.1 to 86400 seconds\n"),
        (&["--stats=NaN"], "'NaN' is no time from 0.1 to 86400 seconds\n"),
        (&["--graph", "a", "--graph", "b"], "graph file specified twice\n"),
        (&["--metrics", "1", "--metrics", "2"], "metrics address specified twice\n"),
        (&["--metrics"], "'--metrics' requires an argument\n"),
        (&["--metrics", "70000"], "--metrics: 70000: "),
        (&["--metrics", "127.0.0.1"], "--metrics: 127.0.0.1: "),
        (&["--metrics", "192.0.2.1:80"], "--metrics: 192.0.2.1:80: "),
        (&["--metrics", "/nowhere/at/all"], "--metrics: /nowhere/at/all: "),
        (&["--graph", "/nowhere/at/all"], "/nowhere/at/all: No such file or directory\n"),
    ] {
        let args: Vec<_> = ["-e", config].into_iter().chain(args.iter().copied()).collect();
        let (code, out, error) = run(&args);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{args:?}: {error}");
        assert!(error.contains(told), "{args:?}: {error}");
    }
}

#[test]
fn a_drawing_has_the_rates_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graph.svg");
    let config =
        "InfiniteSource(LIMIT 1000, STOP true) -> t :: Tee -> a :: Null -> d :: Discard; t[1] -> b :: Null -> d";
    let (code, _, error) = run(&["--graph", file.to_str().unwrap(), "-e", config]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    let rates = regex::Regex::new(r#"class="r"[^>]*>([0-9.]+)[kMG]?/s<"#).unwrap();
    let rates: Vec<_> = rates.captures_iter(&svg).map(|found| found[1].to_owned()).collect();
    assert_eq!(rates.len(), 5, "{svg}");
    assert!(rates.iter().all(|rate| *rate == rates[0] && rate != "0"), "{rates:?}");
}

/// Asks by HTTP, and returns the answer's head and content.
fn ask(stream: impl Read + Write, request: &str) -> (String, String) {
    let mut stream = stream;
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, content) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer:?}"));
    (head.to_owned(), content.to_owned())
}

fn get(address: &str, path: &str) -> (String, String) {
    ask(TcpStream::connect(address).unwrap(), &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

/// A metric's value.
fn value(text: &str, metric: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_are_served_while_packets_pass() {
    let mut child = click(&["--metrics", "0", "-e", ENDLESS]).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let place = errors.find_map(|line| line.strip_prefix("metrics: http://").map(str::to_owned)).expect("an address");
    let address = place.trim_end_matches('/');
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let count = "bifolio_net_packets_total{element=\"c\",class=\"Counter\",port=\"0\"}";
    let drops = "bifolio_net_drops_total{element=\"q\",class=\"SimpleQueue\"}";
    let mut before = 0.0;
    for _ in 0..3 {
        let mut now = 0.0;
        until("packets pass", || {
            let (head, text) = get(address, "/metrics");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", text.len())), "{head}");
            now = value(&text, count).unwrap();
            now > before && value(&text, drops).is_some_and(|drops| drops > 0.0)
        });
        before = now;
    }
    let (head, svg) = get(address, "/graph.svg");
    assert!(head.contains("image/svg+xml") && svg.starts_with("<svg ") && svg.contains("/s</text>"), "{head}");
    assert!(get(address, "/").1.contains("<svg "));
    assert!(get(address, "/else").0.starts_with("HTTP/1.1 404 "));
    assert!(ask(TcpStream::connect(address).unwrap(), "BREW / HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405 "));
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_unix_socket_is_its_users_alone_and_goes_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics");
    // One that was killed has left its socket.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut child = click(&["--metrics", path.to_str().unwrap(), "-e", ENDLESS]).spawn().unwrap();
    let stream = || UnixStream::connect(&path);
    until("it listens", || stream().is_ok());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let (head, text) = ask(stream().unwrap(), "GET /metrics HTTP/1.0\n\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && value(&text, "bifolio_net_elements") == Some(5.0), "{text}");
    let (code, _, error) = run(&["--metrics", path.to_str().unwrap(), "-e", "Idle -> Discard"]);
    assert!(code == Some(1) && error.contains("Address already in use"), "{error}");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
}

/// A router of this process's, and a server that watches it.
fn served(config: &str) -> (Running, Server, String) {
    let (registry, mut log) = (Registry::standard(), Log::new());
    let graph = lang::parse(config, "config", &lang::Globals::new(), &registry, &mut log);
    let running = graph.and_then(|graph| router::build(&graph, &registry, Options::default(), &mut log));
    let running = running.unwrap_or_else(|| panic!("{log}"));
    running.listen(|_| (), |_| ());
    let listener = Listener::bind("0").unwrap();
    let address = listener.place().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let server = Server::start(listener, Views::new(Watch::new(running.current().clone()))).unwrap();
    (running, server, address)
}

#[test]
fn clients_that_flood_lie_or_say_nothing_hurt_nobody() {
    let (mut running, server, address) = served(ENDLESS);
    let router = running.current().clone();
    let counter = router.router().find("c").unwrap();
    let passed = || router.router().packets_in(counter, 0);
    let driver = std::thread::spawn(move || running.run());
    let seed = seed();
    // Some are silent, some ask by halves, some say what nobody understands, and some far too much.
    let mut open = Vec::new();
    for i in 0..200u64 {
        let mut stream = TcpStream::connect(&address).unwrap();
        let said = match i % 4 {
            0 => Vec::new(),
            1 => b"GET /metrics HTTP/1.1\r\nHost: ".to_vec(),
            2 => noise(3000, seed.wrapping_add(i)),
            _ => vec![b'a'; 200_000],
        };
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&said);
        open.push(stream);
        if i % 20 == 0 {
            let before = passed();
            let (head, text) = get(&address, "/metrics");
            assert!(head.starts_with("HTTP/1.1 200 ") && text.contains("bifolio_net_packets_total"), "{head}");
            until("packets pass", || passed() > before);
        }
    }
    // Some ask, and do not take the answer.
    for stream in &mut open {
        let _ = stream.write(b"\r\n\r\nGET /graph.svg HTTP/1.1\r\n\r\n");
        let _ = stream.shutdown(Shutdown::Write);
    }
    assert!(get(&address, "/metrics").0.starts_with("HTTP/1.1 200 "));
    drop(open);
    assert!(get(&address, "/graph.svg").1.ends_with("</svg>\n"));
    drop(server);
    router.router().set_runcount(0);
    driver.join().unwrap();
}

#[test]
fn a_router_that_does_not_run_has_counts_of_packets_alone() {
    let (running, server, address) = served(ENDLESS);
    let (_, text) = get(&address, "/metrics");
    assert!(text.contains("bifolio_net_packets_total{") && !text.contains("bifolio_net_drops_total"), "{text}");
    drop((server, running));
    assert!(TcpStream::connect(&address).is_err());
}
