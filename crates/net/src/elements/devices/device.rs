//! A device that an element uses, which may disappear and come back.

use crate::Timestamp;
use crate::args::{Args, HandlerCall};
use crate::element::Interest;
use crate::nic::{self, Kind, Nic, Statistics};
use crate::router::Cx;
use std::os::fd::{AsRawFd, RawFd};

/// How often it is looked whether a device is still there, or back.
const LOOK: Timestamp = Timestamp::new(1, 0);
/// Number of the timer that looks.
pub(super) const LOOK_TIMER: usize = 0;

/// How packets pass between the kernel and us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Method {
    /// `AF_PACKET`.
    #[default]
    Linux,
    /// `AF_PACKET`, sending by a ring.
    LinuxRing,
    /// `AF_XDP`.
    Xdp,
}

impl Method {
    /// The method of a name as Click has them; PCAP is what LINUX is, since a capture library is not needed.
    pub(super) fn named(name: &str, args: &mut Args<'_>) -> Self {
        match name {
            "" | "LINUX" | "PCAP" => Self::Linux,
            "LINUX_RING" => Self::LinuxRing,
            "AF_XDP" => Self::Xdp,
            _ => {
                args.error("bad METHOD");
                Self::Linux
            }
        }
    }
}

/// A device, open or not.
#[derive(Default)]
pub(super) struct Device {
    /// Whether nothing is said when it disappears and when it is back.
    pub(super) is_quiet: bool,
    /// Handlers that are called when it is back, and when it disappears.
    pub(super) calls: [Option<HandlerCall>; 2],
    nic: Option<Box<dyn Nic>>,
    /// Counts of the times when it was open before.
    before: Statistics,
}

impl Device {
    /// Takes a device that was just opened.
    pub(super) fn open(&mut self, nic: Box<dyn Nic>) {
        self.nic = Some(nic);
    }

    pub(super) fn nic(&mut self) -> Option<&mut (dyn Nic + 'static)> {
        self.nic.as_deref_mut()
    }

    pub(super) fn is_open(&self) -> bool {
        self.nic.is_some()
    }

    fn fd(&self) -> Option<RawFd> {
        self.nic.as_ref().map(|nic| nic.descriptor().as_raw_fd())
    }

    /// Waits until it can be read or written, or no longer.
    pub(super) fn select(&self, cx: &mut Cx<'_>, interest: Interest) {
        if let Some(fd) = self.fd() {
            cx.select(fd, interest);
        }
    }

    /// Closes it.
    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        self.select(cx, Interest::default());
        self.before = self.statistics();
        self.nic = None;
    }

    /// Counts of all times when it was open.
    pub(super) fn statistics(&mut self) -> Statistics {
        let now = self.nic.as_mut().map(|nic| nic.statistics()).unwrap_or_default();
        let before = self.before;
        Statistics {
            received: before.received + now.received,
            sent: before.sent + now.sent,
            dropped: before.dropped + now.dropped,
        }
    }

    /// Says what went wrong. A device that has disappeared is closed, and looked for from time to time.
    pub(super) fn fail(&mut self, cx: &mut Cx<'_>, error: &nic::Error) {
        self.end(cx, error);
        if error.kind() == Kind::Gone {
            Self::look_later(cx);
        }
    }

    /// Says what went wrong. A device that has disappeared is closed for good.
    pub(super) fn end(&mut self, cx: &mut Cx<'_>, error: &nic::Error) {
        if error.kind() != Kind::Gone || !self.is_quiet {
            cx.say(format_args!("{}: {}", cx.declaration(), error.line()));
        }
        if error.kind() == Kind::Gone {
            self.close(cx);
            self.calls[1].iter().for_each(|down| cx.call_later(down));
        }
    }

    /// A look for a device that has disappeared. Whether it is back.
    pub(super) fn look(&mut self, cx: &mut Cx<'_>, opened: nic::Result<Box<dyn Nic>>) -> bool {
        let Ok(nic) = opened else {
            Self::look_later(cx);
            return false;
        };
        self.open(nic);
        if !self.is_quiet {
            cx.say(format_args!("{}: the device is back", cx.declaration()));
        }
        self.calls[0].iter().for_each(|up| cx.call_later(up));
        true
    }

    /// Sets the timer of looks.
    pub(super) fn look_later(cx: &mut Cx<'_>) {
        // Time that jumps has nothing to do with devices, and would not pass between two looks.
        if !cx.router().clock().jumps() {
            cx.timer_after(LOOK_TIMER, LOOK);
        }
    }
}
