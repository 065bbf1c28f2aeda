//! The rates of a RAID-6 over files: `md_rates FOLDER [MEMBERS [CHUNK_KIB]]`, beside those of plain files of one
//! size, written and read through the page cache with the same requests.
//!
//! ```text
//! cargo run --release -p bifolio-bench --example md_rates -- /tmp
//! ```

use bifolio_bench::harness::usage::{Taken, gb_per_s, median};
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, Load, RoutedFile};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

const MEMBER_BYTES: u64 = 96 << 20;
const REPEAT: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("usage: md_rates FOLDER [MEMBERS [CHUNK_KIB]]")?;
    let count: usize = args.next().map_or(Ok(6), |text| text.parse())?;
    let chunk: u64 = args.next().map_or(Ok(64), |text| text.parse())? << 10;
    let dir = Path::new(&folder).join(format!("md-rates-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let measured = measure(&dir, count, chunk);
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn measure(dir: &Path, count: usize, chunk: u64) -> Result<(), Box<dyn Error>> {
    let file = |name: String, len: u64| -> Result<Arc<dyn Load>, Box<dyn Error>> {
        std::fs::File::create(dir.join(&name))?.set_len(len)?;
        Ok(Arc::new(RoutedFile::open(dir.join(name), true)?))
    };
    let members = (0..count).map(|i| file(format!("m{i}"), MEMBER_BYTES)).collect::<Result<Vec<_>, _>>()?;
    let options = CreateOptions { content: Content::Zeroes, ..CreateOptions::default() };
    let array = Raid6::create(members.clone(), chunk, Rotation::LeftSymmetric, &options)?;
    let plain = file("plain".to_owned(), array.geometry().size)?;
    println!(
        "{count} members, chunks of {} KiB, {} MiB of data; GB/s, median of {REPEAT}",
        chunk >> 10,
        array.geometry().size >> 20
    );
    for (name, request) in [("8 MiB", 8 << 20), ("a stripe", array.layout().stripe_bytes() as usize), ("4 KiB", 4096)] {
        let of_plain = [rate(&*plain, request, true)?, rate(&*plain, request, false)?];
        let of_array = [rate(&array, request, true)?, rate(&array, request, false)?];
        print(name, "plain file", of_plain);
        print(name, "all members", of_array);
    }
    array.close()?;
    for gone in 1..=2 {
        let array = Raid6::assemble(members[gone..].to_vec(), true)?;
        for (name, request) in [("8 MiB", 8 << 20), ("4 KiB", 4096)] {
            print(name, &format!("{gone} missing"), [rate(&array, request, true)?, rate(&array, request, false)?]);
        }
    }
    Ok(())
}

fn print(request: &str, of: &str, [write, read]: [f64; 2]) {
    println!("{request:10} {of:12} write {write:7.3}  read {read:7.3}");
}

/// GB/s of requests at growing offsets, as far as the device goes and 64 MiB at most for the small ones.
fn rate(device: &dyn BlockDevice, request: usize, writes: bool) -> Result<f64, Box<dyn Error>> {
    let mut buffer: Vec<u8> = (0..request).map(|i| (i / 3) as u8).collect();
    let limit = if request < 65536 { 2 << 20 } else { device.geometry().size };
    let requests = limit / request as u64;
    let mut seconds = vec![];
    for _ in 0..REPEAT {
        let taken = Taken::by(|| {
            for i in 0..requests {
                let offset = i * request as u64;
                if writes { device.write(offset, &buffer)? } else { device.read(offset, &mut buffer)? }
            }
            Ok(())
        })?;
        seconds.push(taken.seconds);
    }
    Ok(gb_per_s(requests * request as u64, median(&seconds).unwrap_or(0.0)))
}
