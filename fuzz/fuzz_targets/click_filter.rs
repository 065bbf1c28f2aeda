//! Any pattern and any packet: a pattern is compiled or refused with a message, and a packet has an answer.

#![no_main]

use bifolio_net::Log;
use bifolio_net::classify::{BuiltIn, Filter, Headers};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    is_raw: bool,
    patterns: Vec<&'a str>,
    transport: u8,
    packet: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let mut log = Log::new();
    let outputs = input.patterns.len();
    let filter = if input.is_raw {
        Filter::classifier(&input.patterns, outputs, &mut log)
    } else {
        Filter::ip_classifier(&input.patterns, outputs, &BuiltIn, &mut log)
    };
    let Some(filter) = filter else {
        assert!(log.errors() > 0, "refused without a word");
        return;
    };
    let packet = Headers { mac: &[], network: input.packet, transport: usize::from(input.transport) };
    let packet = if input.is_raw { Headers::raw(input.packet) } else { packet };
    assert!(filter.classify(&packet).is_none_or(|output| output < outputs));
});
