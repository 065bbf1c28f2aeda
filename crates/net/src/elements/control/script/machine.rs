//! A script that runs.

use super::program::{Instruction, Label, Program};
use crate::Timestamp;
use crate::args::{Arg, Interval};
use crate::error::reason;
use crate::lang::config::{first_word, split_words, unquote};
use crate::lang::expand::{Form, Variables, expand, expand_quoting};
use crate::router::Cx;
use std::cell::RefCell;
use std::io::Write;
use std::sync::{Mutex, MutexGuard};

/// Jumps without a pause after which a script is taken to run in a circle.
const MOST_JUMPS: u32 = 1000;
/// What `$?` is after a handler that failed.
const FAILED: i32 = -22;

/// Why a script goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Somebody made so many steps.
    Times(u32),
    /// Its time has come.
    Timer,
    /// The router has stopped.
    Router,
    /// It was started, or sent to a label.
    Jump,
}

#[derive(Debug, Default)]
struct State {
    /// The instruction that comes next.
    at: usize,
    /// Steps that a pause has had.
    paused: u32,
    /// Whether the script has begun; the step by which it begins moves past nothing.
    has_begun: bool,
    is_running: bool,
    /// Steps that were made while it ran.
    more: u32,
    /// How often `at` was changed by somebody else while it ran.
    jumps: u32,
    variables: Vec<(String, String)>,
    /// The handler that started it, its arguments, and whether it was written.
    called: String,
    args: String,
    is_write: bool,
    status: i32,
    /// Whether it was said since it went on that what follows is about this script.
    has_complained: bool,
}

/// The handler by which a script is started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) args: &'a str,
    pub(super) is_write: bool,
}

impl Call<'_> {
    /// Not by a handler.
    pub(super) const NONE: Self = Self { name: "", args: "", is_write: false };
}

/// A program and where it is. Nobody holds its state while an instruction calls a handler: that may come back here.
#[derive(Debug, Default)]
pub(super) struct Machine {
    program: Program,
    state: Mutex<State>,
}

/// How a script begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    Runs,
    Waits,
    Pauses,
}

/// What became of an instruction.
enum Done {
    Next,
    Jumped,
    /// Nothing more now: it waits, or is over.
    Rests,
    /// The same, and the router goes on to stop.
    Stops,
}

impl Machine {
    pub(super) fn new(program: Program) -> Self {
        Self { program, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in it")
    }

    fn current(&self) -> Option<Instruction> {
        self.program.instructions.get(self.state().at).cloned()
    }

    /// Gives variables their first values.
    pub(super) fn begin(&self, cx: &mut Cx<'_>) {
        for instruction in &self.program.instructions {
            if let Instruction::Init { name, text, unquoted, .. } = instruction {
                let value = self.text(cx, text, *unquoted);
                self.set(name, value);
            }
        }
        self.state().has_begun = self.beginning() != Beginning::Runs;
    }

    /// How it begins.
    pub(super) fn beginning(&self) -> Beginning {
        match self.program.instructions.first() {
            Some(Instruction::Wait { .. }) => Beginning::Waits,
            Some(Instruction::Pause { .. }) => Beginning::Pauses,
            _ => Beginning::Runs,
        }
    }

    /// How long it waits where it is; nothing: it does not.
    pub(super) fn wait(&self, cx: &mut Cx<'_>) -> Result<Timestamp, String> {
        let Some(Instruction::Wait { text }) = self.current() else { return Ok(Timestamp::ZERO) };
        self.interval(cx, &text)
    }

    fn interval(&self, cx: &mut Cx<'_>, text: &str) -> Result<Timestamp, String> {
        let text = self.text(cx, text, false);
        let time = cx.parse::<Interval>(text.trim());
        time.map(|time| time.0).map_err(|_| "syntax error at 'wait'".to_owned())
    }

    /// Whether it waits for something.
    pub(super) fn is_waiting(&self) -> bool {
        let is_at_begin = self.state().at == 0;
        !is_at_begin && matches!(self.current(), Some(Instruction::Wait { .. } | Instruction::Pause { .. }))
    }

    /// Whether it has ended by `exit`.
    pub(super) fn ends_for_good(&self) -> bool {
        matches!(self.current(), Some(Instruction::Exit | Instruction::Goto { label: Label::Exit, .. }))
    }

    pub(super) fn set(&self, name: &str, value: String) {
        let variables = &mut self.state().variables;
        match variables.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => variables.push((name.to_owned(), value)),
        }
    }

    /// Starts from the beginning; the value that it returns.
    pub(super) fn run(&self, cx: &mut Cx<'_>, call: Call<'_>) -> Result<String, String> {
        {
            let mut state = self.state();
            call.name.clone_into(&mut state.called);
            call.args.clone_into(&mut state.args);
            state.is_write = call.is_write;
            (state.at, state.paused, state.has_begun) = (0, 0, true);
            state.jumps += 1;
        }
        self.set("_", String::new());
        self.step(cx, Step::Jump)?;
        let returns = matches!(self.current(), Some(Instruction::Return { .. }));
        let value = self.state().variables.iter().find(|(name, _)| name == "_").map(|(_, value)| value.clone());
        Ok(value.filter(|_| returns).unwrap_or_default())
    }

    /// Runs for a packet that came to an input; the output that it goes to, or nothing: it is dropped.
    pub(super) fn run_packet(&self, cx: &mut Cx<'_>, input: usize) -> Option<usize> {
        self.set("input", input.to_string());
        if let Err(error) = self.run(cx, Call::NONE) {
            self.complain(cx, &error);
        }
        match self.current() {
            Some(Instruction::Return { .. }) => self.variable("_")?.trim().parse().ok(),
            Some(Instruction::End | Instruction::Goto { label: Label::End, .. }) => Some(0),
            _ => None,
        }
    }

    /// Names of variables that have handlers.
    pub(super) fn exported(&self) -> impl Iterator<Item = &str> {
        self.program.instructions.iter().filter_map(|instruction| match instruction {
            Instruction::Init { name, exported: true, .. } => Some(name.as_str()),
            _ => None,
        })
    }

    /// The value of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.state().variables.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    }

    /// The value of the variable that a handler names, or of the arguments.
    pub(super) fn get(&self, text: &str) -> Result<String, String> {
        let (name, rest) = first_word(text.trim());
        if name.is_empty() {
            return Err("no variable".to_owned());
        }
        if !rest.is_empty() {
            return Err("too many arguments".to_owned());
        }
        let value = if name == "args" { Some(self.state().args.clone()) } else { self.variable(name) };
        value.ok_or_else(|| format!("undefined variable '{name}'"))
    }

    /// Gives the variable a value that a handler names, or the arguments.
    pub(super) fn put(&self, text: &str) -> Result<(), String> {
        match first_word(text.trim()) {
            ("", _) => return Err("no variable".to_owned()),
            ("args", value) => value.clone_into(&mut self.state().args),
            (name, value) => self.set(name, value.to_owned()),
        }
        Ok(())
    }

    /// Takes the first word off a variable, or off the arguments.
    pub(super) fn shift(&self, text: &str) -> Result<String, String> {
        let name = if text.trim().is_empty() { "args" } else { text.trim() };
        let value = self.get(name)?;
        let (word, rest) = first_word(&value);
        self.put(&format!("{name} {rest}"))?;
        Ok(word.to_owned())
    }

    /// Goes on at a label.
    pub(super) fn goto(&self, cx: &mut Cx<'_>, label: &str) -> Result<(), String> {
        let Some(Label::At(at)) = self.program.find(label) else { return Err("jump to nonexistent label".to_owned()) };
        {
            let mut state = self.state();
            (state.at, state.paused, state.has_begun) = (at, 0, true);
            state.jumps += 1;
            state.args.clear();
        }
        self.step(cx, Step::Jump)
    }

    /// Goes on. An error is what an `error` instruction says; others are said where they happen.
    pub(super) fn step(&self, cx: &mut Cx<'_>, step: Step) -> Result<(), String> {
        let mut budget = match step {
            Step::Times(times) => times,
            Step::Timer | Step::Router => 1,
            Step::Jump => 0,
        };
        {
            let mut state = self.state();
            if state.is_running {
                state.more += budget;
                return Ok(());
            }
            (state.is_running, state.has_complained) = (true, false);
            if !std::mem::replace(&mut state.has_begun, true) {
                budget = budget.saturating_sub(1);
            }
        }
        let (mut jumps, mut result) = (0, Ok(()));
        let stops = loop {
            match self.execute(cx, step, &mut budget, &mut result) {
                Done::Next => {}
                Done::Jumped => jumps += 1,
                Done::Stops => break true,
                Done::Rests => {
                    let more = std::mem::take(&mut self.state().more);
                    if more == 0 {
                        break false;
                    }
                    budget += more;
                }
            }
            if jumps >= MOST_JUMPS {
                cx.say(format_args!("{}: too many jumps, giving up", cx.declaration()));
                self.state().at = self.program.instructions.len();
                cx.timer_cancel(0);
                break false;
            }
        };
        self.state().is_running = false;
        if step == Step::Router && !stops {
            cx.router().adjust_runcount(1);
        }
        result
    }

    fn execute(&self, cx: &mut Cx<'_>, step: Step, budget: &mut u32, result: &mut Result<(), String>) -> Done {
        let (at, before) = {
            let state = self.state();
            (state.at, state.jumps)
        };
        let Some(instruction) = self.program.instructions.get(at) else { return Done::Rests };
        match instruction {
            Instruction::Pause { steps } => {
                let mut state = self.state();
                let made = (*budget).min(steps.saturating_sub(state.paused));
                state.paused += made;
                *budget -= made;
                if state.paused < *steps {
                    return Done::Rests;
                }
                state.paused = 0;
            }
            Instruction::Wait { text } => {
                if *budget == 0 {
                    match self.interval(cx, text) {
                        Ok(time) => cx.timer_after(0, time),
                        Err(error) => self.complain(cx, &error),
                    }
                    return Done::Rests;
                }
                *budget -= 1;
                cx.timer_cancel(0);
            }
            Instruction::Goto { label, condition } => match self.goes(cx, condition) {
                Ok(false) => {}
                Ok(true) => return self.jump(cx, *label, step, result),
                Err(error) => self.complain(cx, &error),
            },
            Instruction::End | Instruction::Exit => return ends(step),
            Instruction::Error { text, unquoted } => {
                let text = self.text(cx, text, *unquoted);
                *result = Err(text);
                return ends(step);
            }
            Instruction::Stop => return stop(cx, step),
            Instruction::Return { text, unquoted } => {
                let value = self.text(cx, text, *unquoted);
                self.set("_", value);
                return ends(step);
            }
            _ => self.act(cx, instruction),
        }
        let mut state = self.state();
        // A handler that it called may have sent it elsewhere.
        if state.jumps != before {
            return Done::Jumped;
        }
        state.at += 1;
        Done::Next
    }

    /// Instructions that call handlers, and print.
    fn act(&self, cx: &mut Cx<'_>, instruction: &Instruction) {
        let done = match instruction {
            Instruction::Set { name, text, unquoted } => {
                let value = self.text(cx, text, *unquoted);
                self.set(name, value);
                Ok(())
            }
            Instruction::Print { text, newline, unquoted } => self.print(cx, text, *newline, *unquoted),
            Instruction::Read { text, unquoted } => self.read(cx, text, *unquoted),
            Instruction::Write { text, unquoted } => {
                let text = self.text(cx, text, false);
                let (name, value) = first_word(&text);
                cx.take_warnings();
                let done =
                    if *unquoted { cx.write_handler(name, &unquote(value)) } else { cx.write_handler(name, value) };
                cx.take_warnings().iter().for_each(|warning| self.complain(cx, warning));
                self.state().status = if done.is_ok() { 0 } else { FAILED };
                done
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            self.complain(cx, &error);
        }
    }

    /// Says what is wrong; the first time since the script went on, whose fault it is.
    fn complain(&self, cx: &Cx<'_>, error: &str) {
        let error = error.replace('\n', "\n  ");
        if std::mem::replace(&mut self.state().has_complained, true) {
            cx.say(format_args!("  {error}"));
        } else {
            cx.say(format_args!("While executing '{}':\n  {error}", cx.declaration()));
        }
    }

    fn text(&self, cx: &mut Cx<'_>, text: &str, unquoted: bool) -> String {
        let text = expand(text, &Values { machine: self, cx: RefCell::new(cx) });
        if unquoted { unquote(&text) } else { text }
    }

    fn goes(&self, cx: &mut Cx<'_>, condition: &str) -> Result<bool, String> {
        let text = self.text(cx, condition, false);
        if text.trim().is_empty() {
            return Ok(true);
        }
        bool::parse(&text, &cx.arg_cx()).map_err(|_| format!("bad condition '{text}'"))
    }

    fn jump(&self, cx: &mut Cx<'_>, label: Label, step: Step, result: &mut Result<(), String>) -> Done {
        match label {
            Label::At(at) => {
                let mut state = self.state();
                (state.at, state.paused) = (at, 0);
                Done::Jumped
            }
            Label::Exit | Label::End => ends(step),
            Label::Stop => stop(cx, step),
            Label::Error => {
                *result = Err(String::new());
                ends(step)
            }
        }
    }

    fn print(&self, cx: &mut Cx<'_>, text: &str, newline: bool, unquoted: bool) -> Result<(), String> {
        let (file, text) = match text.strip_prefix('>') {
            None => (None, text),
            Some(rest) => {
                let (append, rest) = rest.strip_prefix('>').map_or((false, rest), |rest| (true, rest));
                let (name, text) = first_word(rest);
                (Some((append, unquote(name))), text)
            }
        };
        let is_handler = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '@' || c == '_');
        let mut value = if is_handler {
            let text = self.text(cx, text, false);
            let (name, argument) = first_word(&text);
            if unquoted { cx.read_handler(name, &unquote(argument))? } else { cx.read_handler(name, argument)? }
        } else {
            unquote(&expand_quoting(text, &Values { machine: self, cx: RefCell::new(cx) }))
        };
        if newline && !value.ends_with('\n') {
            value.push('\n');
        }
        match file.filter(|(_, name)| name != "-") {
            None => cx.print(&value),
            Some((append, name)) => {
                let open =
                    std::fs::File::options().write(true).create(true).append(append).truncate(!append).open(&name);
                open.and_then(|mut file| file.write_all(value.as_bytes()))
                    .map_err(|error| format!("{name}: {}", reason(&error)))?;
            }
        }
        Ok(())
    }

    fn read(&self, cx: &mut Cx<'_>, text: &str, unquoted: bool) -> Result<(), String> {
        let text = self.text(cx, text, false);
        let (name, argument) = first_word(&text);
        let (name, argument) =
            if unquoted { (unquote(name), unquote(argument)) } else { (name.to_owned(), argument.to_owned()) };
        let value = cx.read_handler(&name, &argument)?;
        let is_own = cx.router().handlers(cx.id()).is_some_and(|handlers| handlers.get(&name).is_some());
        let owner = if is_own { format!("{}.", cx.name()) } else { String::new() };
        cx.say(format_args!("{owner}{name}:\n{value}\n"));
        Ok(())
    }
}

/// The script is over, and the router stops.
fn stop(cx: &mut Cx<'_>, step: Step) -> Done {
    if step != Step::Router {
        cx.stop_driver();
    }
    Done::Stops
}

/// A script that is over lets the router stop.
fn ends(step: Step) -> Done {
    if step == Step::Router { Done::Stops } else { Done::Rests }
}

/// What stands for variables in a script's texts.
struct Values<'a, 'b, 'c> {
    machine: &'a Machine,
    cx: RefCell<&'b mut Cx<'c>>,
}

impl Variables for Values<'_, '_, '_> {
    fn value(&self, text: &str, form: Form, _: usize) -> Option<String> {
        let state = self.machine.state();
        if let Some((_, value)) = state.variables.iter().find(|(name, _)| name == text) {
            return Some(value.clone());
        }
        let words = || split_words(&state.args);
        let value = match text {
            "?" => Some(state.status.to_string()),
            "args" => Some(state.args.clone()),
            "$" => Some(std::process::id().to_string()),
            "0" => Some(state.called.clone()),
            "write" => Some(state.is_write.to_string()),
            "#" => Some(words().len().to_string()),
            number => {
                number.parse::<usize>().ok().filter(|n| *n > 0).map(|n| words().get(n - 1).cloned().unwrap_or_default())
            }
        };
        if value.is_some() || form != Form::Parentheses {
            return value;
        }
        drop(state);
        let cx = &mut **self.cx.borrow_mut();
        let (name, argument) = first_word(text);
        match cx.read_handler(name, argument) {
            Ok(value) => Some(value),
            Err(error) => {
                self.machine.complain(cx, &error);
                None
            }
        }
    }
}
