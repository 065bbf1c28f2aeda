//! Handlers that a command line names: read at the end, printed, or taken for the exit code.

use super::glob::glob;
use super::tool::print;
use crate::lang::config;
use crate::router::{Router, Running};
use crate::{Landmark, Log};

/// Prints the values of handlers, each with its name where there are several.
pub(super) fn call_handlers(handlers: &[String], running: &mut Running, log: &mut Log) {
    for handler in handlers {
        let (names, is_list) = match expand_handler(handler, running.router()) {
            Ok(found) => found,
            Err(error) => {
                log.error(&Landmark::default(), error);
                continue;
            }
        };
        for name in names {
            let with_name = is_list || handlers.len() > 1;
            match read_handler(&name, running) {
                Ok(text) if with_name => print(&format!("{name}:\n{text}\n")),
                Ok(text) => print(&text),
                Err(error) => log.error(&Landmark::default(), error),
            }
        }
    }
}

/// The value of a handler, with a line's end where the text is not to be taken as it is.
pub(super) fn read_handler(name: &str, running: &mut Running) -> Result<String, String> {
    let mut text = running.read(name)?;
    if !is_raw(name, running.router()) && !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Whether a handler's text is to be taken as it is: packets' data, or the whole configuration. That of one element gets a
/// line's end.
fn is_raw(name: &str, router: &Router) -> bool {
    let path = name.split(' ').next().unwrap_or(name);
    let Some((element, handler)) = path.rsplit_once('.') else { return path == "config" };
    let found = router.find(element).and_then(|element| router.handlers(element)).and_then(|all| all.get(handler));
    handler != "config" && found.is_some_and(|handler| handler.is_raw)
}

/// The handlers that `ELEMENT.HANDLER` means, where the first may be a name, a pattern or a class; and whether it is one of
/// the latter two.
pub(super) fn expand_handler(text: &str, router: &Router) -> Result<(Vec<String>, bool), String> {
    let (path, argument) = text.split_once(' ').map_or((text, ""), |(path, argument)| (path, argument));
    let Some((element, handler)) = path.rsplit_once('.') else {
        return readable(router.access(None, path), path).map(|()| (vec![text.to_string()], false));
    };
    let named =
        |e: usize| format!("{}.{handler}", router.name(e)) + if argument.is_empty() { "" } else { " " } + argument;
    if let Some(found) = router.find(element) {
        return readable(router.access(Some(found), handler), path).map(|()| (vec![named(found)], false));
    }
    let is_pattern = element.contains(['?', '*', '[']);
    let fits = |e: &usize| {
        if is_pattern { glob(element, router.name(*e)) } else { router.class_of(*e).name == element }
    };
    let fitting: Vec<_> = (0..router.len()).filter(fits).collect();
    if fitting.is_empty() {
        return Err(format!("no element{} '{element}'", if is_pattern { " matching" } else { "" }));
    }
    let reads =
        |e: &usize| router.handlers(*e).and_then(|all| all.get(handler)).is_some_and(|handler| handler.read.is_some());
    Ok((fitting.into_iter().filter(reads).map(named).collect(), true))
}

/// Whether a handler is there, and can be read; `path` names it in errors.
fn readable(access: Option<(bool, bool)>, path: &str) -> Result<(), String> {
    match access {
        None => Err(format!("no '{path}' handler")),
        Some((false, _)) => Err(format!("'{path}' is a write handler")),
        Some(_) => Ok(()),
    }
}

/// The exit code that a handler's value means: a number, of which the system has the last 8 bits, or a truth. 255 where it
/// is neither.
pub(super) fn exit_code(value: &Result<String, String>, log: &mut Log) -> i32 {
    let text = match value {
        Ok(text) => config::uncomment(text),
        Err(error) => {
            log.error(&Landmark::default(), error);
            return 255;
        }
    };
    match text.as_str() {
        "true" | "yes" | "t" | "y" => 0,
        "false" | "no" | "f" | "n" => 1,
        text => text.parse::<i32>().map_or_else(
            |_| {
                log.error(&Landmark::default(), "exit handler value should be integer");
                255
            },
            |code| code & 255,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes() {
        for (text, code, error) in [
            ("3 // three", 3, ""),
            ("true", 0, ""),
            ("no", 1, ""),
            ("-1", 255, ""),
            ("259", 3, ""),
            ("x", 255, "exit handler value should be integer\n"),
        ] {
            let mut log = Log::new();
            assert_eq!(exit_code(&Ok(text.into()), &mut log), code);
            assert_eq!(log.to_string(), error);
        }
    }
}
