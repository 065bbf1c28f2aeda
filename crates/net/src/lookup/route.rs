//! A route, where it leads, and its text: `ADDR/MASK [GATEWAY] OUTPUT`.

use crate::lang::config::first_word;
use std::fmt::{self, Write as _};

/// What names of addresses in a route's text mean. Addresses have their first byte in the highest bits.
pub trait Names {
    /// The address that `name` stands for.
    fn address(&self, name: &str) -> Option<u32>;
    /// The address and the mask that `name` stands for.
    fn prefix(&self, name: &str) -> Option<(u32, u32)>;
}

/// No name means anything.
#[derive(Debug, Clone, Copy)]
pub struct NoNames;

impl Names for NoNames {
    fn address(&self, _: &str) -> Option<u32> {
        None
    }

    fn prefix(&self, _: &str) -> Option<(u32, u32)> {
        None
    }
}

/// Where packets to an address go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The gateway's address, its first byte in the highest bits; 0 where the address itself is the next hop.
    pub gateway: u32,
    /// The output; negative where no route leads to the address.
    pub output: i32,
}

impl NextHop {
    /// What addresses without a route have.
    pub const NONE: Self = Self { gateway: 0, output: -1 };

    pub(super) fn pack(self) -> u64 {
        u64::from(self.gateway) << 32 | u64::from(self.output as u32)
    }

    pub(super) fn unpack(bits: u64) -> Self {
        Self { gateway: (bits >> 32) as u32, output: bits as i32 }
    }
}

/// A prefix, and where packets to its addresses go. Addresses have their first byte in the highest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// The prefix's address; no bit is set where the mask has none.
    pub address: u32,
    /// The prefix's mask.
    pub mask: u32,
    /// The gateway; 0 for none.
    pub gateway: u32,
    /// The output; negative where a removal names none.
    pub output: i32,
}

impl Route {
    /// Reads `ADDR[/MASK] [GATEWAY] OUTPUT`, where a gateway of `-` is none. A removal may leave out what follows the
    /// prefix. Nothing where the text is no route.
    pub fn parse(text: &str, removal: bool, names: &impl Names) -> Option<Self> {
        let (prefix, rest) = word_of(text);
        let (address, mask) = parse_prefix(prefix, names)?;
        let (mut word, mut rest) = word_of(rest);
        let mut gateway = 0;
        let named = if word == "-" { Some(0) } else { parse_address(word, names) };
        if let Some(address) = named {
            gateway = address;
            (word, rest) = word_of(rest);
        }
        let output = match parse_integer(word) {
            Some(output) => output,
            None if word.is_empty() && removal => -1,
            None => return None,
        };
        word_of(rest).0.is_empty().then_some(Self { address: address & mask, mask, gateway, output })
    }

    /// The mask's length; nothing where it has a zero bit above a one bit.
    pub fn prefix_len(&self) -> Option<u8> {
        let len = self.mask.leading_ones();
        (self.mask.count_ones() == len).then_some(len as u8)
    }

    /// Where its packets go.
    pub fn hop(&self) -> NextHop {
        NextHop { gateway: self.gateway, output: self.output }
    }

    /// Whether the prefix has this address.
    pub fn contains(&self, address: u32) -> bool {
        address & self.mask == self.address
    }

    /// Whether a removal of `self` removes `route`.
    pub(super) fn removes(&self, route: &Self) -> bool {
        let same = self.address == route.address && self.mask == route.mask;
        same && (self.output < 0 || self.hop() == route.hop())
    }

    /// Appends the line of a table that shows it: columns, separated by one tab or two.
    pub fn write_line(&self, text: &mut String) {
        for (column, width) in [(self.prefix(), 17), (self.gateway(), 9)] {
            let _ = write!(text, "{column}\t");
            if column.len() + 1 < width {
                text.push('\t');
            }
        }
        let _ = writeln!(text, "{}", self.output);
    }

    fn prefix(&self) -> String {
        match self.prefix_len() {
            Some(len) => format!("{}/{len}", address_text(self.address)),
            None => format!("{}/{}", address_text(self.address), address_text(self.mask)),
        }
    }

    fn gateway(&self) -> String {
        if self.gateway == 0 { "-".into() } else { address_text(self.gateway) }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.prefix(), self.gateway(), self.output)
    }
}

/// The first word and what follows it. A plain word followed by a space, as nearly all are in large tables, needs no search
/// for quotes and comments.
fn word_of(text: &str) -> (&str, &str) {
    let text = text.trim_ascii_start();
    let end = text.bytes().position(|byte| !(byte.is_ascii_alphanumeric() || b"./-_".contains(&byte)));
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    let is_plain = rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_whitespace());
    if is_plain && !word.contains("//") { (word, rest) } else { first_word(text) }
}

pub(super) fn address_text(address: u32) -> String {
    std::net::Ipv4Addr::from_bits(address).to_string()
}

/// An address, as four decimal numbers or by name.
pub(super) fn parse_address(text: &str, names: &impl Names) -> Option<u32> {
    match numbers(text) {
        Some((address, 4)) => Some(address),
        _ if text.is_empty() => None,
        _ => names.address(text),
    }
}

/// An address and a mask: `ADDR/LEN`, `ADDR/MASK`, an address as such, or a name of either. With a mask, the address may
/// leave out bytes that the mask does not need.
fn parse_prefix(text: &str, names: &impl Names) -> Option<(u32, u32)> {
    let (before, after) = text.rsplit_once('/').unwrap_or((text, ""));
    let slashed = if after.is_empty() { None } else { masked(before, after, names) };
    let bare = || parse_address(text, names).map(|address| (address, u32::MAX));
    slashed.or_else(bare).or_else(|| names.prefix(text))
}

fn masked(address: &str, mask: &str, names: &impl Names) -> Option<(u32, u32)> {
    let (address, bytes) = numbers(address).or_else(|| Some((names.address(address)?, 4)))?;
    let mask = match mask.parse::<u8>() {
        Ok(len @ 0..=32) => mask_of(len),
        _ => parse_address(mask, names)?,
    };
    (mask & !mask_of(bytes * 8) == 0).then_some((address, mask))
}

/// The mask of a prefix of `len` bits (0 to 32).
pub(super) fn mask_of(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

/// One to four decimal numbers up to 255 with dots between them: the address that they begin, and how many there are.
fn numbers(text: &str) -> Option<(u32, u8)> {
    let (mut address, mut bytes) = (0, 0);
    for part in text.as_bytes().split(|&c| c == b'.') {
        if bytes == 4 || part.is_empty() || part.len() > 9 {
            return None;
        }
        let number = part.iter().try_fold(0, |n, c| c.is_ascii_digit().then(|| n * 10 + u32::from(c - b'0')))?;
        if number > 255 {
            return None;
        }
        address |= number << (24 - 8 * u32::from(bytes));
        bytes += 1;
    }
    Some((address, bytes))
}

/// An integer as Click reads it: decimal, hexadecimal after `0x`, binary after `0b`, octal after `0`.
fn parse_integer(text: &str) -> Option<i32> {
    let (minus, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_digit(base)) {
        return None;
    }
    let number = i64::from_str_radix(digits, base).ok()?;
    i32::try_from(if minus { -number } else { number }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Named;

    impl Names for Named {
        fn address(&self, name: &str) -> Option<u32> {
            (name == "ext0").then_some(0x0a00_0001)
        }

        fn prefix(&self, name: &str) -> Option<(u32, u32)> {
            (name == "net0").then_some((0x0a00_0001, 0xffff_ff00))
        }
    }

    fn parse(text: &str) -> Option<String> {
        Route::parse(text, false, &Named).map(|route| route.to_string())
    }

    #[test]
    fn routes_have_a_prefix_maybe_a_gateway_and_an_output() {
        let good = [
            ("18.26.4.24/32 0", "18.26.4.24/32 - 0"),
            ("18.26.4.24 3", "18.26.4.24/32 - 3"),
            ("0/0 18.26.4.1 1", "0.0.0.0/0 18.26.4.1 1"),
            ("18.26.4/24 - 1", "18.26.4.0/24 - 1"),
            ("18.26.0/12 7.0.0.7 0", "18.16.0.0/12 7.0.0.7 0"),
            ("1.2.3.4/255.255.0.0 0x1f", "1.2.0.0/16 - 31"),
            ("1.2.3.4/255.0.255.0 010", "1.0.3.0/255.0.255.0 - 8"),
            ("  ext0\text0   8 ", "10.0.0.1/32 10.0.0.1 8"),
            ("net0 2", "10.0.0.0/24 - 2"),
            ("ext0/8 2", "10.0.0.0/8 - 2"),
            ("1.2.3.4/ext0 2", "0.0.0.0/10.0.0.1 - 2"),
            ("1.2.3.0/24 0.0.0.0 2", "1.2.3.0/24 - 2"),
            ("1.2.3.0/24 -1", "1.2.3.0/24 - -1"),
            ("/* a */ 1.2.3.0/24/* b */ 5.6.7.8/**/2 // c", "1.2.3.0/24 5.6.7.8 2"),
            ("1.2.3.0/24 2// c", "1.2.3.0/24 - 2"),
        ];
        for (text, route) in good {
            assert_eq!(parse(text).as_deref(), Some(route), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_route() {
        let bad = [
            "",
            "1.2.3.4",
            "1.2.3.4/8",
            "1.2/24 1",
            "1.2.3 1",
            "1.2.3.4/33 1",
            "1.2.3.256/24 1",
            "1.2.3.4/24 5.6 1",
            "/24 1",
            "1.2.3.4/24 5.6.7.8 1 2",
            "1.2.3.4/24 0x",
            "1.2.3.4/24 x",
            "1.2.3.4/24 99999999999",
            "1.2.3.4/-1 1",
            "1..2.3/8 1",
            "1.2.3.4.5/8 1",
            "nobody 1",
            "1.2.3.4/ 1",
            "ext0/33 1",
            "1.2.3.4/24 -",
            "1.2.3.4/24 --1",
            "1.2.3.4/24 +-1",
        ];
        for text in bad {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("1.2.3.4/24 -"), None);
    }

    #[test]
    fn a_removal_may_leave_out_gateway_and_output() {
        for text in ["1.2.3.0/24", "1.2.3.0/24 5.6.7.8", "1.2.3.0/24 -", "1.2.3.0/24 5.6.7.8 -1"] {
            assert_eq!(Route::parse(text, true, &NoNames).map(|route| route.output), Some(-1), "{text}");
        }
        assert_eq!(Route::parse("1.2.3.0/24 4", true, &NoNames).map(|route| route.output), Some(4));
    }

    #[test]
    fn columns_stand_below_each_other() {
        let line = |text| {
            let mut line = String::new();
            Route::parse(text, false, &NoNames).unwrap().write_line(&mut line);
            line
        };
        assert_eq!(line("1/8 2"), "1.0.0.0/8\t\t-\t\t2\n");
        assert_eq!(line("100.200.100.0/24 1.2.3.4 2"), "100.200.100.0/24\t1.2.3.4\t\t2\n");
        assert_eq!(line("100.200.10.0/24 10.2.3.4 2"), "100.200.10.0/24\t\t10.2.3.4\t2\n");
    }

    proptest! {
        #[test]
        fn any_text_is_a_route_or_none(text in "[-0-9./x a-f\t]{0,40}|.{0,40}") {
            let _ = Route::parse(&text, true, &NoNames);
        }

        #[test]
        fn words_are_those_of_the_language(text in r#"[a1./*" \t'\\-]{0,20}"#) {
            let (word, rest) = word_of(&text);
            prop_assert_eq!((word, first_word(rest).0), { let (word, rest) = first_word(&text); (word, first_word(rest).0) });
        }

        #[test]
        fn a_route_is_read_as_it_is_written(address: u32, len in 0_u8..=32, gateway: u32, output in 0..i32::MAX) {
            let mask = mask_of(len);
            let route = Route { address: address & mask, mask, gateway, output };
            prop_assert_eq!(Route::parse(&route.to_string(), false, &NoNames), Some(route));
        }
    }
}
