//! The search for literals, over packets of text as on the web and of random bytes.
//!
//! The literals are those of a file of rules, all contents and those that packets are searched for at first, or drawn with
//! lengths as Snort's have. Hits of the first packets are compared with the matcher's before anything is measured. A rate
//! counts the bytes of payload.

use super::{Outcome, SEED, measure};
use bifolio_device::{Allocation, Module, Stream};
use bifolio_kernels::Kernel;
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::packets::literal_match::{
    self, FirstHit, Listed, LiteralMatch, LiteralSearch, Operands, list_bytes,
};
use bifolio_kernels::packets::{HAS_NETWORK, Memory, PacketRows, SPANS_ALL};
use bifolio_net::matcher::{Automaton, Hit, Matcher, Patterns};
use bifolio_net::rules::parse;
use std::collections::HashSet;
use std::fmt::Write;
use std::ops::ControlFlow;

/// Headers of IP and TCP.
const HEADERS: usize = 40;
/// Packets whose hits are compared.
const COMPARED: usize = 100;

pub(crate) fn measure_all(stream: &Stream, rules: Option<&str>) -> Outcome {
    let module = stream.device().load_module(LiteralMatch.source())?;
    let is_accelerator = stream.device().info().is_accelerator;
    let bytes: usize = if is_accelerator { 512 << 20 } else { 16 << 10 };
    let texts =
        [("text", web_text(bytes.min(16 << 20))), ("random bytes", Draw::from_seed(SEED).bytes(bytes.min(16 << 20)))];
    for (name, patterns) in sets(rules)? {
        let automaton = Automaton::new(&patterns);
        println!("{name}: {} literals, {} KiB", patterns.len(), automaton.words().len() / 256);
        let literals = Literals { matcher: Matcher::new(patterns)?, automaton };
        for (what, text) in &texts {
            for payload in [1460, 88] {
                let batch = Batch::new(stream, text, bytes, payload)?;
                literals.compare(stream, &module, &Batch::new(stream, text, COMPARED * payload, payload)?)?;
                literals.measure(stream, &module, &batch, &format!("{what}, {payload} bytes"))?;
            }
        }
    }
    Ok(())
}

struct Literals {
    automaton: Automaton,
    matcher: Matcher,
}

impl Literals {
    fn image(&self, stream: &Stream) -> Outcome<Allocation> {
        on_device(stream, &self.automaton.words().iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
    }

    fn compare(&self, stream: &Stream, module: &Module, batch: &Batch) -> Outcome {
        let (image, room) = (self.image(stream)?, 8 * batch.bytes as u32);
        let list = stream.device().alloc(list_bytes(room))?;
        // SAFETY: the allocations live until the list was read back.
        unsafe { literal_match::launch(stream, module, &batch.search(Listed::All), batch.operands(&image, &list)) }?;
        let mut found = vec![0; list.len() as usize];
        stream.download(&mut found, list.slice())?;
        let found = literal_match::hits(&found).ok_or("there are more hits than bytes")?;
        let mut expected = Vec::new();
        for (packet, payload) in batch.payloads.iter().enumerate() {
            let _ = self.matcher.scan(payload, |hit| {
                expected.push((packet, hit));
                ControlFlow::<()>::Continue(())
            });
        }
        let found: Option<Vec<(usize, Hit)>> =
            found.iter().map(|hit| Some(((hit >> 32) as usize, self.automaton.hit(*hit as u32)?))).collect();
        if found.as_ref() != Some(&expected) {
            return Err(format!("the device's hits are not the {} of the matcher", expected.len()).into());
        }
        Ok(())
    }

    fn measure(&self, stream: &Stream, module: &Module, batch: &Batch, what: &str) -> Outcome {
        let image = self.image(stream)?;
        // Mostly there is less than one at a byte; what has no room is counted.
        let list = stream.device().alloc(list_bytes(batch.bytes as u32))?;
        for (mode, listed) in [
            ("all", Listed::All),
            ("each once", Listed::Once),
            ("first, listed", Listed::First),
            ("first", Listed::Nothing),
        ] {
            let search = batch.search(listed);
            // SAFETY: all allocations outlive the measurement, which waits for its work.
            let launch = || unsafe { literal_match::launch(stream, module, &search, batch.operands(&image, &list)) };
            measure(&format!("literals, {mode}, {what}"), batch.bytes as u64, 1.0, stream, launch)?;
            if listed != Listed::Nothing {
                let mut head = [0; 4];
                stream.download(&mut head, list.slice().part(0, 4)?)?;
                println!("    {:.4} hits a byte", f64::from(u32::from_ne_bytes(head)) / batch.bytes as f64);
            }
        }
        Ok(())
    }
}

/// Packets of TCP on a device.
struct Batch {
    rows: PacketRows,
    input: Allocation,
    output: Allocation,
    payloads: Vec<Vec<u8>>,
    /// Of payload.
    bytes: usize,
}

impl Batch {
    fn new(stream: &Stream, text: &[u8], bytes: usize, payload: usize) -> Outcome<Self> {
        let count = bytes / payload;
        let mut rows = PacketRows { spans: SPANS_ALL, network: 2, ..PacketRows::new(count as u32, 7, 2) };
        let span = HEADERS - 20 + payload;
        let mut input = Vec::with_capacity(count * (28 + span) + 16);
        let mut header = [0; HEADERS];
        (header[0], header[9], header[32]) = (0x45, 6, 0x50);
        header[2..4].copy_from_slice(&((HEADERS + payload) as u16).to_be_bytes());
        for packet in 0..count {
            let words = [(HEADERS + payload) as u32 | HAS_NETWORK, (packet * span / 4) as u32];
            input.extend(words.map(u32::to_le_bytes).concat());
            input.extend(&header[..20]);
        }
        input.resize(input.len().next_multiple_of(16), 0);
        (rows.span_at, rows.span_bytes) = (input.len() as u64, (count * span) as u64);
        let parts = || text.chunks_exact(payload).cycle().take(count);
        for part in parts() {
            input.extend(&header[20..]);
            input.extend(part);
        }
        let payloads = parts().take(COMPARED).map(<[u8]>::to_vec).collect();
        let output = stream.device().alloc(rows.output_bytes().max(16))?;
        Ok(Self { rows, input: on_device(stream, &input)?, output, payloads, bytes: count * payload })
    }

    /// For a list, or else for the first hit of each packet in its row.
    fn search(&self, list: Listed) -> LiteralSearch {
        let first = (list == Listed::Nothing).then_some(FirstHit { word: 1, slot: 0, value: 1 });
        LiteralSearch { rows: self.rows, payload: true, list, first }
    }

    fn operands<'a>(&'a self, image: &'a Allocation, list: &'a Allocation) -> Operands<'a> {
        let memory = Memory { input: self.input.slice(), output: self.output.slice() };
        Operands { memory, image: image.slice(), hits: list.slice() }
    }
}

fn on_device(stream: &Stream, bytes: &[u8]) -> Outcome<Allocation> {
    let memory = stream.device().alloc(bytes.len() as u64)?;
    stream.upload(memory.slice(), bytes)?;
    Ok(memory)
}

/// The sets of literals that are measured.
fn sets(rules: Option<&str>) -> Outcome<Vec<(&'static str, Patterns)>> {
    let Some(file) = rules else { return Ok(vec![("drawn literals", drawn()?)]) };
    let rules = parse(&std::fs::read(file)?).rules;
    let all = rules
        .iter()
        .flat_map(bifolio_net::rules::Rule::contents)
        .map(|content| (&content.bytes[..], content.is_nocase));
    let fast =
        rules.iter().filter_map(|rule| rule.fast_pattern()).map(|content| (&content.bytes[..], content.is_nocase));
    let set = |contents: &mut dyn Iterator<Item = (&[u8], bool)>| -> Outcome<Patterns> {
        let (mut patterns, mut seen) = (Patterns::new(), HashSet::new());
        for (bytes, nocase) in contents {
            if !bytes.is_empty() && seen.insert((bytes.to_vec(), nocase)) {
                patterns.add(bytes, nocase)?;
            }
        }
        Ok(patterns)
    };
    Ok(vec![("all contents", set(&mut all.into_iter())?), ("fast patterns", set(&mut fast.into_iter())?)])
}

/// As many literals as Snort's community rules have, of lengths as there: most of text, the others of any bytes.
fn drawn() -> Outcome<Patterns> {
    // Literals of up to so many bytes: how many.
    const LENGTHS: [(u64, u64); 6] = [(1, 59), (2, 111), (3, 147), (4, 343), (12, 1610), (40, 2320)];
    let (mut patterns, mut draw, text) = (Patterns::new(), Draw::from_seed(SEED), web_text(1 << 16));
    let mut shortest = 1;
    for (longest, count) in LENGTHS {
        for _ in 0..count {
            let len = (shortest + draw.below(longest - shortest + 1)) as usize;
            let from = draw.below((text.len() - len) as u64) as usize;
            // Few beginnings are of the text itself.
            let mut literal = text[from..from + len].to_vec();
            match draw.below(4) {
                0 => literal = draw.bytes(len),
                1 if len > 4 => {}
                _ => literal.iter_mut().take(3).for_each(|byte| *byte = b'a' + draw.below(26) as u8),
            }
            patterns.add(&literal, draw.below(2) == 0)?;
        }
        shortest = longest + 1;
    }
    Ok(patterns)
}

/// Requests and answers.
fn web_text(bytes: usize) -> Vec<u8> {
    const WORDS: &str = "the of and to in is that for it with as was on be at by this have from or had not are but what all \
        were when we there can an your which their said if do will each about how up out them then she many some so these \
        would other into has more her two like him see time could no make than first been its who now people my made over";
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let (mut text, mut draw) = (String::new(), Draw::from_seed(SEED));
    let mut word = move || words[draw.below(words.len() as u64) as usize];
    let mut numbers = Draw::from_seed(SEED + 1);
    while text.len() < bytes {
        let (id, key) = (numbers.below(90_000), numbers.next_u64());
        let end = ["", ".html", ".php", ".js", ".png"][numbers.below(5) as usize];
        let _ = write!(
            text,
            "GET /{}/{}{end}?id={id}&page={} HTTP/1.1\r\nHost: www.{}{}.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; \
             rv:128.0) Gecko/20100101 Firefox/128.0\r\nAccept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
             Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br\r\nConnection: keep-alive\r\n\
             Cookie: session={key:016x}; theme={}\r\n\r\nHTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html; \
             charset=utf-8\r\nContent-Length: {id}\r\n\r\n<html><head><title>{}</title></head><body>",
            word(),
            word(),
            word(),
            word(),
            word(),
            word(),
            word(),
        );
        for _ in 0..5 + numbers.below(15) {
            let _ = write!(text, "<p class=\"{}\">", word());
            (0..10 + numbers.below(50)).for_each(|_| text.extend([word(), " "]));
            text.push_str("</p>\n");
        }
    }
    text.truncate(bytes);
    text.into_bytes()
}
