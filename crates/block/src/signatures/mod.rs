//! What a device holds already, by the signatures that file systems, volumes and partition tables leave on it: what
//! everything asks that is about to write onto something that exists.
//!
//! [`recognise`] is a pure function of the device's first and last bytes. It knows what `blkid` knows by signature, and
//! what is not known but not zero either is `data`. It errs on the side of finding something: a refusal costs a look,
//! an overwritten file system costs the file system. [`check`] refuses what would be lost unless it was named.
//! [`erase`] takes the signatures away before something new is written, so that nobody finds both afterwards.
//!
//! Own tables rather than libblkid's: the answer must not depend on a library that may not be there.

mod table;

use crate::{BlockDevice, Error, ErrorKind, Result, printable};
use std::ops::Range;

/// Signatures at the beginning lie here: the second copy of LUKS2's largest header is the last of them.
pub const HEAD_BYTES: u64 = (4 << 20) + 4096;
/// And those at the end here: Promise's metadata are the first of them.
pub(crate) const TAIL_BYTES: u64 = 2 << 20;
/// What is not zero and not recognised.
pub const DATA: &str = "data";
/// What lies beyond a new end.
pub(crate) const CUT: &str = "cut";
/// What removing a signature can uncover is looked for so often.
const ROUNDS_MAX: usize = 8;

/// Something that a device holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// A short name, by which losing it is allowed. One of [`names`].
    pub name: &'static str,
    /// What to call it in a sentence, with its article.
    pub what: &'static str,
    /// Its label, as it is stored.
    pub label: Option<String>,
    /// Where its signatures are. Of what is not recognised, the first byte that is not zero.
    pub marks: Vec<Range<u64>>,
}

/// What of a device may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Overwrite {
    /// Nothing: only what is empty is written to.
    #[default]
    Nothing,
    /// What has these names.
    Named(Vec<String>),
    /// Whatever there is.
    Anything,
}

/// The parts of a device that are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Windows<'a> {
    /// Bytes of the device.
    pub size: u64,
    /// Its first bytes.
    pub head: &'a [u8],
    /// Its last bytes; those of a small device are in both.
    pub tail: &'a [u8],
}

impl Overwrite {
    fn allows(&self, found: &Found) -> bool {
        match self {
            Self::Nothing => false,
            Self::Named(names) => names.iter().any(|name| name == found.name),
            Self::Anything => true,
        }
    }
}

impl Found {
    /// What a file loses that is cut.
    pub fn beyond(end: u64, size: u64) -> Self {
        Self { name: CUT, what: "bytes beyond the new end", label: None, marks: vec![end..size] }
    }

    /// Where its first signature begins.
    pub fn offset(&self) -> u64 {
        self.marks.first().map_or(0, |mark| mark.start)
    }

    /// Such as `an ext4 file system "backup" (at byte 1080)`.
    pub fn describe(&self) -> String {
        let label = self.label.as_deref().map(|label| format!(" \"{}\"", printable(label))).unwrap_or_default();
        format!("{}{label} (at byte {})", self.what, self.offset())
    }
}

impl<'a> Windows<'a> {
    /// Bytes that lie in one of the windows.
    fn at(&self, offset: u64, len: usize) -> Option<&'a [u8]> {
        let of = |bytes: &'a [u8], from: u64| {
            let start = usize::try_from(offset.checked_sub(from)?).ok()?;
            bytes.get(start..start.checked_add(len)?)
        };
        of(self.head, 0).or_else(|| of(self.tail, self.size.checked_sub(self.tail.len() as u64)?))
    }

    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.at(offset, magic.len()).is_some_and(|bytes| bytes == magic)
    }

    fn byte(&self, offset: u64) -> Option<u8> {
        self.at(offset, 1).map(|bytes| bytes[0])
    }

    fn le16(&self, offset: u64) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    fn le32(&self, offset: u64) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    fn le64(&self, offset: u64) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    fn be64(&self, offset: u64) -> Option<u64> {
        self.array(offset).map(u64::from_be_bytes)
    }

    fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        self.at(offset, N)?.try_into().ok()
    }

    /// The offset so many bytes before the end.
    fn before_end(&self, bytes: u64) -> Option<u64> {
        self.size.checked_sub(bytes)
    }

    fn first_not_zero(&self) -> Option<u64> {
        let first = |bytes: &[u8]| bytes.iter().position(|byte| *byte != 0).map(|at| at as u64);
        first(self.head).or_else(|| Some(self.size.saturating_sub(self.tail.len() as u64) + first(self.tail)?))
    }
}

/// Every name that something can be found by, in alphabetical order.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = table::names().chain([DATA, CUT]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What lies on a device. Pure.
pub fn recognise(windows: &Windows<'_>) -> Vec<Found> {
    let mut found = table::known(windows);
    if let Some(at) = windows.first_not_zero().filter(|_| found.is_empty()) {
        let what = "bytes that are not zero and that nothing here recognises";
        found.push(Found { name: DATA, what, label: None, marks: vec![at..at + 1] });
    }
    found
}

/// Looks at a device.
///
/// # Errors
/// Those of reading.
pub fn look(device: &dyn BlockDevice) -> Result<Vec<Found>> {
    let size = device.geometry().size;
    let mut head = vec![0; size.min(HEAD_BYTES) as usize];
    let mut tail = vec![0; size.min(TAIL_BYTES) as usize];
    device.read(0, &mut head)?;
    device.read(size - tail.len() as u64, &mut tail)?;
    Ok(recognise(&Windows { size, head: &head, tail: &tail }))
}

/// Refuses to write onto devices where something would be lost that was not named. One sentence for all of them.
///
/// # Errors
/// `Exists`, and those of reading.
pub fn check(devices: &[&dyn BlockDevice], overwrite: &Overwrite) -> Result<()> {
    let look = |device: &&dyn BlockDevice| Ok((device.name(), look(*device)?));
    refuse(&devices.iter().map(look).collect::<Result<Vec<_>>>()?, overwrite)
}

/// The same for what was found on devices with these names. Pure.
///
/// # Errors
/// `Exists`.
pub fn refuse(found: &[(String, Vec<Found>)], overwrite: &Overwrite) -> Result<()> {
    let mut sentences: Vec<(&str, String)> = vec![];
    for (device, found) in found {
        let lost: Vec<&Found> = found.iter().filter(|found| !overwrite.allows(found)).collect();
        if lost.is_empty() {
            continue;
        }
        let what: Vec<String> = lost.iter().map(|found| found.describe()).collect();
        sentences.push((device, format!("it holds {}", what.join(" and "))));
    }
    let Some(((device, first), rest)) = sentences.split_first() else { return Ok(()) };
    // Those that are allowed have to be named again.
    let mut names: Vec<&str> = found.iter().flat_map(|(_, found)| found).map(|found| found.name).collect();
    names.sort_unstable();
    names.dedup();
    let all: Vec<String> = std::iter::once(first.clone())
        .chain(rest.iter().map(|(device, sentence)| format!("{device}: {sentence}")))
        .collect();
    let all = all.join("; ");
    let detail = format!("{all}; nothing was overwritten; --force={} does that", names.join(","));
    Err(Error::new(ErrorKind::Exists, device, detail))
}

/// Overwrites signatures with zeroes, as far as `is_lost` says so, until none is left. What they described is not
/// recognised any more, and otherwise as it was.
///
/// # Errors
/// Those of reading and writing.
pub fn erase(device: &dyn BlockDevice, is_lost: impl Fn(&Range<u64>) -> bool) -> Result<()> {
    for _ in 0..ROUNDS_MAX {
        let found = look(device)?;
        let marks: Vec<_> = found
            .iter()
            .filter(|found| found.name != DATA)
            .flat_map(|found| &found.marks)
            .filter(|mark| is_lost(mark))
            .collect();
        if marks.is_empty() {
            break;
        }
        for mark in marks {
            device.write(mark.start, &vec![0; (mark.end - mark.start) as usize])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
