//! What is said of wrong configurations; what devices do is tested with network namespaces, from outside.

use crate::elements::testing::Harness;

#[track_caller]
fn wrong(config: &str, expected: &str) {
    let said = Harness::errors(config);
    assert!(said.lines().any(|line| line.trim_start_matches("config:1: ").trim() == expected), "{config}: {said}");
}

#[test]
fn wrong_arguments_of_devices_are_told_as_click_tells_them() {
    for class in ["FromDevice", "PollDevice"] {
        let of = |args: &str| format!("{class}({args}) -> Take");
        wrong(&of(""), "DEVNAME: required argument missing");
        wrong(&of("lo, SNAPLEN 13"), "SNAPLEN out of range");
        wrong(&of("lo, SNAPLEN 65536"), "SNAPLEN out of range");
        wrong(&of("lo, HEADROOM 8191"), "HEADROOM out of range");
        wrong(&of("lo, BURST 0"), "BURST out of range");
        wrong(&of("lo, METHOD NETMAP"), "bad METHOD");
        wrong(&of("lo, ENCAP NOTHING"), "bad encapsulation type");
        wrong(&of("lo, PROMISC maybe"), "PROMISC: type mismatch");
        wrong(&of("lo, FAST true"), "FAST: unknown argument");
        wrong(&of("\"\""), "interface not set");
        wrong(&of("lo, BPF_FILTER \"tcp port 80\""), "BPF_FILTER: not supported, use an IPClassifier or IPFilter");
    }
    wrong("FromDevice(lo, false, 13) -> Take", "SNAPLEN out of range");
    wrong("PollDevice(lo, false, 0) -> Take", "BURST out of range");
    wrong("PollDevice(lo, UP_CALL a.b) -> Take", "UP_CALL: no element named 'a'");
    wrong("PollDevice(lo, DOWN_CALL t.name) -> t :: Take", "no 't.name' write handler");
    wrong("FromDevice(lo, QUIET true) -> Take", "QUIET: unknown argument");
    wrong("GivePull -> ToDevice", "DEVNAME: required argument missing");
    wrong("GivePull -> ToDevice(lo, BURST 0)", "bad BURST");
    wrong("GivePull -> ToDevice(lo, METHOD FAST)", "bad METHOD");
    wrong("GivePull -> ToDevice(\"\")", "interface not set");
}

#[test]
fn a_device_that_is_not_there_keeps_a_router_from_starting() {
    let said = Harness::errors("FromDevice(nosuchdevice) -> Take");
    assert!(said.contains("no device 'nosuchdevice'"), "{said}");
    let said = Harness::errors("GivePull -> ToDevice(nosuchdevice, METHOD AF_XDP)");
    assert!(said.contains("no device 'nosuchdevice'"), "{said}");
}

#[test]
fn wrong_arguments_of_host_devices_are_told() {
    wrong("KernelTun -> Take", "ADDR: required argument missing");
    wrong("KernelTun(10.0.0.1/24, 10.0.1.1) -> Take", "bad GATEWAY");
    wrong("KernelTun(10.0.0.1/24, BURST 0) -> Take", "BURST must be >= 1");
    wrong("KernelTun(10.0.0.1/24, MTU 20) -> Take", "MTU must be greater than 20");
    wrong("KernelTun(10.0.0.1/24, HEADROOM 8193) -> Take", "HEADROOM too big");
    let no_address = "warning: could not set interface Ethernet address: Operation not supported";
    wrong("KernelTun(10.0.0.1/24, ETHER 2:1:2:3:4:5, BURST 0) -> Take", no_address);
    wrong("FromHost(\"\") -> Take", "must specify device name");
    wrong("FromHost(x, 10.0.0.1/24, GATEWAY 11.0.0.1) -> Take", "bad GATEWAY");
    wrong("FromHost(x, GATEWAY 11.0.0.1) -> Take", "bad GATEWAY");
    wrong("FromHost(x, HEADROOM 9000) -> Take", "HEADROOM too large");
    wrong("Give -> ToHost(x)", "ToHost(x) requires an initialized FromHost with the same dev_name");
}

#[test]
fn wrong_arguments_of_sockets_are_told() {
    wrong("Socket(TIN) -> Take", "unknown socket type `TIN'");
    let name = "n".repeat(108);
    wrong(&format!("Socket(UNIX, {name}) -> Take"), &format!("remote filename '{name}' too long"));
    wrong(&format!("Socket(UNIX_DGRAM, short, {name}) -> Take"), &format!("local filename '{name}' too long"));
    wrong("Socket(TCP, 1.2.3.4) -> Take", "PORT: required argument missing");
    wrong("Socket(UDP, 1.2.3.4, 70000) -> Take", "PORT: out of range, bound 65535");
    wrong("Socket(UNIX) -> Take", "FILENAME: required argument missing");
    wrong("Socket(UNIX, a, b, c) -> Take", "too many arguments");
    wrong("Socket(TCP, 0.0.0.0, 0, SNAPLEN 0) -> Take", "SNAPLEN out of range");
    wrong("Socket(TCP, 0.0.0.0, 0, HEADROOM 8191) -> Take", "HEADROOM out of range");
    wrong("Socket(TCP, 0.0.0.0, 0, ALLOW nobody) -> Take", "ALLOW: no element named 'nobody'");
    wrong("Socket(TCP, 0.0.0.0, 0, DENY q) -> q :: Queue -> TakePull", "q is not an IPRouteTable");
    wrong("Give -> Socket(TCP, 127.0.0.1, 1)", "TCP 127.0.0.1:1: connect: Connection refused (os error 111)");
}
