//! `bifolio top`: what the daemon's cache holds and does, again and again.

use crate::cache::shared::connect;
use crate::daemon::told;
use crate::exit::{self, Failure};
use crate::global::Global;
use crate::output;
use bifolio_cache::Counts;
use bifolio_daemon::Client;
use bifolio_daemon::protocol::{DeviceStatus, FileStatus, Status};
use bifolio_io::{EngineKind, size};
use clap::Args as ClapArgs;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// How often it is looked whether the end was asked for.
const TICK: Duration = Duration::from_millis(50);

/// Choices for `top`.
#[derive(Debug, ClapArgs)]
#[command(after_help = exit::CODES)]
pub struct TopArgs {
    /// Where the daemon listens. If not named, where `bifolio daemon` does.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// End after so many looks. If not given, with Ctrl-C; with --json, or where the output is no terminal, after one.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("'{text}' is no time from 0.1 to 86400 seconds"))
}

/// What there is at one moment.
#[derive(Debug, Clone)]
struct Sample {
    at: Instant,
    status: Status,
    files: Vec<FileStatus>,
}

impl Sample {
    fn take(client: &Client) -> Result<Self, Failure> {
        let at = Instant::now();
        let mut status = client.status().map_err(told)?;
        // Whoever looks does not count.
        status.clients.retain(|client| client.pid != std::process::id());
        Ok(Self { at, status, files: client.files().map_err(told)? })
    }
}

/// A device, and what was done for it in a second.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Rates {
    /// Bytes read from files, from the page cache and from storage.
    page_cache_bytes: f64,
    storage_bytes: f64,
    /// Pages.
    from_peers: f64,
    released: f64,
    flushed: f64,
    evicted: f64,
    /// The part of acquired pages that were there, 0 to 1; none where nothing was acquired.
    hit_rate: Option<f64>,
}

impl Rates {
    /// Between two moments. Another server began to count anew.
    fn between(before: &DeviceStatus, now: &DeviceStatus, seconds: f64) -> Self {
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let engines = |which: [EngineKind; 2]| {
            which.map(|engine| rate(before.read_bytes[engine as usize], now.read_bytes[engine as usize])).iter().sum()
        };
        let count = |of: fn(&Counts) -> u64| rate(of(&before.counts), of(&now.counts));
        let (hits, fetched) = (count(|counts| counts.hits), count(|counts| counts.fetched));
        Self {
            page_cache_bytes: engines([EngineKind::Cached, EngineKind::Mapped]),
            storage_bytes: engines([EngineKind::Direct, EngineKind::P2p]),
            from_peers: count(|counts| counts.from_peers),
            released: count(|counts| counts.released),
            flushed: count(|counts| counts.flushed),
            evicted: count(|counts| counts.evicted),
            hit_rate: (hits + fetched > 0.0).then(|| hits / (hits + fetched)),
        }
    }
}

/// Shows it until it is told to end.
pub fn run(global: &Global, args: &TopArgs) -> Result<(), Failure> {
    let client = connect(args.socket.as_ref())?;
    let names: Vec<String> = client.devices().iter().map(ToString::to_string).collect();
    let is_page = std::io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    let is_ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_ending))
            .map_err(|error| Failure::failed(format!("watching for signals failed: {error}")))?;
    }
    let count = args.count.or((global.json || !is_page).then_some(1));
    let mut before = Sample::take(&client)?;
    let is_page = is_page && !global.json;
    let write = |text: &str| {
        let mut out = std::io::stdout();
        // Whoever has gone does not look.
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
    };
    if is_page {
        write(ENTER);
    }
    let mut looks = 0;
    let ended = loop {
        let next = before.at + args.interval;
        while Instant::now() < next && !is_ending.load(Ordering::Relaxed) {
            std::thread::sleep(TICK.min(next.saturating_duration_since(Instant::now())));
        }
        if is_ending.load(Ordering::Relaxed) {
            break Ok(());
        }
        let now = match Sample::take(&client) {
            Ok(now) => now,
            Err(failure) => break Err(failure),
        };
        let shown = if global.json {
            output::json(&Shown::of(&names, &before, &now))
        } else {
            let text = page(&names, &before, &now);
            if is_page {
                let lines = text.trim_end().replace('\n', "\x1b[K\n");
                write(&format!("\x1b[H{lines}\x1b[K\x1b[J"));
                Ok(())
            } else {
                output::text(&text)
            }
        };
        looks += 1;
        if shown.is_err() || count.is_some_and(|count| looks >= count) {
            break shown;
        }
        before = now;
    };
    if is_page {
        write(LEAVE);
    }
    ended
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    servers: u64,
    uptime_s: f64,
    devices: Vec<ShownDevice<'a>>,
    clients: Vec<ShownClient>,
    files: usize,
}

#[derive(Debug, Serialize)]
struct ShownDevice<'a> {
    device: &'a str,
    used_bytes: u64,
    budget_bytes: u64,
    pages: u64,
    behind: u64,
    pending: u64,
    /// Of those used, bytes of versions that readers keep.
    left_bytes: u64,
    /// Free for anybody, how many shall be, and what was given back for that; zeroes where nobody wants any.
    free_bytes: u64,
    target_bytes: u64,
    reclaimed_bytes: u64,
    counts: Counts,
    /// By engine.
    read_bytes: std::collections::BTreeMap<&'static str, u64>,
    per_second: Rates,
}

#[derive(Debug, Serialize)]
struct ShownClient {
    pid: u32,
    uid: u32,
    files: u64,
    acquired_bytes: u64,
    recalled_bytes: u64,
}

impl<'a> Shown<'a> {
    fn of(names: &'a [String], before: &Sample, now: &Sample) -> Self {
        let devices = names.iter().zip(rates(before, now)).map(|(device, (status, per_second))| ShownDevice {
            device,
            used_bytes: status.used_bytes,
            budget_bytes: status.budget_bytes,
            pages: status.pages,
            behind: status.behind,
            pending: status.pending,
            left_bytes: status.left_bytes,
            free_bytes: status.free_bytes,
            target_bytes: status.target_bytes,
            reclaimed_bytes: status.reclaimed_bytes,
            counts: status.counts,
            read_bytes: EngineKind::ALL
                .iter()
                .map(|engine| (engine.name(), status.read_bytes[*engine as usize]))
                .collect(),
            per_second,
        });
        let client = |client: &bifolio_daemon::protocol::ClientStatus| ShownClient {
            pid: client.pid,
            uid: client.uid,
            files: client.files,
            acquired_bytes: client.used_bytes,
            recalled_bytes: client.recalled_bytes,
        };
        let Status { servers, uptime_ms, .. } = now.status;
        let clients = now.status.clients.iter().map(client).collect();
        Self { servers, uptime_s: uptime_ms as f64 / 1e3, devices: devices.collect(), clients, files: now.files.len() }
    }
}

/// Devices, with what was done for them in between.
fn rates<'a>(before: &'a Sample, now: &'a Sample) -> impl Iterator<Item = (&'a DeviceStatus, Rates)> {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let nothing = DeviceStatus::default();
    now.status.devices.iter().enumerate().map(move |(number, device)| {
        // What another server has done is not what this one has not.
        let is_same = before.status.servers == now.status.servers;
        let last = before.status.devices.get(number).filter(|_| is_same).unwrap_or(&nothing);
        (device, Rates::between(last, device, seconds))
    })
}

/// For people.
fn page(names: &[String], before: &Sample, now: &Sample) -> String {
    let Status { servers, uptime_ms, clients, .. } = &now.status;
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "server {servers}, up {}; {}, {}\n\n",
        duration(*uptime_ms / 1000),
        plural(clients.len(), "client"),
        plural(now.files.len(), "file")
    );
    let per_second = |bytes: f64| if bytes < 1.0 { "-".to_owned() } else { format!("{}/s", size::human(bytes as u64)) };
    let count = |rate: f64| if rate < 0.05 { "-".to_owned() } else { format!("{rate:.0}/s") };
    let head = ["device", "used", "of", "hits", "page cache", "storage", "peers", "released", "written", "evicted"];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    for (name, (device, rates)) in names.iter().zip(rates(before, now)) {
        rows.push(vec![
            name.clone(),
            size::human(device.used_bytes),
            size::human(device.budget_bytes),
            rates.hit_rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.0} %", rate * 100.0)),
            per_second(rates.page_cache_bytes),
            per_second(rates.storage_bytes),
            count(rates.from_peers),
            count(rates.released),
            count(rates.flushed),
            count(rates.evicted),
        ]);
    }
    text += &output::columns(&rows, &[0]);
    for (name, device) in names.iter().zip(&now.status.devices).filter(|(_, device)| device.target_bytes > 0) {
        let [free, target, reclaimed] =
            [device.free_bytes, device.target_bytes, device.reclaimed_bytes].map(size::human);
        let _ = writeln!(text, "{name}: {free} free, of {target} that shall be; {reclaimed} given back for that");
    }
    if !now.files.is_empty() {
        let mut files: Vec<&FileStatus> = now.files.iter().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.devices.iter().map(|(bytes, _)| *bytes).max()));
        let head = ["file", "size"].into_iter().chain(names.iter().map(String::as_str)).chain(["open"]);
        let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
        rows.extend(files.iter().take(20).map(|file| {
            let on = |(bytes, is_kept): &(u64, bool)| {
                let bytes = size::human((*bytes).min(file.size));
                if *is_kept { format!("{bytes} pinned") } else { bytes }
            };
            let begin = [output::printable(&file.path).into_owned(), size::human(file.size)].into_iter();
            begin.chain(file.devices.iter().map(on)).chain([file.users.to_string()]).collect()
        }));
        text.push('\n');
        text += &output::columns(&rows, &[0]);
        if files.len() > 20 {
            let _ = writeln!(text, "and {}", plural(files.len() - 20, "other"));
        }
    }
    if !clients.is_empty() {
        let mut rows: Vec<Vec<String>> =
            vec![["pid", "user", "files", "acquired", "recalled"].map(str::to_owned).to_vec()];
        let mut clients: Vec<_> = clients.iter().collect();
        clients.sort_by_key(|client| std::cmp::Reverse(client.used_bytes));
        rows.extend(clients.iter().take(20).map(|client| {
            let numbers = [client.pid.to_string(), client.uid.to_string(), client.files.to_string()];
            let recalled = if client.recalled_bytes == 0 { "-".to_owned() } else { size::human(client.recalled_bytes) };
            numbers.into_iter().chain([size::human(client.used_bytes), recalled]).collect()
        }));
        text.push('\n');
        text += &output::columns(&rows, &[]);
    }
    text
}

/// `3 d 4 h`, `5 min`, `12 s`.
fn duration(seconds: u64) -> String {
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_daemon::protocol::ClientStatus;

    fn sample(at: Instant, servers: u64, hits: u64, fetched: u64, read: [u64; 4]) -> Sample {
        let counts = Counts { hits, fetched, ..Counts::default() };
        let device = DeviceStatus {
            used_bytes: 3 << 30,
            budget_bytes: 4 << 30,
            counts,
            read_bytes: read,
            ..DeviceStatus::default()
        };
        let clients = vec![ClientStatus { pid: 12, uid: 1000, files: 1, used_bytes: 1 << 30, recalled_bytes: 3 << 20 }];
        let status = Status { servers, uptime_ms: 3_720_000, counts, devices: vec![device], clients };
        let devices = vec![(1 << 30, true)];
        let (holders, path) = (vec![(12, 0, 1 << 30)], "/a\x1b[31m".into());
        let files = vec![FileStatus { id: (1, 1), size: 1 << 30, users: 1, devices, holders, path }];
        Sample { at, status, files }
    }

    #[test]
    fn rates_are_what_was_done_in_a_second_by_the_server_that_is_there() {
        let begin = Instant::now();
        let (one, two) = (begin, begin + Duration::from_secs(2));
        let before = sample(one, 1, 100, 100, [10, 20, 30, 40]);
        let now = sample(two, 1, 130, 110, [110, 20, 30, 2040]);
        let [(_, rates)] = rates(&before, &now).collect::<Vec<_>>()[..] else { panic!() };
        assert!((rates.page_cache_bytes - 50.0).abs() < 1e-9 && (rates.storage_bytes - 1000.0).abs() < 1e-9);
        assert!((rates.hit_rate.unwrap() - 0.75).abs() < 1e-9);
        let other = sample(two, 2, 8, 2, [4, 0, 0, 0]);
        let [(_, rates)] = super::rates(&before, &other).collect::<Vec<_>>()[..] else { panic!() };
        assert!((rates.page_cache_bytes - 2.0).abs() < 1e-9 && (rates.hit_rate.unwrap() - 0.8).abs() < 1e-9);
        let [(_, rates)] = super::rates(&now, &Sample { at: two + TICK, ..now.clone() }).collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert!(rates.hit_rate.is_none());
    }

    #[test]
    fn a_page_says_everything_and_nothing_that_a_terminal_would_act_on() {
        let begin = Instant::now();
        let before = sample(begin, 1, 0, 0, [0; 4]);
        let now = sample(begin + Duration::from_secs(1), 1, 1, 1, [1 << 30, 0, 0, 0]);
        let text = page(&["cuda:0".into()], &before, &now);
        for part in [
            "server 1, up 1 h 2 min; 1 client, 1 file",
            "cuda:0",
            "3 GiB",
            "50 %",
            "1 GiB/s",
            "pinned",
            "1000",
            "3 MiB",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('\x1b'));
    }
}
