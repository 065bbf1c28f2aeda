//! click-flatten: writes a configuration without compound elements, or what is in it.

use super::options::{Given, Known, Value};
use super::tool::{Line, Tool};
use crate::lang::{FileVariables, unparse_with_lines};
use crate::{Log, Registry};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Classes,
    Names,
    Declarations,
    Config,
    ExpandVars,
}

const TOOL: Tool<Choice> = Tool {
    name: "click-flatten",
    about: "Reads a router configuration, replaces its compound elements by what is in them, and writes the result.",
    help: "  -c, --classes                 Write the classes that are used, a line each.
  -n, --names                   Write the names of the elements, a line each.
  -d, --declarations            Write name and class of the elements, a line each.
      --config                  Write the configuration (the default).
      --expand-vars             Put the values of the file's variables in.\n",
    options: &[
        Known { long: "classes", short: Some('c'), meaning: Choice::Classes, value: Value::No },
        Known { long: "names", short: Some('n'), meaning: Choice::Names, value: Value::No },
        Known { long: "elements", short: Some('n'), meaning: Choice::Names, value: Value::No },
        Known { long: "declarations", short: Some('d'), meaning: Choice::Declarations, value: Value::No },
        Known { long: "decls", short: Some('d'), meaning: Choice::Declarations, value: Value::No },
        Known { long: "config", short: None, meaning: Choice::Config, value: Value::No },
        Known { long: "expand-vars", short: None, meaning: Choice::ExpandVars, value: Value::Negatable },
    ],
};

/// Runs it.
pub(super) fn main(args: &[String], _: &Registry) -> i32 {
    TOOL.run(args, false, run)
}

fn run(line: &Line<Choice>, log: &mut Log) -> Option<String> {
    let expanded = line.has(&Choice::ExpandVars);
    let graph = line.source.graph(if expanded { FileVariables::Expanded } else { FileVariables::Kept }, log)?;
    let elements = graph.elements.iter();
    // Of several that say what to write, the last one counts.
    let asked = line.own.iter().rev().find_map(|given| match given {
        Given::Option(choice, _) if *choice != Choice::ExpandVars => Some(*choice),
        _ => None,
    });
    Some(match asked {
        Some(Choice::Classes) => sorted_lines(elements.map(|element| element.class.clone()), true),
        Some(Choice::Declarations) => {
            sorted_lines(elements.map(|element| format!("{} :: {}", element.name, element.class)), false)
        }
        Some(Choice::Names) => sorted_lines(elements.map(|element| element.name.clone()), false),
        _ => unparse_with_lines(&graph),
    })
}

fn sorted_lines(lines: impl Iterator<Item = String>, once: bool) -> String {
    let mut lines: Vec<_> = lines.map(|line| line + "\n").collect();
    lines.sort();
    if once {
        lines.dedup();
    }
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::tool::test_run;

    const TEXT: &str = "define($n 3) elementclass P { -> Paint($n) -> } Idle -> P -> p :: Paint(1) -> Discard";

    fn flat(args: &[&str]) -> String {
        test_run(&TOOL, &[&["-e", TEXT], args].concat(), run).unwrap()
    }

    #[test]
    fn lists_are_sorted() {
        assert_eq!(flat(&["--classes"]), "Discard\nIdle\nPaint\n");
        assert_eq!(flat(&["-cn"]), "Discard@4\nIdle@1\nP@2/Paint@1\np\n");
        assert_eq!(flat(&["-d"]), "Discard@4 :: Discard\nIdle@1 :: Idle\nP@2/Paint@1 :: Paint\np :: Paint\n");
    }

    #[test]
    fn variables_stay_unless_told_otherwise() {
        let text = flat(&[]);
        assert!(text.starts_with("define($n 3);\n\n# 1 \"config\"\nIdle@1 :: Idle;\n"), "{text}");
        assert!(text.contains("Paint($n);"));
        let text = flat(&["--expand-vars"]);
        assert!(text.contains("Paint(3);") && !text.contains("define"), "{text}");
        assert!(flat(&["--expand-vars", "n=4"]).contains("Paint(4);"));
        assert!(flat(&["n=4"]).starts_with("define($n 4);"));
    }

    #[test]
    fn errors_are_told() {
        let error = test_run(&TOOL, &["-e", "a ->"], run).unwrap_err();
        assert_eq!(error, "config:1: syntax error near ''\n");
        let error = test_run(&TOOL, &["/no/such/file"], run).unwrap_err();
        assert_eq!(error, "/no/such/file: No such file or directory\n");
    }
}
