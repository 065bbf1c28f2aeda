//! Files of rules that elements search for, and what of a packet is searched.

use crate::Packet;
use crate::args::{Args, Failed, Raw};
use crate::error::reason;
use crate::handler::Handlers;
use crate::headers::payload::behind_headers;
use crate::lang::config::{split_words, unquote, unquote_bytes};
use crate::rules::{Content, Header, Opt, Rule, RuleSet, Rules, Variables, parse};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A file of rules may have so many bytes.
const MAX_FILE: u64 = 64 << 20;

/// Rules that whoever writes `reload` exchanges without entering the element.
#[derive(Debug, Default)]
pub(crate) struct RuleFile {
    now: Mutex<(String, Option<Arc<RuleSet>>)>,
    /// How often they were exchanged.
    changes: AtomicU64,
    /// Whether their automaton is needed, too.
    pub(crate) is_for_devices: AtomicBool,
    /// What variables stand for.
    variables: OnceLock<Variables>,
    /// The length of the longest literal that is searched for.
    pub(crate) longest: Arc<AtomicUsize>,
}

impl RuleFile {
    /// From now on these are the rules.
    pub(crate) fn set(&self, file: String, rules: RuleSet) {
        self.longest.store(rules.longest(), Ordering::Relaxed);
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = (file, Some(Arc::new(rules)));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// How often rules were exchanged.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The file, and its rules.
    pub(crate) fn get(&self) -> (String, Option<Arc<RuleSet>>) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The rules of a file.
    fn load(&self, file: &str) -> Result<RuleSet, String> {
        let read = parse(&read(file)?);
        let variables = self.variables.get_or_init(Variables::default);
        RuleSet::with(read, variables).map_err(|error| format!("{file}: {error}"))
    }

    /// Takes the rules of a file; nothing: those of the last one.
    pub(crate) fn reload(&self, file: &str) -> Result<(), String> {
        let file = if file.is_empty() { self.get().0 } else { file.to_owned() };
        if file.is_empty() {
            return Err("no file of rules to load again".to_owned());
        }
        let rules = self.load(&file)?;
        if self.is_for_devices.load(Ordering::Relaxed) {
            rules.automaton();
        }
        self.set(file, rules);
        Ok(())
    }
}

/// The bytes of a file.
fn read(file: &str) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let opened = File::open(file).map_err(|error| format!("{file}: {}", reason(&error)))?;
    opened.take(MAX_FILE + 1).read_to_end(&mut text).map_err(|error| format!("{file}: {}", reason(&error)))?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("{file}: more than {MAX_FILE} bytes"));
    }
    Ok(text)
}

/// Literals as rules, numbered from 1.
fn of_literals(words: &str, nocase: bool) -> Rules {
    let words = split_words(words);
    let rule = |(sid, word): (u32, &String)| {
        let content = Content { bytes: unquote_bytes(word), is_nocase: nocase, ..Content::default() };
        let ends = ["any", "any", "->", "any", "any"].map(str::to_owned);
        let header = Header { action: "alert".to_owned(), proto: "ip".to_owned(), ends: Some(ends) };
        Rule { header, sid, options: vec![Opt::Content(content)], ..Rule::default() }
    };
    Rules { rules: (1..).zip(&words).map(rule).collect(), problems: Vec::new() }
}

/// What is searched of a packet.
pub(crate) fn payload(packet: &Packet) -> &[u8] {
    packet.network_header().and_then(behind_headers).unwrap_or(packet.bytes())
}

impl RuleFile {
    /// The keywords RULES, VARIABLES, PATTERN and NOCASE, behind which other keywords were read.
    pub(crate) fn configure(&self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut file, mut literals, mut nocase) = (String::new(), Raw::default(), false);
        let has_file = args.has_key("RULES", &mut file);
        let has_literals = args.has_key("PATTERN", &mut literals);
        let mut variables = Raw::default();
        args.key("VARIABLES", &mut variables).key("NOCASE", &mut nocase).finish()?;
        let words: Vec<String> = split_words(&variables.0).iter().map(|word| unquote(word)).collect();
        let values =
            Variables::new(words.iter().map(String::as_str)).map_err(|wrong| args.error_of("VARIABLES", wrong))?;
        let _ = self.variables.set(values);
        if has_file == has_literals {
            return Err(args.error("one of RULES and PATTERN is needed"));
        }
        let (name, rules) = if has_file {
            ("RULES", self.load(&file))
        } else {
            ("PATTERN", RuleSet::new(of_literals(&literals.0, nocase)))
        };
        let rules = rules.map_err(|error| args.error_of(name, error))?;
        if !rules.problems().is_empty() {
            let some = |count: usize, thing: &str| format!("{count} {thing}{}", if count == 1 { "" } else { "s" });
            let (rules, remarks) = (some(rules.rules().len(), "rule"), some(rules.problems().len(), "remark"));
            args.warning(format_args!("{file}: {rules} loaded, and {remarks} in handler 'errors'"));
        }
        self.set(file, rules);
        Ok(())
    }
}

/// Handlers about the rules, which do not enter the element: `rules`, `errors`, `summary`, `reload`.
pub(crate) fn rule_handlers(handlers: &mut Handlers, file: impl Fn() -> Arc<RuleFile> + Clone + Send + Sync + 'static) {
    let [shown, told, counted, changed] = std::array::from_fn(|_| file.clone());
    handlers.free_read("rules", move |_, _| Ok(lines(&shown(), |rules| rules.rules())));
    handlers.free_read("errors", move |_, _| Ok(lines(&told(), |rules| rules.problems())));
    handlers.free_read("summary", move |_, _| {
        Ok(counted().get().1.map_or_else(String::new, |rules| rules.summary().to_string()))
    });
    handlers.free_write("reload", move |_, file| changed().reload(file.trim()));
}

/// A line for each thing that the rules have.
fn lines<T: ToString>(file: &RuleFile, of: impl Fn(&RuleSet) -> &[T]) -> String {
    let (_, rules) = file.get();
    rules.iter().flat_map(|rules| of(rules)).map(|thing| thing.to_string() + "\n").collect()
}
