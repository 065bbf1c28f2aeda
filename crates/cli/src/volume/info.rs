//! `bifolio volume info`: the layers of a volume, as far as they show without a key.

use crate::exit::Failure;
use crate::global::Global;
use crate::output::{columns, printable};
use bifolio_io::size;
use bifolio_volume::md::Replay;
use bifolio_volume::{ArrayInfo, Keyslot, Layer, LuksInfo};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::path::PathBuf;

/// Choices for `volume info`.
#[derive(Debug, ClapArgs)]
pub struct InfoArgs {
    /// Image file or block device; several are members of one volume.
    #[arg(required = true, value_name = "IMG")]
    pub images: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Info {
    /// From the files up.
    layers: Vec<Layer>,
}

/// Prints them.
pub fn run(global: &Global, options: &InfoArgs) -> Result<(), Failure> {
    let info = Info { layers: bifolio_volume::describe(&options.images, false)? };
    global.answer(&info, || info.layers.iter().map(describe).collect())
}

/// A layer for people.
pub fn describe(layer: &Layer) -> String {
    match layer {
        Layer::File { path, size } => {
            format!("{}: {}\n", printable(&path.display().to_string()), size::exact(*size))
        }
        Layer::Raid6(info) => array(info),
        Layer::Luks(info) => luks(info),
    }
}

fn array(info: &ArrayInfo) -> String {
    let mut rows = vec![["UUID".to_owned(), info.uuid.clone()]];
    let mut row = |name: &str, value: String| rows.push([format!("  {name}"), value]);
    row("members", format!("{}, chunks of {}, {}", info.members, size::exact(info.chunk_bytes), info.layout));
    row("data", size::exact(info.size));
    let missing: Vec<String> = info.missing.iter().map(ToString::to_string).collect();
    let without = if missing.is_empty() { String::new() } else { format!(", without {}", missing.join(" and ")) };
    row("health", format!("{}{without}", info.health));
    for left in &info.left_out {
        row("left out", left.clone());
    }
    if info.is_unsynced {
        row("parity", "may be behind the data: the array was not closed cleanly".to_owned());
    }
    if let Some(replay) = &info.replay {
        row("replayed", replayed(replay));
    }
    row("events", info.events.to_string());
    row("log", if info.has_log { "there is room for one" } else { "no room for one before the data" }.to_owned());
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    format!("RAID-6\n  {}", columns(&rows, &[0, 1]))
}

/// What opening an array has made good.
pub fn replayed(replay: &Replay) -> String {
    let Replay { writes, bytes, stripes, in_memory } = *replay;
    let mut parts = vec![];
    if writes > 0 {
        parts.push(format!("{writes} writes ({}) of its log were replayed", size::human(bytes)));
    }
    if stripes > 0 {
        parts.push(format!("P and Q of {stripes} stripes were recomputed"));
    }
    let place = if in_memory { ", in memory: the members are as they were" } else { "" };
    format!("it was not closed cleanly: {}{place}", parts.join(" and "))
}

fn luks(info: &LuksInfo) -> String {
    let mut rows = vec![["UUID".to_owned(), info.uuid.clone()]];
    let mut row = |name: &str, value: String| rows.push([format!("  {name}"), value]);
    if !info.label.is_empty() {
        row("label", info.label.clone());
    }
    row("cipher", format!("{}, a key of {} bits", info.cipher, info.key_bits));
    if let (Some(sector), Some(offset), Some(bytes)) = (info.sector_bytes, info.payload_offset, info.payload_bytes) {
        row("sectors", format!("{sector} bytes"));
        row("data", format!("{} from byte {offset} on", size::exact(bytes)));
    }
    for slot in &info.keyslots {
        row(&format!("keyslot {}", slot.number), keyslot(slot));
    }
    for (name, value) in [("header", &info.header_note), ("not here", &info.unsupported)] {
        if let Some(value) = value {
            row(name, value.clone());
        }
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
    format!("LUKS{}\n  {}", info.version, columns(&rows, &[0, 1]))
}

fn keyslot(slot: &Keyslot) -> String {
    let costs = if slot.memory_kib > 0 {
        format!("{} passes over {} KiB, {} threads", slot.iterations, slot.memory_kib, slot.threads)
    } else {
        format!("{} iterations of {}", slot.iterations, slot.hash)
    };
    let unbound = if slot.is_unbound { "; its key is not the volume's" } else { "" };
    format!("{}, {costs}{unbound}", slot.pbkdf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyslot_is_described_by_its_costs() {
        let argon2 = Keyslot {
            number: 0,
            pbkdf: "argon2id".into(),
            hash: String::new(),
            iterations: 4,
            memory_kib: 1024,
            threads: 2,
            is_unbound: false,
        };
        assert_eq!(keyslot(&argon2), "argon2id, 4 passes over 1024 KiB, 2 threads");
        let pbkdf2 =
            Keyslot { pbkdf: "pbkdf2".into(), hash: "sha256".into(), memory_kib: 0, is_unbound: true, ..argon2 };
        assert_eq!(keyslot(&pbkdf2), "pbkdf2, 4 iterations of sha256; its key is not the volume's");
    }
}
