//! The protocol as a model: a home, some devices, a few bytes a page, and every step that there is.
//!
//! The versions are the code's own (`bifolio_cache::page`); contents are a few bytes a page, merged as its
//! documentation says. Values count up, so that one that goes backwards or comes from nowhere shows.

#![allow(clippy::needless_range_loop, reason = "bytes of several contents are compared by number")]

mod check;

use bifolio_cache::page::{Device, Page};
use stateright::{Model, Property};

/// A page's content.
pub(crate) type Bytes = Vec<u8>;

/// A device's replica of a page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// What kernels see and change.
    pub(crate) now: Bytes,
    /// What was released; none where nothing was since the base.
    pub(crate) released: Option<Bytes>,
    /// Home's content when it was fetched, or what was flushed since.
    pub(crate) base: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PageState {
    pub(crate) versions: Page,
    pub(crate) home: Bytes,
    /// By byte: the device whose flush put it there; none if that was a CPU.
    pub(crate) home_by: Vec<Option<Device>>,
    pub(crate) replicas: Vec<Option<Replica>>,
    /// By byte: what its writers have written, and what everybody who acquires has to see.
    pub(crate) written: Bytes,
    pub(crate) visible: Bytes,
    /// What the highest device has released, until somebody fetches who could have seen a release: so long
    /// all writes of devices are concurrent.
    pub(crate) last_in_order: Option<Bytes>,
    /// By device and byte that a CPU races for: the latest that was home at an acquire.
    pub(crate) acquired: Vec<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) pages: Vec<PageState>,
    /// What went wrong on the way here.
    pub(crate) wrong: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// A CPU process writes to the file, and knows nothing of devices.
    CpuWrites {
        page: usize,
        byte: usize,
    },
    /// A kernel writes.
    DeviceWrites {
        device: Device,
        page: usize,
        byte: usize,
    },
    /// All pages, as a mapping's whole range.
    Acquire(Device),
    Release(Device),
    /// A CPU reads through the cache, or somebody syncs.
    Flush {
        page: usize,
    },
    /// One page's memory is needed.
    Evict {
        device: Device,
        page: usize,
    },
    /// The program that used the device has died; what it released is kept.
    Crash(Device),
}

/// A small world.
#[derive(Debug, Clone)]
pub(crate) struct Small {
    pub(crate) devices: usize,
    pub(crate) pages: usize,
    /// By byte: who writes it. The CPU is `None`.
    pub(crate) writers: Vec<Vec<Option<Device>>>,
    /// Writes to a byte at most.
    pub(crate) writes: u8,
    /// Releases move the bytes home at once.
    pub(crate) eager: bool,
}

impl Small {
    /// Each byte has one writer: first the CPU's, then one for each device.
    pub(crate) fn disjoint(devices: usize, pages: usize, writes: u8, eager: bool) -> Self {
        let writers = std::iter::once(None).chain((0..devices).map(Some)).map(|writer| vec![writer]).collect();
        Self { devices, pages, writers, writes, eager }
    }

    /// All devices write the same byte, and the CPU another.
    pub(crate) fn racing(devices: usize, writes: u8, eager: bool) -> Self {
        Self { devices, pages: 1, writers: vec![vec![None], (0..devices).map(Some).collect()], writes, eager }
    }

    /// All devices and the CPU write the same byte, and the CPU another.
    pub(crate) fn racing_with_a_cpu(devices: usize, writes: u8, eager: bool) -> Self {
        let all = std::iter::once(None).chain((0..devices).map(Some)).collect();
        Self { devices, pages: 1, writers: vec![vec![None], all], writes, eager }
    }

    fn is_raced_for(&self, byte: usize) -> bool {
        self.writers[byte].len() > 1
    }

    fn races_with_a_cpu(&self, byte: usize) -> bool {
        self.is_raced_for(byte) && self.writers[byte].contains(&None)
    }

    /// How often a byte was written: values of one that is raced for are numbered together.
    fn count(&self, state: &PageState, byte: usize) -> u8 {
        if self.is_raced_for(byte) { state.written[byte] / 8 } else { state.written[byte] }
    }

    /// Values of a byte: of a race, each writer has its own, which grow with the device.
    fn value(&self, byte: usize, writer: Option<Device>, count: u8) -> u8 {
        match writer {
            Some(device) if self.is_raced_for(byte) => count * 8 + device as u8 + 1,
            None if self.is_raced_for(byte) => count * 8,
            _ => count,
        }
    }
}

impl PageState {
    fn new(small: &Small) -> Self {
        let bytes = vec![0; small.writers.len()];
        Self {
            versions: Page::new(),
            home: bytes.clone(),
            home_by: vec![None; bytes.len()],
            acquired: vec![bytes.clone(); small.devices],
            replicas: vec![None; small.devices],
            written: bytes.clone(),
            last_in_order: Some(bytes.clone()),
            visible: bytes,
        }
    }

    fn acquire(&mut self, device: Device, small: &Small) {
        if !self.versions.is_behind(device) {
            return;
        }
        self.flush_all();
        for byte in (0..self.home.len()).filter(|byte| small.races_with_a_cpu(*byte)) {
            self.acquired[device][byte] = self.home[byte];
        }
        if self.visible.iter().any(|value| *value > 0) {
            self.last_in_order = None;
        }
        let incoming = self.home.clone();
        let now = match &self.replicas[device] {
            None => incoming.clone(),
            // What was released is at home by now; what was not stays on top.
            Some(Replica { now, base, .. }) => {
                (0..now.len()).map(|byte| if now[byte] == base[byte] { incoming[byte] } else { now[byte] }).collect()
            }
        };
        self.replicas[device] = Some(Replica { now, released: None, base: incoming });
        self.versions.fetched(device);
    }

    fn release(&mut self, device: Device, small: &Small) {
        let Some(replica) = &mut self.replicas[device] else { return };
        let before = replica.released.as_ref().unwrap_or(&replica.base);
        if replica.now == *before {
            return;
        }
        for byte in 0..replica.now.len() {
            if replica.now[byte] != before[byte] {
                self.visible[byte] = self.visible[byte].max(replica.now[byte]);
            }
        }
        replica.released = Some(replica.now.clone());
        if device + 1 == small.devices
            && let Some(last) = &mut self.last_in_order
        {
            last.clone_from(&replica.now);
        }
        self.versions.released(device, small.devices);
        if small.eager {
            self.flush_all();
        }
    }

    fn flush_all(&mut self) {
        let pending: Vec<_> = self.versions.pending().collect();
        for device in pending {
            let replica = self.replicas[device].as_mut().expect("what is pending is kept");
            let released = replica.released.take().expect("what is pending was released");
            for byte in 0..released.len() {
                // Somebody else has written it since; a lower device loses, if this one has not seen it.
                let is_changed = self.home[byte] != replica.base[byte];
                let loses = |other: Device| other < device && self.versions.lacks(device, other);
                let is_left = is_changed && !self.home_by[byte].is_some_and(loses);
                if released[byte] != replica.base[byte] && !is_left {
                    self.home[byte] = released[byte];
                    self.home_by[byte] = Some(device);
                }
            }
            replica.base = released;
            self.versions.flushed(device);
        }
    }

    /// Whether memory may be taken away: not what a kernel has changed and nobody released.
    fn is_evictable(&self, device: Device) -> bool {
        let settled = |replica: &Replica| replica.now == *replica.released.as_ref().unwrap_or(&replica.base);
        self.replicas[device].as_ref().is_some_and(settled)
    }

    fn drop_replica(&mut self, device: Device) {
        if self.versions.is_pending(device) {
            self.flush_all();
        }
        self.replicas[device] = None;
        self.versions.dropped(device);
    }

    /// What home would have if everything that is pending were flushed.
    pub(crate) fn settled(&self) -> Bytes {
        let mut copy = self.clone();
        copy.flush_all();
        copy.home
    }
}

impl Model for Small {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World { pages: (0..self.pages).map(|_| PageState::new(self)).collect(), wrong: None }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.wrong.is_some() {
            return;
        }
        for (page, state) in world.pages.iter().enumerate() {
            for (byte, writers) in self.writers.iter().enumerate() {
                let written = self.count(state, byte);
                for writer in writers.iter().filter(|_| written < self.writes) {
                    match writer {
                        None => steps.push(Step::CpuWrites { page, byte }),
                        Some(device) if state.replicas[*device].is_some() => {
                            steps.push(Step::DeviceWrites { device: *device, page, byte });
                        }
                        Some(_) => {}
                    }
                }
            }
            steps.push(Step::Flush { page });
            let evictable = (0..self.devices).filter(|device| state.is_evictable(*device));
            steps.extend(evictable.map(|device| Step::Evict { device, page }));
        }
        for device in 0..self.devices {
            steps.extend([Step::Acquire(device), Step::Release(device), Step::Crash(device)]);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::CpuWrites { page, byte } => {
                let state = &mut world.pages[page];
                let count = self.count(state, byte) + 1;
                state.written[byte] = self.value(byte, None, count);
                state.visible[byte] = state.written[byte];
                state.home[byte] = state.written[byte];
                state.home_by[byte] = None;
                state.versions.changed_at_home();
            }
            Step::DeviceWrites { device, page, byte } => {
                let state = &mut world.pages[page];
                let count = self.count(state, byte) + 1;
                let value = self.value(byte, Some(device), count);
                state.written[byte] = value;
                state.replicas[device].as_mut()?.now[byte] = value;
            }
            Step::Acquire(device) => {
                for state in &mut world.pages {
                    state.acquire(device, self);
                    world.wrong = world.wrong.or(self.check_acquired(state, device));
                }
            }
            Step::Release(device) => world.pages.iter_mut().for_each(|state| state.release(device, self)),
            Step::Flush { page } => world.pages[page].flush_all(),
            Step::Evict { device, page } => world.pages[page].drop_replica(device),
            Step::Crash(device) => {
                for state in &mut world.pages {
                    state.drop_replica(device);
                    // What it wrote and never released is gone; it may be written anew.
                    self.forget_unreleased(state, device);
                }
            }
        }
        world.wrong = world.wrong.or_else(|| self.check_step(last, &world));
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every step keeps its promise", |_, world: &World| world.wrong.is_none()),
            Property::always(
                "home gets what was released, all of it and nothing else",
                |small: &Self, world: &World| {
                    world.pages.iter().all(|state| {
                        let settled = state.settled();
                        (0..settled.len()).all(|byte| small.is_raced_for(byte) || settled[byte] == state.visible[byte])
                    })
                },
            ),
            Property::always(
                "of devices that race the highest wins, whoever comes first",
                |small: &Self, world: &World| {
                    world.pages.iter().all(|state| {
                        let settled = state.settled();
                        let last = state.last_in_order.as_ref();
                        let won = |byte: usize| last.is_none_or(|last| last[byte] == 0 || settled[byte] == last[byte]);
                        let is_theirs = |byte: usize| small.is_raced_for(byte) && !small.races_with_a_cpu(byte);
                        (0..settled.len()).all(|byte| !is_theirs(byte) || won(byte))
                    })
                },
            ),
            Property::always("replicas that are up to date agree", |small: &Self, world: &World| {
                world.pages.iter().all(|state| small.agree(state))
            }),
            Property::sometimes("everybody has changed something", |small: &Self, world: &World| {
                let all = |state: &PageState| state.visible.iter().all(|value| *value > 0);
                world.pages.iter().all(all) && small.devices > 0
            }),
            Property::sometimes("two devices have released what home lacks", |small: &Self, world: &World| {
                small.eager || world.pages.iter().any(|state| state.versions.pending().count() == 2)
            }),
        ]
    }
}

impl Small {
    /// After an acquire: all that others have released, and what it has written itself.
    fn check_acquired(&self, state: &PageState, device: Device) -> Option<&'static str> {
        let replica = state.replicas[device].as_ref()?;
        for (byte, writers) in self.writers.iter().enumerate() {
            let mine = writers.contains(&Some(device));
            if !self.is_raced_for(byte) && !mine && replica.now[byte] != state.visible[byte] {
                return Some("an acquire has missed what was released");
            }
            if !self.is_raced_for(byte) && mine && replica.now[byte] < state.visible[byte] {
                return Some("an acquire has undone the device's own write");
            }
        }
        None
    }

    /// No byte that has one writer goes backwards, anywhere; only a crash takes back what nobody was to see.
    fn check_step(&self, last: &World, world: &World) -> Option<&'static str> {
        for (before, after) in last.pages.iter().zip(&world.pages) {
            for byte in (0..self.writers.len()).filter(|byte| self.races_with_a_cpu(*byte)) {
                let (was, is) = (before.home[byte], after.home[byte]);
                let by_a_cpu = was % 8 == 0;
                // Values of devices have their number, plus one.
                if by_a_cpu && is != was && is % 8 > 0 && before.acquired[usize::from(is % 8) - 1][byte] < was {
                    return Some("a device has taken back what a CPU wrote, and what it never acquired");
                }
            }
            for byte in (0..self.writers.len()).filter(|byte| !self.is_raced_for(*byte)) {
                if after.home[byte] < before.home[byte] {
                    return Some("a value at home went backwards");
                }
                if after.home[byte] > after.visible[byte] {
                    return Some("home has what was not released");
                }
                let backwards = |device: Device| {
                    let [before, after] = [before, after].map(|state| state.replicas[device].as_ref());
                    before.zip(after).is_some_and(|(before, after)| after.now[byte] < before.now[byte])
                };
                if (0..self.devices).any(backwards) {
                    return Some("a value on a device went backwards");
                }
            }
        }
        None
    }

    /// Replicas that are not behind, and have nothing that only they know, are the same, and home's once it
    /// has what is pending.
    fn agree(&self, state: &PageState) -> bool {
        let quiet = |device: &Device| {
            state.is_evictable(*device) && !state.versions.is_behind(*device) && !state.versions.is_pending(*device)
        };
        let settled = state.settled();
        let all_settled = state.versions.pending().next().is_none();
        let mut quiet = (0..self.devices).filter(quiet).filter_map(|device| state.replicas[device].as_ref());
        quiet.all(|replica| !all_settled || replica.now == settled)
    }

    fn forget_unreleased(&self, state: &mut PageState, device: Device) {
        for (byte, writers) in self.writers.iter().enumerate() {
            if writers[..] == [Some(device)] {
                state.written[byte] = state.visible[byte];
            }
        }
    }
}
