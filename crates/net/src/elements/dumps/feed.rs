//! What the elements that read descriptions of packets have in common: when packets leave, and their handlers.

use super::sample::Sample;
use crate::args::Args;
use crate::capture::Error;
use crate::capture::TcpdumpReader;
use crate::capture::summary::{Notice, SummaryReader};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;
use crate::{Packet, Timestamp};

/// The timer for packets that keep their delays.
const TIMING: usize = 0;

/// What packets are read from.
pub(super) trait Descriptions: Send {
    fn read(&mut self) -> Result<Option<Packet>, Error>;
    fn take_notices(&mut self) -> Vec<Notice>;
    fn position(&self) -> u64;
    fn file_len(&self) -> Option<u64>;
    fn name(&self) -> &str;
}

macro_rules! descriptions {
    ($($reader:ty)*) => { $(
        impl Descriptions for $reader {
            fn read(&mut self) -> Result<Option<Packet>, Error> {
                Self::read(self)
            }
            fn take_notices(&mut self) -> Vec<Notice> {
                Self::take_notices(self)
            }
            fn position(&self) -> u64 {
                Self::position(self)
            }
            fn file_len(&self) -> Option<u64> {
                Self::file_len(self)
            }
            fn name(&self) -> &str {
                Self::name(self)
            }
        }
    )* };
}
descriptions!(SummaryReader TcpdumpReader);

/// Packets of a file of descriptions, on their way.
#[expect(clippy::struct_excessive_bools, reason = "each is an argument, but the last")]
pub(super) struct Feed {
    stops: bool,
    is_active: bool,
    pub(super) is_timed: bool,
    pub(super) splits: bool,
    has_ended: bool,
    sample: Sample,
    reader: Option<Box<dyn Descriptions>>,
    /// A packet that is not due yet.
    pending: Option<Packet>,
    parts: Option<Parts>,
    offset: Option<Timestamp>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            stops: false,
            is_active: true,
            is_timed: false,
            splits: false,
            has_ended: false,
            sample: Sample::default(),
            reader: None,
            pending: None,
            parts: None,
            offset: None,
        }
    }
}

/// A packet that stands for several, which leave one by one.
struct Parts {
    packet: Packet,
    left: u32,
    /// The length of all but the last, and what the last one has then.
    len: u32,
    last_len: u32,
    step: Timestamp,
    end: Timestamp,
}

impl Parts {
    fn new(mut packet: Packet) -> Self {
        let count = packet.anno_u32(anno::EXTRA_PACKETS).saturating_add(1);
        let own = packet.len() as u64;
        let whole = own + u64::from(packet.anno_u32(anno::EXTRA_LENGTH));
        // Where there is not enough for all of them, each has what there is.
        let len = (whole / u64::from(count)).max(own);
        let last_len = if len == own { own } else { whole - len * u64::from(count - 1) };
        let first = Timestamp::from_nanos(packet.anno_u64(anno::FIRST_TIMESTAMP) as i64);
        let end = packet.timestamp();
        let mut step = Timestamp::ZERO;
        if !first.is_zero() {
            step = Timestamp::from_nanos((end - first).nanos() / i64::from(count - 1).max(1));
            packet.set_timestamp(first);
        }
        packet.set_anno_u32(anno::EXTRA_PACKETS, 0);
        Self { packet, left: count, len: len as u32, last_len: last_len as u32, step, end }
    }

    fn next(&mut self) -> Packet {
        self.left -= 1;
        let mut part = self.packet.clone();
        let len = if self.left == 0 { self.last_len } else { self.len };
        if self.left == 0 {
            part.set_timestamp(self.end);
        }
        part.set_anno_u32(anno::EXTRA_LENGTH, len - part.len() as u32);
        set_lengths(&mut part, len);
        let time = self.packet.timestamp() + self.step;
        self.packet.set_timestamp(time);
        part
    }
}

/// Sets the lengths in the headers of a packet of `len` bytes.
fn set_lengths(packet: &mut Packet, len: u32) {
    let Some(at) = packet.network_offset().and_then(|at| u32::try_from(at).ok()) else { return };
    let ip_len = len.saturating_sub(at) as u16;
    let Some(ip) = packet.network_header_mut().filter(|ip| ip.len() >= 20) else { return };
    ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
    let (header_len, is_udp) = (usize::from(ip[0] & 15) * 4, ip[9] == 17);
    if is_udp && let Some(place) = ip.get_mut(header_len + 4..header_len + 6) {
        place.copy_from_slice(&ip_len.saturating_sub(header_len as u16).to_be_bytes());
    }
}

impl Feed {
    /// Reads STOP, ACTIVE and SAMPLE.
    pub(super) fn read_arguments(&mut self, args: &mut Args<'_>) {
        args.key("STOP", &mut self.stops).key("ACTIVE", &mut self.is_active);
        self.sample.read(args);
    }

    /// Begins with a reader, or, as an empty file would be, without.
    pub(super) fn start(&mut self, cx: &mut Cx<'_>, reader: Option<Box<dyn Descriptions>>) {
        self.reader = reader;
        self.tell(cx);
        self.go_on(cx);
    }

    /// Says what is wrong with the file.
    fn tell(&mut self, cx: &Cx<'_>) {
        let notices = self.reader.as_mut().map(|reader| reader.take_notices());
        notices.into_iter().flatten().for_each(|notice| cx.say(notice));
    }

    fn go_on(&self, cx: &mut Cx<'_>) {
        if !cx.output_is_push(0) {
            cx.note(self.is_active);
        } else if self.is_active {
            cx.schedule();
        }
    }

    /// The next packet of the file; none at its end.
    fn fetch(&mut self, cx: &Cx<'_>) -> Option<Packet> {
        let reader = self.reader.as_mut().filter(|_| !self.has_ended)?;
        let packet = reader.read().unwrap_or_else(|error| {
            cx.say(error);
            None
        });
        self.has_ended = packet.is_none();
        self.tell(cx);
        packet
    }

    /// The next packet that may leave now.
    fn step(&mut self, cx: &mut Cx<'_>) -> Option<Packet> {
        while self.is_active {
            let packet = if let Some(parts) = &mut self.parts {
                let part = parts.next();
                self.parts = self.parts.take().filter(|parts| parts.left > 0);
                part
            } else {
                let pending = self.pending.take();
                let Some(packet) = pending.or_else(|| self.fetch(cx)) else {
                    if self.stops {
                        cx.stop_driver();
                    }
                    return None;
                };
                if self.is_timed {
                    let due = packet.timestamp() + *self.offset.get_or_insert(cx.now() - packet.timestamp());
                    if cx.now() < due {
                        cx.timer_at(TIMING, due);
                        self.pending = Some(packet);
                        return None;
                    }
                }
                if self.splits && packet.anno_u32(anno::EXTRA_PACKETS) > 0 {
                    self.parts = Some(Parts::new(packet));
                    continue;
                }
                packet
            };
            if self.sample.takes(cx.rng()) {
                return Some(packet);
            }
        }
        None
    }

    pub(super) fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        let Some(packet) = self.step(cx) else { return Run::Stop };
        cx.emit(0, packet);
        Run::Worked
    }

    pub(super) fn pull(&mut self, cx: &mut Cx<'_>) -> Option<Packet> {
        let packet = self.step(cx);
        if packet.is_none() {
            cx.note(false);
        }
        packet
    }

    pub(super) fn run_timer(&mut self, cx: &mut Cx<'_>) {
        if self.is_active {
            self.go_on(cx);
        }
    }

    /// The handlers of an element that has a feed.
    pub(super) fn handlers<E: Element>(handlers: &mut Handlers, feed: fn(&mut E) -> &mut Self) {
        handlers.read("sampling_prob", move |element: &mut E, _| feed(element).sample);
        handlers.read("active", move |element: &mut E, _| feed(element).is_active);
        handlers.write("active", move |element: &mut E, cx, text| {
            feed(element).is_active = cx.parse(text)?;
            feed(element).go_on(cx);
            Ok(())
        });
        handlers.read("encap", |_: &mut E, _| "IP");
        handlers.button("stop", move |element: &mut E, cx| {
            feed(element).is_active = false;
            cx.stop_driver();
        });
        handlers.read("filename", move |element: &mut E, _| {
            feed(element).reader.as_ref().map_or_else(String::new, |reader| reader.name().to_owned())
        });
        handlers.read("filesize", move |element: &mut E, _| {
            let len = feed(element).reader.as_ref().and_then(|reader| reader.file_len());
            len.map_or_else(|| "-".to_owned(), |len| len.to_string())
        });
        handlers.read("filepos", move |element: &mut E, _| {
            feed(element).reader.as_ref().map_or(0, |reader| reader.position())
        });
    }
}
