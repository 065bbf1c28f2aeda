//! What commands of a connection do: they call handlers, and say what came of that.

use super::llrpc;
use super::protocol::{Command, answer, answer_with};
use crate::args::HandlerCall;
use crate::router::Cx;

/// Executes a command. Returns its answer.
pub(super) fn execute(cx: &mut Cx<'_>, command: &Command, is_read_only: bool) -> Vec<u8> {
    match command {
        Command::Nothing | Command::Quit { .. } => Vec::new(),
        Command::Help => answer_with(200, "Commands supported:", HELP),
        Command::Read { handler, data } => read(cx, handler, data),
        Command::Write { handler, data } => write(cx, handler, data, is_read_only),
        Command::Check { handler, is_write } => check(cx, handler, *is_write, is_read_only),
        Command::Llrpc { name, data } => {
            let found = llrpc::parse(name).and_then(|(element, number)| {
                Ok((find(cx, &format!("{element}.name"))?.0.element.unwrap_or(cx.id()), number))
            });
            found.map_or_else(|refusal| refusal, |called| llrpc::call(cx, name, called, data, is_read_only))
        }
    }
}

const HELP: &[&str] = &[
    "READ handler [arg...]   call read handler, return DATA",
    "READDATA handler len    call read handler with len data bytes, return DATA",
    "READUNTIL handler term  call read handler, take data until term, return DATA",
    "WRITE handler [arg...]  call write handler",
    "WRITEDATA handler len   call write handler, pass len data bytes",
    "WRITEUNTIL handler term call write handler, take data until term",
    "CHECKREAD handler       check if read handler is valid",
    "CHECKWRITE handler      check if write handler is valid",
    "LLRPC elt#number [len]  call LLRPC, pass len data bytes, return DATA",
    "QUIT                    close connection",
];

/// Finds a handler: of an element by its name or number from 1, or of the router.
fn find(cx: &Cx<'_>, name: &str) -> Result<(HandlerCall, bool, bool), Vec<u8>> {
    let plain = name.strip_prefix("0.").or_else(|| name.strip_prefix('.')).unwrap_or(name);
    let (element, handler) = match plain.split_once('.') {
        None => (None, plain),
        Some((element, handler)) => {
            let numbered =
                || element.parse().ok().filter(|n| (1..=cx.router().len()).contains(n)).map(|n: usize| n - 1);
            match cx.router().find(element).or_else(numbered) {
                Some(element) => (Some(element), handler),
                None => return Err(answer(510, &format!("No element named '{element}'"))),
            }
        }
    };
    match cx.router().access(element, handler) {
        Some((can_read, can_write)) => {
            Ok((HandlerCall { element, handler: handler.to_owned(), value: String::new() }, can_read, can_write))
        }
        None => Err(answer(511, &format!("No handler named '{name}'"))),
    }
}

fn read(cx: &mut Cx<'_>, name: &str, data: &str) -> Vec<u8> {
    match find(cx, name) {
        Err(refusal) => refusal,
        Ok((_, false, _)) => answer(530, &format!("Handler '{name}' write-only")),
        Ok((call, ..)) => match cx.read_of(call.element, &call.handler, data) {
            Ok(value) => {
                let mut out = answer(200, &format!("Read handler '{name}' OK"));
                out.extend(format!("DATA {}\r\n{value}", value.len()).into_bytes());
                out
            }
            Err(error) => failed(590, &format!("Read handler '{name}' error"), &error),
        },
    }
}

fn write(cx: &mut Cx<'_>, name: &str, data: &str, is_read_only: bool) -> Vec<u8> {
    match find(cx, name) {
        Err(refusal) => refusal,
        Ok((_, _, false)) => answer(530, &format!("Handler '{name}' read-only")),
        Ok(_) if is_read_only => answer(530, &format!("Permission denied for '{name}'")),
        Ok((call, ..)) => {
            cx.take_warnings();
            match cx.write_of(call.element, &call.handler, data) {
                Ok(()) => match cx.take_warnings().join("\n") {
                    warnings if warnings.is_empty() => answer(200, &format!("Write handler '{name}' OK")),
                    warnings => failed(220, &format!("Write handler '{name}' OK with warnings"), &warnings),
                },
                Err(error) => failed(520, &format!("Write handler '{name}' error"), &error),
            }
        }
    }
}

fn failed(code: u16, text: &str, error: &str) -> Vec<u8> {
    let lines: Vec<_> = error.lines().collect();
    if lines.is_empty() { answer(code, text) } else { answer_with(code, &format!("{text}:"), &lines) }
}

fn check(cx: &Cx<'_>, name: &str, is_write: bool, is_read_only: bool) -> Vec<u8> {
    let (kind, word) = if is_write { ("Write", "writable") } else { ("Read", "readable") };
    match find(cx, name) {
        Err(refusal) => refusal,
        Ok((_, can_read, can_write)) if !(if is_write { can_write } else { can_read }) => {
            answer(511, &format!("Handler '{name}' not {word}"))
        }
        Ok(_) if is_write && is_read_only => answer(530, &format!("Permission denied for '{name}'")),
        Ok(_) => answer(200, &format!("{kind} handler '{name}' OK")),
    }
}
