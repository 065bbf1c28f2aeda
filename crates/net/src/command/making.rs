//! How `click` makes routers: the first one, and those that take its place.

use super::buildtool::PACKAGES;
use super::source::{ClickPath, WithLibraries};
use crate::lang::{self, ElementDecl, Globals, Graph, config};
use crate::router::{self, Options, Rebuild, Router, Running};
use crate::{Clock, Landmark, Log, Registry};
use std::sync::Arc;

/// What all routers of a command line have.
#[derive(Debug, Clone)]
pub(super) struct Making {
    pub(super) registry: Registry,
    pub(super) globals: Globals,
    pub(super) path: ClickPath,
    /// Types and addresses of ControlSockets, as arguments.
    pub(super) sockets: Vec<String>,
    pub(super) threads: usize,
    pub(super) affinity: Option<usize>,
    /// Whether another router may take the place of one that runs.
    pub(super) may_change: bool,
}

impl Making {
    /// The arguments of a control socket at a TCP port, as ControlSocket takes them.
    pub(super) fn tcp(port: &str) -> String {
        format!("TCP, {port}")
    }

    /// The arguments of one with a name.
    pub(super) fn unix(name: &str) -> String {
        format!("UNIX, {}", config::quote(name))
    }

    /// The arguments of one that is a descriptor.
    pub(super) fn socket(fd: i32) -> String {
        format!("SOCKET, {fd}")
    }

    /// Makes the first router, of a text from a file of this name.
    pub(super) fn first(self, text: String, name: &str, clock: Clock, log: &mut Log) -> Option<Running> {
        Arc::new(self).make(text, name, Options { clock, ..Options::default() }, "", log)
    }

    /// Makes one that takes the place of another.
    fn next(self: &Arc<Self>, old: &Router, text: &str, log: &mut Log) -> Option<Running> {
        // The other one has the sockets until then.
        let options = Options { clock: old.clock().fork(), replaces: old.declarations(), ..Options::default() };
        self.make(text.to_owned(), "config", options, ", RETRIES 1, RETRY_WARNINGS false", log)
    }

    fn make(
        self: &Arc<Self>,
        text: String,
        name: &str,
        options: Options,
        keywords: &str,
        log: &mut Log,
    ) -> Option<Running> {
        let classes = WithLibraries { classes: &self.registry, path: &self.path };
        let graph = lang::parse(&text, name, &self.globals, &classes, log);
        let mut graph = graph.filter(|graph| has_packages(graph, &self.registry, log))?;
        self.add_sockets(&mut graph, keywords);
        let own = Arc::clone(self);
        let rebuild = Rebuild::new(move |old, text, log| own.next(old, text, log));
        let options = Options {
            threads: self.threads,
            affinity: self.affinity,
            text: Some(text),
            rebuild: self.may_change.then_some(rebuild),
            ..options
        };
        router::build(&graph, &self.registry, options, log)
    }

    fn add_sockets(&self, graph: &mut Graph, keywords: &str) {
        for (i, socket) in self.sockets.iter().enumerate() {
            let number = if i == 0 { String::new() } else { format!("@{i}") };
            graph.elements.push(ElementDecl {
                name: format!("click_driver@@ControlSocket{number}"),
                class: "ControlSocket".to_owned(),
                config: format!("{socket}{keywords}"),
                landmark: Landmark::new("click", 0),
            });
        }
    }
}

fn has_packages(graph: &Graph, registry: &Registry, log: &mut Log) -> bool {
    let before = log.errors();
    for requirement in graph.requirements.iter().filter(|requirement| requirement.kind == "package") {
        let name = &requirement.value;
        let known =
            PACKAGES.contains(&name.as_str()) || registry.get(name).is_some() || graph.provisions.contains(name);
        if !known {
            log.error(&Landmark::default(), format_args!("can't find required package '{name}'"));
        }
    }
    log.errors() == before
}
