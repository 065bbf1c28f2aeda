//! A pair of virtual devices in a network namespace of its own.

use std::fs;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

/// The end that is sent to.
pub(super) const HERE: &str = "here";
/// The end that is received from.
pub(super) const THERE: &str = "there";

/// How long a device may take to be ready.
const READY_MAX: Duration = Duration::from_secs(5);

/// The pair. It lives as long as the thread that made it, which is in the namespace until its end.
#[derive(Debug)]
pub(super) struct Pair {
    /// The kernel's counts of the namespace's devices.
    counts: &'static str,
}

impl Pair {
    /// Makes the pair, or says why this machine does not let us.
    pub(super) fn new() -> Result<Self, String> {
        // SAFETY: the call takes a number only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            let error = io::Error::last_os_error();
            return Err(format!("devices are not measured: no network namespace ({error}), run as root"));
        }
        // Nobody else shall send: neighbour discovery of IPv6 would.
        for which in ["default", "all"] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        ip(&format!("link add name {HERE} type veth peer name {THERE}"))?;
        ip(&format!("link set dev {HERE} up"))?;
        ip(&format!("link set dev {THERE} up"))?;
        let started = Instant::now();
        // The kernel throws away what is sent before it has noticed that there is a carrier.
        while !(is_ready(HERE)? && is_ready(THERE)?) {
            if started.elapsed() > READY_MAX {
                return Err("devices are not measured: those that were made are not ready".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { counts: "/proc/thread-self/net/dev" })
    }

    /// How many packets have come to the end that is received from.
    pub(super) fn arrived(&self) -> u64 {
        let text = fs::read_to_string(self.counts).unwrap_or_default();
        received(&text, THERE)
    }
}

/// Packets that a device has received, of `/proc/net/dev`.
fn received(text: &str, name: &str) -> u64 {
    let fields = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    fields.and_then(|fields| fields.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn is_ready(name: &str) -> Result<bool, String> {
    let state = ip(&format!("link show dev {name}"))?;
    Ok(state.contains("state UP") && !state.contains("qdisc noop "))
}

/// Runs ip(8) in this thread's namespace, and returns what it prints.
fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| format!("devices are not measured: ip (iproute2) does not run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("devices are not measured: ip {arguments}: {}", errors.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_the_name_of_a_device() {
        let text =
            "Inter-|   Receive\n face |bytes    packets errs\n    lo: 1 2 0\nthere2:  7 8 0\n there: 640      10 0\n";
        assert_eq!((received(text, "there"), received(text, "lo"), received(text, "here")), (10, 2, 0));
    }
}
