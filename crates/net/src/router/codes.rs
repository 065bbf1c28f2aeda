//! The codes of classes: how many ports, of which kind, and what flows between them. Click's manual describes them in
//! `element.hh`.

use std::ops::RangeInclusive;

/// What a class says of its ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codes {
    pub(super) ports: &'static str,
    pub(super) processing: &'static str,
    pub(super) flow: &'static str,
    pub(super) wide: &'static str,
}

/// What a port does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Processing {
    /// Whoever has the packet calls.
    Push,
    /// Whoever wants it calls.
    Pull,
    /// Whatever the other end does.
    Agnostic,
}

fn count(code: &str) -> RangeInclusive<usize> {
    let number = |text: &str| text.parse().ok();
    match code.split_once('-') {
        None => number(code).map_or(0..=0, |n| n..=n),
        Some((low, high)) => number(low).unwrap_or(0)..=number(high).unwrap_or(usize::MAX),
    }
}

/// How many inputs and outputs an element has of which so many are used.
pub(super) fn ports(code: &str, used_inputs: usize, used_outputs: usize) -> (usize, usize) {
    let (inputs, outputs) = code.split_once('/').unwrap_or((code, code));
    let clamp = |used: usize, range: RangeInclusive<usize>| used.clamp(*range.start(), *range.end());
    if inputs.starts_with('=') {
        let outputs = clamp(used_outputs, count(outputs));
        return (outputs, outputs);
    }
    let inputs = clamp(used_inputs, count(inputs));
    if outputs.starts_with('=') {
        // As many as there are inputs, or as outputs where more of these are used.
        let both = if count(code.split('/').next().unwrap_or("")).contains(&used_outputs) {
            inputs.max(used_outputs)
        } else {
            inputs
        };
        return (both, both);
    }
    (inputs, clamp(used_outputs, count(outputs)))
}

/// What the ports of one side do: the last code counts for those that follow.
pub(super) fn processing(code: &str, is_output: bool, n: usize) -> Vec<Processing> {
    let (inputs, outputs) = code.split_once('/').unwrap_or((code, code));
    let side = if is_output { outputs } else { inputs };
    let mut last = Processing::Agnostic;
    let mut codes = side.chars();
    (0..n)
        .map(|_| {
            last = match codes.next() {
                Some('h') => Processing::Push,
                Some('l') => Processing::Pull,
                Some('a') => Processing::Agnostic,
                _ => last,
            };
            last
        })
        .collect()
}

/// Whether a port of one side is wide: the last code counts for those that follow.
pub(super) fn is_wide(code: &str, is_output: bool, port: usize) -> bool {
    let (inputs, outputs) = code.split_once('/').unwrap_or((code, code));
    let side = if is_output { outputs } else { inputs };
    matches!(side.chars().take(port + 1).last(), Some('w' | 'c'))
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FlowSet {
    negated: bool,
    members: Vec<FlowMember>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowMember {
    Letter(char),
    Port(usize),
}

fn flow_sets(side: &str, n: usize) -> Vec<FlowSet> {
    let mut rest = side;
    let mut last = "x";
    (0..n)
        .map(|port| {
            if !rest.is_empty() {
                let end = match rest.strip_prefix('[') {
                    Some(set) => set.find(']').map_or(rest.len(), |end| end + 2),
                    None => 1,
                };
                (last, rest) = rest.split_at(end);
            }
            let inner = last.trim_start_matches('[').trim_end_matches(']');
            let (negated, inner) = inner.strip_prefix('^').map_or((false, inner), |inner| (true, inner));
            let member = |c| if c == '#' { FlowMember::Port(port) } else { FlowMember::Letter(c) };
            FlowSet { negated, members: inner.chars().map(member).collect() }
        })
        .collect()
}

fn meets(a: &FlowSet, b: &FlowSet) -> bool {
    match (a.negated, b.negated) {
        (false, negated) => a.members.iter().any(|member| b.members.contains(member) != negated),
        (true, false) => meets(b, a),
        (true, true) => true,
    }
}

/// To which outputs packets may go that come to an input.
pub(super) fn flows(code: &str, input: usize, inputs: usize, outputs: usize) -> Vec<bool> {
    let (from, to) = code.split_once('/').unwrap_or((code, code));
    let from = flow_sets(from, inputs);
    flow_sets(to, outputs).iter().map(|set| meets(&from[input], set)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ports_are_those_used_within_bounds() {
        assert_eq!(ports("1/1", 3, 0), (1, 1));
        assert_eq!(ports("1/1-2", 1, 2), (1, 2));
        assert_eq!(ports("1-/1", 0, 1), (1, 1));
        assert_eq!(ports("-/-", 5, 0), (5, 0));
        assert_eq!(ports("-/=", 2, 3), (3, 3));
        assert_eq!(ports("1/-", 1, 7), (1, 7));
        assert_eq!(ports("0/0", 1, 1), (0, 0));
    }

    #[test]
    fn the_last_code_counts_for_ports_that_follow() {
        use Processing::{Agnostic, Pull, Push};
        assert_eq!(processing("a/ah", true, 3), [Agnostic, Push, Push]);
        assert_eq!(processing("h/l", false, 2), [Push, Push]);
        assert_eq!(processing("h/l", true, 1), [Pull]);
        assert_eq!(processing("h", true, 1), [Push]);
    }

    #[test]
    fn flow_codes_say_what_comes_where() {
        assert_eq!(flows("x/x", 0, 1, 2), [true, true]);
        assert_eq!(flows("x/y", 0, 1, 2), [false, false]);
        assert_eq!(flows("xy/x", 1, 2, 1), [false]);
        assert_eq!(flows("#/#", 1, 2, 3), [false, true, false]);
        assert_eq!(flows("#/[^#]", 1, 2, 3), [true, false, true]);
        assert_eq!(flows("xy/[xy]x", 1, 2, 2), [true, false]);
    }
}
