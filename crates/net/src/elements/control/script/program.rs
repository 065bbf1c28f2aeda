//! What a script says, compiled.

use crate::args::{Arg, ArgCx, Interval, NameDb, NoElements};
use crate::lang::config::{first_word, split_words};

/// Where a jump leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    At(usize),
    Exit,
    End,
    Stop,
    Error,
}

/// An instruction. Texts are as they were written: variables in them have their values when it is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Instruction {
    /// A variable gets a value; `unquoted`: quotes are taken off.
    Set {
        name: String,
        text: String,
        unquoted: bool,
    },
    /// The same, once, before everything; `exported`: a handler of its name reads it.
    Init {
        name: String,
        text: String,
        unquoted: bool,
        exported: bool,
    },
    Print {
        text: String,
        newline: bool,
        unquoted: bool,
    },
    Read {
        text: String,
        unquoted: bool,
    },
    Write {
        text: String,
        unquoted: bool,
    },
    /// Until so many steps have been made.
    Pause {
        steps: u32,
    },
    /// Until then, or a step.
    Wait {
        text: String,
    },
    Label,
    Goto {
        label: Label,
        condition: String,
    },
    Return {
        text: String,
        unquoted: bool,
    },
    Error {
        text: String,
        unquoted: bool,
    },
    /// Over, until it is started anew.
    End,
    /// Over; a signal script does not listen any more.
    Exit,
    /// The router stops.
    Stop,
}

/// Instructions, and where their labels are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Program {
    pub(super) instructions: Vec<Instruction>,
    labels: Vec<(String, usize)>,
}

fn number<T: Arg>(text: &str) -> Option<T> {
    T::parse(text, &ArgCx { elements: &NoElements, names: &NameDb::default(), element: "" }).ok()
}

impl Program {
    /// Compiles instructions, one an argument; or says all that is wrong.
    pub(super) fn compile(args: &[String], is_driver: bool) -> Result<Self, Vec<String>> {
        let (mut program, mut errors) = (Self::default(), Vec::new());
        let mut jumps = Vec::new();
        for arg in args {
            let (word, rest) = first_word(arg);
            if word.is_empty() {
                continue;
            }
            match word {
                "label" if !rest.is_empty() && first_word(rest).1.is_empty() => {
                    program.labels.push((rest.to_owned(), program.instructions.len()));
                }
                "goto" if !rest.is_empty() => jumps.push((first_word(rest).0.to_owned(), program.instructions.len())),
                _ => {}
            }
            match instruction(word, rest) {
                Some(instruction) => program.instructions.push(instruction),
                None => errors.push(format!("syntax error at '{word}'")),
            }
        }
        for (name, at) in jumps {
            let found = program.find(&name);
            match (&mut program.instructions.get_mut(at), found) {
                (Some(Instruction::Goto { label, .. }), Some(found)) => *label = found,
                _ => errors.push(format!("no such label '{name}'")),
            }
        }
        if program.instructions.is_empty() && is_driver {
            program.instructions.push(Instruction::Pause { steps: 1 });
        }
        program.instructions.push(if is_driver { Instruction::Stop } else { Instruction::End });
        if errors.is_empty() { Ok(program) } else { Err(errors) }
    }

    /// Where a label leads.
    pub(super) fn find(&self, name: &str) -> Option<Label> {
        if let Some((_, at)) = self.labels.iter().find(|(other, _)| other == name) {
            return Some(Label::At(*at));
        }
        match name {
            "begin" | "loop" => Some(Label::At(0)),
            "stop" => Some(Label::Stop),
            "exit" => Some(Label::Exit),
            "end" => Some(Label::End),
            "error" | "errorq" => Some(Label::Error),
            _ => None,
        }
    }
}

fn instruction(word: &str, rest: &str) -> Option<Instruction> {
    let text = rest.to_owned();
    let variable = |needs_text: bool| {
        let (name, text) = first_word(rest);
        let is_whole = !name.is_empty() && (!needs_text || !text.is_empty());
        is_whole.then(|| (name.to_owned(), text.to_owned()))
    };
    let bare = |instruction| rest.is_empty().then_some(instruction);
    match word {
        "set" | "setq" => variable(true).map(|(name, text)| Instruction::Set { name, text, unquoted: word == "setq" }),
        "init" | "initq" | "export" | "exportq" => variable(false).map(|(name, text)| Instruction::Init {
            name,
            text,
            unquoted: word.ends_with('q'),
            exported: word.starts_with("export"),
        }),
        // What `print` was called for files: the handler, its argument and a file.
        "save" | "append" => variable(false).map(|_| {
            let words = split_words(rest);
            let (handler, file) = match words.split_last() {
                Some((file, handler @ [_, ..])) => (handler.join(" "), file.as_str()),
                _ => (rest.to_owned(), "-"),
            };
            let arrow = if word == "save" { ">" } else { ">>" };
            Instruction::Print { text: format!("{arrow}{file} {handler}"), newline: true, unquoted: false }
        }),
        "print" | "printn" | "printq" | "printnq" => {
            let newline = !word.starts_with("printn");
            Some(Instruction::Print { text, newline, unquoted: word.ends_with('q') })
        }
        "read" | "readq" => Some(Instruction::Read { text, unquoted: word == "readq" }),
        "write" | "writeq" => Some(Instruction::Write { text, unquoted: word == "writeq" }),
        "wait" | "pause" | "wait_step" | "wait_stop" if rest.is_empty() => Some(Instruction::Pause { steps: 1 }),
        "wait" | "wait_for" | "wait_time" => {
            let is_time = rest.contains('$') || number::<Interval>(rest).is_some();
            is_time.then_some(Instruction::Wait { text })
        }
        "pause" | "wait_step" | "wait_stop" => number(rest).map(|steps| Instruction::Pause { steps }),
        "label" => (!rest.is_empty() && first_word(rest).1.is_empty()).then_some(Instruction::Label),
        // Without a label, to the beginning.
        "goto" => Some(Instruction::Goto { label: Label::At(0), condition: first_word(rest).1.to_owned() }),
        "loop" => bare(Instruction::Goto { label: Label::At(0), condition: String::new() }),
        "return" | "returnq" => Some(Instruction::Return { text, unquoted: word == "returnq" }),
        "error" | "errorq" => Some(Instruction::Error { text, unquoted: word == "errorq" }),
        "end" => bare(Instruction::End),
        "exit" => bare(Instruction::Exit),
        "stop" => bare(Instruction::Stop),
        _ => None,
    }
}
