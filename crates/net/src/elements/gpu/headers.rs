//! GPUCheckIPHeader, GPUDecIPTTL, GPUSetIPChecksum: what routers do to IP headers, on a device.
//!
//! `GPUCheckIPHeader([OFFSET, keywords CHECKSUM, INTERFACES, BADSRC, GOODDST, ANNO])`: checks IP headers as CheckIPHeader does. Of a
//! packet that is right, the header is known from then on, its padding is cut off, and its destination address annotation is
//! set. It is the first element of its path.
//!
//! - OFFSET: where the header begins (0). CHECKSUM: whether its checksum is checked (true).
//! - INTERFACES, BADSRC, GOODDST: as CheckIPHeader's, with up to 8 bad sources and 8 good destinations in all.
//!
//! `GPUDecIPTTL([keywords MULTICAST, ANNO, CHK_ANNO, CHK_VALUE])`: takes one off the time to live, and adjusts the checksum, as
//! DecIPTTL does. MULTICAST false leaves packets to groups as they are.
//!
//! `GPUSetIPChecksum([keywords ANNO, CHK_ANNO, CHK_VALUE])`: sets the checksum of the known IP header, whatever it was.
//!
//! - ANNO: the annotation of a byte for verdicts (18), which a Dispatcher can look at: 1 for packets without a right header, 2 for
//!   those whose time to live is 0 or 1. These stay as they are. For all others GPUCheckIPHeader leaves 0 in it, and the others
//!   what it was. Behind GPUCheckIPHeader nobody else may write its annotation, but for those who judge with annotation 18.
//!
//! Handler of GPUCheckIPHeader and GPUDecIPTTL: `drops` (packets with a bad header, and those whose time to live is over).

use super::element::{Kind, Predicate, tested};
use crate::args::{AnnoArg, Args, Failed};
use crate::elements::ip::addresses::{Addresses, Interfaces};
use crate::handler::Handlers;
use crate::headers::ip::{LEN, LEN_MAX, set_checksum};
use crate::headers::{Ip, IpMut, checksum};
use crate::packet::anno;
use crate::wide::{Done, Launching, Layout, Operation, Row, Rows, Snapshot, Stage, Test, Wants};
use bifolio_compute::{Executor, Loaded};
use bifolio_kernels::packets::ip_header::{ADDRESSES, CHECK, DEC_TTL, KEEP_GROUPS, SET_CHECKSUM};
use bifolio_kernels::packets::{self, Header, IpHeader, Memory, NONE, PacketRows};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The verdict on a packet with a bad header.
pub(super) const BAD: u8 = 1;
/// The verdict on a packet whose time to live is over.
pub(super) const EXPIRED: u8 = 2;
/// What is done to headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Check,
    DecTtl,
    SetChecksum,
}

/// The configuration of all three.
#[derive(Debug, Clone)]
struct Settings {
    work: Work,
    predicate: Predicate,
    anno: usize,
    offset: usize,
    has_checksum: bool,
    bad_sources: Vec<Ipv4Addr>,
    good_destinations: Vec<Ipv4Addr>,
    has_multicast: bool,
    drops: Arc<AtomicU64>,
}

impl Settings {
    fn new(work: Work) -> Self {
        Self {
            work,
            predicate: Predicate::default(),
            anno: anno::VERDICT,
            offset: 0,
            has_checksum: true,
            bad_sources: Vec::new(),
            good_destinations: Vec::new(),
            has_multicast: true,
            drops: Arc::default(),
        }
    }

    fn predicate(&self, before: &[Wants]) -> Predicate {
        self.predicate.or_unjudged(before)
    }

    fn shows_drops(&self, handlers: &mut Handlers) {
        let drops = Arc::clone(&self.drops);
        handlers.free_read("drops", move |_, _| Ok(drops.load(Ordering::Relaxed).to_string()));
    }
}

macro_rules! kind {
    ($(#[$doc:meta])* $name:ident, $work:expr, $checks:literal, $configure:item) => {
        $(#[$doc])*
        pub(super) struct $name(Settings);

        impl Default for $name {
            fn default() -> Self {
                Self(Settings::new($work))
            }
        }

        impl Kind for $name {
            const CHECKS: bool = $checks;

            $configure

            fn operation(&self, predicate: Predicate) -> Arc<dyn Operation> {
                Arc::new(Settings { predicate, ..self.0.clone() })
            }

            fn handlers(&self, handlers: &mut Handlers) {
                if self.0.work != Work::SetChecksum {
                    self.0.shows_drops(handlers);
                }
            }
        }
    };
}

kind!(
    /// GPUCheckIPHeader.
    Check,
    Work::Check,
    false,
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let settings = &mut self.0;
        let (mut anno, mut interfaces) = (AnnoArg::<1>(settings.anno), Interfaces::default());
        let (mut bad, mut good) = (Addresses::default(), Addresses::default());
        args.may("OFFSET", &mut settings.offset).key("CHECKSUM", &mut settings.has_checksum);
        args.key("INTERFACES", &mut interfaces).key("BADSRC", &mut bad).key("GOODDST", &mut good);
        args.key("ANNO", &mut anno).finish()?;
        bad.0.extend(interfaces.broadcasts);
        good.0.extend(interfaces.addresses);
        for (name, addresses) in [("BADSRC", &bad), ("GOODDST", &good)] {
            if addresses.0.len() > ADDRESSES {
                let count = addresses.0.len();
                return Err(args.error_of(name, format_args!("{count} addresses, and a device looks at {ADDRESSES}")));
            }
        }
        (settings.anno, settings.bad_sources, settings.good_destinations) = (anno.0, bad.0, good.0);
        Ok(())
    }
);

kind!(
    /// GPUDecIPTTL.
    DecTtl,
    Work::DecTtl,
    true,
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut anno = AnnoArg::<1>(self.0.anno);
        args.key("MULTICAST", &mut self.0.has_multicast).key("ANNO", &mut anno).finish()?;
        self.0.anno = anno.0;
        Ok(())
    }
);

kind!(
    /// GPUSetIPChecksum.
    SetChecksum,
    Work::SetChecksum,
    true,
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut anno = AnnoArg::<1>(self.0.anno);
        args.key("ANNO", &mut anno).finish()?;
        self.0.anno = anno.0;
        Ok(())
    }
);

impl Operation for Settings {
    fn wants(&self, before: &[Wants]) -> Result<Wants, String> {
        let is_check = self.work == Work::Check;
        if is_check && !before.is_empty() {
            return Err("GPUCheckIPHeader finds the header for all others, and is the first one of a path".to_owned());
        }
        let mut slots = self.predicate(before).slots();
        slots.push(self.anno);
        Ok(Wants {
            network: true,
            options: self.work == Work::SetChecksum || is_check && self.has_checksum,
            offset: is_check.then_some(self.offset),
            ttl: !is_check,
            judges: self.anno == anno::VERDICT,
            finds_header: is_check,
            slots,
            looks_back: if is_check { vec![self.anno] } else { Vec::new() },
            fresh: if is_check { vec![self.anno] } else { Vec::new() },
            writes: vec![self.anno],
            ..Wants::default()
        })
    }

    fn stage(&self, layout: &Layout, before: &[Wants], executor: &Executor) -> Result<Arc<dyn Stage>, String> {
        let loaded = executor.kernels().load(&IpHeader).map_err(|error| error.to_string())?;
        let (settings, test) = (self.clone(), self.predicate(before).test(layout));
        Ok(Arc::new(HeaderStage { settings, test, slot: layout.slot(self.anno), loaded }))
    }
}

/// One of them in a path.
#[derive(Debug)]
struct HeaderStage {
    settings: Settings,
    test: Option<Test>,
    slot: u32,
    loaded: Result<Loaded, String>,
}

/// A packet's header with options, as far as it is there, and its length.
fn header(row: Row<'_>, ttl: Option<[u8; 4]>) -> Option<([u8; LEN_MAX], usize)> {
    let mut header = [0; LEN_MAX];
    header[..LEN].copy_from_slice(row.network()?);
    if let Some(ttl) = ttl {
        header[8..12].copy_from_slice(&ttl);
    }
    let options = usize::from(header[0] & 15).saturating_sub(5) * 4;
    let options = if options == 0 { &[][..] } else { row.span().get(..options).unwrap_or(row.span()) };
    let end = LEN + options.len();
    header[LEN..end].copy_from_slice(options);
    Some((header, end))
}

impl HeaderStage {
    /// Whether a header is right, by the rules of CheckIPHeader.
    fn is_right(&self, row: Row<'_>) -> bool {
        let Some(ip) = row.network().and_then(|header| Ip::new(header)) else { return false };
        let (header_len, total_len) = (ip.header_len(), usize::from(ip.total_len()));
        if ip.version() != 4 || header_len < LEN || total_len > row.captured() || total_len < header_len {
            return false;
        }
        let has_right_sum = || {
            let whole = header(row, None).filter(|(_, len)| *len >= header_len);
            whole.is_some_and(|(header, _)| checksum::Sum::default().with(&header[..header_len]).folded() == 0xffff)
        };
        let Settings { has_checksum, bad_sources, good_destinations, .. } = &self.settings;
        let comes_from_bad = || bad_sources.contains(&ip.source()) && !good_destinations.contains(&ip.destination());
        (!has_checksum || has_right_sum()) && !comes_from_bad()
    }

    fn params(&self, rows: PacketRows) -> Header {
        let Settings { work, has_checksum, bad_sources, good_destinations, has_multicast, .. } = &self.settings;
        let flags = match work {
            Work::Check => CHECK,
            Work::DecTtl if *has_multicast => DEC_TTL,
            Work::DecTtl => DEC_TTL | KEEP_GROUPS,
            Work::SetChecksum => SET_CHECKSUM,
        };
        Header {
            rows: tested(rows, self.test),
            flags,
            slot: self.slot,
            bad: BAD.into(),
            expired: EXPIRED.into(),
            missing: BAD.into(),
            has_checksum: *has_checksum,
            sources: list(bad_sources),
            destinations: list(good_destinations),
        }
    }

    /// Takes one off a packet's time to live; or its verdict.
    fn decrement(&self, row: Row<'_>, word: &mut [u8; 4]) -> Result<(), u8> {
        let mut header = *row.network().ok_or(BAD)?;
        header[8..12].copy_from_slice(word);
        let mut ip = IpMut::new(&mut header).ok_or(BAD)?;
        if !self.settings.has_multicast && ip.get().destination().is_multicast() {
            return Ok(());
        }
        if ip.get().ttl() <= 1 {
            return Err(EXPIRED);
        }
        ip.decrement_ttl();
        word.copy_from_slice(&header[8..12]);
        Ok(())
    }

    /// What becomes of a packet: its verdict, if it gets one.
    fn work(&self, row: Row<'_>, word: Option<&mut [u8; 4]>) -> Result<(), u8> {
        match (self.settings.work, word) {
            (Work::Check, _) => self.is_right(row).then_some(()).ok_or(BAD),
            (Work::DecTtl, Some(word)) => self.decrement(row, word),
            (Work::SetChecksum, Some(word)) => {
                let (mut header, len) = header(row, Some(*word)).ok_or(BAD)?;
                set_checksum(&mut header[..len]).ok_or(BAD)?;
                word.copy_from_slice(&header[8..12]);
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }
}

/// Addresses as they lie in headers, and how many they are.
fn list(addresses: &[Ipv4Addr]) -> ([u32; ADDRESSES], u32) {
    let mut words = [0; ADDRESSES];
    for (word, address) in words.iter_mut().zip(addresses) {
        *word = u32::from_le_bytes(address.octets());
    }
    (words, addresses.len() as u32)
}

impl Stage for HeaderStage {
    fn refusal(&self) -> Option<String> {
        self.loaded.as_ref().err().cloned()
    }

    fn on_cpu(&self, rows: &mut Rows<'_>, _: &Snapshot, _: &mut [u8]) {
        let ttl = rows.layout().ttl();
        for packet in 0..rows.len() {
            if rows.takes_part(packet, self.test) {
                let row = rows.row(packet);
                let word = (ttl != NONE).then(|| rows.out_word(packet, ttl));
                if let Err(verdict) = self.work(row, word) {
                    rows.set_slot(packet, self.slot, verdict);
                }
            }
        }
    }

    unsafe fn launch(&self, launching: &Launching<'_>) -> bifolio_device::Result<()> {
        let Ok(loaded) = &self.loaded else { return Ok(()) };
        let memory = Memory { input: launching.input, output: launching.output };
        // SAFETY: the caller's promise.
        unsafe { packets::launch(launching.stream, loaded.module(), &self.params(launching.rows), memory, &[]) }
    }

    fn finish(&self, done: &mut Done<'_>) {
        let value = match self.settings.work {
            Work::Check => BAD,
            Work::DecTtl => EXPIRED,
            Work::SetChecksum => return,
        };
        let mut drops = 0;
        for at in 0..done.packets.len() {
            let (packet, row) = done.packet(at);
            let verdict = row[self.slot as usize];
            drops += u64::from(verdict == value);
            if self.settings.work == Work::Check && verdict != BAD {
                make_known(packet, self.settings.offset);
            }
        }
        if drops > 0 {
            self.settings.drops.fetch_add(drops, Ordering::Relaxed);
        }
    }
}

/// The header at an offset, which is right, is known from now on.
fn make_known(packet: &mut crate::Packet, offset: usize) {
    let Some(ip) = packet.bytes().get(offset..).and_then(Ip::new) else { return };
    let (header_len, destination) = (ip.header_len(), ip.destination());
    let padding = (packet.len() - offset).saturating_sub(ip.total_len().into());
    packet.set_network_header(offset as isize, header_len);
    packet.take(padding);
    packet.set_dst_ip(destination);
}
