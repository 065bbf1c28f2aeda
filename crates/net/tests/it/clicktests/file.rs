//! The format of Click's test files: sections that begin with `%NAME`.
//!
//! ```text
//! %info                 what it is about
//! %require              commands that have to succeed, or the test is skipped
//! %script               commands that have to succeed
//! %file [-de] NAME      an input file (`stdin`: %stdin)
//! %expect [-adeiw] NAME lines of an output file (`stdout`, `stderr`), with regular expressions in {{ }}
//! %expectx NAME         the same, all of it regular expressions
//! %expectv NAME         the very bytes
//! %ignore[xv] [NAME]    lines of output files that do not count
//! %include FILE, %cut, %eot (another test follows), %eof
//! ```
//!
//! `-a`: one of several that may be; `-d`: the first character of each line goes; `-e`: Base64; `-i`: regular expressions in any
//! case; `-w`: spaces do not count. `+N` behind them: the section has N bytes, whatever they are.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

/// How lines are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text with regular expressions in double braces.
    Braces,
    /// Regular expressions.
    Regex,
    /// As it stands.
    Verbatim,
}

/// What an output file has to be, or lines of it that do not count.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) file: String,
    pub(super) text: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) ignores_space: bool,
    pub(super) ignores_case: bool,
}

/// A test.
#[derive(Debug, Clone, Default)]
pub(super) struct Test {
    pub(super) info: String,
    pub(super) require: String,
    pub(super) script: String,
    pub(super) files: Vec<(String, Vec<u8>)>,
    pub(super) expected: Vec<Section>,
    pub(super) ignored: Vec<Section>,
}

/// All tests of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Test>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&bytes, path.parent().unwrap_or(Path::new("")))
}

/// All tests in a text. Files that it includes are found from `folder`.
pub(super) fn parse(text: &[u8], folder: &Path) -> Result<Vec<Test>, String> {
    let mut lines = Lines { rest: split(text), folder: folder.to_owned(), included: 0 };
    let mut tests = vec![Test::default()];
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix(b"%") else { continue };
        let command = String::from_utf8_lossy(command).trim().to_owned();
        let (name, args) = command.split_once(char::is_whitespace).unwrap_or((&command, ""));
        match name.to_ascii_lowercase().as_str() {
            "eof" => break,
            "eot" => tests.push(Test::default()),
            "include" => lines.include(args.trim())?,
            name => section(tests.last_mut().expect("there is one"), name, args, &mut lines)?,
        }
    }
    tests.retain(|test| !test.script.trim().is_empty());
    if tests.is_empty() {
        return Err("there is no %script".to_owned());
    }
    Ok(tests)
}

fn section(test: &mut Test, name: &str, args: &str, lines: &mut Lines) -> Result<(), String> {
    let text = |lines: &mut Lines| String::from_utf8_lossy(&lines.text()).into_owned();
    match name {
        "script" | "test" => test.script += &text(lines),
        "require" => test.require += &text(lines),
        "info" | "desc" => test.info += &text(lines),
        "cut" => drop(lines.text()),
        "file" | "stdin" | "input" => {
            let args = Args::read(args, if name == "file" { None } else { Some("stdin") })?;
            let content = args.content(lines)?;
            test.files.extend(args.names("stdin").map(|name| (name, content.clone())));
        }
        "expect" | "expectx" | "expectv" | "expect_verbatim" | "verbatim" | "stdout" | "output" | "stderr" => {
            let kind = match name {
                "expectx" => Kind::Regex,
                "expectv" | "expect_verbatim" | "verbatim" => Kind::Verbatim,
                _ => Kind::Braces,
            };
            let name = match name {
                "stdout" | "output" => Some("stdout"),
                "stderr" => Some("stderr"),
                _ => None,
            };
            let args = Args::read(args, name)?;
            let kind = if args.is_base64 { Kind::Verbatim } else { kind };
            let content = args.content(lines)?;
            test.expected.extend(args.sections("stdout", &content, kind));
        }
        "ignore" | "ignorex" | "ignorev" => {
            let args = Args::read(args, None)?;
            let content = args.content(lines)?;
            let kind = match name {
                "ignorex" => Kind::Regex,
                "ignorev" => Kind::Verbatim,
                _ => Kind::Braces,
            };
            test.ignored.extend(args.sections("all", &content, kind));
        }
        _ => return Err(format!("unknown section '%{name}'")),
    }
    Ok(())
}

/// Lines, each with its end.
fn split(text: &[u8]) -> VecDeque<Vec<u8>> {
    text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

struct Lines {
    rest: VecDeque<Vec<u8>>,
    folder: PathBuf,
    included: usize,
}

impl Lines {
    fn next(&mut self) -> Option<Vec<u8>> {
        self.rest.pop_front()
    }

    /// Up to the next section.
    fn text(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        while let Some(line) = self.rest.front() {
            if line.starts_with(b"%") {
                break;
            }
            text.extend_from_slice(line.strip_prefix(b"\\").filter(|rest| rest.starts_with(b"%")).unwrap_or(line));
            self.rest.pop_front();
        }
        text
    }

    fn bytes(&mut self, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            bytes.extend(self.next().ok_or("a section is shorter than it says")?);
        }
        let rest = bytes.split_off(len);
        if !rest.is_empty() {
            self.rest.push_front(rest);
        }
        Ok(bytes)
    }

    fn include(&mut self, name: &str) -> Result<(), String> {
        self.included += 1;
        if self.included > 100 {
            return Err("too many files are included".to_owned());
        }
        let path = self.folder.join(name);
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for line in split(&bytes).into_iter().rev() {
            self.rest.push_front(line);
        }
        Ok(())
    }
}

/// What stands behind the name of a section.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools)] // flags, as they are written
struct Args {
    drops_first: bool,
    is_base64: bool,
    ignores_space: bool,
    ignores_case: bool,
    len: Option<usize>,
    names: Vec<String>,
}

impl Args {
    fn read(text: &str, name: Option<&str>) -> Result<Self, String> {
        let mut args = Self::default();
        for word in text.split_whitespace() {
            if let Some(flags) = word.strip_prefix('-').filter(|_| args.names.is_empty()) {
                flags.chars().try_for_each(|flag| args.flag(flag))?;
            } else if let Some(len) = word.strip_prefix('+').filter(|_| args.names.is_empty()) {
                args.len = Some(len.parse().map_err(|_| format!("'{word}' is no length"))?);
            } else {
                args.names.push(word.to_owned());
            }
        }
        args.names.extend(name.map(str::to_owned));
        if args.names.iter().any(|name| name.starts_with('/') || name.split('/').any(|part| part == "..")) {
            return Err(format!("bad file name in '{text}'"));
        }
        Ok(args)
    }

    fn flag(&mut self, flag: char) -> Result<(), String> {
        match flag {
            'a' => {}
            'd' => self.drops_first = true,
            'e' => self.is_base64 = true,
            'i' => self.ignores_case = true,
            'w' => self.ignores_space = true,
            _ => return Err(format!("unknown flag '-{flag}'")),
        }
        Ok(())
    }

    fn names(&self, usual: &str) -> impl Iterator<Item = String> {
        let usual = self.names.is_empty().then(|| usual.to_owned());
        self.names.clone().into_iter().chain(usual)
    }

    fn content(&self, lines: &mut Lines) -> Result<Vec<u8>, String> {
        let mut content = match self.len {
            Some(len) => lines.bytes(len)?,
            None => lines.text(),
        };
        if self.drops_first {
            let line = |line: &Vec<u8>| if line[0] == b'\n' { line.clone() } else { line[1..].to_vec() };
            content = split(&content).iter().flat_map(line).collect();
        }
        if self.is_base64 { base64(&content).ok_or_else(|| "bad Base64".to_owned()) } else { Ok(content) }
    }

    fn sections(&self, usual: &str, content: &[u8], kind: Kind) -> impl Iterator<Item = Section> {
        self.names(usual).map(move |file| Section {
            file,
            text: content.to_vec(),
            kind,
            ignores_space: self.ignores_space,
            ignores_case: self.ignores_case,
        })
    }
}

fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[test]
fn sections_are_taken_apart() {
    let text = b"words before the first section\n%info\nAbout it.\n%require -q\ntrue\n%script\nclick A > out\ncat out\n\
        %cut\n%file -d A\n %not a section\n\n b\n%file stdin\nin\n\\%not a section\n%expect -w out\nc {{d+}}\n%expectx -ia stdout\n\
        e.*\n%stderr\nf\n%ignorex\ng\n%ignore -i out stdout\nh\n%eot\n%script\nfalse\n%eof\n%script\n%nothing\n";
    let tests = parse(text, Path::new("")).unwrap();
    let test = &tests[0];
    assert_eq!((tests.len(), tests[1].script.as_str()), (2, "false\n"));
    assert_eq!((test.info.as_str(), test.require.as_str()), ("About it.\n", "true\n"));
    assert_eq!(test.script, "click A > out\ncat out\n");
    let files: Vec<_> = test.files.iter().map(|(name, text)| (name.as_str(), text.as_slice())).collect();
    assert_eq!(files, [("A", &b"%not a section\n\nb\n"[..]), ("stdin", b"in\n%not a section\n")]);
    let of = |sections: &[Section]| -> Vec<_> {
        sections.iter().map(|s| (s.file.clone(), s.kind, s.ignores_space, s.ignores_case)).collect()
    };
    assert_eq!(
        of(&test.expected),
        [
            ("out".to_owned(), Kind::Braces, true, false),
            ("stdout".to_owned(), Kind::Regex, false, true),
            ("stderr".to_owned(), Kind::Braces, false, false)
        ]
    );
    assert_eq!(
        of(&test.ignored),
        [
            ("all".to_owned(), Kind::Regex, false, false),
            ("out".to_owned(), Kind::Braces, false, true),
            ("stdout".to_owned(), Kind::Braces, false, true)
        ]
    );
}

#[test]
fn a_section_may_have_a_length_and_be_in_base64() {
    let tests = parse(b"%script\ntrue\n%file +5 a\n%b\nc%expect -e d\nAAEC\n/w==\n", Path::new("")).unwrap();
    assert_eq!(tests[0].files, [("a".to_owned(), b"%b\nc%".to_vec())]);
    assert_eq!(
        parse(b"%script\ntrue\n%file +9 a\nb\n", Path::new("")).unwrap_err(),
        "a section is shorter than it says"
    );
    let tests = parse(b"%script\ntrue\n%expect -e d\nAAEC\n/w==\n", Path::new("")).unwrap();
    assert_eq!(
        (tests[0].expected[0].text.as_slice(), tests[0].expected[0].kind),
        (&[0, 1, 2, 255][..], Kind::Verbatim)
    );
}

#[test]
fn mistakes_are_told() {
    let of = |text: &str| parse(text.as_bytes(), Path::new("")).unwrap_err();
    assert_eq!(of("%info\nnothing\n"), "there is no %script");
    assert_eq!(of("%skript\ntrue\n"), "unknown section '%skript'");
    assert_eq!(of("%script\ntrue\n%file ../a\n"), "bad file name in '../a'");
    assert_eq!(of("%script\ntrue\n%expect -x a\n"), "unknown flag '-x'");
    assert!(of("%include nowhere\n").starts_with("nowhere: "));
}

#[test]
fn included_files_stand_where_they_are_included() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "%expect\na\n%include b\n").unwrap();
    fs::write(folder.path().join("b"), "%include b\n").unwrap();
    let error = parse(b"%script\ntrue\n%include a\n", folder.path()).unwrap_err();
    assert_eq!(error, "too many files are included");
    fs::write(folder.path().join("b"), "%stderr\nb\n").unwrap();
    let tests = parse(b"%script\ntrue\n%include a\n%file c\nd\n", folder.path()).unwrap();
    assert_eq!((tests[0].expected.len(), tests[0].files.len()), (2, 1));
}
