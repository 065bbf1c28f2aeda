//! What a read may see, from the sentences of `docs/coherence.md` alone. It knows nothing of pages, versions and
//! flushes: only who has written, released, acquired and synced.
//!
//! A write is *known* to an agent if a sentence promises that it sees it. Of what an agent knows, a read returns
//! the latest; of what it need not know yet and could have been shown, anything that is not older than what it
//! knows or has seen. CPU processes that know nothing of the cache are one agent, as they share the file; who reads
//! through the cache is another, as what devices have released comes to him from them.

use super::agents::Agent;

/// A set of writes, by number.
type Set = u64;

#[derive(Debug, Clone)]
struct Write {
    agent: Agent,
    place: usize,
    value: u8,
    /// What its writer knew when it wrote: older for certain.
    after: Set,
    /// What its writer may have known when it became visible. A device's write that was released after an
    /// acquire may count as older or as newer than what that acquire brought, and a CPU process' write as newer
    /// than a release whose bytes had come home by then.
    perhaps_after: Set,
}

/// Who knows what, in one run.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    is_eager: bool,
    writes: Vec<Write>,
    published: Set,
    by_cpus: Set,
    known: [Set; AGENTS],
    /// By agent and place: the latest that it has read.
    seen: [Vec<Option<usize>>; AGENTS],
}

/// Two devices, and CPUs with and without the cache.
const AGENTS: usize = 4;
const THROUGH: usize = 2;
const UNAWARE: usize = 3;

fn number(agent: Agent) -> usize {
    agent.device().unwrap_or(if agent == Agent::Cache { THROUGH } else { UNAWARE })
}

fn has(set: Set, write: usize) -> bool {
    set >> write & 1 == 1
}

impl Order {
    pub(crate) fn new(is_eager: bool, places: usize) -> Self {
        let seen = [(); AGENTS].map(|()| vec![None; places]);
        Self { is_eager, writes: vec![], published: 0, by_cpus: 0, known: [0; AGENTS], seen }
    }

    /// A write of a value that the place does not have.
    pub(crate) fn write(&mut self, agent: Agent, place: usize, value: u8) {
        if agent == Agent::Cache {
            // What it replaces is written to the file before.
            self.learn(THROUGH, place);
            self.learn(UNAWARE, place);
        }
        let number = number(agent);
        let after = self.known[number];
        let perhaps_after = if agent.device().is_some() { after } else { after | self.published };
        let new = 1 << self.writes.len();
        self.writes.push(Write { agent, place, value, after, perhaps_after });
        self.known[number] |= new;
        if agent.device().is_none() {
            self.by_cpus |= new;
            self.known[THROUGH] |= new;
            self.known[UNAWARE] |= new;
        }
    }

    pub(crate) fn release(&mut self, device: usize) {
        for (number, write) in self.writes.iter_mut().enumerate() {
            if write.agent.device() == Some(device) && !has(self.published, number) {
                self.published |= 1 << number;
                write.perhaps_after |= self.known[device] & !(1 << number);
            }
        }
        if self.is_eager {
            self.sync();
        }
    }

    pub(crate) fn acquire(&mut self, device: usize) {
        self.known[device] |= self.published | self.by_cpus;
    }

    /// The file has what was released.
    pub(crate) fn sync(&mut self) {
        self.known[THROUGH] |= self.published;
        self.known[UNAWARE] |= self.published;
    }

    /// What was released of a place.
    fn learn(&mut self, reader: usize, place: usize) {
        for (number, write) in self.writes.iter().enumerate() {
            if write.place == place && has(self.published, number) {
                self.known[reader] |= 1 << number;
            }
        }
    }

    /// A read has returned a value: whether it may, and else what it may return.
    pub(crate) fn read(&mut self, agent: Agent, place: usize, value: u8) -> Result<(), Vec<u8>> {
        if agent == Agent::Cache {
            self.learn(THROUGH, place);
        }
        let number = number(agent);
        let allowed = self.allowed(number, place);
        let Some(write) = allowed.iter().find(|write| self.value(**write) == value) else {
            return Err(allowed.iter().map(|write| self.value(*write)).collect());
        };
        self.seen[number][place] = *write;
        Ok(())
    }

    fn value(&self, write: Option<usize>) -> u8 {
        write.map_or(0, |write| self.writes[write].value)
    }

    /// None is the value that was there first.
    fn allowed(&self, agent: usize, place: usize) -> Vec<Option<usize>> {
        let here: Vec<usize> = (0..self.writes.len()).filter(|write| self.writes[*write].place == place).collect();
        let known: Vec<usize> = here.iter().copied().filter(|write| has(self.known[agent], *write)).collect();
        let latest: Vec<usize> =
            known.iter().copied().filter(|write| !self.is_older_than_one_of(*write, &known)).collect();
        // What a device has written and not released stays on top for it.
        let own = latest
            .iter()
            .find(|write| self.writes[**write].agent.device() == Some(agent) && !has(self.published, **write));
        let mut allowed: Vec<Option<usize>> = match own {
            Some(own) => return vec![Some(*own)],
            None if latest.is_empty() => vec![None],
            None => latest.iter().copied().filter(|write| self.may_win(*write, &latest)).map(Some).collect(),
        };
        let is_shown = |write: &usize| has(self.published | self.by_cpus, *write) && !has(self.known[agent], *write);
        let early = here.iter().copied().filter(is_shown).filter(|write| !self.is_older_than_one_of(*write, &known));
        allowed.extend(early.map(Some));
        if let Some(seen) = self.seen[agent][place] {
            allowed.retain(|write| write.is_some_and(|write| !has(self.writes[seen].after, write)));
        }
        allowed
    }

    fn is_older_than_one_of(&self, write: usize, others: &[usize]) -> bool {
        others.iter().any(|other| has(self.writes[*other].after, write))
    }

    /// Whether a write may be what all agree on, of writes none of which is older than another for certain.
    fn may_win(&self, write: usize, latest: &[usize]) -> bool {
        let loses = |other: &usize| {
            *other != write && self.beats(*other, write) && !has(self.writes[write].perhaps_after, *other)
        };
        !latest.iter().any(loses)
    }

    /// Of a device and a CPU the CPU wins. What is newer for certain, or might be, is not asked here.
    fn beats(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|write| self.writes[write].agent.device());
        one.is_none() && other.is_some()
    }
}
