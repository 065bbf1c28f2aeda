//! One behaviour of all tables, against a list that is searched from its beginning.

use super::*;
use crate::error::Log;
use crate::lang::config::split_args;
use fastrand::Rng;
use proptest::prelude::*;
use route::mask_of;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

fn tables() -> Vec<(&'static str, Box<dyn Table>)> {
    vec![
        ("linear", Box::new(LinearTable::default())),
        ("radix", Box::new(RadixTable::default())),
        ("direct", Box::new(DirectTable::default())),
        ("range", Box::new(RangeTable::default())),
    ]
}

/// The oracle.
#[derive(Default)]
struct List(Vec<Route>);

impl List {
    fn lookup(&self, address: u32) -> NextHop {
        let longest = self.0.iter().filter(|route| route.contains(address)).max_by_key(|route| route.mask);
        longest.map_or(NextHop::NONE, Route::hop)
    }

    fn at(&self, route: &Route) -> Option<usize> {
        self.0.iter().position(|old| (old.address, old.mask) == (route.address, route.mask))
    }

    fn insert(&mut self, route: Route, replace: bool) -> Result<Option<Route>, Refusal> {
        match self.at(&route) {
            Some(at) if replace => Ok(Some(std::mem::replace(&mut self.0[at], route))),
            Some(at) => Err(Refusal::Exists(self.0[at])),
            None => {
                self.0.push(route);
                Ok(None)
            }
        }
    }

    fn remove(&mut self, route: &Route) -> Result<Route, Refusal> {
        let at = self.at(route).filter(|&at| route.output < 0 || self.0[at] == *route);
        at.map(|at| self.0.swap_remove(at)).ok_or(Refusal::Missing)
    }
}

/// A route in a few places that have much in common, so that prefixes lie in each other and are given twice.
fn random_route(rng: &mut Rng, places: &[u32]) -> Route {
    let len = match rng.u8(..16) {
        0 => 0,
        1 => 32,
        2 => rng.u8(1..=16),
        3..8 => rng.u8(25..=32),
        8..14 => rng.u8(17..=24),
        _ => rng.u8(..=32),
    };
    let place = places[rng.usize(..places.len())];
    let noise = rng.u32(..) & rng.u32(..) & [0xff, 0xffff, 0xff_ffff, u32::MAX][rng.usize(..4)];
    let mask = mask_of(len);
    let gateway = if rng.bool() { 0 } else { rng.u32(1..6) };
    Route { address: (place ^ noise) & mask, mask, gateway, output: rng.i32(..4) }
}

/// Addresses at and beside the borders of routes, and some others.
fn probes(rng: &mut Rng, routes: &[Route]) -> Vec<u32> {
    let borders = routes.iter().flat_map(|route| {
        let last = route.address | !route.mask;
        [
            route.address.wrapping_sub(1),
            route.address,
            route.address.wrapping_add(1),
            last.wrapping_sub(1),
            last,
            last.wrapping_add(1),
        ]
    });
    let inside: Vec<u32> = routes.iter().map(|route| route.address | rng.u32(..) & !route.mask).collect();
    borders.chain(inside).chain((0..20).map(|_| rng.u32(..))).collect()
}

fn assert_same(name: &str, table: &dyn Table, list: &List, addresses: &[u32]) {
    let mut hops = vec![NextHop { gateway: 77, output: 77 }; addresses.len()];
    table.lookup_batch(addresses, &mut hops);
    for (&address, &hop) in addresses.iter().zip(&hops) {
        assert_eq!(hop, list.lookup(address), "{name}: {address:#010x}, of many\n{:x?}", list.0);
        assert_eq!(table.lookup(address), hop, "{name}: {address:#010x}");
    }
}

#[test]
fn every_table_answers_as_a_list_does_after_each_change() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    for (name, table) in tables() {
        let places: Vec<u32> = (0..3).map(|_| rng.u32(..)).collect();
        let mut list = List::default();
        for step in 0..1500 {
            let route = random_route(&mut rng, &places);
            match rng.u8(..40) {
                0..18 => assert_eq!(table.edit().insert(route, false), list.insert(route, false), "{name}"),
                18..24 => assert_eq!(table.edit().insert(route, true), list.insert(route, true), "{name}"),
                24..38 if !list.0.is_empty() => {
                    let mut gone = list.0[rng.usize(..list.0.len())];
                    match rng.u8(..4) {
                        0 => gone.output = -1,
                        1 => gone.output = rng.i32(..4),
                        _ => {}
                    }
                    assert_eq!(table.edit().remove(&gone), list.remove(&gone), "{name}");
                }
                24..38 => assert_eq!(table.edit().remove(&route), Err(Refusal::Missing), "{name}"),
                _ if step % 7 == 0 => {
                    table.edit().clear();
                    list.0.clear();
                }
                _ => {}
            }
            let near = probes(&mut rng, &[route]);
            assert_same(name, &*table, &list, &near);
            if step % 50 == 0 {
                let all = probes(&mut rng, &list.0);
                assert_same(name, &*table, &list, &all);
            }
        }
        let mut routes = table.edit().routes();
        routes.sort_by_key(|route| (route.address, route.mask));
        list.0.sort_by_key(|route| (route.address, route.mask));
        assert_eq!(routes, list.0, "{name}");
    }
}

#[test]
fn changes_of_one_edit_are_seen_together() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    for (name, table) in tables() {
        let places: Vec<u32> = (0..4).map(|_| rng.u32(..)).collect();
        let mut list = List::default();
        for _ in 0..40 {
            let old = List(list.0.clone());
            let mut touched = Vec::new();
            let mut edit = table.edit();
            for _ in 0..rng.usize(1..60) {
                let route = random_route(&mut rng, &places);
                touched.push(route);
                if rng.u8(..30) == 0 {
                    edit.clear();
                    list.0.clear();
                } else if rng.u8(..3) > 0 {
                    assert_eq!(edit.insert(route, true), list.insert(route, true), "{name}");
                } else if let Some(&gone) = list.0.first() {
                    touched.push(gone);
                    assert_eq!(edit.remove(&gone), list.remove(&gone), "{name}");
                }
            }
            let near = probes(&mut rng, &touched);
            assert_same(name, &*table, &old, &near);
            drop(edit);
            let near = probes(&mut rng, &[touched, old.0, list.0.clone()].concat());
            assert_same(name, &*table, &list, &near);
        }
    }
}

#[test]
fn a_table_that_is_cleared_twice_is_empty() {
    for (name, table) in tables() {
        let route = Route { address: 0x0a00_0000, mask: mask_of(8), gateway: 0, output: 1 };
        assert_eq!(table.edit().insert(route, false), Ok(None));
        let mut edit = table.edit();
        edit.clear();
        edit.clear();
        drop(edit);
        assert_eq!(table.lookup(0x0a00_0001), NextHop::NONE, "{name}");
    }
}

#[test]
fn one_16_bit_prefix_may_be_full_of_routes() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    for (name, table) in tables().into_iter().skip(1) {
        let hop = |address: u32| Route { address, mask: u32::MAX, gateway: address % 5, output: (address % 7) as i32 };
        let mut edit = table.edit();
        (0..1 << 16).for_each(|low| assert_eq!(edit.insert(hop(0x0102_0000 | low), false), Ok(None)));
        drop(edit);
        let check =
            |low: u32| assert_eq!(table.lookup(0x0102_0000 | low), hop(0x0102_0000 | low).hop(), "{name} {low}");
        (0..1 << 16).for_each(check);
        for _ in 0..200 {
            let gone = hop(0x0102_0000 | rng.u32(..1 << 16));
            assert_eq!(table.edit().remove(&gone), Ok(gone), "{name}");
            assert_eq!(table.lookup(gone.address), NextHop::NONE, "{name}");
            assert_eq!(table.edit().insert(gone, false), Ok(None), "{name}");
        }
        (0..1 << 16).for_each(check);
        table.edit().clear();
        assert!((0..1 << 16).all(|low| table.lookup(0x0102_0000 | low) == NextHop::NONE));
    }
}

/// More next hops than 16 bits can tell apart, all in one place and beside places with few.
#[test]
fn each_route_may_have_a_next_hop_of_its_own() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    let tables: [(&str, Box<dyn Table>); 2] =
        [("radix", Box::new(RadixTable::default())), ("range", Box::new(RangeTable::default()))];
    for (name, table) in tables {
        let place = rng.u32(..) & mask_of(15);
        let mut hops: HashMap<u32, Route> = HashMap::new();
        let mut edit = table.edit();
        for _ in 0..100_000 {
            let address = place | rng.u32(..1 << 16) | u32::from(rng.u8(..8) == 0) << 16;
            let route = Route { address, mask: u32::MAX, gateway: 1 + hops.len() as u32, output: rng.i32(..9) };
            assert!(edit.insert(route, true).is_ok(), "{name}");
            hops.insert(address, route);
        }
        (0..1 << 17).filter(|low| low % 3 > 0).for_each(|low| {
            hops.entry(place | low).or_insert_with(|| {
                let route = Route { address: place | low, mask: u32::MAX, gateway: 200_000 + low, output: 9 };
                assert_eq!(edit.insert(route, false), Ok(None), "{name}");
                route
            });
        });
        drop(edit);
        let addresses: Vec<u32> = (0..1 << 17).map(|low| place | low).collect();
        let mut found = vec![NextHop::NONE; addresses.len()];
        table.lookup_batch(&addresses, &mut found);
        for (address, hop) in addresses.iter().zip(found) {
            assert_eq!(hop, hops.get(address).map_or(NextHop::NONE, Route::hop), "{name} {address:#x}");
            assert_eq!(hop, table.lookup(*address), "{name} {address:#x}");
        }
    }
}

#[test]
fn memory_is_used_again_and_again() {
    let mut rng = Rng::with_seed(bifolio_testing::seed());
    for (name, table) in tables() {
        let mut last = HashMap::new();
        for round in 0..30_000_u32 {
            let address = 0x0a00_0000 | rng.u32(..1 << 12);
            let route = Route { address, mask: u32::MAX, gateway: 1 + round, output: 1 };
            assert!(table.edit().insert(route, true).is_ok(), "{name}");
            last.insert(address, route);
            if last.len() > 300 {
                let gone = *last.values().next().unwrap();
                assert_eq!(table.edit().remove(&gone), Ok(gone), "{name}");
                last.remove(&gone.address);
            }
        }
        let list = List(last.into_values().collect());
        let near = probes(&mut rng, &list.0);
        assert_same(name, &*table, &list, &near);
    }
}

/// Each address has one of two answers at any time, and readers must never see a third, whatever memory is used for.
#[test]
fn readers_see_the_old_or_the_new_answer_while_routes_change() {
    let seed = bifolio_testing::seed();
    for (name, table) in tables() {
        let stop = AtomicBool::new(false);
        // The answer for an address is its /24, or its last byte where there is a host route, so that a block or a node that
        // is read for another prefix gives itself away.
        let net = |at: u32| Route { address: at << 8, mask: mask_of(24), gateway: at, output: 1 };
        let host = |at: u32| Route { address: at, mask: u32::MAX, gateway: at, output: 2 };
        let count = if name == "linear" { 4 } else { 64 };
        (0..count).for_each(|at| assert_eq!(table.edit().insert(net(0x0a_0000 + at * 97), false), Ok(None)));
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|reader| {
                    let (table, stop) = (&table, &stop);
                    scope.spawn(move || {
                        let mut rng = Rng::with_seed(seed ^ reader);
                        let mut hops = [NextHop::NONE; 100];
                        let mut seen = 0_u64;
                        while !stop.load(Ordering::Relaxed) {
                            let addresses: [u32; 100] =
                                std::array::from_fn(|_| (0x0a_0000 + rng.u32(..count) * 97) << 8 | rng.u32(..256));
                            table.lookup_batch(&addresses, &mut hops);
                            for (&address, &hop) in addresses.iter().zip(&hops) {
                                let right = hop == net(address >> 8).hop() || hop == host(address).hop();
                                assert!(right, "{name}: {address:#x} has {hop:x?}");
                            }
                            seen += 1;
                        }
                        seen
                    })
                })
                .collect();
            let mut rng = Rng::with_seed(seed);
            let mut there = Vec::new();
            for _ in 0..60_000 {
                let route = host((0x0a_0000 + rng.u32(..count) * 97) << 8 | rng.u32(..256));
                if there.len() < 30 {
                    if table.edit().insert(route, false).is_ok() {
                        there.push(route);
                    }
                } else {
                    let gone = there.swap_remove(rng.usize(..there.len()));
                    assert_eq!(table.edit().remove(&gone), Ok(gone));
                }
            }
            stop.store(true, Ordering::Relaxed);
            let seen: u64 =
                readers.into_iter().map(|reader| reader.join().expect("a reader that saw right answers")).sum();
            println!("{name}: {seen} batches");
        });
    }
}

#[test]
fn a_direct_table_says_when_it_is_full() {
    let table = DirectTable::default();
    let deep = |at: u32| Route { address: at << 8, mask: mask_of(25), gateway: 0, output: 1 };
    let mut edit = table.edit();
    (0..32768).for_each(|at| assert_eq!(edit.insert(deep(at), false), Ok(None)));
    assert_eq!(edit.insert(deep(40_000), false), Err(Refusal::Full));
    assert_eq!(edit.insert(Route { mask: mask_of(26), ..deep(5) }, false), Ok(None));
    assert_eq!(edit.remove(&deep(7)), Ok(deep(7)));
    assert_eq!(edit.insert(deep(40_000), false), Ok(None));
    assert_eq!(edit.insert(deep(40_001), false), Err(Refusal::Full));
    drop(edit);
    assert_eq!(table.lookup(40_000 << 8), deep(7).hop());
    assert_eq!(table.lookup(7 << 8), NextHop::NONE);
    table.edit().clear();
    let hop = |at: u32| Route { address: at << 16, mask: mask_of(16), gateway: 1 + at, output: 0 };
    let mut edit = table.edit();
    (0..32767).for_each(|at| assert_eq!(edit.insert(hop(at), false), Ok(None)));
    assert_eq!(edit.insert(hop(32767), false), Err(Refusal::Full));
    assert_eq!(edit.remove(&hop(3)), Ok(hop(3)));
    assert_eq!(edit.insert(hop(32767), false), Ok(None));
    drop(edit);
    assert_eq!(table.lookup(32767 << 16), hop(32767).hop());
    assert_eq!(table.lookup(5 << 16 | 5), hop(5).hop());
}

#[test]
fn masks_that_are_no_prefixes_are_for_the_linear_table() {
    let odd = Route { address: 0x0a00_0300, mask: 0xff00_ff00, gateway: 0, output: 1 };
    for (name, table) in tables() {
        let expected = if name == "linear" { Ok(None) } else { Err(Refusal::NotAPrefix) };
        assert_eq!(table.edit().insert(odd, false), expected, "{name}");
        assert_eq!(table.lookup(0x0a63_0399), if name == "linear" { odd.hop() } else { NextHop::NONE });
        assert_eq!(table.lookup(0x0a63_0499), NextHop::NONE);
    }
}

fn commands(table: &dyn Table) -> Commands<'_, NoNames> {
    Commands { table, outputs: 3, names: &NoNames }
}

#[test]
fn handlers_change_a_table_and_look_into_it() {
    for (name, table) in tables() {
        let commands = commands(&*table);
        let steps = [
            (Verb::Add, "18.26/16 1.0.0.1 0", "0 1.0.0.1"),
            (Verb::Add, "18.26.0/18 2.0.0.2 1", "1 2.0.0.2"),
            (Verb::Add, "18.26.0/17 3.0.0.3 2", "1 2.0.0.2"),
            (Verb::Remove, "18.26.0/18 2.0.0.2 1", "2 3.0.0.3"),
            (Verb::Remove, "18.26.0/16 1.0.0.1 0", "2 3.0.0.3"),
            (Verb::Add, "18.26.0/12 4.0.0.4 0", "2 3.0.0.3"),
            (Verb::Remove, "18.26.0/17 3.0.0.3 2", "0 4.0.0.4"),
            (Verb::Add, "0.0.0.0/32 99.99.99.99 0", "0 4.0.0.4"),
            (Verb::Add, "18.26.4.9/32 5.0.0.5 0", "0 5.0.0.5"),
            (Verb::Remove, "18.26.4.9/32 5.0.0.5 0", "0 4.0.0.4"),
        ];
        for (verb, route, answer) in steps {
            assert_eq!(commands.run(verb, route), Ok(()), "{name}: {route}");
            assert_eq!(commands.lookup("18.26.4.9").as_deref(), Ok(answer), "{name}: {route}");
        }
        let conflict = commands.run(Verb::Add, "18.26.0/12 6.0.0.6 0").unwrap_err();
        assert_eq!(conflict, "conflict with existing route '18.16.0.0/12 4.0.0.4 0'");
        assert_eq!(commands.run(Verb::Set, "18.26.0/12 7.0.0.7 0"), Ok(()));
        assert_eq!(commands.lookup("18.26.4.9").as_deref(), Ok("0 7.0.0.7"));
        assert_eq!(commands.run(Verb::Remove, "18.26.0/12 7.0.0.7 0"), Ok(()));
        assert_eq!(commands.lookup(" 18.26.4.9 ").as_deref(), Ok("-1"));
        let again = commands.run(Verb::Remove, "18.26.0/12").unwrap_err();
        assert_eq!(again, "route '18.16.0.0/12 - -1' not found");
        commands.flush();
        assert_eq!(commands.table(), "");
    }
}

#[test]
fn handlers_say_what_is_wrong() {
    let table = RadixTable::default();
    let commands = commands(&table);
    assert_eq!(commands.run(Verb::Add, "1.2.3.0/24").unwrap_err(), "expected 'ADDR/MASK [GATEWAY] OUTPUT'");
    assert_eq!(commands.run(Verb::Remove, "x").unwrap_err(), "expected 'ADDR/MASK [GATEWAY OUTPUT]'");
    assert_eq!(commands.run(Verb::Add, "1.2.3.0/24 3").unwrap_err(), "bad OUTPUT");
    assert_eq!(commands.run(Verb::Add, "1.2.3.0/24 -1").unwrap_err(), "bad OUTPUT");
    assert_eq!(commands.run(Verb::Remove, "1.2.3.0/24 -2").unwrap_err(), "bad OUTPUT");
    assert_eq!(commands.ctrl("remvoe 1.2.3.0/24").unwrap_err(), "bad command 'remvoe'");
    assert_eq!(commands.lookup("1.2.3").unwrap_err(), "expected IP address");
    assert_eq!(commands.lookup("1.2.3.4 5").unwrap_err(), "expected IP address");
    assert_eq!(commands.table(), "");
}

#[test]
fn a_table_is_shown_in_the_order_of_its_slots() {
    for (name, table) in tables() {
        let commands = commands(&*table);
        for route in ["1.0.0.0/8 0", "2.0.0.0/8 1.1.1.1 1", "3.0.0.0/8 2"] {
            commands.run(Verb::Add, route).unwrap();
        }
        commands.run(Verb::Remove, "2.0.0.0/8").unwrap();
        commands.run(Verb::Add, "4.0.0.0/8 1").unwrap();
        assert_eq!(commands.table(), "1.0.0.0/8\t\t-\t\t0\n4.0.0.0/8\t\t-\t\t1\n3.0.0.0/8\t\t-\t\t2\n", "{name}");
        commands.run(Verb::Set, "1.0.0.0/8 2").unwrap();
        let replaced = if name == "radix" {
            "4.0.0.0/8\t\t-\t\t1\n3.0.0.0/8\t\t-\t\t2\n1.0.0.0/8\t\t-\t\t2\n"
        } else {
            "1.0.0.0/8\t\t-\t\t2\n4.0.0.0/8\t\t-\t\t1\n3.0.0.0/8\t\t-\t\t2\n"
        };
        assert_eq!(commands.table(), replaced, "{name}");
    }
}

#[test]
fn commands_of_a_group_are_done_all_or_not_at_all() {
    for (name, table) in tables() {
        let commands = commands(&*table);
        commands.ctrl("add 1/8 0\n\n  // why\nset 2/8 1/* 1\n2 */add 3/8 9.9.9.9 2 /* last */").unwrap();
        let before = commands.lookup("1.1.1.1").unwrap() + &commands.lookup("3.3.3.3").unwrap();
        let mut lines: Vec<String> = commands.table().lines().map(Into::into).collect();
        let bad = "set 1/8 2\nremove 2/8\nadd 2/8 0\nadd 4/8 0\nremove 3/8\nadd 1/8 0\nadd 5/8 0";
        assert_eq!(commands.ctrl(bad).unwrap_err(), "conflict with existing route '1.0.0.0/8 - 2'", "{name}");
        assert_eq!(commands.lookup("1.1.1.1").unwrap() + &commands.lookup("3.3.3.3").unwrap(), before);
        assert_eq!(commands.lookup("4.4.4.4").as_deref(), Ok("-1"));
        let mut after: Vec<String> = commands.table().lines().map(Into::into).collect();
        lines.sort();
        after.sort();
        assert_eq!(after, lines, "{name}");
    }
}

#[test]
fn a_configuration_reports_every_argument_that_is_wrong() {
    let table = RadixTable::default();
    let mut log = Log::new();
    let args = split_args("1/8 0, 2/8, 1/8 1, 3/8 3, 4/255.0.255.0 1, 5.6.7.8/255.0.255.0 1, 1/8 2, 6/8 - 2");
    commands(&table).configure(&args, &mut log);
    let expected = "argument 2 should be 'ADDR/MASK [GATEWAY] OUTPUT'\nargument 4 bad OUTPUT\n\
                    argument 5 should be 'ADDR/MASK [GATEWAY] OUTPUT'\n\
                    mask of route '5.0.7.0/255.0.255.0 - 1' is not a prefix\n\
                    warning: 2 routes replaced by later versions\n";
    assert_eq!(log.to_string(), expected);
    assert_eq!(commands(&table).lookup("1.2.3.4").as_deref(), Ok("0"));
    assert_eq!(commands(&table).lookup("6.2.3.4").as_deref(), Ok("2"));
}

proptest! {
    /// Whatever is written, all of it is done or nothing; in all tables the same.
    #[test]
    fn any_group_of_commands_is_done_in_all_tables_the_same_or_not_at_all(
        lines in prop::collection::vec("(add|set|remove|) ?(1|2)(/8|.0.0.0/7|.2/16|) ?(-|9.9.9.9|) ?(0|1|7|)( // .{0,3})?", 0..12),
        noise in ".{0,30}",
    ) {
        let mut first = None;
        for (name, table) in tables() {
            let commands = commands(&*table);
            commands.ctrl("add 1/8 0\nadd 1.2/16 9.9.9.9 1").unwrap();
            let shown = || -> Vec<String> {
                let mut lines: Vec<_> = commands.table().lines().map(ToOwned::to_owned).collect();
                lines.sort();
                lines
            };
            let before = shown();
            let _ = commands.ctrl(&noise);
            prop_assert_eq!(&shown(), &before);
            let done = commands.ctrl(&lines.join("\n"));
            prop_assert!(done.is_ok() || shown() == before, "{}", name);
            let result = (done, shown());
            prop_assert_eq!(first.get_or_insert(result.clone()), &result, "{}", name);
        }
    }
}
