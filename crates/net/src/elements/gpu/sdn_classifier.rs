//! GPUSDNClassifier: sorts packets on a device, by rules over many fields.
//!
//! `GPUSDNClassifier([RULE, ...,] [keywords RULES, MISS, ANNO, TABLE, CHK_ANNO, CHK_VALUE])`: rules as SDNClassifier's. The PORT of the
//! rule that decides is written into an annotation, which a Dispatcher can look at.
//!
//! - RULE, RULES: as SDNClassifier's; a PORT is 0 to 254.
//! - MISS: what is written where no rule matches (255).
//! - ANNO: the annotation of a byte (PAINT).
//!
//! Rules change between batches. The Ethernet header travels only where a rule looked at it when the router began; rules
//! that are added later and look at it are refused then.
//!
//! Handlers: `add`, `remove`, `table`, `rules`, `info`, as SDNClassifier's.

use super::element::{Kind, Predicate, Shared, Table, tested};
use crate::args::{AnnoArg, Args, Failed};
use crate::elements::classify::flow_rules::{info, of_text, remove, rules_of};
use crate::flowspace::{FlowTable, Key, Rule};
use crate::handler::Handlers;
use crate::packet::anno;
use crate::wide::{Images, Launching, Layout, Operation, PerDevice, Row, Rows, Snapshot, Stage, Test, Wants};
use bifolio_compute::{Executor, Loaded};
use bifolio_device::{Error, ErrorKind};
use bifolio_kernels::packets::{self, Classify, FlowClassify, Memory, NONE};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What is written where no rule matches, if nothing else is asked for.
const MISS: u8 = 255;
/// How many ports there can be.
const PORTS: usize = 255;
/// Words of an image that launches need.
const HEAD: usize = packets::flow::HEADER_WORDS;
/// Packets that are classified together.
const BURST: usize = 64;

/// Rules that elements share.
#[derive(Debug, Default)]
pub(super) struct Flows {
    table: RwLock<FlowTable>,
    /// Whether rows lack what rules of the link layer look at.
    has_no_link: AtomicBool,
    /// How often rules may have changed.
    changes: AtomicU64,
    devices: PerDevice<Images<Version>>,
}

impl Flows {
    fn read(&self) -> RwLockReadGuard<'_, FlowTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, FlowTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, text: &str) -> Result<(), String> {
        let rules = of_text(text, PORTS)?;
        if let Some(rule) = rules.iter().find(|rule| rule.looks_at_link() && self.has_no_link.load(Ordering::Acquire)) {
            return Err(format!("rule '{rule}' looks at the Ethernet header, which does not travel in this path"));
        }
        self.change(|table| table.add(&rules))
    }

    /// The rules as a device has them, after at least so many changes.
    fn image(&self, changes: u64) -> bifolio_device::Result<(Version, Vec<u32>)> {
        let image = self.read().image().map_err(|error| Error::new(ErrorKind::Unsupported, error))?;
        Ok((Version { changes, head: image[..HEAD.min(image.len())].to_vec() }, image))
    }

    fn change<R>(&self, work: impl FnOnce(&mut FlowTable) -> R) -> R {
        let mut table = self.write();
        let result = work(&mut table);
        self.changes.fetch_add(1, Ordering::Release);
        result
    }
}

/// The element's kind.
#[derive(Debug, Clone)]
pub(super) struct SdnClassifier {
    flows: Shared<Flows>,
    predicate: Predicate,
    anno: usize,
    miss: u8,
}

impl Default for SdnClassifier {
    fn default() -> Self {
        Self { flows: Shared::default(), predicate: Predicate::default(), anno: anno::PAINT, miss: MISS }
    }
}

impl Kind for SdnClassifier {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut path, mut anno) = (String::new(), AnnoArg::<1>(self.anno));
        args.key("RULES", &mut path).key("MISS", &mut self.miss).key("ANNO", &mut anno);
        self.anno = anno.0;
        let rules = rules_of(args, &path, PORTS);
        args.finish()?;
        self.flows.get().write().add(&rules).map_err(|error| args.error(error))
    }

    fn operation(&self, predicate: Predicate) -> Arc<dyn Operation> {
        Arc::new(Self { predicate, ..self.clone() })
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let [shown, counted, told, added, removed] = std::array::from_fn(|_| self.flows.clone());
        handlers.free_read("table", move |_, _| Ok(shown.get().read().to_string()));
        handlers.free_read("rules", move |_, _| Ok(counted.get().read().count().to_string()));
        handlers.free_read("info", move |_, _| Ok(info(&told.get().read())));
        handlers.free_write("add", move |_, text| added.get().add(text));
        handlers.free_write("remove", move |_, text| {
            let rules = of_text(text, PORTS)?;
            removed.get().change(|table| remove(table, &rules))
        });
    }

    fn table(&self) -> Option<Table> {
        Some(self.flows.get())
    }

    fn adopt(&mut self, table: Table) -> bool {
        self.flows.adopt(table)
    }
}

impl Operation for SdnClassifier {
    fn wants(&self, before: &[Wants]) -> Result<Wants, String> {
        let mut slots = self.predicate.or_unjudged(before).slots();
        slots.push(self.anno);
        let link = self.flows.get().read().rules().iter().any(Rule::looks_at_link);
        Ok(Wants { link, network: true, transport: true, slots, writes: vec![self.anno], ..Wants::default() })
    }

    fn stage(&self, layout: &Layout, before: &[Wants], executor: &Executor) -> Result<Arc<dyn Stage>, String> {
        let loaded = executor.kernels().load(&FlowClassify).map_err(|error| error.to_string())?;
        let flows = self.flows.get();
        if layout.link() == NONE {
            flows.has_no_link.store(true, Ordering::Release);
        }
        let (test, slot) = (self.predicate.or_unjudged(before).test(layout), layout.slot(self.anno));
        let device = executor.device();
        let on_device = flows.devices.get(device, || Images::new(device).map_err(|error| error.to_string()))?;
        Ok(Arc::new(ClassifierStage { flows, on_device, test, slot, miss: self.miss, loaded }))
    }
}

/// What an image of the rules is of.
#[derive(Debug)]
pub(super) struct Version {
    /// The number of changes that it has.
    changes: u64,
    /// The image's first words, which launches need.
    head: Vec<u32>,
}

/// It in a path.
#[derive(Debug)]
struct ClassifierStage {
    flows: Arc<Flows>,
    on_device: Arc<Images<Version>>,
    test: Option<Test>,
    slot: u32,
    miss: u8,
    loaded: Result<Loaded, String>,
}

/// The fields of a packet in a row.
#[inline]
fn key(row: Row<'_>) -> Key {
    Key::of_slices(row.link(), row.network(), row.captured(), row.transport(), row.byte_13())
}

impl Stage for ClassifierStage {
    fn refusal(&self) -> Option<String> {
        self.loaded.as_ref().err().cloned()
    }

    fn on_cpu(&self, rows: &mut Rows<'_>, _: &Snapshot, _: &mut [u8]) {
        let table = self.flows.read();
        let (mut keys, mut found) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
        for start in (0..rows.len()).step_by(BURST) {
            let end = rows.len().min(start + BURST);
            keys.clear();
            keys.extend((start..end).map(|packet| key(rows.row(packet))));
            table.classify(&keys, &mut found);
            for (packet, found) in (start..end).zip(&found) {
                if rows.takes_part(packet, self.test) {
                    let port = found.and_then(|port| u8::try_from(port).ok());
                    rows.set_slot(packet, self.slot, port.unwrap_or(self.miss));
                }
            }
        }
    }

    unsafe fn launch(&self, launching: &Launching<'_>) -> bifolio_device::Result<()> {
        let Ok(loaded) = &self.loaded else { return Ok(()) };
        let rows = tested(launching.rows, self.test);
        let memory = Memory { input: launching.input, output: launching.output };
        let changes = self.flows.changes.load(Ordering::Acquire);
        let is_it = |there: &Version| there.changes == changes;
        self.on_device.launch(
            launching.stream,
            is_it,
            || self.flows.image(changes),
            |version, image| {
                let params = Classify::new(rows, self.slot, self.miss.into(), NONE, &version.head)?;
                // SAFETY: the caller's promise; the image lives as long as the stage, and is written only when nobody reads it.
                unsafe { packets::launch(launching.stream, loaded.module(), &params, memory, &[image]) }
            },
        )
    }
}
