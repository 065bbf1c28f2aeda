//! What clients get to see: made when somebody asks, and not again for a moment.

use super::http::View;
use super::prometheus::{self, metrics};
use super::rates::Rates;
use super::sample::{Sample, Watch};
use super::server::{Content, Pages};
use crate::draw::graph_svg;
use std::time::{Duration, Instant};

/// How long an answer holds: clients that flood cost the router no more than one that asks so often.
const FRESH: Duration = Duration::from_millis(200);
/// How far the samples between which rates are those of a drawing are apart, at least.
const STEP: Duration = Duration::from_secs(1);

const PAGE: &str = "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"2\">\
                    <title>bifolio net</title>\n<p>Packets a second. <a href=\"metrics\">Metrics</a>, \
                    <a href=\"graph.svg\">the drawing alone</a></p>\n";

/// Makes views of a router.
pub struct Views {
    watch: Watch,
    /// Views that were made, and when.
    made: Vec<(View, Instant, Content)>,
    /// A sample of at least one step ago, and one between that and now.
    before: Sample,
    between: Sample,
}

impl Views {
    /// Of what `watch` sees.
    pub fn new(mut watch: Watch) -> Self {
        let now = watch.counts();
        Self { watch, made: Vec::new(), before: now.clone(), between: now }
    }

    fn drawing(&mut self) -> String {
        let now = self.watch.counts();
        let rates = Rates::between(&self.before, &now).map(|rates| rates.connections);
        graph_svg(&now.router.graph(), rates.as_deref())
    }
}

impl Pages for Views {
    /// Takes the sample with which the next drawing is compared, if it is time.
    fn step(&mut self) {
        if self.between.at.elapsed() >= STEP {
            self.before = std::mem::replace(&mut self.between, self.watch.counts());
        }
    }

    /// A view, at most a moment old.
    fn get(&mut self, view: View) -> Option<Content> {
        self.made.retain(|(_, at, _)| at.elapsed() < FRESH);
        if let Some((.., content)) = self.made.iter().find(|(known, ..)| *known == view) {
            return Some(content.clone());
        }
        let (kind, text) = match view {
            View::Metrics => (prometheus::CONTENT_TYPE, metrics(&self.watch.sample(), self.watch.begin())),
            View::Graph => ("image/svg+xml", self.drawing()),
            View::Page => ("text/html; charset=utf-8", format!("{PAGE}{}</html>\n", self.drawing())),
        };
        let content: Content = (kind, text.into_bytes().into());
        self.made.push((view, Instant::now(), content.clone()));
        Some(content)
    }
}
