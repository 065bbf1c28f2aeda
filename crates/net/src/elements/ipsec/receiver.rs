//! The receiving end of an association: the window, and packets that are verified and decrypted.

use super::association::{Association, Mode, TAG_BYTES};
use super::frame::{ESP_BYTES, Sealed, close_gap, content, inner};
use super::refusals::Refusal;
use super::window::{Window, extend};
use crate::Packet;
use crate::args::{Args, Failed};
use crate::headers::ip::{ECN_CE, ECN_NOT_ECT, PROTOCOL_IP, set_checksum};
use crate::headers::{Ip, IpMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most numbers of a window.
const WINDOW_MAX: u64 = 1 << 16;
/// What follows is no packet (RFC 4303, 2.6).
const PROTOCOL_NONE: u8 = 59;

/// What somebody else has found out about a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened<'a> {
    /// The lowest sequence number that was looked for.
    pub(crate) lowest: u64,
    /// Begins with what was encrypted; none: the tag is wrong.
    pub(crate) text: Option<&'a [u8]>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) association: Association,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    window: Window,
    /// What is being decrypted.
    text: Vec<u8>,
}

impl Receiver {
    /// Those of an association, and WINDOW.
    pub(crate) fn of(args: &mut Args<'_>) -> Result<Self, Failed> {
        let mut size = 64;
        args.key("WINDOW", &mut size);
        let association = Association::of(args)?;
        args.finish()?;
        if !(1..=WINDOW_MAX).contains(&size) {
            return Err(args.error_of("WINDOW", format_args!("must be between 1 and {WINDOW_MAX}")));
        }
        Ok(Self { association, state: Mutex::new(State { window: Window::new(size), text: Vec::new() }) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest sequence number that came.
    pub(crate) fn top(&self) -> u64 {
        self.lock().window.top()
    }

    /// The lowest sequence number that a packet can have: 0 where packets have all of it.
    pub(crate) fn lowest(&self) -> u64 {
        if self.association.is_extended { self.lock().window.lowest() } else { 0 }
    }

    /// Goes on where another one of the same association was.
    pub(crate) fn inherit(&self, old: &Self) {
        if !std::ptr::eq(self, old) && self.association.is_same(&old.association) {
            let window = old.lock().window.clone();
            self.lock().window.inherit(&window);
        }
    }

    /// Verifies and decrypts a packet; `opened` is what that gives, where somebody knows it. A packet that is refused stays as it
    /// was. Whether `opened` was of use.
    pub(crate) fn open(&self, packet: &mut Packet, opened: Option<Opened<'_>>) -> Result<bool, Refusal> {
        let association = &self.association;
        let sealed = Sealed::of(packet, association.spi)?;
        let State { window, text } = &mut *self.lock();
        let of = |lowest| if association.is_extended { extend(lowest, sealed.low) } else { sealed.low.into() };
        let number = of(window.lowest());
        if !window.is_new(number) {
            return Err(Refusal::Replayed);
        }
        let place = sealed.text();
        let len = place.len();
        // Who has looked for another number, as the window was elsewhere then, knows nothing.
        let known = opened.filter(|opened| of(opened.lowest) == number);
        let text = if let Some(Opened { text, .. }) = known {
            text.and_then(|text| text.get(..len)).ok_or(Refusal::Forged)?
        } else {
            text.clear();
            text.extend_from_slice(&packet.bytes()[place.clone()]);
            let tag = packet.bytes()[place.end..].first_chunk::<TAG_BYTES>().ok_or(Refusal::Header)?;
            if !association.decrypt(number, sealed.iv, text, tag) {
                return Err(Refusal::Forged);
            }
            text
        };
        window.see(number);
        unwrap(association.mode, packet, sealed, text)?;
        Ok(known.is_some())
    }
}

/// The packet becomes what was encrypted in it.
fn unwrap(mode: Mode, packet: &mut Packet, sealed: Sealed, text: &[u8]) -> Result<(), Refusal> {
    let (content, next) = content(text)?;
    if next == PROTOCOL_NONE {
        return Err(Refusal::Dummy);
    }
    let frame = sealed.frame;
    let (kept, content) = match mode {
        Mode::Tunnel if next == PROTOCOL_IP => (0, inner(content)?),
        Mode::Tunnel => return Err(Refusal::Malformed),
        Mode::Transport => (frame.header_len, content),
    };
    let outer = packet.bytes()[frame.at + 1];
    frame.cut(packet);
    close_gap(packet, frame.at + kept, frame.header_len - kept + ESP_BYTES);
    packet.take(packet.len() - frame.at - kept - content.len());
    let bytes = &mut packet.bytes_mut()[frame.at..];
    bytes[kept..].copy_from_slice(content);
    match mode {
        Mode::Tunnel => congestion(bytes, outer & 3),
        Mode::Transport => {
            let len = bytes.len() as u16;
            if let Some(mut ip) = IpMut::new(bytes) {
                ip.set_total_len(len);
                ip.set_protocol(next);
            }
            let _ = set_checksum(bytes);
        }
    }
    let header = Ip::new(bytes).map(|ip| (ip.header_len(), ip.destination()));
    if let Some((header_len, destination)) = header {
        packet.set_network_header(frame.at as isize, header_len);
        packet.set_dst_ip(destination);
    }
    Ok(())
}

/// What the way through a tunnel has experienced, the packet inside has (RFC 4301, 5.1.2.1).
fn congestion(inner: &mut [u8], outer: u8) {
    if let Some(mut ip) = IpMut::new(inner)
        && outer == ECN_CE
        && ip.get().ecn() != ECN_NOT_ECT
    {
        let tos = ip.get().tos() | ECN_CE;
        ip.change_tos(tos);
    }
}
