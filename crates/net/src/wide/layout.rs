//! What of packets a path needs, and where it lies in rows: a pure decision.

use super::texts::TEXT_WORDS;
use crate::packet::anno;
use crate::streams::Following;
use bifolio_kernels::packets::{NONE, PacketRows, SPANS_ALL};

/// Bytes of a row's slots: one word.
const SLOTS: usize = 4;
/// The most words of an input row.
pub(super) const INPUT_WORDS: u32 = 32;
/// The most words of an output row.
pub(super) const OUTPUT_WORDS: u32 = 16;
/// Words of the Ethernet header's region: 24 bytes, which is the header with two VLAN tags.
pub(super) const LINK_WORDS: u32 = 6;
/// The most bytes of an IP header's options.
const OPTIONS_MAX: usize = 40;
/// Words of the IP header without options.
pub(super) const NETWORK_WORDS: u32 = 5;

/// What one element asks of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wants {
    /// The Ethernet header with up to two VLAN tags.
    pub link: bool,
    /// The first 20 bytes of the IP header.
    pub network: bool,
    /// The first 4 bytes behind the IP header.
    pub transport: bool,
    /// The IP header's options.
    pub options: bool,
    /// All that follows the first 20 bytes of the IP header.
    pub payload: bool,
    /// Payloads, each with what the packet before it of its flow ended with.
    pub texts: Option<Following>,
    /// Where the IP header begins in the data, where nobody has marked it.
    pub offset: Option<usize>,
    /// Annotations of 4 bytes that are read.
    pub annotations: Vec<usize>,
    /// Annotations of a byte that are read, written or tested: the slots.
    pub slots: Vec<usize>,
    /// Of these slots, those that are written.
    pub writes: Vec<usize>,
    /// Of these slots, those that are looked at again when a batch is back: nobody may write them later in the path, but for
    /// those who judge only what has no verdict.
    pub looks_back: Vec<usize>,
    /// Of these slots, those that begin with 0, whatever the packet's annotation is.
    pub fresh: Vec<usize>,
    /// Annotations of 4 bytes that are written, where what is found is not 0.
    pub words: Vec<usize>,
    /// TTL and checksum are changed.
    pub ttl: bool,
    /// It leaves verdicts in the annotation for these: elements behind it leave out what has one.
    pub judges: bool,
    /// It finds the IP header, and sets the destination address annotation.
    pub finds_header: bool,
    /// It changes packets as a whole when they are back: it is the last one of its path.
    pub rewrites: bool,
}

/// Where everything lies: places are numbers of words in rows, and of bytes for slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// What all elements of the path want together.
    pub wants: Wants,
    /// Words of an input row.
    pub input_words: u32,
    /// Words of an output row.
    pub output_words: u32,
    slots_in: u32,
    link: u32,
    network: u32,
    transport: u32,
    annotations: u32,
    words: u32,
    ttl: u32,
}

/// The union of lists, in the order in which things are named first.
fn join(into: &mut Vec<usize>, more: &[usize]) {
    for one in more {
        if !into.contains(one) {
            into.push(*one);
        }
    }
}

impl Wants {
    /// What two elements want together; elements that disagree where the header is get a sentence.
    fn join(&mut self, other: &Self) -> Result<(), String> {
        for (mine, theirs) in [
            (&mut self.link, other.link),
            (&mut self.network, other.network),
            (&mut self.transport, other.transport),
            (&mut self.options, other.options),
            (&mut self.payload, other.payload),
            (&mut self.ttl, other.ttl),
            (&mut self.judges, other.judges),
            (&mut self.finds_header, other.finds_header),
            (&mut self.rewrites, other.rewrites),
        ] {
            *mine |= theirs;
        }
        match (self.offset, other.offset) {
            (Some(one), Some(two)) if one != two => {
                return Err(format!("elements of one path look for the IP header at {one} and at {two}"));
            }
            (None, offset) => self.offset = offset,
            _ => {}
        }
        match (&self.texts, &other.texts) {
            (Some(_), Some(_)) => {
                return Err("two elements of one path follow flows; each needs a path of its own".to_owned());
            }
            (None, texts) => self.texts.clone_from(texts),
            _ => {}
        }
        join(&mut self.annotations, &other.annotations);
        join(&mut self.slots, &other.slots);
        join(&mut self.fresh, &other.fresh);
        join(&mut self.words, &other.words);
        Ok(())
    }
}

impl Layout {
    /// The rows of a path whose elements want this.
    ///
    /// # Errors
    /// A sentence where that is more than rows can have.
    pub fn new(elements: &[Wants]) -> Result<Self, String> {
        let mut wants = Wants::default();
        for (at, more) in elements.iter().enumerate() {
            wants.join(more)?;
            let writes = |element: &Wants, slot: usize| {
                element.writes.contains(&slot) && !(element.judges && slot == anno::VERDICT)
            };
            let is_changed = |slot: &&usize| elements[at + 1..].iter().any(|element| writes(element, **slot));
            if let Some(slot) = more.looks_back.iter().find(is_changed) {
                return Err(format!(
                    "annotation {slot} is looked at again by an element of the path when a batch is back, and one behind it changes it"
                ));
            }
        }
        if wants.slots.len() > SLOTS {
            return Err(format!(
                "a path can have {SLOTS} annotations of a byte, and its elements name {:?}",
                wants.slots
            ));
        }
        let covers = |word: usize, at: usize| (word..word + 4).contains(&at);
        for (at, word) in wants.words.iter().enumerate() {
            let overlap = |other: &&usize| other.abs_diff(*word) < 4;
            let slot = wants.slots.iter().find(|slot| covers(*word, **slot));
            if let Some(other) = slot.or(wants.words[at + 1..].iter().find(overlap)) {
                return Err(format!("annotations {word} and {other} of a path lie over each other"));
            }
        }
        // The IP header says how long options are, and where the transport header begins.
        wants.network |= wants.options || wants.payload || wants.transport || wants.ttl;
        let mut at = 1 + u32::from(wants.options || wants.payload || wants.texts.is_some());
        let mut take = |is_wanted: bool, words: u32| {
            let first = at;
            at += if is_wanted { words } else { 0 };
            if is_wanted { first } else { NONE }
        };
        let slots_in = take(!wants.slots.is_empty(), 1);
        let link = take(wants.link, LINK_WORDS);
        let network = take(wants.network, NETWORK_WORDS);
        let transport = take(wants.transport, 1);
        let annotations = take(!wants.annotations.is_empty(), wants.annotations.len() as u32);
        let input_words = at;
        let words = 1;
        let after = words + wants.words.len() as u32;
        let (ttl, output_words) = if wants.ttl { (after, after + 1) } else { (NONE, after) };
        if input_words > INPUT_WORDS || output_words > OUTPUT_WORDS {
            return Err(format!(
                "rows of {input_words} and {output_words} words are needed, and {INPUT_WORDS} and {OUTPUT_WORDS} are the most"
            ));
        }
        Ok(Self { wants, input_words, output_words, slots_in, link, network, transport, annotations, words, ttl })
    }

    /// Bytes of an input row.
    pub fn input_bytes(&self) -> usize {
        self.input_words as usize * 4
    }

    /// Bytes of an output row.
    pub fn output_bytes(&self) -> usize {
        self.output_words as usize * 4
    }

    /// Whether packets have a part of variable length.
    pub fn has_spans(&self) -> bool {
        self.wants.options || self.wants.payload || self.has_texts()
    }

    /// Whether payloads travel with what stands before them in their flows.
    pub fn has_texts(&self) -> bool {
        self.wants.texts.is_some()
    }

    /// Whether the parts of variable length are options alone: few packets have any, so that rows are where they travel from the
    /// beginning on, and spans follow them.
    pub fn has_options_alone(&self) -> bool {
        self.wants.options && !self.wants.payload && !self.has_texts()
    }

    /// The most bytes of variable length of a packet that has so many from its IP header on.
    pub(super) fn span_bytes_max(&self, network: usize) -> usize {
        let span = match network {
            _ if self.has_options_alone() => network.min(OPTIONS_MAX),
            _ if self.wants.options || self.wants.payload => network.next_multiple_of(4),
            _ => 0,
        };
        // How much is kept may change meanwhile, but it is never more than that.
        span + self.wants.texts.as_ref().map_or(0, |following| network + following.tail)
    }

    /// The byte of output rows that stands for an annotation of a byte.
    pub fn slot(&self, annotation: usize) -> u32 {
        self.wants.slots.iter().position(|slot| *slot == annotation).map_or(NONE, |slot| slot as u32)
    }

    /// The word of output rows that stands for an annotation of 4 bytes.
    pub fn word(&self, annotation: usize) -> u32 {
        self.wants.words.iter().position(|word| *word == annotation).map_or(NONE, |word| self.words + word as u32)
    }

    /// The word of input rows with an annotation of 4 bytes.
    pub fn annotation(&self, annotation: usize) -> u32 {
        let place = self.wants.annotations.iter().position(|other| *other == annotation);
        place.map_or(NONE, |place| self.annotations + place as u32)
    }

    /// The word of output rows with TTL, protocol and checksum.
    pub fn ttl(&self) -> u32 {
        self.ttl
    }

    /// The first word of input rows with the IP header.
    pub fn network(&self) -> u32 {
        self.network
    }

    /// The word of input rows with the transport header.
    pub fn transport(&self) -> u32 {
        self.transport
    }

    /// The first word of input rows with the Ethernet header.
    pub fn link(&self) -> u32 {
        self.link
    }

    /// The word of input rows with the first values of the slots.
    pub fn slots_in(&self) -> u32 {
        self.slots_in
    }

    /// The texts of a batch for kernels that search spans: rows of their own, with the same output rows.
    pub(super) fn texts(&self, rows: PacketRows, texts_at: u64) -> Option<PacketRows> {
        self.has_texts().then_some(PacketRows {
            input_at: texts_at,
            input_words: TEXT_WORDS,
            spans: SPANS_ALL,
            annotations: NONE,
            link: NONE,
            network: NONE,
            transport: NONE,
            ttl: NONE,
            ..rows
        })
    }

    /// The rows of a batch for kernels; the places of buffers are the caller's.
    pub fn rows(&self, count: u32, span_bytes: u64) -> PacketRows {
        PacketRows {
            input_at: 0,
            output_at: 0,
            span_at: 0,
            span_bytes,
            count,
            input_words: self.input_words,
            output_words: self.output_words,
            spans: if self.wants.payload { 2 } else { u32::from(self.wants.options) },
            annotations: self.slots_in,
            link: self.link,
            network: self.network,
            transport: self.transport,
            ttl: self.ttl,
            test: NONE,
            test_value: 0,
            reserved: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn wants() -> impl Strategy<Value = Wants> {
        let flags = any::<[bool; 6]>();
        let annos = || vec(0..12_usize, 0..3).prop_map(|all| all.into_iter().map(|at| at * 4).collect::<Vec<_>>());
        (flags, annos(), vec(0..2_usize, 0..2), annos()).prop_map(|(flags, annotations, slots, words)| {
            let [link, network, transport, options, payload, ttl] = flags;
            Wants { link, network, transport, options, payload, annotations, slots, words, ttl, ..Wants::default() }
        })
    }

    proptest! {
        #[test]
        fn regions_are_there_and_lie_apart(elements in vec(wants(), 1..4)) {
            let Ok(layout) = Layout::new(&elements) else { return Ok(()) };
            let mut used = vec![false; layout.input_words as usize];
            let mut mark = |first: u32, words: u32| {
                for word in first..first + words {
                    assert!(!std::mem::replace(&mut used[word as usize], true), "two regions in word {word}");
                }
            };
            mark(0, 1 + u32::from(layout.has_spans()));
            let regions = [
                (layout.slots_in(), 1), (layout.link(), LINK_WORDS), (layout.network(), NETWORK_WORDS), (layout.transport(), 1),
            ];
            regions.iter().filter(|(first, _)| *first != NONE).for_each(|(first, words)| mark(*first, *words));
            for annotation in &layout.wants.annotations {
                mark(layout.annotation(*annotation), 1);
            }
            prop_assert!(used.iter().all(|used| *used), "no word is for nothing: {:?}", layout);
            for element in &elements {
                prop_assert!(!element.link || layout.link() != NONE);
                prop_assert!(!element.payload && !element.options || layout.has_spans());
                prop_assert!(!element.transport || layout.transport() != NONE);
                prop_assert!(!element.ttl || layout.ttl() < layout.output_words);
                prop_assert!(element.slots.iter().all(|slot| layout.slot(*slot) < 4));
                prop_assert!(element.words.iter().all(|word| (1..layout.output_words).contains(&layout.word(*word))));
            }
        }
    }
}
