//! FromDump: reads packets from a capture file.
//!
//! `FromDump(FILENAME [, TIMING, STOP, ACTIVE, SAMPLE, FORCE_IP, START, START_AFTER, END, END_AFTER, INTERVAL, END_CALL,
//! FILEPOS, MMAP])`: one output, push or pull, and perhaps a second one, push, for packets that FORCE_IP refuses.
//! Reads what tcpdump and ToDump write: pcap and pcapng, in both byte orders, with all units of time, compressed with gzip or
//! not. FILENAME `-` is standard input.
//!
//! - TIMING (false): packets keep the delays between them; the first one leaves at once.
//! - STOP (false): stops the driver at the end of the file, or of the time that is asked for.
//! - ACTIVE (true): emits packets.
//! - SAMPLE (1): the probability with which a packet is emitted, from 0 to 1.
//! - FORCE_IP (false; true for files of raw IP): emits IP packets with headers, network header and destination annotation set.
//! - START, END: moments, in seconds since 1970. START_AFTER, END_AFTER: so long after the file's first packet. INTERVAL: so
//!   long after the first packet that is emitted. END is exclusive. At most one of each kind.
//! - END_CALL: a handler that is called at the end of the file or of that time; by default, at the end of the time,
//!   `active false`. It may extend the time. Not with STOP.
//! - FILEPOS (0): where in the uncompressed file reading begins; a packet has to be there.
//! - MMAP: accepted, and of no meaning.
//!
//! Packets get their timestamps, their link header as MAC header, and the bytes that were not captured as extra length. A file
//! that ends inside a packet delivers those before it, and says so.
//!
//! Handlers: `count`, `reset_counts`, `sampling_prob`, `active` (r/w), `encap`, `filename`, `filesize` (`-` for streams and
//! compressed files), `filepos` (r/w), `packet_filepos`, `extend_interval` (w), `reset_timing`, `stop`.
//!
//! In the place of another router, one with the same name and configuration reads on where the other was; else it begins anew.
//!
//! Different from Click: pcapng; END_CALL is called after the packets before it have gone their way; standard input may be
//! compressed, and bzip2 is not known; packets may have up to 262,144 bytes.

use super::sample::Sample;
use crate::args::{Args, Failed, HandlerCall, Interval};
use crate::capture::Reader;
use crate::element::{Element, Run, downcast};
use crate::handler::Handlers;
use crate::packet::{DEFAULT_HEADROOM, anno};
use crate::router::Cx;
use crate::{Log, Packet, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Timers.
const TIMING: usize = 0;
const END: usize = 1;

/// The element.
#[expect(clippy::struct_excessive_bools, reason = "each is an argument")]
#[derive(Default)]
pub(super) struct FromDump {
    filename: String,
    is_timed: bool,
    stops: bool,
    sample: Sample,
    forces_ip: bool,
    first: Limit,
    last: Limit,
    has_times: bool,
    /// Whether packets before `first` may still come.
    is_early: bool,
    end_call: Option<HandlerCall>,
    shared: Arc<Shared>,
    reader: Option<Reader>,
    /// A packet that is not due yet, or that may be behind the end.
    pending: Option<Packet>,
    begin: u64,
    packet_filepos: u64,
    offset: Timestamp,
    count: u64,
}

/// What handlers change while the element is in the midst of something, such as its END_CALL.
#[derive(Default)]
struct Shared {
    is_active: AtomicBool,
    /// Whether there is an end, and when.
    has_last: AtomicBool,
    last: AtomicI64,
    /// Whether anything is done at the end.
    has_end: AtomicBool,
}

impl Shared {
    fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    fn is_behind(&self, time: Timestamp) -> bool {
        self.has_last.load(Ordering::Relaxed) && time.nanos() >= self.last.load(Ordering::Relaxed)
    }

    /// Ends when the other one would.
    fn take_end(&self, other: &Self) {
        self.has_last.store(other.has_last.load(Ordering::Relaxed), Ordering::Relaxed);
        self.last.store(other.last.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn extend(&self, by: Timestamp) {
        self.last.fetch_add(by.nanos(), Ordering::Relaxed);
    }
}

/// A bound of the times of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Limit {
    #[default]
    None,
    At(Timestamp),
    /// After the file's first packet.
    After(Timestamp),
    /// After the first packet that is emitted.
    Interval(Timestamp),
}

/// What comes next.
enum Step {
    Packet(Packet),
    /// Nothing now: a timer goes on.
    Wait,
    End,
}

impl FromDump {
    fn read_limits(&mut self, args: &mut Args<'_>) {
        let mut at = [Timestamp::ZERO; 2];
        let mut after = [Interval::default(); 3];
        args.key("START", &mut at[0]).key("START_AFTER", &mut after[0]).key("END", &mut at[1]);
        args.key("END_AFTER", &mut after[1]).key("INTERVAL", &mut after[2]);
        let limits = |at: Timestamp, after: Interval, interval: Interval| {
            let all = [Limit::At(at), Limit::After(after.0), Limit::Interval(interval.0)];
            let given =
                |limit: &Limit| !matches!(limit, Limit::At(t) | Limit::After(t) | Limit::Interval(t) if t.is_zero());
            all.into_iter().filter(given).collect::<Vec<_>>()
        };
        match limits(at[0], after[0], Interval::default())[..] {
            [] => {}
            [first] => self.first = first,
            _ => _ = args.error("START and START_AFTER are mutually exclusive"),
        }
        match limits(at[1], after[1], after[2])[..] {
            [] => {}
            [last] => self.last = last,
            _ => _ = args.error("END, END_AFTER, and INTERVAL are mutually exclusive"),
        }
    }

    /// The first packet tells what relative times are.
    fn prepare_times(&mut self, now: Timestamp, first: Timestamp) {
        let begin = match self.first {
            Limit::At(at) => at,
            Limit::After(delay) => first + delay,
            _ => first,
        };
        self.is_early = self.first != Limit::None;
        self.first = Limit::At(begin);
        match self.last {
            Limit::After(_) => self.shared.extend(first),
            Limit::Interval(_) => self.shared.extend(begin),
            _ => {}
        }
        self.last = Limit::None;
        self.offset = now - first;
        self.has_times = true;
    }

    /// The next packet that is wanted; none at the end of the file.
    fn fetch(&mut self, cx: &mut Cx<'_>) -> Option<Packet> {
        loop {
            let mut reader = self.reader.take()?;
            let record = reader.read();
            if let Err(error) = &record {
                cx.say(error);
            }
            let record = record.ok().flatten();
            let mut packet = None;
            let is_end = record.is_none();
            if let Some(record) = record {
                self.packet_filepos = record.offset;
                let time = Timestamp::from_nanos(record.time_ns);
                if !self.has_times {
                    self.prepare_times(cx.now(), time);
                }
                self.is_early = self.is_early && matches!(self.first, Limit::At(first) if time < first);
                if !self.is_early && (self.shared.is_behind(time) || self.sample.takes(cx.rng())) {
                    packet = Some(self.packet(&record));
                }
            }
            self.reader = Some(reader);
            if is_end || packet.is_some() {
                return packet;
            }
        }
    }

    fn packet(&self, record: &crate::capture::Record<'_>) -> Packet {
        let mut packet = Packet::new(DEFAULT_HEADROOM, record.data, 0);
        packet.set_timestamp(Timestamp::from_nanos(record.time_ns));
        packet.set_mac_header(0);
        let missing = record.wire_len.saturating_sub(record.data.len() as u32);
        if missing > 0 {
            packet.set_anno_u32(anno::EXTRA_LENGTH, missing);
        }
        if self.forces_ip
            && let Some(header) = record.link.network_header(record.data)
        {
            packet.set_network_header(header.offset as isize, header.len);
            if header.version == 4
                && let Some(address) =
                    record.data[header.offset..].get(16..20).and_then(|bytes| bytes.first_chunk::<4>())
            {
                packet.set_dst_ip((*address).into());
            }
        }
        packet
    }

    fn step(&mut self, cx: &mut Cx<'_>) -> Step {
        loop {
            let pending = self.pending.take();
            let Some(packet) = pending.or_else(|| self.fetch(cx)) else {
                self.end(cx);
                return Step::End;
            };
            let time = packet.timestamp();
            if self.shared.is_behind(time) {
                self.pending = Some(packet);
                self.shared.has_last.store(false, Ordering::Relaxed);
                self.end(cx);
                if self.end_call.is_some() {
                    return Step::Wait;
                }
                self.pending = None;
                return Step::End;
            }
            if self.is_timed && cx.now() < time + self.offset {
                cx.timer_at(TIMING, time + self.offset);
                self.pending = Some(packet);
                return Step::Wait;
            }
            if !self.forces_ip || packet.network_offset().is_some() {
                self.count += 1;
                return Step::Packet(packet);
            }
            cx.emit_checked(1, packet);
        }
    }

    /// The file, or the time, is over.
    fn end(&mut self, cx: &mut Cx<'_>) {
        if self.end_call.is_some() {
            cx.timer_at(END, cx.now());
        } else {
            let has_end = self.shared.has_end.load(Ordering::Relaxed);
            self.shared.is_active.fetch_and(!has_end, Ordering::Relaxed);
            if self.stops {
                cx.stop_driver();
            }
        }
    }

    fn open(&mut self) -> Result<(), String> {
        let mut reader = Reader::open(&self.filename).map_err(|error| error.to_string())?;
        let link = reader.link();
        if self.forces_ip && !link.finds_ip() {
            return Err(format!("{}: unknown linktype {}; can't force IP packets", reader.name(), link.0));
        }
        self.forces_ip |= link.is_ip();
        if self.begin != 0 {
            reader.seek(self.begin).map_err(|error| error.to_string())?;
        }
        self.reader = Some(reader);
        Ok(())
    }
}

/// Goes on where packets are emitted again.
fn go_on(cx: &mut Cx<'_>) {
    if cx.output_is_push(0) {
        cx.schedule();
    } else {
        cx.note(true);
    }
}

impl Element for FromDump {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut is_active, mut mmap) = (true, false);
        args.must("FILENAME", &mut self.filename).may("TIMING", &mut self.is_timed).key("STOP", &mut self.stops);
        args.key("ACTIVE", &mut is_active).key("FORCE_IP", &mut self.forces_ip).key("MMAP", &mut mmap);
        args.key("END_CALL", &mut self.end_call).key("FILEPOS", &mut self.begin);
        self.sample.read(args);
        self.read_limits(args);
        if self.stops && self.end_call.is_some() {
            args.error("END_CALL and STOP are mutually exclusive");
        }
        if let Limit::At(last) | Limit::After(last) | Limit::Interval(last) = self.last {
            self.shared.last.store(last.nanos(), Ordering::Relaxed);
            self.shared.has_last.store(true, Ordering::Relaxed);
        }
        let has_end = self.stops || self.end_call.is_some() || self.last != Limit::None;
        self.shared.has_end.store(has_end, Ordering::Relaxed);
        self.shared.is_active.store(is_active, Ordering::Relaxed);
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if !cx.replaces() {
            self.open()?;
        }
        if self.shared.is_active() {
            go_on(cx);
        } else if !cx.output_is_push(0) {
            cx.note(false);
        }
        Ok(())
    }

    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let Some(old) = downcast::<Self>(old).filter(|_| cx.replaces()) else { return };
        (self.reader, self.pending) = (old.reader.take(), old.pending.take());
        (self.first, self.last, self.has_times, self.is_early) = (old.first, old.last, old.has_times, old.is_early);
        (self.forces_ip, self.offset, self.packet_filepos) = (old.forces_ip, old.offset, old.packet_filepos);
        self.shared.take_end(&old.shared);
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !self.shared.is_active() {
            return Run::Stop;
        }
        match self.step(cx) {
            Step::Packet(packet) => {
                cx.emit(0, packet);
                Run::Worked
            }
            Step::Wait | Step::End => Run::Stop,
        }
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        if self.shared.is_active()
            && let Step::Packet(packet) = self.step(cx)
        {
            return Some(packet);
        }
        cx.note(false);
        None
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        if timer == END
            && let Some(call) = self.end_call.clone()
            && let Err(error) = cx.call(&call)
        {
            cx.say(error);
        }
        if !self.shared.is_active() {
            self.pending = self.pending.take().filter(|_| timer != END);
        } else if timer != END || self.pending.is_some() {
            go_on(cx);
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("count", |dump: &mut Self, _| dump.count);
        handlers.button("reset_counts", |dump: &mut Self, _| dump.count = 0);
        handlers.read("sampling_prob", |dump: &mut Self, _| dump.sample);
        handlers.read("encap", |dump: &mut Self, _| {
            dump.reader.as_ref().map_or_else(|| "<none>".to_owned(), |reader| reader.link().to_string())
        });
        handlers.read("filename", |dump: &mut Self, _| {
            dump.reader.as_ref().map_or_else(|| dump.filename.clone(), |reader| reader.name().to_owned())
        });
        handlers.read("filesize", |dump: &mut Self, _| {
            let len = dump.reader.as_ref().and_then(Reader::file_len);
            len.map_or_else(|| "-".to_owned(), |len| len.to_string())
        });
        handlers.read("filepos", |dump: &mut Self, _| dump.reader.as_ref().map_or(0, Reader::position));
        handlers.write("filepos", |dump: &mut Self, cx, text| {
            let position = cx.parse::<u64>(text).map_err(|_| "argument must be file offset")?;
            let reader = dump.reader.as_mut().ok_or("no file")?;
            dump.pending = None;
            reader.seek(position).map_err(|error| error.to_string())
        });
        handlers.read("packet_filepos", |dump: &mut Self, _| dump.packet_filepos);
        handlers.button("reset_timing", |dump: &mut Self, _| dump.has_times = false);
        self.free_handlers(handlers);
    }

    /// Its END_CALL looks at others.
    fn observes(&self) -> bool {
        self.end_call.is_some()
    }
}

impl FromDump {
    /// Handlers that its own END_CALL may call.
    fn free_handlers(&self, handlers: &mut Handlers) {
        let shared = Arc::clone(&self.shared);
        handlers.free_read("active", move |_, _| Ok(shared.is_active().to_string()));
        let shared = Arc::clone(&self.shared);
        handlers.free_write("active", move |cx, text| {
            let is_active = cx.parse::<bool>(text)?;
            shared.is_active.store(is_active, Ordering::Relaxed);
            if is_active {
                go_on(cx);
            }
            Ok(())
        });
        let shared = Arc::clone(&self.shared);
        handlers.free_write("stop", move |cx, _| {
            shared.is_active.store(false, Ordering::Relaxed);
            cx.stop_driver();
            Ok(())
        });
        let shared = Arc::clone(&self.shared);
        handlers.free_write("extend_interval", move |cx, text| {
            let by = cx.parse::<Interval>(text).map_err(|_| "'extend_interval' takes a time interval")?;
            shared.extend(by.0);
            if shared.has_end.load(Ordering::Relaxed) {
                shared.has_last.store(true, Ordering::Relaxed);
                shared.is_active.store(true, Ordering::Relaxed);
                go_on(cx);
            }
            Ok(())
        });
    }
}
