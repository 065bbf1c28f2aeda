//! A daemon in processes of its own, and programs that use it.

use bifolio_cache::Mapping;
use bifolio_cache::service::Request;
use bifolio_daemon::protocol::{ToClient, ToServer, VERSION, decode_answer, encode_request};
use bifolio_daemon::socket::{MESSAGE_BYTES_MAX, Received, Socket};
use bifolio_daemon::{Client, Daemon, Options, SharedFile, serve};
use bifolio_device::{BackendKind, Device, DeviceChoice, DeviceId, DevicePtr, DeviceSlice, HostOptions, Stream};
use bifolio_testing::until;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const FRAME: u64 = 2 << 20;

const ROLE: &str = "BIFOLIO_TEST_DAEMON";

/// A folder below the build folder: not in memory, where nothing tells of stores into mappings.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A daemon that runs.
pub(crate) struct Running {
    pub(crate) keeper: Child,
    pub(crate) socket: PathBuf,
    server: PathBuf,
}

/// The devices of daemons: two of `host`, or those that `BIFOLIO_TEST_DEVICES` names, such as `cuda:0,cuda:1`.
fn devices() -> Vec<String> {
    let named = std::env::var("BIFOLIO_TEST_DEVICES").unwrap_or_else(|_| "host:0,host:1".into());
    named.split(',').map(str::to_owned).collect()
}

/// One of them, in this process.
pub(crate) fn device(number: usize) -> Device {
    let id: DeviceId = devices()[number].parse().unwrap();
    match id.backend {
        BackendKind::Host => Device::host(&HostOptions { index: id.index, ..HostOptions::default() }),
        _ => bifolio_device::open(DeviceChoice::Exactly(id)).unwrap(),
    }
}

/// With two devices, and so many frames of each.
pub(crate) fn options(folder: &Path, frames: u64) -> Options {
    Options {
        devices: devices(),
        memory_bytes: frames * FRAME,
        page_bytes: PAGE,
        frame_bytes: FRAME,
        ..Options::at(folder.join("s"))
    }
}

impl Running {
    pub(crate) fn start(folder: &Path, options: &Options) -> Self {
        Self::start_with(folder, options, &[])
    }

    /// With so many variables more in its environment.
    pub(crate) fn start_with(folder: &Path, options: &Options, variables: &[(&str, &Path)]) -> Self {
        let server = folder.join("server");
        let keeper = Command::new(std::env::current_exe().unwrap())
            .args(["support::the_daemon", "--exact", "--nocapture"])
            .env(ROLE, serde_json::to_string(options).unwrap())
            .env("BIFOLIO_TEST_SERVER_PID", &server)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let running = Self { keeper, socket: options.socket.clone(), server };
        until("the daemon serves", || Client::connect(&running.socket).is_ok());
        running
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    /// The process that serves at the moment.
    pub(crate) fn server(&self) -> i32 {
        std::fs::read_to_string(&self.server).unwrap().parse().unwrap()
    }

    /// Kills the server; another one will come.
    pub(crate) fn kill_server(&self) {
        let server = self.server();
        // SAFETY: it is the daemon's own, which was started here.
        unsafe { libc::kill(server, libc::SIGKILL) };
        until("another server", || self.server() != server);
    }

    pub(crate) fn end(mut self) {
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
        crate::points::obey_plan();
        serve().unwrap();
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let Ok(text) = std::env::var(ROLE) else { return };
    let daemon = Daemon::new(serde_json::from_str(&text).unwrap()).unwrap();
    let place = std::env::var("BIFOLIO_TEST_SERVER_PID").unwrap();
    let mut command = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["support::the_daemon", "--exact", "--nocapture"]);
        command
    };
    let mut started = |event| {
        if let bifolio_daemon::Event::Started(pid) = event {
            let new = format!("{place}.new");
            std::fs::write(&new, pid.to_string()).unwrap();
            std::fs::rename(new, &place).unwrap();
        }
    };
    daemon.run(&mut command, &mut started).unwrap();
    // SAFETY: as above.
    unsafe { libc::_exit(0) };
}

/// What was mapped, when the mapping is no more.
pub(crate) struct Kept(DevicePtr, Stream);

impl Kept {
    /// Somebody has pinned the part.
    pub(crate) fn load(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0x5a; len as usize];
        // SAFETY: the part is pinned, so that it has memory.
        let slice = unsafe { DeviceSlice::from_raw(self.0.offset_by(at), len) };
        self.1.download(&mut bytes, slice).unwrap();
        bytes
    }
}

/// A mapping, and kernels that read and write it.
pub(crate) struct Program {
    pub(crate) mapping: Mapping,
    stream: Stream,
}

impl Program {
    /// The whole file.
    pub(crate) fn on(file: &SharedFile, number: usize, writable: bool) -> Self {
        Self::on_device(&device(number), file, number, writable)
    }

    /// The same on the daemon's device with that number, whichever it is.
    pub(crate) fn on_device(device: &Device, file: &SharedFile, number: usize, writable: bool) -> Self {
        let mapping = file.map_on(number, 0..u64::MAX, writable).unwrap();
        Self { mapping, stream: device.create_stream().unwrap() }
    }

    /// Drops the mapping.
    pub(crate) fn at_its_addresses(self) -> Kept {
        Kept(self.mapping.ptr(), self.stream)
    }

    /// The part is acquired.
    pub(crate) fn store(&self, at: u64, bytes: &[u8]) {
        // SAFETY: the part is acquired, so that it has memory.
        let slice = unsafe { DeviceSlice::from_raw(self.mapping.ptr().offset_by(at), bytes.len() as u64) };
        self.stream.upload(slice, bytes).unwrap();
    }

    /// The part is acquired.
    pub(crate) fn load(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0x5a; len as usize];
        // SAFETY: as above.
        let slice = unsafe { DeviceSlice::from_raw(self.mapping.ptr().offset_by(at), len) };
        self.stream.download(&mut bytes, slice).unwrap();
        bytes
    }
}

/// A client that says what it likes.
pub(crate) struct Raw(pub(crate) Socket, pub(crate) u64);

impl Raw {
    pub(crate) fn connect(path: &Path) -> Self {
        let mut raw = Self(Socket::connect(path).unwrap(), 0);
        assert!(matches!(raw.ask(&ToServer::Hello { version: VERSION }, None), Some((ToClient::Welcome { .. }, _))));
        raw
    }

    /// None where the connection has ended.
    pub(crate) fn ask(
        &mut self,
        message: &ToServer,
        with: Option<BorrowedFd<'_>>,
    ) -> Option<(ToClient, Option<OwnedFd>)> {
        self.1 += 1;
        self.0.send(&encode_request(self.1, message), with).ok()?;
        self.hear()
    }

    pub(crate) fn hear(&mut self) -> Option<(ToClient, Option<OwnedFd>)> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        match self.0.receive(&mut buffer).ok()? {
            Received::Message(len, descriptor) => Some((decode_answer(&buffer[..len]).unwrap().1, descriptor)),
            _ => None,
        }
    }

    /// Asks, and again when another server serves.
    pub(crate) fn again(&mut self, message: &ToServer) -> (ToClient, Option<OwnedFd>) {
        self.1 += 1;
        let bytes = encode_request(self.1, message);
        self.0.send(&bytes, None).unwrap();
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let Received::Message(len, descriptor) = self.0.receive(&mut buffer).unwrap() else { panic!("the end") };
            match decode_answer(&buffer[..len]).unwrap() {
                (_, ToClient::Again) => self.0.send(&bytes, None).unwrap(),
                (number, answer) if number == self.1 => return (answer, descriptor),
                _ => {}
            }
        }
    }

    pub(crate) fn request(&mut self, file: u64, request: Request) -> ToClient {
        self.ask(&ToServer::Ask { file, request }, None).unwrap().0
    }
}
