//! Any bytes as a file of packets: packets lie in the file, positions go forward, and it comes to an end.

#![no_main]

use bifolio_net::capture::{Reader, Source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::new(Source::bytes("f", bytes.to_vec())) else { return };
    let mut last = reader.position();
    while let Ok(Some(record)) = reader.read() {
        assert!(record.data.len() <= bytes.len());
        assert!(reader.position() > last, "a packet has a header");
        last = reader.position();
    }
});
