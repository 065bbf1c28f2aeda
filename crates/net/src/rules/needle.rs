//! The bytes of a content, and a fast way to all places where they begin, those that overlap too.

use memchr::{memchr2, memmem};

/// Bytes by how seldom they are in text and in binary protocols, the most frequent ones first; all others are rarer.
const FREQUENT: &[u8] = b"\0 etaoinsrhldcumpgfybwvk\r\n/.-=\"<>:;,01x2_3ETAOINSR456789\xff";

/// A literal.
#[derive(Debug, Clone)]
pub(super) struct Needle {
    bytes: Box<[u8]>,
    way: Way,
}

/// How it is looked for.
#[derive(Debug, Clone)]
enum Way {
    /// As it is.
    Exact(Box<memmem::Finder<'static>>),
    /// By its rarest byte, small and capital, and where that is in it.
    NoCase { at: usize, small: u8, capital: u8 },
}

/// How rare a byte is: the higher, the rarer.
fn rarity(byte: u8) -> usize {
    FREQUENT.iter().position(|frequent| *frequent == byte).unwrap_or(FREQUENT.len())
}

impl Needle {
    pub(super) fn new(bytes: &[u8], is_nocase: bool) -> Self {
        let rarest = (0..bytes.len()).max_by_key(|at| rarity(bytes[*at].to_ascii_lowercase()));
        let way = match rarest.filter(|_| is_nocase && bytes.iter().any(u8::is_ascii_alphabetic)) {
            Some(at) => {
                Way::NoCase { at, small: bytes[at].to_ascii_lowercase(), capital: bytes[at].to_ascii_uppercase() }
            }
            None => Way::Exact(Box::new(memmem::Finder::new(bytes).into_owned())),
        };
        Self { bytes: bytes.into(), way }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Where it begins first in a text.
    fn find(&self, text: &[u8]) -> Option<usize> {
        let Way::NoCase { at, small, capital } = self.way else {
            let Way::Exact(finder) = &self.way else { return None };
            return finder.find(text);
        };
        // The rarest byte of what begins early enough to fit.
        let places = text.get(at..text.len().checked_sub(self.len() - 1)? + at)?;
        let mut next = 0;
        while let Some(found) = memchr2(small, capital, &places[next..]) {
            let begin = next + found;
            if text[begin..begin + self.len()].eq_ignore_ascii_case(&self.bytes) {
                return Some(begin);
            }
            next = begin + 1;
        }
        None
    }

    /// Where it begins in a part of a text, in rising order.
    pub(super) fn places<'a>(&'a self, text: &'a [u8], from: i64, end: i64) -> impl Iterator<Item = usize> + 'a {
        let text = &text[..end.clamp(0, text.len() as i64) as usize];
        let mut next = from.max(0) as usize;
        std::iter::from_fn(move || {
            let found = next + self.find(text.get(next..)?)?;
            next = found + 1;
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Needle;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_are_those_where_it_is(
            text in prop::collection::vec(prop::sample::select(b"aAbB. \xff".to_vec()), 0..60),
            bytes in prop::collection::vec(prop::sample::select(b"aAbB. \xff".to_vec()), 1..5),
            is_nocase in any::<bool>(),
            (from, end) in (-5_i64..70, -5_i64..70),
        ) {
            let is_at = |at: usize| {
                let Some(found) = text.get(at..at + bytes.len()) else { return false };
                if is_nocase { found.eq_ignore_ascii_case(&bytes) } else { found == bytes }
            };
            let fits = |at: &usize| *at as i64 >= from && (at + bytes.len()) as i64 <= end;
            let expected: Vec<_> = (0..text.len()).filter(fits).filter(|at| is_at(*at)).collect();
            let needle = Needle::new(&bytes, is_nocase);
            prop_assert_eq!(needle.places(&text, from, end).collect::<Vec<_>>(), expected);
        }
    }
}
