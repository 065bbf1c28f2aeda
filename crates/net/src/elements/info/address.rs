//! AddressInfo: names for addresses.
//!
//! `AddressInfo(NAME ADDRESS [ADDRESS...], ...)`, no ports: other elements may say NAME where they take an address. An ADDRESS is
//! an IP address, a prefix (`10.0.0.0/8`, `10.0.0.0/255.0.0.0`) or an Ethernet address; a name may have one of each. A prefix with
//! bits outside of its mask (`10.0.0.1/8`) is an address, too, unless NAME has one. NAME means which of them is asked for;
//! `NAME:ip`, `NAME:ipnet`, `NAME:bcast` and `NAME:eth` say which.
//!
//! Names are known in the compound element where the AddressInfo stands, and in those within.
//!
//! IPv6 addresses are taken, and nobody asks for them. In Click, names that are given in several AddressInfos are checked for
//! conflicts, too; here only those of one are, and the last one counts.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::args::{Arg, Args, Failed, NameKind, Prefix};
use crate::element::Element;
use crate::headers::ether::EtherAddress;
use crate::lang::config::split_words;

/// The element.
#[derive(Default)]
pub(super) struct AddressInfo;

/// What a name stands for.
#[derive(Default)]
struct Known {
    address: Option<Ipv4Addr>,
    prefix: Option<Prefix>,
    ether: Option<EtherAddress>,
}

impl Element for AddressInfo {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut known: HashMap<String, Known> = HashMap::new();
        for arg in args.rest() {
            match &split_words(&arg)[..] {
                [] => {}
                [_] => _ = args.error(format_args!("expected 'NAME [ADDRS]', got '{arg}'")),
                [name, addresses @ ..] => {
                    let known = known.entry(name.clone()).or_default();
                    for address in addresses {
                        known.add(name, address, args);
                    }
                }
            }
        }
        for (name, known) in known {
            known.define(&name, args);
        }
        args.finish()
    }
}

impl Known {
    fn add(&mut self, name: &str, text: &str, args: &mut Args<'_>) {
        if let Ok(address) = Ipv4Addr::parse(text, args.cx()) {
            if self.address.is_some_and(|old| old != address) {
                args.warning(format_args!("\"{name}\" IP addresses conflict"));
            } else if self.prefix.is_some_and(|prefix| !prefix.contains(address)) {
                args.warning(format_args!("\"{name}\" IP address and IP address prefix conflict"));
            }
            self.address = Some(address);
        } else if let Ok(prefix) = Prefix::with_mask(text, args.cx()) {
            if self.address.is_some_and(|address| !prefix.contains(address)) {
                args.warning(format_args!("\"{name}\" IP address and IP address prefix conflict"));
            } else if self.prefix.is_some_and(|old| old.mask != prefix.mask || !old.contains(prefix.address)) {
                args.warning(format_args!("\"{name}\" IP address prefixes conflict"));
            }
            self.prefix = Some(prefix);
        } else if let Ok(ether) = EtherAddress::parse(text, args.cx()) {
            if self.ether.is_some_and(|old| old != ether) {
                args.warning(format_args!("\"{name}\" Ethernet addresses conflict"));
            }
            self.ether = Some(ether);
        } else if text.split('/').next().is_none_or(|address| address.parse::<Ipv6Addr>().is_err()) {
            args.error(format_args!("\"{name}\" '{text}' is not a recognizable address"));
        }
    }

    fn define(&self, name: &str, args: &mut Args<'_>) {
        if let Some(Prefix { address, mask }) = self.prefix {
            args.define(NameKind::IpPrefix, name, &[address.octets(), mask.octets()].concat());
        }
        let outside = |prefix: &Prefix| u32::from(prefix.address) & !u32::from(prefix.mask) != 0;
        let address = self.address.or_else(|| self.prefix.filter(outside).map(|prefix| prefix.address));
        if let Some(address) = address {
            args.define(NameKind::IpAddress, name, &address.octets());
        }
        if let Some(ether) = self.ether {
            args.define(NameKind::EtherAddress, name, &ether.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::Harness;

    #[test]
    fn names_stand_for_addresses() {
        let mut harness = Harness::new(
            "AddressInfo(foo 1.2.3.4/20, net 10.1.0.0/16, ); give :: Give -> rt :: LinearIPLookup(foo 0, foo:ipnet 1, foo:bcast 2, \
             net 0, net:bcast 1) -> Take; rt[1] -> Take; rt[2] -> Take",
        );
        let table = harness.read("rt.table");
        let routes: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for route in ["1.2.3.4/32 - 0", "1.2.0.0/20 - 1", "1.2.15.255/32 - 2", "10.1.0.0/16 - 0", "10.1.255.255/32 - 1"]
        {
            assert!(routes.iter().any(|found| found == route), "{route}: {table}");
        }
    }

    #[test]
    fn names_are_those_of_the_compound_element() {
        let inner = "{ AddressInfo(me 10.0.0.1); give :: Give -> SetIPAddress(me) -> Take }";
        Harness::new(inner);
        let errors = Harness::errors(&format!("{inner} give :: Give -> SetIPAddress(me) -> Take"));
        assert_eq!(errors.matches("While configuring").count(), 1, "{errors}");
        Harness::new("AddressInfo(me 10.0.0.1) { { give :: Give -> SetIPAddress(me:ip) -> Take } }");
    }

    #[test]
    fn wrong_addresses_are_told() {
        let errors = Harness::errors("AddressInfo(a, b x, c 1.2.3.4/33 1.2.3.4 ::1)");
        for line in [
            "expected 'NAME [ADDRS]', got 'a'",
            "\"b\" 'x' is not a recognizable address",
            "\"c\" '1.2.3.4/33' is not a recognizable address",
        ] {
            assert!(errors.contains(line), "{errors}");
        }
        let errors = Harness::errors(
            "AddressInfo(a 1.2.3.4 1.2.3.5, b 1.2.3.4 2.0.0.0/8, c 1.0.0.0/8 1.0.0.0/9, d 0:0:0:0:0:1 0:0:0:0:0:2, e)",
        );
        for line in
            ["\"a\" IP addresses conflict", "\"b\" IP address and", "\"c\" IP address prefixes", "\"d\" Ethernet"]
        {
            assert!(errors.contains(&format!("warning: {line}")), "{line}: {errors}");
        }
    }
}
