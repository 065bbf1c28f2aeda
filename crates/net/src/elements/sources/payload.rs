//! What sources send: the same packet again and again.

use crate::Packet;
use crate::args::{Amount, Args};

/// What is sent where nobody says otherwise; as long as Click's.
const DATA: &str = "The contents of this packet are of no interest to anyone. The end is.";

/// Bytes, and how many of them are sent.
#[derive(Clone)]
pub(super) struct Payload {
    data: Vec<u8>,
    /// Nothing: as many as there are; more than there are: they begin again.
    len: Amount,
    packet: Packet,
}

impl Default for Payload {
    fn default() -> Self {
        let data = DATA.as_bytes().to_vec();
        Self { packet: Packet::from_slice(&data), data, len: Amount(None) }
    }
}

impl Payload {
    pub(super) fn data_arg(&mut self, args: &mut Args<'_>) {
        args.may("DATA", &mut self.data);
    }

    pub(super) fn length_args(&mut self, args: &mut Args<'_>) {
        // DATASIZE is its old name.
        args.key("LENGTH", &mut self.len).key("DATASIZE", &mut self.len);
        if self.len.0.is_some_and(|len| len > 1 << 20) {
            args.error_of("LENGTH", format_args!("out of range, bound {}", 1 << 20));
            self.len = Amount(None);
        }
        self.make();
    }

    fn make(&mut self) {
        let len = self.len.0.map_or(self.data.len(), |len| len as usize);
        // Nothing cannot be repeated.
        let bytes: Vec<u8> =
            self.data.iter().chain([0].iter().filter(|_| self.data.is_empty())).copied().cycle().take(len).collect();
        self.packet = Packet::from_slice(&bytes);
    }

    pub(super) fn packet(&self) -> Packet {
        self.packet.clone()
    }

    /// Bytes of a packet.
    pub(super) fn len(&self) -> usize {
        self.packet.len()
    }

    pub(super) fn data(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }

    pub(super) fn set_data(&mut self, data: &str) {
        self.data = data.as_bytes().to_vec();
        self.make();
    }

    pub(super) fn length(&self) -> Amount {
        self.len
    }

    pub(super) fn set_length(&mut self, len: Amount) -> Result<(), String> {
        if len.0.is_some_and(|len| len > 1 << 20) {
            return Err(format!("out of range, bound {}", 1 << 20));
        }
        self.len = len;
        self.make();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_cut_or_repeated() {
        let mut payload = Payload::default();
        assert_eq!(payload.len(), 69);
        payload.set_data("abc");
        for (len, bytes) in [(None, "abc"), (Some(2), "ab"), (Some(7), "abcabca"), (Some(0), "")] {
            payload.set_length(Amount(len)).unwrap();
            assert_eq!(payload.packet().bytes(), bytes.as_bytes());
        }
        assert!(payload.set_length(Amount(Some(1 << 40))).is_err());
        payload.set_data("");
        payload.set_length(Amount(Some(2))).unwrap();
        assert_eq!(payload.packet().bytes(), [0, 0]);
    }
}
