//! Any text as a configuration: it is read or refused with messages, and what was read says the same when it is written and
//! read again.

#![no_main]

use bifolio_net::lang::{Globals, parse, unparse};
use bifolio_net::{Log, Registry};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static REGISTRY: Registry = Registry::standard();
}

fuzz_target!(|text: &str| {
    REGISTRY.with(|registry| {
        let mut log = Log::new();
        let Some(graph) = parse(text, "f", &Globals::new(), registry, &mut log) else {
            assert!(log.errors() > 0, "refused without a word");
            return;
        };
        let written = unparse(&graph);
        let mut log = Log::new();
        let again = parse(&written, "f", &Globals::new(), registry, &mut log);
        let again = again.unwrap_or_else(|| panic!("{log}{written}"));
        assert_eq!(unparse(&again), written);
    });
});
