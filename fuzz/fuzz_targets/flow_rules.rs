//! Any rules and any packets: rules are read or refused with a message, print themselves as they are read, and a table of them
//! finds for each packet what a search through all of them finds.

#![no_main]

use bifolio_net::flowspace::{FlowTable, Key, Rule, parse_rules};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    outputs: u8,
    rules: &'a str,
    packets: Vec<&'a [u8]>,
}

fn search(rules: &[Rule], key: &Key) -> Option<u16> {
    let matching = rules.iter().filter(|rule| rule.matches(key));
    matching.reduce(|best, rule| if rule.priority > best.priority { rule } else { best }).map(|rule| rule.output)
}

fuzz_target!(|input: Input<'_>| {
    let outputs = usize::from(input.outputs);
    let mut rules = match parse_rules(input.rules, outputs) {
        Ok(rules) => rules,
        Err(wrong) => return assert!(!wrong.is_empty(), "refused without a word"),
    };
    for rule in &rules {
        assert_eq!(Rule::parse(&rule.to_string(), outputs).as_ref(), Ok(rule));
    }
    let mut keys: Vec<_> = input.packets.iter().map(|packet| Key::of_frame(packet)).collect();
    keys.extend(input.packets.iter().map(|packet| Key::of_packet(None, packet)));
    let (mut table, mut found) = (FlowTable::default(), Vec::new());
    for rule in &rules {
        table.add(&[*rule]).expect("a few rules");
    }
    loop {
        table.classify(&keys, &mut found);
        let expected: Vec<_> = keys.iter().map(|key| search(&rules, key)).collect();
        assert_eq!(found, expected);
        let Some(gone) = rules.get(rules.len() / 2).copied() else { break };
        assert!(table.remove(&gone));
        let first = rules.iter().position(|rule| *rule == gone).expect("it is there");
        rules.remove(first);
    }
});
