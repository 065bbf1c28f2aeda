//! Kernels that have a thread for each packet: their launch, and their oracle over a batch.

use super::rows::{NONE, PacketRows};
use crate::addressing::Addressing;
use crate::launch::{WORD_BYTES, bad, grid};
use bifolio_device::{DeviceSlice, HostLaunch, KernelArg, Module, Result, Stream};
use std::slice;

const GROUP_SIZE: u32 = 256;

/// A kernel with a thread for each packet: its parameters, which begin with [`PacketRows`].
pub trait RowKernel: Sized {
    /// Its name.
    const KERNEL: &'static str;
    /// How many buffers it reads besides rows.
    const TABLES: usize;

    /// The rows.
    fn rows(&self) -> &PacketRows;
    /// The same, to change where they begin.
    fn rows_mut(&mut self) -> &mut PacketRows;
    /// The parameters behind the rows.
    fn words(&self) -> Vec<u32>;
    /// The parameters of rows and of such words.
    fn from_words(rows: PacketRows, words: &[u32]) -> Option<Self>;

    /// Bytes of each table.
    fn table_bytes(&self) -> Vec<u64>;

    /// Refuses parameters of which a kernel would read or write outside of rows or tables. The rows are right.
    fn check(&self) -> Result<()>;

    /// What the kernel does to the output row of a packet that takes part.
    fn packet(&self, packet: &Packet<'_>, tables: &[&[u8]], output: &mut [u32]);

    /// Whether packets that fail the test take part as well.
    const IS_FOR_ALL: bool = false;
}

/// The memory of a batch on a device.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// What [`PacketRows::input_at`] is counted from, at a 16-byte boundary.
    pub input: DeviceSlice<'a>,
    /// What [`PacketRows::output_at`] is counted from, at a 16-byte boundary; may be the same range.
    pub output: DeviceSlice<'a>,
}

/// A packet as oracles read it.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Its input row.
    pub row: Vec<u32>,
    spans: &'a [u8],
}

impl Packet<'_> {
    /// Bytes from the network header on.
    pub(super) fn captured(&self) -> usize {
        (self.row[0] & 0xffff) as usize
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.row[0] & flag != 0
    }

    /// The bytes of some words of the row.
    pub(super) fn bytes(&self, first: u32, count: u32) -> Vec<u8> {
        let words = &self.row[first as usize..(first + count) as usize];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The first bytes of its part of the variable part, if they are there.
    pub(super) fn span(&self, len: usize) -> Option<&[u8]> {
        let at = self.row[1] as usize * 4;
        self.spans.get(at..)?.get(..len)
    }
}

/// Enqueues the kernel over a batch. `tables` begin at boundaries that the device's kernels want, as allocations do.
///
/// # Safety
/// `module` is the kernel's on the stream's device; the memory is of that device, stays valid, and is not written by
/// others (output rows: nor read) until the work completes; no output row overlaps an input row, the variable part or a
/// table.
pub unsafe fn launch<K: RowKernel + Clone>(
    stream: &Stream,
    module: &Module,
    params: &K,
    memory: Memory<'_>,
    tables: &[DeviceSlice<'_>],
) -> Result<()> {
    let Memory { input, output } = memory;
    params.rows().check(input.len(), output.len())?;
    params.check()?;
    check_tables(params, stream, tables)?;
    let count = params.rows().count;
    if count == 0 {
        return Ok(());
    }
    let device = stream.device();
    let (input, input_at) = Addressing::Relative(input).argument(device)?;
    let (output, output_at) = Addressing::Relative(output).argument(device)?;
    let mut params = params.clone();
    let rows = params.rows_mut();
    rows.input_at += input_at;
    rows.span_at += input_at;
    rows.output_at += output_at;
    let params = to_bytes(&params);
    let mut args = vec![KernelArg::Buffer(input)];
    args.extend(tables.iter().map(|table| KernelArg::Buffer(table.ptr())));
    args.extend([KernelArg::Buffer(output), KernelArg::Bytes(&params)]);
    // SAFETY: the arguments are those of the kernel, what the parameters name lies inside of rows, buffers and tables,
    // and the caller vouches for the module and the memory.
    unsafe { stream.launch(module, K::KERNEL, grid(u64::from(count).div_ceil(GROUP_SIZE.into()))?, GROUP_SIZE, &args) }
}

fn check_tables<K: RowKernel>(params: &K, stream: &Stream, tables: &[DeviceSlice<'_>]) -> Result<()> {
    let wanted = params.table_bytes();
    let boundary = stream.device().info().kernel_buffer_alignment.max(WORD_BYTES);
    if tables.len() != wanted.len() {
        return Err(bad(format!("{} reads {} tables, got {}", K::KERNEL, wanted.len(), tables.len())));
    }
    for (table, wanted) in tables.iter().zip(wanted) {
        if table.len() < wanted || !table.ptr().0.is_multiple_of(boundary) {
            return Err(bad(format!(
                "a table of {} needs {wanted} bytes at a boundary of {boundary}, got {} at {}",
                K::KERNEL,
                table.len(),
                table.ptr()
            )));
        }
    }
    Ok(())
}

pub(super) fn to_bytes<K: RowKernel>(params: &K) -> Vec<u8> {
    let words = params.words();
    debug_assert!(words.len().is_multiple_of(2), "structs have lengths that are multiples of 8");
    [params.rows().to_bytes(), words.iter().flat_map(|word| word.to_ne_bytes()).collect()].concat()
}

pub(super) fn from_bytes<K: RowKernel>(bytes: &[u8]) -> Option<K> {
    let rows = PacketRows::from_bytes(bytes)?;
    let words = bytes[PacketRows::BYTES..].as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word));
    K::from_words(rows, &words.collect::<Vec<_>>())
}

/// What the kernel computes over a batch. The rows begin at their places in `input` and `output`.
///
/// # Panics
/// If rows or the variable part are not there.
pub fn oracle<K: RowKernel>(params: &K, input: &[u8], tables: &[&[u8]], output: &mut [u8]) {
    let rows = params.rows();
    let part = |at: u64, len: u64| at as usize..(at + len) as usize;
    let spans = &input[part(rows.span_at, rows.span_bytes)];
    let input = &input[part(rows.input_at, rows.input_bytes())];
    let output = &mut output[part(rows.output_at, rows.output_bytes())];
    batch(params, input, spans, tables, output);
}

fn batch<K: RowKernel>(params: &K, input: &[u8], spans: &[u8], tables: &[&[u8]], output: &mut [u8]) {
    let rows = params.rows();
    let words = |row: &[u8]| -> Vec<u32> { row.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect() };
    let inputs = input.chunks_exact(rows.input_words as usize * 4);
    let outputs = output.chunks_exact_mut(rows.output_words as usize * 4);
    for (row, place) in inputs.zip(outputs) {
        let takes_part = rows.test == NONE || u32::from(place[rows.test as usize]) == rows.test_value;
        if K::IS_FOR_ALL || takes_part {
            let mut output = words(place);
            params.packet(&Packet { row: words(row), spans }, tables, &mut output);
            place.copy_from_slice(&output.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        }
    }
}

/// Sets a byte of an output row.
pub(super) fn set_slot(output: &mut [u32], slot: u32, value: u32) {
    let (word, shift) = (slot as usize / 4, slot % 4 * 8);
    output[word] = output[word] & !(0xff << shift) | (value & 0xff) << shift;
}

/// Refuses a slot outside of output rows, and values that are no bytes.
pub(super) fn check_slot(rows: &PacketRows, slot: u32, values: &[u32]) -> Result<()> {
    if slot >= rows.output_words * 4 || values.iter().any(|&value| value > 255) {
        return Err(bad(format!(
            "a slot at byte {slot} with values {values:?} is none of {} words",
            rows.output_words
        )));
    }
    Ok(())
}

/// Refuses a word outside of output rows, or that has the slots.
pub(super) fn check_output_word(rows: &PacketRows, word: u32) -> Result<()> {
    if word != NONE && !(1..rows.output_words).contains(&word) {
        return Err(bad(format!("an output row of {} words has no word {word} for this", rows.output_words)));
    }
    Ok(())
}

/// The kernel as the `host` device runs it.
///
/// # Safety
/// As for every [`bifolio_device::HostKernel`].
pub(super) unsafe fn run_on_host<K: RowKernel>(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(input), tables @ .., KernelArg::Buffer(output), KernelArg::Bytes(params)] = launch.args
    else {
        unreachable!("{} has a buffer of rows before and behind its tables", K::KERNEL);
    };
    let Some(params) = from_bytes::<K>(params) else { unreachable!("{} gets its own parameters", K::KERNEL) };
    let rows = params.rows();
    // SAFETY: the caller passes host addresses of buffers that have these bytes, which nobody writes meanwhile.
    let bytes = |at: u64, len: u64| unsafe { slice::from_raw_parts(at as *const u8, len as usize) };
    let row_bytes = bytes(input.offset_by(rows.input_at).0, rows.input_bytes());
    // Without spans there may be no memory.
    let spans = if rows.span_bytes == 0 { &[] } else { bytes(input.offset_by(rows.span_at).0, rows.span_bytes) };
    let lens = params.table_bytes().into_iter();
    let tables: Vec<&[u8]> = lens
        .zip(tables)
        .map(|(len, table)| match table {
            KernelArg::Buffer(table) if len > 0 => bytes(table.0, len),
            _ => &[],
        })
        .collect();
    let at = output.offset_by(rows.output_at).0 as *mut u8;
    // SAFETY: as above, and nobody else uses the output rows.
    let output = unsafe { slice::from_raw_parts_mut(at, rows.output_bytes() as usize) };
    batch(&params, row_bytes, spans, &tables, output);
}
