//! What tells whether the kernels are right on a device: random messages and their oracle.

use super::launch::{Keyed, START_BYTES, decrypt, encrypt, list};
use super::message::{AAD_MAX, Blocks, Layout, MESSAGE_BYTES, Message, Operands, TAG_BYTES, check, encode};
use super::oracle::{oracle_decrypt, oracle_encrypt, schedules};
use crate::addressing::{self, Addressing};
use crate::aes::KeySize;
use crate::known_answer::{self, Draw};
use bifolio_device::{Module, Result, Stream};

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    key: Vec<u8>,
    size: KeySize,
    messages: Vec<Message>,
    /// Whole allocations of plaintexts, ciphertexts, and nonces with tags.
    plain: Vec<u8>,
    cipher_len: usize,
    meta: Vec<u8>,
    /// What damage is drawn from.
    damage_seed: u64,
}

impl Case {
    /// `count` messages of `bytes` each, the last one ragged and one in eight empty, with nonces of both
    /// lengths and 0 to 32 bytes of additional data.
    pub fn draw(draw: &mut Draw, size: KeySize, count: usize, bytes: u64) -> Self {
        let lens = draw.page_lengths(count, bytes);
        let ((plain, plain_len), (cipher, cipher_len)) = (draw.places(&lens), draw.places(&lens));
        let mut end = draw.below(3);
        let message = |i: usize| {
            let nonce_len = 12 + 4 * draw.below(2);
            let aad_len = draw.below(AAD_MAX as u64 + 1) as usize;
            let layout = Layout { src: plain[i], dst: cipher[i], nonce: end, tag: end + nonce_len };
            end += nonce_len + TAG_BYTES + draw.below(3);
            let aad = draw.bytes(aad_len);
            Message::new(layout, lens[i], nonce_len as u32, &aad).expect("the lengths are allowed")
        };
        let messages = (0..count).map(message).collect();
        let key = draw.bytes(size.bytes());
        let (plain, meta) = (draw.bytes(plain_len as usize), draw.bytes(end as usize + 1));
        Self { key, size, messages, plain, cipher_len: cipher_len as usize, meta, damage_seed: draw.next_u64() }
    }

    /// Encrypts over poison and in place, and decrypts what came out of the oracle, with one message in
    /// four damaged in text, tag, nonce or additional data; whole allocations and flags are compared.
    pub fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        for in_place in [false, true] {
            let steps = [self.encrypts(stream, module, in_place), self.decrypts(stream, module, in_place)];
            for (step, outcome) in ["encryption", "decryption"].into_iter().zip(steps) {
                outcome.map_err(|error| error.to_string())?.map_err(|wrong| {
                    let (count, size) = (self.messages.len(), self.size);
                    format!("{step} of {count} messages, {size:?}, in place: {in_place}: {wrong}")
                })?;
            }
        }
        Ok(())
    }

    /// Ciphertexts over a background, and nonces with tags.
    fn sealed(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut cipher, mut meta) = (vec![0x5a; self.cipher_len], self.meta.clone());
        for message in &self.messages {
            let mut text = self.plain[message.src as usize..][..message.len as usize].to_vec();
            let nonce = &self.meta[message.nonce as usize..][..message.nonce_len as usize];
            let tag = oracle_encrypt(&self.key, nonce, message.aad(), &mut text);
            cipher[message.dst as usize..][..text.len()].copy_from_slice(&text);
            meta[message.tag as usize..][..16].copy_from_slice(&tag);
        }
        (cipher, meta)
    }

    fn encrypts(&self, stream: &Stream, module: &Module, in_place: bool) -> Result<Result<(), String>> {
        let (cipher, meta) = self.sealed();
        let messages: Vec<_> =
            self.messages.iter().map(|m| Message { dst: if in_place { m.src } else { m.dst }, ..*m }).collect();
        let mut expected = if in_place { self.plain.clone() } else { cipher.clone() };
        for (from, to) in self.messages.iter().zip(&messages) {
            expected[to.dst as usize..][..to.len as usize]
                .copy_from_slice(&cipher[from.dst as usize..][..to.len as usize]);
        }
        let poisoned: Vec<u8> = if in_place { self.plain.clone() } else { poison(&expected, &messages) };
        let found = self.on_device(stream, module, &messages, [&self.plain, &poisoned, &self.meta], in_place, None)?;
        Ok(known_answer::compare("byte", &found.text, &expected)
            .and_then(|()| known_answer::compare("byte of nonces and tags", &found.meta, &meta)))
    }

    fn decrypts(&self, stream: &Stream, module: &Module, in_place: bool) -> Result<Result<(), String>> {
        let (mut cipher, mut meta) = self.sealed();
        let mut draw = Draw::from_seed(self.damage_seed);
        let turned = |m: &Message| Message { src: m.dst, dst: if in_place { m.dst } else { m.src }, ..*m };
        let mut messages: Vec<_> = self.messages.iter().map(turned).collect();
        for message in &mut messages {
            let bit = 1 << draw.below(8);
            match draw.below(16) {
                0 if message.len > 0 => cipher[(message.src + draw.below(message.len)) as usize] ^= bit,
                0 | 1 => meta[(message.tag + draw.below(TAG_BYTES)) as usize] ^= bit,
                2 => meta[(message.nonce + draw.below(u64::from(message.nonce_len))) as usize] ^= bit,
                3 if message.aad_len > 0 => {
                    message.aad[draw.below(u64::from(message.aad_len)) as usize] ^= bit;
                }
                _ => {}
            }
        }
        let mut expected = if in_place { cipher.clone() } else { poison(&self.plain, &messages) };
        let before = expected.clone();
        let mut rights = Vec::new();
        for message in &messages {
            let mut text = cipher[message.src as usize..][..message.len as usize].to_vec();
            let nonce = &meta[message.nonce as usize..][..message.nonce_len as usize];
            let tag = meta[message.tag as usize..][..16].try_into().expect("16 bytes");
            let right = oracle_decrypt(&self.key, nonce, message.aad(), &mut text, tag);
            rights.push(u32::from(right));
            if right {
                expected[message.dst as usize..][..text.len()].copy_from_slice(&text);
            }
        }
        let found = self.on_device(stream, module, &messages, [&cipher, &before, &meta], in_place, Some(&rights))?;
        Ok(known_answer::compare("the flag of message", &found.rights, &rights)
            .and_then(|()| known_answer::compare("byte", &found.text, &expected)))
    }

    fn on_device(
        &self,
        stream: &Stream,
        module: &Module,
        messages: &[Message],
        [src, dst, meta]: [&[u8]; 3],
        in_place: bool,
        rights: Option<&[u32]>,
    ) -> Result<Found> {
        let on_device = |bytes: &[u8]| known_answer::on_device(stream, bytes);
        let (src, dst, meta) = (on_device(src)?, on_device(dst)?, on_device(meta)?);
        let to = if in_place { &src } else { &dst };
        let operands = Operands {
            src: Addressing::Relative(src.slice()),
            dst: Addressing::Relative(to.slice()),
            meta: Addressing::Relative(meta.slice()),
        };
        check(messages, &operands)?;
        let table = on_device(&encode(messages))?;
        let schedules = on_device(schedules(&self.key)?.bytes())?;
        let starts = on_device(&vec![0xa5; messages.len() * START_BYTES as usize])?;
        let keyed = Keyed { size: self.size, schedules: schedules.slice(), starts: starts.slice() };
        let flags = on_device(&known_answer::complement(rights.unwrap_or_default()))?;
        // SAFETY: the allocations live until the contents were read back; messages are apart.
        unsafe {
            match rights {
                None => encrypt(stream, module, keyed, operands, table.slice()),
                Some(_) => decrypt(stream, module, keyed, operands, table.slice(), flags.slice()),
            }
        }?;
        let content = |memory| known_answer::content(stream, memory);
        Ok(Found { text: content(to)?, meta: content(&meta)?, rights: addressing::u32s(&content(&flags)?) })
    }
}

/// Lists blocks in a row on a device, and compares with what is listed here, also what is behind.
pub(super) fn try_list(draw: &mut Draw, stream: &Stream, module: &Module) -> Result<(), String> {
    let blocks = Blocks {
        sealed: draw.below(1 << 40) * 16,
        plain: draw.below(1 << 40) * 16,
        first: draw.next_u64() >> draw.below(60).max(1),
        len: draw.below(1 << 21),
        block_bytes: 16 << draw.below(9),
        id: std::array::from_fn(|_| draw.below(256) as u8),
    };
    let run = || -> Result<Result<(), String>> {
        let messages: Vec<Message> = (0..blocks.count()).map(|block| blocks.message(block)).collect::<Result<_>>()?;
        let mut expected = encode(&messages);
        expected.extend_from_slice(&[0xa5; MESSAGE_BYTES as usize]);
        let poisoned: Vec<u8> = expected[..messages.len() * MESSAGE_BYTES as usize].iter().map(|byte| !byte).collect();
        let table = known_answer::on_device(stream, &[poisoned, vec![0xa5; MESSAGE_BYTES as usize]].concat())?;
        // SAFETY: the table lives until it was read back.
        unsafe { list(stream, module, &blocks, table.slice()) }?;
        Ok(known_answer::compare("byte of the table", &known_answer::content(stream, &table)?, &expected))
    };
    run().map_err(|error| error.to_string())?.map_err(|wrong| format!("{blocks:?}: {wrong}"))
}

/// What a launch left behind.
struct Found {
    text: Vec<u8>,
    meta: Vec<u8>,
    rights: Vec<u32>,
}

/// The complement of the answer where a message goes.
fn poison(answer: &[u8], messages: &[Message]) -> Vec<u8> {
    let mut poisoned = answer.to_vec();
    for message in messages {
        poisoned[message.dst as usize..][..message.len as usize].iter_mut().for_each(|byte| *byte = !*byte);
    }
    poisoned
}
