//! Connections between lists of elements, with lists of ports.

use super::program::Compound;
use super::syntax::Ports;
use crate::error::{Landmark, Log};

/// An element in a chain, with the ports that stand beside it.
pub(super) struct Placed {
    pub(super) element: usize,
    pub(super) inputs: Ports,
    pub(super) outputs: Ports,
}

/// One side of a connector: the elements, and their ports on that side.
struct Side<'a> {
    elements: Vec<(usize, &'a Ports)>,
    /// How many ports there are at least.
    min: usize,
    /// Whether there may be more.
    open: bool,
}

impl<'a> Side<'a> {
    fn new(placed: &'a [Placed], output: bool) -> (Self, usize) {
        let ports = |placed: &'a Placed| (placed.element, if output { &placed.outputs } else { &placed.inputs });
        let elements: Vec<_> = placed.iter().map(ports).collect();
        let min = elements.iter().map(|(_, ports)| ports.numbers.len().max(1)).sum();
        let open = elements.iter().filter(|(_, ports)| ports.open).count();
        (Self { elements, min, open: open > 0 }, open)
    }

    /// Whether it is a single element whose port is not said.
    fn is_unsaid(&self) -> bool {
        matches!(self.elements[..], [(_, ports)] if ports.numbers.is_empty())
    }

    fn is_many(&self) -> bool {
        self.min > 1 || self.open
    }

    /// All of its ports, of which open elements have as many more as `total` asks for.
    fn ports(&self, total: usize) -> Vec<(usize, u32)> {
        let mut extra = if self.open { total.saturating_sub(self.min) as u32 } else { 0 };
        let mut all = Vec::new();
        for (element, ports) in &self.elements {
            let numbers: &[u32] = if ports.numbers.is_empty() { &[0] } else { &ports.numbers };
            all.extend(numbers.iter().map(|&port| (*element, port)));
            if ports.open || self.is_unsaid() {
                let last = numbers[numbers.len() - 1];
                all.extend((1..=std::mem::take(&mut extra)).map(|i| (*element, last + i)));
            }
        }
        all
    }
}

/// Connects the ports of one list to those of another: many to one, one to many, or, by `=>`, many to as many.
pub(super) fn connect_all(
    compound: &mut Compound,
    from: &[Placed],
    to: &[Placed],
    multiple: bool,
    at: &Landmark,
    log: &mut Log,
) {
    let ((mut outputs, open_outputs), (mut inputs, open_inputs)) = (Side::new(from, true), Side::new(to, false));
    if open_outputs + open_inputs > 1 {
        log.error(at, "at most one expandable port allowed per connection");
        let closed = if inputs.min < outputs.min { &mut outputs } else { &mut inputs };
        closed.open = false;
    }
    if multiple {
        let (many_outputs, many_inputs) = (outputs.min > 1, inputs.min > 1);
        outputs.open |= many_inputs && outputs.is_unsaid();
        inputs.open |= many_outputs && inputs.is_unsaid();
    }
    if outputs.is_many() && inputs.is_many() {
        check_counts(&outputs, &inputs, multiple, at, log);
    }
    let (outputs, inputs) = (outputs.ports(inputs.min), inputs.ports(outputs.min));
    let count = match (outputs.len(), inputs.len()) {
        (1, many) | (many, 1) => many,
        (outputs, inputs) => outputs.min(inputs),
    };
    for (from, to) in outputs.into_iter().cycle().zip(inputs.into_iter().cycle()).take(count) {
        compound.connect(from, to, at);
    }
}

fn check_counts(outputs: &Side<'_>, inputs: &Side<'_>, multiple: bool, at: &Landmark, log: &mut Log) {
    if !multiple {
        log.error(at, "syntax error: many-to-many connections require '=>'");
    }
    let (from, to) = (outputs.min, inputs.min);
    let text = match (outputs.open, inputs.open) {
        (false, false) if from != to => format!("{from} outputs connected to {to} inputs"),
        (true, false) if to < from => format!("{from} or more outputs connected to {to} inputs"),
        (false, true) if from < to => format!("{from} outputs connected to {to} or more inputs"),
        _ => return,
    };
    log.error(at, format_args!("connection mismatch: {text}"));
}
