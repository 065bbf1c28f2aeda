//! `bifolio swap status`.

use super::line;
use super::processes::said;
use crate::exit::{Code, Failure};
use crate::global::Global;
use crate::output;
use bifolio_io::size::human;
use bifolio_paging::swap::{Instance, Latency, Place, Status, status};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Choices for `swap status`.
#[derive(Debug, ClapArgs)]
pub struct StatusArgs {
    /// The backing of the one that is meant; all of them, if not named.
    pub backing: Option<PathBuf>,
    /// Show it again every so many seconds, until interrupted.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: Option<u64>,
}

/// One that nobody serves any more.
#[derive(Debug, Serialize)]
struct Broken {
    backing: PathBuf,
    error: String,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Runs {
        #[serde(flatten)]
        status: Box<Status>,
        messages: Vec<String>,
    },
    Broken(Broken),
}

/// Shows it, once or again and again.
pub fn run(global: &Global, args: &StatusArgs, place: &Place) -> Result<(), Failure> {
    let mut before: Vec<(PathBuf, Status)> = vec![];
    loop {
        let instances = match &args.backing {
            Some(backing) => vec![place.find(Some(backing))?],
            None => place.instances()?,
        };
        let answers: Vec<Answer> = instances.iter().map(answer).collect();
        if global.json {
            output::json(&answers)?;
        } else if answers.is_empty() {
            line("no swap space of this kind is on; `bifolio swap on --auto` switches one on")?;
        } else {
            let all: Vec<String> = answers.iter().map(|answer| describe(answer, &before, args.every)).collect();
            line(&all.join("\n"))?;
        }
        let is_broken = answers.iter().any(|answer| matches!(answer, Answer::Broken(_)));
        let Some(every) = args.every else {
            let sentence = "a swap space has lost its keeper";
            return if is_broken { Err(Failure::new(Code::Failed, sentence)) } else { Ok(()) };
        };
        before = answers.into_iter().filter_map(Answer::running).collect();
        std::thread::sleep(Duration::from_secs(every));
    }
}

impl Answer {
    fn running(self) -> Option<(PathBuf, Status)> {
        match self {
            Self::Runs { status, .. } => Some((status.backing.clone(), *status)),
            Self::Broken(_) => None,
        }
    }
}

fn answer(instance: &Instance) -> Answer {
    match status(instance) {
        Ok(status) => Answer::Runs { status: Box::new(status), messages: said(instance, 5) },
        Err(error) => Answer::Broken(Broken { backing: instance.record.backing.clone(), error: error.to_string() }),
    }
}

fn describe(answer: &Answer, before: &[(PathBuf, Status)], every: Option<u64>) -> String {
    match answer {
        Answer::Broken(Broken { error, .. }) => error.clone(),
        Answer::Runs { status, messages } => {
            let earlier = before.iter().find(|(backing, _)| *backing == status.backing).map(|(_, status)| status);
            let mut text = describe_status(status);
            if let (Some(earlier), Some(every)) = (earlier, every) {
                let rate = |now: u64, then: u64| human(now.saturating_sub(then) / every);
                let _ = writeln!(
                    text,
                    "  now        {}/s read, {}/s written",
                    rate(status.read_bytes, earlier.read_bytes),
                    rate(status.written_bytes, earlier.written_bytes)
                );
            }
            for message in messages {
                let _ = writeln!(text, "  said       {message}");
            }
            text.trim_end().to_owned()
        }
    }
}

fn describe_status(status: &Status) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{} ({}, {})", status.backing.display(), status.mode, status.device);
    let disk = status.disk.as_deref().map_or("no disk".into(), |disk| disk.display().to_string());
    match status.swap {
        Some((size, used)) => {
            let _ = writeln!(text, "  swap       {} of {} in use, on {disk}", human(used), human(size));
        }
        None => {
            let _ = writeln!(text, "  swap       the system does not use it; `swap off` cleans up");
        }
    }
    let _ = writeln!(text, "  attached   by {}: {}", status.attachment, status.attachment_reason);
    let memory = &status.memory;
    let _ = writeln!(
        text,
        "  memory     {} of {} on the device in use; {} wanted, {} withheld for others, {} at most, {} left to them",
        human(memory.used),
        human(memory.present),
        human(memory.wanted),
        human(memory.withheld),
        human(memory.most),
        human(memory.left_to_others)
    );
    let _ = writeln!(text, "  device     {}", device(status));
    let _ = writeln!(text, "  good for   {}", good_for(status));
    let rows =
        [("from device", status.hits), ("waited", status.misses), ("reads", status.reads), ("writes", status.writes)];
    for (name, latency) in rows {
        if let Some(Latency { requests, p50_us, p99_us, p999_us }) = latency {
            let _ = writeln!(
                text,
                "  {name:<11}{requests} requests, p50 {p50_us:.0} us, p99 {p99_us:.0} us, p99.9 {p999_us:.0} us"
            );
        }
    }
    let _ = writeln!(
        text,
        "  so far     {} read, {} written, {} discarded; longest request {:.1} ms; {} workers took over",
        human(status.read_bytes),
        human(status.written_bytes),
        human(status.discarded_bytes),
        status.longest_us / 1000.0,
        status.restarts
    );
    if status.dirty_pages + status.lost_pages > 0 {
        let _ = writeln!(text, "  only there {} pages; {} were lost", status.dirty_pages, status.lost_pages);
    }
    text
}

fn device(status: &Status) -> String {
    let state = match (status.is_suspended, status.device_serves) {
        (true, _) => "holds nothing until `swap resume`",
        (false, true) => "serves",
        (false, false) => "is left alone after a failure; the backing serves, and it is tried again",
    };
    if status.device_errors == 0 {
        state.to_owned()
    } else {
        format!("{state} ({} failures so far)", status.device_errors)
    }
}

/// What it is good for at this moment, in a sentence.
fn good_for(status: &Status) -> String {
    let Some(rate) = status.hit_rate() else { return "nothing has been read back yet".to_owned() };
    let percent = rate * 100.0;
    match (status.hits, status.times_as_quick()) {
        (Some(hits), Some(times)) => format!(
            "{percent:.1} % of the pages read came from the device, in {:.0} us; from the backing a read takes {times:.1} times as \
             long",
            hits.p50_us
        ),
        (Some(hits), None) => {
            format!("{percent:.1} % of the pages read came from the device, in {:.0} us", hits.p50_us)
        }
        (None, _) => format!("{percent:.1} % of the pages read came from the device"),
    }
}
