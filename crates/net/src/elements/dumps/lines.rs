//! Where elements that print packets print, and how they print bytes.

use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Word};
use crate::capture::Output;
use crate::router::Cx;
use std::fmt::Write as _;
use std::io::Write as _;

/// LABEL, TIMESTAMP, OUTFILE and ACTIVE of elements that print a line for each packet, on standard error or to a file.
pub(super) struct Lines {
    label: String,
    has_timestamp: bool,
    /// OUTFILE; empty: there is none.
    filename: String,
    file: Option<Output>,
    /// Whether lines are printed.
    pub(super) is_active: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self { label: String::new(), has_timestamp: true, filename: String::new(), file: None, is_active: true }
    }
}

impl Lines {
    /// Reads the arguments.
    pub(super) fn args(&mut self, args: &mut Args<'_>) {
        args.may("LABEL", &mut self.label).key("TIMESTAMP", &mut self.has_timestamp);
        args.key("ACTIVE", &mut self.is_active).key("OUTFILE", &mut self.filename);
    }

    /// What a packet's line begins with.
    pub(super) fn head(&self, packet: &Packet) -> String {
        let mut line = String::new();
        if !self.label.is_empty() {
            let _ = write!(line, "{}: ", self.label);
        }
        if self.has_timestamp {
            let _ = write!(line, "{}: ", packet.timestamp());
        }
        line
    }

    /// Opens the file, if there is one.
    pub(super) fn open(&mut self) -> Result<(), String> {
        if !self.filename.is_empty() {
            self.file = Some(Output::create(&self.filename, true).map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Whether lines are told among those of others.
    pub(super) fn is_shared(&self) -> bool {
        self.filename.is_empty()
    }

    /// Prints a line.
    pub(super) fn say(&mut self, cx: &Cx<'_>, line: &str) {
        if self.is_shared() {
            return cx.say(line);
        }
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            cx.say(format_args!("{}: {error}", self.filename));
            self.file = None;
        }
    }

    /// Writes what is left.
    pub(super) fn close(&mut self, cx: &Cx<'_>) {
        if let Some(file) = self.file.take()
            && let Err(error) = file.finish()
        {
            cx.say(error);
        }
    }
}

/// How bytes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Contents {
    #[default]
    None,
    Hex,
    Ascii,
}

impl Arg for Contents {
    /// `NONE`, `HEX` or `ASCII`, or a Boolean: true is `HEX`.
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let word = Word::parse(text, cx)?.0;
        match (bool::parse(&word, cx), word.to_ascii_uppercase().as_str()) {
            (Ok(false), _) | (_, "NONE") => Ok(Self::None),
            (Ok(true), _) | (_, "HEX") => Ok(Self::Hex),
            (_, "ASCII") => Ok(Self::Ascii),
            _ => Err(format!("bad contents value '{word}'; should be 'NONE', 'HEX', or 'ASCII'")),
        }
    }
}

impl Contents {
    /// Appends bytes, in groups of four or eight, and, unless `width` is 0, in lines of so many.
    pub(super) fn print(self, bytes: &[u8], width: usize, out: &mut String) {
        let group = match self {
            Self::None => return,
            Self::Hex => 4,
            Self::Ascii => 8,
        };
        for (at, &byte) in bytes.iter().enumerate() {
            if width > 0 && at % width == 0 {
                out.push_str("\n  ");
            } else if at % group == 0 && (at > 0 || self == Self::Ascii) {
                out.push(' ');
            }
            match self {
                Self::Hex => _ = write!(out, "{byte:02x}"),
                _ => out.push(if (32..127).contains(&byte) { char::from(byte) } else { '.' }),
            }
        }
    }
}
