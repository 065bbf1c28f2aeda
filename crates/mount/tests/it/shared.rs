//! Files that CPU programs and devices share: through the mount, without a call.

use crate::support::{World, can_mount, stress_seconds};
use bifolio_cache::{Cache, CacheOptions, Mapping};
use bifolio_device::{Device, DeviceSlice, HostOptions, Stream};
use bifolio_io::{Router, RouterOptions};
use bifolio_mount::{InProcess, Replicas, WantedFile};
use bifolio_testing::{noise, seed};
use fastrand::Rng;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const PAGE: usize = 4096;

struct Shared {
    world: World,
    replicas: InProcess,
    devices: Vec<Device>,
}

impl Shared {
    fn new(serves_all: bool) -> Self {
        let devices: Vec<Device> =
            (0..2).map(|index| Device::host(&HostOptions { index, ..HostOptions::default() })).collect();
        let options =
            || RouterOptions { threads: 2, slot_bytes: 64 << 10, pool_bytes: 1 << 20, ..RouterOptions::default() };
        let routers: Vec<_> = devices.iter().map(|device| Arc::new(Router::new(device, options()))).collect();
        let options = CacheOptions { page_bytes: PAGE as u64, budget_bytes: 64 << 20, ..CacheOptions::default() };
        let replicas = InProcess::new(Cache::new(&routers, options).unwrap());
        let shown: Arc<dyn Replicas> = Arc::new(replicas.clone());
        let world = World::with(serves_all, &shown);
        Self { world, replicas, devices }
    }

    fn program(&self, name: &str, device: usize) -> Program {
        let file = self.replicas.want(&self.world.source(name)).unwrap();
        let mapping = file.file().map_on(device, 0..u64::MAX, true).unwrap();
        Program { file, mapping, stream: self.devices[device].create_stream().unwrap() }
    }
}

/// A program of a device.
struct Program {
    file: WantedFile,
    mapping: Mapping,
    stream: Stream,
}

impl Program {
    fn acquire(&mut self, part: std::ops::Range<u64>) {
        self.file.acquire(&mut self.mapping, 0, part).unwrap();
    }

    fn release(&mut self, part: std::ops::Range<u64>) {
        self.file.release(&mut self.mapping, 0, part).unwrap();
    }

    /// The part is acquired.
    fn store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the part is acquired, so that it has memory.
        let slice = unsafe { DeviceSlice::from_raw(self.mapping.ptr().offset_by(at as u64), bytes.len() as u64) };
        self.stream.upload(slice, bytes).unwrap();
    }

    /// The part is acquired.
    fn load(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0x5a; len];
        // SAFETY: as above.
        let slice = unsafe { DeviceSlice::from_raw(self.mapping.ptr().offset_by(at as u64), len as u64) };
        self.stream.download(&mut bytes, slice).unwrap();
        bytes
    }
}

/// A CPU program, which has a file open and mapped: another process than the server's. A process that ends a mapping waits
/// for its pages to be written, and holds its addresses meanwhile, of which the server would need some.
pub(crate) struct Cpu {
    child: Child,
    pipes: RefCell<(ChildStdin, ChildStderr)>,
}

const PATH: &str = "BIFOLIO_TEST_MAPS";

impl Cpu {
    pub(crate) fn new(path: &Path, len: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "shared::a_program_that_maps", "--nocapture"]).env(PATH, path);
        command.env("BIFOLIO_TEST_LEN", len.to_string());
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let pipes = RefCell::new((child.stdin.take().unwrap(), child.stderr.take().unwrap()));
        Self { child, pipes }
    }

    /// One request of ten bytes, and as many bytes as answer.
    fn ask(&self, what: u8, at: usize, value: u8, answer: &mut [u8]) {
        let mut request = vec![what];
        request.extend((at as u64).to_le_bytes());
        request.push(value);
        let (input, output) = &mut *self.pipes.borrow_mut();
        input.write_all(&request).unwrap();
        output.read_exact(answer).unwrap();
    }

    pub(crate) fn store(&self, at: usize, value: u8) {
        self.ask(b's', at, value, &mut [0]);
    }

    pub(crate) fn load(&self, at: usize) -> u8 {
        let mut answer = [0];
        self.ask(b'l', at, 0, &mut answer);
        answer[0]
    }

    pub(crate) fn load_all(&self, len: usize) -> Vec<u8> {
        self.all(b'a', len)
    }

    /// By calls, as of what was opened first.
    pub(crate) fn read(&self, len: usize) -> Vec<u8> {
        self.all(b'r', len)
    }

    /// The same of a new opening.
    pub(crate) fn read_anew(&self, len: usize) -> Vec<u8> {
        self.all(b'n', len)
    }

    fn all(&self, what: u8, len: usize) -> Vec<u8> {
        let mut all = vec![0; len];
        self.ask(what, len, 0, &mut all);
        all
    }

    pub(crate) fn write(&self, at: usize, value: u8) {
        self.ask(b'w', at, value, &mut [0]);
    }

    pub(crate) fn append(&self, value: u8) {
        self.ask(b'e', 0, value, &mut [0]);
    }

    pub(crate) fn resize(&self, len: usize) {
        self.ask(b't', len, 0, &mut [0]);
    }

    pub(crate) fn punch(&self, at: usize) {
        self.ask(b'p', at, 0, &mut [0]);
    }

    pub(crate) fn sync(&self) {
        self.ask(b'f', 0, 0, &mut [0]);
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        let _ = self.pipes.get_mut().0.write_all(&[b'q'; 10]);
        let ended = self.child.wait().unwrap();
        assert!(ended.success() || std::thread::panicking());
    }
}

/// The other process: answers on standard error, as the test runner speaks on standard output.
#[test]
fn a_program_that_maps() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let len: usize = std::env::var("BIFOLIO_TEST_LEN").unwrap().parse().unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0).cast::<AtomicU8>()
    };
    assert_ne!(start.cast(), libc::MAP_FAILED);
    // SAFETY: as many bytes as were mapped, for as long as this process.
    let bytes = unsafe { std::slice::from_raw_parts(start, len) };
    let mut request = [0; 10];
    while std::io::stdin().read_exact(&mut request).is_ok() && request[0] != b'q' {
        let at = u64::from_le_bytes(request[1..9].try_into().unwrap()) as usize;
        let answer = match request[0] {
            b's' => {
                bytes[at].store(request[9], Ordering::SeqCst);
                vec![0]
            }
            b'l' => vec![bytes[at].load(Ordering::SeqCst)],
            b'r' => read(&file, at),
            b'n' => read(&File::open(&path).unwrap(), at),
            b'w' => file.write_at(&request[9..], at as u64).map(|_| vec![0]).unwrap(),
            b'e' => {
                let mut end = File::options().append(true).open(&path).unwrap();
                end.write_all(&request[9..]).map(|()| vec![0]).unwrap()
            }
            b't' => file.set_len(at as u64).map(|()| vec![0]).unwrap(),
            b'f' => file.sync_all().map(|()| vec![0]).unwrap(),
            b'p' => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: takes no memory.
                assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, PAGE as i64) }, 0);
                vec![0]
            }
            _ => bytes[..at].iter().map(|byte| byte.load(Ordering::SeqCst)).collect(),
        };
        std::io::stderr().write_all(&answer).unwrap();
    }
    // SAFETY: nobody uses it any more.
    unsafe { libc::munmap(start.cast(), len) };
}

fn read(file: &File, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Message passing, in each direction and by each way of a CPU, on neighbouring bytes of a word.
#[test]
fn what_one_has_done_the_others_see_after_a_release_and_an_acquire() {
    if !can_mount() {
        return;
    }
    for serves_all in [false, true] {
        let shared = Shared::new(serves_all);
        fs::write(shared.world.source("data"), [0; 3 * PAGE]).unwrap();
        let mut one = shared.program("data", 0);
        let mut two = shared.program("data", 1);
        let cpu = Cpu::new(&shared.world.mount("data"), 3 * PAGE);
        let all = 0..3 * PAGE as u64;
        for turn in 1..20_u8 {
            let at = PAGE - 4;
            cpu.store(at, turn);
            cpu.write(at + 1, turn);
            one.acquire(all.clone());
            assert_eq!(one.load(at, 2), [turn, turn], "a device sees both ways of a CPU");
            one.store(at + 2, &[turn]);
            cpu.store(at + 3, turn);
            one.release(all.clone());
            assert_eq!(cpu.read(at + 4)[at..], [turn; 4], "a CPU reads what the device and a mapping have stored");
            assert_eq!(cpu.load(at + 2), turn, "a mapping sees what the device has released");
            two.acquire(all.clone());
            assert_eq!(two.load(at, 4), [turn; 4], "another device sees all");
            two.store(2 * PAGE, &[turn]);
            two.release(all.clone());
            assert_eq!(cpu.load(2 * PAGE), turn);
            assert_eq!(cpu.load(at + 3), turn, "what was stored before stays");
        }
    }
}

/// Every byte has one writer: a mapping of the CPU, writes of the CPU, or one of two devices. Readers of all kinds find in
/// every byte what its writer has released last, and the file has it in the end.
#[test]
fn no_byte_of_any_actor_is_lost_in_any_order() {
    if !can_mount() {
        return;
    }
    let mut random = Rng::with_seed(seed());
    for serves_all in [false, true] {
        let shared = Shared::new(serves_all);
        let len = 9 * PAGE + 123;
        let mut expected = noise(len, random.u64(..));
        fs::write(shared.world.source("data"), &expected).unwrap();
        let mut programs = [shared.program("data", 0), shared.program("data", 1)];
        let path = shared.world.mount("data");
        let cpu = Cpu::new(&path, len);
        let all = 0..len as u64;
        for step in 0..1500_u32 {
            let at = random.usize(..len);
            let value = step as u8;
            match random.u8(..9) {
                0 | 1 => {
                    // Some stores of a mapping.
                    for at in (at..len).step_by(4 * random.usize(1..300)).map(|at| at / 4 * 4).take(20) {
                        cpu.store(at, value);
                        expected[at] = value;
                    }
                }
                2 | 3 => {
                    let at = at.min(len - 3);
                    let at = at / 4 * 4 + 1;
                    cpu.write(at, value);
                    expected[at] = value;
                }
                4 | 5 => {
                    let number = random.usize(..2);
                    let program = &mut programs[number];
                    program.acquire(all.clone());
                    assert!(program.load(0, len) == expected, "step {step}: device {number} sees everything");
                    for _ in 0..random.u8(1..10) {
                        let at = random.usize(..len / 4) * 4 + 2 + number;
                        if at < len {
                            program.store(at, &[value]);
                            expected[at] = value;
                        }
                    }
                    // A CPU goes on meanwhile.
                    let at = at / 4 * 4;
                    cpu.store(at, value ^ 0x55);
                    expected[at] = value ^ 0x55;
                    program.release(all.clone());
                }
                6 => {
                    assert!(cpu.read(len) == expected, "step {step}: a CPU reads everything");
                }
                7 => {
                    let seen = cpu.load_all(len);
                    assert!(seen == expected, "step {step}: a mapping sees everything");
                }
                _ => cpu.sync(),
            }
        }
        drop(cpu);
        drop(programs);
        assert!(Cpu::new(&path, len).read(len) == expected);
        assert!(fs::read(shared.world.source("data")).unwrap() == expected);
    }
}

/// A CPU process and a device change one file at once, each its own bytes: none is lost.
#[test]
fn a_cpu_and_a_device_change_one_file_at_once() {
    if !can_mount() {
        return;
    }
    let seconds = stress_seconds();
    let shared = Shared::new(false);
    let len = 64 * PAGE;
    fs::write(shared.world.source("data"), vec![0; len]).unwrap();
    let mut program = shared.program("data", 0);
    let path = shared.world.mount("data");
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = {
        let (path, is_over, mut random) = (path.clone(), Arc::clone(&is_over), Rng::with_seed(seed()));
        std::thread::spawn(move || {
            let cpu = Cpu::new(&path, len);
            let mut own = vec![0_u8; len];
            while !is_over.load(Ordering::SeqCst) {
                let at = random.usize(..len / 2) * 2;
                own[at] = own[at].wrapping_add(1);
                if at % 4 == 0 {
                    cpu.store(at, own[at]);
                } else {
                    cpu.write(at, own[at]);
                }
                let seen = random.usize(..len / 4) * 4;
                assert_eq!(cpu.load(seen), own[seen], "what a mapping has stored stays there");
            }
            own
        })
    };
    let mut random = Rng::with_seed(seed());
    let mut own = vec![0_u8; len];
    let begin = std::time::Instant::now();
    let mut turns = 0;
    while begin.elapsed().as_secs() < seconds {
        let start = random.usize(..64) * PAGE;
        let part = start as u64..len as u64;
        program.acquire(part.clone());
        for _ in 0..20 {
            let at = start + random.usize(..(len - start) / 2) * 2 + 1;
            assert_eq!(program.load(at, 1)[0], own[at], "turn {turns}: what the device has stored stays there");
            own[at] = own[at].wrapping_add(1);
            program.store(at, &own[at..=at]);
        }
        program.release(part);
        turns += 1;
    }
    is_over.store(true, Ordering::SeqCst);
    let written = writer.join().unwrap();
    drop(program);
    let found = Cpu::new(&path, len).read(len);
    for at in 0..len {
        let expected = if at % 2 == 0 { written[at] } else { own[at] };
        assert_eq!(found[at], expected, "byte {at} after {turns} turns");
    }
}

/// A program that had the file open before a device wanted it sees what was released, and the device what it wrote.
#[test]
fn a_file_that_was_open_before_a_device_wanted_it_is_shared_as_well() {
    if !can_mount() {
        return;
    }
    for serves_all in [false, true] {
        let shared = Shared::new(serves_all);
        fs::write(shared.world.source("data"), [1; PAGE]).unwrap();
        let cpu = Cpu::new(&shared.world.mount("data"), PAGE);
        cpu.store(0, 2);
        let mut program = shared.program("data", 0);
        program.acquire(0..PAGE as u64);
        assert_eq!(program.load(0, 2), [2, 1]);
        program.store(1, &[3]);
        cpu.store(2, 4);
        program.release(0..PAGE as u64);
        assert_eq!([0, 1, 2].map(|at| cpu.load(at)), [2, 3, 4]);
        // Whoever opens it now goes the same way.
        assert_eq!(cpu.read_anew(3), [2, 3, 4]);
        cpu.write(3, 5);
        program.acquire(0..PAGE as u64);
        assert_eq!(program.load(0, 4), [2, 3, 4, 5]);
        program.release(0..PAGE as u64);
    }
}

/// Symptom: what a device had released was missing in a file that was opened when the device had ended. Cause: the mount
/// still had the file open, so that it was written when that opening was closed, which nobody waits for, and a file that no
/// device wants is read past the cache.
#[test]
fn a_file_that_no_device_wants_any_more_has_all_that_was_released() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(false);
    fs::write(shared.world.source("data"), [1; PAGE]).unwrap();
    let mut program = shared.program("data", 0);
    let cpu = Cpu::new(&shared.world.mount("data"), PAGE);
    program.acquire(0..PAGE as u64);
    program.store(100, &[2]);
    program.release(0..PAGE as u64);
    drop(program);
    assert_eq!(fs::read(shared.world.source("data")).unwrap()[99..102], [1, 2, 1]);
    assert_eq!(cpu.load(100), 2);
}

#[test]
fn a_shared_file_is_cut_appended_to_and_punched_as_any_other() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new(false);
    let mut expected = noise(5 * PAGE, 3);
    fs::write(shared.world.source("data"), &expected).unwrap();
    let mut program = shared.program("data", 0);
    let cpu = Cpu::new(&shared.world.mount("data"), 5 * PAGE);
    program.acquire(0..5 * PAGE as u64);
    program.store(10, &[7; 10]);
    expected[10..20].fill(7);
    program.release(0..5 * PAGE as u64);
    cpu.resize(3 * PAGE + 5);
    expected.truncate(3 * PAGE + 5);
    cpu.append(b'm');
    cpu.append(b'n');
    expected.extend(b"mn");
    cpu.punch(PAGE);
    expected[PAGE..2 * PAGE].fill(0);
    assert!(cpu.read(expected.len()) == expected);
    let part = 0..3 * PAGE as u64;
    program.acquire(part.clone());
    assert!(program.load(0, 3 * PAGE) == expected[..3 * PAGE]);
    program.release(part);
}
