//! Any bytes, as a client and as a server may send them to the other: what is a message is written as the same bytes.

#![no_main]

use bifolio_daemon::protocol::{ToClient, decode_answer, decode_request, encode_answer, encode_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((number, message)) = decode_request(bytes) {
        assert_eq!(encode_request(number, &message), bytes);
    }
    if let Some((number, message)) = decode_answer(bytes) {
        let again = decode_answer(&encode_answer(number, &message)).expect("it was one");
        // Numbers that are no numbers are nobody's.
        if !matches!(message, ToClient::Answered(_)) {
            assert_eq!(again, (number, message));
        }
    }
});
