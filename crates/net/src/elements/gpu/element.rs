//! Elements that are computed in a path, whatever they compute: `GPU...([...] [keywords CHK_ANNO, CHK_VALUE])`.
//!
//! Wide input and output. They stand between HostToDeviceMemcpy and DeviceToHostMemcpy, and say what of packets they look at.
//!
//! - CHK_ANNO: an annotation of a byte. Only packets in which it is CHK_VALUE take part; the others pass as they are. An
//!   element before it in the path may set it. By default, those take part of which no element before it has said that they
//!   are not to go on (annotation 18 is 0).
//! - CHK_VALUE: 0 to 255; 0.
//! - TABLE (of elements with routes, rules or an association): another element of this class, whose table this one has as well. It has none of
//!   its own then, and handlers of both are those of the one table. So paths of several threads share memory on the device.

use crate::Log;
use crate::args::{AnnoArg, Args, ElementRef, Failed};
use crate::element::{Element, downcast};
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;
use crate::wide::{Layout, Operation, Test, Wants};
use bifolio_kernels::packets::PacketRows;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// Which packets take part: those with a value in an annotation of a byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Predicate(Option<(usize, u8)>);

impl Predicate {
    /// Where the configuration says nothing, packets without a verdict take part, if elements before give some.
    pub(super) fn or_unjudged(self, before: &[Wants]) -> Self {
        let is_judged = before.iter().any(|wants| wants.judges);
        Self(self.0.or(is_judged.then_some((anno::VERDICT, 0))))
    }

    /// The annotation that it looks at.
    pub(super) fn slots(self) -> Vec<usize> {
        self.0.iter().map(|(annotation, _)| *annotation).collect()
    }

    /// The same in rows.
    pub(super) fn test(self, layout: &Layout) -> Option<Test> {
        self.0.map(|(annotation, value)| Test { slot: layout.slot(annotation), value })
    }
}

/// Rows of which only those take part that a test says.
pub(super) fn tested(rows: PacketRows, test: Option<Test>) -> PacketRows {
    test.map_or(rows, |test| PacketRows { test: test.slot, test_value: test.value.into(), ..rows })
}

/// What one of these elements is.
pub(super) trait Kind: Default + Send + 'static {
    /// Whether it can leave packets out.
    const CHECKS: bool = true;
    /// Takes its configuration: all that is left of it.
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed>;
    /// What it brings to a path.
    fn operation(&self, predicate: Predicate) -> Arc<dyn Operation>;
    /// Its handlers, none of which enters the element.
    fn handlers(&self, handlers: &mut Handlers) {
        let _ = handlers;
    }
    /// The table that elements of this kind can share.
    fn table(&self) -> Option<Table> {
        None
    }
    /// It will have the table of another element: its configuration says nothing of one.
    fn adopts(&mut self) {}
    /// Takes the table of another element instead of its own; whether it is one that it can take.
    fn adopt(&mut self, table: Table) -> bool {
        let _ = table;
        false
    }
    /// Goes on where an element of the same name was in the router before, which had this table.
    fn inherit(&self, table: Table) {
        let _ = table;
    }
}

/// A table that elements share, whatever its type.
pub(super) type Table = Arc<dyn Any + Send + Sync>;

/// A table that another one may take the place of before the router runs; clones are of one element.
#[derive(Debug, Default)]
pub(super) struct Shared<T>(Arc<Mutex<Arc<T>>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// The table.
    pub(super) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another one takes its place.
    pub(super) fn set(&self, table: Arc<T>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = table;
    }

    /// The same for one of a type that is not known; whether it is one of these.
    pub(super) fn adopt(&self, table: Table) -> bool {
        table.downcast().map(|table| self.set(table)).is_ok()
    }
}

/// The same with its type forgotten.
trait AnyKind: Send {
    fn checks(&self) -> bool;
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed>;
    fn operation(&self, predicate: Predicate) -> Arc<dyn Operation>;
    fn handlers(&self, handlers: &mut Handlers);
    fn table(&self) -> Option<Table>;
    fn adopts(&mut self);
    fn adopt(&mut self, table: Table) -> bool;
    fn inherit(&self, table: Table);
}

impl<K: Kind> AnyKind for K {
    fn checks(&self) -> bool {
        K::CHECKS
    }

    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        Kind::configure(self, args)
    }

    fn operation(&self, predicate: Predicate) -> Arc<dyn Operation> {
        Kind::operation(self, predicate)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        Kind::handlers(self, handlers);
    }

    fn table(&self) -> Option<Table> {
        Kind::table(self)
    }

    fn adopts(&mut self) {
        Kind::adopts(self);
    }

    fn adopt(&mut self, table: Table) -> bool {
        Kind::adopt(self, table)
    }

    fn inherit(&self, table: Table) {
        Kind::inherit(self, table);
    }
}

/// The element: one type for all, so that a Batcher finds them.
pub(super) struct GpuElement {
    kind: Box<dyn AnyKind>,
    predicate: Predicate,
    /// Whose table it has.
    lender: Option<ElementRef>,
    is_in_path: bool,
}

/// In the place of a default: classes name their kinds.
#[derive(Default)]
pub(super) struct Unmade;

impl Element for Unmade {}

/// Makes an element of a kind.
pub(super) fn of<K: Kind>() -> Box<dyn Element> {
    Box::new(GpuElement { kind: Box::<K>::default(), predicate: Predicate::default(), lender: None, is_in_path: false })
}

impl GpuElement {
    /// What it brings to the path in which it now is.
    pub(super) fn join(&mut self) -> Arc<dyn Operation> {
        self.is_in_path = true;
        self.kind.operation(self.predicate)
    }
}

impl Element for GpuElement {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut annotation, mut value) = (None::<AnnoArg<1>>, 0_u8);
        if self.kind.checks() {
            args.key("CHK_ANNO", &mut annotation).key("CHK_VALUE", &mut value);
        }
        self.predicate = Predicate(annotation.map(|AnnoArg(at)| (at, value)));
        if self.kind.table().is_some() {
            args.key("TABLE", &mut self.lender);
            if self.lender.is_some() {
                self.kind.adopts();
            }
        }
        self.kind.configure(args)
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let Some(ElementRef(lender)) = self.lender else { return Ok(()) };
        let table =
            cx.with(lender, |other: &mut Self, _| if other.lender.is_none() { other.kind.table() } else { None });
        if table.flatten().is_some_and(|table| self.kind.adopt(table)) {
            return Ok(());
        }
        let lender = cx.router().declaration(lender);
        Err(format!("TABLE: '{lender}' has no table of its own that this element can share"))
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, carrier: crate::Packet) {
        debug_assert!(self.is_in_path, "batches come from a Batcher, whose path this is in");
        cx.emit(0, carrier);
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let own = |element: &Self| if element.lender.is_none() { element.kind.table() } else { None };
        if let (Some(_), Some(table)) = (own(self), downcast::<Self>(old).and_then(|old| own(old))) {
            self.kind.inherit(table);
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        self.kind.handlers(handlers);
    }
}
