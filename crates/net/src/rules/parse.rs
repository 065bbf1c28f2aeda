//! A file of rules to rules: lines, headers, options.

use super::buffers::{Place, buffer, place};
use super::content::{self, MODIFIERS, has_commas};
use super::pcre::MAX_PCRES;
use super::rule::{Content, Header, Opt, Problem, Rule, What};

/// How many rules are read of a file at most.
pub const MAX_RULES: usize = 1 << 16;
/// How many contents a rule may have.
pub const MAX_CONTENTS: usize = 64;
/// How many options a rule may have, contents included.
pub const MAX_OPTIONS: usize = 512;
/// How many bytes a rule may have, over all of its lines.
pub const MAX_LINE: usize = 1 << 16;

/// How many remarks there are at most; nothing is read behind the line of the last one.
pub const MAX_PROBLEMS: usize = 1 << 16;

/// Options that say something about a rule, and do not test anything; `flow` is one of them, since packets are looked at one by
/// one.
const SILENT: &[&str] =
    &["classtype", "flow", "gid", "metadata", "priority", "reference", "rem", "rev", "service", "soid", "target"];

/// What was read of a file.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// The rules.
    pub rules: Vec<Rule>,
    /// What was not understood, or is not evaluated, by lines.
    pub problems: Vec<Problem>,
}

/// Reads rules. Whatever is wrong with one is a problem; the others are read.
pub fn parse(text: &[u8]) -> Rules {
    let mut read = Rules::default();
    let mut lines = (1..).zip(text.split(|byte| *byte == b'\n')).peekable();
    while let Some((line, first)) = lines.next() {
        let first = first.trim_ascii();
        if first.is_empty() || first.starts_with(b"#") {
            continue;
        }
        if read.problems.len() >= MAX_PROBLEMS {
            let text = format!("there are more than {MAX_PROBLEMS} remarks, and nothing is read from here on");
            read.problems.push(Problem { line, what: What::End(text) });
            break;
        }
        let (mut whole, mut has_options) = (first.to_vec(), first.contains(&b'('));
        while let Some(begun) = continues(&whole, has_options, lines.peek().map(|(_, next)| *next)) {
            whole.truncate(begun);
            let (_, next) = lines.next().expect("it was looked at");
            whole.push(b' ');
            whole.extend(next.trim_ascii());
            has_options |= next.contains(&b'(');
        }
        if read.rules.len() == MAX_RULES {
            let text = format!("there are more than {MAX_RULES} rules");
            read.problems.push(Problem { line, what: What::End(text) });
            break;
        }
        match rule(line, &whole) {
            Ok((rule, ignored)) => {
                if !ignored.is_empty() {
                    read.problems.push(Problem { line, what: What::NotEvaluated(rule.sid, ignored) });
                }
                read.rules.push(rule);
            }
            Err(text) => read.problems.push(Problem { line, what: What::NotLoaded(text) }),
        }
    }
    read
}

/// Whether a rule goes on in the next line: a backslash says so, or, where its options have not ended, that the next line begins
/// with spaces or is their end. Says how much of what there is belongs to it.
fn continues(whole: &[u8], has_options: bool, next: Option<&[u8]>) -> Option<usize> {
    let next = next.filter(|next| whole.len() + next.len() < MAX_LINE)?;
    if whole.ends_with(b"\\") {
        return Some(whole.len() - 1);
    }
    let has_begun = has_options && !whole.ends_with(b")");
    let is_more = next.starts_with(b" ") || next.starts_with(b"\t") || next.trim_ascii() == b")";
    (has_begun && is_more).then_some(whole.len())
}

/// Reads one rule; with it, what of it is not evaluated.
fn rule(line: usize, text: &[u8]) -> Result<(Rule, Vec<String>), String> {
    if text.len() > MAX_LINE {
        return Err(format!("it has more than {MAX_LINE} bytes"));
    }
    let open = text.iter().position(|byte| *byte == b'(').ok_or("it has no options in parentheses")?;
    let inner = text[open + 1..].strip_suffix(b")").ok_or("its options have no closing parenthesis")?;
    let header = header(&String::from_utf8_lossy(&text[..open]))?;
    let mut reader = Reader { rule: Rule { line, header, ..Rule::default() }, ..Reader::default() };
    let options = split_options(inner)?;
    if options.len() > MAX_OPTIONS {
        return Err(format!("it has more than {MAX_OPTIONS} options"));
    }
    reader.is_behind = is_behind(&options);
    for (name, value) in &options {
        reader.option(name, *value)?;
    }
    reader.finish()
}

/// Words, of which one between brackets may have spaces.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut depth) = (Vec::<String>::new(), 0_usize);
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(last) if depth > 0 => last.push_str(word),
            _ => words.push(word.to_owned()),
        }
        let count = |bracket| word.matches(bracket).count();
        depth = (depth + count('[')).saturating_sub(count(']'));
    }
    words
}

fn header(text: &str) -> Result<Header, String> {
    let mut words = words(text).into_iter();
    let action = words.next().ok_or("it has no header")?;
    let proto = words.next().unwrap_or_default();
    let ends: Vec<String> = words.collect();
    if ends.is_empty() {
        return Ok(Header { action, proto, ends: None });
    }
    let ends: [String; 5] = ends.try_into().map_err(|_| "its header has neither seven words nor one or two")?;
    if !matches!(&ends[2][..], "->" | "<>" | "<-" | "=>") {
        return Err(format!("its direction is '{}'", ends[2]));
    }
    Ok(Header { action, proto, ends: Some(ends) })
}

/// An option's name, and its value as it stands.
type Named<'a> = (String, Option<&'a [u8]>);

/// Names and values of options: they end at semicolons that are neither quoted nor escaped.
fn split_options(text: &[u8]) -> Result<Vec<Named<'_>>, String> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let ends = |byte: &u8| {
        if is_escaped {
            is_escaped = false;
            return false;
        }
        match byte {
            b'\\' => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        *byte == b';' && !is_quoted
    };
    let options: Vec<&[u8]> = text.split(ends).map(<[u8]>::trim_ascii).collect();
    if is_quoted {
        return Err("a quote in it has no end".to_owned());
    }
    if options.iter().any(|option| option.ends_with(b"\\")) {
        return Err("an option in it ends with a backslash".to_owned());
    }
    let name = |text: &[u8]| String::from_utf8_lossy(text.trim_ascii()).into_owned();
    let named = options.into_iter().map(|option| match option.iter().position(|byte| *byte == b':') {
        Some(at) => (name(&option[..at]), Some(option[at + 1..].trim_ascii())),
        None => (name(option), None),
    });
    Ok(named.filter(|(name, value)| !name.is_empty() || value.is_some()).collect())
}

/// Whether names of buffers stand behind contents, as in Snort 2, and not before them, as in Snort 3. Where a rule has them
/// without any modifier, the first one tells.
fn is_behind(options: &[Named<'_>]) -> bool {
    let is_content = |name: &str| matches!(name, "content" | "pcre" | "uricontent");
    let contents = options.iter().filter_map(|(name, value)| value.filter(|_| name == "content"));
    if contents.into_iter().any(has_commas) {
        return false;
    }
    if options.iter().any(|(name, _)| MODIFIERS.contains(&&name[..])) {
        return true;
    }
    let first =
        options.iter().find(|(name, value)| is_content(name) || place(name, value.map(|_| "")) != Place::Nowhere);
    first.is_none_or(|(name, _)| is_content(name))
}

/// A rule that is being read.
#[derive(Default)]
struct Reader {
    rule: Rule,
    is_behind: bool,
    /// Where contents are looked for that come.
    buffer: Option<String>,
    /// The last content, among the options.
    last: Option<usize>,
    contents: usize,
    pcres: usize,
    /// What is not evaluated.
    ignored: Vec<String>,
    /// Negated contents that would be looked for elsewhere than the rule says: they would refuse too much.
    doubtful: Vec<usize>,
}

impl Reader {
    fn option(&mut self, name: &str, value: Option<&[u8]>) -> Result<(), String> {
        let text = value.map(String::from_utf8_lossy);
        match name {
            "content" | "uricontent" => self.content(name, value.unwrap_or_default())?,
            "pcre" => {
                self.pcres += 1;
                if self.pcres > MAX_PCRES {
                    return Err(format!("it has more than {MAX_PCRES} regular expressions"));
                }
                let text = text.unwrap_or_default().into_owned();
                self.rule.options.push(Opt::Pcre { text, buffer: self.buffer.clone() });
            }
            "sid" => match text.unwrap_or_default().parse() {
                Ok(sid) => self.rule.sid = sid,
                Err(_) => return Err("its sid is no number".to_owned()),
            },
            "msg" => self.rule.msg = message(&text.unwrap_or_default()),
            name if MODIFIERS.contains(&name) => self.modifier(name, text.as_deref()),
            name => self.other(name, text.as_deref()),
        }
        Ok(())
    }

    fn content(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        self.contents += 1;
        if self.contents > MAX_CONTENTS {
            return Err(format!("it has more than {MAX_CONTENTS} contents"));
        }
        let (mut content, strange) = content::content(value)?;
        let at = self.rule.options.len();
        for modifier in strange {
            self.doubt(at, content.is_negated, &modifier);
        }
        content.buffer = if name == "content" { self.buffer.clone() } else { Some("http_uri".to_owned()) };
        self.last = Some(at);
        self.rule.options.push(Opt::Content(content));
        Ok(())
    }

    /// The content that options behind it are about.
    fn last(&mut self) -> Option<(usize, &mut Content)> {
        let at = self.last?;
        match &mut self.rule.options[at] {
            Opt::Content(content) => Some((at, content)),
            _ => None,
        }
    }

    fn modifier(&mut self, name: &str, value: Option<&str>) {
        let Some((at, content)) = self.last() else { return self.ignore(name) };
        let is_negated = content.is_negated;
        if !content::modify(content, name, value) {
            self.doubt(at, is_negated, name);
        }
    }

    /// A modifier of a content is not understood.
    fn doubt(&mut self, at: usize, is_negated: bool, modifier: &str) {
        self.ignore(modifier);
        if is_negated {
            self.doubtful.push(at);
        }
    }

    fn other(&mut self, name: &str, value: Option<&str>) {
        match place(name, value) {
            Place::Either if self.is_behind => match self.last() {
                Some((_, content)) => content.buffer = buffer(name, value),
                None => self.ignore(name),
            },
            Place::Either | Place::Before => self.buffer = buffer(name, value),
            Place::Nowhere => {
                if !SILENT.contains(&name) {
                    self.ignore(name);
                }
                self.rule.options.push(Opt::Other(name.to_owned(), value.map(str::to_owned)));
            }
        }
    }

    fn ignore(&mut self, name: &str) {
        if !self.ignored.iter().any(|ignored| ignored == name) {
            self.ignored.push(name.to_owned());
        }
    }

    fn finish(mut self) -> Result<(Rule, Vec<String>), String> {
        self.doubtful.sort_unstable();
        self.doubtful.dedup();
        self.doubtful.iter().rev().for_each(|at| _ = self.rule.options.remove(*at));
        if self.rule.fast_pattern().is_none() {
            return Err("it has no content to search for".to_owned());
        }
        Ok((self.rule, self.ignored))
    }
}

/// A text without its quotes and escapes.
fn message(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let mut is_escaped = false;
    let keep = |c: &char| {
        is_escaped = *c == '\\' && !is_escaped;
        !is_escaped
    };
    inner.chars().filter(keep).collect()
}
