//! IPRewriterPatterns: patterns with names, for rewriters.
//!
//! `IPRewriterPatterns(NAME SADDR SPORT DADDR DPORT, ...)`: no ports. Each argument names a pattern (see [`Pattern`]), or is
//! another name of one, for all rewriters of its compound and below. What is next in a range is shared by all who use the name,
//! and is kept in the place of another router.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Log;
use crate::args::{Arg, ArgCx, Args, Failed, NameKind, Prefix};
use crate::element::{Element, downcast};
use crate::lang::config::split_words;
use crate::rewrite::{Names, Pattern};
use crate::router::Cx;

/// The element.
#[derive(Default)]
pub(super) struct IpRewriterPatterns {
    patterns: Vec<Arc<Pattern>>,
}

/// Names of addresses as an element sees them.
pub(super) struct Known<'a, 'b>(pub(super) &'a ArgCx<'b>);

impl Names for Known<'_, '_> {
    fn address(&self, text: &str) -> Option<std::net::Ipv4Addr> {
        Arg::parse(text, self.0).ok()
    }

    fn prefix(&self, text: &str) -> Option<(std::net::Ipv4Addr, u32)> {
        let prefix = Prefix::with_mask(text, self.0).ok()?;
        Some((prefix.address, prefix.len()?))
    }
}

/// Where a pattern is to be had.
#[derive(Debug, Clone)]
pub(super) enum Which {
    /// Here.
    Own(Arc<Pattern>),
    /// It is this one of another element's.
    Named {
        /// The element's number.
        element: usize,
        /// The pattern's.
        index: usize,
    },
}

impl Which {
    /// Of the words of a pattern, or of a name. Errors are Click's.
    pub(super) fn parse(words: &[&str], cx: &ArgCx<'_>) -> Result<Self, String> {
        let [name] = *words else { return Pattern::parse(words, &Known(cx)).map(Self::Own) };
        let value = cx.names.get(NameKind::RewriterPattern, name, cx.element);
        let (element, index) =
            value.and_then(<[u8]>::split_first_chunk).ok_or_else(|| format!("no such pattern '{name}'"))?;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte));
        Ok(Self::Named { element: number(element as &[u8; 4]), index: number(index) })
    }

    /// The pattern: to be called once, before packets come.
    pub(super) fn resolve(&mut self, cx: &mut Cx<'_>) {
        if let Self::Named { element, index } = *self {
            let pattern = cx.with(element, |named: &mut IpRewriterPatterns, _| named.patterns.get(index).cloned());
            if let Some(pattern) = pattern.flatten() {
                *self = Self::Own(pattern);
            }
        }
    }

    /// Goes on in its range where another one stopped, if it is the same.
    pub(super) fn go_on(&self, other: &Self) {
        if let (Some(own), Some(other)) = (self.get(), other.get()) {
            own.go_on(other);
        }
    }

    /// The pattern in words, once it was resolved.
    pub(super) fn told(&self) -> String {
        self.get().map(Pattern::to_string).unwrap_or_default()
    }

    /// The pattern, once it was resolved.
    pub(super) fn get(&self) -> Option<&Pattern> {
        match self {
            Self::Own(pattern) => Some(pattern),
            Self::Named { .. } => None,
        }
    }
}

impl Element for IpRewriterPatterns {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let element = args.cx().elements.number(args.cx().element).unwrap_or(0) as u32;
        let mut own: HashMap<String, Vec<u8>> = HashMap::new();
        for text in args.rest() {
            let words = split_words(&text);
            let Some((name, words)) = words.split_first() else { continue };
            let cx = args.cx();
            let known = |name: &str| {
                let before = cx.names.get(NameKind::RewriterPattern, name, cx.element);
                own.get(name).cloned().or_else(|| before.map(<[u8]>::to_vec))
            };
            let place = match words {
                _ if known(name).is_some() => Err(format!("pattern '{name}' already defined")),
                // Another name for a pattern.
                [other] => known(other).ok_or_else(|| format!("no such pattern '{other}'")),
                words => {
                    Pattern::parse(&words.iter().map(String::as_str).collect::<Vec<_>>(), &Known(cx)).map(|pattern| {
                        let index = self.patterns.len() as u32;
                        self.patterns.push(pattern);
                        [element.to_be_bytes(), index.to_be_bytes()].concat()
                    })
                }
            };
            match place {
                Ok(place) => {
                    args.define(NameKind::RewriterPattern, name, &place);
                    own.insert(name.clone(), place);
                }
                Err(error) => _ = args.error(error),
            }
        }
        args.finish()
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, _: &mut Log) {
        let Some(old) = downcast::<Self>(old) else { return };
        self.patterns.iter().zip(&old.patterns).for_each(|(own, old)| own.go_on(old));
    }
}
