//! Gateways and outputs, each pair once, by a small code that tables hold instead of them.
//!
//! Code 0 is [`NextHop::NONE`]. Packets read [`Hops`]; [`Book`] is the writer's side, which counts the routes of each pair.

use super::epoch::Epoch;
use super::route::NextHop;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const SEGMENT: usize = 1 << 12;
const SEGMENTS: usize = 1 << 12;

/// How many codes wait before an epoch makes them free.
const WAITING: usize = 1024;

type Segment = Box<[AtomicU64]>;

/// What codes mean.
#[derive(Debug)]
pub(super) struct Hops(Box<[OnceLock<Segment>]>);

impl Default for Hops {
    fn default() -> Self {
        let hops = Self((0..SEGMENTS).map(|_| OnceLock::new()).collect());
        hops.set(0, NextHop::NONE);
        hops
    }
}

impl Hops {
    /// The pair with a code; none for a code that never was.
    #[inline]
    pub(super) fn get(&self, code: u32) -> NextHop {
        let code = code as usize;
        match self.0.get(code / SEGMENT).and_then(OnceLock::get) {
            Some(segment) => NextHop::unpack(segment[code % SEGMENT].load(Ordering::Relaxed)),
            None => NextHop::NONE,
        }
    }

    fn set(&self, code: u32, hop: NextHop) {
        let code = code as usize;
        let none = || (0..SEGMENT).map(|_| AtomicU64::new(NextHop::NONE.pack())).collect();
        self.0[code / SEGMENT].get_or_init(none)[code % SEGMENT].store(hop.pack(), Ordering::Relaxed);
    }
}

/// Which pairs have codes.
#[derive(Debug)]
pub(super) struct Book {
    codes: HashMap<NextHop, (u32, u32)>,
    /// The first code that never was.
    next: u32,
    /// Codes past this one do not fit into the table.
    max: u32,
    free: Vec<u32>,
    /// Without routes, and out of the table at the next publication.
    released: Vec<u32>,
    /// Out of the table; readers may have them.
    waiting: Vec<u32>,
}

impl Book {
    /// Codes up to `max`.
    pub(super) fn new(max: u32) -> Self {
        let max = max.min((SEGMENT * SEGMENTS) as u32 - 1);
        let (free, released, waiting) = (Vec::new(), Vec::new(), Vec::new());
        Self { codes: HashMap::new(), next: 1, max, free, released, waiting }
    }

    /// One more than the largest code that ever was.
    pub(super) fn codes(&self) -> u32 {
        self.next
    }

    /// All pairs that routes have.
    pub(super) fn pairs(&self) -> impl Iterator<Item = NextHop> {
        self.codes.keys().copied()
    }

    /// The code of a pair, for one more route; nothing where all codes are taken.
    pub(super) fn acquire(&mut self, hop: NextHop, hops: &Hops, epoch: &Epoch) -> Option<u32> {
        if let Some((code, routes)) = self.codes.get_mut(&hop) {
            *routes += 1;
            return Some(*code);
        }
        if self.free.is_empty() && (self.waiting.len() >= WAITING || self.next > self.max) {
            epoch.advance();
            self.free.append(&mut self.waiting);
        }
        let code = match self.free.pop() {
            Some(code) => code,
            None if self.next > self.max => return None,
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        hops.set(code, hop);
        self.codes.insert(hop, (code, 1));
        Some(code)
    }

    /// One route less for a pair.
    pub(super) fn release(&mut self, hop: NextHop) {
        let Some((code, routes)) = self.codes.get_mut(&hop) else { return };
        *routes -= 1;
        if *routes == 0 {
            self.released.push(*code);
            self.codes.remove(&hop);
        }
    }

    /// No route at all.
    pub(super) fn release_all(&mut self) {
        self.released.extend(self.codes.drain().map(|(_, (code, _))| code));
    }

    /// The table does not have released codes any more.
    pub(super) fn published(&mut self) {
        self.waiting.append(&mut self.released);
    }
}
