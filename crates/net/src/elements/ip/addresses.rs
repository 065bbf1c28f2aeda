//! Lists of addresses in arguments, between spaces.

use crate::args::{Arg, ArgCx, Args, Prefix};
use crate::lang::config::{first_word, is_keyword, split_words};
use std::net::Ipv4Addr;

/// Reads what stands without a keyword, after all keywords: each is stored by the function at its place. A list of addresses
/// looks like a keyword and its value, so that it cannot be read as other arguments are.
pub(super) fn positional(args: &mut Args<'_>, into: &mut [(&str, Store<'_>)]) {
    let rest = args.rest();
    if rest.len() > into.len() {
        args.error("too many arguments");
    }
    for (text, (name, store)) in rest.iter().zip(into) {
        let Err(error) = store(text, args.cx()) else { continue };
        let (word, value) = first_word(text);
        if is_keyword(word) && !value.is_empty() && word.starts_with(|c: char| c.is_ascii_uppercase()) {
            args.error_of(word, "unknown argument");
        } else {
            args.error_of(name, error);
        }
    }
}

/// Stores an argument.
pub(super) type Store<'a> = &'a mut dyn FnMut(&str, &ArgCx<'_>) -> Result<(), String>;

/// Addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Addresses(pub(crate) Vec<Ipv4Addr>);

impl Addresses {
    /// Whether an address is among them; there are a few at most.
    #[inline]
    pub(super) fn contains(&self, address: Ipv4Addr) -> bool {
        self.0.contains(&address)
    }
}

impl Arg for Addresses {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        split_words(text).iter().map(|word| Ipv4Addr::parse(word, cx)).collect::<Result<_, _>>().map(Self)
    }
}

/// Bad source addresses of the old form: those given, 0.0.0.0 and 255.255.255.255.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct BadSources(pub(super) Vec<Ipv4Addr>);

impl Arg for BadSources {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let mut addresses = Addresses::parse(text, cx)?.0;
        addresses.extend([Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST]);
        Ok(Self(addresses))
    }
}

/// A router's own addresses, and those of which no packet may come: broadcast addresses of its networks, and of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Interfaces {
    pub(crate) addresses: Vec<Ipv4Addr>,
    pub(crate) broadcasts: Vec<Ipv4Addr>,
}

impl Arg for Interfaces {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        let mut interfaces = Self::default();
        for word in split_words(text) {
            let prefix = Prefix::parse(&word, cx)?;
            interfaces.addresses.push(prefix.address);
            interfaces.broadcasts.push(prefix.address | !prefix.mask);
        }
        interfaces.broadcasts.extend([Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST]);
        Ok(interfaces)
    }
}
