//! Redact: overwrites a text in packets.
//!
//! `Redact(TEXT)`: one input, one output, pushed or pulled. Wherever TEXT stands in a packet, its bytes become `*`; found from
//! the left, so that of two that overlap the first one counts. Checksums stay as they are.
//!
//! - TEXT: at least one byte.
//!
//! Handlers: `count`, how many texts were overwritten; `reset` (button).

use bifolio_net::Packet;
use bifolio_net::args::{Args, Failed};
use bifolio_net::element::{Class, Element};
use bifolio_net::handler::Handlers;
use bifolio_net::router::Cx;

/// The classes of this file.
pub(crate) static CLASSES: &[Class] = &[Class::new::<Redact>("Redact", "1/1", "a/a", "overwrites a text in packets")];

#[derive(Default)]
struct Redact {
    text: String,
    count: u64,
}

impl Element for Redact {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.must("TEXT", &mut self.text).finish()?;
        if self.text.is_empty() {
            return Err(args.error("TEXT must not be empty"));
        }
        Ok(())
    }

    fn action(&mut self, _: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        let (text, mut from) = (self.text.as_bytes(), 0);
        while let Some(at) = packet.bytes()[from..].windows(text.len()).position(|bytes| bytes == text) {
            let end = from + at + text.len();
            packet.bytes_mut()[from + at..end].fill(b'*');
            from = end;
            self.count += 1;
        }
        Some(packet)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |redact: &mut Self, _| redact.count);
        handlers.button("reset", |redact: &mut Self, _| redact.count = 0);
    }
}
