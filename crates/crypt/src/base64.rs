//! Base 64 (RFC 4648), strict: one text for each sequence of bytes, so that no two names of an encrypted directory
//! mean the same.

/// How bytes are written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base64 {
    /// `+` and `/`, with `=` at the end: fields of the configuration.
    Standard,
    /// `-` and `_`, with `=` at the end: names of file systems without the flag `Raw64`.
    Url,
    /// `-` and `_`, without an end: names.
    UrlRaw,
}

impl Base64 {
    fn digits(self) -> &'static [u8; 64] {
        match self {
            Self::Standard => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
            Self::Url | Self::UrlRaw => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
        }
    }

    fn is_padded(self) -> bool {
        self != Self::UrlRaw
    }

    /// The text for bytes.
    pub(crate) fn encode(self, bytes: &[u8]) -> Vec<u8> {
        let digits = self.digits();
        let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
        for three in bytes.chunks(3) {
            let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for digit in 0..=three.len() {
                text.push(digits[(bits >> (18 - 6 * digit)) as usize & 63]);
            }
            if self.is_padded() {
                text.resize(text.len().next_multiple_of(4), b'=');
            }
        }
        text
    }

    /// The bytes that a text stands for; none if it is not the text that [`encode`](Self::encode) gives for them.
    pub(crate) fn decode(self, text: &[u8]) -> Option<Vec<u8>> {
        let mut digits = text;
        if self.is_padded() {
            if !text.len().is_multiple_of(4) {
                return None;
            }
            let end = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
            digits = &text[..text.len() - end];
        }
        let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
        for four in digits.chunks(4) {
            let mut bits = 0;
            for index in 0..4 {
                let value = match four.get(index) {
                    Some(digit) => self.value(*digit)?,
                    None => 0,
                };
                bits = bits << 6 | value;
            }
            let [_, three @ ..] = bits.to_be_bytes();
            let (held, rest) = three.split_at(four.len() - 1);
            // A single digit holds no byte, and bits beyond the last byte would be a second text for it.
            if held.is_empty() || rest.iter().any(|byte| *byte != 0) {
                return None;
            }
            bytes.extend_from_slice(held);
        }
        Some(bytes)
    }

    fn value(self, digit: u8) -> Option<u32> {
        let value = match (digit, self) {
            (b'A'..=b'Z', _) => digit - b'A',
            (b'a'..=b'z', _) => digit - b'a' + 26,
            (b'0'..=b'9', _) => digit - b'0' + 52,
            (b'+', Self::Standard) | (b'-', Self::Url | Self::UrlRaw) => 62,
            (b'/', Self::Standard) | (b'_', Self::Url | Self::UrlRaw) => 63,
            _ => return None,
        };
        Some(u32::from(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 4648, section 10.
    #[test]
    fn the_examples_of_the_standard() {
        let examples = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (len, text) in examples.iter().enumerate() {
            assert_eq!(Base64::Standard.encode(&b"foobar"[..len]), text.as_bytes());
            assert_eq!(Base64::Standard.decode(text.as_bytes()).unwrap(), &b"foobar"[..len]);
            let raw = text.trim_end_matches('=');
            assert_eq!(Base64::UrlRaw.encode(&b"foobar"[..len]), raw.as_bytes());
            assert_eq!(Base64::UrlRaw.decode(raw.as_bytes()).unwrap(), &b"foobar"[..len]);
        }
        assert_eq!(Base64::Standard.encode(&[0xfb, 0xff]), b"+/8=");
        assert_eq!(Base64::Url.encode(&[0xfb, 0xff]), b"-_8=");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["Z", "Zg", "Zg=", "Zg===", "Zh==", "Zm9=", "Z===", "====", "Zm9v\n", "Zm 9", "Zg==Zg==", "-_8="] {
            assert_eq!(Base64::Standard.decode(text.as_bytes()), None, "{text}");
        }
        for text in ["Z", "Zg==", "Zh", "Zm9v\n", "+/8", "Zm9vY"] {
            assert_eq!(Base64::UrlRaw.decode(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_to_the_same_text(text in "[A-Za-z0-9_=-]{0,12}", bytes: Vec<u8>) {
            for form in [Base64::Standard, Base64::Url, Base64::UrlRaw] {
                prop_assert_eq!(form.decode(&form.encode(&bytes)), Some(bytes.clone()));
                if let Some(decoded) = form.decode(text.as_bytes()) {
                    prop_assert_eq!(form.encode(&decoded), text.as_bytes());
                }
            }
        }
    }
}
