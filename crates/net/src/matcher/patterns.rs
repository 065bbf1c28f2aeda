//! Literals to search for.

/// How many literals there may be at most.
pub const MAX_PATTERNS: usize = 1 << 16;
/// How many bytes they may have together at most; there are about as many states.
pub const MAX_BYTES: usize = 1 << 19;

/// A literal that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// Where it ends: the number of bytes up to and including its last one.
    pub end: usize,
    /// Its number.
    pub pattern: u32,
}

/// Literals, numbered from 0.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    cased: Vec<bool>,
}

impl Patterns {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a literal, and says its number. Errors: it is empty, or there are too many.
    pub fn add(&mut self, literal: &[u8], nocase: bool) -> Result<u32, String> {
        if literal.is_empty() {
            return Err("a literal has no bytes".to_owned());
        }
        if self.len() == MAX_PATTERNS {
            return Err(format!("there are more than {MAX_PATTERNS} literals"));
        }
        if self.bytes.len() + literal.len() > MAX_BYTES {
            return Err(format!("the literals have more than {MAX_BYTES} bytes together"));
        }
        self.bytes.extend(literal);
        self.ends.push(self.bytes.len() as u32);
        // Without letters there is no case to regard, and nothing to compare after a hit.
        self.cased.push(!nocase && literal.iter().any(u8::is_ascii_alphabetic));
        Ok(self.len() as u32 - 1)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of a literal, as they were given.
    #[inline]
    pub fn get(&self, pattern: u32) -> &[u8] {
        let at = pattern as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[at] as usize]
    }

    /// Whether a literal has letters whose case counts.
    #[inline]
    pub fn is_cased(&self, pattern: u32) -> bool {
        self.cased[pattern as usize]
    }

    /// All, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len() as u32).map(|pattern| self.get(pattern))
    }
}
