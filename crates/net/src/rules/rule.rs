//! What a rule is, and how it is written: as Snort 3 has it.

use std::fmt::{self, Write};

/// A content that is marked as the fast pattern, and shorter, is not the one where there is a longer one: Snort looks for it in a
/// buffer, where it is rare, and here it would be found in most packets.
const MARKED_MIN: usize = 4;

/// What stands before the options. Addresses and ports are text: variables stand in them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// What to do: `alert`, `drop`, …
    pub action: String,
    /// Protocol or, in Snort 3, service.
    pub proto: String,
    /// Source and its ports, direction, destination and its ports; nothing in a rule for a service or a file.
    pub ends: Option<[String; 5]>,
}

/// Bytes to look for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// They must not be there.
    pub is_negated: bool,
    /// Letters match their capitals.
    pub is_nocase: bool,
    /// It is the one to search all packets for.
    pub is_fast_pattern: bool,
    /// So many bytes into the payload it begins at the earliest.
    pub offset: Option<i32>,
    /// Counted from there, it ends within so many bytes.
    pub depth: Option<i32>,
    /// The same as `offset`, from the end of the content before it.
    pub distance: Option<i32>,
    /// The same as `depth`, from there on.
    pub within: Option<i32>,
    /// The part of a message that it is looked for in, such as `http_uri`; nothing: the payload as it is.
    pub buffer: Option<String>,
}

impl Content {
    /// Whether it is looked for from the end of the content before it.
    pub fn is_relative(&self) -> bool {
        self.distance.is_some() || self.within.is_some()
    }

    /// Its modifiers that are numbers.
    fn numbers(&self) -> [(&'static str, Option<i32>); 4] {
        [("offset", self.offset), ("depth", self.depth), ("distance", self.distance), ("within", self.within)]
    }
}

/// An option of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opt {
    /// Bytes to look for.
    Content(Content),
    /// A regular expression, as it stands, quotes included, for a second pass.
    Pcre {
        /// The expression.
        text: String,
        /// Where it is looked for, as a content's.
        buffer: Option<String>,
    },
    /// Any other one: its name, and its value as it stands.
    Other(String, Option<String>),
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Where it begins in its file, from 1.
    pub line: usize,
    /// What stands before the options.
    pub header: Header,
    /// Its number; 0: it has none.
    pub sid: u32,
    /// What it says when it matches.
    pub msg: String,
    /// All other options in their order.
    pub options: Vec<Opt>,
}

/// Something in a file of rules that is not understood or not supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the rule begins that it is about, from 1.
    pub line: usize,
    /// What it is.
    pub what: What,
}

/// What is not understood or not supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A rule is not there, for this reason.
    NotLoaded(String),
    /// The rule with this number is there without these tests.
    NotEvaluated(u32, Vec<String>),
    /// Nothing is read from here on, for this reason.
    End(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.what {
            What::NotLoaded(reason) => write!(f, "not loaded: {reason}"),
            What::NotEvaluated(sid, tests) => write!(f, "rule {sid}: not evaluated: {}", tests.join(", ")),
            What::End(reason) => f.write_str(reason),
        }
    }
}

impl Rule {
    /// Its contents, in their order.
    pub fn contents(&self) -> impl Iterator<Item = &Content> {
        self.options.iter().filter_map(|option| match option {
            Opt::Content(content) => Some(content),
            _ => None,
        })
    }

    /// The content that all packets are searched for: the one that is marked, if it is no shorter than others or than four bytes,
    /// or else the longest. Nothing: it has none but negated ones.
    pub fn fast_pattern(&self) -> Option<&Content> {
        let mut best: Option<&Content> = None;
        for content in self.contents().filter(|content| !content.is_negated) {
            let rank = |content: &Content| {
                let (len, is_marked) = (content.bytes.len(), content.is_fast_pattern);
                (is_marked && len >= MARKED_MIN, len, is_marked)
            };
            // Of equals, the first.
            if best.is_none_or(|best| rank(content) > rank(best)) {
                best = Some(content);
            }
        }
        best
    }
}

/// Text between quotes.
fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        if matches!(c, '"' | ';' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    f.write_char('"')
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action, self.proto)?;
        self.ends.iter().flatten().try_for_each(|word| write!(f, " {word}"))
    }
}

/// Bytes as a content has them: those that are no plain text between bars, in hexadecimal.
fn bytes(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let is_plain = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && !br#"";\|:"#.contains(&byte);
    let mut is_hex = false;
    for &byte in bytes {
        match (is_plain(byte), is_hex) {
            (true, _) => write!(f, "{}{}", if is_hex { "|" } else { "" }, char::from(byte))?,
            (false, _) => write!(f, "{}{byte:02X}", if is_hex { " " } else { "|" })?,
        }
        is_hex = !is_plain(byte);
    }
    f.write_str(if is_hex { "|" } else { "" })
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "content:{}\"", if self.is_negated { "!" } else { "" })?;
        bytes(&self.bytes, f)?;
        f.write_char('"')?;
        for (name, is_set) in [("fast_pattern", self.is_fast_pattern), ("nocase", self.is_nocase)] {
            f.write_str(if is_set { "," } else { "" })?;
            f.write_str(if is_set { name } else { "" })?;
        }
        for (name, value) in self.numbers() {
            value.map_or(Ok(()), |value| write!(f, ",{name} {value}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ( ", self.header)?;
        if !self.msg.is_empty() {
            f.write_str("msg:")?;
            quoted(&self.msg, f)?;
            f.write_str("; ")?;
        }
        let mut current: Option<&str> = None;
        let mut names_any = false;
        for option in &self.options {
            if let Opt::Content(Content { buffer, .. }) | Opt::Pcre { buffer, .. } = option {
                // The first one names its buffer in any case, so that all names stand before what they are for.
                if buffer.as_deref() != current || !names_any {
                    write!(f, "{}; ", buffer.as_deref().unwrap_or("pkt_data"))?;
                }
                (current, names_any) = (buffer.as_deref(), true);
            }
            match option {
                Opt::Content(content) => write!(f, "{content}; ")?,
                Opt::Pcre { text, .. } => write!(f, "pcre:{text}; ")?,
                Opt::Other(name, None) => write!(f, "{name}; ")?,
                Opt::Other(name, Some(value)) => write!(f, "{name}:{value}; ")?,
            }
        }
        if self.sid != 0 {
            write!(f, "sid:{}; ", self.sid)?;
        }
        f.write_char(')')
    }
}
