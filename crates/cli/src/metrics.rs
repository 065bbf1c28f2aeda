//! What the daemon's cache holds and does, for Prometheus.

use bifolio_daemon::Client;
use bifolio_daemon::protocol::{DeviceStatus, FileStatus, Status};
use bifolio_io::EngineKind;
use bifolio_net::watch::http::View;
use bifolio_net::watch::prometheus::CONTENT_TYPE;
use bifolio_net::watch::server::{Content, Pages};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long an answer holds: scrapers that flood cost the daemon no more than one that asks so often.
const FRESH: Duration = Duration::from_millis(200);

/// Asks the daemon for whoever asks this. It connects each time, so that a daemon which nobody else uses is idle.
pub struct Metrics {
    socket: PathBuf,
    made: Option<(Instant, Content)>,
}

impl Metrics {
    /// Of the daemon that listens at a path.
    pub fn of(socket: PathBuf) -> Self {
        Self { socket, made: None }
    }

    fn text(&self) -> String {
        let client = Client::connect(&self.socket);
        let asked = client.and_then(|client| Ok((client.status()?, client.files()?, client)));
        match asked {
            Ok((mut status, files, client)) => {
                let names: Vec<String> = client.devices().iter().map(ToString::to_string).collect();
                status.clients.retain(|client| client.pid != std::process::id());
                metrics(&names, &status, &files)
            }
            Err(_) => up(false),
        }
    }
}

impl Pages for Metrics {
    fn get(&mut self, view: View) -> Option<Content> {
        if view != View::Metrics {
            return None;
        }
        if let Some((_, content)) = self.made.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Some(content.clone());
        }
        let content: Content = (CONTENT_TYPE, self.text().into_bytes().into());
        self.made = Some((Instant::now(), content.clone()));
        Some(content)
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn up(is_up: bool) -> String {
    let mut out = String::new();
    head(&mut out, "bifolio_daemon_up", "gauge", "Whether a server answers.");
    let _ = writeln!(out, "bifolio_daemon_up {}", u8::from(is_up));
    out
}

/// A name, what it is, and its value.
type Gauge = (&'static str, &'static str, fn(&DeviceStatus) -> u64);

/// All metrics, in the text format 0.0.4.
fn metrics(names: &[String], status: &Status, files: &[FileStatus]) -> String {
    let mut out = up(true);
    head(&mut out, "bifolio_daemon_info", "gauge", "The version of the program; always 1.");
    let _ = writeln!(out, "bifolio_daemon_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    head(&mut out, "bifolio_daemon_servers_total", "counter", "Servers that the keeper has started.");
    let _ = writeln!(out, "bifolio_daemon_servers_total {}", status.servers);
    head(&mut out, "bifolio_daemon_server_uptime_seconds", "gauge", "How long the present server has served.");
    let _ = writeln!(out, "bifolio_daemon_server_uptime_seconds {:.3}", status.uptime_ms as f64 / 1e3);
    head(&mut out, "bifolio_daemon_clients", "gauge", "Connections.");
    let _ = writeln!(out, "bifolio_daemon_clients {}", status.clients.len());
    head(&mut out, "bifolio_daemon_acquired_bytes", "gauge", "Bytes that clients have acquired or pinned.");
    let acquired: u64 = status.clients.iter().map(|client| client.used_bytes).fold(0, u64::saturating_add);
    let _ = writeln!(out, "bifolio_daemon_acquired_bytes {acquired}");
    head(&mut out, "bifolio_cache_files", "gauge", "Files that are cached.");
    let _ = writeln!(out, "bifolio_cache_files {}", files.len());
    let gauges: [Gauge; 6] = [
        ("bifolio_cache_used_bytes", "Bytes of frames in use, twins included.", |device| device.used_bytes),
        ("bifolio_cache_budget_bytes", "Bytes of frames that there may be.", |device| device.budget_bytes),
        ("bifolio_cache_left_bytes", "Of those used, bytes of versions that readers keep.", |device| device.left_bytes),
        ("bifolio_device_free_bytes", "Bytes free for anybody; 0 where none shall be.", |device| device.free_bytes),
        ("bifolio_device_target_bytes", "Bytes that shall be free for others.", |device| device.target_bytes),
        ("bifolio_cache_reclaimed_bytes", "Bytes given back for others by the present server.", |device| {
            device.reclaimed_bytes
        }),
    ];
    for (name, help, value) in gauges {
        head(&mut out, name, "gauge", help);
        for (device, status) in names.iter().zip(&status.devices) {
            let _ = writeln!(out, "{name}{{device=\"{device}\"}} {}", value(status));
        }
    }
    head(
        &mut out,
        "bifolio_cache_pages",
        "gauge",
        "Pages with a replica, those that others have changed, and those that their files lack.",
    );
    for (device, status) in names.iter().zip(&status.devices) {
        for (state, pages) in [("held", status.pages), ("behind", status.behind), ("pending", status.pending)] {
            let _ = writeln!(out, "bifolio_cache_pages{{device=\"{device}\",state=\"{state}\"}} {pages}");
        }
    }
    let name = "bifolio_cache_page_events_total";
    head(&mut out, name, "counter", "What the present server has done to pages.");
    for (device, status) in names.iter().zip(&status.devices) {
        let counts = &status.counts;
        let events = [
            ("hit", counts.hits),
            ("fetched", counts.fetched),
            ("from_peer", counts.from_peers),
            ("merged", counts.merged),
            ("race", counts.races),
            ("released", counts.released),
            ("flushed", counts.flushed),
            ("compared", counts.compared),
            ("evicted", counts.evicted),
            ("copied", counts.copied),
            ("discarded", counts.discarded),
            ("lost", counts.lost),
        ];
        for (event, count) in events {
            let _ = writeln!(out, "{name}{{device=\"{device}\",event=\"{event}\"}} {count}");
        }
    }
    let name = "bifolio_cache_read_bytes_total";
    head(&mut out, name, "counter", "Bytes read from files by the present server, by path and where they were.");
    for (device, status) in names.iter().zip(&status.devices) {
        for engine in EngineKind::ALL {
            let from = match engine {
                EngineKind::Cached | EngineKind::Mapped => "page_cache",
                EngineKind::Direct | EngineKind::P2p => "storage",
            };
            let bytes = status.read_bytes[engine as usize];
            let _ = writeln!(out, "{name}{{device=\"{device}\",path=\"{engine}\",from=\"{from}\"}} {bytes}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_metric_that_was_announced() {
        let device = DeviceStatus { used_bytes: 7, read_bytes: [1, 2, 3, 4], ..DeviceStatus::default() };
        let status = Status {
            servers: 2,
            uptime_ms: 1500,
            counts: bifolio_cache::Counts::default(),
            devices: vec![device.clone(), device],
            clients: vec![],
        };
        let text = metrics(&["cuda:0".into(), "cuda:1".into()], &status, &[]);
        let mut known = vec![];
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                known.push(rest.split(' ').next().unwrap());
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(known.contains(&name.split('{').next().unwrap()), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(
            text.contains("bifolio_cache_read_bytes_total{device=\"cuda:1\",path=\"direct\",from=\"storage\"} 3\n")
        );
        assert!(up(false).ends_with("bifolio_daemon_up 0\n"));
    }
}
