//! `bifolio cache stat`: what the caches of running processes hold.

use crate::exit::Failure;
use crate::global::Global;
use crate::output;
use bifolio_cache::published::{self, ProcessStats};
use bifolio_cache::{Counts, Stats};
use bifolio_io::size;
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write;
use std::time::SystemTime;

/// Choices for `cache stat`.
#[derive(Debug, ClapArgs)]
pub struct StatArgs {
    /// Only this process.
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Process<'a> {
    pid: u32,
    name: &'a str,
    /// Age of the numbers, and operations with the cache since; where there were none, they are how it is now.
    age_s: f64,
    operations_since: u64,
    devices: &'a [Stats],
    total: Total,
}

/// Of all devices, and what was done for CPUs.
#[derive(Debug, Serialize)]
struct Total {
    used_bytes: u64,
    budget_bytes: u64,
    pages: u64,
    behind: u64,
    pending: u64,
    counts: Counts,
}

/// Carries the command out.
pub fn run(global: &Global, options: &StatArgs) -> Result<(), Failure> {
    let mut found = published::list().map_err(Failure::failed)?;
    if let Some(pid) = options.pid {
        found.retain(|process| process.pid == pid);
        if found.is_empty() {
            let detail = format!("process {pid} has no cache, has ended, or is another user's");
            return Err(Failure::failed(detail));
        }
    }
    let processes: Vec<_> = found.iter().map(|process| Process::of(process, SystemTime::now())).collect();
    global.answer(&processes, || describe(&processes))
}

impl<'a> Process<'a> {
    fn of(stats: &'a ProcessStats, now: SystemTime) -> Self {
        let sum = |of: &dyn Fn(&Stats) -> u64| stats.devices.iter().map(of).fold(0, u64::saturating_add);
        let total = Total {
            used_bytes: sum(&|stats| stats.used_bytes),
            budget_bytes: sum(&|stats| stats.budget_bytes),
            pages: sum(&|stats| stats.pages),
            behind: sum(&|stats| stats.behind),
            pending: sum(&|stats| stats.pending),
            counts: stats.counts,
        };
        Self {
            pid: stats.pid,
            name: &stats.name,
            age_s: now.duration_since(stats.taken).unwrap_or_default().as_secs_f64(),
            operations_since: stats.operations_since,
            devices: &stats.devices,
            total,
        }
    }
}

fn describe(processes: &[Process<'_>]) -> String {
    if processes.is_empty() {
        return "no running process of this user has a cache\n".to_owned();
    }
    processes.iter().map(describe_one).collect::<Vec<_>>().join("\n")
}

fn describe_one(process: &Process<'_>) -> String {
    let Process { pid, name, age_s, operations_since, devices, total } = process;
    let mut text = format!("{pid}  {}", output::printable(name));
    if *operations_since > 0 {
        let _ = write!(text, "  ({operations_since} operations ago, {age_s:.1} s)");
    }
    text.push('\n');
    if devices.is_empty() {
        text.push_str("nothing was mapped on any device\n");
        return text;
    }
    let head = [
        "device", "used", "budget", "held", "behind", "pending", "hits", "fetched", "peers", "merged", "races",
        "evicted",
    ];
    let row = |name: String, bytes: [u64; 2], pages: [u64; 3], counts: &Counts| {
        let Counts { hits, fetched, from_peers, merged, races, evicted, .. } = *counts;
        let numbers = pages.into_iter().chain([hits, fetched, from_peers, merged, races, evicted]);
        std::iter::once(name).chain(bytes.map(size::human)).chain(numbers.map(|number| number.to_string())).collect()
    };
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    rows.extend(devices.iter().map(|stats| {
        let Stats { device, used_bytes, budget_bytes, pages, behind, pending, counts } = stats;
        row(device.to_string(), [*used_bytes, *budget_bytes], [*pages, *behind, *pending], counts)
    }));
    let Total { used_bytes, budget_bytes, pages, behind, pending, counts } = total;
    rows.push(row("total".to_owned(), [*used_bytes, *budget_bytes], [*pages, *behind, *pending], counts));
    text.push_str(&output::columns(&rows, &[0]));
    let _ = writeln!(
        text,
        "{} pages released, {} flushed to files, {} compared with files",
        counts.released, counts.flushed, counts.compared
    );
    if counts.lost > 0 {
        let _ = writeln!(text, "{} pages lost what was released there with a device that is gone", counts.lost);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_a_process_has_is_shown_by_device_and_in_total() {
        let device = |name: &str, pages| Stats {
            device: name.parse().unwrap(),
            used_bytes: 4 << 20,
            budget_bytes: 1 << 30,
            pages,
            behind: 1,
            pending: 2,
            counts: Counts { hits: 10 * pages, ..Counts::default() },
        };
        let taken = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let counts = Counts { hits: 72, flushed: 5, ..Counts::default() };
        let devices = vec![device("host:0", 3), device("cuda:0", 4)];
        let stats = ProcessStats { pid: 77, name: "train".to_owned(), taken, operations_since: 9, counts, devices };
        let process = Process::of(&stats, taken + Duration::from_millis(2500));
        let expected = "\
77  train  (9 operations ago, 2.5 s)
device   used  budget  held  behind  pending  hits  fetched  peers  merged  races  evicted
host:0  4 MiB   1 GiB     3       1        2    30        0      0       0      0        0
cuda:0  4 MiB   1 GiB     4       1        2    40        0      0       0      0        0
total   8 MiB   2 GiB     7       2        4    72        0      0       0      0        0
0 pages released, 5 flushed to files, 0 compared with files
";
        assert_eq!(describe(&[process]), expected);
        let lost = ProcessStats { counts: Counts { lost: 2, ..counts }, ..stats.clone() };
        let text = describe(&[Process::of(&lost, taken)]);
        assert!(text.ends_with("files\n2 pages lost what was released there with a device that is gone\n"), "{text}");
        let idle = ProcessStats { operations_since: 0, devices: vec![], ..stats };
        let text = describe(&[Process::of(&idle, taken)]);
        assert_eq!(text, "77  train\nnothing was mapped on any device\n");
        assert_eq!(describe(&[]), "no running process of this user has a cache\n");
    }
}
