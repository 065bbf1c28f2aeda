//! Fields of a line or a record, as values.

use std::net::Ipv4Addr;

use crate::Timestamp;
use crate::headers::EtherAddress;
use crate::lang::config::unquote_bytes;

use super::cursor::integer;
use super::field::{Field, Form, What};
use super::tcp_options::Which;
use super::{TCP_FLAGS, ip_options, names, tcp_options};

/// Bits of the fragment field: don't fragment, more fragments, and the offset in units of 8 bytes.
pub(super) const DF: u32 = 0x4000;
pub(super) const MF: u32 = 0x2000;
pub(super) const OFFSET: u32 = 0x1FFF;
/// What `f` stands for: a fragment behind the first, wherever.
const SOME_OFFSET: u32 = 100;

/// What a field says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(u32),
    Time(Timestamp),
    Mac([u8; 6]),
    Bytes(Vec<u8>),
}

/// What reading a field depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    /// Of the format.
    pub(super) minor_version: u32,
    /// The packet's, where it is known.
    pub(super) icmp_type: Option<u8>,
}

impl Value {
    /// Reads a field of a line; none where it is wrong. A field that is `-` is not there at all.
    pub(super) fn from_text(field: &Field, text: &[u8], context: Context) -> Option<Self> {
        let string = std::str::from_utf8(text).ok();
        let number = match field.what {
            What::Timestamp | What::FirstTimestamp => return time(text).map(Self::Time),
            What::Usec1 => {
                let usec = i64::try_from(integer(text)?).ok()?;
                return Some(Self::Time(Timestamp::from_nanos(usec.checked_mul(1000)?)));
            }
            What::EthSrc | What::EthDst => return Some(Self::Mac(string?.parse::<EtherAddress>().ok()?.0)),
            What::Payload => return Some(Self::Bytes(unquote_bytes(string?))),
            What::IpOpt => return ip_options::parse(text).map(Self::Bytes),
            What::TcpOpt => return tcp_options::parse(text, Which::All).map(Self::Bytes),
            What::TcpNtOpt => return tcp_options::parse(text, Which::NoTimestamp).map(Self::Bytes),
            What::TcpSack => return tcp_options::parse(text, Which::Sack).map(Self::Bytes),
            What::Link | What::Direction => match text {
                b">" | b"L" => 0,
                b"<" | b"R" | b"X" => 1,
                _ => integer(text)?,
            },
            What::EthType => u64::from(u16::from_str_radix(string?.trim_start_matches("0x"), 16).ok()?),
            What::IpSrc | What::IpDst => u64::from(u32::from(string?.parse::<Ipv4Addr>().ok()?)),
            What::IpFrag | What::IpFragOff => u64::from(fragment(text, context.minor_version)?),
            What::IpProto => u64::from(names::protocol(string?)?),
            What::IpEcn => u64::from(ecn(text)?),
            What::TcpFlags => u64::from(tcp_flags(text)?),
            What::IcmpType | What::IcmpTypeName => u64::from(names::icmp_type(string?)?),
            What::IcmpCode | What::IcmpCodeName => u64::from(names::icmp_code(context.icmp_type, string?)?),
            _ => integer(text)?,
        };
        let fits = match field.form {
            Form::Fixed(1) if field.what == What::TcpFlags => number < 0x1000,
            Form::Fixed(1) => number <= 0xFF,
            Form::Fixed(2) => number <= 0xFFFF,
            _ => true,
        };
        if fits { u32::try_from(number).ok().map(Self::Number) } else { None }
    }

    /// Reads a field of a binary record, and takes its bytes away; none, and nothing is left, where they are too few.
    pub(super) fn from_record(field: &Field, record: &mut &[u8]) -> Option<Self> {
        let whole = *record;
        let (skip, len) = match field.form {
            Form::Fixed(len) => (0, len),
            Form::Variable => (1, usize::from(*whole.first()?)),
            Form::TextOnly => return None,
        };
        let bytes = whole.get(skip..skip + len);
        *record = whole.get(skip + len..).unwrap_or_default();
        let bytes = bytes?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(match field.what {
            What::Usec1 => {
                let usec = u64::from(word(0)) << 32 | u64::from(word(4));
                Self::Time(Timestamp::from_nanos(i64::try_from(usec).ok()?.checked_mul(1000)?))
            }
            What::Timestamp | What::FirstTimestamp => {
                let unit = if field.is_nano() { 1 } else { 1000 };
                Self::Time(Timestamp::new(i64::from(word(0)), i64::from(word(4)) * unit))
            }
            What::IpFrag => Self::Number(fragment(bytes, 1)?),
            _ => match (field.form, bytes) {
                (Form::Fixed(1), &[byte]) => Self::Number(byte.into()),
                (Form::Fixed(2), &[high, low]) => Self::Number(u16::from_be_bytes([high, low]).into()),
                (Form::Fixed(4), _) => Self::Number(word(0)),
                (Form::Fixed(6), _) => Self::Mac(*bytes.first_chunk()?),
                _ => Self::Bytes(bytes.to_vec()),
            },
        })
    }

    pub(super) fn number(&self) -> u32 {
        if let Self::Number(number) = self { *number } else { 0 }
    }

    pub(super) fn time(&self) -> Timestamp {
        if let Self::Time(time) = self { *time } else { Timestamp::ZERO }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Mac(bytes) => bytes,
            _ => &[],
        }
    }
}

/// Seconds, with at most nine digits behind a point that count.
pub(in super::super) fn time(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        text => (false, text),
    };
    let point = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    let (seconds, fraction) = (&text[..point], text.get(point + 1..).unwrap_or_default());
    let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
    if seconds.is_empty() && fraction.is_empty() || !digits(seconds) || !digits(fraction) {
        return None;
    }
    let seconds = if seconds.is_empty() { 0 } else { i64::try_from(integer(seconds)?).ok()? };
    let places = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = places.fold(0, |nanos, digit| nanos * 10 + i64::from(digit - b'0'));
    let time = seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    Some(Timestamp::from_nanos(if negative { -time } else { time }))
}

/// `.`, `!`, `F`, `f`, or an offset in bytes (in version 1.0 in units of 8) with `+` and `!` behind it.
fn fragment(text: &[u8], minor_version: u32) -> Option<u32> {
    match text {
        b"." => return Some(0),
        b"!" => return Some(DF),
        b"F" => return Some(MF),
        b"f" => return Some(SOME_OFFSET),
        _ => {}
    }
    let end = text.iter().position(|byte| matches!(byte, b'+' | b'!')).unwrap_or(text.len());
    let offset = integer(&text[..end])? >> if minor_version > 0 { 3 } else { 0 };
    let offset = u32::try_from(offset).ok().filter(|offset| *offset <= OFFSET)?;
    text[end..].iter().try_fold(offset, |value, flag| match flag {
        b'+' => Some(value | MF),
        b'!' => Some(value | DF),
        _ => None,
    })
}

fn ecn(text: &[u8]) -> Option<u8> {
    match text {
        b"no" | b"0" => Some(0),
        b"ect1" | b"ECT(1)" | b"1" => Some(1),
        b"ect2" | b"ECT(0)" | b"2" => Some(2),
        b"ce" | b"CE" | b"3" => Some(3),
        _ => None,
    }
}

/// Letters, `.` for none, or a number; old dumps have `W`, `X` and `Y`.
fn tcp_flags(text: &[u8]) -> Option<u32> {
    if text == b"." {
        return Some(0);
    }
    if text.first()?.is_ascii_digit() {
        return integer(text).and_then(|value| u32::try_from(value).ok());
    }
    text.iter().try_fold(0, |flags, letter| {
        let letter = match letter {
            b'X' => b'E',
            b'Y' | b'W' => b'C',
            &letter => letter,
        };
        Some(flags | 1 << TCP_FLAGS.iter().position(|&known| known == letter)?)
    })
}
