use crate::Clock;
use crate::lang::{Globals, parse};
use crate::router::{Options, Running, build};
use crate::{Log, Registry};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

/// A router with a socket; both ends are in this thread.
struct Server {
    running: Running,
    path: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Server {
    fn new(keywords: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let config = format!(
            "ControlSocket(unix, {}{keywords}); s :: Script(TYPE PASSIVE, set x $args, return $x); t :: Script(TYPE PASSIVE, errorq 'no way'); \
             Idle -> c :: Counter -> w :: Switch(0) -> Idle; w[1] -> Idle; Idle -> r :: ARPResponder -> Idle",
            path.display()
        );
        let (mut log, registry) = (Log::new(), Registry::standard());
        let graph = parse(&config, "config", &Globals::new(), &registry, &mut log).unwrap();
        let options = Options { clock: Clock::simulated(), ..Options::default() };
        let running = build(&graph, &registry, options, &mut log).unwrap_or_else(|| panic!("{log}"));
        Self { running, path, _folder: folder }
    }

    fn connect(&mut self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    /// Says something, and gives what is answered until nothing more comes.
    fn ask(&mut self, stream: &mut UnixStream, text: &str) -> String {
        stream.write_all(text.as_bytes()).unwrap();
        self.listen(stream)
    }

    fn listen(&mut self, stream: &mut UnixStream) -> String {
        let mut all = Vec::new();
        for _ in 0..100 {
            self.running.run_for(20);
            let _ = stream.read_to_end(&mut all);
        }
        String::from_utf8(all).unwrap()
    }
}

#[test]
fn handlers_are_read_written_and_checked() {
    let mut server = Server::new("");
    let mut stream = server.connect();
    assert_eq!(server.ask(&mut stream, ""), "Click::ControlSocket/1.3\r\n");
    for (question, expected) in [
        ("READ s.class\r\n", "200 Read handler 's.class' OK\r\nDATA 6\r\nScript"),
        ("read 2.name\n", "200 Read handler '2.name' OK\r\nDATA 1\r\ns"),
        ("READ s.run a b\n", "200 Read handler 's.run' OK\r\nDATA 3\r\na b"),
        ("READDATA s.run 4\r\nx\r\ny", "200 Read handler 's.run' OK\r\nDATA 4\r\nx\r\ny"),
        ("WRITE t.run\n", "520-Write handler 't.run' error:\r\n520 no way\r\n"),
        ("READ s.nothing\n", "511 No handler named 's.nothing'\r\n"),
        ("READ q.nothing\n", "510 No element named 'q'\r\n"),
        ("READ s.step\n", "530 Handler 's.step' write-only\r\n"),
        ("WRITE s.name x\n", "530 Handler 's.name' read-only\r\n"),
        ("CHECKREAD s.run\n", "200 Read handler 's.run' OK\r\n"),
        ("CHECKWRITE s.name\n", "511 Handler 's.name' not writable\r\n"),
        ("CHECKREAD\n", "500 Wrong number of arguments\r\n"),
        ("READ s.cat /etc/hostname\n", "511 No handler named 's.cat'\r\n"),
        ("CHECKREAD s.kill\n", "511 No handler named 's.kill'\r\n"),
        ("JUMP s\n", "501 Command 'JUMP' unimplemented\r\n"),
        (
            "WRITE r.config 1.0.0.1 1:1:1:1:1:1, 1.0.0.1 1:1:1:1:1:2\n",
            "220-Write handler 'r.config' OK with warnings:\r\n220 warning: multiple entries for 1.0.0.1/32\r\n",
        ),
        ("WRITE r.config 1.0.0.1 1:1:1:1:1:1\n", "200 Write handler 'r.config' OK\r\n"),
    ] {
        assert_eq!(server.ask(&mut stream, question), expected, "{question}");
    }
    assert!(server.ask(&mut stream, "READ list\n").contains("ControlSocket@1\ns\nt\n"));
    assert_eq!(server.ask(&mut stream, "QUIT now\nREAD list\n"), "500 Bad command syntax\r\n200 Goodbye!\r\n");
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn nothing_is_written_where_that_is_said() {
    let mut server = Server::new(", READONLY true");
    let mut stream = server.connect();
    server.ask(&mut stream, "");
    assert_eq!(server.ask(&mut stream, "WRITE s.run\n"), "530 Permission denied for 's.run'\r\n");
    assert_eq!(server.ask(&mut stream, "CHECKWRITE s.run\n"), "530 Permission denied for 's.run'\r\n");
}

#[test]
fn who_floods_or_says_nothing_hurts_nobody() {
    let mut server = Server::new("");
    // Asks without reading the answers: its answers are bounded, and it waits.
    let mut flood = server.connect();
    let questions = "READ s.run ".to_owned() + &"x".repeat(1000) + "\n";
    for _ in 0..20_000 {
        match flood.write(questions.as_bytes()) {
            Ok(n) if n == questions.len() => server.running.run_for(2),
            _ => break,
        }
    }
    let _silent = server.connect();
    let mut half = server.connect();
    half.write_all(b"WRITEDATA s.run 100\r\nabc").unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    let mut long = server.connect();
    for _ in 0..100 {
        let _ = long.write(&[b'a'; 4096]);
        server.running.run_for(2);
    }
    assert!(server.listen(&mut half).contains("500 Not enough data"));
    assert!(server.listen(&mut long).contains("500 Line too long"));
    let crowd: Vec<_> = (0..100)
        .map(|_| {
            let stream = server.connect();
            server.running.run_for(2);
            stream
        })
        .collect();
    drop(crowd);
    server.running.run_for(1000);
    let mut stream = server.connect();
    assert!(server.ask(&mut stream, "READ s.name\n").ends_with("DATA 1\r\ns"));
}

#[test]
fn an_address_in_use_is_an_error() {
    let server = Server::new("");
    let config =
        format!("ControlSocket(unix, {}); ControlSocket(carrier, 5); ControlSocket(tcp, 99999)", server.path.display());
    let told = crate::elements::testing::Harness::errors(&config);
    assert!(told.contains("unknown socket type 'CARRIER'") && told.contains("PORT requires TCP port"), "{told}");
    let told = crate::elements::testing::Harness::errors(config.split_once(';').unwrap().0);
    assert!(told.contains("Address already in use"), "{told}");
    assert_eq!(std::fs::metadata(&server.path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(server.running);
    assert!(!server.path.exists());
}

#[test]
fn procedures_of_counters_and_switches_are_called() {
    let mut server = Server::new("");
    let mut stream = server.connect();
    server.ask(&mut stream, "");
    for (question, expected) in [
        ("LLRPC c#c004c003 4\n\0\0\0\0", "200 LLRPC 'c#c004c003' OK\r\nDATA 4\r\n\0\0\0\0"),
        ("LLRPC c#0xC004C001 4\n\0\0\0\0", "200 LLRPC 'c#0xC004C001' OK\r\nDATA 4\r\n\0\0\0\0"),
        ("LLRPC c#c004c003 4\nabcd", "522 LLRPC 'c#c004c003' error: Invalid argument\r\n"),
        ("LLRPC c#c004c003\n", "522 LLRPC 'c#c004c003' requires 4 bytes input data\r\n"),
        ("LLRPC w#80044006 4\n\u{1}\0\0\0", "200 LLRPC 'w#80044006' OK\r\nDATA 0\r\n"),
        ("LLRPC w#4004c005\n", "200 LLRPC 'w#4004c005' OK\r\nDATA 4\r\n\u{1}\0\0\0"),
        ("LLRPC s#4004c005\n", "522 LLRPC 's#4004c005' error: Invalid argument\r\n"),
        ("LLRPC s#5\n", "501 Cannot call LLRPC 's#5' remotely\r\n"),
        ("LLRPC q#5\n", "510 No element named 'q'\r\n"),
        ("LLRPC s\n", "500 Syntax error in LLRPC name 's'\r\n"),
        ("LLRPC s#x\n", "500 Syntax error in LLRPC name 's#x'\r\n"),
        ("LLRPC\n", "500 Wrong number of arguments\r\n"),
    ] {
        assert_eq!(server.ask(&mut stream, question), expected, "{question}");
    }
    let mut server = Server::new(", READONLY true");
    let mut stream = server.connect();
    server.ask(&mut stream, "");
    assert_eq!(server.ask(&mut stream, "LLRPC w#4004c005\n"), "530 Permission denied for 'w#4004c005'\r\n");
}

#[test]
fn a_port_with_a_plus_is_the_first_of_several() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let told = crate::elements::testing::Harness::errors(&format!("ControlSocket(TCP, {port})"));
    assert!(told.contains("bind: Address already in use"), "{told}");
    let config = format!("c :: ControlSocket(TCP, {port}+)");
    let (mut log, registry) = (Log::new(), Registry::standard());
    let graph = parse(&config, "config", &Globals::new(), &registry, &mut log).unwrap();
    let options = Options { clock: Clock::simulated(), ..Options::default() };
    // Others may have all of the ports behind it.
    if let Some(mut running) = build(&graph, &registry, options, &mut log) {
        let found: u16 = running.read("c.port").unwrap().parse().unwrap();
        assert!((1..=10).contains(&(found - port)), "{found} behind {port}");
    }
}
