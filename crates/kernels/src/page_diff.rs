//! Twin comparison: which 4 KiB pages of a buffer differ from its twin.
//!
//! The answer is a bitmap of u32 words: bit `p % 32` of word `p / 32` is set if some byte of page
//! `p` differs. The last page may be ragged; bits beyond it are 0. Every word is written, so the
//! bitmap needs no clearing. One group of threads makes one word.

use crate::addressing;
use crate::kernel::{Effort, KDEF_H, Kernel, Trial};
use crate::known_answer::{self, Draw};
use crate::launch::{WORD_BYTES, bad, download, is_aligned};
use crate::load::Kernels;
use bifolio_device::{DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Result, Stream};
use std::slice;

/// Bytes that one bit of the bitmap stands for.
pub const PAGE_BYTES: u64 = 4096;

/// Pages in one word of the bitmap.
pub const PAGES_PER_WORD: u64 = 32;

const GROUP_SIZE: u32 = 256;

const KERNEL: &str = "page_diff";

const MODULE: ModuleSource = ModuleSource {
    name: KERNEL,
    source: include_str!("cl/page_diff.cl"),
    headers: &[KDEF_H, ("page_diff.h", include_str!("cl/page_diff.h"))],
    kernels: &[(KERNEL, run_on_host)],
};

/// Bytes of which one group makes its word of the bitmap.
const GROUP_BYTES: usize = (PAGES_PER_WORD * PAGE_BYTES) as usize;

/// The kernel; [`Kernels::page_diff`] runs it.
#[derive(Debug)]
pub struct PageDiff;

impl Kernel for PageDiff {
    fn source(&self) -> &'static ModuleSource {
        &MODULE
    }

    fn try_out(&self, trial: &mut Trial<'_>) -> Result<(), String> {
        const PAGE: usize = PAGE_BYTES as usize;
        const GROUP: usize = GROUP_BYTES;
        let sizes: &[usize] = match trial.effort() {
            // Two whole words of the bitmap and a ragged third.
            Effort::FirstUse => &[66 * PAGE + 1234],
            Effort::Interpreted => &[1, PAGE, GROUP - 1, GROUP + PAGE + 17],
            Effort::Exhaustive => &[
                1,
                PAGE - 1,
                PAGE,
                PAGE + 1,
                GROUP - PAGE,
                GROUP - 1,
                GROUP,
                GROUP + 1,
                GROUP + PAGE,
                2 * GROUP,
                5 * GROUP + 3 * PAGE + 17,
                64 * GROUP,
            ],
        };
        sizes.iter().try_for_each(|bytes| Case::draw(trial.draw(), *bytes).run(trial.stream(), trial.module()))
    }

    fn has_host_path(&self) -> bool {
        true
    }
}

/// `PageDiffParams` of `page_diff.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Params {
    bytes: u64,
}

const _: () = assert!(size_of::<Params>() == 8);

impl Params {
    fn to_bytes(self) -> [u8; 8] {
        self.bytes.to_ne_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self { bytes: u64::from_ne_bytes(bytes.try_into().ok()?) })
    }
}

/// Number of u32 words in the bitmap for buffers of `bytes` bytes.
pub fn bitmap_words(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES * PAGES_PER_WORD)
}

/// What the kernel computes.
///
/// # Panics
/// If the buffers differ in length.
pub fn oracle(a: &[u8], b: &[u8]) -> Vec<u32> {
    assert_eq!(a.len(), b.len(), "a buffer and its twin have one length");
    let mut words = vec![0; bitmap_words(a.len() as u64) as usize];
    let pages = a.chunks(PAGE_BYTES as usize).zip(b.chunks(PAGE_BYTES as usize));
    for (page, (left, right)) in pages.enumerate() {
        words[page / 32] |= u32::from(left != right) << (page % 32);
    }
    words
}

impl Kernels {
    /// Compares `a` with its twin `b`, of equal length and both at 16-byte boundaries, page by page; `bitmap` has room
    /// for [`bitmap_words`] words.
    ///
    /// # Errors
    /// Ranges that do not fit, and what the device refuses.
    ///
    /// # Safety
    /// The ranges are memory of the stream's device, which is the one the kernels were loaded on;
    /// they stay valid and are not written by others until the work completes, and `bitmap`
    /// overlaps neither input.
    pub unsafe fn page_diff(
        &self,
        stream: &Stream,
        a: DeviceSlice<'_>,
        b: DeviceSlice<'_>,
        bitmap: DeviceSlice<'_>,
    ) -> Result<()> {
        let module = self.module(&PageDiff)?;
        // SAFETY: the caller's promise; the module is the right one.
        unsafe { run(stream, module, a, b, bitmap) }
    }
}

/// # Safety
/// As for [`Kernels::page_diff`]; `module` is [`MODULE`] on the stream's device.
unsafe fn run(
    stream: &Stream,
    module: Option<&Module>,
    a: DeviceSlice<'_>,
    b: DeviceSlice<'_>,
    bitmap: DeviceSlice<'_>,
) -> Result<()> {
    let groups = groups(a, b, bitmap)?;
    if groups == 0 {
        return Ok(());
    }
    let Some(module) = module else { return through_host(stream, a, b, bitmap) };
    let params = Params { bytes: a.len() }.to_bytes();
    let args = [
        KernelArg::Buffer(a.ptr()),
        KernelArg::Buffer(b.ptr()),
        KernelArg::Buffer(bitmap.ptr()),
        KernelArg::Bytes(&params),
    ];
    // SAFETY: the arguments are those of the kernel, their lengths were checked, and the caller
    // vouches for the module and the memory.
    unsafe { stream.launch(module, KERNEL, groups, GROUP_SIZE, &args) }
}

fn through_host(stream: &Stream, a: DeviceSlice<'_>, b: DeviceSlice<'_>, bitmap: DeviceSlice<'_>) -> Result<()> {
    let words = oracle(&download(stream, a)?, &download(stream, b)?);
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    stream.upload(bitmap.part(0, bytes.len() as u64)?, &bytes)
}

/// The number of groups, or what is wrong with the ranges.
fn groups(a: DeviceSlice<'_>, b: DeviceSlice<'_>, bitmap: DeviceSlice<'_>) -> Result<u32> {
    if a.len() != b.len() {
        return Err(bad(format!("a buffer of {} bytes and its twin of {} differ in length", a.len(), b.len())));
    }
    let words = bitmap_words(a.len());
    if bitmap.len() < words * 4 {
        return Err(bad(format!("the bitmap needs {} bytes, got {}", words * 4, bitmap.len())));
    }
    if !is_aligned(a, WORD_BYTES) || !is_aligned(b, WORD_BYTES) || !is_aligned(bitmap, 4) {
        return Err(bad(format!(
            "a page comparison needs buffers at 16-byte boundaries and a bitmap at a 4-byte one, got {}, {} and {}",
            a.ptr(),
            b.ptr(),
            bitmap.ptr()
        )));
    }
    u32::try_from(words).map_err(|_| bad(format!("{} bytes are too many for one page comparison", a.len())))
}

/// The kernel as the `host` device runs it.
///
/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn run_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(a), KernelArg::Buffer(b), KernelArg::Buffer(bitmap), KernelArg::Bytes(params)] = launch.args
    else {
        unreachable!("page_diff has three buffers and one parameter struct");
    };
    let Some(params) = Params::from_bytes(params) else { unreachable!("page_diff has 8 bytes of parameters") };
    let len = params.bytes as usize;
    // SAFETY: the caller passes host addresses of `bytes` bytes each, that nobody writes meanwhile.
    let (a, b) =
        unsafe { (slice::from_raw_parts(a.0 as *const u8, len), slice::from_raw_parts(b.0 as *const u8, len)) };
    let words = oracle(a, b);
    // SAFETY: the bitmap has a word for every group, overlaps no input, and is at a 4-byte boundary.
    unsafe { slice::from_raw_parts_mut(bitmap.0 as *mut u32, words.len()) }.copy_from_slice(&words);
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
struct Case {
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Case {
    /// `bytes` random bytes and a twin in which about every third page has one changed byte; the
    /// very last byte is changed in every other case.
    fn draw(draw: &mut Draw, bytes: usize) -> Self {
        let a = draw.bytes(bytes);
        let mut b = a.clone();
        for page in b.chunks_mut(PAGE_BYTES as usize) {
            if draw.below(3) == 0 {
                let at = draw.below(page.len() as u64) as usize;
                page[at] ^= 1 << draw.below(8);
            }
        }
        if let Some(last) = b.last_mut().filter(|_| draw.below(2) == 0) {
            *last ^= 0x80;
        }
        Self { a, b }
    }

    /// Runs the kernel over a poisoned bitmap and compares with the oracle; the error is a
    /// sentence about the first wrong word.
    fn run(&self, stream: &Stream, module: Option<&Module>) -> Result<(), String> {
        let expected = oracle(&self.a, &self.b);
        let found = self.on_device(stream, module, &expected).map_err(|error| error.to_string())?;
        known_answer::compare("of the bitmap, word", &found, &expected)
            .map_err(|wrong| format!("{} bytes: {wrong}", self.a.len()))
    }

    fn on_device(&self, stream: &Stream, module: Option<&Module>, expected: &[u32]) -> Result<Vec<u32>> {
        let (a, b) = (known_answer::on_device(stream, &self.a)?, known_answer::on_device(stream, &self.b)?);
        // The poison is the complement of the answer: a word that the kernel leaves alone is wrong.
        let bitmap = known_answer::on_device(stream, &known_answer::complement(expected))?;
        // SAFETY: the allocations live until the download below has waited for the work.
        unsafe { run(stream, module, a.slice(), b.slice(), bitmap.slice()) }?;
        Ok(addressing::u32s(&known_answer::content(stream, &bitmap)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bit_is_set_exactly_where_a_byte_differs(len in 1_usize..300_000, changed in prop::collection::vec(any::<u32>(), 0..5)) {
            let a = vec![7; len];
            let mut b = a.clone();
            let mut pages = std::collections::BTreeSet::new();
            for at in changed {
                let at = at as usize % len;
                b[at] = 8;
                pages.insert(at / 4096);
            }
            let words = oracle(&a, &b);
            prop_assert_eq!(words.len() as u64, bitmap_words(len as u64));
            let set: Vec<_> = (0..words.len() * 32).filter(|page| words[page / 32] >> (page % 32) & 1 == 1).collect();
            prop_assert_eq!(set, pages.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn two_empty_buffers_have_an_empty_bitmap() {
        assert!(oracle(&[], &[]).is_empty());
    }
}
