//! Routers of an application, and their runs.

use super::super::latency::Latencies;
use super::super::memory::{self, Traffic};
use super::apps::Files;
use super::options::{App, Options};
use super::results::Row;
use super::ways::{Way, Who};
use crate::error::{Error, Result};
use crate::harness::compare::{self, Comparison};
use bifolio_device::DeviceId;
use bifolio_net::router::{self, Running};
use bifolio_net::{Log, Registry, lang};
use std::cell::RefCell;
use std::sync::Arc;

/// One application with its packets.
pub(super) struct Bench<'a> {
    pub(super) device: DeviceId,
    pub(super) options: &'a Options,
    pub(super) files: &'a Files,
    pub(super) app: App,
    pub(super) traffic: Arc<Traffic>,
    /// For each thread.
    pub(super) packets: u64,
}

impl Comparison for Bench<'_> {
    type Way = Way;
    type Ready = RefCell<Running>;

    fn name(&self, way: Way) -> String {
        format!("{}, {}", self.app, way.name())
    }

    fn rival(&self, way: Way) -> Option<Way> {
        let who = if way.who == Who::Elements { Who::Elements } else { Who::Twins };
        let most = self.options.cores.iter().copied().max().unwrap_or(1);
        Some(if way.who.is_by_device() {
            Way { who: Who::Elements, cores: most, size: 0 }
        } else {
            Way { who, cores: 1, size: way.size }
        })
    }

    fn bytes(&self, way: Way) -> u64 {
        self.packets * self.traffic.mean_bytes() as u64 * way.cores as u64
    }

    fn set_up(&self, way: Way, _: bool) -> Result<RefCell<Running>> {
        self.start(way, self.packets, None, Latencies::default()).map(RefCell::new)
    }

    fn run(&self, _: Way, router: &mut RefCell<Running>) -> Result<()> {
        router.get_mut().run();
        Ok(())
    }

    /// Every packet has come out.
    fn verify(&self, way: Way, running: &RefCell<Running>) -> Result<bool> {
        let running = &mut *running.borrow_mut();
        let (arrived, expected) = (memory::arrived(running.router()), self.packets * way.cores as u64);
        if arrived != expected {
            let detail = format!("{arrived} of {expected} packets have come out, {}", way.name());
            return Err(Error::failed(self.app, detail));
        }
        if way.who.is_by_device() {
            self.was_by_device(running, expected)?;
        }
        Ok(true)
    }
}

impl Bench<'_> {
    /// A router whose sources will send so many packets each, one every so many nanoseconds if that is set.
    pub(super) fn start(&self, way: Way, packets: u64, every_ns: Option<f64>, latencies: Latencies) -> Result<Running> {
        let mut registry = Registry::standard();
        registry.add(memory::CLASSES);
        let mut log = Log::new();
        let config = self.config(way);
        let options =
            router::Options { quantum: 64, threads: way.cores, seed: self.options.seed, ..router::Options::default() };
        let started = memory::with_load(Arc::clone(&self.traffic), packets, every_ns, latencies, || {
            let graph = lang::parse(&config, "bench", &lang::Globals::new(), &registry, &mut log)?;
            router::build(&graph, &registry, options, &mut log)
        });
        started.ok_or_else(|| Error::failed(self.app, log.to_string()))
    }

    /// The configuration: a chain of elements for each thread.
    fn config(&self, way: Way) -> String {
        let mut config = String::new();
        let sizes = [way.size, self.options.batches];
        for core in 0..way.cores {
            config += &match way.who {
                Who::Elements => self.app.by_elements(self.files, core),
                Who::Twins => self.app.by_path(self.files, core, sizes, "host, USE cpu", true),
                Who::Device | Who::Whole | Who::Fetch => {
                    let place = format!("{}, USE device, FETCH {}", self.device, way.who == Who::Fetch);
                    self.app.by_path(self.files, core, sizes, &place, way.who != Who::Whole)
                }
            };
        }
        config
    }

    /// An error where the CPU has computed what the device should have.
    pub(super) fn was_by_device(&self, running: &mut Running, expected: u64) -> Result<()> {
        let router = running.router();
        let starts: Vec<_> = (0..router.len())
            .filter(|element| router.class_of(*element).name == "HostToDeviceMemcpy")
            .map(|element| router.name(element).to_owned())
            .collect();
        let (mut by_device, mut reason) = (0, String::new());
        for name in starts {
            by_device += running.read(&format!("{name}.device_packets")).unwrap_or_default().parse().unwrap_or(0);
            reason = running.read(&format!("{name}.off")).unwrap_or_default();
        }
        if by_device < expected {
            let detail = format!("the device computed {by_device} of {expected} packets {reason}");
            return Err(Error::failed(self.app, detail));
        }
        Ok(())
    }

    pub(super) fn row(&self, frame_bytes: usize, mean: usize, row: compare::Row<Way>) -> Row {
        let packets_per_s = row.rates.gb_per_s_median * 1e9 / mean as f64;
        let cpu_ns_per_packet = row.rates.cpu_s_per_gb * mean as f64;
        let million_packets_per_s = packets_per_s / 1e6;
        Row { app: self.app, frame_bytes, mean_bytes: mean, million_packets_per_s, cpu_ns_per_packet, compared: row }
    }
}
