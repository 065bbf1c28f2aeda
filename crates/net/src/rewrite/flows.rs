//! Flows, found from both sides, of all rewriters that share a capacity.
//!
//! A flow is guaranteed for a while after each of its packets, and kept for longer where there is room. A new flow in a
//! full set takes the place of the one that ends first among those that are not guaranteed; there being none, it is not
//! taken. Times are in milliseconds of the caller's clock.

use std::fmt;

use hashbrown::HashTable;

use super::queue::Queue;
use super::taken::{Range, Taken, Variable};
use super::tcp::Deltas;
use crate::headers::{FlowId, HashKey};

/// A table of a set in which flows are found; each rewriter has one or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapId(u32);

/// Who made flows, such as an input of a rewriter; they are counted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerId(u32);

/// A flow that was found, and its direction. It is good until the set is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    slot: u32,
    /// Whether the packet is a reply.
    pub reply: bool,
}

/// What a new flow is made of.
#[derive(Debug, Clone, Copy)]
pub struct NewFlow {
    /// Where it is found.
    pub map: MapId,
    /// Who makes it.
    pub owner: OwnerId,
    /// How its packets come.
    pub flow: FlowId,
    /// What they become.
    pub rewritten: FlowId,
    /// Outputs of packets and of replies.
    pub outputs: [u16; 2],
    /// The protocol, 0 for all.
    pub protocol: u8,
    /// What was chosen from a range.
    pub variable: Option<Variable>,
}

/// A flow: both directions.
#[derive(Debug)]
pub struct Flow {
    /// How packets of both directions come.
    keys: [FlowId; 2],
    outputs: [u16; 2],
    map: MapId,
    owner: OwnerId,
    /// One's complement sums of what packets of the flow gain: by their addresses, by addresses and ports.
    pub(super) address_delta: u16,
    pub(super) transport_delta: u16,
    /// The protocol, 0 for all.
    pub protocol: u8,
    /// Bits about the state of the connection.
    pub(super) state: u8,
    /// An annotation for replies.
    pub reply_anno: u8,
    guaranteed: bool,
    place: u32,
    queued_ms: u64,
    guaranteed_ms: u64,
    expiry_ms: u64,
    deltas: Option<Box<Deltas>>,
}

impl Flow {
    /// How packets of a direction come.
    #[inline]
    pub fn key(&self, reply: bool) -> FlowId {
        self.keys[usize::from(reply)]
    }

    /// What they become.
    #[inline]
    pub fn rewritten(&self, reply: bool) -> FlowId {
        self.key(!reply).reverse()
    }

    /// Where they go.
    #[inline]
    pub fn output(&self, reply: bool) -> usize {
        usize::from(self.outputs[usize::from(reply)])
    }

    /// Who made it.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// When it may end, in milliseconds.
    pub fn expiry_ms(&self) -> u64 {
        self.expiry_ms
    }

    /// How its sequence numbers moved.
    pub fn deltas(&self) -> Option<&Deltas> {
        self.deltas.as_deref()
    }

    /// The same, for changes.
    pub fn deltas_mut(&mut self) -> &mut Deltas {
        self.deltas.get_or_insert_default()
    }

    /// What a change of a direction adds to checksums: of the addresses, of addresses and ports.
    #[inline]
    pub(super) fn checksum_deltas(&self, reply: bool) -> (u16, u16) {
        if reply { (!self.address_delta, !self.transport_delta) } else { (self.address_delta, self.transport_delta) }
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    flows: u32,
    failures: u32,
}

#[derive(Default)]
struct Map {
    index: HashTable<u32>,
    hash_key: HashKey,
    taken: Taken,
}

/// All flows of rewriters that share a capacity.
pub struct FlowSet {
    flows: Vec<Option<Flow>>,
    free: Vec<u32>,
    maps: Vec<Map>,
    owners: Vec<Counts>,
    /// Those that are not guaranteed, and those that are; by what the queues know.
    queues: [Queue; 2],
    capacity: usize,
    /// How many flows came and went.
    changes: u64,
}

impl Default for FlowSet {
    fn default() -> Self {
        let (flows, free, maps, owners) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { flows, free, maps, owners, queues: Default::default(), capacity: i32::MAX as usize, changes: 0 }
    }
}

impl FlowSet {
    /// An empty table.
    pub fn add_map(&mut self) -> MapId {
        self.maps.push(Map { hash_key: HashKey::random(), ..Map::default() });
        MapId(self.maps.len() as u32 - 1)
    }

    /// Somebody who makes flows.
    pub fn add_owner(&mut self) -> OwnerId {
        self.owners.push(Counts::default());
        OwnerId(self.owners.len() as u32 - 1)
    }

    /// How many flows an owner has.
    pub fn count(&self, owner: OwnerId) -> u32 {
        self.owners[owner.0 as usize].flows
    }

    /// How many flows an owner could not make.
    pub fn failures(&self, owner: OwnerId) -> u32 {
        self.owners[owner.0 as usize].failures
    }

    /// Counts a flow that could not be made.
    pub fn count_failure(&mut self, owner: OwnerId) {
        self.owners[owner.0 as usize].failures += 1;
    }

    /// How many flows came and went so far: what was found before is good while this stays the same.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.queues[0].len() + self.queues[1].len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many flows there may be.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets how many flows there may be; [`Self::shrink`] gives up what is too much.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// The flow of packets that come like this.
    #[inline]
    pub fn find(&self, map: MapId, key: FlowId) -> Option<Entry> {
        let map = &self.maps[map.0 as usize];
        let found = *map.index.find(key.hash_with(map.hash_key), |&entry| self.key(entry) == Some(key))?;
        Some(Entry { slot: found >> 1, reply: found & 1 != 0 })
    }

    #[inline]
    fn key(&self, entry: u32) -> Option<FlowId> {
        self.flows.get((entry >> 1) as usize)?.as_ref().map(|flow| flow.key(entry & 1 != 0))
    }

    /// A flow that was found.
    #[inline]
    pub fn flow(&self, entry: Entry) -> &Flow {
        self.flows[entry.slot as usize].as_ref().expect("a flow that was found is there until the set changes")
    }

    /// A flow that was found, for changes.
    #[inline]
    pub fn flow_mut(&mut self, entry: Entry) -> &mut Flow {
        self.flows[entry.slot as usize].as_mut().expect("a flow that was found is there until the set changes")
    }

    /// All flows of a table.
    pub fn flows(&self, map: MapId) -> impl Iterator<Item = &Flow> {
        self.flows.iter().flatten().filter(move |flow| flow.map == map)
    }

    /// A free value of a range for replies like `reply`, from `start` on.
    pub fn choose(&mut self, map: MapId, variable: Variable, reply: FlowId, range: Range, start: u32) -> Option<u32> {
        let mut start = start;
        loop {
            let value = self.maps[map.0 as usize].taken.free(variable, reply, range, start)?;
            let key = variable.set(reply, value);
            if self.find(map, key).is_none() {
                return Some(value);
            }
            // Taken by a flow that was not chosen from a range: known from now on, until it ends.
            self.maps[map.0 as usize].taken.insert(variable, key);
            start = value;
        }
    }

    /// Makes a flow, which is guaranteed and kept for so many milliseconds; another one that has its replies ends. `None`
    /// where the set is full and no other flow may end for it; that is counted.
    pub fn insert(&mut self, new: &NewFlow, now_ms: u64, guarantee_ms: u64, timeout_ms: u64) -> Option<Entry> {
        let keys = [new.flow, new.rewritten.reverse()];
        for key in keys {
            if let Some(old) = self.find(new.map, key) {
                self.remove(old.slot);
            }
        }
        let (address_delta, transport_delta) = super::change::deltas(new.flow, new.rewritten);
        let flow = Flow {
            keys,
            outputs: new.outputs,
            map: new.map,
            owner: new.owner,
            address_delta,
            transport_delta,
            protocol: new.protocol,
            state: 0,
            reply_anno: 0,
            guaranteed: false,
            place: 0,
            queued_ms: 0,
            guaranteed_ms: if guarantee_ms > 0 { now_ms + guarantee_ms } else { 0 },
            expiry_ms: now_ms + timeout_ms,
            deltas: None,
        };
        let slot = self.place(flow);
        if let Some(variable) = new.variable {
            self.maps[new.map.0 as usize].taken.insert(variable, keys[1]);
        }
        self.enqueue(slot, guarantee_ms > 0);
        self.owners[new.owner.0 as usize].flows += 1;
        if self.len() > self.capacity && self.make_room(slot, now_ms) == slot {
            self.count_failure(new.owner);
            return None;
        }
        Some(Entry { slot, reply: false })
    }

    /// A packet of the flow came: it is guaranteed and kept for so many milliseconds from now.
    #[inline]
    pub fn touch(&mut self, entry: Entry, now_ms: u64, guarantee_ms: u64, timeout_ms: u64) {
        let flow = self.flow_mut(entry);
        flow.guaranteed_ms = if guarantee_ms > 0 { now_ms + guarantee_ms } else { 0 };
        flow.expiry_ms = now_ms + timeout_ms;
        let time = if flow.guaranteed { flow.guaranteed_ms } else { flow.expiry_ms };
        if time < flow.queued_ms {
            self.requeue(entry.slot, time);
        }
    }

    /// Gives up flows that have ended and those beyond the capacity; all of them, where there is to be none.
    pub fn shrink(&mut self, now_ms: u64, clear: bool) {
        self.end_guarantees(now_ms);
        while let Some((time, slot)) = self.front(now_ms) {
            if time > now_ms {
                break;
            }
            self.remove(slot);
        }
        let capacity = if clear { 0 } else { self.capacity };
        while self.len() > capacity {
            let Some((_, slot)) = self.front(now_ms).or_else(|| self.queues[1].front()) else { break };
            self.remove(slot);
        }
    }

    /// Takes flows from another set: `place` says in which table, and for whom; where it says nothing, they stay there.
    /// Those with packets that a flow here has, too, end.
    pub fn take_over(&mut self, old: &mut Self, place: impl Fn(MapId, OwnerId) -> Option<(MapId, OwnerId)>) {
        for slot in 0..old.flows.len() {
            let Some((map, owner)) = old.flows[slot].as_ref().and_then(|flow| place(flow.map, flow.owner)) else {
                continue;
            };
            let Some(flow) =
                old.remove(slot as u32).filter(|flow| flow.keys.iter().all(|key| self.find(map, *key).is_none()))
            else {
                continue;
            };
            let guaranteed = flow.guaranteed;
            let slot = self.place(Flow { map, owner, ..flow });
            self.enqueue(slot, guaranteed);
            self.owners[owner.0 as usize].flows += 1;
        }
    }

    /// Ends all flows of an owner.
    pub fn remove_owned(&mut self, owner: OwnerId) {
        for slot in 0..self.flows.len() {
            if self.flows[slot].as_ref().is_some_and(|flow| flow.owner == owner) {
                self.remove(slot as u32);
            }
        }
    }

    /// Ends all flows of a table.
    pub fn remove_map(&mut self, map: MapId) {
        for slot in 0..self.flows.len() {
            if self.flows[slot].as_ref().is_some_and(|flow| flow.map == map) {
                self.remove(slot as u32);
            }
        }
    }

    /// Gives a flow a number, and makes it found.
    fn place(&mut self, flow: Flow) -> u32 {
        self.changes += 1;
        let (map, keys) = (flow.map, flow.keys);
        let slot = if let Some(slot) = self.free.pop() {
            self.flows[slot as usize] = Some(flow);
            slot
        } else {
            self.flows.push(Some(flow));
            self.flows.len() as u32 - 1
        };
        // A flow between one port and itself: each packet but the first is a reply.
        if keys[0] != keys[1] {
            self.index(map, slot << 1);
        }
        self.index(map, slot << 1 | 1);
        slot
    }

    fn index(&mut self, map: MapId, entry: u32) {
        let Self { flows, maps, .. } = self;
        let Map { index, hash_key, .. } = &mut maps[map.0 as usize];
        let hash = |entry: u32| {
            let flow = flows[(entry >> 1) as usize].as_ref().expect("what is found is there");
            flow.key(entry & 1 != 0).hash_with(*hash_key)
        };
        index.insert_unique(hash(entry), entry, |&entry| hash(entry));
    }

    /// Ends a flow.
    fn remove(&mut self, slot: u32) -> Option<Flow> {
        let flow = self.flows[slot as usize].take()?;
        self.changes += 1;
        let map = &mut self.maps[flow.map.0 as usize];
        for (side, key) in flow.keys.into_iter().enumerate() {
            let entry = slot << 1 | side as u32;
            if let Ok(found) = map.index.find_entry(key.hash_with(map.hash_key), |&found| found == entry) {
                found.remove();
            }
            map.taken.remove(key);
        }
        self.owners[flow.owner.0 as usize].flows -= 1;
        let Self { flows, queues, .. } = self;
        queues[usize::from(flow.guaranteed)].remove(flow.place, |slot, place| set_place(flows, slot, place));
        self.free.push(slot);
        Some(flow)
    }

    fn enqueue(&mut self, slot: u32, guaranteed: bool) {
        let Self { flows, queues, .. } = self;
        let Some(flow) = flows[slot as usize].as_mut() else { return };
        flow.guaranteed = guaranteed;
        flow.queued_ms = if guaranteed { flow.guaranteed_ms } else { flow.expiry_ms };
        let time = flow.queued_ms;
        queues[usize::from(guaranteed)].push(time, slot, |slot, place| set_place(flows, slot, place));
    }

    fn requeue(&mut self, slot: u32, time: u64) {
        let Self { flows, queues, .. } = self;
        let Some(flow) = flows[slot as usize].as_mut() else { return };
        flow.queued_ms = time;
        let (place, guaranteed) = (flow.place, flow.guaranteed);
        queues[usize::from(guaranteed)].change(place, time, |slot, place| set_place(flows, slot, place));
    }

    /// Moves a flow to the other queue.
    fn transfer(&mut self, slot: u32) {
        let Self { flows, queues, .. } = self;
        let Some(flow) = flows[slot as usize].as_ref() else { return };
        let (place, guaranteed) = (flow.place, flow.guaranteed);
        queues[usize::from(guaranteed)].remove(place, |slot, place| set_place(flows, slot, place));
        self.enqueue(slot, !guaranteed);
    }

    /// Moves flows whose guarantees have ended to those that may end.
    fn end_guarantees(&mut self, now_ms: u64) {
        while let Some((known, slot)) = self.queues[1].front() {
            let Some(flow) = &self.flows[slot as usize] else { break };
            let time = flow.guaranteed_ms;
            if known > now_ms {
                break;
            } else if time > known {
                self.requeue(slot, time);
            } else {
                self.transfer(slot);
            }
        }
    }

    /// The flow that ends first, with its time, among those that are not guaranteed.
    fn front(&mut self, now_ms: u64) -> Option<(u64, u32)> {
        loop {
            let (known, slot) = self.queues[0].front()?;
            let flow = self.flows[slot as usize].as_ref()?;
            if flow.guaranteed_ms > now_ms {
                self.transfer(slot);
            } else if flow.expiry_ms > known {
                self.requeue(slot, flow.expiry_ms);
            } else {
                return Some((known, slot));
            }
        }
    }

    /// Ends one flow, the new one where no other may end; which one it was.
    fn make_room(&mut self, new: u32, now_ms: u64) -> u32 {
        self.end_guarantees(now_ms);
        let slot = self.front(now_ms).map_or(new, |(_, slot)| slot);
        self.remove(slot);
        slot
    }
}

fn set_place(flows: &mut [Option<Flow>], slot: u32, place: u32) {
    if let Some(flow) = &mut flows[slot as usize] {
        flow.place = place;
    }
}

impl fmt::Debug for FlowSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowSet({} of {})", self.len(), self.capacity)
    }
}
