//! GPUIPsecESP: encrypts packets by ESP with AES-GCM, or verifies and decrypts them, on a device.
//!
//! `GPUIPsecESP(SPI, KEY, DIRECTION encrypt [, keywords KEYFILE, MODE, SRC, DST, TTL, ESN, NUMBER, IV, ANNO, TABLE, CHK_ANNO, CHK_VALUE])`:
//! does what IPsecESPEncap does. `GPUIPsecESP(SPI, KEY, DIRECTION decrypt [, keywords KEYFILE, MODE, ESN, WINDOW, ANNO, TABLE, CHK_ANNO,
//! CHK_VALUE])`: does what IPsecESPUnencap does. Arguments are theirs. It is the last element of its path: headers that others of
//! the path have changed are encrypted as they are then.
//!
//! - ANNO: the annotation of a byte that is 1 for packets that are refused (18), which a Dispatcher can look at; these stay as they
//!   are. For all others it stays as it was.
//!
//! The device encrypts, verifies and decrypts. Packets are made of that when a batch is back, in their order, and that is when
//! sequence numbers are looked up in the window. A batch takes a sequence number for each of its packets when it is submitted,
//! also for those that are left out. With ESN, a batch that was submitted before a turn of the lower halves that it sees is
//! verified by the host.
//!
//! Handlers: `count`, `drops`, `drop_details`, `number`, as IPsecESPEncap's and IPsecESPUnencap's, and `recomputed` (packets that the
//! host encrypted or decrypted). A hot-swap goes on with sequence numbers and window as theirs do.

#[cfg(test)]
mod tests;

use super::element::{Kind, Predicate, Shared, Table, tested};
use super::headers::BAD;
use crate::Packet;
use crate::args::{AnnoArg, Args, Failed, Word};
use crate::elements::ipsec::association::{Association, Mode, TAG_BYTES, padded};
use crate::elements::ipsec::frame::{ESP_BYTES, Frame, Plain, Sealed};
use crate::elements::ipsec::receiver::{Opened, Receiver};
use crate::elements::ipsec::refusals::{Counts, Refusal};
use crate::elements::ipsec::sender::Sender;
use crate::elements::ipsec::window::extend;
use crate::handler::Handlers;
use crate::headers::ip::LEN;
use crate::packet::anno;
use crate::wide::{Done, Launching, Layout, Operation, PerDevice, Readers, Rows, Snapshot, Stage, Test, Wants};
use bifolio_compute::keyed::SecretMemory;
use bifolio_compute::{Executor, Loaded};
use bifolio_device::Device;
use bifolio_kernels::aes::KeySize;
use bifolio_kernels::aes_gcm::schedules;
use bifolio_kernels::packets::esp::{self, Esp, PacketEsp};
use bifolio_kernels::packets::{Memory, NONE, PacketRows};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The first number of batches that are measured: no packet that is sent has it.
const MEASURED: u64 = 1 << 63;

/// One end of an association.
#[derive(Debug)]
enum End {
    Send(Sender),
    Receive(Receiver),
}

impl End {
    fn association(&self) -> &Association {
        match self {
            Self::Send(sender) => &sender.association,
            Self::Receive(receiver) => &receiver.association,
        }
    }
}

/// What elements share: an end, and its key on devices.
#[derive(Debug, Default)]
pub(super) struct Ends {
    end: OnceLock<End>,
    counts: Arc<Counts>,
    recomputed: AtomicU64,
    devices: PerDevice<OnDevice>,
}

impl Ends {
    fn number(&self) -> u64 {
        match self.end.get() {
            Some(End::Send(sender)) => sender.next(),
            Some(End::Receive(receiver)) => receiver.top(),
            None => 0,
        }
    }
}

/// The element's kind.
#[derive(Debug, Clone)]
pub(super) struct IpsecEsp {
    ends: Shared<Ends>,
    predicate: Predicate,
    anno: usize,
    has_table: bool,
}

impl Default for IpsecEsp {
    fn default() -> Self {
        Self { ends: Shared::default(), predicate: Predicate::default(), anno: anno::VERDICT, has_table: false }
    }
}

impl Kind for IpsecEsp {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut anno, mut direction) = (AnnoArg::<1>(self.anno), Word::default());
        args.key("ANNO", &mut anno);
        self.anno = anno.0;
        if self.has_table {
            return args.finish();
        }
        args.must_key("DIRECTION", &mut direction);
        args.result()?;
        let end = match direction.0.to_ascii_lowercase().as_str() {
            "encrypt" => End::Send(Sender::of(args)?),
            "decrypt" => End::Receive(Receiver::of(args)?),
            other => {
                return Err(args.error_of("DIRECTION", format_args!("'{other}' is neither encrypt nor decrypt")));
            }
        };
        let _ = self.ends.get().end.set(end);
        Ok(())
    }

    fn operation(&self, predicate: Predicate) -> Arc<dyn Operation> {
        Arc::new(Self { predicate, ..self.clone() })
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let [numbered, computed] = std::array::from_fn(|_| self.ends.clone());
        Counts::handlers(handlers, {
            let ends = self.ends.clone();
            move || Arc::clone(&ends.get().counts)
        });
        handlers.free_read("number", move |_, _| Ok(numbered.get().number().to_string()));
        handlers.free_read("recomputed", move |_, _| Ok(computed.get().recomputed.load(Ordering::Relaxed).to_string()));
    }

    fn table(&self) -> Option<Table> {
        Some(self.ends.get())
    }

    fn adopts(&mut self) {
        self.has_table = true;
    }

    fn adopt(&mut self, table: Table) -> bool {
        self.ends.adopt(table)
    }

    fn inherit(&self, table: Table) {
        let (ends, Ok(old)) = (self.ends.get(), table.downcast::<Ends>()) else { return };
        match (ends.end.get(), old.end.get()) {
            (Some(End::Send(sender)), Some(End::Send(old))) => sender.inherit(old),
            (Some(End::Receive(receiver)), Some(End::Receive(old))) => receiver.inherit(old),
            _ => {}
        }
    }
}

impl Operation for IpsecEsp {
    fn wants(&self, before: &[Wants]) -> Result<Wants, String> {
        let slots = self.predicate.or_unjudged(before).slots();
        Ok(Wants { network: true, payload: true, slots, rewrites: true, ..Wants::default() })
    }

    fn stage(&self, layout: &Layout, before: &[Wants], executor: &Executor) -> Result<Arc<dyn Stage>, String> {
        let loaded = executor.kernels().load(&PacketEsp).map_err(|error| error.to_string())?;
        let (ends, device) = (self.ends.get(), executor.device());
        let end = ends.end.get().ok_or("GPUIPsecESP has no association")?;
        let on_device = ends.devices.get(device, || OnDevice::new(device, end.association()))?;
        let test = self.predicate.or_unjudged(before).test(layout);
        Ok(Arc::new(EspStage { ends, on_device, test, anno: self.anno, loaded }))
    }
}

/// A key in a device's memory.
#[derive(Debug)]
struct OnDevice {
    size: KeySize,
    schedules: SecretMemory,
    readers: Mutex<Readers>,
}

impl OnDevice {
    fn new(device: &Device, association: &Association) -> Result<Self, String> {
        let schedules = schedules(association.key.key()).map_err(|error| error.to_string())?;
        let upload = || {
            let memory = SecretMemory::new(device, schedules.bytes().len() as u64)?;
            device.create_stream()?.upload(memory.slice(), schedules.bytes())?;
            Ok(memory)
        };
        let memory = upload().map_err(|error: bifolio_device::Error| error.to_string())?;
        Ok(Self { size: schedules.size(), schedules: memory, readers: Mutex::default() })
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let _ = self.readers.get_mut().unwrap_or_else(PoisonError::into_inner).wait();
    }
}

/// It in a path.
#[derive(Debug)]
struct EspStage {
    ends: Arc<Ends>,
    on_device: Arc<OnDevice>,
    test: Option<Test>,
    anno: usize,
    loaded: Result<Loaded, String>,
}

impl EspStage {
    fn end(&self) -> &End {
        self.ends.end.get().expect("a stage is made of an end")
    }

    /// What is done with a batch. Its snapshot is the first sequence number of a sender, the lowest of a receiver.
    fn esp(&self, rows: PacketRows, snapshot: &Snapshot, part_at: u64) -> Esp {
        let number = snapshot.get::<u64>().map_or(MEASURED, |number| *number);
        let mode = match self.end() {
            End::Send(Sender { association, iv, .. }) => {
                esp::Mode::Encrypt { tunnel: association.mode == Mode::Tunnel, number, iv: *iv }
            }
            End::Receive(_) => esp::Mode::Decrypt { lowest: number },
        };
        let Association { spi, key, is_extended, .. } = self.end().association();
        Esp { rows, mode, is_extended: *is_extended, spi: *spi, salt: key.salt(), part_at }
    }

    /// Computes a packet that takes part; its result.
    fn compute(&self, esp: &Esp, rows: &mut Rows<'_>, packet: usize, part: &mut [u8]) -> Result<u32, Refusal> {
        let (row, ttl) = (rows.row(packet), rows.layout().ttl());
        let mut header = *row.network().ok_or(Refusal::Header)?;
        let (frame, ip) = Frame::of_header(&header, row.captured())?;
        let body = row.span().get(..frame.total_len - LEN).ok_or(Refusal::Header)?;
        match (self.end(), esp.mode) {
            (End::Send(sender), esp::Mode::Encrypt { number, .. }) => {
                let plain = Plain::of_frame((frame, ip), sender.association.mode)?;
                let len = padded(plain.len());
                let (text, tag) = part[esp.text(packet, row.span_at(), len + TAG_BYTES)].split_at_mut(len);
                if plain.kept == 0 {
                    if ttl != NONE {
                        header[8..12].copy_from_slice(rows.out_word(packet, ttl));
                    }
                    text[..LEN].copy_from_slice(&header);
                    text[LEN..plain.len()].copy_from_slice(body);
                } else {
                    text[..plain.len()].copy_from_slice(&body[plain.kept - LEN..]);
                }
                plain.finish(text);
                let number = number.wrapping_add(packet as u64);
                tag.copy_from_slice(&sender.association.encrypt(number, sender.iv_of(number), text));
                Ok(Esp::DONE)
            }
            (End::Receive(receiver), esp::Mode::Decrypt { lowest }) => {
                let esp_bytes = &body[frame.header_len - LEN..];
                let association = &receiver.association;
                let sealed = Sealed::of_frame((frame, ip), esp_bytes, association.spi)?;
                let (text, tag) = esp_bytes[ESP_BYTES..].split_last_chunk::<TAG_BYTES>().ok_or(Refusal::NotOurs)?;
                let place = &mut part[esp.text(packet, row.span_at(), text.len())];
                place.copy_from_slice(text);
                let is_right = association.decrypt(extend(lowest, sealed.low), sealed.iv, place, tag);
                Ok(if is_right { Esp::DONE } else { Esp::FORGED })
            }
            _ => Ok(Esp::LEFT),
        }
    }

    /// Makes of a packet what was found. `part` begins with its text.
    fn apply(&self, esp: &Esp, at: usize, packet: &mut Packet, result: u32, part: &[u8]) -> Result<bool, Refusal> {
        match (self.end(), esp.mode) {
            (End::Send(sender), esp::Mode::Encrypt { number, .. }) => {
                let sealed = (result == Esp::DONE).then_some(part);
                sender.seal(packet, number.wrapping_add(at as u64), sealed).map(|()| sealed.is_some())
            }
            (End::Receive(receiver), esp::Mode::Decrypt { lowest }) => {
                let opened = Opened { lowest, text: (result == Esp::DONE).then_some(part) };
                receiver.open(packet, (result != Esp::LEFT).then_some(opened))
            }
            _ => Err(Refusal::Header),
        }
    }
}

impl Stage for EspStage {
    fn refusal(&self) -> Option<String> {
        self.loaded.as_ref().err().cloned()
    }

    fn extra_bytes(&self, count: usize, span_bytes: usize) -> u64 {
        Esp::part_bytes(count as u64, span_bytes as u64)
    }

    fn snapshot(&self, count: usize) -> Snapshot {
        let number = match self.end() {
            _ if count == 0 => MEASURED,
            End::Send(sender) => sender.take(count),
            End::Receive(receiver) => receiver.lowest(),
        };
        Snapshot(Some(Arc::new(number)))
    }

    fn on_cpu(&self, rows: &mut Rows<'_>, snapshot: &Snapshot, extra: &mut [u8]) {
        // Where texts lie depends on no more of rows than their number.
        let esp = self.esp(rows.layout().rows(rows.len() as u32, 0), snapshot, 0);
        for packet in 0..rows.len() {
            let result = if rows.takes_part(packet, self.test) {
                self.compute(&esp, rows, packet, extra).unwrap_or(Esp::LEFT)
            } else {
                Esp::LEFT
            };
            extra[Esp::result(packet)].copy_from_slice(&result.to_ne_bytes());
        }
    }

    unsafe fn launch(&self, launching: &Launching<'_>) -> bifolio_device::Result<()> {
        let Ok(loaded) = &self.loaded else { return Ok(()) };
        let esp = self.esp(tested(launching.rows, self.test), launching.snapshot, launching.extra_at);
        let operands = esp::Operands {
            memory: Memory { input: launching.input, output: launching.output },
            size: self.on_device.size,
            schedules: self.on_device.schedules.slice(),
        };
        // SAFETY: the caller's promise; the schedules are the key's, and live as long as somebody reads them.
        unsafe { esp::launch(launching.stream, loaded.module(), &esp, operands) }?;
        let mut readers = self.on_device.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.enter(launching.stream)
    }

    fn rewrite(&self, done: &mut Done<'_>) {
        let count = done.packets.len();
        let esp = self.esp(done.layout.rows(count as u32, 0), done.snapshot, 0);
        let extra = done.extra;
        for at in 0..count {
            let span_at = done.span_at(at);
            let (packet, row) = done.packet(at);
            // Nobody behind it has written what it tests.
            if self.test.is_some_and(|test| row[test.slot as usize] != test.value) {
                continue;
            }
            let result = extra[Esp::result(at)].first_chunk().map_or(Esp::LEFT, |word| u32::from_ne_bytes(*word));
            let part = &extra[esp.text(at, span_at, 0).start..];
            let outcome = self.apply(&esp, at, packet, result, part);
            if outcome == Ok(false) {
                self.ends.recomputed.fetch_add(1, Ordering::Relaxed);
            }
            if outcome.is_err() {
                packet.set_anno_u8(self.anno, BAD);
            }
            self.ends.counts.count(outcome.map(drop));
        }
    }
}
