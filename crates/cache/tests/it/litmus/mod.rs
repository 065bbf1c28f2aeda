//! Litmus tests: short programs of several agents (two devices, the CPU through the cache, a CPU process, one with
//! a mapping), in every order of their steps. What a shape may show is listed beside it; what a single order of
//! steps may show follows from the documentation (`litmus/order.rs`).

mod agents;
mod order;
mod shapes;
use crate::support::{Draw, FRAME, random, sets};
use agents::{Agent, Layout, Stage};
use bifolio_cache::Mode;
use fastrand::Rng;
use order::Order;
use shapes::{GROUPS, Op, PAIRS, Shape};
use std::collections::BTreeMap;

/// The orders in which threads of some lengths can take their steps, as thread numbers; drawn if there are more
/// than so many.
fn orders(lengths: &[usize], most: usize, random: &mut Rng) -> Vec<Vec<usize>> {
    let total: usize = lengths.iter().sum();
    let mut count = 1_u64;
    let mut placed = 0;
    for length in lengths {
        for step in 1..=*length as u64 {
            placed += 1;
            count = count * placed / step;
        }
    }
    if count > most as u64 {
        let draw = |_| {
            let mut left = lengths.to_vec();
            let next = |_| {
                let open: Vec<_> = (0..left.len()).filter(|thread| left[*thread] > 0).collect();
                let thread = open[random.below(open.len() as u64) as usize];
                left[thread] -= 1;
                thread
            };
            (0..total).map(next).collect()
        };
        return (0..most).map(draw).collect();
    }
    let mut all = vec![vec![]];
    for _ in 0..total {
        let longer = |order: Vec<usize>| {
            let used = |thread: usize| order.iter().filter(|step| **step == thread).count();
            let open: Vec<_> = (0..lengths.len()).filter(|thread| used(*thread) < lengths[*thread]).collect();
            open.into_iter().map(move |thread| [&order[..], &[thread]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// Different agents for so many threads, in every order.
fn assignments(threads: usize) -> Vec<Vec<Agent>> {
    let mut all = vec![vec![]];
    for _ in 0..threads {
        let longer = |taken: Vec<Agent>| {
            let free: Vec<_> = Agent::ALL.into_iter().filter(|agent| !taken.contains(agent)).collect();
            free.into_iter().map(move |agent| [&taken[..], &[agent]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// Runs a shape once, and returns its outcome.
fn run(stage: &mut Stage, shape: &Shape, agents: &[Agent], order: &[usize]) -> String {
    let is_mapped = agents.contains(&Agent::Mapped);
    stage.prepare(is_mapped);
    let mut oracle = Order::new(stage.layout.mode == Mode::Eager, stage.layout.places.len());
    let mut reads: Vec<Vec<u8>> = vec![vec![]; agents.len()];
    let mut next = vec![0; agents.len()];
    let failed = |what: &str, stage: &Stage, reads: &[Vec<u8>]| -> ! {
        panic!(
            "{what}\n  {} by {agents:?} in the order {order:?}, read so far {reads:?}\n  {:?}",
            shape.name, stage.layout
        );
    };
    for &thread in order {
        let (agent, op) = (agents[thread], shape.threads[thread][next[thread]]);
        next[thread] += 1;
        match (op, agent) {
            (Op::Write(place, value), _) => {
                stage.write(agent, place, value);
                oracle.write(agent, place, value);
            }
            (Op::Read(place), _) => {
                let seen = stage.read(agent, place);
                reads[thread].push(seen);
                if let Err(allowed) = oracle.read(agent, place, seen) {
                    failed(
                        &format!("{agent:?} reads {seen} at place {place}, and may read {allowed:?}"),
                        stage,
                        &reads,
                    );
                }
            }
            (Op::Publish, Agent::Device(device)) => {
                stage.release(device);
                oracle.release(device);
            }
            (Op::Look, Agent::Device(device)) => {
                stage.acquire(device);
                oracle.acquire(device);
            }
            (Op::Look, Agent::Process | Agent::Mapped) if stage.layout.mode == Mode::Lazy => {
                stage.sync();
                oracle.sync();
            }
            (Op::Publish | Op::Look, _) => {}
            (Op::Rewrite(place) | Op::Flicker(place), _) => {
                let value = stage.read(agent, place);
                if op == Op::Flicker(place) && agent.device().is_some() {
                    stage.write(agent, place, !value);
                }
                stage.write(agent, place, value);
            }
        }
    }
    // In the end everybody publishes, and then everybody looks.
    for device in 0..2 {
        stage.release(device);
        oracle.release(device);
    }
    // As a sync, without its wait for the disk.
    stage.flush();
    oracle.sync();
    for device in 0..2 {
        stage.acquire(device);
        oracle.acquire(device);
    }
    let mut finals = Vec::new();
    for place in 0..stage.layout.places.len() {
        let all: Vec<_> = Agent::ALL.into_iter().filter(|agent| is_mapped || *agent != Agent::Mapped).collect();
        let values: Vec<_> = all.iter().map(|agent| stage.read(*agent, place)).collect();
        if values.iter().any(|value| *value != values[0]) {
            failed(&format!("{all:?} do not agree in the end on place {place}: {values:?}"), stage, &reads);
        }
        if let Err(allowed) = oracle.read(Agent::Process, place, values[0]) {
            failed(
                &format!("all read {} at place {place} in the end, and may read {allowed:?}", values[0]),
                stage,
                &reads,
            );
        }
        finals.push(values[0]);
    }
    let digits = reads.concat().into_iter().chain(finals.into_iter().take(shape.finals));
    let outcome: String = digits.map(|digit| digit.to_string()).collect();
    if !shape.outcomes.contains(&outcome.as_str()) {
        failed(&format!("the outcome {outcome} is none of {:?}", shape.outcomes), stage, &reads);
    }
    outcome
}

/// How often orders are drawn until there are two outcomes.
const ROUNDS_MAX: usize = 20;

/// Runs shapes by all agents, each in some orders of its steps; `BIFOLIO_LITMUS_ORDERS` asks for more of them.
/// If so many runs are made that chance cannot hide one, every outcome that is listed shows.
fn check(shapes: &[Shape], page_bytes: impl Fn(u64) -> bool, orders_max: usize) {
    let asked = std::env::var("BIFOLIO_LITMUS_ORDERS").ok().and_then(|text| text.parse().ok());
    let orders_max = asked.unwrap_or(orders_max);
    let mut random = random();
    let layouts: Vec<_> = Layout::all().into_iter().filter(|layout| page_bytes(layout.page_bytes)).collect();
    for devices in sets(2) {
        let mut stages: Vec<_> = layouts.iter().map(|layout| Stage::new(&devices, layout)).collect();
        for shape in shapes {
            let mut shown: BTreeMap<String, usize> = BTreeMap::new();
            let lengths: Vec<_> = shape.threads.iter().map(|thread| thread.len()).collect();
            // A few orders may all have one outcome by chance: others are drawn until there are two.
            for _ in 0..ROUNDS_MAX {
                for agents in assignments(shape.threads.len()) {
                    for order in orders(&lengths, orders_max, &mut random) {
                        let stage = random.below(stages.len() as u64) as usize;
                        *shown.entry(run(&mut stages[stage], shape, &agents, &order)).or_default() += 1;
                    }
                }
                if shown.len() > 1 || shape.outcomes.len() == 1 {
                    break;
                }
            }
            println!("{}: {shown:?}", shape.name);
            let runs: usize = shown.values().sum();
            let missing: Vec<_> = shape.outcomes.iter().filter(|outcome| !shown.contains_key(**outcome)).collect();
            assert!(missing.is_empty() || runs < 1000 * shape.outcomes.len(), "{}: {missing:?} never show", shape.name);
            assert!(shown.len() > 1 || shape.outcomes.len() == 1, "{}: only {shown:?}", shape.name);
        }
    }
}

#[test]
fn two_agents_in_small_pages() {
    check(PAIRS, |page_bytes| page_bytes < FRAME, 6);
}

#[test]
fn two_agents_in_large_pages() {
    check(PAIRS, |page_bytes| page_bytes == FRAME, 1);
}

#[test]
fn three_and_four_agents_in_small_pages() {
    check(GROUPS, |page_bytes| page_bytes < FRAME, 2);
}
