//! Network namespaces with devices between them, made for one test and gone with it.

use bifolio_testing::{has, require, skip, until};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

/// A network namespace. It lives as long as this, and what has been opened in it.
pub(crate) struct Namespace {
    file: File,
}

/// Namespaces for a test; nothing, said aloud, where this machine does not allow them.
pub(crate) fn namespaces<const N: usize>() -> Option<[Namespace; N]> {
    if !has("ip") {
        require("ip (iproute2): tests with network namespaces are left out");
        return None;
    }
    let made: io::Result<Vec<Namespace>> = (0..N).map(|_| Namespace::new()).collect();
    match made {
        Ok(made) => made.try_into().ok(),
        Err(error) => {
            skip(format!("no network namespaces here (they need root): {error}"));
            None
        }
    }
}

/// Two namespaces, and a veth pair from `a` in the one to `b` in the other, both up, without addresses or chatter.
pub(crate) fn pair() -> Option<[Namespace; 2]> {
    let spaces = namespaces()?;
    let [left, right] = &spaces;
    left.connect("a", right, "b");
    Some(spaces)
}

impl Namespace {
    fn new() -> io::Result<Self> {
        let made = thread::spawn(|| {
            // SAFETY: the call takes a number only; the thread ends right after.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        let space = Self { file: made.join().expect("a thread that makes a namespace")? };
        // Nothing but the tests shall send: neighbour discovery of IPv6 would.
        space.run(|| {
            for which in ["default", "all"] {
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1").ok();
            }
        });
        space.ip("link set lo up");
        Ok(space)
    }

    /// A veth pair between this and `other`.
    pub(crate) fn connect(&self, name: &str, other: &Self, other_name: &str) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), other.file.as_raw_fd());
        self.ip(&format!("link add name {name} type veth peer name {other_name} netns {path}"));
        self.ip(&format!("link set dev {name} up"));
        other.ip(&format!("link set dev {other_name} up"));
        // The kernel notices later that the first one has a carrier now, and throws away what is sent by it before.
        for (space, name) in [(self, name), (other, other_name)] {
            until("the device is ready", || {
                let state = space.ip(&format!("link show dev {name}"));
                state.contains("state UP") && !state.contains("qdisc noop ")
            });
        }
    }

    /// Runs `work` within it. What `work` opens stays there.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let fd = self.file.as_raw_fd();
        thread::scope(|scope| {
            let thread = scope.spawn(move || {
                enter(fd).expect("a namespace that exists");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that will run within it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = bifolio_testing::command(program);
        let fd = self.file.as_raw_fd();
        // SAFETY: one system call, between fork and exec.
        unsafe { command.pre_exec(move || enter(fd)) };
        command
    }

    /// Runs ip(8), which has to succeed, and returns what it prints.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        let output = self.command("ip").args(arguments.split_whitespace()).output().expect("ip runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn enter(fd: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    if unsafe { libc::setns(fd, libc::CLONE_NEWNET) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
