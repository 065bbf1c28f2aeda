//! Where configurations come from: a file, standard input, an expression; and the libraries that they require.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::archive;
use crate::error::reason;
use crate::lang::{self, ClassInfo, FileVariables, Globals, Graph, Library, Program};
use crate::{Landmark, Log};

/// A configuration on a command line, and what goes with it.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The file's name or the expression; nothing for standard input.
    text: Option<(String, bool)>,
    pub(super) globals: Globals,
    /// Where libraries are looked for.
    pub(super) path: ClickPath,
}

impl Source {
    /// Takes a file's name, or an expression. An error where there is one.
    pub(super) fn set(&mut self, text: &str, is_expression: bool) -> Result<(), String> {
        if self.text.is_some() {
            return Err("router configuration specified twice".into());
        }
        self.text = Some((text.to_string(), is_expression));
        Ok(())
    }

    /// Takes a word that is no option: `NAME=VALUE`, or a file's name.
    pub(super) fn set_word(&mut self, word: &str) -> Result<(), String> {
        match definition(word) {
            Some((name, _)) if self.globals.values().iter().any(|(known, _)| known == name) => {
                Err(format!("parameter '{name}' multiply defined"))
            }
            Some((name, value)) => {
                self.globals.define(name, value);
                Ok(())
            }
            None => self.set(word, false),
        }
    }

    /// Whether a file or an expression has been given.
    pub(super) fn is_set(&self) -> bool {
        self.text.is_some()
    }

    /// What it is called in messages.
    pub(super) fn name(&self) -> &str {
        match &self.text {
            Some((_, true)) => "config",
            Some((name, false)) if name != "-" => name,
            _ => "<stdin>",
        }
    }

    /// The text; nothing where it cannot be read, which is reported.
    pub(super) fn read(&self, log: &mut Log) -> Option<String> {
        let bytes = match &self.text {
            Some((text, true)) => return Some(text.clone()),
            Some((name, false)) if name != "-" => std::fs::read(name),
            _ => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
            }
        };
        match bytes {
            Ok(bytes) => match archive::config(&bytes) {
                Ok(text) => Some(String::from_utf8_lossy(text).into_owned()),
                Err(error) => {
                    log.error(&Landmark::default(), format_args!("{}: {error}", self.name()));
                    None
                }
            },
            Err(error) => {
                log.error(&Landmark::default(), format_args!("{}: {}", self.name(), reason(&error)));
                None
            }
        }
    }

    /// What it says as a program, where any class is taken.
    pub(super) fn program(&self, log: &mut Log) -> Option<Program> {
        let text = self.read(log)?;
        self.program_of(&text, log)
    }

    /// What it says as a flat graph, where any class is taken.
    pub(super) fn graph(&self, variables: FileVariables, log: &mut Log) -> Option<Graph> {
        let text = self.read(log)?;
        self.graph_of(&text, variables, log)
    }

    fn program_of(&self, text: &str, log: &mut Log) -> Option<Program> {
        let before = log.errors();
        let classes = WithLibraries { classes: &lang::AnyClass, path: &self.path };
        let program = lang::resolve(&lang::parse_syntax(text, self.name()), &classes, log);
        (log.errors() == before).then_some(program)
    }

    /// The same of a text that has been read.
    pub(super) fn graph_of(&self, text: &str, variables: FileVariables, log: &mut Log) -> Option<Graph> {
        let program = self.program_of(text, log)?;
        let before = log.errors();
        let graph = lang::flatten(&program, self.globals.values(), variables, log);
        (log.errors() == before).then_some(graph)
    }
}

/// Name and value of `NAME=VALUE`.
pub(super) fn definition(word: &str) -> Option<(&str, &str)> {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    word.split_once('=').filter(|(name, _)| is_name(name))
}

/// Directories in which Click's files are looked for.
#[derive(Debug, Clone)]
pub(super) struct ClickPath(Vec<PathBuf>);

impl Default for ClickPath {
    /// That of the environment's `CLICKPATH`.
    fn default() -> Self {
        Self::new(&std::env::var("CLICKPATH").unwrap_or_default())
    }
}

impl ClickPath {
    /// Directories with colons between them.
    pub(super) fn new(text: &str) -> Self {
        Self(text.split(':').filter(|dir| !dir.is_empty()).map(PathBuf::from).collect())
    }

    /// A file in one of the directories: beside the file that asks, in a folder `folder` of a directory, or in the directory.
    fn find(&self, name: &str, folder: &str, beside: &Path) -> Option<PathBuf> {
        let dirs = self.0.iter().flat_map(|dir| [dir.join(folder), dir.clone()]);
        std::iter::once(beside.to_path_buf()).chain(dirs).map(|dir| dir.join(name)).find(|file| file.is_file())
    }
}

/// Classes, and libraries of the file system.
pub(super) struct WithLibraries<'a> {
    pub(super) classes: &'a dyn ClassInfo,
    pub(super) path: &'a ClickPath,
}

impl ClassInfo for WithLibraries<'_> {
    fn has_class(&self, name: &str) -> bool {
        self.classes.has_class(name)
    }

    fn takes_any_class(&self) -> bool {
        self.classes.takes_any_class()
    }

    fn library(&self, name: &str, file: &str) -> Option<Library> {
        let beside = Path::new(file).parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let found = self.path.find(name, "conf", beside)?;
        let text = String::from_utf8_lossy(&std::fs::read(&found).ok()?).into_owned();
        Some(Library { file: found.to_string_lossy().into_owned(), text })
    }
}
