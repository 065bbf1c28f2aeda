//! Rules read and written, and searched for against a naive search.

use super::{Content, Facts, Opt, Rule, RuleSet, Rules, Scratch, Text, parse};
use bifolio_testing::{noise, seed};
use std::ops::ControlFlow;

#[track_caller]
fn one(text: &str) -> Rule {
    let read = parse(text.as_bytes());
    assert_eq!(read.rules.len(), 1, "{:?}", read.problems);
    read.rules.into_iter().next().unwrap()
}

fn contents(text: &str) -> Vec<Content> {
    one(text).contents().cloned().collect()
}

/// What is said of rules, but for those that are loaded without a word.
fn problems(text: &str) -> Vec<String> {
    parse(text.as_bytes()).problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_rule_of_snort_3_is_read() {
    let rule = one(
        "alert tcp [10.0.0.0/8, !10.1.0.0/16] any -> $HOME_NET 80 ( msg:\"a \\\"b\\\"; c\"; flow:to_server; \
         http_uri; content:\"/x|0d 0A|\\;\",fast_pattern,nocase; pkt_data; content:!\"y\",offset 3,depth 4; sid:12; rev:2; )",
    );
    assert_eq!((rule.sid, &rule.msg[..], rule.line), (12, "a \"b\"; c", 1));
    assert_eq!(rule.header.to_string(), "alert tcp [10.0.0.0/8,!10.1.0.0/16] any -> $HOME_NET 80");
    let expected = [
        Content {
            bytes: b"/x\r\n;".to_vec(),
            is_nocase: true,
            is_fast_pattern: true,
            buffer: Some("http_uri".into()),
            ..Content::default()
        },
        Content { bytes: b"y".to_vec(), is_negated: true, offset: Some(3), depth: Some(4), ..Content::default() },
    ];
    assert_eq!(rule.contents().cloned().collect::<Vec<_>>(), expected);
}

#[test]
fn a_rule_of_snort_2_has_modifiers_behind_contents() {
    let of = contents(
        "alert tcp any any -> any any (content:\"a\"; nocase; http_uri; content:\"b\"; distance:-2; within:7; \
         uricontent:\"c\"; file_data; content:\"d\"; fast_pattern:only; content:\"e\"; startswith;)",
    );
    let buffers: Vec<_> = of.iter().map(|content| content.buffer.as_deref()).collect();
    assert_eq!(buffers, [Some("http_uri"), None, Some("http_uri"), Some("file_data"), Some("file_data")]);
    assert!(of[0].is_nocase && of[3].is_fast_pattern);
    assert_eq!((of[1].distance, of[1].within, of[4].offset, of[4].depth), (Some(-2), Some(7), Some(0), Some(1)));
}

#[test]
fn a_rule_of_suricata_names_buffers_with_dots() {
    let of = contents(
        "alert http any any -> any any (msg:\"x\"; http.uri; content:\"a\"; nocase; http.header_names; content:\"b\"; pkt_data; \
         content:\"c\"; sid:1;)",
    );
    let buffers: Vec<_> = of.iter().map(|content| content.buffer.as_deref()).collect();
    assert_eq!(buffers, [Some("http.uri"), Some("http.header_names"), None]);
}

#[test]
fn rules_may_go_on_in_the_next_line() {
    let read = parse(
        b"# comment ( content:\"no\"; )\n\nalert tcp any any -> any any \\\n (content:\"a\"; sid:1;)\r\n\
          alert http (\n\tcontent:\"b\";\n  sid:2;\n)\nalert file (content:\"c\"; sid:3;)",
    );
    assert_eq!(read.problems, []);
    let lines: Vec<_> = read.rules.iter().map(|rule| (rule.line, rule.sid)).collect();
    assert_eq!(lines, [(3, 1), (5, 2), (9, 3)]);
}

#[test]
fn the_fast_pattern_is_the_marked_one_or_the_longest() {
    let fast = |options: &str| {
        let rule = one(&format!("alert tcp any any -> any any ({options})"));
        String::from_utf8(rule.fast_pattern().unwrap().bytes.clone()).unwrap()
    };
    assert_eq!(fast("content:\"ab\"; content:\"cd\"; content:!\"long\";"), "ab");
    assert_eq!(fast("content:\"ab\"; content:\"cde\";"), "cde");
    assert_eq!(fast("content:\"abcd\",fast_pattern; content:\"efghi\";"), "abcd");
    assert_eq!(fast("content:\"ab\",fast_pattern; content:\"cde\";"), "cde");
    assert_eq!(fast("content:\"cd\"; content:\"ab\",fast_pattern;"), "ab");
}

#[test]
fn what_is_not_understood_is_told_by_line() {
    let rule = |options: &str| format!("alert tcp any any -> any any ({options} sid:5;)");
    for (text, expected) in [
        ("include x.rules".into(), "not loaded: it has no options in parentheses"),
        (
            "alert tcp any any -> any (content:\"a\";)".into(),
            "not loaded: its header has neither seven words nor one or two",
        ),
        ("alert tcp any any >> any any (content:\"a\";)".into(), "not loaded: its direction is '>>'"),
        ("alert tcp any any -> any any (content:\"a\";".into(), "not loaded: its options have no closing parenthesis"),
        (rule("content:\"a|0|\";"), "not loaded: content has an odd number of digits between bars"),
        (rule("content:\"a|0g|\";"), "not loaded: content has something between bars that is no hexadecimal digit"),
        (rule("content:\"a|00\";"), "not loaded: content has no closing bar"),
        (rule("content:\"\";"), "not loaded: content has no bytes"),
        (rule("content:a;"), "not loaded: content has no quotes"),
        (rule("content:\"a;"), "not loaded: a quote in it has no end"),
        (rule("content:!\"a\";"), "not loaded: it has no content to search for"),
        (rule("flow:to_server;"), "not loaded: it has no content to search for"),
        (rule("content:\"a\"; sid:x;"), "not loaded: its sid is no number"),
        (
            rule("content:\"a\",depth size; byte_test:1,>,2,3; byte_test:1,<,2,4;"),
            "rule 5: not evaluated: depth size, byte_test",
        ),
        (
            rule("content:\"a\"; content:!\"b\"; depth:x; content:\"c\"; within:99999;"),
            "rule 5: not evaluated: depth, within",
        ),
        (rule("nocase; content:\"a\"; pcre:\"/a;b/\";"), "rule 5: not evaluated: nocase"),
        (
            rule(&format!("content:\"a\"; {}", "pcre:\"/a/\";".repeat(17))),
            "not loaded: it has more than 16 regular expressions",
        ),
        (rule(&"content:\"a\";".repeat(65)), "not loaded: it has more than 64 contents"),
        (rule(&"a;".repeat(512)), "not loaded: it has more than 512 options"),
        (format!("alert{}tcp", " ".repeat(70_000)), "not loaded: it has more than 65536 bytes"),
    ] {
        assert_eq!(problems(&text), [format!("line 1: {expected}")], "{text}");
    }
    let negated = contents(&rule("content:\"a\"; content:!\"b\"; depth:x;"));
    assert_eq!(negated.len(), 1, "it would be looked for everywhere, and refuse too much");
}

/// Text that may stand anywhere in a rule.
fn words(random: &mut fastrand::Rng) -> String {
    (0..random.usize(1..9))
        .map(|_| ['a', 'é', '"', ';', '\\', '(', ')', ':', '|', ',', 'Z'][random.usize(..11)])
        .collect()
}

fn random_content(random: &mut fastrand::Rng) -> Content {
    let number = |random: &mut fastrand::Rng| random.bool().then(|| random.i32(-9..99));
    let buffers = ["http_uri", "file_data", "http.host", "http_header:field host"];
    Content {
        bytes: noise(random.usize(1..12), random.u64(..)),
        is_negated: random.u8(..4) == 0,
        is_nocase: random.bool(),
        is_fast_pattern: random.u8(..4) == 0,
        offset: number(random),
        depth: number(random),
        distance: number(random),
        within: number(random),
        buffer: random.bool().then(|| buffers[random.usize(..4)].to_owned()),
    }
}

fn random_rule(line: usize, random: &mut fastrand::Rng) -> Rule {
    let mut rule = one("alert tcp $A [1,2] <> any 7 ( content:\"first\"; )");
    (rule.line, rule.sid, rule.msg) = (line, random.u32(..), words(random));
    for _ in 0..random.usize(..6) {
        rule.options.push(match random.u8(..4) {
            0 => Opt::Other("flags".into(), random.bool().then(|| "S,12".into())),
            1 => Opt::Pcre { text: "\"/a\\\";b/i\"".into(), buffer: random.bool().then(|| "http_uri".into()) },
            _ => Opt::Content(random_content(random)),
        });
    }
    rule
}

#[test]
fn what_is_written_reads_back() {
    let mut random = fastrand::Rng::with_seed(seed());
    let rules: Vec<Rule> = (1..1000).map(|line| random_rule(line, &mut random)).collect();
    let text: String = rules.iter().map(|rule| rule.to_string() + "\n").collect();
    let read = parse(text.as_bytes());
    for (read, rule) in read.rules.iter().zip(&rules) {
        assert_eq!(read, rule, "{rule}");
    }
    assert_eq!(read.rules.len(), rules.len());
}

#[test]
fn any_text_is_survived_and_what_is_read_of_it_reads_back() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut count = 0;
    for _ in 0..3000 {
        let mut text = random_rule(1, &mut random).to_string().into_bytes();
        for _ in 0..random.usize(..5) {
            let (at, byte) = (random.usize(..text.len()), b"\";:\\|()!,\n\xff "[random.usize(..12)]);
            match random.u8(..3) {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ => _ = text.remove(at),
            }
        }
        for rule in parse(&text).rules {
            count += 1;
            let back = parse(rule.to_string().as_bytes());
            assert_eq!(back.rules, [Rule { line: 1, ..rule.clone() }], "{rule}");
        }
    }
    assert!(count > 300, "{count} rules");
}

/// Whether the contents from here on are where they should be, by trying every way.
fn naive(contents: &[Content], payload: &[u8], cursor: i64) -> bool {
    let Some((content, rest)) = contents.split_first() else { return true };
    let (base, from, len) = if content.is_relative() {
        (cursor, content.distance, content.within)
    } else {
        (0, content.offset, content.depth)
    };
    let start = base + i64::from(from.unwrap_or(0));
    let is_there = |at: &usize| {
        let end = at + content.bytes.len();
        let Some(found) = payload.get(*at..end) else { return false };
        let fits = *at as i64 >= start && len.is_none_or(|len| end as i64 <= start + i64::from(len));
        fits && if content.is_nocase { found.eq_ignore_ascii_case(&content.bytes) } else { found == content.bytes }
    };
    let mut places = (0..payload.len()).filter(is_there);
    if content.is_negated {
        return places.next().is_none() && naive(rest, payload, cursor);
    }
    places.any(|at| naive(rest, payload, (at + content.bytes.len()) as i64))
}

/// Contents of few letters, which are often there and often not.
fn small_rule(random: &mut fastrand::Rng) -> Rule {
    let mut rule = one("alert ip any any -> any any ( content:\"x\"; )");
    rule.options.clear();
    for at in 0..random.usize(1..5) {
        let bytes = (0..random.usize(1..4)).map(|_| b"abAB"[random.usize(..4)]).collect();
        let number = |random: &mut fastrand::Rng, low| (random.u8(..3) == 0).then(|| random.i32(low..12));
        let mut content = Content { bytes, is_nocase: random.bool(), ..Content::default() };
        content.is_negated = at > 0 && random.u8(..4) == 0;
        if random.bool() {
            (content.distance, content.within) = (number(random, -3), number(random, 1));
        } else {
            (content.offset, content.depth) = (number(random, 0), number(random, 1));
        }
        rule.options.push(Opt::Content(content));
    }
    rule
}

fn found(set: &RuleSet, payload: &[u8], scratch: &mut Scratch) -> Vec<u32> {
    let mut found = Vec::new();
    set.search(payload.into(), scratch, |rule| {
        found.push(rule);
        ControlFlow::Continue(())
    });
    found.sort_unstable();
    found
}

#[test]
fn rules_match_where_trying_every_way_says_so() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut matched, mut tried) = (0, 0);
    for _ in 0..150 {
        let rules: Vec<Rule> = (0..random.usize(1..30)).map(|_| small_rule(&mut random)).collect();
        let set = RuleSet::new(Rules { rules: rules.clone(), problems: Vec::new() }).unwrap();
        let mut scratch = Scratch::default();
        for _ in 0..20 {
            let payload: Vec<u8> = (0..random.usize(..25)).map(|_| b"abABc"[random.usize(..5)]).collect();
            let is_met = |rule: &Rule| naive(&rule.contents().cloned().collect::<Vec<_>>(), &payload, 0);
            let expected: Vec<u32> = (0..).zip(&rules).filter(|(_, rule)| is_met(rule)).map(|(at, _)| at).collect();
            assert_eq!(found(&set, &payload, &mut scratch), expected, "{rules:?} in {payload:?}");
            (matched, tried) = (matched + expected.len(), tried + rules.len());
        }
    }
    assert!(matched * 20 > tried && matched * 10 < tried * 9, "{matched} of {tried} match");
}

/// Where a rule's fast pattern ends first behind `begin`.
fn first_end(rule: &Rule, text: &[u8], begin: usize) -> Option<usize> {
    let content = rule.fast_pattern()?;
    let is_it =
        |part: &[u8]| if content.is_nocase { part.eq_ignore_ascii_case(&content.bytes) } else { part == content.bytes };
    let len = content.bytes.len();
    (begin + 1..=text.len()).find(|end| *end >= len && is_it(&text[end - len..*end]))
}

/// Rules apart are found one by one, the others by an automaton, or by a device: in which way must not be seen.
#[test]
fn rules_come_in_the_order_in_which_their_fast_patterns_end_however_they_are_found() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut matched, mut apart) = (0, 0);
    for _ in 0..150 {
        let mut numbers = std::collections::HashMap::new();
        let rules: Vec<Rule> = (0..random.usize(1..40))
            .map(|_| {
                let header = [
                    "tcp any any -> any 7",
                    "tcp any [7,8] <> any any",
                    "ip any any -> any any",
                    "udp any any -> any 7",
                ];
                let mut rule = small_rule(&mut random);
                rule.header = one(&format!("alert {} ( content:\"x\"; )", header[random.usize(..4)])).header;
                rule
            })
            .collect();
        let literal = |rule: &Rule| rule.fast_pattern().map(|content| (content.bytes.clone(), content.is_nocase));
        for rule in &rules {
            let count = numbers.len();
            numbers.entry(literal(rule)).or_insert(count);
        }
        let set = RuleSet::new(Rules { rules: rules.clone(), problems: Vec::new() }).unwrap();
        apart += set.apart().of(None).count();
        let mut scratch = Scratch::default();
        for _ in 0..20 {
            let bytes: Vec<u8> = (0..random.usize(..30)).map(|_| b"abABc"[random.usize(..5)]).collect();
            let begin = if random.bool() { random.usize(..=bytes.len()) } else { 0 };
            let ports = [random.u16(7..10), random.u16(7..10)];
            let facts = random.bool().then(|| Facts::of(&crate::streams::segment(ports, 0, 0, b"")).unwrap());
            let text = Text { bytes: &bytes, begin, facts };
            let mut all = Vec::new();
            set.search(text, &mut scratch, |rule| {
                all.push(rule);
                ControlFlow::Continue(())
            });
            let mut found = Vec::new();
            set.search_found(text, &set.automaton().all(&bytes), &mut scratch, |rule| {
                found.push(rule);
                ControlFlow::Continue(())
            });
            assert_eq!(found, all);
            let key = |rule: &u32| {
                let rule = &rules[*rule as usize];
                let end = first_end(rule, &bytes, begin).expect("it matches");
                (end, std::cmp::Reverse(rule.fast_pattern().unwrap().bytes.len()), numbers[&literal(rule)])
            };
            assert!(all.is_sorted_by_key(|rule| (key(rule), *rule)), "{all:?} of {rules:?} in {bytes:?}");
            let is_met = |rule: &Rule| {
                let ends = &rule.header.ends.as_ref().unwrap()[..];
                let is_for = facts.is_none()
                    || match &ends[4][..] {
                        "7" => rule.header.proto == "tcp" && ports[1] == 7,
                        _ if ends[1] == "[7,8]" => ports.iter().any(|port| *port < 9),
                        _ => true,
                    };
                is_for && naive(&rule.contents().cloned().collect::<Vec<_>>(), &bytes, 0)
            };
            if begin == 0 {
                let expected = (0..).zip(&rules).filter(|(_, rule)| is_met(rule)).count();
                assert_eq!(all.len(), expected, "{rules:?} in {bytes:?}, {ports:?}");
            }
            matched += all.len();
        }
    }
    assert!(matched > 1000 && apart > 500, "{matched} matched, {apart} apart");
}

#[test]
fn what_is_not_known_refuses_nothing() {
    let is_found = |options: &str, payload: &str| {
        let set = RuleSet::new(parse(format!("alert ip any any -> any any ({options})").as_bytes())).unwrap();
        !found(&set, payload.as_bytes(), &mut Scratch::default()).is_empty()
    };
    assert!(is_found("http_uri; content:\"/a\",depth 2;", "GET /a HTTP"), "a buffer begins somewhere");
    assert!(
        is_found("pkt_data; content:\"GET\"; http_uri; content:!\"HTTP\";", "GET /a HTTP"),
        "a buffer ends somewhere"
    );
    assert!(is_found("content:\"a\"; byte_jump:1,0,relative; content:\"b\",within 1;", "a---b"));
    assert!(is_found("content:\"a\"; pcre:\"/-+/R\"; content:\"b\",distance 0,within 1;", "a---b"));
    assert!(is_found("content:\"a\"; pcre:\"/(?=-)-/R\"; content:\"b\",distance 0,within 1;", "a---b"));
    assert!(is_found("http_uri; content:\"a\"; pcre:\"/^a$/\"; pcre:!\"/a/\"; pcre:\"/x/iI\";", "GET /a X"));
    assert!(!is_found("content:\"a\"; content:\"b\",within 1;", "a---b"));
    assert!(is_found("http_uri; content:\"a\"; content:\"b\",distance 1,within 1;", "a-b"));
    assert!(!is_found("http_uri; content:\"a\"; content:\"b\",distance 1,within 1;", "a--b"));
    assert!(is_found("http_uri; content:\"a\"; pkt_data; content:\"b\",distance 1,within 1;", "b--a"));
}

#[test]
fn expressions_are_a_second_pass() {
    let is_found = |options: &str, payload: &str| {
        let set = RuleSet::new(parse(format!("alert ip any any -> any any ({options})").as_bytes())).unwrap();
        assert_eq!(set.problems(), [], "{options}");
        !found(&set, payload.as_bytes(), &mut Scratch::default()).is_empty()
    };
    for (options, payload, expected) in [
        ("content:\"id\"; pcre:\"/id=[0-9]+;/\";", "id=12;", true),
        ("content:\"id\"; pcre:\"/id=[0-9]+;/\";", "id=a;", false),
        ("content:\"id\"; pcre:!\"/id=[0-9]+;/\";", "id=12;", false),
        ("content:\"id\"; pcre:!\"/id=[0-9]+;/\";", "id=a;", true),
        ("content:\"id\"; pcre:\"/^=/R\";", "id id=", true),
        ("content:\"id\"; pcre:\"/^=/R\";", "=id", false),
        ("content:\"id\"; pcre:!\"/^=/R\";", "id id=", true),
        ("content:\"id\"; pcre:!\"/^=/R\";", "id=id=", false),
        ("content:\"id\"; pcre:\"/^=+/R\"; content:\"x\",distance 0,within 1;", "id==x", true),
        ("content:\"id\"; pcre:\"/^=+/R\"; content:\"x\",distance 0,within 1;", "id==-x", false),
        ("content:\"id\"; pcre:\"/^x/\";", "id x", false),
        ("http_uri; content:\"/id\"; pcre:\"/^\\d/UR\";", "GET /id7", true),
        ("http_uri; content:\"/id\"; pcre:\"/^\\d/UR\";", "GET /idx", false),
    ] {
        assert_eq!(is_found(options, payload), expected, "{options} in {payload}");
    }
    // More places than are tried: what has to begin at one of them may do so at the others.
    let far = format!("{}=", "id".repeat(100));
    assert!(is_found("content:\"id\"; pcre:\"/^=/R\";", &far));
    assert!(!is_found("content:\"id\"; pcre:\"/x/R\";", &far));
}

#[test]
fn what_is_not_evaluated_of_headers_and_expressions_is_told_by_line() {
    let text = "alert http any any -> any any (content:\"a\"; pcre:\"/(?=a)/\"; nocase; sid:1;)\n\
                alert tcp 1.2.3 any -> any any (content:\"a\"; byte_test:1; sid:2;)\n\
                alert tcp $A any -> any any (http_uri; content:\"a\"; pcre:\"/^a/\"; sid:3;)\n";
    let set = RuleSet::new(parse(text.as_bytes())).unwrap();
    let told: Vec<String> = set.problems().iter().map(ToString::to_string).collect();
    let expected = [
        "line 1: rule 1: not evaluated: protocol http, pcre is not understood: look-around, including look-ahead and look-behind, is not supported",
        "line 2: rule 2: not evaluated: byte_test",
        "line 2: rule 2: not evaluated: '1.2.3' is no address",
        "line 3: rule 3: not evaluated: pcre with an anchor in a part of the message",
    ];
    assert_eq!(told, expected);
    assert_eq!(found(&set, b"a", &mut Scratch::default()), [0, 1, 2]);
}
