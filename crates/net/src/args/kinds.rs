//! Types of arguments.

use super::{Arg, ArgCx, NameKind};
use crate::Timestamp;
use crate::classify::{port_number, protocol_number};
use crate::headers::ether::EtherAddress;
use crate::lang::config::{is_word, unquote, unquote_bytes};
use crate::packet::{ANNO_BYTES, anno};
use std::net::Ipv4Addr;

const MISMATCH: &str = "type mismatch";

impl<T: Arg> Arg for Option<T> {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        T::parse(text, cx).map(Some)
    }
}

/// Reads `0x1F`, `017` and `31` as C does.
fn digits(text: &str) -> Option<(u32, &str)> {
    let (radix, digits) = match text {
        text if text.starts_with("0x") || text.starts_with("0X") => (16, &text[2..]),
        text if text.len() > 1 && text.starts_with('0') => (8, &text[1..]),
        text => (10, text),
    };
    let fine = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    fine.then_some((radix, digits))
}

macro_rules! unsigned {
    ($($type:ty)*) => { $(
        impl Arg for $type {
            fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
                let text = unquote(text);
                let (negative, rest) = text.strip_prefix('-').map_or((false, &text[..]), |rest| (true, rest));
                let rest = rest.strip_prefix('+').unwrap_or(rest);
                let (radix, digits) = digits(rest).ok_or("invalid number")?;
                if negative {
                    return Err("must be >= 0".to_owned());
                }
                Self::from_str_radix(digits, radix).map_err(|_| format!("out of range, bound {}", Self::MAX))
            }
        }
    )* };
}
unsigned!(u8 u16 u32 u64 usize);

macro_rules! signed {
    ($($type:ty)*) => { $(
        impl Arg for $type {
            fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
                let text = unquote(text);
                let (sign, rest) = text.strip_prefix('-').map_or(("", &text[..]), |rest| ("-", rest));
                let rest = rest.strip_prefix('+').unwrap_or(rest);
                let (radix, digits) = digits(rest).ok_or("invalid number")?;
                let bound = if sign.is_empty() { Self::MAX } else { Self::MIN };
                Self::from_str_radix(&format!("{sign}{digits}"), radix).map_err(|_| format!("out of range, bound {bound}"))
            }
        }
    )* };
}
signed!(i8 i16 i32 i64);

impl Arg for f64 {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        let value: Self = unquote(text).parse().map_err(|_| MISMATCH)?;
        if value.is_finite() { Ok(value) } else { Err(MISMATCH.to_owned()) }
    }
}

impl Arg for bool {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        match unquote(text).to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "t" | "y" => Ok(true),
            "0" | "false" | "no" | "f" | "n" => Ok(false),
            _ => Err(MISMATCH.to_owned()),
        }
    }
}

impl Arg for String {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        Ok(unquote(text))
    }
}

/// Bytes, as a string says them: what is quoted may have any.
impl Arg for Vec<u8> {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        Ok(unquote_bytes(text))
    }
}

/// Text as it stands, quotes included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Raw(pub String);

impl Arg for Raw {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        Ok(Self(text.to_owned()))
    }
}

/// A word: no spaces, quotes, commas or backslashes in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Word(pub String);

impl Arg for Word {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        let word = unquote(text);
        if is_word(&word) { Ok(Self(word)) } else { Err(MISMATCH.to_owned()) }
    }
}

fn named<const N: usize>(kind: NameKind, text: &str, cx: &ArgCx<'_>) -> Option<[u8; N]> {
    cx.names.get(kind, text, cx.element)?.try_into().ok()
}

impl Arg for Ipv4Addr {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        let given = text.parse().ok().or_else(|| named::<4>(NameKind::IpAddress, &text, cx).map(Self::from));
        // `eth0:ip` and `name:ip4` are names with what they stand for.
        let suffixed = || text.strip_suffix(":ip").or_else(|| text.strip_suffix(":ip4"));
        let given = given.or_else(|| named::<4>(NameKind::IpAddress, suffixed()?, cx).map(Self::from));
        // `net:bcast` is the last address of a prefix.
        let broadcast = || {
            let prefix = named_prefix(text.strip_suffix(":bcast")?, cx)?;
            Some(Self::from(u32::from(prefix.address) | !u32::from(prefix.mask)))
        };
        given.or_else(broadcast).ok_or_else(|| MISMATCH.to_owned())
    }
}

impl Arg for EtherAddress {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        let given = text.parse().ok().or_else(|| named::<6>(NameKind::EtherAddress, &text, cx).map(Self));
        let suffixed = || text.strip_suffix(":eth").or_else(|| text.strip_suffix(":ether"));
        let given = given.or_else(|| named::<6>(NameKind::EtherAddress, suffixed()?, cx).map(Self));
        given.ok_or_else(|| MISMATCH.to_owned())
    }
}

/// An IP address and a mask: `10.0.0.0/8`, `10.0.0.0/255.0.0.0`, or an address for itself alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// As it was written: bits outside of the mask are not cleared.
    pub address: Ipv4Addr,
    /// Ones, then zeroes, unless somebody wants it otherwise.
    pub mask: Ipv4Addr,
}

impl Default for Prefix {
    fn default() -> Self {
        Self { address: Ipv4Addr::UNSPECIFIED, mask: Ipv4Addr::UNSPECIFIED }
    }
}

impl Prefix {
    /// Whether an address is in it.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (u32::from(address) ^ u32::from(self.address)) & u32::from(self.mask) == 0
    }

    /// Length of the mask; nothing where it has holes.
    pub fn len(self) -> Option<u32> {
        let mask = u32::from(self.mask);
        (mask.leading_ones() + mask.trailing_zeros() >= 32).then(|| mask.leading_ones())
    }

    /// Whether it has all addresses.
    pub fn is_empty(self) -> bool {
        self.mask.is_unspecified()
    }

    /// Reads one that has a mask written, or a name's.
    pub fn with_mask(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        let name = text.strip_suffix(":ipnet").or_else(|| text.strip_suffix(":ip4net")).unwrap_or(&text);
        if let Some(prefix) = named_prefix(name, cx) {
            return Ok(prefix);
        }
        let (address, mask) = text.split_once('/').ok_or(MISMATCH)?;
        let address = short_address(address).ok_or(MISMATCH)?;
        let mask = match mask.parse::<u32>() {
            Ok(len) if len <= 32 => u32::MAX.checked_shl(32 - len).unwrap_or(0).into(),
            Ok(_) => return Err(MISMATCH.to_owned()),
            Err(_) => mask.parse().map_err(|_| MISMATCH)?,
        };
        Ok(Self { address, mask })
    }
}

fn named_prefix(name: &str, cx: &ArgCx<'_>) -> Option<Prefix> {
    let [a, b, c, d, mask @ ..] = named::<8>(NameKind::IpPrefix, name, cx)?;
    Some(Prefix { address: [a, b, c, d].into(), mask: mask.into() })
}

/// `10.0` before a slash is `10.0.0.0`.
fn short_address(text: &str) -> Option<Ipv4Addr> {
    let mut bytes = [0; 4];
    let parts: Vec<_> = text.split('.').collect();
    if parts.len() > 4 {
        return None;
    }
    parts.iter().zip(&mut bytes).try_for_each(|(part, byte)| part.parse().ok().map(|value| *byte = value))?;
    Some(bytes.into())
}

impl Arg for Prefix {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        // A name that stands for an address, too, is that.
        match Ipv4Addr::parse(text, cx) {
            Ok(address) => Ok(Self { address, mask: Ipv4Addr::BROADCAST }),
            Err(_) => Self::with_mask(text, cx),
        }
    }
}

/// An IP protocol: 0 to 255, or a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protocol(pub u8);

impl Arg for Protocol {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        if let Ok(number) = i64::parse(&text, cx) {
            return u8::try_from(number).map(Self).map_err(|_| "bad IP protocol".to_owned());
        }
        let named = named::<1>(NameKind::IpProtocol, &text, cx).map(|[number]| number);
        named.or_else(|| protocol_number(&text)).map(Self).ok_or_else(|| MISMATCH.to_owned())
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A port of a protocol (6: TCP, 17: UDP): 0 to 65535, or a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Port<const PROTOCOL: u8>(pub u16);

impl<const PROTOCOL: u8> Arg for Port<PROTOCOL> {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        if let Ok(number) = i64::parse(&text, cx) {
            return u16::try_from(number).map(Self).map_err(|_| "overflow, range 0-65535".to_owned());
        }
        let kind = if PROTOCOL == 6 { NameKind::TcpPort } else { NameKind::UdpPort };
        let named = named::<2>(kind, &text, cx).map(u16::from_be_bytes);
        named.or_else(|| port_number(PROTOCOL, &text)).map(Self).ok_or_else(|| MISMATCH.to_owned())
    }
}

impl<const PROTOCOL: u8> std::fmt::Display for Port<PROTOCOL> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A moment: seconds since 1970, with up to nine digits behind the point.
impl Arg for Timestamp {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        decimal(&unquote(text), 1_000_000_000).map(Self::from_nanos).ok_or_else(|| MISMATCH.to_owned())
    }
}

/// A decimal number times `scale`, exactly; digits too many are cut off.
fn decimal(text: &str, scale: i64) -> Option<i64> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let fine = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || !fine(whole) || !fine(part) {
        return None;
    }
    let mut value = if whole.is_empty() { 0 } else { whole.parse::<i64>().ok()?.checked_mul(scale)? };
    let mut unit = scale;
    for digit in part.bytes() {
        unit /= 10;
        value = value.checked_add(i64::from(digit - b'0') * unit)?;
    }
    Some(sign * value)
}

/// A time between moments: seconds, or with a unit (`10ms`, `3 min`, `2h`); in nanoseconds, not negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Interval(pub Timestamp);

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Arg for Interval {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let scale = match text[digits..].trim() {
            "" | "s" | "sec" | "second" | "seconds" => 1_000_000_000,
            "ms" | "msec" => 1_000_000,
            "us" | "usec" => 1_000,
            "ns" | "nsec" => 1,
            "m" | "min" => 60_000_000_000,
            "h" | "hr" => 3_600_000_000_000,
            "d" | "day" => 86_400_000_000_000,
            _ => return Err(MISMATCH.to_owned()),
        };
        let nanos = decimal(&text[..digits], scale).ok_or(MISMATCH)?;
        Ok(Self(Timestamp::from_nanos(nanos)))
    }
}

/// Bytes in a second: a number of them, or with a unit (`1.5 Mbps`, `10KB/s`, `8Gbps`; `bps` are bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bandwidth(pub u64);

impl Arg for Bandwidth {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number: f64 = text[..digits].parse().map_err(|_| MISMATCH)?;
        let unit = text[digits..].trim();
        let (bits, rest) =
            match unit.strip_suffix("bps").or_else(|| unit.strip_suffix("b/s")).or_else(|| unit.strip_suffix("baud")) {
                Some(rest) => (8.0, rest),
                None => (1.0, unit.strip_suffix("B/s").or_else(|| unit.strip_suffix("Bps")).unwrap_or(unit)),
            };
        let scale = match rest {
            "" => 1.0,
            "k" | "K" => 1e3,
            "m" | "M" => 1e6,
            "g" | "G" => 1e9,
            _ => return Err(MISMATCH.to_owned()),
        };
        Ok(Self((number * scale / bits) as u64))
    }
}

impl std::fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A number or everything: -1 has no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount(pub Option<u64>);

impl Arg for Amount {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let value = i64::parse(text, cx)?;
        Ok(Self(u64::try_from(value).ok()))
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(amount) => write!(f, "{amount}"),
            None => f.write_str("-1"),
        }
    }
}

/// An element, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElementRef(pub usize);

impl Arg for ElementRef {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let name = unquote(text);
        cx.find(&name).map(Self).ok_or_else(|| format!("no element named '{name}'"))
    }
}

/// A handler of an element and what is written there: `element.handler value`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandlerCall {
    /// The element's number; nothing: the router itself has it.
    pub element: Option<usize>,
    /// The handler's name.
    pub handler: String,
    /// What follows it.
    pub value: String,
}

impl Arg for HandlerCall {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = text.trim();
        let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let value = value.trim().to_owned();
        let Some((element, handler)) = name.rsplit_once('.') else {
            // An element's own handler may be named alone; otherwise the router has it.
            return Ok(Self { element: None, handler: name.to_owned(), value });
        };
        if element.is_empty() {
            return Ok(Self { element: None, handler: handler.to_owned(), value });
        }
        let found = cx.find(element).ok_or_else(|| format!("no element named '{element}'"))?;
        Ok(Self { element: Some(found), handler: handler.to_owned(), value })
    }
}

/// Bytes of a packet's annotations, by name or `OFFSET/LENGTH`; `LEN` is how many are meant where none are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnoArg<const LEN: usize>(pub usize);

impl<const LEN: usize> Arg for AnnoArg<LEN> {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let text = unquote(text);
        let (name, len) = text.split_once('/').map_or((&text[..], None), |(name, len)| (name, Some(len)));
        let (at, own) = match name.strip_suffix("_ANNO").unwrap_or(name) {
            "DST_IP" => (anno::DST_IP, 4),
            "DST_IP6" => (anno::DST_IP6, 16),
            "PAINT" => (anno::PAINT, 1),
            "ICMP_PARAMPROB" => (anno::ICMP_PARAMPROB, 1),
            "FIX_IP_SRC" => (anno::FIX_IP_SRC, 1),
            "VLAN_TCI" | "VLAN" => (anno::VLAN_TCI, 2),
            "AGGREGATE" => (anno::AGGREGATE, 4),
            "FWD_RATE" | "MISC_IP" => (anno::MISC_IP, 4),
            "EXTRA_PACKETS" | "REV_RATE" => (anno::EXTRA_PACKETS, 4),
            "EXTRA_LENGTH" => (anno::EXTRA_LENGTH, 4),
            "FIRST_TIMESTAMP" => (anno::FIRST_TIMESTAMP, 8),
            number => (usize::parse(number, cx).map_err(|_| MISMATCH)?, LEN),
        };
        let len = len.map_or(Ok(own), |len| usize::parse(len, cx))?;
        if len != LEN {
            return Err(format!("annotation has {len} bytes, and {LEN} are needed"));
        }
        if at + LEN > ANNO_BYTES {
            return Err(format!("annotation out of range, bound {ANNO_BYTES}"));
        }
        Ok(Self(at))
    }
}
