//! The examples as machines of a network: real ping, traceroute and curl go through them.

use crate::live::{Live, start_example};
use crate::world::{Namespace, namespaces};
use bifolio_net::router::Options;
use bifolio_testing::{has, require};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::thread;

/// The body that the HTTP server has: longer than any buffer on the way.
fn body() -> Vec<u8> {
    bifolio_testing::noise(300_000, 17)
}

/// An HTTP server at port 80 of a namespace, for so many requests. It says who asked in a header.
fn serve(space: &Namespace, requests: usize) -> thread::JoinHandle<Vec<String>> {
    let listener = space.run(|| TcpListener::bind("0.0.0.0:80").unwrap());
    thread::spawn(move || (0..requests).map(|_| answer(&listener.accept().unwrap().0)).collect())
}

/// Answers a request, and returns the address of who asked.
fn answer(mut stream: &TcpStream) -> String {
    let mut request = Vec::new();
    let mut piece = [0; 1000];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "a request that ends within its header");
        request.extend_from_slice(&piece[..len]);
    }
    let body = body();
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
    stream.write_all(&body).unwrap();
    stream.peer_addr().unwrap().ip().to_string()
}

/// A program that runs in a namespace while a router runs; nothing where it is not installed.
fn run(live: &mut Live, space: &Namespace, line: &str) -> Option<String> {
    let words: Vec<_> = line.split_whitespace().collect();
    if !has(words[0]) {
        require(format!("{}: what it does through routers is left out", words[0]));
        return None;
    }
    let Output { stdout, stderr, .. } = live.during(space.command(words[0]).args(&words[1..]));
    Some(String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

#[track_caller]
fn shows(text: Option<String>, wanted: &[&str]) {
    let Some(text) = text else { return };
    for wanted in wanted {
        assert!(text.contains(wanted), "no '{wanted}' in:\n{text}");
    }
}

/// Fetches the body from a server.
fn fetch(live: &mut Live, space: &Namespace, server: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = format!("curl --silent --show-error --max-time 60 --output {} http://{server}/", file.path().display());
    if let Some(text) = run(live, space, &line) {
        assert!(std::fs::read(file.path()).unwrap() == body(), "{text}");
    }
}

/// A host with an address at its device, whose other end is `port` in the namespace of a router. Its packets are no longer
/// than its link allows: nothing on the way cuts what a host leaves to its device.
fn plug(host: &Namespace, device: &str, address: &str, router: &Namespace, port: &str) {
    host.connect(device, router, port);
    host.ip(&format!("link set dev {device} gso_max_segs 1"));
    host.ip(&format!("address add {address} dev {device}"));
}

/// The Ethernet address of a device.
fn ether(space: &Namespace, device: &str) -> String {
    let text = space.ip(&format!("link show dev {device}"));
    let mut words = text.split_whitespace();
    words.find(|word| *word == "link/ether").unwrap();
    words.next().unwrap().to_owned()
}

/// Two hosts at the router of `ip-router.click`, whose second link has a short MTU.
fn with_router(method: &str, work: impl FnOnce(&mut Live, &Namespace, &Namespace) + Send) {
    let Some([left, middle, right]) = namespaces() else { return };
    plug(&left, "h0", "10.0.0.2/24", &middle, "r0");
    plug(&right, "h1", "10.0.1.2/24", &middle, "r1");
    left.ip("route add default via 10.0.0.1");
    right.ip("route add default via 10.0.1.1");
    let ethernet = [ether(&middle, "r0"), ether(&middle, "r1")];
    middle.run(|| {
        let values = [
            ("DEV0", "r0"),
            ("ETHERNET0", &ethernet[0]),
            ("DEV1", "r1"),
            ("ETHERNET1", &ethernet[1]),
            ("MTU1", "600"),
            ("ROUTE", "10.9.0.0/16 10.0.0.3 1"),
            ("METHOD", method),
        ];
        work(&mut start_example("ip-router.click", &values, Options::default()), &left, &right);
    });
}

#[test]
fn pings_go_through_the_router_and_to_it() {
    for method in ["LINUX", "AF_XDP"] {
        with_router(method, |live, left, right| {
            let ping = |live: &mut Live, from, to| run(live, from, &format!("ping -n -c 3 -i 0.2 -W 5 {to}"));
            shows(ping(live, left, "10.0.1.2"), &["3 received", "ttl=63"]);
            shows(ping(live, right, "10.0.0.2"), &["3 received", "ttl=63"]);
            shows(ping(live, left, "10.0.0.1"), &["3 received"]);
            shows(ping(live, left, "10.0.1.1"), &["3 received"]);
        });
    }
}

#[test]
fn a_packet_whose_time_is_up_is_told() {
    for method in ["LINUX", "AF_XDP"] {
        with_router(method, |live, left, _| {
            shows(run(live, left, "ping -n -c 1 -t 1 10.0.1.2"), &["From 10.0.0.1", "Time to live exceeded"]);
            // One by one: with an error before the answers, traceroute may never look at these. Linux queues the error before
            // it marks the socket, so whoever is fast reads it from the queue, finds the mark afterwards, and waits for another.
            shows(run(live, left, "traceroute -n -I -q 1 -m 1 10.0.1.2"), &[" 1  10.0.0.1"]);
            shows(run(live, left, "traceroute -n -I -q 1 -f 2 10.0.1.2"), &[" 2  10.0.1.2"]);
        });
    }
}

#[test]
fn traceroute_by_udp_shows_both_hops_and_the_routers_closed_ports() {
    with_router("LINUX", |live, left, _| {
        shows(run(live, left, "traceroute -n -q 1 10.0.1.2"), &[" 1  10.0.", " 2  10.0.1.2"]);
        shows(run(live, left, "traceroute -n -q 1 10.0.0.1"), &[" 1  10.0.0.1"]);
    });
}

#[test]
fn a_long_packet_is_cut_or_refused_with_the_length_that_fits() {
    with_router("LINUX", |live, left, _| {
        shows(run(live, left, "ping -n -c 3 -i 0.2 -W 5 -M dont -s 1400 10.0.1.2"), &["3 received"]);
        shows(run(live, left, "ping -n -c 1 -M do -s 1400 10.0.1.2"), &["Frag needed", "mtu = 600"]);
    });
}

#[test]
fn a_host_is_told_of_a_shorter_way() {
    with_router("LINUX", |live, left, _| {
        // Nobody answers; what counts is what the router says.
        let text = run(live, left, "ping -n -c 1 -W 1 10.9.1.1");
        shows(text, &["From 10.0.0.1", "Redirect Host", "10.0.0.3"]);
    });
}

#[test]
fn a_file_is_fetched_through_the_router() {
    with_router("LINUX", |live, left, right| {
        let server = serve(right, 1);
        fetch(live, left, "10.0.1.2");
        if has("curl") {
            assert_eq!(server.join().unwrap(), ["10.0.0.2"]);
        }
    });
}

#[test]
fn hosts_behind_the_gateway_share_its_address() {
    let Some([inside, gateway, outside]) = namespaces() else { return };
    plug(&inside, "h0", "192.168.0.2/24", &gateway, "g0");
    inside.ip("route add default via 192.168.0.1");
    plug(&outside, "h1", "203.0.113.254/24", &gateway, "g1");
    let ethernet = [ether(&gateway, "g0"), ether(&gateway, "g1")];
    gateway.run(|| {
        let values =
            [("INNER", "g0"), ("INNER_ETHERNET", &ethernet[0]), ("OUTER", "g1"), ("OUTER_ETHERNET", &ethernet[1])];
        let live = &mut start_example("nat-gateway.click", &values, Options::default());
        shows(run(live, &inside, "ping -n -c 3 -i 0.2 -W 5 203.0.113.254"), &["3 received"]);
        shows(run(live, &inside, "ping -n -c 3 -i 0.2 -W 5 192.168.0.1"), &["3 received"]);
        shows(run(live, &inside, "ping -n -c 1 -t 1 203.0.113.254"), &["From 192.168.0.1", "Time to live exceeded"]);
        let server = serve(&outside, 2);
        fetch(live, &inside, "203.0.113.254");
        fetch(live, &inside, "203.0.113.254");
        if has("curl") {
            assert_eq!(server.join().unwrap(), ["203.0.113.1"; 2], "who asks, as the server sees it");
        }
        // An error about a packet that was rewritten finds its way back: no port is open there.
        shows(run(live, &inside, "traceroute -n -q 1 -f 2 -m 2 203.0.113.254"), &[" 2  203.0.113.254"]);
        // Nobody outside reaches a host inside.
        shows(run(live, &outside, "ping -n -c 1 -W 1 203.0.113.1"), &["0 received"]);
    });
}

#[test]
fn hosts_at_the_switch_talk_to_each_other() {
    for method in ["LINUX", "AF_XDP"] {
        let Some([first, second, third, switch]) = namespaces() else { return };
        let hosts = [&first, &second, &third];
        for (number, host) in hosts.iter().enumerate() {
            plug(host, "h", &format!("10.0.0.{}/24", number + 1), &switch, &format!("s{number}"));
        }
        switch.run(|| {
            let values = [("DEV0", "s0"), ("DEV1", "s1"), ("DEV2", "s2"), ("METHOD", method)];
            let live = &mut start_example("switch.click", &values, Options::default());
            for (from, to) in [(0, 2), (1, 3), (2, 1)] {
                // One by one: ping does not wait for the last answer longer than two answers have taken.
                for _ in 0..2 {
                    shows(run(live, hosts[from], &format!("ping -n -c 1 10.0.0.{to}")), &["1 received", "ttl=64"]);
                }
            }
            let table = live.read("switch.table");
            for (port, host) in hosts.iter().enumerate() {
                let address = ether(host, "h").replace(':', "-").to_uppercase();
                assert!(table.contains(&format!("{address} {port}")), "{table}");
            }
            if method == "LINUX" {
                let server = serve(hosts[2], 1);
                fetch(live, hosts[0], "10.0.0.3");
                if has("curl") {
                    assert_eq!(server.join().unwrap(), ["10.0.0.1"]);
                }
            }
        });
    }
}
