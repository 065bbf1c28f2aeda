//! ARPQuerier: puts IP packets into Ethernet frames for the hosts that their destination annotations name.
//!
//! `ARPQuerier(IP[/MASK], ETH, [TABLE, CAPACITY, ENTRY_CAPACITY, ENTRY_PACKET_CAPACITY, CAPACITY_SLIM_FACTOR, TIMEOUT, POLL_TIMEOUT,
//! BROADCAST, BROADCAST_POLL])`, or one name for both addresses. Input 0: IP packets; input 1: ARP answers, with their Ethernet
//! headers. Output 0: frames; output 1, if there is one: questions. All push.
//!
//! IP and ETH are this host's addresses. A packet whose next hop is not known waits, and a question is sent, at most ten a second
//! for an address. TABLE names an ARPTable (or another ARPQuerier) whose addresses are used; else CAPACITY and the next four, as
//! ARPTable has them, are those of a table of its own. After POLL_TIMEOUT (60 s; 0: never) without an answer an address is asked
//! for again, from its host alone, or from everybody if BROADCAST_POLL (false). BROADCAST is an IP address that stands for
//! everybody, by default the last one of the network, as 255.255.255.255 does always. Groups have their own Ethernet addresses.
//! Packets for 0.0.0.0 are dropped.
//!
//! Handlers: `table`, `stats`, `count`, `length`, `queries`, `responses`, `drops`, `ipaddr` (r/w), `broadcast` (r/w), `insert`
//! (`IP ETH`), `delete` (`IP`), `clear`.
//!
//! In the place of another router, it takes the table and the counts of a querier of its name with the same addresses.
//!
//! Differs from Click: where answers come back within the router itself, without a queue on their way, packets come one by one.

use super::arp_cache::{Kept, Limits, Table};
use super::arp_table::{ArpTable, Shared, pause};
use super::frame::header;
use crate::args::{Arg, Args, ElementRef, Failed, Interval, Prefix};
use crate::element::{Batch, Element, downcast};
use crate::handler::Handlers;
use crate::headers::ether::{LEN, TYPE_ARP, TYPE_IP};
use crate::headers::{Arp, ArpMut, Ether, EtherAddress, arp};
use crate::router::Cx;
use crate::{Log, Packet, Timestamp};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

/// The table: its own needs no lock.
enum Known {
    Own(Box<Table>),
    Shared(Shared),
}

impl Known {
    #[inline]
    fn with<R>(&mut self, work: impl FnOnce(&mut Table) -> R) -> R {
        match self {
            Self::Own(table) => work(table),
            Self::Shared(table) => work(&mut table.lock().expect("no panic in it")),
        }
    }
}

/// What may be configured.
#[derive(Clone, Copy)]
struct Settings {
    ip: Ipv4Addr,
    ether: EtherAddress,
    broadcast: Ipv4Addr,
    poll: Interval,
    polls_all: bool,
}

/// The element.
pub(super) struct ArpQuerier {
    settings: Settings,
    known: Known,
    shares: Option<ElementRef>,
    queries: u64,
    responses: u64,
    drops: u64,
    has_warned: bool,
    loops: bool,
}

impl Default for ArpQuerier {
    fn default() -> Self {
        let unknown = Ipv4Addr::UNSPECIFIED;
        let poll = Interval(Timestamp::new(60, 0));
        let settings =
            Settings { ip: unknown, ether: EtherAddress::default(), broadcast: unknown, poll, polls_all: false };
        Self {
            settings,
            known: Known::Own(Box::default()),
            shares: None,
            queries: 0,
            responses: 0,
            drops: 0,
            has_warned: false,
            loops: false,
        }
    }
}

/// The Ethernet address of a group of hosts.
fn group(ip: Ipv4Addr) -> EtherAddress {
    let [_, b, c, d] = ip.octets();
    EtherAddress([1, 0, 0x5e, b & 0x7f, c, d])
}

/// The texts of IP and ETH, of which keywords may stand before them, as nothing else does any more.
fn addresses(args: &mut Args<'_>) -> [Option<String>; 2] {
    let mut texts = [None, None];
    for text in args.rest() {
        let (word, value) = text.split_once(char::is_whitespace).unwrap_or(("", &text));
        let place = match word {
            "" => texts.iter_mut().find(|place| place.is_none()),
            "IP" => Some(&mut texts[0]),
            "ETH" => Some(&mut texts[1]),
            other => {
                args.error_of(other, "unknown argument");
                continue;
            }
        };
        match place {
            Some(place) => *place = Some(value.trim().to_owned()),
            None => {
                args.error("too many arguments");
            }
        }
    }
    texts
}

fn read_address<T: Arg>(args: &mut Args<'_>, keyword: &str, text: Option<String>, into: &mut T) {
    match text.map(|text| T::parse(&text, args.cx())) {
        None => {
            args.error_of(keyword, "required argument missing");
        }
        Some(Err(error)) => {
            args.error_of(keyword, error);
        }
        Some(Ok(value)) => *into = value,
    }
}

/// The table of an ARPTable, or of a querier, which may have another one's.
fn table_of(cx: &mut Cx<'_>, mut element: usize) -> Result<Shared, &'static str> {
    for _ in 0..cx.router().len() {
        if let Some(table) = cx.with(element, |table: &mut ArpTable, _| table.share()) {
            return Ok(table);
        }
        let of_querier = |querier: &mut ArpQuerier, _: &mut Cx<'_>| (querier.shares, querier.share());
        match cx.with(element, of_querier) {
            Some((Some(ElementRef(next)), _)) => element = next,
            Some((None, table)) => return Ok(table),
            None => break,
        }
    }
    Err("TABLE: type mismatch, expected ARPTable")
}

/// Where the packet goes, or what keeps it.
#[derive(Clone, Copy)]
enum Way {
    To(EtherAddress),
    /// The same, and its host is asked.
    Ask(EtherAddress),
    Keep,
    Drop,
}

impl ArpQuerier {
    /// The table, for others: it gets a lock.
    fn share(&mut self) -> Shared {
        let shared = match &mut self.known {
            Known::Shared(table) => Arc::clone(table),
            Known::Own(table) => Arc::new(Mutex::new(std::mem::take(&mut **table))),
        };
        self.known = Known::Shared(Arc::clone(&shared));
        shared
    }

    #[inline]
    fn way(&mut self, ip: Ipv4Addr, now: Timestamp) -> Way {
        let poll = self.settings.poll.0;
        match self.known.with(|table| table.lookup(ip.to_bits(), poll, now)) {
            Some((ether, false)) => Way::To(ether),
            Some((ether, true)) => Way::Ask(ether),
            None if ip.is_broadcast() || ip == self.settings.broadcast => Way::To(EtherAddress::BROADCAST),
            None if ip.is_multicast() => Way::To(group(ip)),
            None if ip.is_unspecified() => Way::Drop,
            None => Way::Keep,
        }
    }

    /// Sends a packet that has room for its header on its way.
    fn send(&mut self, cx: &mut Cx<'_>, mut packet: Packet, way: Way) {
        let to = match way {
            Way::To(to) => to,
            Way::Ask(to) => {
                let asked = if self.settings.polls_all { EtherAddress::BROADCAST } else { to };
                self.ask(cx, asked, &packet);
                to
            }
            Way::Keep => return self.keep(cx, packet),
            Way::Drop => {
                if !self.has_warned {
                    self.has_warned = true;
                    let name = cx.declaration();
                    cx.say(format_args!("{name}: would query for 0.0.0.0; missing dest IP addr annotation?"));
                }
                self.drops += 1;
                return;
            }
        };
        packet.bytes_mut()[..LEN].copy_from_slice(&header(to, self.settings.ether, TYPE_IP));
        cx.emit(0, packet);
    }

    fn keep(&mut self, cx: &mut Cx<'_>, packet: Packet) {
        let (ip, now) = (packet.dst_ip().to_bits(), cx.now());
        // The question takes its annotations.
        let about = packet.clone();
        if self.known.with(|table| table.keep(ip, packet, now)) == Kept::Ask {
            self.ask(cx, EtherAddress::BROADCAST, &about);
        }
    }

    /// Sends a question for a packet's next hop.
    fn ask(&mut self, cx: &mut Cx<'_>, to: EtherAddress, about: &Packet) {
        let mut bytes = [0; LEN + arp::LEN];
        bytes[..LEN].copy_from_slice(&header(to, self.settings.ether, TYPE_ARP));
        if let Some(mut question) = ArpMut::new(&mut bytes[LEN..]) {
            question.set_operation(arp::REQUEST);
            question.set_sender(self.settings.ether, self.settings.ip);
            question.set_target(EtherAddress::default(), about.dst_ip());
        }
        let mut packet = Packet::from_slice(&bytes);
        packet.set_mac_header(0);
        packet.set_network_header(LEN as isize, 0);
        packet.set_timestamp(about.timestamp());
        super::frame::set_vlan_tci(&mut packet, super::frame::vlan_tci(about));
        self.queries += 1;
        cx.emit(cx.outputs() - 1, packet);
    }

    fn answer(&mut self, cx: &mut Cx<'_>, packet: &Packet) {
        let Some((frame, message)) =
            Ether::new(packet.bytes()).and_then(|frame| Some((frame, Arp::new(frame.payload())?)))
        else {
            return;
        };
        self.responses += 1;
        let is_answer = frame.kind() == TYPE_ARP && message.hardware() == 1 && message.protocol() == TYPE_IP;
        if !is_answer || message.operation() != arp::REPLY || message.sender().is_group() {
            return;
        }
        let (ip, now) = (message.sender_ip().to_bits(), cx.now());
        let waited = self.known.with(|table| {
            table.insert(ip, message.sender(), now);
            table.take(ip)
        });
        for packet in waited {
            let way = self.way(packet.dst_ip(), now);
            self.send(cx, packet, way);
        }
    }

    fn read_settings(args: &mut Args<'_>, settings: &mut Settings) {
        let mut broadcast = None;
        args.key("BROADCAST", &mut broadcast)
            .key("POLL_TIMEOUT", &mut settings.poll)
            .key("BROADCAST_POLL", &mut settings.polls_all);
        let (mut prefix, mut texts) = (Prefix::default(), addresses(args));
        if let [Some(text), second @ None] = &mut texts {
            // One name stands for both addresses.
            *second = Some(text.clone());
        }
        let [ip, ether] = texts;
        read_address(args, "IP", ip, &mut prefix);
        read_address(args, "ETH", ether, &mut settings.ether);
        settings.ip = prefix.address;
        let last = Ipv4Addr::from(prefix.address.to_bits() | !prefix.mask.to_bits());
        let last = if last == prefix.address { Ipv4Addr::BROADCAST } else { last };
        settings.broadcast = broadcast.unwrap_or(last);
    }
}

impl Element for ArpQuerier {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut shares = None;
        args.key("TABLE", &mut shares);
        let mut limits = match &self.known {
            Known::Own(table) => table.limits(),
            Known::Shared(_) => Limits::default(),
        };
        limits.read(args);
        let mut settings = Self::default().settings;
        Self::read_settings(args, &mut settings);
        args.finish()?;
        let is_same = (settings.ip, settings.ether) == (self.settings.ip, self.settings.ether);
        if let Known::Own(table) = &mut self.known {
            table.set_limits(limits);
            if !is_same {
                table.clear();
            }
        }
        (self.settings, self.shares) = (settings, shares);
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if let Some(ElementRef(other)) = self.shares {
            self.known = Known::Shared(table_of(cx, other)?);
        } else {
            let timeout = self.known.with(|table| table.limits().timeout);
            if !timeout.0.is_zero() {
                cx.timer_after(0, pause(timeout));
            }
        }
        let id = cx.id();
        self.loops = cx.downstream(None, |element| element == id).contains(&id);
        Ok(())
    }

    fn take_state(&mut self, _: &mut Cx<'_>, old: &mut dyn Element, log: &mut Log) {
        let who = |querier: &Self| (querier.settings.ip, querier.settings.ether, querier.settings.broadcast);
        let Some(old) = downcast::<Self>(old).filter(|old| who(old) == who(self)) else { return };
        let have_own = self.shares.is_none() && old.shares.is_none();
        if have_own && !self.known.with(|table| old.known.with(|old| table.take_over(old))) {
            log.error_here("late take_state");
        }
        (self.queries, self.responses, self.drops) = (old.queries, old.responses, old.drops);
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, mut packet: Packet) {
        if port != 0 {
            return self.answer(cx, &packet);
        }
        if self.settings.ip.is_unspecified() {
            self.drops += 1;
            return;
        }
        packet.push(LEN);
        packet.set_mac_header(0);
        let way = self.way(packet.dst_ip(), cx.now());
        self.send(cx, packet, way);
    }

    fn push_batch(&mut self, cx: &mut Cx<'_>, port: usize, batch: &mut Batch) {
        if port != 0 || self.settings.ip.is_unspecified() {
            return cx.push_each(self, port, batch);
        }
        // The next hop of the packet before, as long as nothing changes the table.
        let mut last: Option<(Ipv4Addr, [u8; LEN])> = None;
        cx.filter_batch(batch, |cx, packet| {
            let ip = packet.dst_ip();
            let bytes = packet.push(LEN);
            if let Some((known, header)) = &last
                && *known == ip
            {
                bytes[..LEN].copy_from_slice(header);
                packet.set_mac_header(0);
                return true;
            }
            packet.set_mac_header(0);
            if last.is_none_or(|(known, _)| known != ip) {
                last = match self.way(ip, cx.now()) {
                    Way::To(to) => Some((ip, header(to, self.settings.ether, TYPE_IP))),
                    way => {
                        self.send(cx, packet.clone(), way);
                        None
                    }
                };
            }
            let Some((_, header)) = &last else { return false };
            packet.bytes_mut()[..LEN].copy_from_slice(header);
            true
        });
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        let now = cx.now();
        let timeout = self.known.with(|table| {
            table.slim_entries(now, 0);
            table.limits().timeout
        });
        cx.timer_after(0, pause(timeout));
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("table", |querier: &mut Self, cx| querier.known.with(|table| table.text(cx.now())));
        handlers.read("stats", |querier: &mut Self, _| {
            let drops = querier.drops + querier.known.with(|table| table.drops());
            format!("{drops} packets killed\n{} ARP queries sent\n", querier.queries)
        });
        handlers.read("count", |querier: &mut Self, _| querier.known.with(|table| table.count()));
        handlers.read("length", |querier: &mut Self, _| querier.known.with(|table| table.length()));
        handlers.read("queries", |querier: &mut Self, _| querier.queries);
        handlers.read("responses", |querier: &mut Self, _| querier.responses);
        handlers.read("drops", |querier: &mut Self, _| querier.drops);
        handlers.data("broadcast", |querier: &mut Self| &mut querier.settings.broadcast);
        handlers.data("ipaddr", |querier: &mut Self| &mut querier.settings.ip);
        handlers.write("insert", |querier: &mut Self, cx, text| {
            querier.known.with(|table| table.insert_text(cx.arg_cx(), text, cx.now()))
        });
        handlers.write("delete", |querier: &mut Self, cx, text| {
            querier.known.with(|table| table.delete_text(cx.arg_cx(), text, cx.now()))
        });
        handlers.button("clear", |querier: &mut Self, _| {
            (querier.queries, querier.responses, querier.drops) = (0, 0, 0);
            querier.known.with(Table::clear);
        });
    }

    fn observes(&self) -> bool {
        self.loops
    }

    /// Who has the same table: answers that come to one change where packets of another go.
    fn shares(&self) -> Vec<usize> {
        self.shares.iter().map(|ElementRef(other)| *other).collect()
    }

    fn reconfigures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
