//! What Click's tools have in common: options for the configuration and the output, `--help`, `--version`, exit codes.

use std::io::Write;

use super::options::{self, Given, Known, Value};
use super::source::{ClickPath, Source, definition};
use crate::error::reason;
use crate::{Landmark, Level, Log};

/// Options of every tool, and those of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning<T> {
    File,
    Expression,
    Output,
    ClickPath,
    Help,
    Version,
    Own(T),
}

/// A tool.
pub(super) struct Tool<T: 'static> {
    /// Its name, such as `click-flatten`.
    pub(super) name: &'static str,
    /// What `--help` says, without usage and options of every tool.
    pub(super) about: &'static str,
    /// Its own options, for `--help`.
    pub(super) help: &'static str,
    pub(super) options: &'static [Known<T>],
}

/// What stands on a tool's command line.
#[derive(Debug)]
pub(super) struct Line<T> {
    pub(super) source: Source,
    output: Option<String>,
    pub(super) own: Vec<Given<T>>,
    /// Words after the first that names the configuration.
    pub(super) words: Vec<String>,
}

impl<T: Copy + PartialEq> Tool<T> {
    /// Reads the command line and runs the tool. Returns the exit code.
    ///
    /// Words behind the first file's name are an error, unless the tool takes `more` of them.
    pub(super) fn run(
        &self,
        args: &[String],
        more: bool,
        work: impl FnOnce(&Line<T>, &mut Log) -> Option<String>,
    ) -> i32 {
        let line = match self.read(args, more) {
            Ok(Some(line)) => line,
            Ok(None) => return 0,
            Err(error) => {
                eprintln!("{}: {error}", self.name);
                eprintln!("Usage: {0} [OPTION]... [ROUTERFILE]\nTry '{0} --help' for more information.", self.name);
                return 1;
            }
        };
        let mut log = Log::new();
        let text = work(&line, &mut log).filter(|_| log.errors() == 0);
        if let Some(text) = text {
            write_output(line.output.as_deref(), &text, &mut log);
        }
        report(&mut log, true);
        i32::from(log.errors() > 0)
    }

    pub(super) fn read(&self, args: &[String], more: bool) -> Result<Option<Line<T>>, String> {
        let mut known = common();
        known.extend(self.options.iter().map(|option| Known {
            long: option.long,
            short: option.short,
            meaning: Meaning::Own(option.meaning),
            value: option.value,
        }));
        let mut line = Line { source: Source::default(), output: None, own: Vec::new(), words: Vec::new() };
        for given in options::parse(args, &known)? {
            match given {
                Given::Option(Meaning::Help, _) => {
                    print(&self.help_text());
                    return Ok(None);
                }
                Given::Option(Meaning::Version, _) => {
                    print(&version(self.name));
                    return Ok(None);
                }
                Given::Option(meaning @ (Meaning::File | Meaning::Expression), value) => {
                    line.source.set(&value, meaning == Meaning::Expression)?;
                }
                Given::Option(Meaning::Output, _) if line.output.is_some() => {
                    return Err("output file specified twice".into());
                }
                Given::Option(Meaning::Output, value) => line.output = Some(value),
                Given::Option(Meaning::ClickPath, value) => line.source.path = ClickPath::new(&value),
                Given::Option(Meaning::Own(meaning), value) => line.own.push(Given::Option(meaning, value)),
                Given::Negated(Meaning::Own(meaning)) => line.own.push(Given::Negated(meaning)),
                Given::Negated(_) => {}
                Given::Word(word) if more && line.source.is_set() && definition(&word).is_none() => {
                    line.words.push(word);
                }
                Given::Word(word) => line.source.set_word(&word)?,
            }
        }
        Ok(Some(line))
    }

    fn help_text(&self) -> String {
        format!(
            "{}\n\nUsage: {} [OPTION]... [ROUTERFILE]\n\nOptions:\n{}\
  -f, --file FILE               Read router configuration from FILE.
  -e, --expression EXPR         Use EXPR as router configuration.
  -o, --output FILE             Write output to FILE.
  -C, --clickpath PATH          Use PATH for CLICKPATH.
      --help                    Print this message and exit.
  -v, --version                 Print version number and exit.\n",
            self.about, self.name, self.help
        )
    }
}

impl<T> Line<T> {
    /// Whether an option of the tool's own was given, and not negated after.
    pub(super) fn has(&self, wanted: &T) -> bool
    where
        T: PartialEq,
    {
        let last = self.own.iter().rev().find_map(|given| match given {
            Given::Option(meaning, _) if meaning == wanted => Some(true),
            Given::Negated(meaning) if meaning == wanted => Some(false),
            _ => None,
        });
        last.unwrap_or(false)
    }

    /// The values of an option of the tool's own.
    pub(super) fn values<'a>(&'a self, wanted: &'a T) -> impl Iterator<Item = &'a str>
    where
        T: PartialEq,
    {
        self.own.iter().filter_map(move |given| match given {
            Given::Option(meaning, value) if meaning == wanted => Some(value.as_str()),
            _ => None,
        })
    }
}

fn common<T>() -> Vec<Known<Meaning<T>>> {
    let known = |long, short, meaning, value| Known { long, short, meaning, value };
    vec![
        known("file", Some('f'), Meaning::File, Value::Needed),
        known("expression", Some('e'), Meaning::Expression, Value::Needed),
        known("output", Some('o'), Meaning::Output, Value::Needed),
        known("clickpath", Some('C'), Meaning::ClickPath, Value::Needed),
        known("help", None, Meaning::Help, Value::No),
        known("version", Some('v'), Meaning::Version, Value::No),
    ]
}

/// What `--version` says.
pub(super) fn version(name: &str) -> String {
    format!("{name} (Bifolio) {}\n", env!("CARGO_PKG_VERSION"))
}

/// Prints to standard output. Nobody who reads: nothing to be done.
pub(super) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes to a file, or to standard output where its name is missing or `-`.
pub(super) fn write_output(name: Option<&str>, text: &str, log: &mut Log) {
    match name {
        None | Some("-") => print(text),
        Some(name) => {
            if let Err(error) = std::fs::write(name, text) {
                log.error(&Landmark::default(), format_args!("{name}: {}", reason(&error)));
            }
        }
    }
}

/// Prints what a log holds to standard error, with or without its warnings, and takes it out.
pub(super) fn report(log: &mut Log, warnings: bool) {
    let entries = log.take().into_iter().filter(|entry| warnings || entry.level != Level::Warning);
    let shown: Log = entries.collect();
    let _ = write!(std::io::stderr().lock(), "{shown}");
}

/// What a tool writes for a command line, or what it says is wrong.
#[cfg(test)]
pub(super) fn test_run<T: Copy + PartialEq>(
    tool: &Tool<T>,
    args: &[&str],
    work: impl FnOnce(&Line<T>, &mut Log) -> Option<String>,
) -> Result<String, String> {
    let args: Vec<_> = args.iter().map(ToString::to_string).collect();
    let line = tool.read(&args, true)?.ok_or("no work")?;
    let mut log = Log::new();
    let text = work(&line, &mut log).filter(|_| log.errors() == 0);
    text.ok_or_else(|| log.to_string())
}
