//! RadixIPLookup, DirectIPLookup, RangeIPLookup, LinearIPLookup, StaticIPLookup: tables of routes.
//!
//! `RadixIPLookup(ADDR1/MASK1 [GATEWAY1] OUTPUT1, ...)` and so on: push, with an input and any number of outputs. A packet goes to
//! the output of the longest prefix that has its destination address annotation; the annotation is set to the gateway, if there
//! is one. A packet without a route is dropped; the first five are told, but by Direct and Range.
//!
//! - RadixIPLookup: any number of routes; 900,000 of the internet take 10 MiB for packets, and 40 MiB in all.
//! - DirectIPLookup: the fastest, in 33 MiB. Up to 32,767 different next hops, and 32,768 /24s with longer prefixes.
//! - RangeIPLookup: the smallest one for packets.
//! - LinearIPLookup: looks at every route for each packet, so it is for a few. Masks need not be prefixes.
//! - StaticIPLookup: the same, and its routes do not change.
//!
//! An ADDR without a MASK is a prefix of 32 bits. A prefix that is given twice keeps its first route, and a warning counts
//! the others (in Click's words, which say otherwise).
//!
//! Handlers: `table`, `lookup` (with an address: output, -1 for none, and gateway); but for StaticIPLookup: `add`, `set`, `remove` (a
//! route each), `ctrl` (`add`, `set` or `remove` and a route in each line; all or none), and `flush` for Radix, Direct and Range (Click
//! has none for Radix). Packets do not wait for them.
//!
//! Radix shows its table in Click's order. So do Linear and Static. Direct and Range show theirs in the order in which routes
//! came (Click's is that of a hash).

use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed, Prefix};
use crate::element::{Batch, Element};
use crate::error::{Level, Log};
use crate::handler::Handlers;
use crate::lookup::{Commands, DirectTable, LinearTable, Names, NextHop, RadixTable, RangeTable, Table, Verb};
use crate::router::Cx;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// What is special about a class.
pub(super) trait Kind: Send + 'static {
    /// Its table.
    type Table: Table + Default + 'static;
    /// Who tells of packets without a route.
    const TELLS: Option<&str>;
    /// Whether routes change while it runs.
    const CHANGES: bool;
    /// Whether all routes can be removed at once.
    const FLUSHES: bool;
}

macro_rules! kind {
    ($kind:ident, $element:ident, $table:ty, $tells:expr, $changes:literal, $flushes:literal) => {
        pub(super) struct $kind;

        impl Kind for $kind {
            type Table = $table;
            const TELLS: Option<&str> = $tells;
            const CHANGES: bool = $changes;
            const FLUSHES: bool = $flushes;
        }

        pub(super) type $element = IpLookup<$kind>;
    };
}

kind!(Static, StaticIpLookup, LinearTable, Some("LinearIPLookup"), false, false);
kind!(Linear, LinearIpLookup, LinearTable, Some("LinearIPLookup"), true, false);
kind!(Radix, RadixIpLookup, RadixTable, Some("IPRouteTable"), true, true);
kind!(Direct, DirectIpLookup, DirectTable, None, true, true);
kind!(Range, RangeIpLookup, RangeTable, None, true, true);

/// The element.
pub(super) struct IpLookup<K: Kind> {
    table: Arc<K::Table>,
    told: u32,
    addresses: Vec<u32>,
    hops: Vec<NextHop>,
    /// Packets of a batch by their outputs.
    sorted: Vec<Batch>,
    kind: PhantomData<K>,
}

impl<K: Kind> Default for IpLookup<K> {
    fn default() -> Self {
        let (addresses, hops, sorted) = (Vec::new(), Vec::new(), Vec::new());
        Self { table: Arc::default(), told: 0, addresses, hops, sorted, kind: PhantomData }
    }
}

/// Names that a configuration has defined.
pub(crate) struct Defined<'a>(&'a ArgCx<'a>);

/// Whether a word is a number, which no name is: outputs need not be looked for.
fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

impl Names for Defined<'_> {
    fn address(&self, name: &str) -> Option<u32> {
        if is_number(name) { None } else { Ipv4Addr::parse(name, self.0).ok().map(Ipv4Addr::to_bits) }
    }

    fn prefix(&self, name: &str) -> Option<(u32, u32)> {
        let prefix = Prefix::with_mask(name, self.0).ok().filter(|_| !name.contains('/'))?;
        Some((prefix.address.to_bits(), prefix.mask.to_bits()))
    }
}

/// A handler's work on a table, without the element.
fn command<R>(table: &impl Table, cx: &Cx<'_>, work: impl FnOnce(Commands<'_, Defined<'_>>) -> R) -> R {
    command_with(table, cx, cx.outputs(), work)
}

/// The same for a table that leads to so many outputs.
pub(crate) fn command_with<R>(
    table: &impl Table,
    cx: &Cx<'_>,
    outputs: usize,
    work: impl FnOnce(Commands<'_, Defined<'_>>) -> R,
) -> R {
    let arg_cx = cx.arg_cx();
    work(Commands { table, outputs, names: &Defined(&arg_cx) })
}

/// Puts the routes of a configuration into a table that leads to so many outputs.
pub(crate) fn configure_routes(table: &impl Table, outputs: usize, args: &mut Args<'_>) {
    let routes = args.rest();
    let mut log = Log::new();
    Commands { table, outputs, names: &Defined(args.cx()) }.configure(&routes, &mut log);
    for entry in log.take() {
        match entry.level {
            Level::Error => _ = args.error(entry.text),
            _ => args.warning(entry.text),
        }
    }
}

impl<K: Kind> IpLookup<K> {
    #[cold]
    fn tell(&mut self, cx: &Cx<'_>, packet: &Packet) {
        if let Some(class) = K::TELLS.filter(|_| self.told < 5) {
            self.told += 1;
            cx.say(format_args!("{class}: no route for {}", packet.dst_ip()));
        }
    }

    /// Looks all of a batch up; says whether they all go to one output.
    #[inline]
    fn look_up(&mut self, batch: &mut Batch) -> Option<usize> {
        self.addresses.clear();
        self.addresses.extend(batch.iter().map(|packet| packet.dst_ip().to_bits()));
        self.hops.resize(batch.len(), NextHop::NONE);
        self.table.lookup_batch(&self.addresses, &mut self.hops);
        let first = self.hops.first()?.output;
        let mut is_one = true;
        for (packet, hop) in batch.iter_mut().zip(&self.hops) {
            is_one &= hop.output == first;
            if hop.gateway != 0 {
                packet.set_dst_ip(Ipv4Addr::from_bits(hop.gateway));
            }
        }
        usize::try_from(first).ok().filter(|_| is_one)
    }
}

impl<K: Kind> Element for IpLookup<K> {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let cx = args.cx();
        let outputs = cx.elements.number(cx.element).map_or(0, |number| cx.elements.ports(number).1);
        configure_routes(&*self.table, outputs, args);
        args.finish()
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, mut packet: Packet) {
        let hop = self.table.lookup(packet.dst_ip().to_bits());
        if hop.gateway != 0 {
            packet.set_dst_ip(Ipv4Addr::from_bits(hop.gateway));
        }
        match usize::try_from(hop.output) {
            Ok(output) => cx.emit(output, packet),
            Err(_) => self.tell(cx, &packet),
        }
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, _: usize, batch: &mut Batch) {
        if let Some(output) = self.look_up(batch) {
            return cx.emit_batch(output, batch);
        }
        // One of each packet, so that it keeps its place among the others, whatever way it goes.
        self.sorted.resize_with(cx.outputs(), Batch::new);
        for (at, packet) in batch.drain(..).enumerate() {
            match self.sorted.get_mut(self.hops[at].output as usize) {
                Some(sorted) => sorted.push(packet),
                None => self.tell(cx, &packet),
            }
        }
        for (output, sorted) in self.sorted.iter_mut().enumerate() {
            cx.emit_batch(output, sorted);
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let table = || Arc::clone(&self.table);
        let (shown, asked) = (table(), table());
        handlers.free_read("table", move |cx, _| Ok(command(&*shown, cx, |commands| commands.table())));
        handlers.free_read("lookup", move |cx, text| command(&*asked, cx, |commands| commands.lookup(text)));
        if !K::CHANGES {
            return;
        }
        for (name, verb) in [("add", Verb::Add), ("set", Verb::Set), ("remove", Verb::Remove)] {
            let table = table();
            handlers.free_write(name, move |cx, text| command(&*table, cx, |commands| commands.run(verb, text)));
        }
        let (grouped, flushed) = (table(), table());
        handlers.free_write("ctrl", move |cx, text| command(&*grouped, cx, |commands| commands.ctrl(text)));
        if K::FLUSHES {
            handlers.free_write("flush", move |cx, _| {
                command(&*flushed, cx, |commands| commands.flush());
                Ok(())
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    const CLASSES: [&str; 5] = ["RadixIPLookup", "DirectIPLookup", "RangeIPLookup", "LinearIPLookup", "StaticIPLookup"];

    fn harness(class: &str, routes: &str) -> Harness {
        Harness::new(&format!(
            "give :: Give -> r :: {class}({routes}); r[0] -> o0 :: Take; r[1] -> o1 :: Take; r[2] -> o2 :: Take"
        ))
    }

    fn to(address: [u8; 4]) -> Packet {
        let mut packet = Packet::from_slice(&address);
        packet.set_dst_ip(address.into());
        packet
    }

    #[test]
    fn packets_go_where_the_longest_prefix_leads() {
        for class in CLASSES {
            let routes = "18.26.4.24/32 0, 18.26.4.255/32 0, 18.26.4.0/32 0, 18.26.4/24 1, 18.26.4.128/25 7.7.7.7 1,
                          0/0 18.26.4.1 2";
            let mut harness = harness(class, routes);
            let addresses = [[18, 26, 4, 24], [18, 26, 4, 25], [18, 26, 4, 200], [1, 2, 3, 4], [18, 26, 4, 0]];
            harness.give("give", addresses.map(to));
            let gateways = |packets: Vec<Packet>| -> Vec<_> {
                packets.iter().map(|packet| (packet.bytes()[3], packet.dst_ip().octets())).collect()
            };
            assert_eq!(gateways(harness.take("o0")), [(24, addresses[0]), (0, addresses[4])], "{class}");
            assert_eq!(gateways(harness.take("o1")), [(25, addresses[1]), (200, [7; 4])], "{class}");
            assert_eq!(gateways(harness.take("o2")), [(4, [18, 26, 4, 1])], "{class}");
            assert_eq!(harness.read("r.lookup 18.26.4.200"), "1 7.7.7.7");
        }
    }

    #[test]
    fn packets_without_a_route_are_dropped_and_the_first_told() {
        for (class, told) in
            [("RadixIPLookup", "IPRouteTable"), ("DirectIPLookup", ""), ("StaticIPLookup", "LinearIPLookup")]
        {
            let mut harness = harness(class, "1/8 0");
            harness.give("give", (0..9).map(|last| to([2, 0, 0, last])));
            harness.give("give", [to([1, 1, 1, 1]), to([2, 0, 0, 9])]);
            let said = harness.said();
            let expected: Vec<_> = (0..5).map(|last| format!("{told}: no route for 2.0.0.{last}")).collect();
            assert_eq!(said, if told.is_empty() { vec![] } else { expected }, "{class}");
            assert_eq!(harness.take_bytes("o0"), [[1; 4]]);
        }
    }

    #[test]
    fn routes_change_while_packets_run() {
        for class in &CLASSES[..4] {
            let mut harness = harness(class, "");
            let steps = [
                ("add", "18.26/16 1.0.0.1 0", "0 1.0.0.1"),
                ("add", "18.26.0/18 2.0.0.2 1", "1 2.0.0.2"),
                ("add", "18.26.0/17 3.0.0.3 2", "1 2.0.0.2"),
                ("remove", "18.26.0/18 2.0.0.2 1", "2 3.0.0.3"),
                ("remove", "18.26.0/16 1.0.0.1 0", "2 3.0.0.3"),
                ("add", "18.26.0/12 4.0.0.4 0", "2 3.0.0.3"),
                ("remove", "18.26.0/17 3.0.0.3 2", "0 4.0.0.4"),
                ("add", "0.0.0.0/32 99.99.99.99 0", "0 4.0.0.4"),
                ("add", "18.26.4.9/32 5.0.0.5 0", "0 5.0.0.5"),
                ("remove", "18.26.4.9/32 5.0.0.5 0", "0 4.0.0.4"),
                ("set", "18.26.0/12 7.0.0.7 0", "0 7.0.0.7"),
                ("remove", "18.26.0/12 7.0.0.7 0", "-1"),
            ];
            for (handler, route, answer) in steps {
                harness.write(&format!("r.{handler}"), route).unwrap();
                assert_eq!(harness.read("r.lookup 18.26.4.9"), answer, "{class}: {handler} {route}");
            }
            harness.write("r.ctrl", "add 18.26/12 4.0.0.4 0\nset 9/8 1").unwrap();
            let conflict = harness.write("r.add", "18.26/12 6.0.0.6 0").unwrap_err();
            assert!(conflict.contains("conflict with existing route '18.16.0.0/12 4.0.0.4 0'"), "{conflict}");
            harness.give("give", [to([18, 26, 4, 9])]);
            assert_eq!(harness.take("o0")[0].dst_ip().octets(), [4, 0, 0, 4]);
            assert!(harness.read("r.table").contains("9.0.0.0/8\t\t-\t\t1\n"));
            let flushed = harness.write("r.flush", "");
            assert_eq!(flushed.is_ok(), *class != "LinearIPLookup", "{class}");
            assert!(harness.try_read("r.lookup x").unwrap_err().contains("expected IP address"));
        }
    }

    #[test]
    fn a_static_table_has_no_handlers_to_change_it() {
        let mut harness = harness("StaticIPLookup", "1/8 0, 2/8 1.1.1.1 2");
        assert_eq!(harness.read("r.table"), "1.0.0.0/8\t\t-\t\t0\n2.0.0.0/8\t\t1.1.1.1\t\t2\n");
        for handler in ["add", "set", "remove", "ctrl", "flush"] {
            assert!(harness.write(&format!("r.{handler}"), "3/8 1").is_err());
        }
    }

    #[test]
    fn names_stand_for_addresses_and_prefixes() {
        let config = "AddressInfo(ext0 192.168.2.2, net0 10.1.0.0/16);
            give :: Give -> r :: RadixIPLookup(ext0 0, net0 ext0 1, 0.0.0.0/0 1) -> o0 :: Take; r[1] -> o1 :: Take";
        let mut harness = Harness::new(config);
        assert_eq!(harness.read("r.lookup ext0"), "0");
        assert_eq!(harness.read("r.lookup 10.1.2.3"), "1 192.168.2.2");
        // A default route stays, whatever comes beside it.
        harness.write("r.ctrl", "add 10.0.0.0/8 0\nadd 12.0.0.0/8 0\nadd 12.0.0.0/9 0\nadd 11.12.13.0/24 0").unwrap();
        assert_eq!(harness.read("r.lookup 11.12.12.1"), "1");
    }

    #[test]
    fn configurations_that_are_wrong() {
        for class in CLASSES {
            let log = Harness::errors(&format!("Give -> r :: {class}(1/8 0, 2/8, 3/8 1, x 0) -> Take"));
            assert!(log.contains("argument 2 should be 'ADDR/MASK [GATEWAY] OUTPUT'"), "{log}");
            assert!(log.contains("argument 3 bad OUTPUT"), "{log}");
            assert!(log.contains("argument 4 should be"), "{log}");
        }
        let log = Harness::errors("Give -> RadixIPLookup(1.2.3.4/255.0.255.0 0) -> Take");
        assert!(log.contains("mask of route '1.0.3.0/255.0.255.0 - 0' is not a prefix"), "{log}");
    }

    #[test]
    fn all_tables_send_packets_the_same_ways() {
        let mut rng = fastrand::Rng::with_seed(bifolio_testing::seed());
        let mut route = || {
            let gateway = if rng.bool() { "-".to_owned() } else { format!("9.9.9.{}", rng.u8(1..5)) };
            format!("10.{}.{}.{}/{} {gateway} {}", rng.u8(..2), rng.u8(..3), rng.u8(..), rng.u8(8..=32), rng.u8(..3))
        };
        let mut routes: Vec<_> = (0..60).map(|_| route()).collect();
        routes.sort();
        routes.dedup_by_key(|route| route.split(' ').next().unwrap_or_default().to_owned());
        let packets: Vec<_> = (0..3000).map(|_| to([10, rng.u8(..2), rng.u8(..3), rng.u8(..)])).collect();
        let mut first = None;
        for class in CLASSES {
            let mut harness = harness(class, &routes.join(", "));
            packets.chunks(97).for_each(|packets| harness.give("give", packets.iter().cloned()));
            let out = ["o0", "o1", "o2"].map(|sink| {
                let seen = |packet: &Packet| (packet.bytes().to_vec(), packet.dst_ip());
                harness.take(sink).iter().map(seen).collect::<Vec<_>>()
            });
            assert_eq!(*first.get_or_insert(out.clone()), out, "{class}");
        }
    }
}
