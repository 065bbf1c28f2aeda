//! Measures reads in a loop; `bench/compare` starts it and says on standard input what to read:
//!
//! ```sh
//! echo "read 1048576 1000 0" | cargo run --release -p bifolio-io --example requests -- FILE cuda:0
//! ```
//!
//! It is the reference for the other faces, so it does what they do and no more: one handle, one destination,
//! one request after the other. `examples/c/requests.h` describes the commands.

use bifolio_device::{Allocation, DeviceChoice};
use bifolio_io::{OpenFile, ReadOptions, Router, process};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What a program keeps between commands.
struct Bench {
    router: Arc<Router>,
    path: String,
    file_bytes: u64,
    /// The file is open while there is memory: a handle that has read the same bytes again and again keeps them
    /// pinned in the page cache, and other programs could not be measured with a cold file then.
    open: Option<(Arc<OpenFile>, Allocation)>,
}

fn main() {
    let mut bench = match open() {
        Ok(bench) => bench,
        Err(error) => return println!("error {error}"),
    };
    println!("ready bifolio-io {} on {}", env!("CARGO_PKG_VERSION"), bench.router.device().id());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match bench.command(&line) {
            Ok(answer) => println!("ok{answer}"),
            Err(error) => println!("error {error}"),
        }
        std::io::stdout().flush().ok();
    }
}

fn open() -> Outcome<Bench> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: requests FILE [DEVICE]")?;
    let choice = arguments.next().map_or(Ok(DeviceChoice::Auto), |name| name.parse())?;
    let router = process::router(choice)?;
    let file_bytes = router.open(&path)?.size()?;
    Ok(Bench { router, path, file_bytes, open: None })
}

impl Bench {
    fn command(&mut self, line: &str) -> Outcome<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["read", length, count, seed] => self.read(length.parse()?, count.parse()?, seed.parse()?),
            ["dump", start, length, path] => self.dump(start.parse()?, length.parse()?, path),
            ["release"] => {
                self.open = None;
                Ok(String::new())
            }
            _ => Err("no such command".into()),
        }
    }

    fn read(&mut self, length: u64, count: u64, seed: u64) -> Outcome<String> {
        if length == 0 || length > self.file_bytes {
            return Err("a request must have a byte, and no more than the file".into());
        }
        // The old memory goes first: both together may be more than the device has.
        let open = match self.open.take().filter(|(_, memory)| memory.len() == length) {
            Some(open) => open,
            None => (self.router.open(&self.path)?, self.router.device().alloc(length)?),
        };
        let (file, memory) = self.open.insert(open);
        let (slots, options) = (self.file_bytes / length, ReadOptions::default());
        let (start, cpu) = (Instant::now(), cpu_time());
        for number in 0..count {
            let offset = offset_of(number, seed, slots, length);
            let report = self.router.read(file, offset, Some(length), memory.slice(), &options)?;
            if report.bytes != length {
                return Err("the file is shorter than it was".into());
            }
        }
        let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
        Ok(format!(" {seconds:.9} {cpu_seconds:.9}"))
    }

    fn dump(&self, start: u64, length: u64, path: &str) -> Outcome<String> {
        let memory = self.open.as_ref().map(|(_, memory)| memory).filter(|memory| start + length <= memory.len());
        let memory = memory.ok_or("nothing so long was read")?;
        let mut bytes = vec![0; length as usize];
        self.router.device().create_stream()?.download(&mut bytes, memory.slice().part(start, length)?)?;
        std::fs::write(path, bytes)?;
        Ok(String::new())
    }
}

/// Where request `number` begins: spread over the file without order, the same in every language.
fn offset_of(number: u64, seed: u64, slots: u64, length: u64) -> u64 {
    seed.wrapping_add(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) % slots * length
}

/// Processor seconds of all threads of this process.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the time is ours to write.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
