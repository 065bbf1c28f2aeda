//! Click's programs: `click` itself, which runs a configuration, and the tools that look at one and change it.
//!
//! One program is all of them. It takes its name for the one to be; under another name the first word says which.

mod align;
mod alignment;
mod archive;
mod buildtool;
mod calls;
mod click;
mod exchange;
mod flatten;
mod glob;
mod making;
mod options;
mod pretty;
mod source;
mod template;
mod tool;
mod watching;
mod xform;

use crate::Registry;

/// A program: what it does with its arguments, and its exit code.
type Program = fn(&[String], &Registry) -> i32;

const PROGRAMS: &[(&str, Program)] = &[
    ("click", click::main),
    ("click-align", align::main),
    ("click-buildtool", buildtool::main),
    ("click-flatten", flatten::main),
    ("click-pretty", pretty::main),
    ("click-xform", xform::main),
];

/// Runs the program that `args` names, with the elements that come with the engine. Returns the exit code.
pub fn main(args: &[String]) -> i32 {
    main_with(args, &Registry::standard())
}

/// Runs the program that `args` names: by its first one, the program's own name, if that is one of the tools, else by the
/// word that follows. Where that is none either, it is `click`. Elements are those of `registry`. Returns the exit code.
pub fn main_with(args: &[String], registry: &Registry) -> i32 {
    let (program, rest) = choose(args);
    program(rest, registry)
}

fn choose(args: &[String]) -> (Program, &[String]) {
    let Some((own, rest)) = args.split_first() else { return (click::main, args) };
    let own = own.rsplit('/').next().unwrap_or(own);
    if let Some(program) = find(own).filter(|_| own != "click") {
        return (program, rest);
    }
    match rest.split_first().map(|(word, rest)| (find(word), rest)) {
        Some((Some(program), rest)) => (program, rest),
        _ => (click::main, rest),
    }
}

fn find(name: &str) -> Option<Program> {
    PROGRAMS.iter().find(|(known, _)| *known == name).map(|(_, program)| *program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_chosen_by_its_name_or_the_first_word() {
        for (args, program, rest) in [
            (&["/usr/bin/click-flatten", "click"][..], flatten::main as Program, &["click"][..]),
            (&["click", "click-align", "x"], align::main, &["x"]),
            (&["net", "click-pretty"], pretty::main, &[]),
            (&["net", "click", "a"], click::main, &["a"]),
            (&["click", "-e", "Idle"], click::main, &["-e", "Idle"]),
            (&["bifolio", "a.click"], click::main, &["a.click"]),
            (&["click"], click::main, &[]),
            (&[], click::main, &[]),
        ] {
            let args: Vec<_> = args.iter().map(ToString::to_string).collect();
            let (chosen, left) = choose(&args);
            assert!(std::ptr::fn_addr_eq(chosen, program), "{args:?}");
            assert_eq!(left, rest);
        }
    }
}
