//! Errors of configurations: many of them, each with the place that it is about.
//!
//! A configuration that is wrong is reported whole, not up to its first error, so errors are collected in a [`Log`]. Form
//! and words are Click's, since scripts look for them:
//!
//! ```text
//! router.click:3: While configuring 'c :: Counter':
//!   COUNT_CALL: syntax error
//! router.click:7: 'Discard@4' has no output 0
//! ```

use std::fmt;
use std::sync::Arc;

/// The system's words for an error, without the number that Rust appends.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text).to_owned()
}

/// A place in a configuration, such as `router.click:3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Landmark {
    file: Arc<str>,
    line: u32,
}

impl Landmark {
    /// Line `line` (from 1) of `file`; `config` is the name of what was given on a command line. Line 0: the file as such.
    pub fn new(file: impl Into<Arc<str>>, line: u32) -> Self {
        Self { file: file.into(), line }
    }

    /// The file's name.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1; 0 where there is none.
    pub fn line(&self) -> u32 {
        self.line
    }
}

impl fmt::Display for Landmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.is_empty(), self.line) {
            (true, 0) => Ok(()),
            (false, 0) => f.write_str(&self.file),
            (_, line) => write!(f, "{}:{line}", self.file),
        }
    }
}

/// How serious a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Said for information.
    Message,
    /// What is probably not meant.
    Warning,
    /// What keeps a configuration from running.
    Error,
}

/// A message, with the place that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// How serious it is.
    pub level: Level,
    /// What it is about; nothing where that is nothing in a file.
    pub landmark: Landmark,
    /// The line before all messages of one context, such as `While configuring 'c :: Counter':`.
    pub context: Option<Arc<str>>,
    /// What is wrong, in a line, without a full stop.
    pub text: String,
}

/// Messages in the order in which they came.
#[derive(Debug, Default)]
pub struct Log {
    entries: Vec<Entry>,
    context: Option<(Landmark, Arc<str>)>,
    errors: usize,
}

impl Log {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An error about a place.
    pub fn error(&mut self, landmark: &Landmark, text: impl fmt::Display) {
        self.add(Level::Error, landmark, text);
    }

    /// A warning about a place.
    pub fn warning(&mut self, landmark: &Landmark, text: impl fmt::Display) {
        self.add(Level::Warning, landmark, text);
    }

    /// A message about a place.
    pub fn message(&mut self, landmark: &Landmark, text: impl fmt::Display) {
        self.add(Level::Message, landmark, text);
    }

    /// Runs `work`, whose messages stand under the line `context`, which is about `landmark`, as theirs are.
    pub fn within<R>(
        &mut self,
        landmark: &Landmark,
        context: impl fmt::Display,
        work: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let outer = self.context.replace((landmark.clone(), context.to_string().into()));
        let result = work(self);
        self.context = outer;
        result
    }

    /// An error about what the context is about.
    pub fn error_here(&mut self, text: impl fmt::Display) {
        self.add(Level::Error, &Landmark::default(), text);
    }

    /// A warning about what the context is about.
    pub fn warning_here(&mut self, text: impl fmt::Display) {
        self.add(Level::Warning, &Landmark::default(), text);
    }

    fn add(&mut self, level: Level, landmark: &Landmark, text: impl fmt::Display) {
        self.errors += usize::from(level == Level::Error);
        let (landmark, context) = match &self.context {
            Some((at, context)) => (at.clone(), Some(Arc::clone(context))),
            None => (landmark.clone(), None),
        };
        self.entries.push(Entry { level, landmark, context, text: text.to_string() });
    }

    /// How many errors there are.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// All messages.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes all messages out.
    pub fn take(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }
}

impl FromIterator<Entry> for Log {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let entries: Vec<_> = entries.into_iter().collect();
        let errors = entries.iter().filter(|entry| entry.level == Level::Error).count();
        Self { entries, context: None, errors }
    }
}

impl fmt::Display for Log {
    /// All messages, a line each, as they go to standard error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut context: Option<&Arc<str>> = None;
        for entry in &self.entries {
            let place = match entry.landmark.to_string() {
                text if text.is_empty() => text,
                text => text + ": ",
            };
            if let Some(line) = &entry.context
                && !context.is_some_and(|last| Arc::ptr_eq(last, line))
            {
                writeln!(f, "{place}{line}")?;
            }
            context = entry.context.as_ref();
            // The place stands in the context's line alone.
            let (place, indent) = if context.is_some() { ("", "  ") } else { (place.as_str(), "") };
            let warning = if entry.level == Level::Warning { "warning: " } else { "" };
            for line in entry.text.lines() {
                writeln!(f, "{place}{indent}{warning}{line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_context_stand_below_its_line() {
        let mut log = Log::new();
        let at = Landmark::new("a.click", 3);
        log.within(&at, "While configuring 'c :: Counter':", |log| {
            log.error_here("one");
            log.warning_here("two");
        });
        log.error(&Landmark::new("a.click", 7), "'Discard@4' has no output 0");
        log.error(&Landmark::default(), "three");
        assert_eq!(log.errors(), 3);
        let expected = "a.click:3: While configuring 'c :: Counter':\n  one\n  warning: two\n\
                        a.click:7: 'Discard@4' has no output 0\nthree\n";
        assert_eq!(log.to_string(), expected);
    }
}
