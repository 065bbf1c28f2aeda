//! Inputs that are rows of packets, each behind its length, two bytes in network order. The malformed packets that the tests have
//! go through first, and inputs grow from them.

use crate::malformed;
use bifolio_net::Packet;
use bifolio_net::element::{Element, Run};
use bifolio_net::router::{Cx, Running};
use libfuzzer_sys::fuzzer_mutate;
use std::collections::VecDeque;
use std::sync::LazyLock;

pub static MALFORMED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| [malformed::packets(), malformed::frames()].concat());

/// Sends what it is given, as far as there is room for it.
#[derive(Default)]
pub struct Give(VecDeque<Packet>);

impl Element for Give {
    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if !cx.may_push(0) {
            return Run::Idle;
        }
        let Some(packet) = self.0.pop_front() else { return Run::Stop };
        cx.emit(0, packet);
        Run::Worked
    }
}

/// Gives packets to the element `give` of a router.
pub fn give<'a>(running: &mut Running, packets: impl Iterator<Item = &'a [u8]>) {
    let give = running.router().find("give").expect("it is in the configuration");
    running.enter(give, |cx| {
        cx.with(give, |element: &mut Give, cx| {
            element.0.extend(packets.map(Packet::from_slice));
            cx.schedule();
        })
    });
}

/// The packets of an input; the last one ends where the input does.
pub fn split(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = input.split_first_chunk()?;
        let (packet, rest) = rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len()));
        input = rest;
        Some(packet)
    })
}

/// Another input made of this one: a malformed packet in its place or before it, or other bytes.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let known = &MALFORMED[seed as usize / 8 % MALFORMED.len()];
    let len = 2 + known.len();
    if seed % 8 > 0 || len > max_size || known.len() > usize::from(u16::MAX) {
        return fuzzer_mutate(data, size, max_size);
    }
    let kept = if seed % 16 == 0 { size.min(max_size - len) } else { 0 };
    data.copy_within(..kept, len);
    data[..2].copy_from_slice(&(known.len() as u16).to_be_bytes());
    data[2..len].copy_from_slice(known);
    len + kept
}
