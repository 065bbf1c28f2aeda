//! Handlers that every element has, and those of the router itself.

use super::cx::Cx;
use super::swap::Rebuild;
use super::thread::Mailbox;
use crate::element::Handlers;
use crate::{Pace, lang};
use std::fmt::Write as _;

/// Handlers that every element has; its configuration is written only where it takes another one while it runs.
pub(super) fn defaults(reconfigures: bool) -> Handlers {
    let mut handlers = Handlers::default();
    handlers.free_read("name", |cx, _| Ok(cx.name().to_owned()));
    handlers.free_read("class", |cx, _| Ok(cx.router.class_of(cx.id).name.to_owned()));
    handlers.free_read("config", |cx, _| Ok(cx.router.config(cx.id)));
    handlers.free_read("ports", |cx, _| Ok(ports(cx)));
    handlers.free_read("handlers", |cx, _| Ok(list(cx.router.handlers(cx.id))));
    handlers.free_read("scheduled", |cx, _| Ok(cx.is_scheduled().to_string()));
    handlers.free_read("tickets", |cx, _| {
        Ok(cx.router.tasks[cx.id].tickets.load(std::sync::atomic::Ordering::Relaxed).to_string())
    });
    handlers.free_write("tickets", |cx, text| {
        let tickets = cx.parse::<u32>(text)?.clamp(1, 1 << 15);
        cx.router.tasks[cx.id].tickets.store(tickets, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    });
    handlers.free_read("home_thread", |cx, _| {
        Ok(cx.router.tasks[cx.id].home.load(std::sync::atomic::Ordering::Relaxed).to_string())
    });
    if reconfigures {
        handlers.free_write("config", reconfigure);
    }
    handlers.raw("config");
    handlers
}

/// A new configuration, for an element that takes one while it runs.
fn reconfigure(cx: &mut Cx<'_>, text: &str) -> Result<(), String> {
    cx.reconfigure(text)
}

fn ports(cx: &Cx<'_>) -> String {
    let mut text = String::new();
    let connections: Vec<_> = cx.router.wiring.connections().collect();
    let plural = |n: usize, word: &str| format!("{n} {word}{}\n", if n == 1 { "" } else { "s" });
    text += &plural(cx.inputs(), "input");
    for port in 0..cx.inputs() {
        let kind = if cx.input_is_pull(port) { "pull" } else { "push" };
        let of = connections.iter().filter(|(_, to)| *to == (cx.id, port));
        let of: Vec<_> = of.map(|((from, output), _)| format!("{} [{output}]", cx.router.name(*from))).collect();
        let _ = writeln!(text, "{kind}\t{}\t{}", cx.router.packets_in(cx.id, port), of.join(", "));
    }
    text += &plural(cx.outputs(), "output");
    for port in 0..cx.outputs() {
        let kind = if cx.output_is_push(port) { "push" } else { "pull" };
        let to = connections.iter().filter(|(from, _)| *from == (cx.id, port));
        let to: Vec<_> = to.map(|(_, (to, input))| format!("[{input}] {}", cx.router.name(*to))).collect();
        let _ = writeln!(text, "{kind}\t-\t{}", to.join(", "));
    }
    text
}

fn list(handlers: Option<&Handlers>) -> String {
    let mut text = String::new();
    for (name, handler) in handlers.into_iter().flat_map(Handlers::iter).filter(|(_, handler)| !handler.is_hidden) {
        let flags = [(handler.read.is_some(), 'r'), (handler.write.is_some(), 'w'), (handler.is_button, 'b')];
        let flags: String = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect();
        let _ = writeln!(text, "{name}\t{flags}");
    }
    text
}

/// How time passes from now on, as it is written to `timewarp`.
fn pace(text: &str) -> Result<Pace, String> {
    if text == "nowait" {
        return Ok(Pace::NoWait);
    }
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(Pace::Times(speed)),
        Ok(speed) if speed <= 0.0 => Err("timefactor must be > 0".to_owned()),
        _ => Err("expected double".to_owned()),
    }
}

/// The handlers of the router itself.
pub(super) fn root(text: Option<String>, rebuild: Option<Rebuild>) -> Handlers {
    let mut handlers = Handlers::default();
    handlers.free_read("version", |_, _| Ok(env!("CARGO_PKG_VERSION").to_owned()));
    handlers.free_read("list", |cx, _| {
        let names = (0..cx.router.len()).fold(String::new(), |text, element| text + cx.router.name(element) + "\n");
        Ok(format!("{}\n{names}", cx.router.len()))
    });
    handlers.free_read("classes", |cx, _| {
        let classes: std::collections::BTreeSet<_> = (0..cx.router.len()).map(|e| cx.router.class_of(e).name).collect();
        Ok(classes.into_iter().fold(String::new(), |text, name| text + name + "\n"))
    });
    handlers.free_read("flatconfig", |cx, _| Ok(lang::unparse(&cx.router.graph())));
    handlers.free_read("config", move |cx, _| {
        let is_compact = cx.router.requirements.iter().any(|requirement| requirement.kind == "compact_config");
        let text = text.as_ref().filter(|_| !is_compact);
        Ok(text.map_or_else(|| lang::unparse(&cx.router.graph()), Clone::clone))
    });
    handlers.raw("config");
    handlers.free_read("requirements", |cx, _| {
        Ok(cx.router.requirements.iter().fold(String::new(), |text, one| text + &lang::unparse_requirement(one) + "\n"))
    });
    handlers.free_read("packages", |_, _| Ok(String::new()));
    handlers.free_read("driver", |_, _| Ok("userlevel".to_owned()));
    if let Some(rebuild) = rebuild {
        handlers.free_write("hotconfig", move |cx, text| rebuild.write(cx, text));
        handlers.raw("hotconfig");
    }
    handlers.free_read("timewarp", |cx, _| Ok(cx.router.clock.pace().to_string()));
    handlers.free_write("timewarp", |cx, text| {
        cx.router.clock.set_pace(pace(text)?);
        // Whoever sleeps has counted with another pace.
        cx.router.mailboxes.iter().for_each(Mailbox::wake);
        Ok(())
    });
    handlers.free_read("runcount", |cx, _| Ok(cx.router.runcount().to_string()));
    handlers.free_read("handlers", |cx, _| Ok(list(Some(&cx.router.root))));
    handlers.free_write("stop", |cx, text| {
        // What is no number, such as `true`, stops it once.
        let times = cx.parse::<i32>(text).unwrap_or(1);
        cx.router.adjust_runcount(times.saturating_neg());
        Ok(())
    });
    handlers
}
