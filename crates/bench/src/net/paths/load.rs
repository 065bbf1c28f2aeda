//! How long packets take through a path, at a part of the load that it can bear.

use super::super::latency::{Latencies, Percentiles};
use super::super::memory;
use super::bench::Bench;
use super::options::App;
use super::ways::Way;
use crate::error::{Error, Result};
use bifolio_net::router::Running;
use serde::{Deserialize, Serialize};

/// How long a load is kept up, in seconds.
const SECONDS: f64 = 2.0;

/// Latencies at one load.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Loaded {
    pub(super) app: App,
    pub(super) frame_bytes: usize,
    pub(super) way: Way,
    /// Of the rate that was measured without a limit, in percent.
    pub(super) load_percent: f64,
    pub(super) offered_million_packets_per_s: f64,
    /// Of all that were offered.
    pub(super) drops: u64,
    pub(super) packets: u64,
    #[serde(flatten)]
    pub(super) latency: Percentiles,
}

/// Handlers of all elements of a class, added up.
fn sum(running: &mut Running, class: &str, handler: &str) -> u64 {
    let router = running.router();
    let all = (0..router.len()).filter(|element| router.class_of(*element).name == class);
    let names: Vec<_> = all.map(|element| router.name(element).to_owned()).collect();
    names
        .iter()
        .map(|name| running.read(&format!("{name}.{handler}")).unwrap_or_default().parse::<u64>().unwrap_or(0))
        .sum()
}

impl Bench<'_> {
    /// Sends packets at a part of what the way has been measured to bear, and looks how long they take.
    pub(super) fn under_load(
        &self,
        frame_bytes: usize,
        way: Way,
        packets_per_s: f64,
        load_percent: f64,
    ) -> Result<Loaded> {
        let offered_per_s = packets_per_s * load_percent / 100.0;
        let by_source = offered_per_s / way.cores as f64;
        if by_source < 1.0 {
            return Err(Error::failed(self.app, format!("no rate was measured, {}", way.name())));
        }
        let packets = ((by_source * SECONDS) as u64).max(100);
        let latencies = Latencies::default();
        let mut running = self.start(way, packets, Some(1e9 / by_source), latencies.clone())?;
        running.run();
        let (arrived, all) = (memory::arrived(running.router()), packets * way.cores as u64);
        let drops = sum(&mut running, "Batcher", "drops");
        if arrived + drops != all {
            let detail = format!("{arrived} of {all} packets have come out and {drops} were dropped, {}", way.name());
            return Err(Error::failed(self.app, detail));
        }
        if way.who.is_by_device() {
            self.was_by_device(&mut running, all - drops)?;
        }
        Ok(Loaded {
            app: self.app,
            frame_bytes,
            way,
            load_percent,
            offered_million_packets_per_s: offered_per_s / 1e6,
            drops,
            packets: all,
            latency: latencies.percentiles().unwrap_or_default(),
        })
    }
}
