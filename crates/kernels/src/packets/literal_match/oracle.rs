//! Every literal at every place.

use super::list::{NOTHING, UNSEARCHED, keep};
use super::params::LiteralSearch;
use crate::packets::{HAS_NETWORK, NONE};

/// In the table of literals: letters' case counts.
const CASED: u32 = 1 << 31;

/// A literal, as the image has it.
struct Literal {
    bytes: Vec<u8>,
    is_cased: bool,
}

/// All literals of an image in the order of their ranks, and those that begin with a letter or its capital.
pub(super) struct Literals {
    all: Vec<Literal>,
    by_first: Vec<Vec<u32>>,
}

impl Literals {
    pub(super) fn of(image: &[u32]) -> Self {
        let entry = image[2] as usize;
        let literal = |rank: usize| {
            let (len, at) = (image[entry + 2 * rank], image[entry + 2 * rank + 1] as usize);
            let bytes = image[at..].iter().flat_map(|word| word.to_le_bytes());
            Literal { bytes: bytes.take((len & !CASED) as usize).collect(), is_cased: len & CASED != 0 }
        };
        let all: Vec<_> = (0..image[1] as usize).map(literal).collect();
        let mut by_first = vec![Vec::new(); 256];
        for (literal, rank) in all.iter().zip(0..) {
            by_first[usize::from(literal.bytes[0].to_ascii_lowercase())].push(rank);
        }
        Self { all, by_first }
    }

    /// All hits in a text, without a packet.
    pub(super) fn search(&self, text: &[u8]) -> Vec<u32> {
        let mut hits = Vec::new();
        for (at, first) in text.iter().enumerate() {
            for &rank in &self.by_first[usize::from(first.to_ascii_lowercase())] {
                let Literal { bytes, is_cased } = &self.all[rank as usize];
                let Some(found) = text[at..].get(..bytes.len()) else { continue };
                if if *is_cased { found == bytes } else { found.eq_ignore_ascii_case(bytes) } {
                    hits.push(((at + bytes.len()) as u32) << 16 | rank);
                }
            }
        }
        hits.sort_unstable();
        hits
    }
}

/// What follows the headers of a packet, of which `network` are the first 20 bytes and `span` is the rest.
fn behind_headers<'a>(network: &[u8], captured: usize, span: &'a [u8]) -> Option<&'a [u8]> {
    let header_len = usize::from(network[0] & 15) * 4;
    let total_len = usize::from(u16::from_be_bytes([network[2], network[3]]));
    if captured < 20 || network[0] >> 4 != 4 || header_len < 20 || total_len < header_len || captured < header_len {
        return None;
    }
    let end = span.len().min(total_len - 20);
    let body = &span[(header_len - 20).min(end)..end];
    let header = match network[9] {
        _ if u16::from_be_bytes([network[6], network[7]]) & 0x1fff != 0 => 0,
        1 | 17 => 8,
        6 if body.len() >= 20 && body[12] >> 4 >= 5 => usize::from(body[12] >> 4) * 4,
        _ => 0,
    };
    Some(body.get(header..).unwrap_or(body))
}

/// What is searched of each packet; None: the processor has to search it. `input` and `output` are the batch's buffers.
///
/// # Panics
/// If they do not have the rows.
pub fn texts<'a>(search: &LiteralSearch, input: &'a [u8], output: &[u8]) -> Vec<Option<&'a [u8]>> {
    let rows = &search.rows;
    let part = |at: u64, len: u64| at as usize..(at + len) as usize;
    let spans = &input[part(rows.span_at, rows.span_bytes)];
    let inputs = input[part(rows.input_at, rows.input_bytes())].chunks_exact(rows.input_words as usize * 4);
    let outputs = output[part(rows.output_at, rows.output_bytes())].chunks_exact(rows.output_words as usize * 4);
    let text = |(row, out): (&[u8], &[u8])| {
        let word = |at: usize| u32::from_le_bytes(row[at * 4..at * 4 + 4].try_into().expect("four bytes"));
        let (descriptor, begin) = (word(0), word(1) as usize * 4);
        let captured = (descriptor & 0xffff) as usize;
        if rows.test != NONE && u32::from(out[rows.test as usize]) != rows.test_value {
            return Some(&spans[..0]);
        }
        let behind = spans.get(begin..).unwrap_or_default();
        let span = &behind[..captured.saturating_sub(20).min(behind.len())];
        if !search.payload {
            return Some(span);
        }
        let network = &row[rows.network as usize * 4..][..20];
        (descriptor & HAS_NETWORK != 0).then(|| behind_headers(network, captured, span)).flatten()
    };
    inputs.zip(outputs).map(text).collect()
}

/// What the kernels compute: all hits that the list is to have, sorted; all where there is none. The output rows get what
/// [`LiteralSearch::first`] says.
///
/// # Panics
/// If the buffers do not have the rows, or the image is none.
pub fn oracle(search: &LiteralSearch, image: &[u32], input: &[u8], output: &mut [u8]) -> Vec<u64> {
    let literals = Literals::of(image);
    let found: Vec<Vec<u32>> = texts(search, input, output)
        .into_iter()
        .map(|text| text.map_or_else(|| vec![UNSEARCHED], |text| literals.search(text)))
        .collect();
    for (packet, hits) in found.iter().enumerate() {
        let Some(first) = search.first else { break };
        let what = hits.first().copied().unwrap_or(NOTHING);
        let row_bytes = search.rows.output_words as usize * 4;
        let row = &mut output[search.rows.output_at as usize + packet * row_bytes..][..row_bytes];
        row[first.word as usize * 4..][..4].copy_from_slice(&what.to_le_bytes());
        if first.slot != NONE && what < UNSEARCHED {
            row[first.slot as usize] = first.value as u8;
        }
    }
    let of_packet = |(packet, hits): (u64, Vec<u32>)| hits.into_iter().map(move |what| packet << 32 | u64::from(what));
    let mut hits = (0..).zip(found).flat_map(of_packet).collect();
    keep(&mut hits, search.list);
    hits
}
