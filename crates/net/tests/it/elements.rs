//! The list of elements in the documentation is that of the registry, and none of them is without tests.

use bifolio_net::elements::GROUPS;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files of some kind below a folder.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files(&entry, ending, found);
        } else if entry.to_str().is_some_and(|name| name.ends_with(ending)) {
            found.push(entry);
        }
    }
}

/// What tests say, file by file: modules for tests, and test files.
fn tests() -> Vec<String> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut sources, mut whole) = (Vec::new(), Vec::new());
    files(&package.join("src"), ".rs", &mut sources);
    files(&package.join("tests"), ".rs", &mut whole);
    files(&package.join("tests"), ".clicktest", &mut whole);
    let whole = whole.into_iter().filter(|file| !file.ends_with("tests/it/elements.rs"));
    let of_source = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).unwrap();
        if file.file_name().is_some_and(|name| name == "tests.rs") {
            return text;
        }
        text.split_once("#[cfg(test)]\nmod tests {").map_or(String::new(), |(_, tests)| tests.to_owned())
    };
    sources.into_iter().map(of_source).chain(whole.map(|file| std::fs::read_to_string(file).unwrap())).collect()
}

/// How many files of tests name each word.
fn words() -> BTreeMap<String, usize> {
    let mut words = BTreeMap::new();
    for text in tests() {
        let of_file: std::collections::BTreeSet<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
        for word in of_file {
            *words.entry(word.to_owned()).or_insert(0) += 1;
        }
    }
    words
}

fn document() -> String {
    let mut text = "# Elements\n\nAll elements of the packet engine, as its registry has them; a test keeps this list. Ports are inputs and outputs, \
                    processing is `h` for push, `l` for pull, `a` for either; what each one does, its arguments and its handlers stand at \
                    the head of its file in `crates/net/src/elements`. The last column is in how many files tests use it.\n"
        .to_owned();
    let words = words();
    for (group, classes) in GROUPS {
        let _ = write!(
            text,
            "\n## {group}\n\n| element | ports | processing | what it does | tests |\n|---|---|---|---|---|\n"
        );
        let mut classes: Vec<_> = classes.iter().collect();
        classes.sort_by_key(|class| class.name);
        for class in classes {
            let tests = words.get(class.name).copied().unwrap_or(0);
            let summary = class.summary.replace('|', "\\|");
            let _ =
                writeln!(text, "| {} | `{}` | `{}` | {summary} | {tests} |", class.name, class.ports, class.processing);
        }
    }
    text
}

#[test]
fn the_list_of_elements_is_that_of_the_registry() {
    let path = root().join("docs/elements.md");
    let text = document();
    if std::env::var_os("BIFOLIO_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    // How many tests there are is a figure of the day; that there are some is asked below.
    let plain = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.trim_end_matches(" |").trim_end_matches(|c: char| c.is_ascii_digit()).to_owned())
            .collect()
    };
    assert_eq!(
        plain(&written),
        plain(&text),
        "docs/elements.md is old: BIFOLIO_BLESS=1 cargo test -p bifolio-net writes it"
    );
}

#[test]
fn no_element_is_without_tests() {
    let words = words();
    let all = GROUPS.iter().flat_map(|(_, classes)| classes.iter());
    let untested: Vec<_> = all.map(|class| class.name).filter(|name| !words.contains_key(*name)).collect();
    assert!(untested.is_empty(), "elements that no test uses: {untested:?}");
}
