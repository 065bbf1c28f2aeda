//! AggregateCounter: counts packets or bytes for each aggregate annotation.
//!
//! `AggregateCounter([BYTES, IP_BYTES, MULTIPACKET, EXTRA_LENGTH, AGGREGATE_STOP, AGGREGATE_FREEZE, AGGREGATE_CALL, COUNT_STOP,
//! COUNT_FREEZE, COUNT_CALL, BANNER])`: one or two inputs, one or two outputs, pushed or pulled. Packets of input 1 are counted
//! only for aggregates that are known. With two outputs, pushed packets that are not counted leave by output 1.
//!
//! - BYTES (false): counts bytes. IP_BYTES (false): not those before the network header. EXTRA_LENGTH (true): those that were
//!   not captured, too. MULTIPACKET (true): a packet counts for all that it stands for.
//! - AGGREGATE_FREEZE, AGGREGATE_STOP, AGGREGATE_CALL `N [HANDLER [VALUE]]`: when one more than N aggregates come, counts only
//!   those that are known, stops the driver, or calls a handler. At most one of them.
//! - COUNT_FREEZE, COUNT_STOP, COUNT_CALL: the same when the sum of all counts is N or more.
//! - BANNER: a line at the beginning of files.
//!
//! Handlers: `write_text_file`, `write_ascii_file`, `write_file`, `write_ip_file`, `write_pdf_file` (w; a name, or `-` for standard
//! output), `freeze`, `active`, `banner`, `aggregate_call`, `count_call` (r/w), `stop`, `counts_pdf`, `reaggregate_counts`, `clear`
//! (w), `count`, `nagg`.
//!
//! Different from Click: `counts_pdf` counts no aggregates that were never seen.

use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed, HandlerCall, Raw};
use crate::element::Element;
use crate::handler::Handlers;
use crate::lang::config::{first_word, unquote};
use crate::packet::anno;
use crate::router::Cx;
use std::collections::HashMap;
use std::fmt::Write as _;

/// The element.
#[expect(clippy::struct_excessive_bools, reason = "each is an argument or a handler")]
pub(super) struct AggregateCounter {
    counts_bytes: bool,
    is_of_ip: bool,
    has_extra_packets: bool,
    has_extra_len: bool,
    is_frozen: bool,
    is_active: bool,
    counts: HashMap<u32, u32>,
    sum: u64,
    at_aggregates: Option<Limit>,
    at_count: Option<Limit>,
    banner: String,
}

impl Default for AggregateCounter {
    fn default() -> Self {
        Self {
            counts_bytes: false,
            is_of_ip: false,
            has_extra_packets: true,
            has_extra_len: true,
            is_frozen: false,
            is_active: true,
            counts: HashMap::new(),
            sum: 0,
            at_aggregates: None,
            at_count: None,
            banner: String::new(),
        }
    }
}

/// What is done at a number.
#[derive(Debug, Clone)]
struct Limit {
    at: u64,
    action: Action,
}

#[derive(Debug, Clone)]
enum Action {
    Freeze,
    Stop,
    /// As it was written, too.
    Call(HandlerCall, String),
}

impl Limit {
    /// Reads `N HANDLER [VALUE]`.
    fn parse(text: &str, cx: &ArgCx<'_>) -> Option<Self> {
        let (number, rest) = first_word(text);
        let at = u64::parse(number, cx).ok()?;
        let call = HandlerCall::parse(rest, cx).ok().filter(|call| !call.handler.is_empty())?;
        Some(Self { at, action: Action::Call(call, rest.trim().to_owned()) })
    }
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Binary,
    Ip,
    Pdf,
}

impl AggregateCounter {
    /// Reads the three arguments of a limit.
    fn limit(args: &mut Args<'_>, name: &str, what: &str) -> Option<Limit> {
        let (mut freeze, mut stop, mut call) = (None::<u64>, None::<u64>, Raw::default());
        args.key(&format!("{name}_FREEZE"), &mut freeze).key(&format!("{name}_STOP"), &mut stop);
        let has_call = args.has_key(&format!("{name}_CALL"), &mut call);
        if usize::from(freeze.is_some()) + usize::from(stop.is_some()) + usize::from(has_call) > 1 {
            let text = format!("'{name}_FREEZE', '{name}_STOP', and '{name}_CALL' are mutually exclusive");
            args.error(text);
        }
        let limit = |at: Option<u64>, action| at.map(|at| Limit { at, action });
        if has_call {
            let limit = Limit::parse(&call.0, args.cx());
            if limit.is_none() {
                args.error(format_args!("{name}_CALL first word should be unsigned ({what})"));
            }
            return limit;
        }
        limit(freeze, Action::Freeze).or_else(|| limit(stop, Action::Stop))
    }

    fn amount(&self, packet: &Packet) -> u32 {
        if !self.counts_bytes {
            let extra = if self.has_extra_packets { packet.anno_u32(anno::EXTRA_PACKETS) } else { 0 };
            return extra.saturating_add(1);
        }
        let extra = if self.has_extra_len { packet.anno_u32(anno::EXTRA_LENGTH) } else { 0 };
        let before = if self.is_of_ip { packet.network_offset().unwrap_or(0) } else { 0 };
        (packet.len() as u32).saturating_add(extra).saturating_sub(before.max(0) as u32)
    }

    /// Counts a packet; false where it is not.
    fn update(&mut self, cx: &mut Cx<'_>, packet: &Packet, is_frozen: bool) -> bool {
        let aggregate = packet.anno_u32(anno::AGGREGATE);
        let amount = self.amount(packet);
        let mut is_known = self.counts.contains_key(&aggregate);
        let is_full =
            |counter: &Self| counter.at_aggregates.as_ref().is_some_and(|l| counter.counts.len() as u64 >= l.at);
        if self.is_active && !is_known && amount > 0 && !(is_frozen || self.is_frozen) && is_full(self) {
            let limit = self.at_aggregates.take();
            self.act(cx, limit);
            is_known = self.counts.contains_key(&aggregate);
        }
        if !self.is_active || (!is_known && (is_frozen || self.is_frozen)) {
            return false;
        }
        if amount > 0 {
            let count = self.counts.entry(aggregate).or_default();
            *count = count.wrapping_add(amount).max(1);
        }
        self.sum += u64::from(amount);
        if self.at_count.as_ref().is_some_and(|limit| self.sum >= limit.at) {
            let limit = self.at_count.take();
            self.act(cx, limit);
        }
        true
    }

    fn act(&mut self, cx: &mut Cx<'_>, limit: Option<Limit>) {
        match limit.map(|limit| limit.action) {
            None => {}
            Some(Action::Freeze) => self.is_frozen = true,
            Some(Action::Stop) => self.stop(cx),
            Some(Action::Call(call, _)) => {
                let is_own = call.element == Some(cx.id());
                let result = if is_own { self.own(cx, &call) } else { cx.call(&call).map(|_| ()) };
                if let Err(error) = result {
                    cx.say(error);
                }
            }
        }
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.is_active = false;
        cx.stop_driver();
    }

    /// A handler of its own, which it calls while it counts.
    fn own(&mut self, cx: &mut Cx<'_>, call: &HandlerCall) -> Result<(), String> {
        match call.handler.as_str() {
            "freeze" => self.is_frozen = cx.parse(&call.value)?,
            "active" => self.is_active = cx.parse(&call.value)?,
            "stop" => self.stop(cx),
            "clear" => self.clear(),
            "counts_pdf" | "reaggregate_counts" => self.count_counts(),
            "aggregate_call" => self.at_aggregates = Self::parse_limit(cx, "aggregate_call", &call.value)?,
            "count_call" => self.at_count = Self::parse_limit(cx, "count_call", &call.value)?,
            name => match FILES.iter().find(|(file, _)| *file == name) {
                Some((_, form)) => return self.write_file(cx, *form, &call.value),
                None => return Err(format!("no handler named '{}.{name}'", cx.name())),
            },
        }
        Ok(())
    }

    fn parse_limit(cx: &Cx<'_>, name: &str, text: &str) -> Result<Option<Limit>, String> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let limit = Limit::parse(text, &cx.arg_cx());
        limit.map(Some).ok_or_else(|| format!("argument to '{name}' should be 'N HANDLER [VALUE]'"))
    }

    fn clear(&mut self) {
        self.counts.clear();
        self.sum = 0;
    }

    /// Counts become aggregates, and how often each of them is there their counts.
    fn count_counts(&mut self) {
        let counts = std::mem::take(&mut self.counts);
        self.sum = counts.len() as u64;
        for count in counts.into_values() {
            *self.counts.entry(count).or_default() += 1;
        }
    }

    fn text(&self, form: Form) -> Vec<u8> {
        let mut text = String::from("!IPAggregate 1.0\n");
        text += &self.banner;
        if !self.banner.is_empty() && !self.banner.ends_with('\n') {
            text.push('\n');
        }
        let _ = writeln!(text, "!num_nonzero {}", self.counts.len());
        text += match form {
            Form::Binary => "!packed_le\n",
            Form::Ip => "!ip\n",
            _ => "",
        };
        let mut counts: Vec<(u32, u32)> = self.counts.iter().map(|(aggregate, count)| (*aggregate, *count)).collect();
        counts.sort_unstable();
        let mut out = text.into_bytes();
        for (aggregate, count) in counts {
            match form {
                Form::Binary => out.extend([aggregate.to_le_bytes(), count.to_le_bytes()].concat()),
                Form::Ip => out.extend(format!("{} {count}\n", std::net::Ipv4Addr::from(aggregate)).bytes()),
                Form::Pdf => {
                    let part = f64::from(count) / self.sum as f64;
                    out.extend(format!("{aggregate} {}\n", twelve_digits(part)).bytes());
                }
                Form::Text => out.extend(format!("{aggregate} {count}\n").bytes()),
            }
        }
        out
    }

    fn write_file(&self, cx: &Cx<'_>, form: Form, name: &str) -> Result<(), String> {
        let name = unquote(name);
        let bytes = self.text(form);
        if name == "-" {
            cx.print(&String::from_utf8_lossy(&bytes));
            return Ok(());
        }
        std::fs::write(&name, bytes).map_err(|error| crate::capture::Error::io(&name, error).to_string())
    }
}

/// A number from 0 to 1 with up to twelve digits that count, as `%.12g` prints it.
fn twelve_digits(value: f64) -> String {
    let text = format!("{value:.11e}");
    let exponent: i32 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    if exponent >= -4 {
        let digits = usize::try_from(11 - exponent).unwrap_or(0);
        let fixed = format!("{value:.digits$}");
        return if fixed.contains('.') { fixed.trim_end_matches('0').trim_end_matches('.').to_owned() } else { fixed };
    }
    let mantissa = text.split('e').next().unwrap_or_default();
    format!("{}e-{:02}", mantissa.trim_end_matches('0').trim_end_matches('.'), -exponent)
}

/// Handlers that write files.
const FILES: [(&str, Form); 5] = [
    ("write_text_file", Form::Text),
    ("write_ascii_file", Form::Text),
    ("write_file", Form::Binary),
    ("write_ip_file", Form::Ip),
    ("write_pdf_file", Form::Pdf),
];

impl Element for AggregateCounter {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.key("BYTES", &mut self.counts_bytes).key("IP_BYTES", &mut self.is_of_ip);
        args.key("MULTIPACKET", &mut self.has_extra_packets).key("EXTRA_LENGTH", &mut self.has_extra_len);
        self.at_aggregates = Self::limit(args, "AGGREGATE", "number of aggregates");
        self.at_count = Self::limit(args, "COUNT", "count");
        args.key("BANNER", &mut self.banner).finish()
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        let is_counted = self.update(cx, &packet, port == 1);
        cx.emit(usize::from(!is_counted && cx.outputs() > 1), packet);
    }

    fn pull(&mut self, cx: &mut Cx<'_>, port: usize) -> Option<Packet> {
        let packet = cx.pull(if cx.inputs() == 1 { 0 } else { port })?;
        self.update(cx, &packet, port == 1);
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        for (name, form) in FILES {
            handlers.write(name, move |counter: &mut Self, cx, text| counter.write_file(cx, form, text));
        }
        handlers.data("freeze", |counter: &mut Self| &mut counter.is_frozen);
        handlers.data("active", |counter: &mut Self| &mut counter.is_active);
        handlers.button("stop", |counter: &mut Self, cx| counter.stop(cx));
        for name in ["counts_pdf", "reaggregate_counts"] {
            handlers.button(name, |counter: &mut Self, _| counter.count_counts());
        }
        handlers.button("clear", |counter: &mut Self, _| counter.clear());
        handlers.read("banner", |counter: &mut Self, _| counter.banner.clone());
        handlers.write("banner", |counter: &mut Self, _, text| {
            text.trim_end_matches('\n').clone_into(&mut counter.banner);
            Ok(())
        });
        handlers.raw("banner");
        handlers.read("aggregate_call", |counter: &mut Self, cx| said(cx, counter.at_aggregates.as_ref()));
        handlers.read("count_call", |counter: &mut Self, cx| said(cx, counter.at_count.as_ref()));
        handlers.write("aggregate_call", |counter: &mut Self, cx, text| {
            counter.at_aggregates = Self::parse_limit(cx, "aggregate_call", text)?;
            Ok(())
        });
        handlers.write("count_call", |counter: &mut Self, cx, text| {
            counter.at_count = Self::parse_limit(cx, "count_call", text)?;
            Ok(())
        });
        handlers.read("count", |counter: &mut Self, _| counter.sum);
        handlers.read("nagg", |counter: &mut Self, _| counter.counts.len());
    }

    /// Handlers that it calls look at others.
    fn observes(&self) -> bool {
        let calls = |limit: &Option<Limit>| matches!(limit, Some(Limit { action: Action::Call(..), .. }));
        calls(&self.at_aggregates) || calls(&self.at_count)
    }
}

/// A limit as its argument says it; nothing without one.
fn said(cx: &Cx<'_>, limit: Option<&Limit>) -> String {
    limit.map_or_else(String::new, |limit| match &limit.action {
        Action::Freeze => format!("{} {}.freeze true", limit.at, cx.name()),
        Action::Stop => format!("{} {}.stop", limit.at, cx.name()),
        Action::Call(_, text) => format!("{} {text}", limit.at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::testing::{Harness, fuzz};
    use std::collections::BTreeMap;

    fn of(aggregate: u32) -> Packet {
        let mut packet = Packet::from_slice(&[aggregate as u8; 20]);
        packet.set_anno_u32(anno::AGGREGATE, aggregate);
        packet
    }

    #[track_caller]
    fn text(harness: &mut Harness, form: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        harness.write(&format!("a.write_{form}file"), path.to_str().unwrap()).unwrap();
        String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
    }

    #[track_caller]
    fn count(arguments: &str, aggregates: &[u32]) -> Harness {
        let mut harness = Harness::new(&format!("give :: Give -> a :: AggregateCounter({arguments}) -> take :: Take"));
        harness.give("give", aggregates.iter().map(|aggregate| of(*aggregate)));
        assert_eq!(harness.take("take").len(), aggregates.len());
        harness
    }

    const SOME: [u32; 8] = [1, 1, 0, 0, 0, 2, 3, 2];

    #[test]
    fn aggregates_are_counted_and_written() {
        let mut harness = count("BANNER \"# me\"", &SOME);
        let lines = "0 3\n1 2\n2 2\n3 1\n";
        assert_eq!(text(&mut harness, "text_"), format!("!IPAggregate 1.0\n# me\n!num_nonzero 4\n{lines}"));
        assert_eq!(text(&mut harness, "ip_").lines().last(), Some("0.0.0.3 1"));
        assert_eq!(text(&mut harness, "pdf_").lines().nth(3), Some("0 0.375"));
        let packed = text(&mut harness, "");
        assert!(packed.contains("!packed_le\n\0\0\0\0\u{3}\0\0\0\u{1}\0\0\0\u{2}\0\0\0"), "{packed:?}");
        assert_eq!((harness.read("a.count"), harness.read("a.nagg")), ("8".into(), "4".into()));
        harness.write("a.banner", "").unwrap();
        harness.write("a.counts_pdf", "").unwrap();
        assert_eq!(text(&mut harness, "ascii_"), "!IPAggregate 1.0\n!num_nonzero 3\n1 1\n2 2\n3 1\n");
        harness.write("a.clear", "").unwrap();
        assert_eq!((harness.read("a.count"), harness.read("a.nagg")), ("0".into(), "0".into()));
        assert!(harness.write("a.write_file", "/").unwrap_err().starts_with("/: Is a directory"));
    }

    #[test]
    fn counts_are_those_of_an_obvious_counter() {
        let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
        let packets: Vec<Packet> = (0..500)
            .map(|_| {
                let mut packet = of(random.u32(..) >> random.u32(16..32) << random.u32(..8));
                packet.set_anno_u32(anno::EXTRA_PACKETS, random.u32(..4));
                packet.set_anno_u32(anno::EXTRA_LENGTH, random.u32(..90));
                packet.set_network_header(14, 20);
                packet
            })
            .collect();
        for (arguments, amount) in [
            ("", (|packet: &Packet| 1 + packet.anno_u32(anno::EXTRA_PACKETS)) as fn(&Packet) -> u32),
            ("MULTIPACKET false", |_| 1),
            ("BYTES true", |packet| 20 + packet.anno_u32(anno::EXTRA_LENGTH)),
            ("BYTES true, IP_BYTES true, EXTRA_LENGTH false", |_| 6),
        ] {
            let mut harness = Harness::new(&format!("give :: Give -> a :: AggregateCounter({arguments}) -> Take"));
            harness.give("give", packets.iter().cloned());
            let mut expected = BTreeMap::new();
            for packet in &packets {
                *expected.entry(packet.anno_u32(anno::AGGREGATE)).or_insert(0) += amount(packet);
            }
            let lines: Vec<String> = expected.iter().map(|(aggregate, count)| format!("{aggregate} {count}")).collect();
            let written = text(&mut harness, "text_");
            assert_eq!(written.lines().skip(2).collect::<Vec<_>>(), lines);
        }
    }

    #[test]
    fn counting_freezes_stops_and_calls() {
        let counts = |harness: &mut Harness| text(harness, "text_").lines().skip(2).collect::<Vec<_>>().join(" ");
        let mut harness = count("AGGREGATE_FREEZE 2", &SOME);
        assert_eq!((counts(&mut harness), harness.read("a.freeze")), ("0 3 1 2".into(), "true".into()));
        let mut harness = count("COUNT_FREEZE 6", &SOME);
        assert_eq!(counts(&mut harness), "0 3 1 2 2 2");
        let mut harness = Harness::new("give :: Give -> a :: AggregateCounter(AGGREGATE_STOP 1) -> take :: Take");
        harness.give("give", SOME[..3].iter().map(|aggregate| of(*aggregate)));
        assert_eq!((harness.runcount(), harness.read("a.active")), (0, "false".into()));
        let mut harness = count("COUNT_CALL 3 a.clear", &SOME);
        assert_eq!((harness.read("a.count"), harness.read("a.count_call")), ("5".into(), String::new()));
        harness.write("a.aggregate_call", "9 a.freeze true").unwrap();
        assert_eq!(harness.read("a.aggregate_call"), "9 a.freeze true");
        assert_eq!(
            harness.write("a.count_call", "x").unwrap_err(),
            "argument to 'count_call' should be 'N HANDLER [VALUE]'"
        );
        let mut harness = count("COUNT_STOP 99", &[]);
        assert_eq!(harness.read("a.count_call"), "99 a.stop");
    }

    #[test]
    fn what_is_not_counted_leaves_elsewhere() {
        let config = "give :: Give -> a :: AggregateCounter -> take :: Take; a[1] -> other :: Take; b :: Give -> [1]a";
        let mut harness = Harness::new(config);
        harness.give("give", [of(1), of(2)]);
        harness.give("b", [of(2), of(3)]);
        let of_sink = |harness: &mut Harness, sink: &str| -> Vec<u32> {
            harness.take(sink).iter().map(|packet| packet.anno_u32(anno::AGGREGATE)).collect()
        };
        assert_eq!((of_sink(&mut harness, "take"), of_sink(&mut harness, "other")), (vec![1, 2, 2], vec![3]));
        harness.write("a.active", "false").unwrap();
        harness.give("give", [of(1)]);
        assert_eq!(of_sink(&mut harness, "other"), [1]);
    }

    #[test]
    fn wrong_arguments_are_told() {
        let errors = |arguments: &str| Harness::errors(&format!("Give -> AggregateCounter({arguments}) -> Take"));
        let told = errors("AGGREGATE_STOP 1, AGGREGATE_FREEZE 2");
        assert!(
            told.contains("'AGGREGATE_FREEZE', 'AGGREGATE_STOP', and 'AGGREGATE_CALL' are mutually exclusive"),
            "{told}"
        );
        assert!(errors("COUNT_CALL x").contains("COUNT_CALL first word should be unsigned (count)"));
        assert!(errors("BYTES x").contains("BYTES: type mismatch"));
    }

    #[test]
    fn numbers_are_printed_as_c_does() {
        let cases = [
            (1.0, "1"),
            (0.375, "0.375"),
            (1.0 / 3.0, "0.333333333333"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
        ];
        for (value, text) in cases {
            assert_eq!(twelve_digits(value), text);
        }
    }

    #[test]
    fn any_packet_passes() {
        let config = "give :: Give -> AggregateCounter(BYTES true, IP_BYTES true) -> take :: Take";
        assert_eq!(fuzz(config, &["take"])[0].len(), 2000);
    }
}
