//! GPUIDSMatcher: searches payloads for rules of Snort or Suricata, or for literals, on a device.
//!
//! `GPUIDSMatcher(RULES FILE | PATTERN "LITERAL" ... [, VARIABLES, NOCASE, FIRST, ANNO, SID_ANNO, STREAM, FLOWS, TAIL, ROOM, TABLE, CHK_ANNO, CHK_VALUE])`: arguments and
//! annotations as IDSMatcher's without an output 1: ANNO (PAINT) becomes 1 in packets that match and 0 in others.
//!
//! The device finds literals: a fast pattern of each rule. When a batch is back, the host looks at what else rules say of the
//! packets in which some were found, and only then annotations are set: elements of the same path cannot look at them.
//!
//! - ROOM: for how many literals a batch has room for each of its packets, 1 to 1024 (4), beside one for each 64 bytes that are
//!   searched; without STREAM a literal counts once for a packet, and with FIRST the first one alone where rules are literals and
//!   nothing else. Where more are found, the host searches the batch, and so it does with packets whose headers contradict each
//!   other or are not known.
//!
//! With STREAM, what a flow's packet ended with travels before the payload of the next one. All packets of the path count then: none
//! of its elements before this one may check headers, and CHK_ANNO is not possible. `CheckIPHeader` before the Batcher is.
//!
//! Handlers: `count`, `matches`, `reset`, `rules`, `errors`, `summary`, `flows`, `strays`, `reload`, as IDSMatcher's, and `overflows` (batches for whose literals
//! there was no room). Packets do not wait for `reload`: a batch is searched for the rules that there were when it left.

use super::element::{Kind, Predicate, Shared, Table, tested};
use crate::args::{AnnoArg, Args, Failed};
use crate::elements::detection::following::Streamed;
use crate::elements::detection::inspector::Inspector;
use crate::elements::detection::rule_files::{RuleFile, rule_handlers};
use crate::handler::Handlers;
use crate::headers::payload::payload_of;
use crate::matcher::Automaton;
use crate::packet::anno;
use crate::rules::RuleSet;
use crate::wide::{Done, Images, Launching, Layout, Operation, PerDevice, Rows, Snapshot, Stage, Test, Wants};
use bifolio_compute::{Executor, Loaded};
use bifolio_kernels::packets::literal_match::{
    self, LIST_BYTES, Listed, LiteralMatch, LiteralSearch, Operands, UNSEARCHED,
};
use bifolio_kernels::packets::{Memory, NONE};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A batch has room for a literal beside ROOM for so many bytes of its packets. HTTP has a literal of Snort's rules, each counted
/// once, in 140 bytes of a packet of 1,514 bytes.
const BYTES_A_HIT: usize = 64;

/// Rules that elements share, and where they are on devices.
#[derive(Debug, Default)]
pub(super) struct Literals {
    file: Arc<RuleFile>,
    /// Their automatons.
    devices: PerDevice<Images<Arc<RuleSet>>>,
}

/// What one element has found.
#[derive(Debug, Default)]
struct Findings {
    inspector: Mutex<Inspector>,
    overflows: AtomicU64,
    /// FIRST.
    is_first: AtomicBool,
}

impl Findings {
    fn lock(&self) -> MutexGuard<'_, Inspector> {
        self.inspector.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The element's kind.
#[derive(Debug, Clone)]
pub(super) struct IdsMatcher {
    literals: Shared<Literals>,
    findings: Arc<Findings>,
    predicate: Predicate,
    room: u32,
    has_table: bool,
    streamed: Streamed,
}

impl Default for IdsMatcher {
    fn default() -> Self {
        let (literals, findings) = (Shared::default(), Arc::default());
        Self {
            literals,
            findings,
            predicate: Predicate::default(),
            room: 4,
            has_table: false,
            streamed: Streamed::default(),
        }
    }
}

impl Kind for IdsMatcher {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.key("ROOM", &mut self.room);
        {
            let mut inspector = self.findings.lock();
            inspector.configure(args);
            inspector.anno.get_or_insert(AnnoArg(anno::PAINT));
            self.findings.is_first.store(inspector.is_first, Ordering::Relaxed);
        }
        if !(1..=1024).contains(&self.room) {
            return Err(args.error_of("ROOM", "must be between 1 and 1024"));
        }
        self.streamed.configure(args)?;
        if self.has_table {
            return args.finish();
        }
        self.literals.get().file.configure(args)
    }

    fn operation(&self, predicate: Predicate) -> Arc<dyn Operation> {
        Arc::new(Self { predicate, ..self.clone() })
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let [counted, matched, reset, overflowed] = std::array::from_fn(|_| Arc::clone(&self.findings));
        handlers.free_read("count", move |_, _| Ok(counted.lock().count.to_string()));
        handlers.free_read("matches", move |_, _| Ok(matched.lock().matches()));
        handlers.free_write("reset", move |_, _| {
            reset.lock().reset();
            Ok(())
        });
        handlers.free_read("overflows", move |_, _| Ok(overflowed.overflows.load(Ordering::Relaxed).to_string()));
        self.streamed.handlers(handlers);
        let literals = self.literals.clone();
        rule_handlers(handlers, move || Arc::clone(&literals.get().file));
    }

    fn table(&self) -> Option<Table> {
        Some(self.literals.get())
    }

    fn adopts(&mut self) {
        self.has_table = true;
    }

    fn adopt(&mut self, table: Table) -> bool {
        self.literals.adopt(table)
    }
}

impl Operation for IdsMatcher {
    fn wants(&self, before: &[Wants]) -> Result<Wants, String> {
        let slots = self.predicate.or_unjudged(before).slots();
        let texts = self.streamed.following(&self.literals.get().file);
        if texts.is_some() && !slots.is_empty() {
            // Flows are followed when packets leave, and it is not known yet which of them take part.
            return Err("with STREAM, no element before GPUIDSMatcher in its path checks headers, and there is no CHK_ANNO; have that done before the Batcher".to_owned());
        }
        let payload = texts.is_none();
        Ok(Wants { network: true, payload, texts, looks_back: slots.clone(), slots, ..Wants::default() })
    }

    fn stage(&self, layout: &Layout, before: &[Wants], executor: &Executor) -> Result<Arc<dyn Stage>, String> {
        let written = self.findings.lock().anno.map(|AnnoArg(at)| at);
        if let Some(at) = written.filter(|at| layout.slot(*at) != NONE) {
            return Err(format!(
                "annotation {at} is set by GPUIDSMatcher when a batch is back, and another element of the path has it, too; give it another ANNO"
            ));
        }
        let loaded = executor.kernels().load(&LiteralMatch).map_err(|error| error.to_string())?;
        let (literals, device) = (self.literals.get(), executor.device());
        literals.file.is_for_devices.store(true, Ordering::Relaxed);
        let on_device = literals.devices.get(device, || Images::new(device).map_err(|error| error.to_string()))?;
        Ok(Arc::new(SearchStage {
            literals,
            findings: Arc::clone(&self.findings),
            on_device,
            test: self.predicate.or_unjudged(before).test(layout),
            room: self.room,
            loaded,
        }))
    }
}

/// It in a path.
#[derive(Debug)]
struct SearchStage {
    literals: Arc<Literals>,
    findings: Arc<Findings>,
    on_device: Arc<Images<Arc<RuleSet>>>,
    test: Option<Test>,
    room: u32,
    loaded: Result<Loaded, String>,
}

/// A list of hits as a device leaves it, made by the CPU.
struct List<'a> {
    bytes: &'a mut [u8],
    count: u32,
}

impl List<'_> {
    fn push(&mut self, packet: usize, what: u32) {
        let hit = (packet as u64) << 32 | u64::from(what);
        let at = literal_match::list_bytes(self.count) as usize;
        match self.bytes.get_mut(at..at + 8) {
            Some(place) => {
                place.copy_from_slice(&hit.to_ne_bytes());
                self.count += 1;
            }
            None => self.bytes[4..8].copy_from_slice(&1_u32.to_ne_bytes()),
        }
    }

    fn finish(self) {
        self.bytes[..4].copy_from_slice(&self.count.to_ne_bytes());
    }
}

/// What is searched of a packet; nothing: the host does that, as headers contradict each other.
fn searched<'a>(rows: &Rows<'a>, packet: usize) -> Option<&'a [u8]> {
    if rows.layout().has_texts() {
        return Some(rows.text(packet));
    }
    let row = rows.row(packet);
    row.span().get(payload_of(row.network()?, row.span())?)
}

impl SearchStage {
    /// Which hits are needed. Of a literal that ends in what is before a payload, and then in it, the second one counts.
    fn listed(&self, rules: &RuleSet, has_texts: bool) -> Listed {
        match (has_texts, self.findings.is_first.load(Ordering::Relaxed) && rules.are_literals()) {
            (true, _) => Listed::All,
            (false, true) => Listed::First,
            (false, false) => Listed::Once,
        }
    }

    fn takes_part(&self, row: &[u8]) -> bool {
        self.test.is_none_or(|test| row[test.slot as usize] == test.value)
    }
}

impl Stage for SearchStage {
    fn refusal(&self) -> Option<String> {
        self.loaded.as_ref().err().cloned()
    }

    fn extra_bytes(&self, count: usize, span_bytes: usize) -> u64 {
        let room = (count as u32).saturating_mul(self.room).saturating_add((span_bytes / BYTES_A_HIT) as u32);
        literal_match::list_bytes(room.max(64))
    }

    fn snapshot(&self, _: usize) -> Snapshot {
        Snapshot(self.literals.file.get().1.map(|rules| -> Arc<dyn std::any::Any + Send + Sync> { rules }))
    }

    fn on_cpu(&self, rows: &mut Rows<'_>, snapshot: &Snapshot, extra: &mut [u8]) {
        extra[..LIST_BYTES as usize].fill(0);
        let Some(rules) = snapshot.get::<RuleSet>() else { return };
        let automaton = rules.automaton();
        let ranks = automaton.ranks();
        let mut list = List { bytes: extra, count: 0 };
        let listed = self.listed(&rules, rows.layout().has_texts());
        // Of each literal, behind the packet that had it last.
        let mut had = vec![0; automaton.patterns()];
        for packet in 0..rows.len() {
            if !rows.takes_part(packet, self.test) {
                continue;
            }
            let Some(payload) = searched(rows, packet) else {
                list.push(packet, UNSEARCHED);
                continue;
            };
            let _ = automaton.scan(payload, |hit| {
                let before = std::mem::replace(&mut had[hit.pattern as usize], packet + 1);
                if listed == Listed::All || before != packet + 1 {
                    list.push(packet, Automaton::packed(&ranks, hit));
                }
                if listed == Listed::First { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        list.finish();
    }

    unsafe fn launch(&self, launching: &Launching<'_>) -> bifolio_device::Result<()> {
        let Ok(loaded) = &self.loaded else { return Ok(()) };
        let Some(rules) = launching.snapshot.get::<RuleSet>() else { return Ok(()) };
        // Texts are payloads already.
        let (rows, payload) = launching.texts.map_or((launching.rows, true), |texts| (texts, false));
        let search = LiteralSearch {
            rows: tested(rows, self.test),
            payload,
            list: self.listed(&rules, launching.texts.is_some()),
            first: None,
        };
        let memory = Memory { input: launching.input, output: launching.output };
        let hits = launching.output.part(launching.extra_at, launching.extra_bytes)?;
        let is_it = |there: &Arc<RuleSet>| Arc::ptr_eq(there, &rules);
        let make = || Ok((Arc::clone(&rules), rules.automaton().words()));
        self.on_device.launch(launching.stream, is_it, make, |_, image| {
            // SAFETY: the caller's promise; the image lives as long as the stage, and is written only when nobody reads it.
            unsafe {
                literal_match::launch(launching.stream, loaded.module(), &search, Operands { memory, image, hits })
            }
        })
    }

    fn finish(&self, done: &mut Done<'_>) {
        let rules = done.snapshot.get::<RuleSet>();
        let hits = literal_match::hits(done.extra);
        self.findings.overflows.fetch_add(hits.is_none().into(), Ordering::Relaxed);
        let mut inspector = self.findings.lock();
        inspector.set_rules(rules.clone());
        let Some(rules) = rules else { return };
        let automaton = rules.automaton();
        let mut hits = hits.as_deref().map(|hits| hits.iter().peekable());
        let mut found = Vec::new();
        let texts = done.texts;
        for at in 0..done.packets.len() {
            let (_, row) = done.packet(at);
            // The slot is as this stage has seen it: nobody behind it may write what it tests.
            if !self.takes_part(row) {
                continue;
            }
            done.fetch(at);
            let (packet, _) = done.packet(at);
            let before = texts.map_or(&[][..], |texts| texts.before(at));
            let Some(hits) = &mut hits else {
                inspector.inspect(packet, before, None);
                continue;
            };
            found.clear();
            // Of a packet whose IP header nobody has marked, all bytes are searched.
            let mut is_searched = texts.map_or_else(|| packet.network_header().is_some(), |texts| texts.is_there(at));
            while let Some(hit) = hits.next_if(|hit| (**hit >> 32) as usize == at) {
                match automaton.hit(*hit as u32) {
                    // What ends before the payload was found in the packet before.
                    Some(hit) if hit.end > before.len() => found.push(hit),
                    Some(_) => {}
                    None => is_searched = false,
                }
            }
            inspector.inspect(packet, before, is_searched.then_some(&found));
        }
    }
}
