//! One warm file into several devices, beside loading it one device after the other and into one device alone.

use crate::error::{Error, ErrorKind, Result};
use crate::harness::compare::{self, Comparison, compare};
use crate::harness::machine::{self, Machine};
use crate::harness::report::{Measured, Report};
use crate::harness::router::{RouterSettings, open_file};
use crate::harness::session::Session;
use crate::harness::table::Table;
use crate::harness::verify::{Checker, poison};
use bifolio_device::{Allocation, Device};
use bifolio_io::cache_state::load;
use bifolio_io::{OpenFile, ReadOptions, Router, Spread, part_of, read_spread};
use serde::Serialize;
use std::path::PathBuf;

/// Places of each device's memory that are compared with the file after the first run.
const CHECKED_PLACES: u64 = 64;
const CHECKED_BYTES: u64 = 1 << 20;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file; it is read into the page cache first.
    pub file: PathBuf,
    /// Runs of each way.
    pub repetitions: u32,
    /// The routers, one for each device.
    pub router: RouterSettings,
}

/// The ways, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    OneDevice,
    OneAfterTheOther,
    Shard,
    Replicate,
}

impl Way {
    const ALL: [Self; 4] = [Self::OneDevice, Self::OneAfterTheOther, Self::Shard, Self::Replicate];

    fn name(self) -> &'static str {
        match self {
            Self::OneDevice => "one device alone",
            Self::OneAfterTheOther => "all, one after the other",
            Self::Shard => "shard",
            Self::Replicate => "replicate",
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    /// Bytes on devices afterwards, all together.
    bytes: u64,
    #[serde(flatten)]
    compared: compare::Row<Way>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Results {
    machine: Machine,
    devices: Vec<String>,
    file: String,
    bytes: u64,
    repetitions: u32,
    rows: Vec<Row>,
    /// The time of one after the other by that of replicate, best runs.
    replicate_gain: Option<f64>,
}

/// Measures.
pub fn run(devices: &[Device], options: &Options, session: &Session) -> Result<Measured<Results>> {
    if devices.len() < 2 {
        let detail = "name two devices or more, such as --device cuda:0,cuda:1";
        return Err(Error::new(ErrorKind::BadUse, "", detail));
    }
    let file = open_file(&options.file, &devices[0])?;
    let bytes = file.size()?;
    let routers = devices.iter().map(|device| options.router.router(device, &file, session.cancel()));
    let routers: Vec<Router> = routers.collect::<Result<_, _>>()?;
    let memories = devices.iter().map(|device| device.alloc(bytes)).collect::<Result<Vec<_>, _>>()?;
    session.begin("warming up", u64::from(options.repetitions) * Way::ALL.len() as u64);
    load(&file, 0..bytes)?;
    let bench = Bench { session, routers: &routers, file: &file, memories: &memories, bytes };
    let mut rows = vec![];
    let ended = compare(session, options.repetitions, &bench, &Way::ALL, &mut rows);
    let best = |way| rows.iter().find(|row| row.way == way).map(|row| row.rates.gb_per_s_best);
    let replicate_gain = best(Way::Replicate).zip(best(Way::OneAfterTheOther)).map(|(one, other)| one / other);
    let rows: Vec<Row> = rows.into_iter().map(|row| Row { bytes: bench.bytes(row.way), compared: row }).collect();
    Measured::new(ended, !rows.is_empty(), || Results {
        machine: machine::describe(&devices[0]),
        devices: devices.iter().map(|device| device.id().to_string()).collect(),
        file: options.file.display().to_string(),
        bytes,
        repetitions: options.repetitions,
        rows,
        replicate_gain,
    })
}

struct Bench<'a> {
    session: &'a Session,
    routers: &'a [Router],
    file: &'a OpenFile,
    memories: &'a [Allocation],
    bytes: u64,
}

impl Comparison for Bench<'_> {
    type Way = Way;
    type Ready = ();

    fn name(&self, way: Way) -> String {
        way.name().to_owned()
    }

    fn rival(&self, _: Way) -> Option<Way> {
        None
    }

    fn bytes(&self, way: Way) -> u64 {
        match way {
            Way::OneDevice | Way::Shard => self.bytes,
            Way::OneAfterTheOther | Way::Replicate => self.bytes * self.memories.len() as u64,
        }
    }

    fn set_up(&self, _: Way, first: bool) -> Result<()> {
        if first {
            for (router, memory) in self.routers.iter().zip(self.memories) {
                poison(router.device(), memory.slice())?;
            }
        }
        Ok(())
    }

    fn run(&self, way: Way, (): &mut ()) -> Result<()> {
        let options = ReadOptions { cancel: self.session.cancel().clone(), ..ReadOptions::default() };
        let spread = |spread| {
            let routers: Vec<&Router> = self.routers.iter().collect();
            let slices: Vec<_> = self.memories.iter().map(Allocation::slice).collect();
            read_spread(&routers, self.file, 0, None, &slices, spread, &options).map(drop)
        };
        let into = |number: usize| {
            self.routers[number].read(self.file, 0, None, self.memories[number].slice(), &options).map(drop)
        };
        match way {
            Way::OneDevice => into(0)?,
            Way::OneAfterTheOther => (0..self.routers.len()).try_for_each(into)?,
            Way::Shard => spread(Spread::Shard)?,
            Way::Replicate => spread(Spread::Replicate)?,
        }
        Ok(())
    }

    /// Compares many places of every device's memory with the file.
    fn verify(&self, way: Way, (): &()) -> Result<bool> {
        for (number, (router, memory)) in self.routers.iter().zip(self.memories).enumerate() {
            let lands = match way {
                Way::OneDevice if number > 0 => continue,
                Way::Shard => part_of(&(0..memory.len()), number, self.routers.len()),
                _ => 0..memory.len(),
            };
            let mut checker = Checker::new(router, self.file)?;
            let length = lands.end - lands.start;
            let stride = (length / CHECKED_PLACES).max(CHECKED_BYTES);
            for at in (0..length).step_by(stride as usize) {
                let part = memory.slice().part(at, CHECKED_BYTES.min(length - at))?;
                checker.compare_all(part, lands.start + at)?;
            }
        }
        Ok(true)
    }
}

impl Report for Results {
    fn text(&self) -> String {
        let cells = |Row { compared: row, .. }: &Row| {
            let best = row.rates.seconds.iter().copied().fold(f64::INFINITY, f64::min);
            vec![
                row.way.name().to_owned(),
                format!("{:.2}", row.rates.gb_per_s_best),
                format!("{:.2}", row.rates.gb_per_s_median),
                format!("{:.3}", row.rates.cpu_s_per_gb),
                format!("{:.2}", best * 1e3),
            ]
        };
        let head = ["way", "best GB/s in all", "median GB/s", "CPU s/GB", "best ms"];
        let gain = self.replicate_gain.map(|gain| format!("replicate is {gain:.2}x as quick as one after the other\n"));
        format!(
            "{}\n{}: {} bytes, warm, into {}; {} runs of each way in turns\n{}{}",
            self.machine,
            self.file,
            self.bytes,
            self.devices.join(" and "),
            self.repetitions,
            Table::new(head, &[0]).with(self.rows.iter().map(cells)).text(),
            gain.unwrap_or_default()
        )
    }
}
