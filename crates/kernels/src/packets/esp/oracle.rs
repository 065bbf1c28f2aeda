//! A packet after the other.

use super::params::{Esp, Mode, TAG_BYTES};
use crate::aes_gcm::{oracle_decrypt, oracle_encrypt};
use crate::packets::{HAS_NETWORK, NONE};

const PROTOCOL: u8 = 50;
const HEADER_BYTES: usize = 16;

impl Esp {
    /// The packet from its IP header on, up to the length that this says, and the header's length.
    fn packet(&self, row: &[u8], out: &[u8], spans: &[u8]) -> Option<(Vec<u8>, usize)> {
        let rows = &self.rows;
        let word = |at: usize| u32::from_le_bytes(row[at * 4..at * 4 + 4].try_into().expect("four bytes"));
        let takes_part = rows.test == NONE || u32::from(out[rows.test as usize]) == rows.test_value;
        let captured = (word(0) & 0xffff) as usize;
        if !takes_part || word(0) & HAS_NETWORK == 0 || captured < 20 {
            return None;
        }
        let mut packet = row[rows.network as usize * 4..][..20].to_vec();
        let header_len = usize::from(packet[0] & 15) * 4;
        let total_len = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        if packet[0] >> 4 != 4 || header_len < 20 || total_len < header_len || total_len > captured {
            return None;
        }
        let span = spans.get(word(1) as usize * 4..)?;
        packet.extend(span.get(..(total_len - 20).next_multiple_of(4))?);
        packet.truncate(total_len);
        Some((packet, header_len))
    }

    fn aad(&self, number: u64) -> Vec<u8> {
        let number = number.to_be_bytes();
        [&self.spi[..], if self.is_extended { &number[..] } else { &number[4..] }].concat()
    }

    fn encrypt(&self, key: &[u8], mut packet: Vec<u8>, header_len: usize, number: u64, iv: u64) -> Option<Vec<u8>> {
        let Mode::Encrypt { tunnel, .. } = self.mode else { return None };
        let (mut text, next) = match (tunnel, u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff) {
            (true, _) => (packet, 4),
            (false, 0) => {
                let next = packet[9];
                (packet.split_off(header_len), next)
            }
            (false, _) => return None,
        };
        let padding = (4 - (text.len() + 2) % 4) % 4;
        text.extend(1..=padding as u8);
        text.extend([padding as u8, next]);
        let nonce = [&self.salt[..], &(number ^ iv).to_be_bytes()].concat();
        let tag = oracle_encrypt(key, &nonce, &self.aad(number), &mut text);
        text.extend(tag);
        Some(text)
    }

    /// None where the packet is none for this; what was encrypted, and whether the tag is right.
    fn decrypt(&self, key: &[u8], packet: &[u8], header_len: usize, lowest: u64) -> Option<(Vec<u8>, bool)> {
        let esp = &packet[header_len..];
        let is_fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
        if packet[9] != PROTOCOL
            || is_fragment
            || !esp.len().is_multiple_of(4)
            || esp.len() < 36
            || esp[..4] != self.spi
        {
            return None;
        }
        let low = u32::from_be_bytes(esp[4..8].try_into().expect("four bytes"));
        let number = lowest.wrapping_add(low.wrapping_sub(lowest as u32).into());
        let nonce = [&self.salt[..], &esp[8..HEADER_BYTES]].concat();
        let (text, tag) = esp[HEADER_BYTES..].split_at(esp.len() - HEADER_BYTES - TAG_BYTES);
        let mut text = text.to_vec();
        let is_right =
            oracle_decrypt(key, &nonce, &self.aad(number), &mut text, tag.try_into().expect("sixteen bytes"));
        if !is_right {
            text.fill(0);
        }
        Some((text, is_right))
    }
}

/// What the kernel computes: results and texts of a batch. The rows and the kernel's part begin at their places in `input` and
/// `output`.
///
/// # Panics
/// If they are not there, or the key has another length than 16, 24 or 32 bytes.
pub fn oracle(esp: &Esp, key: &[u8], input: &[u8], output: &mut [u8]) {
    let rows = &esp.rows;
    let spans = &input[rows.span_at as usize..][..rows.span_bytes as usize];
    for packet in 0..rows.count as usize {
        let row =
            &input[rows.input_at as usize + packet * rows.input_words as usize * 4..][..rows.input_words as usize * 4];
        let out_at = rows.output_at as usize + packet * rows.output_words as usize * 4;
        let out = &output[out_at..][..rows.output_words as usize * 4];
        let found = esp.packet(row, out, spans).and_then(|(mut bytes, header_len)| match esp.mode {
            Mode::Encrypt { tunnel, number, iv } => {
                if tunnel && rows.ttl != NONE {
                    bytes[8..12].copy_from_slice(&out[rows.ttl as usize * 4..][..4]);
                }
                let number = number.wrapping_add(packet as u64);
                esp.encrypt(key, bytes, header_len, number, iv).map(|text| (text, true))
            }
            Mode::Decrypt { lowest } => esp.decrypt(key, &bytes, header_len, lowest),
        });
        let part = &mut output[esp.part_at as usize..];
        let result = match &found {
            None => Esp::LEFT,
            Some((_, true)) => Esp::DONE,
            Some((_, false)) => Esp::FORGED,
        };
        part[Esp::result(packet)].copy_from_slice(&result.to_ne_bytes());
        if let Some((text, _)) = found {
            let span = u64::from(u32::from_le_bytes(row[4..8].try_into().expect("four bytes"))) * 4;
            part[esp.text(packet, span, text.len())].copy_from_slice(&text);
        }
    }
}
