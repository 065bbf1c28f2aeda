//! Options of IPv4 and TCP headers, which have the same form.

/// The end of the list, one byte.
pub const END: u8 = 0;
/// Nothing, one byte, to align what follows.
pub const NOP: u8 = 1;

/// An option of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opt<'a> {
    /// Where it begins, in bytes from the beginning of the options.
    pub offset: usize,
    /// All its bytes: the kind, the length (unless it is a [`NOP`]) and the data.
    pub bytes: &'a [u8],
}

impl<'a> Opt<'a> {
    /// What option it is.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.bytes[0]
    }

    /// What follows the length.
    #[inline]
    pub fn data(&self) -> &'a [u8] {
        self.bytes.get(2..).unwrap_or_default()
    }
}

/// A list of options whose lengths lie: an option of less than two bytes, or of more than there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// Where the option begins, in bytes from the beginning of the options.
    pub offset: usize,
}

/// The options of a header, [`NOP`]s among them, up to the end of the list: each takes at least one byte of it, so there
/// are at most 40. One that lies about its length is an error, and the last that is given.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Options<'a> {
    /// Those in `bytes`, which follow the fixed part of a header.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Their bytes, the end of the list and what follows it included; only before the first is taken, all of them.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let len = match *self.bytes {
            [] | [END, ..] => return None,
            [NOP, ..] => 1,
            [_, len, ..] if len >= 2 => usize::from(len),
            _ => usize::MAX,
        };
        let Some((bytes, rest)) = self.bytes.split_at_checked(len) else {
            self.bytes = &[];
            return Some(Err(Malformed { offset }));
        };
        (self.bytes, self.offset) = (rest, offset + len);
        Some(Ok(Opt { offset, bytes }))
    }
}

#[cfg(test)]
mod tests {
    use bifolio_testing::{noise, seed};

    use super::*;

    fn kinds(bytes: &[u8]) -> Vec<Result<(usize, u8, usize), usize>> {
        Options::new(bytes)
            .map(|item| item.map(|opt| (opt.offset, opt.kind(), opt.data().len())).map_err(|lie| lie.offset))
            .collect()
    }

    #[test]
    fn options_end_at_their_end_or_at_the_first_lie() {
        assert_eq!(kinds(&[1, 2, 4, 5, 5, 1, 0, 9, 9]), [Ok((0, 1, 0)), Ok((1, 2, 2)), Ok((5, 1, 0))]);
        assert_eq!(kinds(&[7, 2]), [Ok((0, 7, 0))]);
        assert_eq!(kinds(&[1, 7]), [Ok((0, 1, 0)), Err(1)]);
        assert_eq!(kinds(&[7, 0, 1]), [Err(0)]);
        assert_eq!(kinds(&[7, 1, 1]), [Err(0)]);
        assert_eq!(kinds(&[7, 4, 1]), [Err(0)]);
        assert_eq!(kinds(&[]), []);
    }

    #[test]
    fn any_bytes_are_survived_and_cover_one_another_in_order() {
        let mut rng = fastrand::Rng::with_seed(seed());
        for _ in 0..20_000 {
            let mut bytes = noise(rng.usize(..41), rng.u64(..));
            // Small numbers make kinds and lengths that could be true.
            for byte in &mut bytes {
                *byte %= rng.u8(1..=12);
            }
            let items: Vec<_> = Options::new(&bytes).collect();
            let mut expected = 0;
            for (i, item) in items.iter().enumerate() {
                match item {
                    Ok(opt) => {
                        assert_eq!(opt.offset, expected);
                        assert_eq!(opt.bytes, &bytes[expected..expected + opt.bytes.len()]);
                        assert!(opt.kind() == NOP || opt.bytes.len() == usize::from(bytes[expected + 1]));
                        expected += opt.bytes.len();
                    }
                    Err(lie) => assert!(lie.offset == expected && i + 1 == items.len()),
                }
            }
            assert!(matches!(items.last(), Some(Err(_))) || bytes.get(expected).is_none_or(|&kind| kind == END));
        }
    }
}
