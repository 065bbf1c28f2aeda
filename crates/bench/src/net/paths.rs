//! Packets through paths of GPU elements, from memory to memory, copies included: the applications of Snap, each with the
//! elements of the CPU, with the paths' CPU twins, and with a device; with slicing and with whole packets.
//!
//! A run has one router. Every thread has a source, elements of its own and a sink; tables are shared where elements can
//! share them, so that they are in a device's memory once.
//!
//! What diverging costs is the difference of two applications on the same packets: in both, each packet is classified once and
//! searched once for the same literals; in `united` by one search, in `diverging` by one of two, as its rule says.
//!
//! Latencies are measured at parts of the rate that was measured before, by sources that send when a packet's time has come. A
//! packet's latency begins then, before its Batcher, and ends behind its Debatcher; the first fifth of packets is left out.

mod apps;
mod bench;
mod load;
mod options;
mod plot;
mod results;
mod ways;

use crate::error::{Error, Result};
use crate::harness::compare::compare;
use crate::harness::machine;
use crate::harness::report::Measured;
use crate::harness::session::Session;
use apps::Files;
use bench::Bench;
use bifolio_device::{Device, DeviceId};
use load::Loaded;
use results::Row;
use std::sync::Arc;
use ways::Way;

pub use options::{App, Options, Text};
pub use results::Results;
pub use ways::Who;

/// Measures.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    let (mut rows, mut loads) = (vec![], vec![]);
    let files = Files::new(options)?;
    let ended = measure(device, options, &files, session, &mut rows, &mut loads);
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(device),
        device: device.id().to_string(),
        text: options.text,
        literals: files.literals,
        flows: files.flows,
        routes: options.routes,
        repetitions: options.repetitions,
        seed: options.seed,
        rows,
        loads,
    })
}

fn ways(device: &Device, options: &Options) -> Vec<Way> {
    let is_there = |who: &&Who| device.id() != DeviceId::HOST || !who.is_by_device();
    let of = |who: Who, size: usize| options.cores.iter().map(move |cores| Way { who, cores: *cores, size });
    let by = |who: &Who| -> Vec<Way> {
        match who {
            Who::Elements => of(*who, 0).collect(),
            _ => options.sizes.iter().flat_map(|size| of(*who, *size)).collect(),
        }
    };
    options.by.iter().filter(is_there).flat_map(by).collect()
}

fn measure(
    device: &Device,
    options: &Options,
    files: &Files,
    session: &Session,
    rows: &mut Vec<Row>,
    loads: &mut Vec<Loaded>,
) -> Result<()> {
    let ways = ways(device, options);
    if ways.is_empty() {
        let detail =
            "the CPU computes here, and --by names only who has a device: name elements or twins, or another device";
        return Err(Error::failed(device.id(), detail));
    }
    let runs = options.repetitions as usize + options.loads.len();
    session.begin("starting", (options.apps.len() * options.frames.len() * ways.len() * runs) as u64);
    for app in &options.apps {
        for frame_bytes in &options.frames {
            let traffic = Arc::new(apps::traffic(options, *app, files, *frame_bytes)?);
            let mean = traffic.mean_bytes();
            let packets = (options.bytes / mean as u64).max(1);
            let bench = Bench { device: device.id(), options, files, app: *app, traffic, packets };
            let mut measured = vec![];
            let ended = compare(session, options.repetitions, &bench, &ways, &mut measured);
            let measured: Vec<_> = measured.into_iter().map(|row| bench.row(*frame_bytes, mean, row)).collect();
            let rates: Vec<_> =
                measured.iter().map(|row| (row.compared.way, row.million_packets_per_s * 1e6)).collect();
            rows.extend(measured);
            ended?;
            for (way, rate) in rates {
                for load in &options.loads {
                    session.check()?;
                    session.say(&format!("{app}, {} at {load} %", way.name()));
                    loads.push(bench.under_load(*frame_bytes, way, rate, *load)?);
                    session.advance(1);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::DeviceChoice;

    fn options(apps: Vec<App>) -> Options {
        Options {
            apps,
            frames: vec![64, 0],
            text: Text::Http,
            bytes: 200_000,
            ids_rules: None,
            literals: 20,
            flow_rules: None,
            flows: 20,
            routes: 20,
            cores: vec![1, 2],
            by: vec![Who::Elements, Who::Twins, Who::Device, Who::Whole],
            sizes: vec![256],
            batches: 8,
            loads: vec![],
            repetitions: 1,
            seed: bifolio_testing::seed(),
        }
    }

    fn host() -> Device {
        bifolio_device::open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap()
    }

    #[test]
    fn every_application_runs_on_the_host_and_loses_nothing() {
        let all = ["route", "forward", "sdn", "dpi", "ids", "full", "united", "diverging"];
        let apps: Vec<App> = all.map(|name| name.parse().unwrap()).to_vec();
        let options = Options { cores: vec![1], ..options(apps) };
        let measured = run(&host(), &options, &Session::default()).unwrap();
        let text = measured.text();
        assert_eq!(text.matches("CPU twins, 1 core, batches of 256").count(), 2 * 2 * all.len(), "{text}");
        let figure = measured.figure().unwrap();
        assert!(all.iter().all(|name| figure.contains(name)) && figure.contains("IMIX"), "{figure}");
        assert!(figure.contains("Snap with a Tesla C2070"), "{figure}");
    }

    #[test]
    fn nobody_left_to_measure_is_an_error() {
        let options = Options { by: vec![Who::Device, Who::Fetch], ..options(vec![App::Route]) };
        let told = run(&host(), &options, &Session::default()).unwrap_err().to_string();
        assert!(told.contains("name elements or twins"), "{told}");
    }

    #[test]
    fn latencies_are_told_for_every_load_and_size_of_batches() {
        let options =
            Options { frames: vec![64], sizes: vec![64, 256], loads: vec![1.0, 5.0], ..options(vec![App::Route]) };
        let measured = run(&host(), &options, &Session::default()).unwrap();
        assert_eq!(measured.results.loads.len(), 2 * (1 + 2) * 2);
        for loaded in &measured.results.loads {
            let latency = loaded.latency;
            assert!(loaded.drops > 0 || latency.p50_us > 0.0, "{loaded:?}");
            assert!(latency.p50_us <= latency.p99_us && latency.p99_us <= latency.max_us, "{loaded:?}");
        }
        assert!(measured.text().contains("p99 us"));
        assert!(measured.figure().unwrap().contains("latency, us"));
    }
}
