//! click-buildtool: of what it does for programs that compile elements, only `provides` has a meaning here, since all
//! elements are in the program: it says which classes and packages there are.

use std::collections::BTreeSet;
use std::io::Read;

use super::options::{self, Given, Known, Value};
use super::tool::{print, version};
use crate::Registry;

const HELP: &str = "Says what there is to build routers from.

Usage: click-buildtool provides [OPTION]... [NAME]...
       click-buildtool [--help | --version]

'provides' writes the classes of elements, a line each. With names, it writes nothing: the exit code is 0 where all of them
are classes of elements or packages, else 1. A '-' stands for the words of standard input.

Options of 'provides':
  -q, --query                   Write classes and packages, with names, too.
  -r, --provide NAMES           Take NAMES for provided.
  -l, --print                   Write 1 where all names are provided, else 0.
  -h, --help                    Print this message and exit.
";

const USAGE: &str =
    "Usage: click-buildtool provides [OPTION]... [NAME]...\nTry 'click-buildtool --help' for more information.";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Query,
    Provide,
    Print,
    Help,
}

const KNOWN: &[Known<Choice>] = &[
    Known { long: "query", short: Some('q'), meaning: Choice::Query, value: Value::No },
    Known { long: "provide", short: Some('r'), meaning: Choice::Provide, value: Value::Needed },
    Known { long: "print", short: Some('l'), meaning: Choice::Print, value: Value::No },
    Known { long: "help", short: Some('h'), meaning: Choice::Help, value: Value::No },
];

/// Packages that Click's configurations ask for, and that are always there.
pub(super) const PACKAGES: &[&str] =
    &["click", "userlevel", "umultithread", "multithread", "linux", "ip", "tcpudp", "icmp", "ethernet", "app"];

/// Runs it.
pub(super) fn main(args: &[String], registry: &Registry) -> i32 {
    match args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("provides", rest)) => provides(rest, registry),
        Some(("--help" | "-h", _)) => {
            print(HELP);
            0
        }
        Some(("--version" | "-v", _)) => {
            print(&version("click-buildtool"));
            0
        }
        _ => {
            eprintln!("{USAGE}");
            1
        }
    }
}

fn provides(args: &[String], registry: &Registry) -> i32 {
    match options::parse(args, KNOWN) {
        Ok(given) if given.contains(&Given::Option(Choice::Help, String::new())) => {
            print(HELP);
            0
        }
        Ok(given) => {
            let (text, code) = answer(&given, registry, read_stdin);
            print(&text);
            code
        }
        Err(error) => {
            eprintln!("click-buildtool: {error}\n{USAGE}");
            1
        }
    }
}

fn read_stdin() -> String {
    let mut bytes = Vec::new();
    // What cannot be read names nothing.
    let _ = std::io::stdin().read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What `provides` writes, and its exit code.
fn answer(given: &[Given<Choice>], registry: &Registry, stdin: impl FnOnce() -> String) -> (String, i32) {
    let has = |choice| given.iter().any(|one| matches!(one, Given::Option(found, _) if *found == choice));
    let words = given.iter().filter_map(|one| if let Given::Word(word) = one { Some(word.as_str()) } else { None });
    let mut names: Vec<String> = words.flat_map(str::split_whitespace).map(String::from).collect();
    if names.iter().any(|name| name == "-") {
        names.retain(|name| name != "-");
        names.extend(stdin().split_whitespace().map(String::from));
    }
    let mut provided: BTreeSet<&str> = registry.classes().map(|class| class.name).collect();
    if given.is_empty() {
        return (lines(&provided), 0);
    }
    provided.extend(PACKAGES);
    provided.extend(given.iter().flat_map(|one| match one {
        Given::Option(Choice::Provide, names) => names.split_whitespace(),
        _ => "".split_whitespace(),
    }));
    let is_provided = names.iter().all(|name| provided.contains(name.as_str()));
    let mut text = if has(Choice::Query) { lines(&provided) } else { String::new() };
    if has(Choice::Print) {
        text += if is_provided { "1\n" } else { "0\n" };
    }
    (text, i32::from(!is_provided))
}

fn lines(names: &BTreeSet<&str>) -> String {
    names.iter().flat_map(|name| [*name, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_packages_are_provided() {
        let run =
            |args: &[&str]| main(&args.iter().map(ToString::to_string).collect::<Vec<_>>(), &Registry::standard());
        assert_eq!(run(&["provides", "Queue", "userlevel"]), 0);
        assert_eq!(run(&["provides", "Queue", "NoSuchElement"]), 1);
        assert_eq!(run(&["makepackage"]), 1);
        assert_eq!(run(&[]), 1);
        assert_eq!(run(&["provides", "--what"]), 1);
    }

    #[test]
    fn options_say_what_is_written() {
        let registry = Registry::standard();
        let answer = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(ToString::to_string).collect();
            answer(&options::parse(&args, KNOWN).ok().unwrap(), &registry, || "Tee\nMine".into())
        };
        assert_eq!(answer(&["Queue Tee", "userlevel"]), (String::new(), 0));
        assert_eq!(answer(&["-l", "Queue"]), ("1\n".into(), 0));
        assert_eq!(answer(&["--print", "Queue", "NoSuchElement"]), ("0\n".into(), 1));
        assert_eq!(answer(&["-r", "Mine Yours", "Mine", "Yours"]), (String::new(), 0));
        assert_eq!((answer(&["-"]).1, answer(&["-rMine", "-"]).1), (1, 0));
        let (text, code) = answer(&["-q", "NoSuchElement"]);
        assert!(code == 1 && text.contains("\nQueue\n") && text.contains("\nuserlevel\n"), "{text}");
        let (text, code) = answer(&[]);
        assert!(code == 0 && text.contains("\nQueue\n") && !text.contains("\nuserlevel\n"), "{text}");
    }
}
