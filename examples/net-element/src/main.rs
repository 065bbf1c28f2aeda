//! `click` and its tools, with one more element.

mod redact;

use bifolio_net::{Registry, command};

fn main() {
    let mut registry = Registry::standard();
    registry.add(redact::CLASSES);
    let args: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    std::process::exit(command::main_with(&args, &registry));
}
