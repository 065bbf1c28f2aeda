//! LUKS headers: what they say, whether it can be, and the volume key out of a keyslot.
//!
//! The library reads and writes a copy in memory, so that volumes need not be files, and nothing is ever
//! written to a volume because it was opened. First the copy has the metadata only; a keyslot's area is
//! added when the keyslot is tried.
//!
//! Whatever comes out of the header is checked here before it is used: by pure functions of [`Claims`],
//! the numbers as the header claims them.

use super::ffi::{Context, Failed, SlotPbkdf, SlotState, machine_memory_kb};
use super::info::{Keyslot, LuksInfo, Unlock};
use super::memory::Memory;
use super::segment::{self, Segment};
use super::{diagnose, json};
use crate::{BlockDevice, Error, ErrorKind, Result};
use std::ffi::CStr;
use zeroize::Zeroizing;

pub(super) const MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
pub(super) const MAGIC_SECOND: &[u8; 6] = b"SKUL\xba\xbe";
/// Bytes that one copy of LUKS2's metadata can have; the second copy begins where the first ends.
pub(super) const METADATA_BYTES: [u64; 9] =
    [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];
/// Two copies of the largest metadata, and the largest area of keyslots.
const HEADER_BYTES_MAX: u64 = (8 + 128) << 20;
/// LUKS1's header without its keyslots' areas.
pub(super) const LUKS1_BYTES: u64 = 592;
/// Where LUKS1 keeps the iterations of its key's digest.
const LUKS1_DIGEST_ITERATIONS_AT: usize = 164;

/// Keyslots that need more are refused.
const MEMORY_KB_MAX: u64 = 4 << 20;
/// And those that take longer: iterations times KiB of Argon2, which does 1 GiB/s or so.
const ARGON2_WORK_MAX: u64 = 600 << 20;
/// And iterations of PBKDF2, of which there are a million a second or so.
const PBKDF2_ITERATIONS_MAX: u64 = 600_000_000;

/// The formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Luks1,
    Luks2,
}

impl Version {
    fn library_name(self) -> &'static CStr {
        match self {
            Self::Luks1 => c"LUKS1",
            Self::Luks2 => c"LUKS2",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Luks1 => "LUKS1",
            Self::Luks2 => "LUKS2",
        }
    }
}

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signature {
    version: Version,
    /// Bytes of one copy of the metadata. None: the first copy does not say it in earnest.
    metadata_bytes: Option<u64>,
}

/// The header of an open volume.
pub(super) struct Header {
    pub(super) info: LuksInfo,
    /// Where the data is, or why it cannot be read here.
    pub(super) segment: Result<Segment>,
    version: Version,
    digest_iterations: u64,
    memory: Memory,
    context: Context,
}

/// Looks for a header.
pub(super) fn signature(inner: &dyn BlockDevice) -> Result<Option<Signature>> {
    let size = inner.geometry().size;
    let mut first = [0; 512];
    if size < first.len() as u64 {
        let first = &mut first[..size as usize];
        inner.read(0, first)?;
        // Also where it was truncated within the magic itself.
        if first.starts_with(MAGIC) || (first.len() >= 4 && MAGIC.starts_with(first)) {
            let detail = format!("it is a LUKS volume that was truncated to {size} bytes");
            return Err(Error::new(ErrorKind::Damaged, inner.name(), detail));
        }
        return Ok(None);
    }
    inner.read(0, &mut first)?;
    if first.starts_with(MAGIC) {
        let metadata_bytes = Some(number(&first, 8)).filter(|bytes| METADATA_BYTES.contains(bytes));
        return match u16::from_be_bytes([first[6], first[7]]) {
            1 => Ok(Some(Signature { version: Version::Luks1, metadata_bytes: None })),
            2 => Ok(Some(Signature { version: Version::Luks2, metadata_bytes })),
            // One flipped bit; the second copy knows better.
            _ if second_copy(inner)? => Ok(Some(Signature { version: Version::Luks2, metadata_bytes: None })),
            other => {
                let detail = format!("it is a LUKS volume of version {other}; versions 1 and 2 can be opened");
                Err(Error::new(ErrorKind::Unsupported, inner.name(), detail))
            }
        };
    }
    let found = second_copy(inner)?;
    Ok(found.then_some(Signature { version: Version::Luks2, metadata_bytes: None }))
}

fn second_copy(inner: &dyn BlockDevice) -> Result<bool> {
    let size = inner.geometry().size;
    let mut start = [0; 512];
    for at in METADATA_BYTES {
        if at + start.len() as u64 > size {
            break;
        }
        inner.read(at, &mut start)?;
        // A header says where it lies: one that is part of something else's data does not count.
        let is_header = start.starts_with(MAGIC_SECOND) && start[6..8] == [0, 2];
        if is_header && number(&start, 8) == at && number(&start, 256) == at {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(number)
}

impl Header {
    /// Reads a header that [`signature`] has found.
    pub(super) fn read(inner: &dyn BlockDevice, signature: Signature) -> Result<Self> {
        let size = inner.geometry().size;
        let version = signature.version;
        let largest = 2 * METADATA_BYTES[8];
        let wanted = match (version, signature.metadata_bytes) {
            (Version::Luks1, _) => LUKS1_BYTES,
            (Version::Luks2, Some(bytes)) => 2 * bytes,
            (Version::Luks2, None) => largest,
        };
        let is_known = signature.metadata_bytes.is_some() || version == Version::Luks1;
        if is_known && wanted > size {
            let detail = format!("its header has {wanted} bytes and the image only {size}: the image was truncated");
            return Err(Error::new(ErrorKind::Damaged, inner.name(), detail));
        }
        match Self::load(inner, version, wanted.min(size)) {
            // The first copy may be wrong about the size too: the library then looks for the second one at
            // every place where it can be.
            Err(error) if error.kind() == ErrorKind::Damaged && version == Version::Luks2 && wanted < largest => {
                Self::load(inner, version, largest.min(size))
            }
            other => other,
        }
    }

    fn load(inner: &dyn BlockDevice, version: Version, bytes: u64) -> Result<Self> {
        let name = inner.name();
        // Longer than any header: what was cut off is found here, with a sentence about the image.
        let memory = Memory::new(inner.geometry().size.saturating_add(HEADER_BYTES_MAX))?;
        let before = memory.copy_from(inner, 0, bytes)?;
        let context = Context::new(&memory.path())?;
        context.load(version.library_name()).map_err(|failed| {
            let found = match version {
                Version::Luks1 => diagnose::luks1(&before),
                Version::Luks2 => diagnose::luks2(&before),
            };
            let why = refusal(found, &failed);
            Error::new(ErrorKind::Damaged, &name, format!("its {} header cannot be used: {why}", version.name()))
        })?;
        if context.kind().as_deref() != Some(version.name()) {
            let detail = "its header cannot be used: the library takes it for something else";
            return Err(Error::new(ErrorKind::Damaged, &name, detail));
        }
        let claims = Claims::of(&context, version, &before, &name)?;
        let segment = claims.segment(inner);
        let header_note = match version {
            Version::Luks1 => None,
            Version::Luks2 => note(&before, &memory.content(bytes)?, claims.areas_bytes.0),
        };
        let payload = segment.as_ref().ok();
        let info = LuksInfo {
            version: if version == Version::Luks1 { 1 } else { 2 },
            uuid: context.uuid(),
            label: context.label(),
            cipher: claims.cipher.clone(),
            key_bits: u32::try_from(context.key_bytes()).unwrap_or(0) * 8,
            sector_bytes: payload.map(|segment| segment.sectors.bytes),
            payload_offset: payload.map(|segment| segment.offset),
            payload_bytes: payload.map(|segment| segment.len),
            keyslots: keyslots(&context, version),
            header_note,
            unsupported: segment.as_ref().err().map(ToString::to_string),
        };
        Ok(Self { info, segment, version, digest_iterations: claims.digest_iterations, memory, context })
    }

    /// The volume key, by the first keyslot that the secret opens.
    pub(super) fn unlock(&self, inner: &dyn BlockDevice, secret: &[u8], unlock: Unlock) -> Result<Zeroizing<Vec<u8>>> {
        let name = inner.name();
        let machine_kb = machine_memory_kb();
        if !unlock.any_cost {
            let digest = SlotPbkdf {
                kind: "pbkdf2".into(),
                hash: String::new(),
                iterations: u32::try_from(self.digest_iterations).unwrap_or(u32::MAX),
                memory_kb: 0,
                threads: 0,
            };
            if let Some(why) = absurd_cost(&digest, machine_kb) {
                let detail = format!("the digest of its key {why}; {ANY_COST}");
                return Err(Error::new(ErrorKind::Unsupported, name, detail));
            }
        }
        let mut refused = None;
        let slots = self.slots_to_try();
        if slots.is_empty() {
            return Err(Error::new(ErrorKind::Damaged, name, "it has no keyslot that holds its key"));
        }
        for slot in slots {
            let pbkdf = self.context.slot_pbkdf(slot);
            let why = pbkdf.as_ref().and_then(|pbkdf| absurd_cost(pbkdf, machine_kb));
            match why {
                Some(why) if !unlock.any_cost => {
                    refused.get_or_insert(format!("keyslot {slot} {why}"));
                    continue;
                }
                _ => {}
            }
            if let Some(key) = self.try_slot(inner, slot, secret)? {
                return Ok(key);
            }
        }
        match refused {
            Some(why) => {
                let detail = format!("no other keyslot opens with this passphrase or key, and {why}; {ANY_COST}");
                Err(Error::new(ErrorKind::Unsupported, name, detail))
            }
            None => Err(Error::new(ErrorKind::WrongKey, name, "no keyslot opens with this passphrase or key")),
        }
    }

    /// Those that hold the volume's key, as the library would try them.
    fn slots_to_try(&self) -> Vec<i32> {
        let count = self.context.slots_max(self.version.library_name());
        let mut slots: Vec<i32> =
            (0..count).filter(|slot| self.context.slot_state(*slot) == SlotState::Active).collect();
        slots.retain(|slot| self.context.slot_priority(*slot) > 0);
        slots.sort_by_key(|slot| -self.context.slot_priority(*slot));
        slots
    }

    fn try_slot(&self, inner: &dyn BlockDevice, slot: i32, secret: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>> {
        let about = |kind, detail: String| Error::new(kind, inner.name(), detail);
        let Some((offset, len)) = self.context.slot_area(slot) else {
            return Err(about(ErrorKind::Damaged, format!("keyslot {slot} has no area")));
        };
        segment::check_inside(inner, offset, len, &format!("the area of keyslot {slot}"))?;
        self.memory.copy_from(inner, offset, len)?;
        let bytes = usize::try_from(self.context.key_bytes()).unwrap_or(0);
        match self.context.volume_key(Some((slot, secret)), bytes) {
            Ok(key) => {
                self.context.verify(&key).map_err(|failed| {
                    about(ErrorKind::Damaged, format!("keyslot {slot} holds another key: {}", failed.reason()))
                })?;
                Ok(Some(key))
            }
            // What the library answers where the passphrase is wrong.
            Err(failed) if failed.errno == libc::EPERM => Ok(None),
            Err(failed) if failed.errno == libc::ENOMEM => {
                Err(about(ErrorKind::Unsupported, format!("keyslot {slot} needs more memory than there is")))
            }
            Err(failed) => {
                Err(about(ErrorKind::Damaged, format!("keyslot {slot} cannot be used: {}", failed.reason())))
            }
        }
    }
}

/// Why the library does not take a header: what was found here, and what it says itself.
fn refusal(found: Option<String>, failed: &Failed) -> String {
    match (found, failed.said.is_empty()) {
        (Some(found), true) => found,
        (Some(found), false) => format!("{found} (libcryptsetup: {})", failed.said),
        (None, false) => failed.said.clone(),
        (None, true) => format!(
            "libcryptsetup refuses it and says no more than \"{}\"; `cryptsetup luksDump --debug` may",
            failed.reason()
        ),
    }
}

const ANY_COST: &str = "if the volume is from a source you trust, allow costly keyslots";

/// What a header claims of its layout.
#[derive(Debug)]
struct Claims {
    cipher: String,
    data_offset: u64,
    iv_offset: u64,
    sector_bytes: i32,
    key_bytes: i32,
    /// LUKS2: bytes of one copy of the metadata, and of all keyslots. LUKS1: of the header, 0.
    areas_bytes: (u64, u64),
    digest_iterations: u64,
    /// LUKS2's own description, None for LUKS1.
    json: Option<serde_json::Value>,
}

impl Claims {
    fn of(context: &Context, version: Version, start: &[u8], name: &str) -> Result<Self> {
        let (cipher, mode) = context.cipher();
        let damaged = |detail: String| Error::new(ErrorKind::Damaged, name, detail);
        let json = match version {
            Version::Luks1 => None,
            Version::Luks2 => {
                let text = context
                    .json()
                    .map_err(|failed| damaged(format!("its header cannot be used: {}", failed.reason())))?;
                let json = serde_json::from_str(&text)
                    .map_err(|error| damaged(format!("its header cannot be used: {error}")))?;
                json::check(&json).map_err(|why| damaged(format!("its header cannot be used: in its JSON, {why}")))?;
                Some(json)
            }
        };
        let digest_iterations = match &json {
            Some(json) => segment::digest_iterations(json),
            None => number(start, LUKS1_DIGEST_ITERATIONS_AT) >> 32,
        };
        if digest_iterations == 0 {
            return Err(damaged("its header cannot be used: the digest of its key has no iterations".to_owned()));
        }
        let areas_bytes = match version {
            Version::Luks1 => (LUKS1_BYTES, 0),
            Version::Luks2 => context.metadata_bytes().unwrap_or_default(),
        };
        Ok(Self {
            cipher: format!("{cipher}-{mode}"),
            data_offset: context.data_offset().saturating_mul(512),
            iv_offset: context.iv_offset(),
            sector_bytes: context.sector_bytes(),
            key_bytes: context.key_bytes(),
            areas_bytes,
            digest_iterations,
            json,
        })
    }

    fn segment(&self, inner: &dyn BlockDevice) -> Result<Segment> {
        let areas_bytes = self.areas_bytes.0.saturating_mul(2).saturating_add(self.areas_bytes.1);
        let fixed_len = match &self.json {
            None => None,
            Some(json) => segment::only_segment(json, &inner.name())?,
        };
        let header_bytes = if self.json.is_some() { areas_bytes } else { LUKS1_BYTES };
        segment::checked(
            inner,
            &segment::Claimed {
                cipher: &self.cipher,
                key_bytes: self.key_bytes,
                sector_bytes: self.sector_bytes,
                offset: self.data_offset,
                len: fixed_len,
                first_iv: self.iv_offset,
                header_bytes,
            },
        )
    }
}

fn keyslots(context: &Context, version: Version) -> Vec<Keyslot> {
    let of = |slot: i32| {
        let state = context.slot_state(slot);
        if !matches!(state, SlotState::Active | SlotState::Unbound) {
            return None;
        }
        let pbkdf = context.slot_pbkdf(slot)?;
        Some(Keyslot {
            number: u32::try_from(slot).unwrap_or(0),
            pbkdf: pbkdf.kind,
            hash: pbkdf.hash,
            iterations: pbkdf.iterations,
            memory_kib: pbkdf.memory_kb,
            threads: pbkdf.threads,
            is_unbound: state == SlotState::Unbound,
        })
    };
    (0..context.slots_max(version.library_name())).filter_map(of).collect()
}

/// Which copy of the metadata the library has replaced by the other one, in its own memory.
fn note(before: &[u8], after: &[u8], metadata_bytes: u64) -> Option<String> {
    let copies = |bytes: &[u8]| {
        let (first, rest) = bytes.split_at(bytes.len().min(metadata_bytes as usize));
        (first.to_vec(), rest[..rest.len().min(metadata_bytes as usize)].to_vec())
    };
    let (first, second) = copies(before);
    let (first_after, second_after) = copies(after);
    let which = if first != first_after {
        "the first copy of its header is damaged or out of date; the second one is used"
    } else if second != second_after {
        "the second copy of its header is damaged or out of date; the first one is used"
    } else {
        return None;
    };
    Some(format!("{which} (`cryptsetup repair` writes both)"))
}

/// Why trying a keyslot would take too much, None if it would not.
fn absurd_cost(pbkdf: &SlotPbkdf, machine_kb: u64) -> Option<String> {
    let (iterations, memory_kb) = (u64::from(pbkdf.iterations), u64::from(pbkdf.memory_kb));
    let is_argon2 = pbkdf.kind.starts_with("argon2");
    let memory_kb_max = MEMORY_KB_MAX.min(machine_kb);
    if is_argon2 && memory_kb > memory_kb_max {
        let gib = |kb: u64| kb as f64 / f64::from(1 << 20);
        return Some(format!("asks for {:.1} GiB of memory, more than {:.1}", gib(memory_kb), gib(memory_kb_max)));
    }
    let is_long = if is_argon2 {
        iterations.saturating_mul(memory_kb) > ARGON2_WORK_MAX
    } else {
        iterations > PBKDF2_ITERATIONS_MAX
    };
    is_long.then(|| format!("asks for {iterations} iterations, which would take very long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pbkdf(kind: &str, iterations: u32, memory_kb: u32) -> SlotPbkdf {
        SlotPbkdf { kind: kind.into(), hash: "sha256".into(), iterations, memory_kb, threads: 1 }
    }

    #[test]
    fn costs_that_people_choose_are_tried_and_absurd_ones_are_not() {
        let machine_kb = 64 << 20;
        for usual in [pbkdf("argon2id", 4, 1 << 20), pbkdf("argon2i", 40, 4 << 20), pbkdf("pbkdf2", 20_000_000, 0)] {
            assert_eq!(absurd_cost(&usual, machine_kb), None, "{usual:?}");
        }
        let memory = absurd_cost(&pbkdf("argon2id", 4, (4 << 20) + 1), machine_kb).unwrap();
        assert!(memory.contains("memory"), "{memory}");
        assert!(absurd_cost(&pbkdf("argon2id", 4, 2 << 20), 1 << 20).is_some(), "more than the machine has");
        for long in [pbkdf("argon2id", u32::MAX, 64), pbkdf("pbkdf2", u32::MAX, 0), pbkdf("unknown", u32::MAX, 0)] {
            assert!(absurd_cost(&long, machine_kb).unwrap().contains("iterations"), "{long:?}");
        }
    }
}
