//! A list of routes, of which every lookup looks at all.
//!
//! The answer is that of Click's list also for masks that are no prefixes: a route counts over an earlier one that has the
//! address too if its mask has at least the other's bits. A route that is removed leaves its place to the next new one, the
//! first free place first.
//!
//! Readers look again when routes changed meanwhile, so that they never see the half of a change.

use super::route::{NextHop, Route};
use super::table::{Edit, Refusal, Table};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const SEGMENT: usize = 1 << 8;
const SEGMENTS: usize = 1 << 12;
/// How often a reader looks again before it keeps writers out.
const ATTEMPTS: usize = 16;

/// A route as packets read it: address and mask, gateway and output.
#[derive(Debug)]
struct Cell {
    prefix: AtomicU64,
    hop: AtomicU64,
}

impl Cell {
    /// An address with a bit outside of its mask, so that no address matches.
    const NOTHING: u64 = 1 << 32;

    fn set(&self, route: Option<&Route>) {
        let prefix = route.map_or(Self::NOTHING, |route| u64::from(route.address) << 32 | u64::from(route.mask));
        self.prefix.store(prefix, Ordering::Relaxed);
        self.hop.store(route.map_or(NextHop::NONE, Route::hop).pack(), Ordering::Relaxed);
    }
}

type Segment = Box<[Cell; SEGMENT]>;

/// Routes in a list. Up to 1,048,576; meant for a few.
#[derive(Debug)]
pub struct LinearTable {
    /// Odd while cells change.
    version: AtomicU32,
    cells: Box<[OnceLock<Segment>]>,
    used: AtomicUsize,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    routes: Vec<Option<Route>>,
    free: BinaryHeap<Reverse<usize>>,
    places: HashMap<(u32, u32), usize>,
    changed: Vec<usize>,
}

impl Default for LinearTable {
    fn default() -> Self {
        let cells = (0..SEGMENTS).map(|_| OnceLock::new()).collect();
        Self { version: AtomicU32::new(0), cells, used: AtomicUsize::new(0), writer: Mutex::default() }
    }
}

impl LinearTable {
    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn find(&self, address: u32) -> NextHop {
        let mut left = self.used.load(Ordering::Acquire);
        let (mut mask, mut hop) = (0, NextHop::NONE.pack());
        for segment in &self.cells {
            let Some(cells) = segment.get() else { break };
            for cell in &cells[..left.min(SEGMENT)] {
                let prefix = cell.prefix.load(Ordering::Relaxed);
                let cell_mask = prefix as u32;
                if address & cell_mask == (prefix >> 32) as u32 && cell_mask & mask == mask {
                    (mask, hop) = (cell_mask, cell.hop.load(Ordering::Relaxed));
                }
            }
            if left <= SEGMENT {
                break;
            }
            left -= SEGMENT;
        }
        NextHop::unpack(hop)
    }

    #[inline]
    fn read(&self, mut look: impl FnMut()) {
        for _ in 0..ATTEMPTS {
            let before = self.version.load(Ordering::Acquire);
            look();
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return;
            }
        }
        let _writer = self.writer();
        look();
    }

    fn publish(&self, writer: &mut Writer) {
        if writer.changed.is_empty() {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let empty =
            || Box::new([const { Cell { prefix: AtomicU64::new(Cell::NOTHING), hop: AtomicU64::new(0) } }; SEGMENT]);
        for place in writer.changed.drain(..) {
            let cell = &self.cells[place / SEGMENT].get_or_init(empty)[place % SEGMENT];
            cell.set(writer.routes.get(place).and_then(Option::as_ref));
        }
        self.used.store(writer.routes.len(), Ordering::Release);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

impl Table for LinearTable {
    fn edit(&self) -> Box<dyn Edit + '_> {
        Box::new(Editing { table: self, writer: self.writer() })
    }

    #[inline]
    fn lookup(&self, address: u32) -> NextHop {
        let mut hop = NextHop::NONE;
        self.read(|| hop = self.find(address));
        hop
    }

    fn lookup_batch(&self, addresses: &[u32], hops: &mut [NextHop]) {
        self.read(|| {
            for (hop, &address) in hops.iter_mut().zip(addresses) {
                *hop = self.find(address);
            }
        });
    }
}

#[derive(Debug)]
struct Editing<'a> {
    table: &'a LinearTable,
    writer: MutexGuard<'a, Writer>,
}

impl Edit for Editing<'_> {
    fn insert(&mut self, route: Route, replace: bool) -> Result<Option<Route>, Refusal> {
        let Writer { routes, free, places, changed } = &mut *self.writer;
        if let Some(&place) = places.get(&(route.address, route.mask)) {
            if !replace {
                return Err(routes[place].map_or(Refusal::Missing, Refusal::Exists));
            }
            changed.push(place);
            return Ok(routes[place].replace(route));
        }
        if free.is_empty() && routes.len() == SEGMENT * SEGMENTS {
            return Err(Refusal::Full);
        }
        let place = free.pop().map_or(routes.len(), |Reverse(place)| place);
        if place == routes.len() {
            routes.push(None);
        }
        routes[place] = Some(route);
        places.insert((route.address, route.mask), place);
        changed.push(place);
        Ok(None)
    }

    fn remove(&mut self, route: &Route) -> Result<Route, Refusal> {
        let Writer { routes, free, places, changed } = &mut *self.writer;
        let place = *places.get(&(route.address, route.mask)).ok_or(Refusal::Missing)?;
        let old = routes[place].filter(|old| route.removes(old)).ok_or(Refusal::Missing)?;
        routes[place] = None;
        places.remove(&(route.address, route.mask));
        free.push(Reverse(place));
        changed.push(place);
        Ok(old)
    }

    fn clear(&mut self) {
        // What was there before a clear that is not published yet is still to be taken out.
        let mut changed = std::mem::take(&mut self.writer.changed);
        changed.extend(0..self.writer.routes.len());
        *self.writer = Writer { changed, ..Writer::default() };
    }

    fn routes(&self) -> Vec<Route> {
        self.writer.routes.iter().flatten().copied().collect()
    }
}

impl Drop for Editing<'_> {
    fn drop(&mut self) {
        self.table.publish(&mut self.writer);
    }
}
