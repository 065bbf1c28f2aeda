//! What a program of the CPU on a mount and a client of the daemon cost each other on one file, which this process is both
//! of: short writes, short and long reads of what a device alone holds, the recall of dirty mapped pages, and an acquire
//! after a part was changed, beside a copy of all of it. Every byte that is read is compared. Prints JSON; times are
//! microseconds or milliseconds, as their names say, rates 10^9 bytes a second.
//!
//! ```sh
//! bifolio daemon --socket SOCKET & bifolio mount --socket SOCKET SOURCE MOUNTPOINT
//! cargo run --release -p bifolio-mount --example mount_rates -- SOCKET SOURCE MOUNTPOINT [MIB [REPETITIONS]]
//! ```
//!
//! The file has MIB (256; at least 64) MiB, which the daemon's first device must have room for.

use bifolio_cache::Mapping;
use bifolio_daemon::Client;
use bifolio_device::{Device, DeviceChoice, DeviceSlice, Stream};
use serde_json::{Value, json};
use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const SHORT_CALLS: usize = 1000;
/// How much of the file is mapped, stored into and recalled.
const MAPPED: usize = 64 * MIB;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, source, mount, rest @ ..] = &arguments[..] else {
        return Err("name a socket, a source and its mount point".into());
    };
    let len = rest.first().map_or(Ok(256), |text| text.parse::<usize>())? * MIB;
    let repetitions = rest.get(1).map_or(Ok(5), |text| text.parse())?;
    if len < MAPPED {
        return Err("the file has at least 64 MiB".into());
    }
    let source = Path::new(source).join("mount_rates");
    let mount = Path::new(mount).join("mount_rates");
    std::fs::write(&source, vec![1; len])?;
    let all = Bench::new(socket, source.clone(), &mount, len).and_then(|mut bench| bench.all(repetitions));
    std::fs::remove_file(&source)?;
    println!("{:#}", all?);
    Ok(())
}

/// One file, on the mount, in the source, and on a device.
struct Bench {
    client: Mapping,
    stream: Stream,
    _device: Device,
    on_mount: File,
    in_source: PathBuf,
    len: usize,
    /// What all bytes of the file are.
    value: u8,
}

impl Bench {
    fn new(socket: &str, in_source: PathBuf, mount: &Path, len: usize) -> Result<Self> {
        let client = Client::connect(socket)?;
        let device = bifolio_device::open(DeviceChoice::Exactly(client.devices()[0]))?;
        let mapping = client.open_path(&in_source)?.map_on(0, 0..u64::MAX, true)?;
        // Opened when the mount has been told that a device wants it.
        let on_mount = File::options().read(true).write(true).open(mount)?;
        let stream = device.create_stream()?;
        Ok(Self { client: mapping, stream, _device: device, on_mount, in_source, len, value: 1 })
    }

    fn all(&mut self, repetitions: usize) -> Result<Value> {
        let begun = Instant::now();
        self.client.acquire(0..self.len as u64)?;
        let first_ms = ms(begun.elapsed());
        self.client.release(0..self.len as u64)?;
        let mut answer = json!({"bytes": self.len, "repetitions": repetitions, "first acquire of all, ms": first_ms});
        answer["write of 4 KiB, us"] = self.writes()?;
        answer["write of 4 KiB to the source, us"] = self.source_writes()?;
        let reads: Vec<_> = (0..repetitions).map(|_| self.reads()).collect::<Result<_>>()?;
        answer["reads of what the device alone holds"] = reads.into();
        let recalls: Vec<_> = (0..repetitions).map(|_| self.recall()).collect::<Result<_>>()?;
        answer["recall of 64 MiB of dirty mapped pages"] = recalls.into();
        let acquires: Vec<_> = (0..repetitions).map(|_| self.acquires()).collect::<Result<_>>()?;
        answer["acquire after a part was written through the mount, ms"] = acquires.into();
        Ok(answer)
    }

    /// The device has the whole file, and stores a new value into all of it.
    fn store(&mut self) -> Result<()> {
        self.client.acquire(0..self.len as u64)?;
        self.value = self.value.wrapping_add(1);
        // SAFETY: all of it is acquired, so that it has memory.
        let slice = unsafe { DeviceSlice::from_raw(self.client.ptr(), self.len as u64) };
        self.stream.upload(slice, &vec![self.value; self.len])?;
        self.client.release(0..self.len as u64)?;
        Ok(())
    }

    fn writes(&self) -> Result<Value> {
        let bytes = [self.value; PAGE];
        short_calls(self.len, |at| Ok(self.on_mount.write_all_at(&bytes, at)?))
    }

    /// The same beside the mount, as a measure of the machine: of another file, as the cache would have to look at this one.
    fn source_writes(&self) -> Result<Value> {
        let path = self.in_source.with_extension("plain");
        std::fs::write(&path, vec![1; self.len])?;
        let file = File::options().write(true).open(&path)?;
        let times = short_calls(self.len, |at| Ok(file.write_all_at(&[1; PAGE], at)?));
        std::fs::remove_file(path)?;
        times
    }

    /// Nothing of it is in the file when they begin.
    fn reads(&mut self) -> Result<Value> {
        self.store()?;
        let mut bytes = vec![0; MIB];
        let in_file = {
            File::open(&self.in_source)?.read_exact_at(&mut bytes, (self.len / 2) as u64)?;
            bytes[0] == self.value
        };
        let short = short_calls(self.len, |at| {
            self.on_mount.read_exact_at(&mut bytes[..PAGE], at)?;
            check(&bytes[..PAGE], self.value)
        })?;
        self.store()?;
        let begun = Instant::now();
        for at in (0..self.len).step_by(MIB) {
            self.on_mount.read_exact_at(&mut bytes, at as u64)?;
        }
        let long = begun.elapsed();
        for at in (0..self.len).step_by(MIB) {
            self.on_mount.read_exact_at(&mut bytes, at as u64)?;
            check(&bytes, self.value)?;
        }
        let file = File::open(&self.in_source)?;
        let begun = Instant::now();
        for at in (0..self.len).step_by(MIB) {
            file.read_exact_at(&mut bytes, at as u64)?;
        }
        let plain = begun.elapsed();
        Ok(json!({
            "4 KiB, us": short, "1 MiB in sequence, GB/s": rate(self.len, long),
            "1 MiB in sequence of the source, GB/s": rate(self.len, plain), "in the file before": in_file,
        }))
    }

    /// Every byte of 64 MiB is stored through a mapping, and acquired. Beside it, the same bytes by calls.
    fn recall(&mut self) -> Result<Value> {
        self.client.acquire(0..self.len as u64)?;
        self.client.release(0..self.len as u64)?;
        let value = self.value.wrapping_add(1);
        let mapped = Mapped::new(&self.on_mount)?;
        let begun = Instant::now();
        mapped.fill(value);
        let stored = begun.elapsed();
        let begun = Instant::now();
        self.client.acquire(0..MAPPED as u64)?;
        let recalled = begun.elapsed();
        check(&self.on_device(MAPPED)?, value)?;
        self.client.release(0..MAPPED as u64)?;
        drop(mapped);
        // The rest follows, so that all bytes are one value again.
        self.value = value;
        let rest = vec![value; MIB];
        for at in (0..self.len).step_by(MIB) {
            self.on_mount.write_all_at(&rest, at as u64)?;
        }
        let begun = Instant::now();
        self.client.acquire(0..MAPPED as u64)?;
        let written = begun.elapsed();
        self.client.release(0..MAPPED as u64)?;
        Ok(
            json!({"stored, ms": ms(stored), "acquired, ms": ms(recalled), "acquired after the same was written, ms": ms(written)}),
        )
    }

    /// Written in one piece, or in pieces here and there, of a page of the cache and of the processor; 100 % is the copy that
    /// the others are compared with.
    fn acquires(&mut self) -> Result<Value> {
        let mut answer = json!({});
        for percent in [0, 1, 10, 50, 100] {
            for piece in [self.len / 100, 64 << 10, PAGE] {
                self.client.acquire(0..self.len as u64)?;
                self.client.release(0..self.len as u64)?;
                let pieces = self.len / piece;
                let count = pieces * percent / 100;
                let is_whole = piece == self.len / 100;
                let bytes = vec![self.value ^ 0x80; piece];
                let mut expected = vec![self.value; self.len];
                for number in 0..count {
                    let at = if is_whole { number } else { number * pieces / count } * piece;
                    self.on_mount.write_all_at(&bytes, at as u64)?;
                    expected[at..at + piece].copy_from_slice(&bytes);
                }
                let begun = Instant::now();
                let report = self.client.acquire(0..self.len as u64)?;
                let time = ms(begun.elapsed());
                if self.on_device(self.len)? != expected {
                    return Err(
                        format!("the device has other bytes than were written: {percent} % in {piece} bytes").into()
                    );
                }
                let way = if is_whole { "one piece".into() } else { format!("pieces of {} KiB", piece >> 10) };
                answer[format!("{percent:3} % in {way}")] =
                    json!({"ms": time, "pages fetched": report.fetched, "compared": report.compared});
                self.client.release(0..self.len as u64)?;
                let whole = vec![self.value; MIB];
                for at in (0..self.len).step_by(MIB) {
                    self.on_mount.write_all_at(&whole, at as u64)?;
                }
            }
        }
        Ok(answer)
    }

    /// The part is acquired.
    fn on_device(&self, len: usize) -> Result<Vec<u8>> {
        let mut seen = vec![0; len];
        // SAFETY: it is acquired, so that it has memory.
        let slice = unsafe { DeviceSlice::from_raw(self.client.ptr(), len as u64) };
        self.stream.download(&mut seen, slice)?;
        Ok(seen)
    }
}

/// The beginning of a file.
struct Mapped(*mut u8);

impl Mapped {
    fn new(file: &File) -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of what the file has.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), MAPPED, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Self(start.cast()))
    }

    fn fill(&self, value: u8) {
        // SAFETY: as many bytes as are mapped; nobody in this process looks at them otherwise.
        unsafe { std::ptr::write_bytes(self.0, value, MAPPED) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { libc::munmap(self.0.cast(), MAPPED) };
    }
}

/// Median and 99th percentile, in microseconds, of calls at pages here and there.
fn short_calls(len: usize, mut call: impl FnMut(u64) -> Result<()>) -> Result<Value> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut times = vec![];
    for _ in 0..SHORT_CALLS {
        let at = (random.usize(..len / PAGE) * PAGE) as u64;
        let begun = Instant::now();
        call(at)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(json!({"p50": times[SHORT_CALLS / 2], "p99": times[SHORT_CALLS * 99 / 100]}))
}

fn check(bytes: &[u8], value: u8) -> Result<()> {
    match bytes.iter().position(|byte| *byte != value) {
        Some(at) => Err(format!("byte {at} is {}, and {value} was released last", bytes[at]).into()),
        None => Ok(()),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn rate(len: usize, time: Duration) -> f64 {
    len as f64 / time.as_secs_f64() / 1e9
}
