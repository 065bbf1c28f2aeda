//! Any bytes as a file of packets: packets lie in the file, positions go forward, and it comes to an end. The malformed captures
//! that the tests have are read first.

#![no_main]

#[allow(dead_code)] // Tests need more of them.
#[path = "../../crates/net/tests/it/malformed.rs"]
mod malformed;
#[allow(dead_code)]
#[path = "../../crates/net/tests/it/wire.rs"]
mod wire;

use bifolio_net::capture::{Reader, Source};
use libfuzzer_sys::fuzz_target;

fn read(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(Source::bytes("f", bytes.to_vec())) else { return };
    let mut last = reader.position();
    while let Ok(Some(record)) = reader.read() {
        assert!(record.data.len() <= bytes.len());
        assert!(reader.position() > last, "a packet has a header");
        last = reader.position();
    }
}

fuzz_target!(init: malformed::captures().iter().for_each(|bytes| read(bytes)), |bytes: &[u8]| {
    read(bytes);
});
