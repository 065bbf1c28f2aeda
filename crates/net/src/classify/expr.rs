//! Expressions over the bytes of a packet's headers, as an arena: no recursion, whatever a configuration nests.

use super::headers::Headers;

/// The header that an offset counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Area {
    /// The Ethernet header.
    Mac,
    /// The network header, or a packet's first byte for patterns of `Classifier`.
    Network,
    /// The transport header.
    Transport,
}

impl Area {
    /// What a packet has of it, from its first byte to the packet's last.
    pub(super) fn of<'a>(self, packet: &Headers<'a>) -> &'a [u8] {
        match self {
            Self::Mac => packet.mac,
            Self::Network => packet.network,
            Self::Transport => packet.network.get(packet.transport..).unwrap_or(&[]),
        }
    }
}

/// The test of one field: `field & mask` equals `value`, or is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Test {
    /// The header that the field is in.
    pub(super) area: Area,
    /// The field's first byte.
    pub(super) offset: u32,
    /// Its bytes, 1 to 4; they lie in one aligned word (Ethernet: two bytes later than that).
    pub(super) len: u32,
    /// How many bytes the header must have for the field to count as there: `offset + len` at least.
    pub(super) need: u32,
    /// The bits that count; a test of none of them needs no field.
    pub(super) mask: u32,
    /// What they are compared with; a subset of `mask` if for equality.
    pub(super) value: u32,
    /// Greater than `value` instead of equal.
    pub(super) greater: bool,
    /// The result if the field is not there.
    pub(super) short: bool,
}

impl Test {
    /// That a field equals a value.
    pub(super) fn equal(area: Area, offset: u32, len: u32, mask: u32, value: u32) -> Self {
        Self { area, offset, len, need: offset + len, mask, value: value & mask, greater: false, short: false }
    }

    /// Whether `number`, a field's content, passes.
    pub(super) fn passes(&self, number: u32) -> bool {
        let bits = number & self.mask;
        if self.greater { bits > self.value } else { bits == self.value }
    }

    /// Whether a packet passes.
    #[cfg(test)]
    pub(super) fn holds(&self, packet: &Headers<'_>) -> bool {
        let bytes = self.area.of(packet);
        if self.mask == 0 {
            return self.passes(0);
        }
        if bytes.len() < self.need as usize {
            return self.short;
        }
        let field = &bytes[self.offset as usize..(self.offset + self.len) as usize];
        self.passes(field.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
    }
}

/// Where a node stands in its [`Expr`].
pub(super) type Id = u32;

/// A node; its children stand before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// `true` or `false`.
    Const(bool),
    /// A test.
    Test(Test),
    /// The opposite.
    Not(Id),
    /// All of them; at least one.
    And(Vec<Id>),
    /// One of them at least; at least one.
    Or(Vec<Id>),
    /// If the first, then the second, else the third.
    Choose(Id, Id, Id),
}

/// An expression: nodes, each after its children and in exactly one parent; the last one is the whole.
#[derive(Debug, Clone, Default)]
pub(super) struct Expr {
    nodes: Vec<Node>,
}

impl Expr {
    /// The one that is always `value`.
    pub(super) fn constant(value: bool) -> Self {
        Self { nodes: vec![Node::Const(value)] }
    }

    /// Adds a node.
    pub(super) fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() as Id - 1
    }

    /// Adds a test.
    pub(super) fn test(&mut self, test: Test) -> Id {
        self.add(Node::Test(test))
    }

    /// All of `parts`; true if there are none.
    pub(super) fn all(&mut self, parts: Vec<Id>) -> Id {
        match parts[..] {
            [] => self.add(Node::Const(true)),
            [one] => one,
            _ => self.add(Node::And(parts)),
        }
    }

    /// One of `parts` at least; true if there are none, as an empty term of Click's is.
    pub(super) fn any(&mut self, parts: Vec<Id>) -> Id {
        match parts[..] {
            [] => self.add(Node::Const(true)),
            [one] => one,
            _ => self.add(Node::Or(parts)),
        }
    }

    /// The opposite of `part` if `negated`.
    pub(super) fn negate_if(&mut self, negated: bool, part: Id) -> Id {
        if negated { self.add(Node::Not(part)) } else { part }
    }

    /// All nodes, children first.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether a packet matches: each node from the first to the last, nothing clever.
    #[cfg(test)]
    pub(super) fn holds(&self, packet: &Headers<'_>) -> bool {
        let mut results: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: &Id| results[*id as usize];
            let result = match node {
                Node::Const(value) => *value,
                Node::Test(test) => test.holds(packet),
                Node::Not(part) => !of(part),
                Node::And(parts) => parts.iter().all(of),
                Node::Or(parts) => parts.iter().any(of),
                Node::Choose(condition, yes, no) => {
                    if of(condition) {
                        of(yes)
                    } else {
                        of(no)
                    }
                }
            };
            results.push(result);
        }
        results.last().copied().unwrap_or(true)
    }
}
