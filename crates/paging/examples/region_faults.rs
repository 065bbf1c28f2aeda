//! How long a thread waits for a block of 64 KiB that a region has on a device:
//!
//! ```text
//! cargo run --release -p bifolio-paging --example region_faults -- [DEVICE [MIB [ROUNDS]]]
//! ```
//!
//! A region is filled with random words and read in a random order that is the same in each round, so that every block
//! that is touched has left before. The time is that of one instruction that meets it; then all of its words are
//! compared. Beside it stand a copy of as many bytes by the CPU, and page faults from a swap file in a control group with
//! as much memory, for both of which the program has to be root.

use bifolio_device::{Device, DeviceChoice, open};
use bifolio_paging::region::{Region, RegionOptions};
use std::error::Error;
use std::ffi::CString;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BLOCK: usize = 64 << 10;
const PAGE: usize = 4096;
const SEED: u64 = 19;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let device: DeviceChoice = args.next().as_deref().unwrap_or("host").parse()?;
    let mib: usize = args.next().map_or(Ok(128), |text| text.parse())?;
    let rounds: usize = args.next().map_or(Ok(4), |text| text.parse())?;
    let device = open(device)?;
    let blocks = (mib << 20) / BLOCK;
    let budget = blocks / 8;
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut content = vec![0; blocks * BLOCK];
    random.fill(&mut content);
    let mut order: Vec<usize> = (0..blocks).collect();
    random.shuffle(&mut order);
    println!("{}: {mib} MiB, {} of them in memory, {rounds} rounds, seed {SEED}", device.id(), mib / 8);
    let turns = |pause| Turns { order: &order, rounds, pause, content: &content };

    let mut region = filled(&device, &content, budget)?;
    turns(Duration::ZERO).reads(&region).print("read fault, 64 KiB");
    turns(Duration::from_micros(300)).reads(&region).print("read fault after a pause of 300 us");
    turns(Duration::ZERO).writes(&mut region).print("write fault, each block leaves with a copy");
    println!("{:?}", region.statistics());
    if let Some(trouble) = region.take_trouble() {
        return Err(trouble.into());
    }
    drop(region);
    turns(Duration::ZERO).copies().print("memcpy of 64 KiB");
    turns(Duration::ZERO).swapped(budget)
}

/// A region that has had the content written to it, of which so many blocks may be in memory.
fn filled(device: &Device, content: &[u8], budget: usize) -> Result<Region, Box<dyn Error>> {
    let bytes = content.len() as u64;
    let options = RegionOptions { bytes, budget: (budget * BLOCK) as u64, device_bytes: bytes };
    let mut region = Region::new(device, options)?;
    region.bytes_mut().copy_from_slice(content);
    Ok(region)
}

/// Blocks in the order in which they are touched.
struct Turns<'a> {
    order: &'a [usize],
    rounds: usize,
    /// Before each.
    pause: Duration,
    content: &'a [u8],
}

impl Turns<'_> {
    /// The time of each touch.
    fn times(&self, mut touch: impl FnMut(usize) -> Duration) -> Times {
        let blocks = (0..self.rounds).flat_map(|_| self.order);
        let paused = |&block| {
            std::thread::sleep(self.pause);
            touch(block)
        };
        Times(blocks.map(paused).collect())
    }

    fn check(&self, block: usize, found: &[u8]) {
        let at = block * BLOCK;
        assert!(*found == self.content[at..at + BLOCK], "block {block} has other bytes than were written");
    }

    fn reads(&self, region: &Region) -> Times {
        self.times(|block| {
            let bytes = &region.bytes()[block * BLOCK..][..BLOCK];
            let time = timed(|| bytes[0]);
            self.check(block, bytes);
            time
        })
    }

    fn writes(&self, region: &mut Region) -> Times {
        self.times(|block| {
            let bytes = &mut region.bytes_mut()[block * BLOCK..][..BLOCK];
            let word = self.content[block * BLOCK];
            let time = timed(|| black_box(&mut *bytes)[0] = word);
            self.check(block, bytes);
            time
        })
    }

    fn copies(&self) -> Times {
        let mut into = vec![0; BLOCK];
        self.times(|block| {
            let time = timed(|| black_box(&mut into).copy_from_slice(&self.content[block * BLOCK..][..BLOCK]));
            self.check(block, &into);
            time
        })
    }

    /// Faults of single pages and of blocks from a swap file, with as much memory as the region had.
    fn swapped(&self, budget: usize) -> Result<(), Box<dyn Error>> {
        let swap = SwapFile::new(self.content.len());
        let limit = swap.and_then(|swap| Limit::new(budget * BLOCK).map(|limit| (limit, swap)));
        let _both = match limit {
            Ok(both) => both,
            Err(error) => {
                println!("swap file: skipped: {error}");
                return Ok(());
            }
        };
        let mut memory = Anonymous::new(self.content.len())?;
        memory.bytes().copy_from_slice(self.content);
        let mut pages = vec![];
        let blocks = self.times(|block| {
            let bytes = &memory.bytes()[block * BLOCK..][..BLOCK];
            let was_here = is_here(bytes);
            let first = timed(|| bytes[0]);
            let others = timed(|| bytes.iter().step_by(PAGE).fold(0, |all, byte| all ^ byte));
            self.check(block, bytes);
            if !was_here {
                pages.push(first);
            }
            first + others
        });
        Times(pages).print("swap file, fault of a page");
        blocks.print("swap file, the 16 pages of 64 KiB");
        Ok(())
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    black_box(work());
    started.elapsed()
}

struct Times(Vec<Duration>);

impl Times {
    fn print(mut self, name: &str) {
        if self.0.is_empty() {
            return println!("{name}: nothing was measured: no page was elsewhere");
        }
        self.0.sort_unstable();
        let us = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        let (count, middle, slow, most) = (self.0.len(), us(0.5), us(0.99), us(1.0));
        println!("{name:45} p50 {middle:7.1} us   p99 {slow:7.1} us   most {most:8.1} us   of {count}");
    }
}

/// Anonymous memory.
struct Anonymous(*mut u8, usize);

impl Anonymous {
    fn new(len: usize) -> std::io::Result<Self> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, where the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping's. A kernel without huge pages does not know the advice.
        unsafe { libc::madvise(start, len, libc::MADV_NOHUGEPAGE) };
        Ok(Self(start.cast(), len))
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is there as long as this, and it is borrowed for the slice.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody has borrowed it any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Whether any page of some bytes is in memory.
fn is_here(bytes: &[u8]) -> bool {
    let mut pages = [0_u8; BLOCK / PAGE];
    // SAFETY: the range begins at a page, and there is a byte for each of its pages.
    let done = unsafe { libc::mincore(bytes.as_ptr() as *mut libc::c_void, bytes.len(), pages.as_mut_ptr()) };
    done < 0 || pages.iter().any(|page| page & 1 == 1)
}

/// A control group with little memory, which this process is in until this is dropped. What it has already does not count.
struct Limit {
    home: PathBuf,
    group: PathBuf,
}

impl Limit {
    fn new(bytes: usize) -> std::io::Result<Self> {
        let memory = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) = if memory.exists() {
            (memory, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let of_process = std::fs::read_to_string("/proc/self/cgroup")?;
        let is_ours = |line: &&str| line.contains(":memory:") || (!memory.exists() && line.starts_with("0::"));
        let path = of_process.lines().find(is_ours).and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or("/");
        let home = root.join(path.trim_start_matches('/'));
        let group = root.join(format!("bifolio-region-faults-{}", std::process::id()));
        std::fs::create_dir(&group)?;
        let limited = Self { home, group };
        std::fs::write(limited.group.join(limit), bytes.to_string())?;
        std::fs::write(limited.group.join("cgroup.procs"), std::process::id().to_string())?;
        Ok(limited)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = std::fs::write(self.home.join("cgroup.procs"), std::process::id().to_string());
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// A file that the system swaps to until this is dropped.
struct SwapFile(#[allow(dead_code, reason = "removed when it is dropped")] tempfile::NamedTempFile, CString);

impl SwapFile {
    fn new(bytes: usize) -> std::io::Result<Self> {
        // The folder of the program, as temporary ones may be in memory, which nothing is swapped to.
        let program = std::env::current_exe()?;
        let mut file = tempfile::NamedTempFile::new_in(program.parent().unwrap_or(Path::new(".")))?;
        let pages = 2 * bytes / PAGE;
        file.write_all(&Self::head(pages)?)?;
        (1..pages).try_for_each(|_| file.write_all(&[0; PAGE]))?;
        file.as_file().sync_all()?;
        let path = CString::new(file.path().as_os_str().as_bytes())?;
        // Before others that there may be.
        let flags = 0x8000 | 0x7fff;
        // SAFETY: the path ends with a zero byte.
        if unsafe { libc::swapon(path.as_ptr(), flags) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self(file, path))
    }

    /// The first page of an area for swapping, as mkswap makes it.
    fn head(pages: usize) -> std::io::Result<[u8; PAGE]> {
        let mut head = [0; PAGE];
        head[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
        let last = u32::try_from(pages - 1).map_err(std::io::Error::other)?;
        head[1028..1032].copy_from_slice(&last.to_ne_bytes());
        head[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
        Ok(head)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        // SAFETY: the path ends with a zero byte.
        unsafe { libc::swapoff(self.1.as_ptr()) };
    }
}
