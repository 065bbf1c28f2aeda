//! Packets over a pair of virtual devices (veth) in a network namespace of the benchmark's own: what is sent by each
//! method, and what comes of it by each method, in one thread. Needs root.

mod pair;

use crate::error::{Error, Result};
use crate::harness::compare::{self, Comparison, compare};
use crate::harness::machine::{self, Machine};
use crate::harness::report::{Measured, Report};
use crate::harness::session::Session;
use crate::harness::table::Table;
use bifolio_device::Device;
use bifolio_net::nic::packet::{self, PacketSocket};
use bifolio_net::nic::xdp::{self, Layer, XdpSocket};
use bifolio_net::nic::{self, Nic};
use pair::{HERE, Pair, THERE};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Packets on their way at a time: fewer than any ring holds.
const WINDOW: u64 = 1984;
/// Packets that are sent or received together.
const BURST: usize = 32;
/// Bytes of the longest frame.
const FRAME_MAX: usize = 1514;
/// How long nothing comes before packets are taken for lost.
const LOST: Duration = Duration::from_secs(1);

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Packets of a run.
    pub packets: u64,
    /// Bytes of a frame, 60 to 1,514.
    pub frame_bytes: usize,
    /// Runs of each way.
    pub repetitions: u32,
}

/// How packets are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Sends {
    /// `sendmmsg`.
    Calls,
    /// `PACKET_TX_RING`.
    Ring,
    Xdp,
}

/// How packets are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Receives {
    /// The kernel throws them away.
    Nobody,
    /// One call a packet, as Click does.
    Single,
    /// `TPACKET_V3`.
    Ring,
    XdpStack,
    XdpDriver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Way {
    sends: Sends,
    receives: Receives,
}

const fn way(sends: Sends, receives: Receives) -> Way {
    Way { sends, receives }
}

/// What is compared: sending alone, both by one family, and `AF_XDP` with a receiver of the other.
const WAYS: [Way; 8] = [
    way(Sends::Calls, Receives::Nobody),
    way(Sends::Ring, Receives::Nobody),
    way(Sends::Xdp, Receives::Nobody),
    way(Sends::Calls, Receives::Single),
    way(Sends::Calls, Receives::Ring),
    way(Sends::Xdp, Receives::Ring),
    way(Sends::Xdp, Receives::XdpStack),
    way(Sends::Xdp, Receives::XdpDriver),
];

impl Way {
    fn sends(self) -> &'static str {
        match self.sends {
            Sends::Calls => "AF_PACKET",
            Sends::Ring => "AF_PACKET, ring",
            Sends::Xdp => "AF_XDP",
        }
    }

    fn receives(self) -> &'static str {
        match self.receives {
            Receives::Nobody => "nobody",
            Receives::Single => "AF_PACKET, single reads",
            Receives::Ring => "AF_PACKET, ring",
            Receives::XdpStack => "AF_XDP, stack",
            Receives::XdpDriver => "AF_XDP, driver",
        }
    }

    /// The best of `AF_PACKET`.
    fn rival(self) -> Self {
        let receives = if self.receives == Receives::Nobody { Receives::Nobody } else { Receives::Ring };
        way(Sends::Calls, receives)
    }
}

#[derive(Debug, Serialize)]
struct Row {
    million_packets_per_s: f64,
    ns_per_packet: f64,
    /// The least of all runs.
    cpu_ns_per_packet: f64,
    #[serde(flatten)]
    compared: compare::Row<Way>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    machine: Machine,
    packets: u64,
    frame_bytes: usize,
    repetitions: u32,
    /// Why there are no rows.
    unavailable: Option<String>,
    rows: Vec<Row>,
}

/// Measures; without the rights to make devices the results say so.
pub fn run(device: &Device, options: &Options, session: &Session) -> Result<Measured<Results>> {
    if !(60..=FRAME_MAX).contains(&options.frame_bytes) {
        return Err(Error::failed(options.frame_bytes, "a frame over veth has 60 to 1,514 bytes"));
    }
    let mut rows = vec![];
    // A namespace belongs to a thread.
    let measure = || measure(options, session, &mut rows);
    let ended = std::thread::scope(|scope| scope.spawn(measure).join());
    let ended = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (ended, unavailable) = match ended {
        Ok(unavailable) => (Ok(()), unavailable),
        Err(error) => (Err(error), None),
    };
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(device),
        packets: options.packets,
        frame_bytes: options.frame_bytes,
        repetitions: options.repetitions,
        unavailable,
        rows,
    })
}

/// Adds a row for each way, or says why this machine cannot.
fn measure(options: &Options, session: &Session, rows: &mut Vec<Row>) -> Result<Option<String>> {
    let pair = match Pair::new() {
        Ok(pair) => pair,
        Err(reason) => return Ok(Some(reason)),
    };
    session.begin("starting", WAYS.len() as u64 * u64::from(options.repetitions));
    let mut measured = vec![];
    let ended = compare(session, options.repetitions, &Bench { options, pair }, &WAYS, &mut measured);
    rows.extend(measured.into_iter().map(|row| options.row(row)));
    ended.map(|()| None)
}

struct Bench<'a> {
    options: &'a Options,
    pair: Pair,
}

/// Both ends, and how many packets have come.
struct Ends {
    from: Box<dyn Nic>,
    to: Option<Box<dyn Nic>>,
    arrived: u64,
    arrived_before: u64,
}

impl Comparison for Bench<'_> {
    type Way = Way;
    type Ready = Ends;

    fn name(&self, way: Way) -> String {
        format!("{} to {}", way.sends(), way.receives())
    }

    fn rival(&self, way: Way) -> Option<Way> {
        Some(way.rival())
    }

    fn bytes(&self, _: Way) -> u64 {
        self.options.packets * self.options.frame_bytes as u64
    }

    /// A kernel may be without `AF_XDP`.
    fn may_fail(&self, way: Way) -> bool {
        way != way.rival()
    }

    fn set_up(&self, way: Way, _: bool) -> Result<Ends> {
        let open = || Ok((sender(way.sends)?, receiver(way.receives)?));
        let (from, to) = open().map_err(|error: nic::Error| Error::failed(self.name(way), error.line()))?;
        Ok(Ends { from, to, arrived: 0, arrived_before: self.pair.arrived() })
    }

    fn run(&self, way: Way, ends: &mut Ends) -> Result<()> {
        let passed = pass(ends, self.options.packets, self.options.frame_bytes);
        passed.map_err(|error| Error::failed(self.name(way), error.line()))
    }

    fn verify(&self, way: Way, ends: &Ends) -> Result<bool> {
        let arrived = if ends.to.is_some() { ends.arrived } else { self.pair.arrived() - ends.arrived_before };
        if arrived == self.options.packets {
            return Ok(true);
        }
        let detail = format!("{arrived} of {} packets have come", self.options.packets);
        Err(Error::failed(self.name(way), detail))
    }
}

fn sender(sends: Sends) -> nic::Result<Box<dyn Nic>> {
    Ok(match sends {
        Sends::Calls => Box::new(PacketSocket::sender(HERE)?),
        Sends::Ring => Box::new(PacketSocket::ring_sender(HERE)?),
        Sends::Xdp => Box::new(XdpSocket::sender(HERE)?),
    })
}

fn receiver(receives: Receives) -> nic::Result<Option<Box<dyn Nic>>> {
    let by_packet = |ring| {
        let options = packet::Options { ring, ..packet::Options::default() };
        PacketSocket::open(THERE, &options).map(|socket| Some(Box::new(socket) as Box<dyn Nic>))
    };
    let by_xdp = |layer| {
        let options = xdp::Options { layer: Some(layer), ..xdp::Options::default() };
        XdpSocket::receiver(THERE, &options).map(|socket| Some(Box::new(socket) as Box<dyn Nic>))
    };
    match receives {
        Receives::Nobody => Ok(None),
        Receives::Single => by_packet(false),
        Receives::Ring => by_packet(true),
        Receives::XdpStack => by_xdp(Layer::Stack),
        Receives::XdpDriver => by_xdp(Layer::Driver),
    }
}

/// Passes so many packets, a window of them on their way. It never sleeps, so that what the kernel does for them is done
/// in this thread's time. Lost ones are left out.
fn pass(ends: &mut Ends, packets: u64, frame_bytes: usize) -> nic::Result<()> {
    let mut frame = vec![0xff; frame_bytes];
    // A type for experiments, which no kernel handles.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let burst = [&frame[..]; BURST];
    let (mut sent, mut last) = (0, Instant::now());
    while sent < packets || (ends.to.is_some() && ends.arrived < packets) {
        let open = WINDOW.saturating_sub(sent - ends.arrived).min(packets - sent).min(BURST as u64);
        sent += ends.from.send(&burst[..open as usize])? as u64;
        let Some(to) = &mut ends.to else {
            ends.arrived = sent;
            continue;
        };
        let mut bytes = 0;
        let count = to.receive(2 * BURST, &mut |packet| bytes += packet.bytes.len())?;
        ends.arrived += if bytes == count * frame_bytes { count as u64 } else { 0 };
        if count > 0 {
            last = Instant::now();
        } else if last.elapsed() > LOST {
            break;
        }
    }
    Ok(())
}

impl Options {
    fn row(&self, row: compare::Row<Way>) -> Row {
        let packets_per_s = row.rates.gb_per_s_median * 1e9 / self.frame_bytes as f64;
        let ns_per_packet = if packets_per_s > 0.0 { 1e9 / packets_per_s } else { 0.0 };
        let cpu_ns_per_packet = row.rates.cpu_s_per_gb * self.frame_bytes as f64;
        Row { million_packets_per_s: packets_per_s / 1e6, ns_per_packet, cpu_ns_per_packet, compared: row }
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let machine = &self.machine;
        if let Some(reason) = &self.unavailable {
            return format!("{machine}\n{reason}\n");
        }
        let head = ["sent by", "received by", "Mpackets/s", "ns each", "CPU ns", "ratio", "CPU ratio"];
        let ratio = |value: Option<f64>| value.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        let cells = |row: &Row| {
            let names = [row.compared.way.sends(), row.compared.way.receives()].map(str::to_owned);
            let figures = match &row.compared.failed {
                Some(reason) => vec![reason.clone()],
                None => vec![
                    format!("{:.2}", row.million_packets_per_s),
                    format!("{:.0}", row.ns_per_packet),
                    format!("{:.0}", row.cpu_ns_per_packet),
                    ratio(row.compared.to_rival),
                    ratio(row.compared.cpu_to_rival),
                ],
            };
            [names.to_vec(), figures].concat()
        };
        format!(
            "{machine}\n{} frames of {} bytes a run over a veth pair, both ends in one thread that never sleeps; medians of {} runs of \
             each way in turns, CPU time of the least; ratios to AF_PACKET with calls and a receive ring; all packets \
             accounted for\n{}",
            self.packets,
            self.frame_bytes,
            self.repetitions,
            Table::new(head, &[0, 1]).with(self.rows.iter().map(cells)).text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_packets_of_every_way_arrive_or_the_results_say_why_not() {
        let options = Options { packets: 5000, frame_bytes: 64, repetitions: 2 };
        let mut rows = vec![];
        let session = Session::default();
        let measured = std::thread::scope(|scope| scope.spawn(|| measure(&options, &session, &mut rows)).join());
        if let Some(reason) = measured.unwrap().unwrap() {
            bifolio_testing::skip(reason);
            return;
        }
        assert_eq!(rows.len(), WAYS.len());
        for row in &rows {
            assert!(row.compared.verified && row.compared.failed.is_none(), "{row:?}");
            assert!(row.million_packets_per_s > 0.0 && row.compared.to_rival.is_some(), "{row:?}");
        }
    }
}
