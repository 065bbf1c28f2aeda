//! ARPResponder: answers ARP questions.
//!
//! `ARPResponder(IP/MASK [IP/MASK ...] ETH, ...)`: one input; one output, and one for packets that are no questions or have no
//! answer here, which is pushed. Answers to questions for an address in one of the networks leave by output 0 and say ETH; the
//! smallest network that has the address counts. A name that stands for both an address and an Ethernet address is enough.
//!
//! Handlers: `table`, `lookup` (an address: its Ethernet address), `add` (as an argument), `remove` (`IP/MASK`).
//!
//! Differs from Click: questions about anything but IPv4 over Ethernet have no answer, whatever the lengths of addresses say.

use super::frame::header;
use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed, Prefix};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::ether::{LEN, TYPE_ARP};
use crate::headers::{Arp, ArpMut, Ether, EtherAddress, arp};
use crate::lang::config::split_words;
use crate::packet::anno;
use crate::router::Cx;
use std::fmt::Write;
use std::net::Ipv4Addr;

/// Addresses that are answered alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    address: u32,
    mask: u32,
    ether: EtherAddress,
}

impl Entry {
    /// The network as it is printed: with the mask's length, or the mask where it has holes.
    fn text(&self) -> String {
        let (address, mask) = (Ipv4Addr::from(self.address), Ipv4Addr::from(self.mask));
        match (Prefix { address, mask }).len() {
            Some(len) => format!("{address}/{len}"),
            None => format!("{address}/{mask}"),
        }
    }

    /// Whether the other one's network is within this one's.
    fn contains(&self, other: &Self) -> bool {
        self.mask & other.mask == self.mask && other.address & self.mask == self.address
    }
}

/// A network, or an address; a name that stands for both is an address.
fn prefix(text: &str, cx: &ArgCx<'_>) -> Option<(u32, u32)> {
    let bare = Ipv4Addr::parse(text, cx).ok().map(|address| (u32::from(address), u32::MAX));
    let network = || Prefix::with_mask(text, cx).ok().map(|prefix| (u32::from(prefix.address), u32::from(prefix.mask)));
    bare.or_else(network).map(|(address, mask)| (address & mask, mask))
}

/// The entries of one argument.
fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Vec<Entry>, &'static str> {
    let words = split_words(text);
    let (mut networks, mut ether) = (Vec::new(), None);
    for word in &words {
        if let Some(network) = prefix(word, cx) {
            networks.push(network);
        } else if let Ok(address) = EtherAddress::parse(word, cx) {
            if ether.replace(address).is_some() {
                return Err("more than one ETH");
            }
        } else {
            return Err("expected IP/MASK ETH");
        }
    }
    let named = || words.iter().find_map(|word| EtherAddress::parse(word, cx).ok());
    let ether = ether.or_else(named);
    if networks.is_empty() {
        return Err("missing IP/MASK");
    }
    let ether = ether.ok_or("missing ETH")?;
    Ok(networks.into_iter().map(|(address, mask)| Entry { address, mask, ether }).collect())
}

/// Puts smaller networks first and keeps the last of equal ones; returns those that were there more than once.
fn normalise(entries: &mut Vec<Entry>) -> Vec<String> {
    let mut result: Vec<Entry> = Vec::with_capacity(entries.len());
    let mut doubled = Vec::new();
    for entry in entries.drain(..) {
        if let Some(same) = result.iter_mut().find(|known| (known.address, known.mask) == (entry.address, entry.mask)) {
            doubled.push(entry.text());
            *same = entry;
            continue;
        }
        let at = result.iter().position(|known| known.contains(&entry)).unwrap_or(result.len());
        result.insert(at, entry);
    }
    *entries = result;
    doubled
}

/// The element.
#[derive(Default)]
pub(super) struct ArpResponder {
    entries: Vec<Entry>,
}

impl ArpResponder {
    fn lookup(&self, address: u32) -> Option<EtherAddress> {
        self.entries.iter().find(|entry| address & entry.mask == entry.address).map(|entry| entry.ether)
    }

    /// The answer to a packet, if it is a question that has one.
    fn answer(&self, question: &Packet) -> Option<Packet> {
        let frame = Ether::new(question.bytes()).filter(|frame| frame.kind() == TYPE_ARP)?;
        let asked = Arp::new(frame.payload())?;
        if !asked.is_ip_over_ether() || asked.operation() != arp::REQUEST {
            return None;
        }
        let ether = self.lookup(asked.target_ip().to_bits())?;
        let mut bytes = [0; LEN + arp::LEN];
        bytes[..LEN].copy_from_slice(&header(asked.sender(), ether, TYPE_ARP));
        let mut answer = ArpMut::new(&mut bytes[LEN..])?;
        answer.set_operation(arp::REPLY);
        answer.set_sender(ether, asked.target_ip());
        answer.set_target(asked.sender(), asked.sender_ip());
        let mut packet = Packet::from_slice(&bytes);
        packet.set_mac_header(0);
        packet.set_network_header(LEN as isize, 0);
        packet.set_anno_u32(anno::DEVICE, question.anno_u32(anno::DEVICE));
        super::frame::set_vlan_tci(&mut packet, super::frame::vlan_tci(question));
        Some(packet)
    }

    fn text(&self) -> String {
        self.entries.iter().fold(String::new(), |mut text, entry| {
            let _ = writeln!(text, "{} {}", entry.text(), entry.ether);
            text
        })
    }

    fn remove(&mut self, cx: &Cx<'_>, text: &str) -> Result<(), String> {
        let (address, mask) = prefix(text.trim(), &cx.arg_cx()).ok_or("expected IP/MASK")?;
        let ether = EtherAddress::default();
        let at = self.entries.iter().position(|entry| (entry.address, entry.mask) == (address, mask));
        self.entries.remove(at.ok_or_else(|| format!("{} not found", Entry { address, mask, ether }.text()))?);
        Ok(())
    }
}

impl Element for ArpResponder {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut entries = Vec::new();
        for (number, text) in args.rest().iter().enumerate() {
            match parse(text, args.cx()) {
                Ok(more) => entries.extend(more),
                Err(error) => {
                    args.error(format_args!("argument {number}: {error}"));
                }
            }
        }
        args.finish()?;
        for network in normalise(&mut entries) {
            args.warning(format_args!("multiple entries for {network}"));
        }
        self.entries = entries;
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        let answer = self.answer(&packet);
        if answer.is_none() {
            cx.emit_checked(1, packet);
        }
        answer
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("table", |responder: &mut Self, _| responder.text());
        handlers.ask("lookup", |responder: &mut Self, cx, text| {
            let address = cx.parse::<Ipv4Addr>(text.trim()).map_err(|_| "expected IP address")?;
            Ok(responder.lookup(address.to_bits()).map(|ether| ether.to_string()).unwrap_or_default())
        });
        handlers.write("add", |responder: &mut Self, cx, text| {
            responder.entries.extend(parse(text, &cx.arg_cx())?);
            normalise(&mut responder.entries);
            Ok(())
        });
        handlers.write("remove", |responder: &mut Self, cx, text| responder.remove(cx, text));
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::ether::frame::set_vlan_tci;
    use crate::elements::testing::{Harness, fuzz};

    fn question(target: [u8; 4]) -> Packet {
        let mut bytes = [0; 42];
        bytes[..14].copy_from_slice(&header(EtherAddress::BROADCAST, EtherAddress([6; 6]), TYPE_ARP));
        let mut message = ArpMut::new(&mut bytes[14..]).unwrap();
        message.set_operation(arp::REQUEST);
        message.set_sender(EtherAddress([6; 6]), Ipv4Addr::new(10, 0, 0, 6));
        message.set_target(EtherAddress::default(), target.into());
        Packet::from_slice(&bytes)
    }

    #[test]
    fn questions_are_answered_and_the_rest_goes_elsewhere() {
        let mut harness = Harness::new(
            "give :: Give -> r :: ARPResponder(1.0.0.0/8 2.0.0.1 1:1:1:1:1:1, 1.2.0.0/16 2:2:2:2:2:2)\n\
             -> take :: Take; r[1] -> other :: Take",
        );
        let mut tagged = question([1, 2, 3, 4]);
        set_vlan_tci(&mut tagged, 77);
        let mut reply = question([1, 0, 0, 1]);
        reply.bytes_mut()[21] = 2;
        let cut = Packet::from_slice(&question([1, 0, 0, 1]).bytes()[..41]);
        harness.give("give", [tagged, question([2, 0, 0, 2]), reply, cut, question([2, 0, 0, 1])]);
        let answers = harness.take("take");
        assert_eq!((answers.len(), harness.take("other").len()), (2, 3));
        let frame = Ether::new(answers[0].bytes()).unwrap();
        let message = Arp::new(frame.payload()).unwrap();
        let (asker, answerer) = (EtherAddress([6; 6]), EtherAddress([2; 6]));
        assert_eq!((frame.destination(), frame.source(), frame.kind()), (asker, answerer, TYPE_ARP));
        assert_eq!((message.operation(), message.sender(), message.target()), (arp::REPLY, answerer, asker));
        assert_eq!(message.sender_ip().octets(), [1, 2, 3, 4]);
        assert_eq!(message.target_ip().octets(), [10, 0, 0, 6]);
        assert_eq!((answers[0].len(), super::super::frame::vlan_tci(&answers[0])), (42, 77));
        assert_eq!(Ether::new(answers[1].bytes()).unwrap().source(), EtherAddress([1; 6]));
    }

    #[test]
    fn the_table_is_changed_by_handlers() {
        let mut harness = Harness::new("give :: Give -> r :: ARPResponder -> take :: Take");
        assert_eq!(harness.read("r.table"), "");
        harness.write("r.config", "1.0.0.2/24 0:1:2:3:4:6, 1.0.0.2 0:1:2:3:4:5").unwrap();
        let table = "1.0.0.2/32 00-01-02-03-04-05\n1.0.0.0/24 00-01-02-03-04-06\n";
        assert_eq!(harness.read("r.table"), table);
        harness.write("r.config", "1.0.0.2 0:1:2:3:4:5, 1.0.0.2/24 0:1:2:3:4:6").unwrap();
        assert_eq!(harness.read("r.table"), table);
        harness.write("r.remove", "1.0.0.2").unwrap();
        assert_eq!(harness.write("r.remove", "1.0.0.2/32").unwrap_err(), "1.0.0.2/32 not found");
        assert_eq!(harness.write("r.remove", "x").unwrap_err(), "expected IP/MASK");
        harness.write("r.add", "1.0.0.0/24 9:1:2:3:4:5").unwrap();
        assert_eq!(harness.read("r.table"), "1.0.0.0/24 09-01-02-03-04-05\n");
        assert_eq!(harness.write("r.add", "1.0.0.0/24").unwrap_err(), "missing ETH");
        assert!(harness.write("r.config", "1.0.0.0/24").is_err());
        assert_eq!(harness.read("r.table"), "1.0.0.0/24 09-01-02-03-04-05\n");
    }

    #[test]
    fn arguments_are_networks_and_one_ethernet_address() {
        let told =
            Harness::errors("Give -> ARPResponder(1.0.0.1, 1:1:1:1:1:1, 1.0.0.1 1:1:1:1:1:1 2:2:2:2:2:2, x) -> Take");
        for expected in [
            "argument 0: missing ETH",
            "argument 1: missing IP/MASK",
            "argument 2: more than one ETH",
            "argument 3: expected IP/MASK ETH",
        ] {
            assert!(told.contains(expected), "{told}");
        }
        fuzz("give :: Give -> r :: ARPResponder(0/0 1:1:1:1:1:1) -> a :: Take; r[1] -> b :: Take", &["a", "b"]);
    }

    #[test]
    fn the_smallest_network_counts() {
        let mut rng = fastrand::Rng::with_seed(bifolio_testing::seed());
        for _ in 0..200 {
            let entries: Vec<Entry> = (0..rng.usize(1..12))
                .map(|_| {
                    let mask = u32::MAX << rng.u32(..9);
                    Entry { address: rng.u32(..256) & mask, mask, ether: EtherAddress([rng.u8(..); 6]) }
                })
                .collect();
            let mut normal = entries.clone();
            normalise(&mut normal);
            let responder = ArpResponder { entries: normal };
            for address in 0..256 {
                let matching = entries.iter().filter(|entry| address & entry.mask == entry.address);
                let expected = matching.max_by_key(|entry| entry.mask).map(|entry| entry.ether);
                assert_eq!(responder.lookup(address), expected, "{entries:x?} {address:x}");
            }
        }
    }
}
