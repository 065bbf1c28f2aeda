//! What the tests share: a source, mounted.
//!
//! A process that uses a mount which it serves itself can wait for itself: a fault in a mapping, or the end of one, holds
//! the process's addresses, of which the server needs some. So a plain mount is served by a process of its own, whose
//! keeper is another one: servers are killed, by the tests, and where tests say at named points. Where a cache and its
//! devices have to be in the server's process, this one serves, and CPU programs are processes of their own.
//!
//! Whatever happens to a test, its mount goes: the server ends with the pipe to whoever started it, and a guard, which
//! waits for the same, takes away what is mounted then.

use bifolio_block::fuse::Mounted;
use bifolio_mount::fault::{self, Point};
use bifolio_mount::{
    Daemon, Event, FileKey, KeptMount, MountOptions, NoReplicas, Recall, Replicas, Served, SharedFile, mount,
};
use bifolio_testing::{skip, until};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// How long a test may take beside its stress, on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(400);

const SERVED: &str = "BIFOLIO_TEST_SERVED";
const SERVES_ALL: &str = "BIFOLIO_TEST_SERVES_ALL";
const REPLICAS: &str = "BIFOLIO_TEST_REPLICAS";
/// The server may not open what modes forbid.
const WITHOUT_OVERRIDE: &str = "BIFOLIO_TEST_WITHOUT_OVERRIDE";
/// In the place of what has files on devices: nobody has, and requests are not sent again.
const WITHOUT_RESEND: &str = "none, without resend";
/// The point at which servers are killed now and then.
const KILL_AT: &str = "BIFOLIO_TEST_KILL_AT";
/// One time in so many, while the folder has a file `armed`.
const KILL_ONE_IN: u32 = 5;
/// What that file says where whoever comes to the point is held there until it is gone, and killed then.
const HOLD: &[u8] = b"hold";
/// Where the next one that comes to it is killed.
const ONCE: &[u8] = b"once";
/// Where nobody is.
const DISARMED: &[u8] = b"nobody";

/// Where folders are that every user can enter, on a file system that tells of stores into mappings.
const PLACE: &str = "/var/tmp";

/// Whether mounting is possible here, for all that root may; if not, why is printed.
pub(crate) fn can_mount() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skip("mounting with all that root may takes root");
        return false;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    if mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & CAP_SYS_ADMIN == 0) {
        skip("mounting takes the capability CAP_SYS_ADMIN, which this container does not have");
        return false;
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        skip(format_args!("mounting takes FUSE, and /dev/fuse cannot be opened: {error}"));
        return false;
    }
    true
}

/// A folder that other users can enter.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("bifolio-mount-").tempdir_in(PLACE).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Ends this process with a sentence if it is not dropped in time: who waits for a mount cannot be ended otherwise.
pub(crate) struct Limit(Option<Sender<()>>);

impl Limit {
    pub(crate) fn new() -> Self {
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let seconds = LIMIT.as_secs() + stress_seconds();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            if receiver.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{name} has not ended after {seconds} s: it waits for something that does not happen");
                std::process::abort();
            }
        });
        Self(Some(sender))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// How long tests stress what they test.
pub(crate) fn stress_seconds() -> u64 {
    std::env::var("BIFOLIO_STRESS_SECONDS").ok().map_or(2, |text| text.parse().unwrap())
}

/// A shell that takes a mount and its folder away when this process has ended, however that was.
struct Guard(Child);

impl Guard {
    fn new(folder: &Path) -> Self {
        const SCRIPT: &str = "trap '' INT TERM; read -r _; umount -l \"$1/mount\"; rm -rf --one-file-system \"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(folder).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Nothing is mounted any more, or it is taken away now.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A source and its mount; unmounted in the end.
pub(crate) struct World {
    server: Server,
    folder: tempfile::TempDir,
    _guard: Guard,
    _limit: Limit,
}

enum Server {
    /// This process.
    Here(Option<Mounted>),
    Child(Child),
}

impl World {
    /// Served by a process of its own.
    pub(crate) fn new(serves_all: bool) -> Self {
        Self::apart(serves_all, "none")
    }

    /// The same, where devices want every file.
    pub(crate) fn of_shared_files() -> Self {
        Self::apart(false, "all")
    }

    /// The same, which shares files with the daemon in the folder `daemon`, whenever one runs.
    pub(crate) fn of_daemon(serves_all: bool) -> Self {
        Self::apart(serves_all, "daemon")
    }

    fn apart(serves_all: bool, replicas: &str) -> Self {
        Self::killed_at(serves_all, replicas, None)
    }

    /// All is served, as on a kernel that does not send requests again.
    pub(crate) fn without_resend() -> Self {
        Self::apart(true, WITHOUT_RESEND)
    }

    /// The same, whose servers are killed at a point now and then, and may not open what modes forbid.
    pub(crate) fn without_override(serves_all: bool, point: Point) -> Self {
        Self::started(serves_all, "none", Some((point, b"")), true)
    }

    /// The same, whose server is killed when it first comes to a point.
    pub(crate) fn killed_once_at(point: Point) -> Self {
        Self::started(true, "none", Some((point, ONCE)), false)
    }

    /// The same, whose servers are killed at a point now and then: `replicas` is `none`, `all`, or `daemon`.
    pub(crate) fn killed_at(serves_all: bool, replicas: &str, point: Option<Point>) -> Self {
        let world = Self::started(serves_all, replicas, point.map(|point| (point, DISARMED)), false);
        if point.is_some() {
            fs::write(world.beside("armed"), []).unwrap();
        }
        world
    }

    fn started(serves_all: bool, replicas: &str, point: Option<(Point, &[u8])>, lacks_override: bool) -> Self {
        Self::start(|folder| {
            fs::create_dir(folder.join("daemon")).unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["support::the_server", "--exact", "--nocapture"]).env(SERVED, folder);
            if serves_all {
                command.env(SERVES_ALL, "1");
            }
            command.env(REPLICAS, replicas);
            if let Some((point, armed)) = point {
                command.env(KILL_AT, format!("{point:?}"));
                fs::write(folder.join("armed"), armed).unwrap();
            }
            if lacks_override {
                command.env(WITHOUT_OVERRIDE, "1");
            }
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            // By then it has looked for a daemon as well.
            let ready = folder.join("ready");
            until("it is mounted", || {
                assert!(child.try_wait().unwrap().is_none(), "the server has ended, and says why above");
                ready.exists()
            });
            Server::Child(child)
        })
    }

    /// Served by this process.
    pub(crate) fn with(serves_all: bool, replicas: &Arc<dyn Replicas>) -> Self {
        Self::start(|folder| Server::Here(Some(mounted(folder, serves_all, replicas))))
    }

    fn start(serve: impl FnOnce(&Path) -> Server) -> Self {
        let limit = Limit::new();
        let folder = folder();
        for name in ["source", "mount"] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let guard = Guard::new(folder.path());
        Self { server: serve(folder.path()), folder, _guard: guard, _limit: limit }
    }

    /// The source by itself.
    pub(crate) fn source(&self, name: &str) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    /// The same through the mount.
    pub(crate) fn mount(&self, name: &str) -> PathBuf {
        self.folder.path().join("mount").join(name)
    }

    /// A folder beside both.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until the mount has found so many daemons, one after the other.
    pub(crate) fn until_connected(&self, times: usize) {
        let found = |text: &str| text.lines().filter(|line| line.ends_with("files are shared")).count();
        let mut said = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the mount finds the daemon", || {
                said = fs::read_to_string(self.beside("said")).unwrap_or_default();
                found(&said) >= times
            });
        }));
        assert!(found.is_ok(), "the mount, which finds {times} daemons, has said: {said}");
    }

    /// The next server that comes to its point waits there, and is killed when [`World::disarm`] says so.
    pub(crate) fn hold_at_point(&self) {
        fs::write(self.beside("armed.new"), HOLD).unwrap();
        fs::rename(self.beside("armed.new"), self.beside("armed")).unwrap();
    }

    /// Waits until a server is there.
    pub(crate) fn until_at_point(&self) {
        until("a server is at its point", || self.beside("held").exists());
        fs::remove_file(self.beside("held")).unwrap();
    }

    /// No server is killed at a point from now on.
    pub(crate) fn disarm(&self) {
        let _ = fs::remove_file(self.beside("armed"));
    }

    /// The server that serves, or did last, and how many there were.
    pub(crate) fn server(&self) -> (i32, u64) {
        let text = fs::read_to_string(self.beside("ready")).unwrap();
        let (process, count) = text.split_once(' ').unwrap();
        (process.parse().unwrap(), count.parse().unwrap())
    }

    /// Kills the server, whatever it is at.
    pub(crate) fn kill_server(&self) {
        // SAFETY: takes numbers. Its keeper may have waited for it just now, and then there is no such process.
        unsafe { libc::kill(self.server().0, libc::SIGKILL) };
    }

    /// The same, and waits for the next one.
    pub(crate) fn replace_server(&self) {
        let (_, count) = self.server();
        self.kill_server();
        until("another server serves", || self.server().1 > count);
    }

    /// Kills the keeper, and with it the server.
    pub(crate) fn kill(&mut self) {
        let Server::Child(child) = &mut self.server else { panic!("this process serves") };
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.disarm();
        let place = self.folder.path().join("mount");
        match &mut self.server {
            Server::Here(mounted) => {
                let mounted = mounted.take().unwrap();
                let unmounted = mounted.unmount();
                if !std::thread::panicking() {
                    unmounted.unwrap();
                    mounted.wait().unwrap();
                }
            }
            Server::Child(child) => {
                drop(child.stdin.take());
                let ended = child.wait();
                if !std::thread::panicking() {
                    let ended = ended.unwrap();
                    // One that was killed has left its mount.
                    assert!(ended.success() || ended.code().is_none(), "the server failed: {ended}");
                    assert!(!ended.success() || !is_mounted(&place), "the mount is left behind");
                }
            }
        }
    }
}

fn mounted(folder: &Path, serves_all: bool, replicas: &Arc<dyn Replicas>) -> Mounted {
    let options = MountOptions { allows_other: true, serves_all, ..MountOptions::default() };
    mount(&folder.join("source"), &folder.join("mount"), &options, replicas).unwrap()
}

/// Runs in a process of its own, until whoever has started it ends.
#[test]
fn the_server() {
    let Some(folder) = std::env::var_os(SERVED) else { return };
    let folder = PathBuf::from(folder);
    let said = folder.join("said");
    let tell = move |what: &str| {
        let mut file = File::options().create(true).append(true).open(&said).unwrap();
        file.write_all(format!("{what}\n").as_bytes()).unwrap();
    };
    let replicas = || -> Arc<dyn Replicas> {
        match std::env::var(REPLICAS).as_deref() {
            Ok("daemon") => Arc::new(Daemon::at(folder.join("daemon/socket"), tell.clone())),
            Ok("all") => Arc::new(AllShared),
            _ => Arc::new(NoReplicas),
        }
    };
    let serves_all = std::env::var_os(SERVES_ALL).is_some();
    let options = MountOptions { allows_other: true, serves_all, ..MountOptions::default() };
    if std::env::var_os(WITHOUT_OVERRIDE).is_some() {
        give_up_override();
    }
    if let Ok(point) = std::env::var(KILL_AT) {
        KILLED_AT.set((point, folder.join("armed"))).unwrap();
        fault::watch(come_to);
    }
    let mut kept = KeptMount::new(&folder.join("source"), &folder.join("mount"), &options).unwrap();
    let can_resend = std::env::var(REPLICAS).as_deref() != Ok(WITHOUT_RESEND);
    if !can_resend {
        kept = kept.without_resend();
    }
    let served = Served {
        replicas: &replicas,
        mounted: &|_| {},
        // What is still open when a test has failed is served no longer.
        // SAFETY: ends this process.
        detached: &|_| unsafe { libc::_exit(0) },
        failed: &|error| {
            eprintln!("a server failed: {error}");
            1
        },
    };
    let (mut process, mut count) = (0, 0);
    let ended = kept.run(&served, &has_ended_input, &mut |event| match event {
        Event::Started(pid) => process = *pid,
        Event::Ready => {
            count += 1;
            fs::write(folder.join("ready.new"), format!("{process} {count}")).unwrap();
            fs::rename(folder.join("ready.new"), folder.join("ready")).unwrap();
        }
        _ => {}
    });
    let code = match ended {
        Ok(code) => code.unwrap_or(0),
        Err(error) if !can_resend && error.to_string().contains("does not send what it had not answered") => 0,
        Err(error) => {
            eprintln!("the keeper failed: {error}");
            1
        }
    };
    // SAFETY: ends this process.
    unsafe { libc::_exit(code) };
}

/// From now on this process opens what modes permit, as one that is not root's.
fn give_up_override() {
    const VERSION: [u32; 2] = [0x2008_0522, 0];
    const DAC_OVERRIDE: u32 = 1 << 1;
    // Effective, permitted and inheritable ones, twice.
    let mut all = [0_u32; 6];
    // SAFETY: the version says which room there is.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, VERSION.as_ptr(), all.as_mut_ptr()), 0);
        all[0] &= !DAC_OVERRIDE;
        all[1] &= !DAC_OVERRIDE;
        assert_eq!(libc::syscall(libc::SYS_capset, VERSION.as_ptr(), all.as_ptr()), 0);
    }
}

/// The point, and the file without which nobody is killed.
static KILLED_AT: OnceLock<(String, PathBuf)> = OnceLock::new();

fn come_to(point: Point) {
    let (killed, armed) = KILLED_AT.get().unwrap();
    if format!("{point:?}") != *killed {
        return;
    }
    let Ok(text) = fs::read(armed) else { return };
    let (is_held, is_once) = (text == HOLD, text == ONCE);
    if is_once {
        fs::remove_file(armed).unwrap();
    }
    if is_held {
        fs::write(armed.with_file_name("held"), []).unwrap();
        until("it goes on", || !armed.exists());
    }
    if is_held || is_once || (text.is_empty() && fastrand::u32(..KILL_ONE_IN) == 0) {
        // SAFETY: ends this process, as a kill from outside does.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        std::thread::park();
    }
}

/// Whether whoever has started this process has ended.
fn has_ended_input() -> bool {
    let mut poll = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which is ours.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// Devices want every file, and do nothing with it: what a mount does by itself to files that are shared.
struct AllShared;

struct Plain(File);

impl Replicas for AllShared {
    fn mounted(&self, _: Weak<dyn Recall>) {}

    fn is_wanted(&self, _: FileKey) -> bool {
        true
    }

    fn open(&self, file: BorrowedFd<'_>) -> io::Result<Box<dyn SharedFile>> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(Box::new(Plain(File::options().read(true).write(true).open(link)?)))
    }
}

impl SharedFile for Plain {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn changed(&self) -> io::Result<()> {
        Ok(())
    }
}

/// By the kernel's list, without asking whoever serves.
pub(crate) fn is_mounted(place: &Path) -> bool {
    let mounts = fs::read("/proc/self/mountinfo").unwrap();
    let place = place.as_os_str().as_bytes();
    mounts.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(place))
}
