//! What one cache for all processes costs and saves: a file is made, loaded by a first process, attached to by others, one
//! after the other and at once, acquired again and again with nothing new, given back and brought again, and looked at byte
//! by byte before and after the server was killed. With several devices, one after the other gets the file, and those who
//! attach at once are spread over them. Prints JSON.
//!
//! ```sh
//! cargo run --release -p bifolio-daemon --example shared_rates -- FOLDER [BYTES [DEVICE,... [PROCESSES [FRAME [BRIEFLY]]]]]
//! ```
//!
//! FRAME is how many bytes frames have, 0 for what fits; with any sixth argument, nothing is measured but how processes attach.

use bifolio_cache::Advice;
use bifolio_daemon::{Client, Daemon, Event, Options, serve};
use bifolio_device::{DeviceChoice, DeviceId, DeviceSlice};
use serde_json::{Value, json};
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROLE: &str = "BIFOLIO_SHARED_RATES";
const PIECE: usize = 64 << 20;

/// What a client does, and says before it does it.
const AT_ONCE: &str = "at once";
const READY: &str = "ready";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os("BIFOLIO_DAEMON_OPTIONS").is_some() {
        return Ok(serve()?);
    }
    match std::env::var(ROLE).as_deref() {
        Ok("keeper") => keep(&arguments),
        Ok("client") => attach(&arguments),
        _ => measure(&arguments),
    }
}

/// This program in another role.
fn again(role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The keeper: arguments are the options, and where the server's number is written.
fn keep(arguments: &[String]) -> Result<()> {
    let [options, place] = arguments else { return Err("the keeper takes two arguments".into()) };
    let options: Options = serde_json::from_str(options)?;
    let mut started = |event| {
        if let Event::Started(pid) = event {
            let _ = std::fs::write(place, pid.to_string());
        }
    };
    Ok(Daemon::new(options)?.run(&mut || Command::new("/proc/self/exe"), &mut started)?)
}

/// One process that wants the whole file: arguments are socket, file, device, and what it does then.
fn attach(arguments: &[String]) -> Result<()> {
    let [socket, path, device, then] = arguments else { return Err("a client takes four arguments".into()) };
    let id: DeviceId = device.parse()?;
    let begun = Instant::now();
    let device = bifolio_device::open(DeviceChoice::Exactly(id))?;
    let stream = device.create_stream()?;
    let started_s = begun.elapsed().as_secs_f64();
    if then == AT_ONCE {
        // Starting a device takes a GPU's driver long, and others wait for it: nobody attaches before all have.
        println!("{READY}");
        std::io::stdin().read_to_end(&mut vec![])?;
    }
    let free_before = device.memory()?.free;
    let begun = Instant::now();
    let client = Client::connect(socket)?;
    let file = client.open_path(path)?;
    let mut mapping = file.map(id, 0..u64::MAX, false)?;
    let mapped_s = begun.elapsed().as_secs_f64();
    let len = mapping.len();
    let report = mapping.acquire(0..len)?;
    let attached_s = begun.elapsed().as_secs_f64();
    let taken = free_before.saturating_sub(device.memory()?.free);
    let mut answer = json!({
        "device_start_s": started_s, "mapped_s": mapped_s, "attached_s": attached_s,
        "fetched_pages": report.fetched, "hit_pages": report.hits, "compared_pages": report.compared,
        "device_bytes_taken": taken,
    });
    match then.as_str() {
        "verify" => {
            let begun = Instant::now();
            let file = File::open(path)?;
            let (mut seen, mut expected) = (vec![0x5a; PIECE], vec![0; PIECE]);
            for at in (0..len).step_by(PIECE) {
                let count = (len - at).min(PIECE as u64) as usize;
                file.read_exact_at(&mut expected[..count], at)?;
                // SAFETY: the part is acquired, so that it has memory.
                let slice = unsafe { DeviceSlice::from_raw(mapping.ptr().offset_by(at), count as u64) };
                seen.fill(0x5a);
                stream.download(&mut seen[..count], slice)?;
                if seen[..count] != expected[..count] {
                    return Err(format!("other bytes than the file's at {at}").into());
                }
            }
            answer["verified_bytes"] = len.into();
            answer["verified_s"] = begun.elapsed().as_secs_f64().into();
        }
        "acquire" => {
            mapping.release(0..len)?;
            for bytes in [1 << 20, len] {
                let mut times: Vec<f64> = (0..1000)
                    .map(|_| {
                        let begun = Instant::now();
                        mapping.acquire(0..bytes).map(|_| begun.elapsed().as_secs_f64()).and_then(|time| {
                            mapping.release(0..bytes)?;
                            Ok(time)
                        })
                    })
                    .collect::<std::result::Result<_, _>>()?;
                times.sort_by(f64::total_cmp);
                let name = if bytes == len { "all" } else { "1 MiB" };
                answer[format!("acquire of {name}")] = json!({"p50_us": times[500] * 1e6, "p99_us": times[990] * 1e6});
            }
        }
        "sleep" => {
            let mut turns = vec![];
            for _ in 0..5 {
                let (free, begun) = (device.memory()?.free, Instant::now());
                mapping.release(0..len)?;
                mapping.advise(0..len, Advice::DontNeed)?;
                let (sleep_s, given) = (begun.elapsed().as_secs_f64(), device.memory()?.free.saturating_sub(free));
                let begun = Instant::now();
                let report = mapping.acquire(0..len)?;
                let wake_s = begun.elapsed().as_secs_f64();
                turns.push(json!({
                    "sleep_s": sleep_s, "device_bytes_given_back": given, "wake_s": wake_s,
                    "wake_gb_per_s": len as f64 / wake_s / 1e9, "fetched_pages": report.fetched,
                }));
            }
            answer["sleep and wake"] = turns.into();
        }
        _ => {}
    }
    println!("{answer}");
    Ok(())
}

/// A daemon that ends with this.
struct Running {
    keeper: Child,
    socket: PathBuf,
    server: PathBuf,
}

impl Running {
    fn start(folder: &Path, devices: &[DeviceId], memory_bytes: u64, frame_bytes: u64) -> Result<Self> {
        let (socket, server) = (folder.join("socket"), folder.join("server"));
        let options = Options {
            devices: devices.iter().map(ToString::to_string).collect(),
            memory_bytes,
            frame_bytes,
            ..Options::at(&socket)
        };
        let options = serde_json::to_string(&options)?;
        let keeper = again("keeper", &[&options, &server.display().to_string()]).spawn()?;
        let running = Self { keeper, socket, server };
        let begun = Instant::now();
        while Client::connect(&running.socket).is_err() {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("the daemon does not serve".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(running)
    }

    fn client(&self, path: &Path, device: DeviceId, then: &str) -> Result<Child> {
        let (socket, path) = (self.socket.display().to_string(), path.display().to_string());
        Ok(again("client", &[&socket, &path, &device.to_string(), then]).spawn()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: a child of this process, which has not been waited for.
        unsafe { libc::kill(self.keeper.id() as i32, libc::SIGTERM) };
        let _ = self.keeper.wait();
    }
}

fn said(mut child: Child) -> Result<Value> {
    let mut text = String::new();
    child.stdout.take().ok_or("no output")?.read_to_string(&mut text)?;
    if !child.wait()?.success() {
        return Err("a process failed".into());
    }
    Ok(serde_json::from_str(&text)?)
}

fn measure(arguments: &[String]) -> Result<()> {
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let folder = PathBuf::from(arguments.first().ok_or("name a folder")?).join("shared_rates");
    let (bytes, processes, frame_bytes) = (number(1, 64 << 20)?, number(3, 10)?, number(4, 0)?);
    let devices = arguments.get(2).map_or("host:0", String::as_str).split(',').map(str::parse);
    let devices: Vec<DeviceId> = devices.collect::<std::result::Result<_, _>>()?;
    let device = devices[0];
    let seed = fastrand::u64(..);
    std::fs::create_dir_all(&folder)?;
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let path = folder.join("file");
    write_noise(&path, bytes, seed)?;
    let running = Running::start(&folder, &devices, bytes + 3 * bytes.min(1 << 30), frame_bytes)?;
    let mut answer = json!({"bytes": bytes, "devices": arguments.get(2), "frame_bytes": frame_bytes, "seed": seed});
    answer["first process"] = said(running.client(&path, device, "")?)?;
    let others: Vec<Value> =
        devices[1..].iter().map(|device| said(running.client(&path, *device, "verify")?)).collect::<Result<_>>()?;
    answer["first processes on other devices"] = others.into();
    let others: Vec<Value> = (0..5).map(|_| said(running.client(&path, device, "")?)).collect::<Result<_>>()?;
    answer["processes one after the other"] = others.into();
    answer["processes at once"] = at_once(&running, &path, &devices, processes)?;
    if arguments.len() > 5 {
        answer["bytes compared"] = said(running.client(&path, device, "verify")?)?;
        println!("{answer:#}");
        drop(running);
        return Ok(std::fs::remove_dir_all(&folder)?);
    }
    answer["with nothing new"] = said(running.client(&path, device, "acquire")?)?;
    answer["sleep and wake"] = said(running.client(&path, device, "sleep")?)?;
    answer["bytes compared"] = said(running.client(&path, device, "verify")?)?;
    answer["server killed"] = killed(&running, &path, device)?;
    answer["bytes compared after it"] = said(running.client(&path, device, "verify")?)?;
    answer["versions"] = versions(&running, &folder, device, bytes.min(1 << 30), seed ^ 1)?;
    println!("{answer:#}");
    drop(running);
    Ok(std::fs::remove_dir_all(&folder)?)
}

/// Processes that have started their devices attach at the same moment.
fn at_once(running: &Running, path: &Path, devices: &[DeviceId], processes: u64) -> Result<Value> {
    let spread = devices.iter().cycle().take(processes as usize);
    let mut all: Vec<Child> = spread.map(|device| running.client(path, *device, AT_ONCE)).collect::<Result<_>>()?;
    for child in &mut all {
        let mut word = [0; READY.len() + 1];
        child.stdout.as_mut().ok_or("no output")?.read_exact(&mut word)?;
    }
    for child in &mut all {
        drop(child.stdin.take());
    }
    Ok(all.into_iter().map(said).collect::<Result<Vec<_>>>()?.into())
}

/// One client has a file, a part of which is changed, and another one acquires it, twice to write to it. The first has what it
/// had, byte by byte, until it acquires again.
fn versions(running: &Running, folder: &Path, device: DeviceId, bytes: u64, seed: u64) -> Result<Value> {
    let path = folder.join("versions");
    write_noise(&path, bytes, seed)?;
    let old = std::fs::read(&path)?;
    let stream = bifolio_device::open(DeviceChoice::Exactly(device))?.create_stream()?;
    let map = |writable| -> Result<_> {
        let client = Client::connect(&running.socket)?;
        Ok(client.open_path(&path)?.map(device, 0..u64::MAX, writable)?)
    };
    let load = |mapping: &bifolio_cache::Mapping| -> Result<Vec<u8>> {
        let mut seen = vec![0x5a; bytes as usize];
        // SAFETY: all of it is acquired, so that it has memory.
        let slice = unsafe { DeviceSlice::from_raw(mapping.ptr(), bytes) };
        stream.download(&mut seen, slice)?;
        Ok(seen)
    };
    let (mut reader, mut other) = (map(false)?, map(true)?);
    reader.acquire(0..bytes)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let file = File::options().write(true).open(&path)?;
    let mut new = old.clone();
    for _ in 0..bytes >> 24 {
        // A tenth of it, in pieces.
        let at = random.usize(..new.len() - (2 << 20));
        random.fill(&mut new[at..at + (16 << 20) / 10]);
        file.write_all_at(&new[at..at + (16 << 20) / 10], at as u64)?;
    }
    let mut times = vec![];
    for turn in 0..3 {
        let begun = Instant::now();
        let report = other.acquire(0..bytes)?;
        times.push(json!({"acquired_s": begun.elapsed().as_secs_f64(), "fetched_pages": report.fetched}));
        if load(&other)? != new || load(&reader)? != old {
            return Err(format!("another version than the one that was acquired, in turn {turn}").into());
        }
        let at = random.usize(..new.len() - (1 << 20));
        random.fill(&mut new[at..at + (1 << 20)]);
        // SAFETY: as above.
        let slice = unsafe { DeviceSlice::from_raw(other.ptr().offset_by(at as u64), 1 << 20) };
        stream.upload(slice, &new[at..at + (1 << 20)])?;
        other.release(0..bytes)?;
        if load(&reader)? != old {
            return Err(format!("a version changed by a release, in turn {turn}").into());
        }
    }
    let begun = Instant::now();
    reader.release(0..bytes)?;
    let report = reader.acquire(0..bytes)?;
    let again = json!({"acquired_s": begun.elapsed().as_secs_f64(), "fetched_pages": report.fetched});
    if load(&reader)? != new {
        return Err("not the version that was released".into());
    }
    Ok(json!({"bytes": bytes, "with a reader": times, "the reader again": again}))
}

/// Kills the server, three times, and takes the time until it answers.
fn killed(running: &Running, path: &Path, device: DeviceId) -> Result<Value> {
    let client = Client::connect(&running.socket)?;
    let mut mapping = client.open_path(path)?.map(device, 0..u64::MAX, false)?;
    let len = mapping.len();
    let mut times = vec![];
    for _ in 0..3 {
        let server: i32 = std::fs::read_to_string(&running.server)?.parse()?;
        let begun = Instant::now();
        // SAFETY: the server is the daemon's, which is ours.
        unsafe { libc::kill(server, libc::SIGKILL) };
        let report = mapping.acquire(0..len)?;
        times.push(json!({"answered_s": begun.elapsed().as_secs_f64(), "fetched_pages": report.fetched}));
        mapping.release(0..len)?;
    }
    Ok(times.into())
}

fn write_noise(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(bytes)?;
    let threads = std::thread::available_parallelism()?.get() as u64;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let file = &file;
                scope.spawn(move || -> std::io::Result<()> {
                    let mut piece = vec![0; PIECE];
                    for number in (thread..bytes.div_ceil(PIECE as u64)).step_by(threads as usize) {
                        let at = number * PIECE as u64;
                        let count = (bytes - at).min(PIECE as u64) as usize;
                        fastrand::Rng::with_seed(seed.wrapping_add(number)).fill(&mut piece[..count]);
                        file.write_all_at(&piece[..count], at)?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?.map_err(Into::into))
    })
}
