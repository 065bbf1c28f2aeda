//! Base 64 (RFC 4648), strict: one text for each sequence of bytes, so that no two names of an encrypted directory
//! mean the same.

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};

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
    /// These refuse missing padding, and bits beyond the last byte.
    fn engine(self) -> &'static GeneralPurpose {
        match self {
            Self::Standard => &STANDARD,
            Self::Url => &URL_SAFE,
            Self::UrlRaw => &URL_SAFE_NO_PAD,
        }
    }

    /// The text for bytes.
    pub(crate) fn encode(self, bytes: &[u8]) -> Vec<u8> {
        self.engine().encode(bytes).into_bytes()
    }

    /// The bytes that a text stands for; none if it is not the text that [`encode`](Self::encode) gives for them.
    pub(crate) fn decode(self, text: &[u8]) -> Option<Vec<u8>> {
        self.engine().decode(text).ok()
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
