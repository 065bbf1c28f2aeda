//! The protocol as a model: a file, some devices, a few bytes a page, and every step that there is.
//!
//! Who has what is the code's own (`bifolio_cache::page`); contents are a few bytes a page, merged as its
//! documentation says. Values count up, so that one that goes backwards or comes from nowhere shows, or come back.

mod check;
mod contents;
mod promises;

use bifolio_cache::page::{Device, Home};
use contents::{Contents, Incoming};
use stateright::{Model, Property};

/// Bytes of a page: more than any world writes.
const BYTES: usize = 4;

/// A page's content.
pub(crate) type Bytes = [u8; BYTES];

/// A page, and what was promised of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PageState {
    pub(crate) contents: Contents,
    /// An acquire that has read what it brings, and not merged it; the file is locked against all but kernels and
    /// those who do not know the cache.
    pub(crate) under_way: Option<(Device, Incoming)>,
    /// By byte: how often it was written.
    counts: Bytes,
    /// By byte: what its writers have written, and what everybody who acquires has to see.
    latest: Bytes,
    pub(crate) visible: Bytes,
    /// Of the byte that is raced for: what it has to be, where that is no matter of chance.
    decided: Option<u8>,
    /// The devices that have acquired since anybody else has released or written that byte, and since a CPU has.
    fresh: u8,
    fresh_of_cpus: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) pages: Vec<PageState>,
    /// What went wrong on the way here.
    pub(crate) wrong: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// A CPU process writes, past the cache or through it.
    CpuWrites {
        page: usize,
        byte: usize,
    },
    /// A CPU reads through the cache.
    CpuReads {
        page: usize,
    },
    /// A kernel writes.
    DeviceWrites {
        device: Device,
        page: usize,
        byte: usize,
    },
    /// All pages, as a mapping's whole range.
    Acquire(Device),
    /// The same in two steps: kernels of another mapping of the device store between them.
    Begin(Device),
    End(Device),
    /// The kernel of an acquire has run, and what it has done was not noted: it is repeated.
    AcquireTwice(Device),
    Release(Device),
    /// Somebody syncs.
    Flush {
        page: usize,
    },
    /// A write to the file fails, after that of the first of the order or in it.
    FlushOne {
        page: usize,
    },
    FlushHalf {
        page: usize,
    },
    /// One page's memory is needed.
    Evict {
        device: Device,
        page: usize,
    },
    /// The program that used the device has died; what it released is kept.
    Crash(Device),
    /// The device is gone, with its memory.
    Lose(Device),
    /// Somebody cuts the file in a page, and it grows again.
    Cut {
        page: usize,
    },
}

/// A small world.
#[allow(clippy::struct_excessive_bools, reason = "each is a kind of step, or of value")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Small {
    pub(crate) devices: usize,
    pub(crate) pages: usize,
    /// By byte: who writes it. The CPU is `None`.
    pub(crate) writers: Vec<Vec<Option<Device>>>,
    /// Writes to a byte at most.
    pub(crate) writes: u8,
    /// Releases move the bytes to the file at once.
    pub(crate) eager: bool,
    /// CPUs write through the cache.
    pub(crate) known: bool,
    /// Values come back: 1, 0, 1.
    pub(crate) back: bool,
    /// Kernels use what is acquired: another mapping of the device acquires it in two steps.
    pub(crate) in_use: bool,
    /// And yet in one.
    pub(crate) whole: bool,
    pub(crate) cuts: bool,
    pub(crate) errors: bool,
    pub(crate) losses: bool,
}

impl Small {
    /// Each byte has one writer: first the CPU's, then one for each device.
    pub(crate) fn disjoint(devices: usize, pages: usize, writes: u8) -> Self {
        let writers = std::iter::once(None).chain((0..devices).map(Some)).map(|writer| vec![writer]).collect();
        Self { devices, pages, writers, writes, ..Self::default() }
    }

    /// All devices write the same byte, and the CPU another.
    pub(crate) fn racing(devices: usize, writes: u8) -> Self {
        let writers = vec![vec![None], (0..devices).map(Some).collect()];
        Self { devices, pages: 1, writers, writes, ..Self::default() }
    }

    /// All devices and the CPU write the same byte, and the CPU another.
    pub(crate) fn racing_with_a_cpu(devices: usize, writes: u8) -> Self {
        let all = std::iter::once(None).chain((0..devices).map(Some)).collect();
        Self { devices, pages: 1, writers: vec![vec![None], all], writes, ..Self::default() }
    }

    fn is_raced_for(&self, byte: usize) -> bool {
        self.writers[byte].len() > 1
    }

    /// Values of a byte: of a race, each writer has its own.
    fn value(&self, byte: usize, writer: Option<Device>, count: u8) -> u8 {
        let count = if self.back { count % 2 } else { count };
        match writer {
            Some(device) if self.is_raced_for(byte) => count * 8 + device as u8 + 1,
            None if self.is_raced_for(byte) => count * 8,
            _ => count,
        }
    }

    fn has_a_cpu(&self) -> bool {
        self.writers.iter().any(|writers| writers.contains(&None))
    }

    pub(crate) fn has_a_race(&self) -> bool {
        (0..self.writers.len()).any(|byte| self.is_raced_for(byte))
    }

    /// Who has written a value that is raced for.
    fn writer(value: u8) -> Option<Device> {
        usize::from(value % 8).checked_sub(1)
    }
}

impl PageState {
    fn new(small: &Small) -> Self {
        let bytes = [0; BYTES];
        Self {
            contents: Contents::new(small.devices),
            under_way: None,
            counts: bytes,
            latest: bytes,
            visible: bytes,
            decided: None,
            fresh: 0,
            fresh_of_cpus: 0,
        }
    }

    fn store(&mut self, small: &Small, byte: usize, writer: Option<Device>) -> u8 {
        self.counts[byte] += 1;
        self.latest[byte] = small.value(byte, writer, self.counts[byte]);
        self.latest[byte]
    }

    fn release(&mut self, device: Device, small: &Small) {
        let Some(before) = self.contents.replicas[device] else { return };
        self.contents.release(device, small.in_use);
        for byte in (0..before.now.len()).filter(|byte| before.now[*byte] != before.twin[*byte]) {
            self.visible[byte] = before.now[byte];
            if small.is_raced_for(byte) {
                self.race(device, before.now[byte]);
            }
        }
        if small.eager {
            self.contents.flush_all();
        }
    }

    /// What may be done to the page.
    fn actions(&self, page: usize, small: &Small, steps: &mut Vec<Step>) {
        for (byte, writers) in small.writers.iter().enumerate().filter(|(byte, _)| self.counts[*byte] < small.writes) {
            steps.extend(writers.iter().filter_map(|writer| match writer {
                None => (!small.known || self.under_way.is_none()).then_some(Step::CpuWrites { page, byte }),
                Some(device) => {
                    let device = *device;
                    let may_store = self.contents.replicas[device].is_some() && self.contents.idle & 1 << device == 0;
                    may_store.then_some(Step::DeviceWrites { device, page, byte })
                }
            }));
        }
        if self.under_way.is_some() {
            return;
        }
        steps.extend([Step::CpuReads { page }, Step::Flush { page }]);
        let held = |device: &Device| self.contents.replicas[*device].is_some();
        let evictable = (0..small.devices).filter(|device| held(device) && self.contents.is_quiet(*device));
        steps.extend(evictable.map(|device| Step::Evict { device, page }));
        if small.errors {
            steps.extend([Step::FlushOne { page }, Step::FlushHalf { page }]);
        }
        if small.cuts {
            steps.push(Step::Cut { page });
        }
    }
}

impl Model for Small {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let pages = (0..self.pages).map(|_| PageState::new(self)).collect();
        vec![World { pages, wrong: None }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.wrong.is_some() {
            return;
        }
        for (page, state) in world.pages.iter().enumerate() {
            state.actions(page, self, steps);
        }
        if let Some((device, _)) = world.pages.iter().find_map(|state| state.under_way.as_ref()) {
            steps.push(Step::End(*device));
            return;
        }
        for device in 0..self.devices {
            steps.extend([Step::Acquire(device), Step::Release(device), Step::Crash(device)]);
            steps.extend((self.in_use && !self.whole).then_some(Step::Begin(device)));
            steps.extend(self.errors.then_some(Step::AcquireTwice(device)));
            steps.extend(self.losses.then_some(Step::Lose(device)));
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        let wrong = match step {
            Step::CpuWrites { page, byte } => {
                let state = &mut world.pages[page];
                let value = state.store(self, byte, None);
                state.visible[byte] = value;
                state.contents.write(byte, value, self.known);
                if self.is_raced_for(byte) {
                    (state.decided, state.fresh, state.fresh_of_cpus) = (Some(value), 0, 0);
                }
                None
            }
            Step::CpuReads { page } => {
                let seen = world.pages[page].contents.read(self.in_use);
                self.check_seen(&world.pages[page], seen)
            }
            Step::DeviceWrites { device, page, byte } => {
                let value = world.pages[page].store(self, byte, Some(device));
                world.pages[page].contents.replicas[device].as_mut()?.now[byte] = value;
                None
            }
            Step::Acquire(device) | Step::AcquireTwice(device) => {
                for state in &mut world.pages {
                    state.contents.detect(device, true, self.in_use);
                    let is_donor = state.contents.page.is_donor(device);
                    if step == Step::AcquireTwice(device) && state.contents.page.is_behind(device) && !is_donor {
                        let incoming = state.contents.read_for(device);
                        state.contents.merge(device, incoming);
                    }
                    state.contents.acquire(device, self.in_use);
                    state.acquired(device);
                }
                world.pages.iter().find_map(|state| self.check_acquired(state, device))
            }
            Step::Begin(device) => {
                for state in &mut world.pages {
                    state.contents.detect(device, true, self.in_use);
                    if state.contents.page.is_behind(device) {
                        state.under_way = Some((device, state.contents.read_for(device)));
                        state.acquired(device);
                    }
                }
                None
            }
            Step::End(device) => {
                for state in &mut world.pages {
                    if let Some((_, incoming)) = state.under_way.take() {
                        state.contents.merge(device, incoming);
                        state.contents.brought(device, &incoming);
                    }
                }
                None
            }
            Step::Release(device) => {
                world.pages.iter_mut().for_each(|state| state.release(device, self));
                None
            }
            Step::Flush { page } => {
                world.pages[page].contents.flush_all();
                None
            }
            Step::FlushOne { page } => {
                world.pages[page].contents.flush_one();
                None
            }
            Step::FlushHalf { page } => {
                world.pages[page].contents.flush_half();
                None
            }
            Step::Evict { device, page } => {
                world.pages[page].contents.evict(device);
                None
            }
            Step::Crash(device) => {
                for state in &mut world.pages {
                    state.contents.evict(device);
                    // What it wrote and never released is gone; it may be written anew.
                    self.forget_unreleased(state, device);
                }
                None
            }
            Step::Lose(device) => {
                let mut wrong = None;
                for state in &mut world.pages {
                    let is_lost = state.contents.page.is_lost_with(device);
                    state.contents.give_up(device);
                    wrong = wrong.or(self.forget_what_it_alone_had(state, device, is_lost));
                }
                wrong
            }
            Step::Cut { page } => {
                let state = &mut world.pages[page];
                state.contents.cut(1);
                state.latest[1..].fill(0);
                state.visible[1..].fill(0);
                None
            }
        };
        world.wrong = wrong.or_else(|| self.check_step(last, step, &world));
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always("every step keeps its promise", |_, world: &World| world.wrong.is_none()),
            Property::always(
                "what is flushed is all that was released, and nothing else",
                |small: &Self, world: &World| world.pages.iter().all(|state| small.is_as_released(state)),
            ),
            Property::always("it is the same whoever folds first", |_: &Self, world: &World| {
                world.pages.iter().all(promises::is_the_same_by_all_ways)
            }),
            Property::always("who is not behind has everything", |_: &Self, world: &World| {
                world.pages.iter().all(promises::has_all_who_is_not_behind)
            }),
            Property::always("a store of a kernel stays", |small: &Self, world: &World| {
                world.pages.iter().all(|state| small.has_own_stores(state))
            }),
            Property::sometimes("everybody has changed something", |small: &Self, world: &World| {
                let all = |state: &PageState| state.counts[..small.writers.len()].iter().all(|count| *count > 0);
                world.pages.iter().all(all) && small.devices > 0
            }),
            Property::sometimes("an acquire finds out what a CPU has done", |small: &Self, world: &World| {
                small.known || !small.has_a_cpu() || small.finds_something(world)
            }),
            Property::sometimes("two devices have released what the file lacks", |small: &Self, world: &World| {
                small.eager || world.pages.iter().any(|state| state.contents.page.order().count() == 2)
            }),
            Property::sometimes("a device keeps what home has as well", |small: &Self, world: &World| {
                small.eager || small.any(world, |state, device| state.contents.page.is_lender(device))
            }),
            Property::sometimes("somebody loses a race", |small: &Self, world: &World| {
                small.eager || !small.has_a_race() || world.pages.iter().any(|state| state.contents.incoming().lost)
            }),
        ];
        let homes: [fn(&Self, &World) -> bool; 3] = [
            |small, world| small.eager || promises::is_home(world, 0),
            |small, world| small.eager || promises::is_home(world, 1),
            |small, world| small.eager || promises::is_home(world, 2),
        ];
        let names = ["device 0 is home", "device 1 is home", "device 2 is home"];
        let homes = names.into_iter().zip(homes).take(self.devices);
        all.extend(homes.map(|(name, is_home)| Property::sometimes(name, is_home)));
        all
    }
}
