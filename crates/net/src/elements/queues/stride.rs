//! StrideSched: pulls from several inputs, as often as their tickets say.
//!
//! `StrideSched(TICKETS0, ..., TICKETSn)`: pull inputs, pull output. One argument for each input.
//!
//! - TICKETS: how often an input is asked compared with the others, up to 32,768 (more are reduced); 0: never.
//!
//! Stride scheduling (Waldspurger and Weihl, 1995). An input that has nothing when it is its turn loses it.
//!
//! Handlers: `tickets0`, `tickets1` ... (r/w), `config` (the tickets as they are).

use crate::Packet;
use crate::args::{Arg, Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::router::Cx;

const STRIDE: u64 = 1 << 16;
const MAX_TICKETS: i32 = 1 << 15;

#[derive(Default, Clone, Copy)]
struct Client {
    tickets: u32,
    pass: u64,
}

impl Client {
    fn stride(&mut self) {
        self.pass += STRIDE / u64::from(self.tickets.max(1));
    }
}

/// The element.
#[derive(Default)]
pub(super) struct StrideSched {
    clients: Vec<Client>,
    /// Those with tickets, the next one first.
    order: Vec<usize>,
}

impl StrideSched {
    /// Puts a client where its turn is: before those which have theirs at the same time.
    fn insert(&mut self, client: usize) {
        let pass = self.clients[client].pass;
        let at = self.order.iter().position(|other| self.clients[*other].pass >= pass).unwrap_or(self.order.len());
        self.order.insert(at, client);
    }

    fn set(&mut self, client: usize, tickets: u32) {
        let had = std::mem::replace(&mut self.clients[client].tickets, tickets) > 0;
        if had && tickets == 0 {
            self.order.retain(|other| *other != client);
        } else if !had && tickets > 0 {
            let first = self.order.first().map(|first| self.clients[*first].pass);
            self.clients[client].pass = first.map_or(0, |pass| pass + STRIDE / u64::from(tickets));
            self.insert(client);
        }
    }
}

impl Element for StrideSched {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let inputs = args.ports().0;
        let texts = args.rest();
        args.finish()?;
        if texts.len() != inputs {
            return Err(args.error(format_args!("need {inputs} arguments, one per input port")));
        }
        let mut tickets = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            match i32::parse(text, args.cx()) {
                Err(_) => drop(args.error(format_args!("argument {at} should be number of tickets (integer)"))),
                Ok(..0) => drop(args.error(format_args!("argument {at} (number of tickets) must be >= 0"))),
                Ok(given) => {
                    if given > MAX_TICKETS {
                        args.warning(format_args!("input {at}'s tickets reduced to {MAX_TICKETS}"));
                    }
                    tickets.push(given.min(MAX_TICKETS) as u32);
                }
            }
        }
        args.result()?;
        self.clients.resize(inputs, Client::default());
        self.order.clear();
        for (client, tickets) in self.clients.iter_mut().zip(tickets) {
            let is_new = client.pass == 0;
            client.tickets = tickets;
            if is_new {
                client.stride();
            }
        }
        // From the last to the first: at the same time, the first has its turn first.
        for client in (0..inputs).rev().filter(|client| self.clients[*client].tickets > 0).collect::<Vec<_>>() {
            self.insert(client);
        }
        Ok(())
    }

    fn pull(&mut self, cx: &mut Cx<'_>, _: usize) -> Option<Packet> {
        let (mut asked, mut packet) = (0, None);
        while packet.is_none() && asked < self.order.len() {
            let client = self.order[asked];
            if cx.may_pull(client) {
                packet = cx.pull(client);
            }
            self.clients[client].stride();
            asked += 1;
        }
        while asked > 0 {
            // The one that was asked first is put back first.
            let client = self.order.remove(0);
            asked -= 1;
            let (pass, rest) = (self.clients[client].pass, &self.order[asked..]);
            let at = rest.iter().position(|other| self.clients[*other].pass >= pass).unwrap_or(rest.len());
            self.order.insert(asked + at, client);
        }
        packet
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn handlers(&self, handlers: &mut Handlers) {
        for client in 0..self.clients.len() {
            let name = format!("tickets{client}");
            handlers.read(&name, move |sched: &mut Self, _| sched.clients[client].tickets);
            handlers.write(&name, move |sched: &mut Self, cx, text| {
                let tickets = cx.parse::<i32>(text).map_err(|_| "tickets value must be integer".to_owned())?;
                if tickets < 0 {
                    return Err("number of tickets must be >= 0".to_owned());
                }
                sched.set(client, tickets.min(MAX_TICKETS) as u32);
                Ok(())
            });
        }
        handlers.read("config", |sched: &mut Self, _| {
            sched.clients.iter().map(|client| client.tickets.to_string()).collect::<Vec<_>>().join(", ")
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::Packet;
    use crate::elements::testing::Harness;

    fn letters(harness: &mut Harness) -> String {
        harness.take_bytes("take").iter().map(|bytes| bytes[0] as char).collect()
    }

    #[test]
    fn inputs_have_turns_by_their_tickets() {
        let mut harness = Harness::new(
            "ss :: StrideSched(4, 2, 1) -> take :: TakePull; i1 :: InfiniteSource(1, LIMIT 10) -> [0]ss;
             i2 :: InfiniteSource(2, LIMIT 10) -> [1]ss; i3 :: InfiniteSource(3, LIMIT 10, STOP true) -> [2]ss",
        );
        harness.run();
        assert_eq!(letters(&mut harness), "112112311211231122322322333333");
        assert_eq!(harness.runcount(), 0);
    }

    #[test]
    fn tickets_change() {
        let mut harness = Harness::new(
            "ss :: StrideSched(1, 0) -> u :: Unqueue(ACTIVE false, LIMIT 20) -> take :: Take;
             a :: Give -> Queue -> [0]ss; b :: Give -> Queue -> [1]ss",
        );
        for source in ["a", "b"] {
            harness.give(source, (0..100).map(|_| Packet::from_slice(source.as_bytes())));
        }
        harness.write("u.active", "true").unwrap();
        assert_eq!(letters(&mut harness), "a".repeat(20));
        harness.write("ss.tickets1", "3").unwrap();
        harness.write("u.reset", "").unwrap();
        let taken = letters(&mut harness);
        assert!((14..=16).contains(&taken.matches('b').count()), "{taken}");
        assert_eq!((harness.read("ss.config"), harness.read("ss.tickets1")), ("1, 3".to_owned(), "3".to_owned()));
        harness.write("ss.tickets0", "0").unwrap();
        harness.write("u.reset", "").unwrap();
        assert_eq!(letters(&mut harness), "b".repeat(20));
        harness.write("ss.config", "5, 5").unwrap();
        assert_eq!(harness.read("ss.config"), "5, 5");
        assert_eq!(harness.write("ss.tickets0", "-1").unwrap_err(), "number of tickets must be >= 0");
        assert_eq!(harness.write("ss.tickets0", "x").unwrap_err(), "tickets value must be integer");
    }

    #[test]
    fn there_is_an_argument_for_each_input() {
        for (config, told) in [
            ("1", "need 2 arguments, one per input port"),
            ("1, x", "argument 1 should be number of tickets (integer)"),
            ("-1, 5", "argument 0 (number of tickets) must be >= 0"),
        ] {
            let errors = Harness::errors(&format!("s :: StrideSched({config}) -> Discard; Idle -> s; Idle -> [1]s"));
            assert!(errors.contains(told), "{config}: {errors}");
        }
    }
}
