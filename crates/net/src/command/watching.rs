//! What `click` shows of a router while it runs: `--stats`, `--metrics`, `--graph`.

use super::tool::write_output;
use crate::Log;
use crate::draw::graph_svg;
use crate::error::reason;
use crate::router::Running;
use crate::watch::screen::Screen;
use crate::watch::server::{Listener, Server};
use crate::watch::views::Views;
use crate::watch::{Rates, Sample, Watch};
use std::time::Duration;

/// What is asked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// How often rates are shown.
    stats: Option<Duration>,
    /// The file for a drawing.
    graph: Option<String>,
    /// Where metrics are served.
    metrics: Option<String>,
}

impl Wanted {
    /// Takes the value of `--stats`: seconds, or nothing.
    pub(super) fn set_stats(&mut self, text: &str) -> Result<(), String> {
        let seconds = if text.is_empty() { Some(1.0) } else { text.parse().ok() };
        let interval = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
        let interval = interval.ok_or_else(|| format!("'{text}' is no time from 0.1 to 86400 seconds"))?;
        self.stats = Some(Duration::from_secs_f64(interval));
        Ok(())
    }

    /// Takes the value of `--graph`.
    pub(super) fn set_graph(&mut self, file: String) -> Result<(), String> {
        match self.graph.replace(file) {
            Some(_) => Err("graph file specified twice".into()),
            None => Ok(()),
        }
    }

    /// Takes the value of `--metrics`.
    pub(super) fn set_metrics(&mut self, place: String) -> Result<(), String> {
        match self.metrics.replace(place) {
            Some(_) => Err("metrics address specified twice".into()),
            None => Ok(()),
        }
    }

    /// Listens for clients of metrics, before anything else is done.
    pub(super) fn listen(&self) -> Result<Option<Listener>, String> {
        let listener = self.metrics.as_deref().map(Listener::bind).transpose();
        listener.map_err(|error| format!("--metrics: {error}"))
    }

    /// Whether rates are on the screen.
    pub(super) fn has_screen(&self) -> bool {
        self.stats.is_some()
    }

    /// Begins to watch a router that is about to run.
    pub(super) fn start(&self, running: &Running, listener: Option<Listener>) -> Result<Watching, String> {
        let mut watch = Watch::new(running.current().clone());
        let begin = watch.nothing();
        if let Some(file) = self.graph.as_deref().filter(|file| *file != "-") {
            // Whether it can be written is told now, and not after a day.
            let svg = graph_svg(&begin.router.graph(), None);
            std::fs::write(file, svg).map_err(|error| format!("{file}: {}", reason(&error)))?;
        }
        let place = listener.as_ref().map_or(String::new(), |listener| listener.place().to_owned());
        let another = || Watch::new(running.current().clone());
        let server = listener.map(|listener| Server::start(listener, Views::new(another()))).transpose();
        let server = server.map_err(|error| format!("--metrics: {}", reason(&error)))?;
        if server.is_some() {
            eprintln!("metrics: {place}");
        }
        let screen = self.stats.map(|interval| Screen::start(another(), interval, place)).transpose();
        let screen = screen.map_err(|error| format!("--stats: {}", reason(&error)))?;
        Ok(Watching { screen, _server: server, graph: self.graph.clone(), watch, begin })
    }
}

/// A router that is watched.
pub(super) struct Watching {
    screen: Option<Screen>,
    _server: Option<Server>,
    graph: Option<String>,
    watch: Watch,
    begin: Sample,
}

impl Watching {
    /// Shows what there is to show at the end.
    pub(super) fn finish(mut self, running: &mut Running, log: &mut Log) {
        if self.screen.is_none() && self.graph.is_none() {
            return;
        }
        let last = self.watch.sample_of(running);
        if let Some(file) = &self.graph {
            let rates = Rates::between(&self.begin, &last).map(|rates| rates.connections);
            write_output(Some(file), &graph_svg(&last.router.graph(), rates.as_deref()), log);
        }
        if let Some(screen) = self.screen {
            screen.finish(last);
        }
    }
}
