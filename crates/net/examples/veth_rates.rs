//! How many packets pass over a veth pair by each method, both ends in this process: `cargo run --release --example
//! veth_rates [SECONDS]`, as root. The pair is made in a network namespace of its own.

use bifolio_net::nic::packet::{self, PacketSocket};
use bifolio_net::nic::xdp::{self, Layer, XdpSocket};
use bifolio_net::nic::{Nic, Result};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of a packet.
const LEN: usize = 64;
/// Packets on their way at a time.
const WINDOW: usize = 1024;
/// Packets that are sent or received together.
const BURST: usize = 64;

/// The ways to open a device, by their names.
const WAYS: [&str; 4] = ["AF_PACKET, single reads", "AF_PACKET, ring", "AF_XDP, stack", "AF_XDP, driver"];

fn open(way: usize, name: &str) -> Result<Box<dyn Nic>> {
    if way < 2 {
        let options = packet::Options { ring: way == 1, ..packet::Options::default() };
        return Ok(Box::new(PacketSocket::open(name, &options)?));
    }
    let layer = if way == 2 { Layer::Stack } else { Layer::Driver };
    Ok(Box::new(XdpSocket::open(name, &xdp::Options { layer: Some(layer), ..xdp::Options::default() })?))
}

fn wait(nic: &dyn Nic) -> bool {
    let mut poll = libc::pollfd { fd: nic.descriptor().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that lives during the call.
    unsafe { libc::poll(&raw mut poll, 1, 100) > 0 }
}

/// Packets in a second from `a` to `b`, and the part that was lost.
fn rate(way: usize, time: Duration) -> Result<(f64, f64)> {
    let (mut from, mut to) = (open(way, "a")?, open(way, "b")?);
    let mut frame = [0xff; LEN];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let burst = [&frame[..]; BURST];
    let (mut sent, mut received, mut lost) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    while start.elapsed() < time {
        let mut left = WINDOW;
        while left > 0 {
            left -= from.send(&burst[..left.min(BURST)])?;
        }
        sent += WINDOW as u64;
        while received + lost < sent {
            let mut bytes = 0;
            let count = to.receive(BURST, &mut |packet| bytes += packet.bytes.len())?;
            assert_eq!(bytes, count * LEN);
            received += count as u64;
            if count == 0 && !wait(&*to) {
                lost = sent - received;
            }
        }
    }
    Ok((received as f64 / start.elapsed().as_secs_f64(), lost as f64 / sent as f64))
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status();
    assert!(status.is_ok_and(|status| status.success()), "ip {arguments}");
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2.0);
    // SAFETY: the call takes a number only; there is no other thread.
    let made = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(made, 0, "no network namespace: {} (run as root)", std::io::Error::last_os_error());
    // Nobody else sends.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    ip("link add name a type veth peer name b");
    ip("link set dev a up");
    ip("link set dev b up");
    std::thread::sleep(Duration::from_secs(1));
    println!("{LEN}-byte packets over veth, {WINDOW} on their way, one thread:");
    for round in 1..=3 {
        for (way, name) in WAYS.iter().enumerate() {
            match rate(way, Duration::from_secs_f64(seconds)) {
                Ok((rate, lost)) => {
                    println!("round {round}  {name:24} {:>9.0} a second, {:.2}% lost", rate, lost * 100.0);
                }
                Err(error) => println!("round {round}  {name:24} {}", error.line()),
            }
        }
    }
}
