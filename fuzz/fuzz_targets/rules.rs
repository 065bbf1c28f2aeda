//! Any bytes as a file of rules, and as a payload: what is read is written so that it reads back, and can be searched for.

#![no_main]

use bifolio_net::rules::{MAX_LINE, Rule, RuleSet, Scratch, Text, parse};
use libfuzzer_sys::fuzz_target;
use std::ops::ControlFlow;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (text, payload) = input;
    let read = parse(text);
    for rule in &read.rules {
        let written = rule.to_string();
        if written.len() <= MAX_LINE {
            assert_eq!(parse(written.as_bytes()).rules, [Rule { line: 1, ..rule.clone() }]);
        }
    }
    let count = read.rules.len();
    let Ok(set) = RuleSet::new(read) else { return };
    let (mut scratch, mut seen) = (Scratch::default(), vec![false; count]);
    set.search(Text::from(payload), &mut scratch, |rule| {
        assert!(!std::mem::replace(&mut seen[rule as usize], true), "a rule is reported twice");
        ControlFlow::Continue(())
    });
});
