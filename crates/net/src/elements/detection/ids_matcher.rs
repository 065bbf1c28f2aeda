//! IDSMatcher: searches payloads for rules of Snort or Suricata, or for literals.
//!
//! `IDSMatcher(RULES FILE | PATTERN "LITERAL" ... [, NOCASE, FIRST, ANNO, SID_ANNO])`: agnostic; packets in which nothing is found
//! go to output 0, and those that match to output 1 (push). Without output 1 all go to output 0, and ANNO tells them apart:
//! `IDSMatcher(...) -> CheckPaint(1)`.
//!
//! - RULES: a file of rules. What of it is not understood is told by the handler `errors`; the rest is loaded.
//! - PATTERN: literals, each a word or quoted (`"\<00 ff>"` for bytes), rules by themselves with the numbers 1, 2, ….
//! - NOCASE: whether letters of PATTERN match their capitals. False by default.
//! - FIRST: whether the search ends at the first rule that matches. False by default: all that match are counted.
//! - ANNO: an annotation of one byte, set to 1 in packets that match and to 0 in others. `PAINT` by default where there is no
//!   output 1; where there is one, none.
//! - SID_ANNO: an annotation of four bytes, set to the number (`sid`) of the first rule found, and to 0 where there is none.
//!   None by default.
//!
//! Searched is what follows the TCP, UDP or ICMP header where an IP header is known (up to the length that it says), and
//! else all of the packet, too where these headers contradict each other. A rule matches a packet that has its fast pattern
//! and all of its contents, as far as `offset`, `depth`, `distance` and `within` say where. Its header, `flow`, `pcre` and other tests
//! are not evaluated (an IPClassifier before it can do that for ports), and contents of a buffer such as `http_uri` are
//! looked for in all of the payload: so a rule may match more than it says.
//!
//! Handlers: `count` (packets that matched), `matches` (rules that matched: number, packets, message), `rules` (as they were
//! understood), `errors` (what was not, by lines), `reset` (w: all counts), `reload` (w: a file; nothing: the same as before).
//! Packets do not wait for `reload`; where the file is bad, the rules stay as they are. The counts in `matches` begin anew.

use crate::Packet;
use crate::args::{AnnoArg, Args, Failed, Raw};
use crate::element::Element;
use crate::error::reason;
use crate::handler::Handlers;
use crate::headers::{Ip, Tcp};
use crate::lang::config::{split_words, unquote_bytes};
use crate::packet::anno;
use crate::router::Cx;
use crate::rules::{Content, Header, Opt, Rule, RuleSet, Rules, Scratch, parse};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A file of rules may have so many bytes.
const MAX_FILE: u64 = 64 << 20;

/// Rules that whoever writes `reload` exchanges without entering the element.
#[derive(Default)]
struct Shared {
    now: Mutex<(String, Option<Arc<RuleSet>>)>,
    /// How often they were exchanged.
    changes: AtomicU64,
}

impl Shared {
    fn set(&self, file: String, rules: RuleSet) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = (file, Some(Arc::new(rules)));
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn get(&self) -> (String, Option<Arc<RuleSet>>) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the rules of a file; nothing: those of the last one.
    fn reload(&self, file: &str) -> Result<(), String> {
        let file = if file.is_empty() { self.get().0 } else { file.to_owned() };
        if file.is_empty() {
            return Err("no file of rules to load again".to_owned());
        }
        let rules = load(&file)?;
        self.set(file, rules);
        Ok(())
    }
}

/// The rules of a file.
fn load(file: &str) -> Result<RuleSet, String> {
    let mut text = Vec::new();
    let opened = File::open(file).map_err(|error| format!("{file}: {}", reason(&error)))?;
    opened.take(MAX_FILE + 1).read_to_end(&mut text).map_err(|error| format!("{file}: {}", reason(&error)))?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("{file}: more than {MAX_FILE} bytes"));
    }
    RuleSet::new(parse(&text)).map_err(|error| format!("{file}: {error}"))
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
fn payload(packet: &Packet) -> &[u8] {
    packet.network_header().and_then(behind_headers).unwrap_or(packet.bytes())
}

/// What follows the headers of an IP packet; nothing where its length contradicts itself.
fn behind_headers(network: &[u8]) -> Option<&[u8]> {
    let ip = Ip::new(network).filter(|ip| ip.version() == 4)?;
    if ip.header_len() < 20 || usize::from(ip.total_len()) < ip.header_len() || network.len() < ip.header_len() {
        return None;
    }
    let body = ip.payload();
    let header = match ip.protocol() {
        _ if ip.fragment_offset() > 0 => 0,
        1 | 17 => 8,
        6 => Tcp::new(body).map(Tcp::header_len).filter(|len| *len >= 20).unwrap_or(0),
        _ => 0,
    };
    // A header that is not all there is searched: nothing hides behind a length.
    Some(body.get(header..).unwrap_or(body))
}

/// The element.
#[derive(Default)]
pub(super) struct IdsMatcher {
    shared: Arc<Shared>,
    rules: Option<Arc<RuleSet>>,
    changes: u64,
    scratch: Scratch,
    /// Packets that matched each rule.
    matches: Vec<u64>,
    count: u64,
    is_first: bool,
    anno: Option<AnnoArg<1>>,
    sid_anno: Option<AnnoArg<4>>,
}

impl IdsMatcher {
    /// Takes the rules that are to be searched for now.
    #[inline]
    fn refresh(&mut self) {
        let changes = self.shared.changes.load(Ordering::Acquire);
        if changes != self.changes {
            self.exchange(changes);
        }
    }

    #[cold]
    fn exchange(&mut self, changes: u64) {
        (_, self.rules) = self.shared.get();
        self.changes = changes;
        self.scratch = Scratch::default();
        self.matches = vec![0; self.rules.as_ref().map_or(0, |rules| rules.rules().len())];
    }

    /// Searches a packet, counts and annotates it; says whether it matches.
    fn inspect(&mut self, packet: &mut Packet) -> bool {
        self.refresh();
        let Some(rules) = &self.rules else { return false };
        let mut first = None;
        rules.search(payload(packet), &mut self.scratch, |rule| {
            first.get_or_insert(rule);
            self.matches[rule as usize] += 1;
            if self.is_first { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.count += u64::from(first.is_some());
        if let Some(AnnoArg(at)) = self.anno {
            packet.set_anno_u8(at, first.is_some().into());
        }
        if let Some(AnnoArg(at)) = self.sid_anno {
            packet.set_anno_u32(at, first.map_or(0, |rule| rules.rules()[rule as usize].sid));
        }
        first.is_some()
    }

    /// A line for each rule that matched.
    fn matches(&mut self) -> String {
        self.refresh();
        let mut text = String::new();
        let rules = self.rules.iter().flat_map(|rules| rules.rules());
        for (rule, count) in rules.zip(&self.matches).filter(|(_, count)| **count > 0) {
            let _ = writeln!(text, "{}\t{count}\t{}", rule.sid, rule.msg);
        }
        text
    }

    fn reset(&mut self) {
        self.count = 0;
        self.matches.fill(0);
    }
}

impl Element for IdsMatcher {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut file, mut literals, mut nocase) = (String::new(), Raw::default(), false);
        let has_file = args.has_key("RULES", &mut file);
        let has_literals = args.has_key("PATTERN", &mut literals);
        args.key("NOCASE", &mut nocase)
            .key("FIRST", &mut self.is_first)
            .key("ANNO", &mut self.anno)
            .key("SID_ANNO", &mut self.sid_anno)
            .finish()?;
        if has_file == has_literals {
            return Err(args.error("one of RULES and PATTERN is needed"));
        }
        let (name, rules) =
            if has_file { ("RULES", load(&file)) } else { ("PATTERN", RuleSet::new(of_literals(&literals.0, nocase))) };
        let rules = rules.map_err(|error| args.error_of(name, error))?;
        if !rules.problems().is_empty() {
            let (rules, lines) = (rules.rules().len(), rules.problems().len());
            args.warning(format_args!("{file}: {rules} rules loaded, and {lines} remarks in handler 'errors'"));
        }
        self.shared.set(file, rules);
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if cx.outputs() == 1 {
            self.anno.get_or_insert(AnnoArg(anno::PAINT));
        }
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        if self.inspect(&mut packet) && cx.outputs() > 1 {
            cx.emit(1, packet);
            return None;
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |matcher: &mut Self, _| matcher.count);
        handlers.read("matches", |matcher: &mut Self, _| matcher.matches());
        handlers.button("reset", |matcher: &mut Self, _| matcher.reset());
        let [shown, told, changed] = std::array::from_fn(|_| Arc::clone(&self.shared));
        handlers.free_read("rules", move |_, _| Ok(lines(&shown, |rules| rules.rules())));
        handlers.free_read("errors", move |_, _| Ok(lines(&told, |rules| rules.problems())));
        handlers.free_write("reload", move |_, file| changed.reload(file.trim()));
    }
}

/// A line for each thing that the rules have.
fn lines<T: ToString>(shared: &Shared, of: impl Fn(&RuleSet) -> &[T]) -> String {
    let (_, rules) = shared.get();
    rules.iter().flat_map(|rules| of(rules)).map(|thing| thing.to_string() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz, ip, udp};
    use crate::{Packet, packet::anno};
    use bifolio_testing::seed;

    /// Both outputs.
    fn outputs(config: &str) -> Harness {
        Harness::new(&format!("give :: Give -> m :: IDSMatcher({config}) -> clean :: Take; m[1] -> bad :: Take"))
    }

    fn rules_file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn tcp(options: usize, payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; 20 + options];
        segment[12] = (5 + options as u8 / 4) << 4;
        segment.extend(payload);
        ip(6, [1; 4], [2; 4], &segment)
    }

    #[test]
    fn literals_are_searched_in_all_of_a_packet() {
        let mut harness = outputs(r#"PATTERN abc "x y" "\<00 ff>""#);
        let packets: [&[u8]; 6] = [b"abc", b"zzx y", b"ab c", b"\x01\x00\xff", b"", b"ABC"];
        harness.give("give", packets.map(Packet::from_slice));
        assert_eq!(harness.take_bytes("bad"), [packets[0], packets[1], packets[3]]);
        assert_eq!(harness.take_bytes("clean"), [packets[2], packets[4], packets[5]]);
        assert_eq!(
            (harness.read("m.count"), harness.read("m.matches")),
            ("3".into(), "1\t1\t\n2\t1\t\n3\t1\t\n".into())
        );
        assert!(harness.read("m.rules").ends_with("content:\"|00 FF|\"; sid:3; )\n"));
        harness.write("m.reset", "").unwrap();
        assert_eq!((harness.read("m.count"), harness.read("m.matches")), ("0".into(), String::new()));
    }

    #[test]
    fn the_case_of_letters_counts_unless_it_does_not() {
        let mut harness = outputs("PATTERN abc, NOCASE true");
        harness.give_bytes("give", b"xABcx");
        assert_eq!(harness.take("bad").len(), 1);
    }

    #[test]
    fn random_payloads_go_where_a_naive_search_sends_them() {
        let mut random = fastrand::Rng::with_seed(seed());
        let mut word = |most| (0..random.usize(1..=most)).map(|_| random.u8(b'a'..b'd')).collect::<Vec<u8>>();
        let literals: Vec<String> = (0..5).map(|_| String::from_utf8(word(5)).unwrap()).collect();
        let packets: Vec<Vec<u8>> = (0..300).map(|_| word(20)).collect();
        let mut harness = outputs(&format!("PATTERN {}", literals.join(" ")));
        harness.give("give", packets.iter().map(|packet| Packet::from_slice(packet)));
        let (bad, clean): (Vec<_>, Vec<_>) = packets.into_iter().partition(|packet| {
            let text = std::str::from_utf8(packet).unwrap();
            literals.iter().any(|literal| text.contains(literal))
        });
        assert_eq!((harness.take_bytes("bad"), harness.take_bytes("clean")), (bad, clean), "{literals:?}");
    }

    #[test]
    fn only_what_follows_known_headers_is_searched() {
        let mut harness = Harness::new(
            "give :: Give -> MarkIPHeader -> m :: IDSMatcher(PATTERN \"\\<45>\" \"\\<02020202>\" evil, FIRST true) -> clean :: Take;
             m[1] -> bad :: Take",
        );
        let of = |payload: &[u8]| udp(([1; 4], 9), ([2; 4], 9), payload);
        let padded = [of(b"good"), b"evil".to_vec()].concat();
        harness.give("give", [of(b"good"), padded, tcp(8, b"good")].map(|bytes| Packet::from_slice(&bytes)));
        assert_eq!((harness.take("clean").len(), harness.take("bad").len()), (3, 0));
        let mut lies = tcp(0, b"evil");
        lies[32] = 0xf0;
        let mut short = of(b"evil");
        short[2..4].copy_from_slice(&[0, 3]);
        let mut fragment = ip(17, [1; 4], [2; 4], b"evil");
        fragment[7] = 1;
        let all = [of(b"evil"), tcp(8, b"an evil one"), lies, short, fragment, ip(50, [1; 4], [3; 4], b"evil")];
        harness.give("give", all.map(|bytes| Packet::from_slice(&bytes)));
        assert_eq!((harness.take("clean").len(), harness.take("bad").len()), (0, 6));
    }

    #[test]
    fn without_a_second_output_annotations_tell() {
        for (arguments, at) in [("", anno::PAINT), (", ANNO 3", 3)] {
            for join in [" -> ", " -> Queue -> "] {
                let config =
                    format!("give :: Give{join}IDSMatcher(PATTERN aa bb, SID_ANNO 24{arguments}) -> take :: Take");
                let mut harness = Harness::new(&config);
                let packets = [&b"xbb"[..], b"x", b"bbaa"].map(|bytes| {
                    let mut packet = Packet::from_slice(bytes);
                    packet.set_anno_u8(at, 9);
                    packet.set_anno_u32(24, 9);
                    packet
                });
                harness.give("give", packets);
                let taken = harness.take("take");
                let seen: Vec<_> = taken.iter().map(|packet| (packet.anno_u8(at), packet.anno_u32(24))).collect();
                assert_eq!(seen, [(1, 2), (0, 0), (1, 2)], "{config}");
            }
        }
    }

    #[test]
    fn every_rule_is_counted_once_a_packet_or_only_the_first() {
        for (arguments, expected) in [("", "1\t1\t\n2\t1\t\n"), (", FIRST true", "2\t1\t\n")] {
            let mut harness = outputs(&format!("PATTERN aa b{arguments}"));
            harness.give_bytes("give", b"bbaaaabb");
            assert_eq!(harness.read("m.matches"), expected);
        }
    }

    const RULES: &str = "# a comment\n\
        alert tcp any any -> any 80 ( msg:\"one\"; content:\"evil\",nocase; content:\"root\",distance 1,within 4; sid:7; )\n\
        alert tcp any any -> any 80 ( msg:\"two\"; content:\"worse\"; pcre:\"/x/\"; sid:8; )\nnonsense\n";

    #[test]
    fn rules_of_a_file_are_searched_with_their_places() {
        let file = rules_file(RULES);
        let mut harness = outputs(&format!("RULES {}", file.path().display()));
        let packets: [&[u8]; 5] = [b"EVIL root", b"evilroot", b"evil  root", b"evil evil.root", b"worse"];
        harness.give("give", packets.map(Packet::from_slice));
        assert_eq!(harness.take_bytes("bad"), [packets[0], packets[3], packets[4]]);
        assert_eq!(harness.read("m.matches"), "7\t2\tone\n8\t1\ttwo\n");
        let errors = "line 3: rule 8: not evaluated: pcre\nline 4: not loaded: it has no options in parentheses\n";
        assert_eq!(harness.read("m.errors"), errors);
        assert_eq!(harness.read("m.rules").lines().count(), 2);
    }

    #[test]
    fn rules_are_exchanged_and_a_bad_file_changes_nothing() {
        let (first, second) =
            (rules_file(RULES), rules_file("alert ip any any -> any any ( content:\"new\"; sid:9; )"));
        let mut harness = outputs(&format!("RULES {}", first.path().display()));
        let packets = [&b"worse"[..], b"new"].map(Packet::from_slice);
        harness.give("give", packets.clone());
        assert_eq!(harness.take_bytes("bad"), [b"worse"]);
        harness.write("m.reload", second.path().to_str().unwrap()).unwrap();
        harness.give("give", packets.clone());
        assert_eq!(harness.take_bytes("bad"), [b"new"]);
        assert_eq!((harness.read("m.matches"), harness.read("m.count")), ("9\t1\t\n".into(), "2".into()));

        let told = harness.write("m.reload", "/nonexistent/rules").unwrap_err();
        assert!(told.contains("/nonexistent/rules: No such file or directory"), "{told}");
        std::fs::write(second.path(), "nonsense\n").unwrap();
        let told = harness.write("m.reload", "").unwrap_err();
        assert!(told.ends_with("there are no rules"), "{told}");
        harness.give("give", packets);
        assert_eq!(harness.take_bytes("bad"), [b"new"]);
        assert_eq!(harness.take("clean").len(), 3);
    }

    #[test]
    fn what_is_wrong_with_arguments_is_told() {
        for (arguments, expected) in [
            ("", "one of RULES and PATTERN is needed"),
            ("RULES x, PATTERN y", "one of RULES and PATTERN is needed"),
            ("PATTERN \"\"", "PATTERN: a literal has no bytes"),
            ("RULES /nonexistent/rules", "RULES: /nonexistent/rules: No such file or directory"),
            ("PATTERN a, ANNO 48", "ANNO: "),
            ("PATTERN a, SID_ANNO 45", "SID_ANNO: "),
            ("abc", "too many arguments"),
            ("PATTERN a, DEPTH 3", "DEPTH: unknown argument"),
        ] {
            let told = Harness::errors(&format!("Give -> IDSMatcher({arguments}) -> Take"));
            assert!(told.contains(expected), "{arguments}: {told}");
        }
        let mut harness = outputs("PATTERN a");
        assert_eq!(harness.write("m.reload", "").unwrap_err().lines().last(), Some("no file of rules to load again"));
    }

    #[test]
    fn any_packet_is_survived() {
        fuzz("give :: Give -> m :: IDSMatcher(PATTERN \"\\<0a>\" abc) -> a :: Take; m[1] -> b :: Take", &["a", "b"]);
    }
}
