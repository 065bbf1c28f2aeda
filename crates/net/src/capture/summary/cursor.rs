//! Goes through the text of a field.

/// Goes through a text from its beginning to its end.
pub(in super::super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(in super::super) fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(in super::super) fn starts_with(&self, text: &[u8]) -> bool {
        self.rest.starts_with(text)
    }

    pub(in super::super) fn digit_next(&self) -> bool {
        self.rest.first().is_some_and(u8::is_ascii_digit)
    }

    /// Whether the digits that come next are the first part of an address.
    pub(in super::super) fn address_next(&self) -> bool {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        digits > 0 && self.rest.get(digits) == Some(&b'.')
    }

    /// Passes over a text, if it comes next.
    pub(in super::super) fn eat(&mut self, text: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Passes over a text, if it comes next, and a digit behind it.
    pub(in super::super) fn eat_before_digit(&mut self, text: &[u8]) -> bool {
        let next = self.rest.get(text.len()).is_some_and(u8::is_ascii_digit);
        next && self.eat(text)
    }

    /// A number of decimal digits.
    pub(in super::super) fn number(&mut self) -> Option<u32> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        u32::try_from(integer(number)?).ok()
    }

    /// Passes over what separates options, which nothing may follow but an option.
    pub(in super::super) fn separator(&mut self) -> Option<()> {
        (self.eat(b";") || self.eat(b",")).then_some(())
    }

    /// Passes over everything up to a text, and over it; over all where it does not come.
    pub(in super::super) fn eat_until(&mut self, text: &[u8]) {
        while !self.is_empty() && !self.eat(text) {
            self.skip(1);
        }
    }

    /// Passes over so many bytes, if they are there.
    pub(in super::super) fn skip(&mut self, n: usize) {
        self.rest = self.rest.get(n..).unwrap_or_default();
    }

    /// A number of hexadecimal digits.
    pub(in super::super) fn hex(&mut self) -> Option<u32> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        u32::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok()
    }
}

/// A number without a sign: digits, or hexadecimal digits behind `0x`.
pub(super) fn integer(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() }
}
