//! Files that a daemon has on devices, shared by three kinds of process: programs of the CPU on a mount, the mount, and a
//! client of the daemon, which is this one.

use crate::shared::Cpu;
use crate::support::{World, can_mount};
use bifolio_cache::Mapping;
use bifolio_daemon::{Client, Options, SharedFile};
use bifolio_device::{Device, DeviceSlice, HostOptions, Stream};
use bifolio_mount::fault::Point;
use bifolio_testing::{noise, seed, until};
use fastrand::Rng;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PAGE: usize = 4096;
const ROLE: &str = "BIFOLIO_TEST_DAEMON";

/// A daemon with two devices.
struct Running {
    keeper: Child,
    socket: PathBuf,
    server: PathBuf,
}

impl Running {
    fn start(folder: &Path) -> Self {
        let options = Options {
            devices: vec!["host:0".into(), "host:1".into()],
            memory_bytes: 16 << 20,
            page_bytes: PAGE as u64,
            frame_bytes: 2 << 20,
            ..Options::at(folder.join("socket"))
        };
        let server = folder.join("server");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["daemon::the_daemon", "--exact", "--nocapture"]).stdout(Stdio::null());
        command.env(ROLE, serde_json::to_string(&options).unwrap()).env("BIFOLIO_TEST_SERVER_PID", &server);
        let running = Self { keeper: command.spawn().unwrap(), socket: options.socket, server };
        until("the daemon serves", || Client::connect(&running.socket).is_ok());
        running
    }

    fn kill_server(&self) {
        let pid = || fs::read_to_string(&self.server).unwrap().parse::<i32>().unwrap();
        let server = pid();
        // SAFETY: it is the daemon's own, which was started here.
        unsafe { libc::kill(server, libc::SIGKILL) };
        until("another server", || pid() != server);
    }

    fn end(mut self) {
        // SAFETY: a child of this process, which has not been waited for.
        unsafe { libc::kill(self.keeper.id() as i32, libc::SIGTERM) };
        assert!(self.keeper.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Runs in processes of its own: the keeper, and servers.
#[test]
fn the_daemon() {
    if std::env::var("BIFOLIO_DAEMON_OPTIONS").is_ok() {
        bifolio_daemon::serve().unwrap();
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let Ok(text) = std::env::var(ROLE) else { return };
    let daemon = bifolio_daemon::Daemon::new(serde_json::from_str(&text).unwrap()).unwrap();
    let place = std::env::var("BIFOLIO_TEST_SERVER_PID").unwrap();
    let mut command = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["daemon::the_daemon", "--exact", "--nocapture"]);
        command
    };
    let mut started = |event| {
        if let bifolio_daemon::Event::Started(pid) = event {
            let new = format!("{place}.new");
            fs::write(&new, pid.to_string()).unwrap();
            fs::rename(new, &place).unwrap();
        }
    };
    daemon.run(&mut command, &mut started).unwrap();
    // SAFETY: as above.
    unsafe { libc::_exit(0) };
}

/// Kernels of a device.
struct Program {
    mapping: Mapping,
    stream: Stream,
    _file: SharedFile,
}

impl Program {
    fn on(running: &Running, path: &Path, number: usize) -> Self {
        let file = Client::connect(&running.socket).unwrap().open_path(path).unwrap();
        let device = Device::host(&HostOptions { index: number as u32, ..HostOptions::default() });
        let mapping = file.map_on(number, 0..u64::MAX, true).unwrap();
        Self { mapping, stream: device.create_stream().unwrap(), _file: file }
    }

    fn acquire(&mut self, len: usize) {
        self.mapping.acquire(0..len as u64).unwrap();
    }

    fn release(&mut self, len: usize) {
        self.mapping.release(0..len as u64).unwrap();
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

/// A mount that looks for a daemon at a socket in its folder.
fn world(serves_all: bool) -> (World, PathBuf) {
    let world = World::of_daemon(serves_all);
    let place = world.beside("daemon");
    (world, place)
}

#[test]
fn programs_see_what_clients_release_and_clients_what_programs_write_and_store() {
    if !can_mount() {
        return;
    }
    for serves_all in [false, true] {
        let (world, place) = world(serves_all);
        let running = Running::start(&place);
        let (path, len) = (world.source("data"), 3 * PAGE);
        fs::write(&path, vec![0; len]).unwrap();
        let (mut one, mut two) = (Program::on(&running, &path, 0), Program::on(&running, &path, 1));
        world.until_connected(1);
        let cpu = Cpu::new(&world.mount("data"), len);
        for turn in 1..20_u8 {
            let at = PAGE - 4;
            cpu.store(at, turn);
            cpu.write(at + 1, turn);
            one.acquire(len);
            assert_eq!(one.load(at, 2), [turn, turn], "a device sees both ways of a CPU");
            one.store(at + 2, &[turn]);
            cpu.store(at + 3, turn);
            one.release(len);
            assert_eq!(cpu.read(at + 4)[at..], [turn; 4], "a CPU reads what the device and a mapping have stored");
            assert_eq!(cpu.load(at + 2), turn, "a mapping sees what the device has released");
            two.acquire(len);
            assert_eq!(two.load(at, 4), [turn; 4], "another device sees all");
            two.store(2 * PAGE, &[turn]);
            two.release(len);
            assert_eq!(cpu.load(2 * PAGE), turn);
            assert_eq!(cpu.load(at + 3), turn, "what was stored before stays");
        }
        drop((cpu, one, two));
        running.end();
    }
}

/// Every byte has one writer: a mapping of the CPU, writes of the CPU, or one of two devices; the server of the daemon is
/// killed now and then.
#[test]
fn no_byte_of_any_process_is_lost_whatever_becomes_of_servers() {
    if !can_mount() {
        return;
    }
    let mut random = Rng::with_seed(seed());
    for serves_all in [false, true] {
        let (world, place) = world(serves_all);
        let running = Running::start(&place);
        let (path, len) = (world.source("data"), 9 * PAGE + 123);
        let mut expected = noise(len, random.u64(..));
        fs::write(&path, &expected).unwrap();
        let mut programs = [0, 1].map(|number| Program::on(&running, &path, number));
        world.until_connected(1);
        let cpu = Cpu::new(&world.mount("data"), len);
        for step in 0..600_u32 {
            let at = random.usize(..len);
            let value = step as u8;
            match random.u8(..10) {
                0 | 1 => {
                    for at in (at..len).step_by(4 * random.usize(1..300)).map(|at| at / 4 * 4).take(20) {
                        cpu.store(at, value);
                        expected[at] = value;
                    }
                }
                2 | 3 => {
                    let at = at.min(len - 3) / 4 * 4 + 1;
                    cpu.write(at, value);
                    expected[at] = value;
                }
                4 | 5 => {
                    let number = random.usize(..2);
                    let program = &mut programs[number];
                    program.acquire(len);
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
                    program.release(len);
                }
                6 => assert!(cpu.read(len) == expected, "step {step}: a CPU reads everything"),
                7 => assert!(cpu.load_all(len) == expected, "step {step}: a mapping sees everything"),
                8 if step % 20 == 0 => running.kill_server(),
                // Whoever goes on meets one that is being replaced.
                9 => world.kill_server(),
                _ => cpu.sync(),
            }
        }
        drop((cpu, programs));
        assert!(fs::read(world.mount("data")).unwrap() == expected);
        running.end();
        assert!(fs::read(&path).unwrap() == expected);
    }
}

/// Symptom: what a device had released on top of what a program wrote was gone. Cause: the server was killed before it had
/// answered the program, and its successor wrote the same once more. The device has seen the write, and so comes after it.
#[test]
fn what_a_device_releases_on_top_of_a_write_stays_when_the_writes_server_is_killed() {
    if !can_mount() {
        return;
    }
    for point in [Point::Answered, Point::Written] {
        for is_append in [false, true] {
            let world = World::killed_at(false, "daemon", Some(point));
            world.disarm();
            let running = Running::start(&world.beside("daemon"));
            let (path, len) = (world.source("data"), 2 * PAGE);
            fs::write(&path, vec![1; if is_append { PAGE } else { len }]).unwrap();
            let first = Program::on(&running, &path, 1);
            world.until_connected(1);
            let file = fs::File::options().read(true).append(is_append).write(true).open(world.mount("data")).unwrap();
            world.hold_at_point();
            let written = std::thread::scope(|scope| {
                let writes = scope.spawn(|| {
                    if is_append { (&file).write(&[2; PAGE]) } else { file.write_at(&[2; PAGE], PAGE as u64) }
                });
                world.until_at_point();
                let mut program = Program::on(&running, &path, 0);
                program.acquire(len);
                assert_eq!(program.load(PAGE, 2), [2, 2], "the device sees what was written");
                program.store(PAGE, &[3]);
                program.release(len);
                world.disarm();
                writes.join().unwrap()
            });
            assert_eq!(written.unwrap(), PAGE);
            let found = fs::read(world.mount("data")).unwrap();
            let expected = [vec![1; PAGE], vec![3], vec![2; PAGE - 1]].concat();
            assert!(found == expected, "{point:?}: {:?} of {} bytes", &found[PAGE - 1..PAGE + 2], found.len());
            drop((first, file));
            running.end();
            assert!(fs::read(&path).unwrap() == expected);
        }
    }
}

/// A program that had the file open before a client wanted it sees what was released, and the client what it wrote; so do
/// others when the daemon has ended and another one runs.
#[test]
fn files_are_plain_without_a_daemon_and_shared_with_the_next_one() {
    if !can_mount() {
        return;
    }
    for serves_all in [false, true] {
        let (world, place) = world(serves_all);
        let path = world.source("data");
        fs::write(&path, [1; PAGE]).unwrap();
        let cpu = Cpu::new(&world.mount("data"), PAGE);
        cpu.store(0, 2);
        for turn in 0..3_u8 {
            assert_eq!(cpu.load(0), 2 + turn, "nobody serves");
            cpu.write(10, turn);
            let running = Running::start(&place);
            world.until_connected(usize::from(turn) + 1);
            let mut program = Program::on(&running, &path, 0);
            program.acquire(PAGE);
            assert_eq!(program.load(0, 2), [2 + turn, 1 + turn]);
            assert_eq!(program.load(10, 1), [turn]);
            program.store(1, &[2 + turn]);
            cpu.store(2, 4 + turn);
            program.release(PAGE);
            assert_eq!([0, 1, 2].map(|at| cpu.load(at)), [2 + turn, 2 + turn, 4 + turn]);
            // Whoever opens it now goes the same way.
            assert_eq!(cpu.read_anew(3), [2 + turn, 2 + turn, 4 + turn]);
            cpu.write(3, 5 + turn);
            cpu.store(0, 3 + turn);
            program.acquire(PAGE);
            assert_eq!(program.load(0, 4), [3 + turn, 2 + turn, 4 + turn, 5 + turn]);
            program.release(PAGE);
            drop(program);
            running.end();
            assert_eq!(fs::read(&path).unwrap()[..4], [3 + turn, 2 + turn, 4 + turn, 5 + turn]);
        }
    }
}
