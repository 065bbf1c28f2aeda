//! IDSMatcher: searches payloads for rules of Snort or Suricata, or for literals.
//!
//! `IDSMatcher(RULES FILE | PATTERN "LITERAL" ... [, VARIABLES, NOCASE, FIRST, ANNO, SID_ANNO, STREAM, FLOWS, TAIL])`: agnostic; packets in which nothing is found
//! go to output 0, and those that match to output 1 (push). Without output 1 all go to output 0, and ANNO tells them apart:
//! `IDSMatcher(...) -> CheckPaint(1)`.
//!
//! - RULES: a file of rules. What of it is not understood is told by the handler `errors`; the rest is loaded.
//! - VARIABLES: what names stand for that rules have behind `$`, each a name and a value in quotes:
//!   `VARIABLES "HOME_NET [10.0.0.0/8,!10.9.0.0/16]" "EXTERNAL_NET !$HOME_NET" "HTTP_PORTS [80,8000:8080]"`. A variable without a
//!   value stands for any address or port.
//! - PATTERN: literals, each a word or quoted (`"\<00 ff>"` for bytes), rules by themselves with the numbers 1, 2, ….
//! - NOCASE: whether letters of PATTERN match their capitals. False by default.
//! - FIRST: whether the search ends at the first rule that matches. False by default: all that match are counted.
//! - ANNO: an annotation of one byte, set to 1 in packets that match and to 0 in others. `PAINT` by default where there is no
//!   output 1; where there is one, none.
//! - SID_ANNO: an annotation of four bytes, set to the number (`sid`) of the first rule found, and to 0 where there is none.
//!   None by default.
//! - STREAM: whether literals are found, too, that begin in a packet of a TCP flow and end in the next one. False by default.
//!   Packets have to come in their order; one that does not begin where the one before it ended is searched alone, and
//!   counted by `strays`. Fragments are searched alone.
//! - FLOWS: how many flows are followed at most, each in one direction, 1 to 1,048,576 (65,536). A new one takes the place of that
//!   from which nothing has come for the longest time.
//! - TAIL: how many bytes of each are kept at most, 1 to 4096 (256), and no more than the longest literal needs.
//!
//! Searched is what follows the TCP, UDP or ICMP header where an IP header is known (up to the length that it says), and
//! else all of the packet, too where these headers contradict each other. A rule matches a packet that is between the addresses
//! and ports of its header, in that direction, and has its fast pattern, all of its contents, as far as `offset`, `depth`,
//! `distance` and `within` say where, and its `pcre`. Without a known IP header, its header is not looked at. `flow` and other
//! tests are not evaluated, nor is a `pcre` that looks around or back, and contents of a buffer such as `http_uri` are
//! looked for in all of the payload: so a rule may match more than it says. The time of `pcre` grows with the packet's
//! length and no faster. One that needs more than 256 KiB is not evaluated, nor are those beyond 128 MiB in all.
//!
//! Handlers: `count` (packets that matched), `matches` (rules that matched: number, packets, message), `rules` (as they were
//! understood), `errors` (what was not, by lines), `summary` (how many rules are evaluated as they are written, and why others are not), `flows` (that are followed), `strays`, `reset` (w: all counts), `reload` (w: a file; nothing: the same as before).
//! Packets do not wait for `reload`; where the file is bad, the rules stay as they are. The counts in `matches` begin anew.

use super::following::Streamed;
use super::inspector::Inspector;
use super::rule_files::{RuleFile, rule_handlers};
use crate::Packet;
use crate::args::{AnnoArg, Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;
use crate::streams::Streams;
use std::sync::Arc;

/// The element.
#[derive(Default)]
pub(super) struct IdsMatcher {
    file: Arc<RuleFile>,
    changes: u64,
    inspector: Inspector,
    streamed: Streamed,
    streams: Option<Streams>,
    /// What stands before the payload of the packet at hand.
    before: Vec<u8>,
}

impl IdsMatcher {
    /// Takes the rules that are to be searched for now.
    #[inline]
    fn refresh(&mut self) {
        let changes = self.file.changes();
        if changes != self.changes {
            self.changes = changes;
            self.inspector.set_rules(self.file.get().1);
        }
    }

    fn matches(&mut self) -> String {
        self.refresh();
        self.inspector.matches()
    }
}

impl Element for IdsMatcher {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.inspector.configure(args);
        self.streamed.configure(args)?;
        self.file.configure(args)?;
        self.streams = self.streamed.following(&self.file).map(Streams::new);
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if cx.outputs() == 1 {
            self.inspector.anno.get_or_insert(AnnoArg(anno::PAINT));
        }
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        self.refresh();
        self.before.clear();
        if let (Some(streams), Some(network)) = (&mut self.streams, packet.network_header()) {
            streams.follow(network, &mut self.before);
        }
        if self.inspector.inspect(&mut packet, &self.before, None) && cx.outputs() > 1 {
            cx.emit(1, packet);
            return None;
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |matcher: &mut Self, _| matcher.inspector.count);
        handlers.read("matches", |matcher: &mut Self, _| matcher.matches());
        handlers.button("reset", |matcher: &mut Self, _| matcher.inspector.reset());
        self.streamed.handlers(handlers);
        let file = Arc::clone(&self.file);
        rule_handlers(handlers, move || Arc::clone(&file));
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz, ip, udp};
    use crate::headers::payload::behind_headers;
    use crate::streams::segment;
    use crate::{Packet, packet::anno};
    use bifolio_kernels::packets::literal_match::{Listed, LiteralSearch, texts};
    use bifolio_kernels::packets::{HAS_NETWORK, PacketRows, SPANS_ALL};
    use bifolio_testing::seed;

    /// Both outputs.
    fn outputs(config: &str) -> Harness {
        Harness::new(&format!("give :: Give -> m :: IDSMatcher({config}) -> clean :: Take; m[1] -> bad :: Take"))
    }

    /// The same behind MarkIPHeader.
    fn marked(config: &str) -> Harness {
        Harness::new(&format!(
            "give :: Give -> MarkIPHeader -> m :: IDSMatcher({config}) -> clean :: Take; m[1] -> bad :: Take"
        ))
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
    fn devices_search_the_same_bytes_of_a_packet() {
        let mut random = fastrand::Rng::with_seed(seed());
        let mut differ = 0;
        for _ in 0..3000 {
            let body: Vec<u8> = (0..random.usize(..60)).map(|_| random.u8(..)).collect();
            let mut packet = match random.u8(..4) {
                0 => tcp(random.usize(..11) * 4, &body),
                1 => udp(([1; 4], 9), ([2; 4], 9), &body),
                _ => ip(random.u8(..18), [1; 4], [2; 4], &body),
            };
            if random.bool() {
                let at = random.usize(..packet.len().min(36));
                packet[at] = random.u8(..);
            }
            packet.truncate(if random.u8(..4) == 0 { random.usize(..=packet.len()) } else { packet.len() });
            let mut rows = PacketRows { spans: SPANS_ALL, network: 2, ..PacketRows::new(1, 7, 1) };
            let mut input = [packet.len() as u32 | HAS_NETWORK, 0].map(u32::to_le_bytes).concat();
            input.extend(packet.iter().copied().chain([0; 20]).take(20));
            input.extend([0; 4]);
            (rows.span_at, rows.span_bytes) = (32, packet.len().saturating_sub(20).next_multiple_of(4) as u64);
            input.extend(packet.iter().skip(20));
            input.resize(32 + rows.span_bytes as usize, 0);
            let search = LiteralSearch { rows, payload: true, list: Listed::All, first: None };
            let expected = behind_headers(&packet);
            assert_eq!(texts(&search, &input, &[0; 4])[0], expected, "{packet:?}");
            differ += usize::from(expected.is_none_or(|text| text != body));
        }
        assert!(differ > 500, "headers are hardly ever bad");
    }

    /// A flow of text, cut into packets: the text, and each packet with where its payload ends in the text.
    fn flow(random: &mut fastrand::Rng) -> (Vec<u8>, Vec<(Vec<u8>, usize)>) {
        let text: Vec<u8> = (0..random.usize(1..400)).map(|_| random.u8(b'a'..b'd')).collect();
        let (mut packets, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let end = text.len().min(at + random.usize(1..9));
            packets.push((segment([1, 2], 77 + at as u32, 0, &text[at..end]), end));
            at = end;
        }
        (text, packets)
    }

    #[test]
    fn literals_across_packets_are_found_where_they_end() {
        let mut random = fastrand::Rng::with_seed(seed());
        let (mut found, mut across) = (0, 0);
        for _ in 0..40 {
            let literals: Vec<Vec<u8>> =
                (0..4).map(|_| (0..random.usize(3..9)).map(|_| random.u8(b'a'..b'd')).collect()).collect();
            let tail = [2, 5, 100][random.usize(..3)];
            let words = literals.iter().map(|literal| String::from_utf8(literal.clone()).unwrap()).collect::<Vec<_>>();
            let config = format!("PATTERN {}, STREAM true, TAIL {tail}", words.join(" "));
            let mut harness = marked(&config);
            let (text, packets) = flow(&mut random);
            let (mut bad, mut begin) = (Vec::new(), 0);
            for (packet, end) in &packets {
                let begins_at = |at: usize| at >= begin || begin - at <= tail;
                let ends_here = |end: usize| {
                    literals.iter().any(|literal| text[..end].ends_with(literal) && begins_at(end - literal.len()))
                };
                if (begin + 1..=*end).any(ends_here) {
                    bad.push(packet.clone());
                    let alone =
                        |literal: &Vec<u8>| text[begin..*end].windows(literal.len()).any(|part| part == literal);
                    across += usize::from(!literals.iter().any(alone));
                }
                begin = *end;
            }
            found += bad.len();
            harness.give("give", packets.iter().map(|(packet, _)| Packet::from_slice(packet)));
            assert_eq!(harness.take_bytes("bad"), bad, "{config} in {:?}", String::from_utf8_lossy(&text));
            assert_eq!((harness.read("m.strays"), harness.read("m.flows")), ("0".into(), "1".into()));
        }
        assert!(across > 50 && found > across, "{found} packets, {across} of them by what was before");
    }

    #[test]
    fn places_of_contents_count_from_the_payload() {
        let file = rules_file(
            "alert ip any any -> any any ( content:\"abc\"; sid:1; )
             alert ip any any -> any any ( content:\"abc\",offset 0; sid:2; )
             alert ip any any -> any any ( content:\"abc\",depth 3; sid:3; )
             alert ip any any -> any any ( content:\"a\"; content:\"c\",fast_pattern,distance 0; sid:4; )
             alert ip any any -> any any ( content:\"c\",depth 1; content:\"xy\"; sid:5; )
             alert ip any any -> any any ( content:\"xya\"; sid:6; )",
        );
        let config = format!("RULES {}, STREAM true", file.path().display());
        let mut harness = marked(&config);
        let packets = [segment([1, 2], 0, 0, b".xya"), segment([1, 2], 4, 0, b"bc"), segment([1, 2], 6, 0, b"cxy")];
        harness.give("give", packets.iter().map(|packet| Packet::from_slice(packet)));
        assert_eq!(harness.read("m.matches"), "1\t1\t\n4\t1\t\n5\t1\t\n6\t1\t\n");
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
        alert tcp any any -> any 80 ( msg:\"two\"; content:\"worse\"; pcre:\"/(x)\\1/\"; sid:8; )\nnonsense\n";

    #[test]
    fn rules_of_a_file_are_searched_with_their_places() {
        let file = rules_file(RULES);
        let mut harness = outputs(&format!("RULES {}", file.path().display()));
        let packets: [&[u8]; 5] = [b"EVIL root", b"evilroot", b"evil  root", b"evil evil.root", b"worse"];
        harness.give("give", packets.map(Packet::from_slice));
        assert_eq!(harness.take_bytes("bad"), [packets[0], packets[3], packets[4]]);
        assert_eq!(harness.read("m.matches"), "7\t2\tone\n8\t1\ttwo\n");
        let errors = "line 3: rule 8: not evaluated: pcre has a backreference\nline 4: not loaded: it has no options in parentheses\n";
        assert_eq!(harness.read("m.errors"), errors);
        assert_eq!(harness.read("m.rules").lines().count(), 2);
    }

    #[test]
    fn headers_of_rules_are_compared_with_those_of_packets() {
        let file = rules_file(
            "alert udp $HOME any -> !$HOME $DNS ( content:\"x\"; sid:1; )
             alert udp any $DNS -> any any ( content:\"x\"; sid:2; )
             alert tcp any any -> any any ( content:\"x\"; sid:3; )
             alert ip [1.1.1.1,$OTHER] any <> 9.9.9.9 any ( content:\"x\"; sid:4; )",
        );
        let variables = "VARIABLES \"HOME [1.0.0.0/8]\" \"DNS 53\"";
        let mut harness = marked(&format!("RULES {}, {variables}, SID_ANNO 20, FIRST true", file.path().display()));
        let of = |from: ([u8; 4], u16), to: ([u8; 4], u16)| Packet::from_slice(&udp(from, to, b"x"));
        let packets = [
            of(([1; 4], 9), ([2; 4], 53)),
            of(([1; 4], 53), ([1; 4], 53)),
            of(([1; 4], 9), ([1; 4], 9)),
            of(([9; 4], 9), ([2; 4], 9)),
            Packet::from_slice(&tcp(0, b"x")),
        ];
        harness.give("give", packets);
        let found: Vec<_> = harness.take("bad").iter().map(|packet| packet.anno_u32(20)).collect();
        assert_eq!((found, harness.take("clean").len()), (vec![1, 2, 4, 3], 1));
        let told = Harness::errors("Give -> IDSMatcher(PATTERN a, VARIABLES \"X 1.2\") -> Take");
        assert!(told.contains("VARIABLES: X: '1.2' is no address"), "{told}");
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
            ("PATTERN a, STREAM true, TAIL 0", "TAIL: must be between 1 and 4096"),
            ("PATTERN a, STREAM true, FLOWS 1048577", "FLOWS: must be between 1 and 1048576"),
            ("abc", "too many arguments"),
            ("PATTERN a, DEPTH 3", "DEPTH: unknown argument"),
        ] {
            let told = Harness::errors(&format!("Give -> IDSMatcher({arguments}) -> Take"));
            assert!(told.contains(expected), "{arguments}: {told}");
        }
        let mut harness = outputs("PATTERN a");
        assert_eq!(harness.write("m.reload", "").unwrap_err().lines().last(), Some("no file of rules to load again"));
    }

    /// A rule with this content and other options.
    fn rule(content: &str, more: &str) -> String {
        format!("alert ip any any -> any any ( content:\"{content}\"; {more} )\n")
    }

    /// Random letters: literals that have no prefixes in common.
    fn letters(random: &mut fastrand::Rng, len: usize) -> String {
        (0..len).map(|_| random.alphabetic()).collect()
    }

    #[test]
    fn hostile_rules_are_refused_by_a_bound_in_configurations_and_at_reload() {
        let mut random = fastrand::Rng::with_seed(seed());
        let mut many = |count: usize, len: usize, more: &str| -> String {
            (0..count).map(|_| rule(&letters(&mut random, len), more)).collect()
        };
        let good = rules_file(&rule("good", "sid:1;"));
        for (what, text, told) in [
            ("a million states", many(17_000, 60, ""), "the literals have more than 524288 bytes together"),
            (
                "a million states of both cases",
                many(17_000, 60, "nocase;"),
                "the literals have more than 524288 bytes together",
            ),
            ("one line of megabytes", rule(&"x".repeat(3 << 20), ""), "there are no rules"),
            (
                "a rule over a million lines",
                "alert ip any any -> any any (\n ".to_owned() + &"a\n ".repeat(1 << 20),
                "there are no rules",
            ),
            ("a million lines that say nothing", "x\n".repeat(1 << 20), "there are no rules"),
            ("nothing", String::new(), "there are no rules"),
        ] {
            let file = rules_file(&text);
            let path = file.path().display();
            let said = Harness::errors(&format!("Give -> IDSMatcher(RULES {path}) -> Take"));
            assert!(said.contains(told) && said.len() < 500, "{what}: {said}");
            let mut harness = outputs(&format!("RULES {}", good.path().display()));
            let said = harness.write("m.reload", &path.to_string()).unwrap_err();
            assert!(said.ends_with(told), "{what}: {said}");
            harness.give_bytes("give", b"good");
            assert_eq!(harness.take("bad").len(), 1, "{what}");
        }
        let long = tempfile::NamedTempFile::new().unwrap();
        long.as_file().set_len(65 << 20).unwrap();
        let said = Harness::errors(&format!("Give -> IDSMatcher(RULES {}) -> Take", long.path().display()));
        assert!(said.contains("more than 67108864 bytes"), "{said}");
    }

    #[test]
    fn hostile_expressions_are_left_out_and_the_rest_is_loaded() {
        let deep = format!("{}x{}", "(".repeat(5000), ")".repeat(5000));
        let hostile = ["((a{99}){99}){99}", "(a+)+(b|b)*$", &deep, "(x+x+)+y", "[^\\x00]{0,60000}z"];
        let text: String =
            (1..).zip(hostile).map(|(sid, pcre)| rule("a", &format!("pcre:\"/{pcre}/i\"; sid:{sid};"))).collect();
        let file = rules_file(&(text + &rule("a", "sid:9;")));
        let mut harness = outputs(&format!("RULES {}", file.path().display()));
        let errors = harness.read("m.errors");
        assert!(errors.contains("line 1: rule 1: not evaluated: pcre needs more than 262144 bytes"), "{errors}");
        assert!(errors.contains("line 3: rule 3: not evaluated: pcre is not understood: exceed"), "{errors}");
        assert!(errors.contains("line 5: rule 5: not evaluated: pcre needs more"), "{errors}");
        assert_eq!((errors.lines().count(), harness.read("m.rules").lines().count()), (3, 6));
        // What takes those who go back for ever.
        harness.give_bytes("give", &[b'a'; 9000]);
        assert_eq!(harness.read("m.matches"), "1\t1\t\n2\t1\t\n3\t1\t\n5\t1\t\n9\t1\t\n");
    }

    #[test]
    fn as_many_literals_as_there_may_be_are_searched_without_their_case() {
        let mut random = fastrand::Rng::with_seed(seed());
        let words: Vec<String> = (0..4000).map(|_| letters(&mut random, 120)).collect();
        let file = rules_file(&words.iter().map(|word| rule(word, "nocase;")).collect::<String>());
        let mut harness = outputs(&format!("RULES {}", file.path().display()));
        harness.give_bytes("give", words[17].to_ascii_lowercase().as_bytes());
        assert_eq!(harness.take("bad").len(), 1);
    }

    #[test]
    fn any_packet_is_survived() {
        fuzz("give :: Give -> m :: IDSMatcher(PATTERN \"\\<0a>\" abc) -> a :: Take; m[1] -> b :: Take", &["a", "b"]);
    }
}
