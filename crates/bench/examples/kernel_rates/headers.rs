//! Header checks, routes and flow rules on rows that are resident, by one kernel behind the other as a path launches them.
//!
//! Routes are drawn with lengths as a full table has them. Rules are those of files in `ClassBench`'s form, or drawn; three of
//! four packets meet a rule, all others a route. What the first packets become is compared with the tables' own answers before
//! anything is measured. A rate counts packets.

use super::{LAUNCHES, Outcome, RUNS, SEED};
use bifolio_bench::harness::usage::median;
use bifolio_bench::net::classbench::{self, Flow};
use bifolio_device::{Allocation, Module, Stream};
use bifolio_kernels::Kernel;
use bifolio_kernels::packets::flow::HEADER_WORDS;
use bifolio_kernels::packets::ip_header::{ADDRESSES, CHECK, DEC_TTL};
use bifolio_kernels::packets::{
    Begin, Classify, FlowClassify, HAS_BYTE_13, HAS_NETWORK, HAS_TRANSPORT, Header, IpHeader, IpLookup, Lookup, Memory,
    NONE, PacketBegin, PacketRows, SPANS_OPTIONS, launch,
};
use bifolio_net::flowspace::{FlowTable, Key, parse_rules};
use bifolio_net::headers::ip::set_checksum;
use bifolio_net::lookup::{DirectImage, DirectTable, Route, Table};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::Instant;

/// Packets of a batch: not on an accelerator, and on one.
const PACKETS: [usize; 2] = [1 << 10, 4 << 20];
/// Routes: the same.
const ROUTES: [usize; 2] = [1000, 900_000];
/// Rules that are drawn: the same.
const RULES: [usize; 2] = [200, 10_000];
/// Packets whose results are compared.
const COMPARED: usize = 1000;
/// Words of an input row: descriptor, place in the spans, IP header, ports. Words of an output row: slots, gateway, TTL.
const ROW: [u32; 2] = [8, 3];
/// The slots of verdict, route and rule.
const VERDICT: u32 = 0;
const ROUTE: u32 = 1;
const RULE: u32 = 2;
/// Where nothing is found.
const MISS: u8 = 255;
/// Bytes of a packet.
const LEN: usize = 46;

pub(crate) fn measure_all(stream: &Stream, rules: &[String]) -> Outcome {
    let place = usize::from(stream.device().info().is_accelerator);
    let mut random = fastrand::Rng::with_seed(SEED);
    let routes = Routes::drawn(stream, &mut random, ROUTES[place])?;
    println!(
        "{} routes, {} packets, rows of {} and {} bytes",
        routes.prefixes.len(),
        PACKETS[place],
        ROW[0] * 4,
        ROW[1] * 4
    );
    let mut sets = Vec::new();
    for file in rules {
        sets.push((file.clone(), std::fs::read_to_string(file)?));
    }
    if sets.is_empty() {
        sets.push(("drawn rules".to_owned(), drawn_rules(&mut random, RULES[place])));
    }
    for (name, text) in sets {
        let batch = Batch::new(stream, &mut random, &routes, &text, PACKETS[place])?;
        println!("{name}: {} rules", batch.flows.count());
        batch.compare(stream, &routes)?;
        batch.measure(stream, &routes)?;
    }
    Ok(())
}

fn drawn_rules(random: &mut fastrand::Rng, count: usize) -> String {
    (0..count).fold(String::new(), |mut text, _| {
        let mut net = || {
            let len = random.u32(12..=32);
            format!("{}/{len}", Ipv4Addr::from(random.u32(..) & (u32::MAX << (32 - len))))
        };
        let (from, to) = (net(), net());
        let low = random.u16(..60_000);
        let high = if random.bool() { low } else { low + random.u16(..5000) };
        let protocol = [6, 17][random.usize(..2)];
        let _ = writeln!(text, "@{from} {to} 0 : 65535 {low} : {high} {protocol:#04x}/0xff");
        text
    })
}

/// A table of routes, and its image on a device.
struct Routes {
    table: DirectTable,
    /// Addresses and lengths.
    prefixes: Vec<(u32, u32)>,
    /// Level 1, level 2, next hops.
    images: [Allocation; 3],
}

impl Routes {
    fn drawn(stream: &Stream, random: &mut fastrand::Rng, count: usize) -> Outcome<Self> {
        // Of 16 routes of a full table, about so many have these lengths.
        const LENGTHS: [u32; 16] = [24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 23, 22, 22, 21, 20, 16];
        let table = DirectTable::default();
        let mut prefixes = Vec::with_capacity(count);
        {
            let mut edit = table.edit();
            for number in 0..count {
                let len = LENGTHS[random.usize(..LENGTHS.len())];
                let mask = u32::MAX << (32 - len);
                let address = random.u32(1 << 24..) & mask;
                let route = Route { address, mask, gateway: number as u32 % 251, output: number as i32 % 4 };
                let _ = edit.insert(route, true);
                prefixes.push((address, len));
            }
        }
        let (_, image) = table.image()?;
        let images = [
            on_device(stream, &image.level1, DirectImage::LEVEL1_BYTES)?,
            on_device(stream, &image.level2, DirectImage::LEVEL2_BYTES)?,
            on_device(stream, &image.hops, DirectImage::HOPS_BYTES)?,
        ];
        Ok(Self { table, prefixes, images })
    }

    /// From anywhere to an address with a route.
    fn flow(&self, random: &mut fastrand::Rng) -> Flow {
        let (address, len) = self.prefixes[random.usize(..self.prefixes.len())];
        let to = address | random.u32(..) & u32::MAX.checked_shr(len).unwrap_or(0);
        let ports = [random.u16(..), random.u16(..)];
        Flow { from: random.u32(..), to, ports, protocol: [6, 17][random.usize(..2)] }
    }
}

/// Memory of a device with bytes at its beginning.
fn on_device(stream: &Stream, bytes: &[u8], len: usize) -> Outcome<Allocation> {
    let memory = stream.device().alloc(len.max(bytes.len()).max(16) as u64)?;
    if !bytes.is_empty() {
        stream.upload(memory.slice().part(0, bytes.len() as u64)?, bytes)?;
    }
    Ok(memory)
}

/// A packet from its IP header on; one of 16 has a bad checksum or a time to live that ends.
fn packet(random: &mut fastrand::Rng, flow: Flow) -> [u8; LEN] {
    let mut packet = [0; LEN];
    packet[..4].copy_from_slice(&[0x45, 0, 0, LEN as u8]);
    (packet[8], packet[9]) = (if random.u8(..32) == 0 { 1 } else { 64 }, flow.protocol);
    packet[12..16].copy_from_slice(&flow.from.to_be_bytes());
    packet[16..20].copy_from_slice(&flow.to.to_be_bytes());
    packet[20..24].copy_from_slice(&flow.ports.map(u16::to_be_bytes).concat());
    (packet[32], packet[33]) = (0x50, 0x18);
    set_checksum(&mut packet[..20]);
    packet[11] ^= u8::from(random.u8(..32) == 0);
    packet
}

/// Rows on a device, with what is launched over them.
struct Batch {
    input: Allocation,
    output: Allocation,
    flows: FlowTable,
    /// Rules on the device.
    image: Allocation,
    head: Vec<u32>,
    packets: Vec<[u8; LEN]>,
    rows: PacketRows,
    modules: [Module; 4],
}

impl Batch {
    fn new(stream: &Stream, random: &mut fastrand::Rng, routes: &Routes, text: &str, count: usize) -> Outcome<Self> {
        // Filters say nothing of where packets go: outputs are mixed.
        let lines = text.lines().enumerate().map(|(number, line)| {
            let is_filter = line.starts_with('@') && !line.contains("=>");
            if is_filter { format!("{line} => {}\n", number % 4) } else { format!("{line}\n") }
        });
        let rules = parse_rules(&lines.collect::<String>(), usize::from(MISS)).map_err(|wrong| format!("{wrong:?}"))?;
        let filters: Vec<_> = text.lines().filter_map(classbench::Rule::parse).collect();
        let mut flows = FlowTable::default();
        flows.add(&rules)?;
        let mut input = Vec::with_capacity(count * ROW[0] as usize * 4);
        let mut packets = Vec::new();
        for _ in 0..count {
            let flow = match random.choice(&filters) {
                Some(filter) if random.u8(..4) > 0 => filter.flow(random),
                _ => routes.flow(random),
            };
            let packet = packet(random, flow);
            let flags = if flow.protocol == 6 { 0x18 } else { 0 };
            let descriptor = LEN as u32 | HAS_NETWORK | HAS_TRANSPORT | HAS_BYTE_13 | flags << 16;
            input.extend([descriptor, 0].map(u32::to_le_bytes).concat());
            input.extend(&packet[..24]);
            if packets.len() < COMPARED {
                packets.push(packet);
            }
        }
        let rows = PacketRows {
            spans: SPANS_OPTIONS,
            network: 2,
            transport: 7,
            ttl: 2,
            ..PacketRows::new(count as u32, ROW[0], ROW[1])
        };
        let image = flows.image()?;
        let bytes: Vec<u8> = image.iter().flat_map(|word| word.to_le_bytes()).collect();
        let module = |kernel: &dyn Kernel| stream.device().load_module(kernel.source());
        Ok(Self {
            input: on_device(stream, &input, 0)?,
            output: stream.device().alloc(rows.output_bytes())?,
            flows,
            image: on_device(stream, &bytes, 0)?,
            head: image[..HEADER_WORDS.min(image.len())].to_vec(),
            packets,
            rows,
            modules: [module(&PacketBegin)?, module(&IpHeader)?, module(&IpLookup)?, module(&FlowClassify)?],
        })
    }

    /// Enqueues one of the kernels: the first values, header checks with the TTL, routes, rules.
    fn launch(&self, stream: &Stream, routes: &Routes, kernel: usize) -> Outcome {
        let memory = Memory { input: self.input.slice(), output: self.output.slice() };
        // Who has a verdict is left out by those behind.
        let (rows, unjudged) = (self.rows, PacketRows { test: VERDICT, test_value: 0, ..self.rows });
        let module = &self.modules[kernel];
        let none = ([0; ADDRESSES], 0);
        let check = Header {
            rows,
            flags: CHECK | DEC_TTL,
            slot: VERDICT,
            bad: 1,
            expired: 2,
            missing: 1,
            has_checksum: true,
            sources: none,
            destinations: none,
        };
        let lookup = Lookup {
            rows: unjudged,
            destination: 2 + 4,
            is_output: false,
            slot: ROUTE,
            miss: MISS.into(),
            gateway: 1,
            level1_codes: DirectImage::LEVEL1_BYTES as u32 / 2,
            level2_codes: DirectImage::LEVEL2_BYTES as u32 / 2,
            hops: DirectImage::HOPS_BYTES as u32 / 8,
        };
        let classify = Classify::new(unjudged, RULE, MISS.into(), NONE, &self.head)?;
        let [level1, level2, hops] = &routes.images;
        let tables = [level1.slice(), level2.slice(), hops.slice()];
        // SAFETY: all of the memory outlives the measurement, which waits for its work; nobody else writes it.
        unsafe {
            match kernel {
                0 => launch(stream, module, &Begin { rows }, memory, &[]),
                1 => launch(stream, module, &check, memory, &[]),
                2 => launch(stream, module, &lookup, memory, &tables),
                _ => launch(stream, module, &classify, memory, &[self.image.slice()]),
            }
        }?;
        Ok(())
    }

    fn launch_all(&self, stream: &Stream, routes: &Routes) -> Outcome {
        (0..4).try_for_each(|kernel| self.launch(stream, routes, kernel))
    }

    /// The first packets' results are those of the tables.
    fn compare(&self, stream: &Stream, routes: &Routes) -> Outcome {
        self.launch_all(stream, routes)?;
        let mut found = vec![0; self.packets.len() * ROW[1] as usize * 4];
        let rows = self.output.slice().part(0, found.len() as u64)?;
        stream.download(&mut found, rows)?;
        let keys: Vec<_> = self.packets.iter().map(|packet| Key::of_packet(None, packet)).collect();
        let mut ports = Vec::new();
        self.flows.classify(&keys, &mut ports);
        for ((packet, port), row) in self.packets.iter().zip(ports).zip(found.chunks_exact(ROW[1] as usize * 4)) {
            let mut same = packet[..20].to_vec();
            set_checksum(&mut same);
            let verdict = if same == packet[..20] { 2 * u8::from(packet[8] <= 1) } else { 1 };
            let hop = routes.table.lookup(u32::from_be_bytes([packet[16], packet[17], packet[18], packet[19]]));
            let expected = match verdict {
                0 => [0, u8::try_from(hop.output).unwrap_or(MISS), port.map_or(MISS, |port| port as u8)],
                verdict => [verdict, 0, 0],
            };
            let gateway = if verdict == 0 { hop.gateway.to_be_bytes() } else { [0; 4] };
            if row[..3] != expected || row[4..8] != gateway {
                return Err(format!("{packet:x?} became {row:x?}, and not {expected:?} with {gateway:?}").into());
            }
        }
        Ok(())
    }

    fn measure(&self, stream: &Stream, routes: &Routes) -> Outcome {
        let name = ["first values", "checks and TTL", "routes", "rules"];
        for (kernel, name) in name.iter().enumerate() {
            self.rate(name, stream, || self.launch(stream, routes, kernel))?;
        }
        self.rate("all of them", stream, || self.launch_all(stream, routes))
    }

    fn rate(&self, what: &str, stream: &Stream, launch: impl Fn() -> Outcome) -> Outcome {
        let mut rates = Vec::new();
        for _ in 0..=RUNS {
            stream.synchronize()?;
            let begin = Instant::now();
            (0..LAUNCHES).try_for_each(|_| launch())?;
            stream.synchronize()?;
            rates.push((u64::from(self.rows.count) * LAUNCHES) as f64 / begin.elapsed().as_secs_f64() / 1e6);
        }
        // The first run warms up.
        let (best, middle) = (rates[1..].iter().copied().fold(0.0, f64::max), median(&rates[1..]).unwrap_or(0.0));
        println!("    {what:16} {best:9.1} M packets/s best {middle:9.1} median");
        Ok(())
    }
}
