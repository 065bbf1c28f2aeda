//! ToDevice: sends packets to a network device.
//!
//! `ToDevice(DEVNAME [, keywords])`: one pull input. Packets have their link header already. What was sent leaves by
//! output 0 where there is one; what the device refused, such as a packet longer than its MTU, by output 1.
//!
//! - DEVNAME: name of the device. A device has one ToDevice.
//! - BURST: packets in a row, at least 1. Default 32.
//! - METHOD: LINUX (AF_PACKET, the default), PCAP (the same), LINUX_RING (by a transmit ring, which spares a copy where
//!   the driver sends from any memory, and costs one where it does not), or AF_XDP.
//! - DEBUG: whether each wait for a full device is told. Default false.
//!
//! While the device is full, nothing is pulled. A FromDevice of the same device does not see what is sent.
//!
//! Handlers: `count`, `refused`, `reset_counts`, `pulls` (how often a packet was asked for), `q` (whether packets wait),
//! `signal` (whether packets may be pulled), `debug` (r/w).
//!
//! Unlike Click's: BURST is 32, not 1. Of packets that are refused the first is told, and all are counted. A device
//! that disappears is told once; nothing is pulled until one of its name is there. `count` and `refused` are new.

use super::device::{Device, LOOK_TIMER, Method};
use crate::args::{Args, Failed, Word};
use crate::element::{Element, Interest, Run};
use crate::handler::Handlers;
use crate::nic::packet::PacketSocket;
use crate::nic::xdp::XdpSocket;
use crate::nic::{self, Kind, Nic};
use crate::router::Cx;
use crate::{Packet, Timestamp};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Packets that go to the kernel together.
const TOGETHER: usize = 64;
/// Number of the timer of a full device.
const FULL_TIMER: usize = LOOK_TIMER + 1;
/// The longest wait for a full device that does not tell when it has room, in microseconds.
const WAIT_MAX_US: i64 = 256;

/// The element.
pub(super) struct ToDevice {
    name: String,
    method: Method,
    burst: usize,
    debug: bool,
    device: Device,
    /// Packets that were pulled and not sent yet.
    waiting: VecDeque<Packet>,
    /// How long to wait for a full device, in microseconds; 0: it is not full.
    wait_us: i64,
    pulls: u64,
    count: u64,
    refused: u64,
}

impl Default for ToDevice {
    fn default() -> Self {
        Self {
            name: String::new(),
            method: Method::Linux,
            burst: 32,
            debug: false,
            device: Device::default(),
            waiting: VecDeque::new(),
            wait_us: 0,
            pulls: 0,
            count: 0,
            refused: 0,
        }
    }
}

impl ToDevice {
    fn open(&self) -> nic::Result<Box<dyn Nic>> {
        Ok(match self.method {
            Method::Linux => Box::new(PacketSocket::sender(&self.name)?),
            Method::LinuxRing => Box::new(PacketSocket::ring_sender(&self.name)?),
            Method::Xdp => Box::new(XdpSocket::sender(&self.name)?),
        })
    }

    /// Sends what waits. Whether all of it went, one way or the other.
    fn flush(&mut self, cx: &mut Cx<'_>) -> bool {
        while !self.waiting.is_empty() {
            let mut bytes = [&[][..]; TOGETHER];
            let together = self.waiting.len().min(TOGETHER);
            for (to, packet) in bytes.iter_mut().zip(&self.waiting) {
                *to = packet.bytes();
            }
            let Some(nic) = self.device.nic() else { return false };
            match nic.send(&bytes[..together]) {
                Ok(count) => {
                    self.count += count as u64;
                    for packet in self.waiting.drain(..count) {
                        cx.emit_checked(0, packet);
                    }
                    if count < together {
                        self.wait(cx, count > 0);
                        return false;
                    }
                    self.wait_us = 0;
                }
                Err(error) if error.kind() == Kind::Gone => {
                    self.device.fail(cx, &error);
                    return false;
                }
                Err(error) => {
                    self.refused += 1;
                    if self.refused == 1 {
                        self.device.fail(cx, &error);
                    }
                    if let Some(packet) = self.waiting.pop_front() {
                        cx.emit_checked(1, packet);
                    }
                }
            }
        }
        true
    }

    /// Waits for a device that is full: until it says that it has room, and where it says so wrongly, longer and
    /// longer.
    fn wait(&mut self, cx: &mut Cx<'_>, has_moved: bool) {
        if self.wait_us == 0 || has_moved {
            self.wait_us = 1;
            self.device.select(cx, Interest { read: false, write: true });
            return;
        }
        cx.timer_after(FULL_TIMER, Timestamp::from_nanos(self.wait_us * 1000));
        if self.debug {
            cx.say(format_args!("{}: backing off for {} us", cx.declaration(), self.wait_us));
        }
        self.wait_us = (self.wait_us * 2).min(WAIT_MAX_US);
    }

    /// Goes on after a wait.
    fn go_on(&mut self, cx: &mut Cx<'_>) {
        if self.flush(cx) && self.device.is_open() {
            cx.schedule();
        }
    }

    /// Whether another element that has been initialised sends to the same device.
    fn has_twin(&self, cx: &mut Cx<'_>) -> bool {
        let own = cx.id();
        let others: Vec<_> = (0..cx.router().len()).filter(|other| *other != own).collect();
        let is_twin = |other: &mut Self, _: &mut Cx<'_>| other.name == self.name && other.device.is_open();
        others.into_iter().any(|other| cx.with(other, is_twin).unwrap_or(false))
    }
}

impl Element for ToDevice {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut method = Word::default();
        args.must("DEVNAME", &mut self.name)
            .key("DEBUG", &mut self.debug)
            .key("METHOD", &mut method)
            .key("BURST", &mut self.burst);
        self.method = Method::named(&method.0, args);
        if self.burst == 0 {
            args.error("bad BURST");
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if self.name.is_empty() {
            return Err("interface not set".to_owned());
        }
        if self.has_twin(cx) {
            return Err(format!("duplicate writer for device '{}'", self.name));
        }
        self.device.open(self.open().map_err(|error| error.line())?);
        cx.schedule();
        Ok(())
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !self.device.is_open() {
            return Run::Stop;
        }
        while self.waiting.len() < self.burst {
            self.pulls += 1;
            let Some(packet) = cx.pull(0) else { break };
            self.waiting.push_back(packet);
        }
        if self.waiting.is_empty() {
            return Run::Idle;
        }
        if self.flush(cx) { Run::Worked } else { Run::Stop }
    }

    fn selected(&mut self, cx: &mut Cx<'_>, _: RawFd, _: Interest) {
        self.device.select(cx, Interest::default());
        self.go_on(cx);
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        if timer == LOOK_TIMER {
            let opened = self.open();
            if !self.device.look(cx, opened) {
                return;
            }
            self.wait_us = 0;
        }
        self.go_on(cx);
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.device.close(cx);
        self.waiting.clear();
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |device: &mut Self, _| device.count);
        handlers.read("refused", |device: &mut Self, _| device.refused);
        handlers.button("reset_counts", |device: &mut Self, _| (device.count, device.refused) = (0, 0));
        handlers.read("pulls", |device: &mut Self, _| device.pulls);
        handlers.read("q", |device: &mut Self, _| !device.waiting.is_empty());
        handlers.read("signal", |_: &mut Self, cx| cx.may_pull(0));
        handlers.data("debug", |device: &mut Self| &mut device.debug);
    }
}
