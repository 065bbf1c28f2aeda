//! Which file of a crate uses which: modules, what they define and import, and the paths that their code names.
//!
//! It reads tokens, and knows what a reader knows who has no compiler: a name leads to the file that defines it, through
//! re-exports. Methods and macros by textual scope are not followed, and code for tests only is left out.

use crate::graph::Arrows;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module's path from the crate's root.
type ModulePath = Vec<String>;

/// One module: the file that it is written in, what it defines, and what it names.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Items by name; a module is not among them.
    items: BTreeSet<String>,
    /// What a name stands for here, by `use`.
    imports: BTreeMap<String, Vec<String>>,
    /// What `use path::*` names.
    globs: Vec<Vec<String>>,
    /// Every path in its code, and in the `use` lines that are for itself.
    paths: BTreeSet<Vec<String>>,
    /// What it hands on by `pub use`, which by itself is no use of it.
    handed_on: BTreeMap<String, Vec<String>>,
    /// Every word in its code.
    words: BTreeSet<String>,
}

/// A crate's modules.
pub(crate) struct Modules(BTreeMap<ModulePath, Module>);

/// Names longer than this chain of re-exports are given up: two modules may import each other's globs.
const DEPTH_MAX: usize = 16;

const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

impl Modules {
    /// Reads the crate whose root file is `root` (`src/lib.rs` or `src/main.rs`).
    pub(crate) fn read(root: &Path) -> Self {
        let mut modules = Self(BTreeMap::new());
        modules.read_file(root, &[], true);
        modules
    }

    /// How many files there are.
    pub(crate) fn files(&self) -> usize {
        self.0.values().map(|module| &module.file).collect::<BTreeSet<_>>().len()
    }

    /// Which file names something that which other file defines.
    pub(crate) fn arrows(&self) -> Arrows<PathBuf> {
        let mut arrows = Arrows::new();
        for (path, module) in &self.0 {
            let used: &mut BTreeSet<PathBuf> = arrows.entry(module.file.clone()).or_default();
            let used_here = module.handed_on.iter().filter(|(name, _)| module.words.contains(*name));
            let names = module.paths.iter().chain(used_here.map(|(_, path)| path)).cloned();
            let by_globs = module
                .globs
                .iter()
                .flat_map(|glob| module.words.iter().map(move |word| [&glob[..], std::slice::from_ref(word)].concat()));
            let found = names.chain(by_globs).filter_map(|name| self.resolve(path, &name, DEPTH_MAX));
            used.extend(found.filter(|file| **file != module.file).cloned());
        }
        arrows
    }

    /// Every identifier that its code names first in a path: crates among them.
    pub(crate) fn heads(&self) -> BTreeSet<&str> {
        let paths = self.0.values().flat_map(|module| module.paths.iter().chain(module.handed_on.values()));
        paths.filter_map(|path| Some(path.first()?.as_str())).collect()
    }

    fn read_file(&mut self, file: &Path, path: &[String], is_root: bool) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let is_mod = is_root || file.file_name().is_some_and(|name| name == "mod.rs");
        let folder = if is_mod { file.with_file_name("") } else { file.with_extension("") };
        self.read_module(tokens, file, &folder, path);
    }

    fn read_module(&mut self, tokens: TokenStream, file: &Path, folder: &Path, path: &[String]) {
        self.0.insert(path.to_vec(), Module { file: file.to_owned(), ..Module::default() });
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        let mut attributes = Vec::new();
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            if is_punct(first, '#') {
                rest = skip_bang(rest);
                if let Some((TokenTree::Group(group), after)) = rest.split_first() {
                    attributes.push(group.stream().to_string());
                    rest = after;
                }
                continue;
            }
            let (item, after) = item(std::slice::from_ref(first), rest);
            rest = after;
            let attributes = std::mem::take(&mut attributes);
            if !attributes.iter().any(|text| is_for_tests(text)) {
                self.read_item(&item, &attributes, file, folder, path);
            }
        }
    }

    fn read_item(&mut self, item: &[TokenTree], attributes: &[String], file: &Path, folder: &Path, path: &[String]) {
        let words: Vec<String> = item.iter().map(ToString::to_string).collect();
        let keyword = words.iter().position(|word| word == "use" || word == "mod" || ITEMS.contains(&word.as_str()));
        let Some(keyword) = keyword.filter(|at| !words[..*at].iter().any(|word| word == "impl")) else {
            return self.module(path).names(item);
        };
        match words[keyword].as_str() {
            "use" => {
                let mut list = Vec::new();
                use_tree(&item[keyword + 1..], &[], &mut list);
                let module = self.module(path);
                let hands_on = words[..keyword].iter().any(|word| word == "pub");
                for (name, full) in list {
                    match name {
                        Some(name) if hands_on => drop(module.handed_on.insert(name, full)),
                        Some(name) => {
                            module.paths.insert(full.clone());
                            module.imports.insert(name, full);
                        }
                        None => module.globs.push(full),
                    }
                }
            }
            "mod" => {
                let name = words[keyword + 1].clone();
                let inner = [path, std::slice::from_ref(&name)].concat();
                if let Some(TokenTree::Group(group)) = item.get(keyword + 2) {
                    self.read_module(group.stream(), file, &folder.join(&name), &inner);
                } else {
                    let named =
                        attributes.iter().find_map(|text| Some(text.strip_prefix("path = \"")?.trim_end_matches('"')));
                    let beside = folder.join(format!("{name}.rs"));
                    let file = match named {
                        Some(named) => file.with_file_name(named),
                        None if beside.exists() => beside,
                        None => folder.join(&name).join("mod.rs"),
                    };
                    self.read_file(&file, &inner, false);
                }
            }
            _ => {
                // `const _: () = ...` and `unsafe fn` alike: the name follows the keyword, for a macro after a mark.
                let name = words[keyword + 1..].iter().find(|word| *word != "!" && *word != "mut" && *word != "fn");
                let module = self.module(path);
                module.items.extend(name.cloned());
                module.names(item);
            }
        }
    }

    fn module(&mut self, path: &[String]) -> &mut Module {
        self.0.get_mut(path).expect("it was entered before its items")
    }

    /// The file that defines what `name` names inside the module at `path`.
    fn resolve(&self, path: &[String], name: &[String], depth: usize) -> Option<&PathBuf> {
        let depth = depth.checked_sub(1)?;
        let mut at = path.to_vec();
        let mut rest = name;
        let mut is_first = true;
        while let Some((segment, after)) = rest.split_first() {
            match segment.as_str() {
                "crate" if is_first => at.clear(),
                "self" if is_first => {}
                "super" => drop(at.pop()?),
                segment => {
                    let module = self.0.get(&at)?;
                    let child = [&at[..], &[segment.to_owned()]].concat();
                    if self.0.contains_key(&child) {
                        at = child;
                    } else if module.items.contains(segment) {
                        return Some(&module.file);
                    } else if let Some(import) = module.imports.get(segment).or_else(|| module.handed_on.get(segment)) {
                        if import == name && at == path {
                            return None;
                        }
                        return self.resolve(&at, &[import, after].concat(), depth);
                    } else {
                        return module.globs.iter().find_map(|glob| self.resolve(&at, &[glob, rest].concat(), depth));
                    }
                }
            }
            is_first = false;
            rest = after;
        }
        // A module itself: whoever names it uses what it holds.
        self.0.get(&at).map(|module| &module.file)
    }
}

impl Module {
    /// Notes what code names.
    fn names(&mut self, code: &[TokenTree]) {
        paths(code, &mut self.paths, &mut self.words);
    }
}

/// Whether an attribute keeps an item out of what is shipped.
fn is_for_tests(attribute: &str) -> bool {
    let text: String = attribute.chars().filter(|character| !character.is_whitespace()).collect();
    text == "test"
        || text.starts_with("cfg(") && !text.contains("not(") && (text.contains("test") || text.contains("fuzzing"))
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn skip_bang(tokens: &[TokenTree]) -> &[TokenTree] {
    match tokens.split_first() {
        Some((first, rest)) if is_punct(first, '!') => rest,
        _ => tokens,
    }
}

/// One item: up to a semicolon, or a block in braces; what follows a `=` goes on to its semicolon.
fn item<'a>(first: &[TokenTree], rest: &'a [TokenTree]) -> (Vec<TokenTree>, &'a [TokenTree]) {
    let mut item = first.to_vec();
    if is_punct(&first[0], ';') || matches!(&first[0], TokenTree::Group(_)) {
        return (item, rest);
    }
    let is_use = |item: &[TokenTree]| item.iter().any(|token| token.to_string() == "use");
    let mut is_value = false;
    for (at, token) in rest.iter().enumerate() {
        item.push(token.clone());
        is_value |= is_punct(token, '=');
        let is_block = matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        if is_punct(token, ';') || is_block && !is_value && !is_use(&item) {
            return (item, &rest[at + 1..]);
        }
    }
    (item, &[])
}

/// The names that a `use` brings in, with their whole paths; a glob has no name.
fn use_tree(tokens: &[TokenTree], prefix: &[String], list: &mut Vec<(Option<String>, Vec<String>)>) {
    for branch in tokens.split(|token| is_punct(token, ',')) {
        let mut path = prefix.to_vec();
        let mut name = None;
        let mut is_done = false;
        let mut renames = false;
        for token in branch {
            match token {
                TokenTree::Ident(word) if *word == "as" => renames = true,
                TokenTree::Ident(word) if renames => name = Some(word.to_string()),
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(group) => {
                    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
                    use_tree(&tokens, &path, list);
                    is_done = true;
                }
                token if is_punct(token, '*') => {
                    list.push((None, path.clone()));
                    is_done = true;
                }
                _ => {}
            }
        }
        if is_done || path.len() == prefix.len() {
            continue;
        }
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        list.push((name.or_else(|| path.last().cloned()), path));
    }
}

/// Every word in code, and every path: words joined by `::`, inside groups too.
fn paths(tokens: &[TokenTree], found: &mut BTreeSet<Vec<String>>, words: &mut BTreeSet<String>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    // Alone, a word is a local name, a field or an import, whose `use` line says it already.
    let mut end = |path: &mut Vec<String>| {
        let path = std::mem::take(path);
        if path.len() > 1 {
            found.insert(path);
        }
    };
    let mut groups = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Ident(word) => {
                if colons != 2 {
                    end(&mut path);
                }
                path.push(word.to_string());
                words.insert(word.to_string());
            }
            TokenTree::Group(group) => {
                end(&mut path);
                groups.push(group.stream());
            }
            _ => end(&mut path),
        }
        colons = 0;
    }
    end(&mut path);
    for group in groups {
        paths(&group.into_iter().collect::<Vec<_>>(), found, words);
    }
}
