//! Handlers that every element has, those of the router itself, and how all of them are called.

use super::{Cx, Router};
use crate::args::{Args, HandlerCall};
use crate::handler::{Handler, Handlers, Read, Write};
use crate::{Log, lang};
use std::fmt::Write as _;

/// Calls a handler: reads it where there is no value and it can be read, else writes it.
pub(super) fn any(cx: &mut Cx<'_>, call: &HandlerCall) -> Result<String, String> {
    let can_read = call.value.is_empty() && find(cx, call.element, &call.handler)?.read.is_some();
    if can_read {
        read(cx, call.element, &call.handler, "")
    } else {
        write(cx, call.element, &call.handler, &call.value).map(|()| String::new())
    }
}

fn find(cx: &Cx<'_>, element: Option<usize>, name: &str) -> Result<Handler, String> {
    let found = match element {
        Some(element) => cx.router.handlers(element).and_then(|handlers| handlers.get(name).cloned()),
        None => root().get(name).cloned(),
    };
    found.ok_or_else(|| match element {
        Some(element) => format!("no handler named '{}.{name}'", cx.router.name(element)),
        None => format!("no handler named '{name}'"),
    })
}

fn whole(router: &Router, element: Option<usize>, name: &str) -> String {
    element.map_or_else(|| name.to_owned(), |element| format!("{}.{name}", router.name(element)))
}

pub(super) fn read(cx: &mut Cx<'_>, element: Option<usize>, name: &str, argument: &str) -> Result<String, String> {
    let Some(read) = find(cx, element, name)?.read else {
        return Err(format!("'{}' is a write handler", whole(cx.router, element, name)));
    };
    let id = element.unwrap_or(cx.id);
    let mut inner = Cx { router: cx.router, thread: &mut *cx.thread, id };
    match read {
        Read::Free(read) => read(&mut inner, argument),
        Read::Of(read) => match inner.router.slots[id].enter(inner.thread.number) {
            Some(mut slot) => read(&mut *slot, &mut inner, argument),
            None => Err(format!("'{}' is busy", whole(cx.router, element, name))),
        },
    }
}

pub(super) fn write(cx: &mut Cx<'_>, element: Option<usize>, name: &str, value: &str) -> Result<(), String> {
    let Some(write) = find(cx, element, name)?.write else {
        return Err(format!("'{}' is a read handler", whole(cx.router, element, name)));
    };
    let id = element.unwrap_or(cx.id);
    let mut inner = Cx { router: cx.router, thread: &mut *cx.thread, id };
    match write {
        Write::Free(write) => write(&mut inner, value),
        Write::Of(write) => match inner.router.slots[id].enter(inner.thread.number) {
            Some(mut slot) => write(&mut *slot, &mut inner, value),
            None => Err(format!("'{}' is busy", whole(cx.router, element, name))),
        },
    }
}

/// Handlers that every element has.
pub(super) fn defaults() -> Handlers {
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
    handlers.free_write("config", reconfigure);
    handlers.raw("config");
    handlers
}

pub(super) fn reconfigure(cx: &mut Cx<'_>, text: &str) -> Result<(), String> {
    let router = cx.router;
    let busy = || format!("'{}' is busy", router.name(cx.id));
    let mut slot = router.slots[cx.id].enter(cx.thread.number).ok_or_else(busy)?;
    if !slot.reconfigures() {
        return Err(format!("'{}' does not take a new configuration while it runs", cx.declaration()));
    }
    let mut log = Log::new();
    let result = slot.configure(&mut Args::new(text, cx.arg_cx(), &mut log));
    if result.is_err() {
        return Err(log.to_string().trim_end().to_owned());
    }
    text.clone_into(&mut router.elements[cx.id].config.lock().expect("no panic in it"));
    slot.reconfigured(cx);
    Ok(())
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

/// The handlers of the router itself.
pub(super) fn root() -> Handlers {
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
    handlers.free_read("flatconfig", |cx, _| Ok(lang::unparse(&graph(cx))));
    handlers.free_read("config", |cx, _| Ok(lang::unparse(&graph(cx))));
    handlers.free_read("requirements", |cx, _| {
        Ok(cx.router.requirements.iter().fold(String::new(), |text, one| text + &one.value + "\n"))
    });
    handlers.free_read("packages", |_, _| Ok(String::new()));
    handlers.free_read("driver", |cx, _| {
        let driver = *cx.router.driver.lock().expect("no panic in it");
        Ok(driver.map_or(String::new(), |element| cx.router.name(element).to_owned()))
    });
    handlers.free_read("runcount", |cx, _| Ok(cx.router.runcount().to_string()));
    handlers.free_read("handlers", |_, _| Ok(list(Some(&root()))));
    handlers.free_write("stop", |cx, text| {
        let times = if text.trim().is_empty() { 1 } else { cx.parse::<i32>(text)? };
        cx.router.adjust_runcount(-times);
        Ok(())
    });
    handlers
}

/// The graph that runs, with the configurations as they were last written.
fn graph(cx: &Cx<'_>) -> lang::Graph {
    let router = cx.router;
    let elements = (0..router.len()).map(|element| lang::ElementDecl {
        name: router.name(element).to_owned(),
        class: router.class_of(element).name.to_owned(),
        config: router.config(element),
        landmark: router.landmark(element).clone(),
    });
    let connections = router.wiring.connections().map(|((from, from_port), (to, to_port))| lang::Connection {
        from,
        from_port: from_port as u32,
        to,
        to_port: to_port as u32,
        landmark: crate::Landmark::default(),
    });
    let requirements = router.requirements.clone();
    lang::Graph {
        elements: elements.collect(),
        connections: connections.collect(),
        requirements,
        ..lang::Graph::default()
    }
}
