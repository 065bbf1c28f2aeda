//! Click's programs: `click` itself, which runs a configuration, and the tools that look at one and change it.
//!
//! One program is all of them. It takes its name for the one to be; under another name the first word says which.

mod align;
mod buildtool;
mod click;
mod flatten;
mod options;
mod pretty;
mod source;
mod tool;
mod xform;

/// A program: what it does with its arguments, and its exit code.
type Program = fn(&[String]) -> i32;

const PROGRAMS: &[(&str, Program)] = &[
    ("click", click::main),
    ("click-align", align::main),
    ("click-buildtool", buildtool::main),
    ("click-flatten", flatten::main),
    ("click-pretty", pretty::main),
    ("click-xform", xform::main),
];

/// Runs the program that `args` names: by its first one, the program's own name, if that is `click` or one of the tools,
/// else by the word that follows. Where that is none of them either, it is `click`. Returns the exit code.
pub fn main(args: &[String]) -> i32 {
    let own = args.first().map_or("", |name| name.rsplit('/').next().unwrap_or(name));
    if let Some(program) = find(own) {
        return program(&args[1..]);
    }
    match args.get(1).and_then(|word| find(word)) {
        Some(program) => program(&args[2..]),
        None => click::main(args.get(1..).unwrap_or_default()),
    }
}

fn find(name: &str) -> Option<Program> {
    PROGRAMS.iter().find(|(known, _)| *known == name).map(|(_, program)| *program)
}
