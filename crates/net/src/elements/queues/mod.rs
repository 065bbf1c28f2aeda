//! Queues, schedulers, and what chooses among paths.

use crate::element::{Class, Notes};

pub(super) mod bucket;
mod bypass;
mod choices;
mod copies;
mod delay;
mod fraction;
mod link;
mod nulls;
mod pull_switch;
mod queue;
mod random_sample;
mod rate;
mod rated_splitter;
mod rated_unqueue;
mod red;
mod sched;
mod shaper;
mod stride;
mod suppressor;
mod switch;
mod threads;
mod unqueue;

use pull_switch::PullSwitch;
use queue::{DropsFront, Plain, Queue, Quick, TellsFull};
use rated_splitter::RatedSplitter;
use rated_unqueue::RatedUnqueue;
use shaper::Shaper;
use switch::Switch;

/// All of this group.
#[rustfmt::skip] // a line or two for each class
pub(super) static CLASSES: &[Class] = &[
    Class::new::<RatedSplitter<true>>("BandwidthRatedSplitter", "1/1-2", "h", "sends packets above a bandwidth another way"),
    Class::new::<RatedUnqueue<true>>("BandwidthRatedUnqueue", "1/1", "l/h", "pulls packets at a bandwidth, and pushes them on"),
    Class::new::<Shaper<true>>("BandwidthShaper", "1/1-2", "l", "lets packets be pulled at no more than a bandwidth")
        .notes_empty(Notes::Relays),
    Class::new::<threads::BlockThread>("BlockThread", "0/0", "a", "stops a thread for a while, for tests"),
    Class::new::<bypass::Bypass>("Bypass", "1-2/1-2", "a", "lets packets go past a part of the configuration").flow("xy/[xy]x"),
    Class::new::<delay::DelayShaper>("DelayShaper", "1/1", "l", "lets packets that are pulled wait for a while")
        .notes_empty(Notes::Relays),
    Class::new::<delay::DelayUnqueue>("DelayUnqueue", "1/1", "l/h", "pulls packets, and pushes them on after a while"),
    Class::new::<Queue<DropsFront>>("FrontDropQueue", "1/1-2", "h/lh", "stores packets, and drops the oldest when it is full")
        .notes_empty(Notes::Own),
    Class::new::<Queue<TellsFull>>("FullNoteQueue", "1/1-2", "h/lh", "stores packets, and tells when it is empty and full")
        .notes_empty(Notes::Own)
        .notes_full(Notes::Own),
    Class::new::<choices::HashSwitch>("HashSwitch", "1/-", "h", "sends each packet one way of several, by its bytes"),
    Class::new::<copies::Hub>("Hub", "-/=", "h", "sends copies of packets to all other ports").flow("#/[^#]"),
    Class::new::<switch::InputSwitch>("InputSwitch", "-/1", "h", "lets packets of one input of several through"),
    Class::new::<link::LinkUnqueue>("LinkUnqueue", "1/1", "l/h", "pulls packets, and pushes them on as a serial line would"),
    Class::new::<Queue<Plain>>("MixedQueue", "2/1-2", "h/lh", "stores packets, with an input for those that leave next")
        .notes_empty(Notes::Own),
    Class::new::<Queue<Plain>>("NotifierQueue", "1/1-2", "h/lh", "stores packets, and tells when it is empty")
        .notes_empty(Notes::Own),
    Class::new::<nulls::Null>("Null", "1/1", "a", "passes packets on"),
    Class::new::<choices::PaintSwitch>("PaintSwitch", "1/-", "h", "sends each packet one way of several, by its paint"),
    Class::new::<sched::PrioSched>("PrioSched", "-/1", "l", "pulls from the first input that has packets"),
    Class::new::<nulls::Null>("PullNull", "1/1", "l", "passes packets on that are pulled"),
    Class::new::<PullSwitch<true, false>>("PullSwitch", "-/1", "l", "pulls from one input of several, and tells when it is empty")
        .notes_empty(Notes::Relays),
    Class::new::<copies::PullTee>("PullTee", "1/1-", "l/lh", "pushes copies of packets that are pulled"),
    Class::new::<nulls::Null>("PushNull", "1/1", "h", "passes packets on that are pushed"),
    Class::new::<Queue<TellsFull>>("Queue", "1/1-2", "h/lh", "stores packets, and tells when it is empty and full")
        .notes_empty(Notes::Own)
        .notes_full(Notes::Own),
    Class::new::<Queue<Quick>>("QuickNoteQueue", "1/1-2", "h/lh", "stores packets, and tells at once when it is empty and full")
        .notes_empty(Notes::Own)
        .notes_full(Notes::Own),
    Class::new::<random_sample::RandomSample>("RandomSample", "1/1-2", "a/ah", "lets packets through by lot"),
    Class::new::<choices::RandomSwitch>("RandomSwitch", "1/-", "h", "sends each packet one way of several, by lot"),
    Class::new::<RatedSplitter<false>>("RatedSplitter", "1/1-2", "h", "sends packets above a rate another way"),
    Class::new::<RatedUnqueue<false>>("RatedUnqueue", "1/1", "l/h", "pulls packets at a rate, and pushes them on"),
    Class::new::<red::Red>("RED", "1/1-2", "a/ah", "drops packets early, by how long queues are"),
    Class::new::<sched::RoundRobinSched>("RoundRobinSched", "-/1", "l", "pulls from its inputs in turn"),
    Class::new::<choices::RoundRobinSwitch>("RoundRobinSwitch", "1/-", "h", "sends packets one way of several, in turn"),
    Class::new::<Shaper<false>>("Shaper", "1/1-2", "l", "lets packets be pulled at no more than a rate")
        .notes_empty(Notes::Relays),
    Class::new::<PullSwitch<false, false>>("SimplePullSwitch", "-/1", "l", "pulls from one input of several"),
    Class::new::<Queue<Plain>>("SimpleQueue", "1/1-2", "h/lh", "stores packets"),
    Class::new::<PullSwitch<false, true>>("StaticPullSwitch", "-/1", "l", "pulls from one input of several, for good"),
    Class::new::<Switch<true>>("StaticSwitch", "1/-", "h", "sends packets one way of several, for good"),
    Class::new::<threads::StaticThreadSched>("StaticThreadSched", "0/0", "a", "says which thread runs an element's task"),
    Class::new::<stride::StrideSched>("StrideSched", "-/1", "l", "pulls from its inputs by their tickets"),
    Class::new::<suppressor::Suppressor>("Suppressor", "-/=", "a", "lets packets of active ports through").flow("#/#"),
    Class::new::<Switch<false>>("Switch", "1/-", "h", "sends packets one way of several"),
    Class::new::<copies::Tee>("Tee", "1/1-", "h", "copies packets to all outputs"),
    Class::new::<unqueue::Unqueue>("Unqueue", "1/1", "l/h", "pulls packets, and pushes them on"),
];
