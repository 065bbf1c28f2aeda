//! HostToDeviceMemcpy and DeviceToHostMemcpy: what is between them is computed by a device.
//!
//! `HostToDeviceMemcpy([DEVICE, keywords USE, FETCH])`, `DeviceToHostMemcpy`: wide input and output, push.
//!
//! - DEVICE: `auto` (the default: a GPU, and else the host), `host`, `cuda:0`, `opencl:0`. One that is not there is an error.
//! - USE: `auto` (the default: the device or the CPU, whichever is expected to be over first), `device`, `cpu`. A batch of a few
//!   packets is computed by the thread that has it, but for `device`: it is over before another thread was woken. Where a device
//!   fails, the CPU computes the same, which is told; the device is tried again after a second, and more rarely each time.
//!
//! - FETCH: whether the device fetches payloads out of packets' memory by itself, where it can and USE is `device`, instead of having
//!   the CPU pack them: `auto` (the default: where they are long), `true`, `false`. Headers are packed anyway.
//!
//! A batch waits from HostToDeviceMemcpy on for the elements that follow, and DeviceToHostMemcpy gives all of it to the device at
//! once: slices of packets in, a kernel for each element, what they found out. Where time jumps it waits for the device.
//!
//! Handlers of HostToDeviceMemcpy: `device`, `off` (why it does not compute, or failed when it was tried last), `batches`, `packets`,
//! `device_packets` (those of batches that the device computed), `bytes` (of slices), `unfetched` (why payloads are not fetched, where
//! they were to be), `failures` (batches that the device failed at, could not take or had for too long, and that the CPU computed in
//! the end), `lost` (packets that nobody could compute; they are dropped).

use crate::Packet;
use crate::args::{Args, Failed, Word};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;
use crate::wide::{Fetch, Forced, Path, Statistics};
use bifolio_device::DeviceChoice;
use std::sync::{Arc, OnceLock};

/// The element at the beginning.
pub(super) struct HostToDevice {
    device: DeviceChoice,
    forced: Option<Forced>,
    fetch: Fetch,
    path: Arc<OnceLock<Arc<Path>>>,
}

impl Default for HostToDevice {
    fn default() -> Self {
        Self { device: DeviceChoice::Auto, forced: None, fetch: Fetch::Auto, path: Arc::default() }
    }
}

impl HostToDevice {
    /// Where the path is computed, and whether payloads are fetched.
    pub(super) fn place(&self) -> (DeviceChoice, Option<Forced>, Fetch) {
        (self.device, self.forced, self.fetch)
    }

    /// It is in a path.
    pub(super) fn join(&mut self, path: &Arc<Path>) {
        let _ = self.path.set(Arc::clone(path));
    }
}

impl Element for HostToDevice {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let [mut device, mut user, mut fetch] = ["auto", "auto", "auto"].map(|word| Word(word.to_owned()));
        args.may("DEVICE", &mut device).key("USE", &mut user).key("FETCH", &mut fetch).finish()?;
        self.device = match device.0.parse() {
            Ok(choice) => choice,
            Err(error) => return Err(args.error_of("DEVICE", error)),
        };
        self.forced = match user.0.as_str() {
            "auto" => None,
            "device" => Some(Forced::Device),
            "cpu" => Some(Forced::Cpu),
            other => return Err(args.error_of("USE", format_args!("'{other}' is none of auto, device and cpu"))),
        };
        self.fetch = match fetch.0.as_str() {
            "auto" => Fetch::Auto,
            "true" => Fetch::Always,
            "false" => Fetch::Never,
            other => return Err(args.error_of("FETCH", format_args!("'{other}' is none of auto, true and false"))),
        };
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        // Batchers come last, and tell who is in their paths.
        let _ = cx;
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, carrier: Packet) {
        cx.emit(0, carrier);
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let read = |handlers: &mut Handlers, name: &str, show: fn(&Path) -> String| {
            let path = Arc::clone(&self.path);
            handlers.free_read(name, move |_, _| Ok(path.get().map_or_else(String::new, |path| show(path))));
        };
        read(handlers, "device", |path| path.device().id().to_string());
        read(handlers, "off", |path| path.off().unwrap_or_default());
        read(handlers, "unfetched", |path| path.no_fetch().unwrap_or_default().to_owned());
        let count = |handlers: &mut Handlers, name: &str, of: fn(Statistics) -> u64| {
            let path = Arc::clone(&self.path);
            handlers.free_read(name, move |_, _| Ok(path.get().map_or(0, |path| of(path.statistics())).to_string()));
        };
        count(handlers, "batches", |done| done.batches);
        count(handlers, "packets", |done| done.packets);
        count(handlers, "device_packets", |done| done.by_device);
        count(handlers, "bytes", |done| done.input_bytes);
        count(handlers, "failures", |done| done.failures);
        count(handlers, "lost", |done| done.lost);
    }
}

/// The element at the end.
#[derive(Default)]
pub(super) struct DeviceToHost {
    path: Option<Arc<Path>>,
}

impl DeviceToHost {
    /// It is in a path.
    pub(super) fn join(&mut self, path: &Arc<Path>) {
        self.path = Some(Arc::clone(path));
    }
}

impl Element for DeviceToHost {
    fn push(&mut self, cx: &mut Cx<'_>, _: usize, carrier: Packet) {
        if let Some(path) = &self.path {
            let number = super::carrier::number(&carrier);
            path.submit(number);
            if cx.router().clock().jumps() {
                path.wait(number);
            }
        }
        cx.emit(0, carrier);
    }
}
