//! What becomes of packets in which rules' fast patterns may be: counted, annotated.

use super::rule_files::payload;
use crate::Packet;
use crate::args::{AnnoArg, Args};
use crate::matcher::Hit;
use crate::rules::{Facts, RuleSet, Scratch, Text};
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Looks packets up, and keeps counts.
#[derive(Debug, Default)]
pub(crate) struct Inspector {
    rules: Option<Arc<RuleSet>>,
    scratch: Scratch,
    /// What is searched, where more than the payload is.
    joined: Vec<u8>,
    /// Packets that matched each rule.
    matches: Vec<u64>,
    pub(crate) count: u64,
    pub(crate) is_first: bool,
    pub(crate) anno: Option<AnnoArg<1>>,
    sid_anno: Option<AnnoArg<4>>,
}

impl Inspector {
    /// The keywords FIRST, ANNO and SID_ANNO.
    pub(crate) fn configure(&mut self, args: &mut Args<'_>) {
        args.key("FIRST", &mut self.is_first).key("ANNO", &mut self.anno).key("SID_ANNO", &mut self.sid_anno);
    }

    /// From now on these are the rules; where they are others than before, counts of rules begin anew.
    pub(crate) fn set_rules(&mut self, rules: Option<Arc<RuleSet>>) {
        let is_same = match (&self.rules, &rules) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        if !is_same {
            self.matches = vec![0; rules.as_ref().map_or(0, |rules| rules.rules().len())];
            (self.rules, self.scratch) = (rules, Scratch::default());
        }
    }

    /// Looks a packet up, counts and annotates it; says whether it matches. `before` is what stands before its payload in its
    /// flow. Of both together it is known which literals of the automaton are there that end in the payload, if `found` says so.
    pub(crate) fn inspect(&mut self, packet: &mut Packet, before: &[u8], found: Option<&[Hit]>) -> bool {
        let Some(rules) = &self.rules else { return false };
        let facts = packet.network_header().and_then(Facts::of);
        let mut first = None;
        let (matches, is_first) = (&mut self.matches, self.is_first);
        let each = |rule: u32| {
            first.get_or_insert(rule);
            matches[rule as usize] += 1;
            if is_first { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if found.is_none_or(|found| !found.is_empty()) || rules.may_match_without(facts.as_ref()) {
            let mut text = Text { facts, ..Text::from(payload(packet)) };
            if !before.is_empty() {
                self.joined.clear();
                self.joined.extend(before);
                self.joined.extend(text.bytes);
                text = Text { bytes: &self.joined, begin: before.len(), facts };
            }
            match found {
                None => rules.search(text, &mut self.scratch, each),
                Some(found) => rules.search_found(text, found, &mut self.scratch, each),
            }
        }
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
    pub(crate) fn matches(&self) -> String {
        let mut text = String::new();
        let rules = self.rules.iter().flat_map(|rules| rules.rules());
        for (rule, count) in rules.zip(&self.matches).filter(|(_, count)| **count > 0) {
            let _ = writeln!(text, "{}\t{count}\t{}", rule.sid, rule.msg);
        }
        text
    }

    /// All counts begin anew.
    pub(crate) fn reset(&mut self) {
        self.count = 0;
        self.matches.fill(0);
    }
}
