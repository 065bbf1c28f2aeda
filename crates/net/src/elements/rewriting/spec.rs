//! What an input of a rewriter does with packets of flows that it doesn't know.

use crate::args::ArgCx;
use crate::lang::config::split_words;
use crate::rewrite::{OwnerId, ports_of};
use crate::router::Cx;

use super::mapper::RoundRobinIpMapper;
use super::patterns::Which;

/// The word for elements that have patterns for rewriters.
const MAPPER: &str = "RoundRobinIPMapper";

/// What becomes of packets of new flows.
#[derive(Debug, Clone)]
pub(super) enum Way {
    /// They are dropped.
    Drop,
    /// They pass to an output, and no flow is made of them.
    Pass(usize),
    /// A flow is made that changes nothing.
    Keep,
    /// A flow is made by a pattern.
    Pattern(Which),
    /// Another element makes the flow.
    Mapper(usize),
}

/// An input's way.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    pub(super) way: Way,
    /// Outputs of packets and of replies.
    pub(super) outputs: [u16; 2],
    /// Who its flows are counted for.
    pub(super) owner: OwnerId,
}

impl Spec {
    /// Reads the argument of an input of an element with so many outputs. Errors are Click's, without what stands before.
    pub(super) fn parse(text: &str, outputs: usize, cx: &ArgCx<'_>) -> Result<Self, String> {
        let words = split_words(text);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let Some((&word, rest)) = words.split_first() else { return Err("empty argument".into()) };
        let (way, ports) = match word {
            "pass" | "passthrough" | "nochange" => (Way::Pass(pass(rest, outputs)?), (0, 0)),
            "drop" | "discard" if !rest.is_empty() => return Err(format!("syntax error, expected '{word}'")),
            "drop" | "discard" => (Way::Drop, (0, 0)),
            "keep" => (Way::Keep, ports_of(rest)?),
            "pattern" | "xpattern" => {
                let (which, ports) = pattern(rest, cx)?;
                (Way::Pattern(which), ports)
            }
            _ => match cx.find(word) {
                None => return Err("unknown specification".into()),
                Some(_) if !rest.is_empty() => return Err("syntax error, expected element name".into()),
                Some(element) if cx.elements.class(element) != MAPPER => {
                    return Err("element is not an IPMapper".into());
                }
                Some(element) => (Way::Mapper(element), (0, 0)),
            },
        };
        if ports.0 >= outputs || ports.1 >= outputs {
            return Err("output port out of range".into());
        }
        Ok(Self { way, outputs: [ports.0 as u16, ports.1 as u16], owner: OwnerId::default() })
    }

    /// What it makes of flows, in words: inputs that say the same may have each other's flows.
    pub(super) fn told(&self, cx: &mut Cx<'_>) -> String {
        let way = match &self.way {
            Way::Drop => "drop".to_owned(),
            Way::Pass(output) => format!("pass {output}"),
            Way::Keep => "keep".to_owned(),
            Way::Pattern(which) => which.told(),
            Way::Mapper(element) => {
                cx.with(*element, |mapper: &mut RoundRobinIpMapper, _| mapper.told()).unwrap_or_default()
            }
        };
        format!("{way} {} {}", self.outputs[0], self.outputs[1])
    }

    /// Gets its pattern, before packets come.
    pub(super) fn resolve(&mut self, cx: &mut Cx<'_>) {
        if let Way::Pattern(which) = &mut self.way {
            which.resolve(cx);
        }
    }
}

fn pass(words: &[&str], outputs: usize) -> Result<usize, String> {
    let output = match *words {
        [] => Some(0),
        [word] => word.parse::<i32>().ok(),
        _ => None,
    };
    let output = output.ok_or("syntax error, expected 'nochange [OUTPUT]'")?;
    usize::try_from(output).ok().filter(|&output| output < outputs).ok_or_else(|| "output port out of range".into())
}

/// A pattern, or its name, and two outputs.
pub(super) fn pattern(words: &[&str], cx: &ArgCx<'_>) -> Result<(Which, (usize, usize)), String> {
    let (words, ports) = words.split_at_checked(words.len().saturating_sub(2)).unwrap_or_default();
    if words.is_empty() {
        return Err("syntax error".into());
    }
    Ok((Which::parse(words, cx)?, ports_of(ports)?))
}
