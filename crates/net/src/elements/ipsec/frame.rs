//! Where things lie in packets: what is encrypted of them, and what was.
//!
//! ```text
//!   before the IP header | IP header | SPI, number, IV | what is encrypted, its trailer | tag
//! ```

use super::association::Mode;
use super::refusals::Refusal;
use crate::Packet;
use crate::headers::Ip;
use crate::headers::ip::{LEN, PROTOCOL_IP};

/// ESP.
pub(super) const PROTOCOL_ESP: u8 = 50;
/// Bytes of SPI, sequence number and IV.
pub(crate) const ESP_BYTES: usize = 16;
/// Bytes of the tag.
const TAG_BYTES: usize = super::association::TAG_BYTES;
/// The shortest text: two bytes, and what brings them to a boundary.
const TEXT_MIN: usize = 4;

/// A packet from its IP header on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// Where the IP header is in the data.
    pub(super) at: usize,
    pub(crate) header_len: usize,
    pub(crate) total_len: usize,
}

impl Frame {
    /// That of a header of which at least 20 bytes are there, in a packet that has `captured` bytes from it on.
    pub(crate) fn of_header(header: &[u8], captured: usize) -> Result<(Self, Ip<'_>), Refusal> {
        let ip = Ip::new(header).ok_or(Refusal::Header)?;
        let (header_len, total_len) = (ip.header_len(), usize::from(ip.total_len()));
        if ip.version() != 4 || header_len < LEN || total_len < header_len || total_len > captured {
            return Err(Refusal::Header);
        }
        Ok((Self { at: 0, header_len, total_len }, ip))
    }

    /// That of a packet whose IP header is known and lies in the data.
    fn of(packet: &Packet) -> Result<(Self, Ip<'_>), Refusal> {
        let at = packet.network_offset().and_then(|at| usize::try_from(at).ok()).ok_or(Refusal::Header)?;
        let bytes = packet.network_header().ok_or(Refusal::Header)?;
        let (frame, ip) = Self::of_header(bytes, bytes.len())?;
        Ok((Self { at, ..frame }, ip))
    }

    /// Takes off what follows the IP packet.
    pub(super) fn cut(self, packet: &mut Packet) {
        packet.take(packet.len() - self.at - self.total_len);
    }
}

/// What is encrypted of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain {
    pub(super) frame: Frame,
    /// Bytes of the IP header that are not.
    pub(crate) kept: usize,
    /// What the trailer says that it is.
    next: u8,
}

impl Plain {
    /// All of it, or what follows the IP header.
    pub(crate) fn of_frame((frame, ip): (Frame, Ip<'_>), mode: Mode) -> Result<Self, Refusal> {
        match mode {
            Mode::Tunnel => Ok(Self { frame, kept: 0, next: PROTOCOL_IP }),
            Mode::Transport if ip.is_fragment() => Err(Refusal::Fragment),
            Mode::Transport => Ok(Self { frame, kept: frame.header_len, next: ip.protocol() }),
        }
    }

    pub(super) fn of(packet: &Packet, mode: Mode) -> Result<Self, Refusal> {
        Self::of_frame(Frame::of(packet)?, mode)
    }

    /// Its bytes.
    pub(crate) fn len(self) -> usize {
        self.frame.total_len - self.kept
    }

    /// Writes the trailer behind them: 1, 2, ... up to a boundary, how many these are, and what was encrypted.
    pub(crate) fn finish(self, text: &mut [u8]) {
        let Some((trailer, [pad_len, next])) = text[self.len()..].split_last_chunk_mut::<2>() else { return };
        trailer.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
        (*pad_len, *next) = (trailer.len() as u8, self.next);
    }
}

/// An ESP packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sealed {
    pub(super) frame: Frame,
    /// Its sequence number, or the lower half of it.
    pub(crate) low: u32,
    pub(crate) iv: [u8; 8],
}

impl Sealed {
    /// That of a frame and what follows its IP header.
    pub(crate) fn of_frame((frame, ip): (Frame, Ip<'_>), esp: &[u8], spi: [u8; 4]) -> Result<Self, Refusal> {
        if ip.protocol() != PROTOCOL_ESP {
            return Err(Refusal::NotOurs);
        }
        if ip.is_fragment() {
            return Err(Refusal::Fragment);
        }
        let Some((head, rest)) = esp.split_first_chunk::<ESP_BYTES>() else { return Err(Refusal::NotOurs) };
        if head[..4] != spi || rest.len() < TEXT_MIN + TAG_BYTES || !rest.len().is_multiple_of(4) {
            return Err(Refusal::NotOurs);
        }
        let [_, _, _, _, low @ .., _, _, _, _, _, _, _, _] = head;
        let [_, _, _, _, _, _, _, _, iv @ ..] = head;
        Ok(Self { frame, low: u32::from_be_bytes(*low), iv: *iv })
    }

    pub(super) fn of(packet: &Packet, spi: [u8; 4]) -> Result<Self, Refusal> {
        let (frame, ip) = Frame::of(packet)?;
        let esp = &packet.bytes()[frame.at..][frame.header_len..frame.total_len];
        Self::of_frame((frame, ip), esp, spi)
    }

    /// Where in the data its ciphertext is.
    pub(super) fn text(self) -> std::ops::Range<usize> {
        let Frame { at, header_len, total_len } = self.frame;
        at + header_len + ESP_BYTES..at + total_len - TAG_BYTES
    }
}

/// What was encrypted without its trailer, and what it is.
pub(super) fn content(text: &[u8]) -> Result<(&[u8], u8), Refusal> {
    let (rest, [pad_len, next]) = text.split_last_chunk().ok_or(Refusal::Malformed)?;
    let len = rest.len().checked_sub(usize::from(*pad_len)).ok_or(Refusal::Malformed)?;
    Ok((&rest[..len], *next))
}

/// The packet that was sent through a tunnel, without what hides its length.
pub(super) fn inner(content: &[u8]) -> Result<&[u8], Refusal> {
    let ip = Ip::checked(content).ok_or(Refusal::Malformed)?;
    Ok(&content[..ip.total_len().into()])
}

/// Opens a gap of `bytes` in the data behind its first `before` bytes, which have whatever lay there; the link layer's header
/// stays known if it is among these.
pub(super) fn open_gap(packet: &mut Packet, before: usize, bytes: usize) {
    let mac = packet.mac_offset().filter(|mac| (0..=before as isize).contains(mac));
    packet.push(bytes).copy_within(bytes..bytes + before, 0);
    packet.clear_headers();
    if let Some(mac) = mac {
        packet.set_mac_header(mac);
    }
}

/// Closes a gap of `bytes` in the data behind its first `before` bytes; the same for the link layer's header.
pub(super) fn close_gap(packet: &mut Packet, before: usize, bytes: usize) {
    let mac = packet.mac_offset().filter(|mac| (0..=before as isize).contains(mac));
    packet.bytes_mut().copy_within(..before, bytes);
    packet.clear_headers();
    packet.pull(bytes);
    if let Some(mac) = mac {
        packet.set_mac_header(mac);
    }
}

/// The longest IP packet.
pub(super) const TOTAL_MAX: usize = 0xffff;
