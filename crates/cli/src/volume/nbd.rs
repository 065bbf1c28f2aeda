//! `bifolio volume export --nbd`: nbdkit with our plugin, from its start to its end.
//!
//! The key goes to nbdkit through a file in memory that only it inherits. nbdkit ends with this process, however that
//! ends. The socket gets the mode that nbdkit gives it, by which only its owner can connect.

use super::export::TICK;
use super::{ExportArgs, ask};
use crate::exit::{Code, Failure, code_of_volume, eprintln_quietly};
use crate::output;
use bifolio_io::Cancel;
use bifolio_volume::{ErrorKind, Layer};
use std::ffi::CStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Names the plugin's file.
const PLUGIN_VARIABLE: &str = "BIFOLIO_NBDKIT_PLUGIN";
/// What fits into an address of a socket (`unix(7)`).
const SOCKET_BYTES_MAX: usize = 107;
/// How long requests in flight may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// The path in `unix:PATH`.
pub fn parse_socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) if path.len() > SOCKET_BYTES_MAX => {
            Err(format!("the path of a socket has at most {SOCKET_BYTES_MAX} bytes, and this one {}", path.len()))
        }
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err(format!("\"{text}\" is no socket: write unix:PATH")),
    }
}

/// Serves until interrupted.
pub fn run(options: &ExportArgs, socket: &Path, cancel: &Cancel) -> Result<(), Failure> {
    let plugin = plugin()?;
    let images = options.images.iter().map(|image| image.canonicalize()).collect::<Result<Vec<_>, _>>();
    free(socket)?;
    // As the server will: what has to be put right is put right now.
    let layers = bifolio_volume::describe(&options.images, !options.read_only)?;
    super::warn(&layers);
    let images = images.map_err(|error| Failure::failed(format!("{}: {error}", options.images[0].display())))?;
    let needs_key = layers.iter().any(|layer| matches!(layer, Layer::Luks(_)));
    if !needs_key && options.key.key_file.is_some() {
        return Err(bifolio_volume::unencrypted(&options.images[0].display().to_string()).into());
    }
    let key = if needs_key { Some(key_file(options)?) } else { None };
    let ready = file_in_memory(c"bifolio-ready")?;
    let command = command(options, &plugin, &images, socket, &ready, key.as_ref());
    serve(start(command)?, socket, &ready, cancel)
}

/// nbdkit while it runs, and what it says.
struct Server {
    child: Child,
    said: Receiver<String>,
}

fn start(mut command: Command) -> Result<Server, Failure> {
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let detail = "nbdkit is not installed (Debian, Ubuntu, Fedora: the package nbdkit); --mount needs none";
            Failure::new(Code::Unavailable, detail)
        }
        _ => Failure::failed(format!("nbdkit cannot be started: {error}")),
    })?;
    let (sender, said) = channel();
    if let Some(stderr) = child.stderr.take() {
        std::thread::spawn(move || forward(stderr, &sender));
    }
    Ok(Server { child, said })
}

fn forward(stderr: ChildStderr, sender: &Sender<String>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if sender.send(sentence(&line).to_owned()).is_err() {
            return;
        }
    }
}

/// What nbdkit says without its own name before it.
fn sentence(line: &str) -> &str {
    let line = line.strip_prefix("nbdkit: ").unwrap_or(line);
    match line.split_once("error: ") {
        // "bifolio[2]: error: ..." on a connection, "error: ..." before there is one.
        Some((before, rest)) if before.is_empty() || before.ends_with("]: ") => rest,
        _ => line,
    }
}

fn serve(mut server: Server, socket: &Path, ready: &File, cancel: &Cancel) -> Result<(), Failure> {
    let mut is_ready = false;
    let status = loop {
        if let Some(status) = ended(&mut server.child)? {
            break status;
        }
        if !is_ready && ready.metadata().is_ok_and(|file| file.len() > 0) {
            is_ready = true;
            if let Err(failure) = output::text(&output::printable(&format!("nbd+unix:///?socket={}", socket.display())))
            {
                let _ = end(&mut server.child);
                return Err(failure);
            }
        }
        if cancel.is_cancelled() && !is_ready {
            // It computes the volume's key, or waits for a lock, and sees no signal until then. Nothing is served yet.
            let _ = server.child.kill();
            let _ = server.child.wait();
            let _ = std::fs::remove_file(socket);
            return Err(Failure::interrupted());
        }
        if cancel.is_cancelled() {
            break end(&mut server.child)?;
        }
        if is_ready {
            server.said.try_iter().for_each(|line| eprintln_quietly(&format!("bifolio: {line}")));
        }
        std::thread::sleep(TICK);
    };
    let _ = std::fs::remove_file(socket);
    let said: Vec<String> = server.said.iter().collect();
    if let Some(failure) = said.iter().find_map(|line| of_plugin(line)).filter(|_| !is_ready) {
        return Err(failure);
    }
    let last = said.join("; ");
    match (status.success(), cancel.is_cancelled()) {
        (true, _) => Ok(()),
        (false, true) if last.is_empty() => Err(Failure::failed(format!("nbdkit did not end well: {status}"))),
        (false, _) if last.is_empty() => Err(Failure::failed(format!("nbdkit has ended: {status}"))),
        (false, _) => Err(Failure::failed(last)),
    }
}

/// Why the plugin has not opened the volume, with the same exit code as if that had failed here.
fn of_plugin(line: &str) -> Option<Failure> {
    use ErrorKind::{
        BadMembers, BadState, BadUse, Damaged, Exists, InUse, Missing, NoSpace, NotAVolume, NotFound, Permission, Read,
        ReadOnly, TooFewMembers, Unsupported, Write, WrongKey,
    };
    let kinds = [
        BadMembers,
        BadState,
        BadUse,
        Damaged,
        Exists,
        InUse,
        Missing,
        NoSpace,
        NotAVolume,
        NotFound,
        Permission,
        Read,
        ReadOnly,
        TooFewMembers,
        Unsupported,
        Write,
        WrongKey,
    ];
    kinds.into_iter().find_map(|kind| {
        let sentence = line.strip_prefix(&format!("{kind:?}: "))?;
        Some(Failure::new(code_of_volume(kind), sentence))
    })
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>, Failure> {
    child.try_wait().map_err(|error| Failure::failed(format!("nbdkit cannot be waited for: {error}")))
}

/// Asks it to end, which flushes, and makes it end where it does not.
fn end(child: &mut Child) -> Result<ExitStatus, Failure> {
    // SAFETY: takes no memory; the child has not been waited for, so its number is still its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let begun = Instant::now();
    while begun.elapsed() < END_TIME_MAX {
        if let Some(status) = ended(child)? {
            return Ok(status);
        }
        std::thread::sleep(TICK);
    }
    let _ = child.kill();
    child.wait().map_err(|error| Failure::failed(format!("nbdkit cannot be waited for: {error}")))
}

fn command(
    options: &ExportArgs,
    plugin: &Path,
    images: &[PathBuf],
    socket: &Path,
    ready: &File,
    key: Option<&File>,
) -> Command {
    let pair = |name: &str, value: &Path| {
        let mut pair = std::ffi::OsString::from(format!("{name}="));
        pair.push(value);
        pair
    };
    let mut command = Command::new("nbdkit");
    // It writes its number there when it accepts connections; a file with a name would be left behind by a kill.
    let pid_file = format!("/proc/{}/fd/{}", std::process::id(), ready.as_raw_fd());
    command.args(["-f", "--exit-with-parent", "-P", &pid_file, "-U"]).arg(socket);
    if options.read_only {
        command.arg("-r");
    }
    command.arg(plugin);
    command.args(images.iter().map(|image| pair("image", image)));
    command.args([format!("readonly={}", options.read_only), format!("discard={}", options.discard)]);
    command.args([format!("any-cost={}", options.key.any_cost), "kinds=true".to_owned()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let fd = key.map(AsRawFd::as_raw_fd);
    if let Some(fd) = fd {
        command.arg(format!("key={fd}"));
        let inherit = move || {
            // SAFETY: safe after a fork, takes no memory, and the descriptor is open.
            unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
            Ok(())
        };
        // SAFETY: the closure calls nothing that a child may not call after a fork.
        unsafe { command.pre_exec(inherit) };
    }
    command
}

/// The key in a file that has no name and that is inherited by nobody else.
fn key_file(options: &ExportArgs) -> Result<File, Failure> {
    let name = options.images[0].display().to_string();
    let key = ask(options.key.key_file.as_deref(), &name)?;
    let failed = |error| Failure::failed(format!("the key cannot be handed to nbdkit: {error}"));
    let mut file = file_in_memory(c"bifolio-key")?;
    file.write_all(&key).and_then(|()| file.rewind()).map_err(failed)?;
    Ok(file)
}

fn file_in_memory(name: &CStr) -> Result<File, Failure> {
    // SAFETY: the call copies the name.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Failure::failed(format!("a file in memory cannot be made: {error}")));
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Removes a socket that nobody listens on; refuses one that somebody does, and what is no socket.
fn free(socket: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::FileTypeExt;
    let refused = |code, what: &str| Err(Failure::new(code, format!("{}: {what}", socket.display())));
    match std::fs::symlink_metadata(socket) {
        Err(_) => Ok(()),
        Ok(there) if !there.file_type().is_socket() => {
            refused(Code::Refused, "it is there already and no socket; choose another path")
        }
        Ok(_) if UnixStream::connect(socket).is_ok() => {
            refused(Code::Failed, "somebody serves on this socket; choose another path")
        }
        Ok(_) => std::fs::remove_file(socket)
            .map_err(|error| Failure::failed(format!("{}: removing an old socket failed: {error}", socket.display()))),
    }
}

/// The plugin: as named, beside the command (where cargo builds it), or where it is installed.
fn plugin() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os(PLUGIN_VARIABLE).filter(|name| !name.is_empty()) {
        return Ok(named.into());
    }
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    let folder = exe.parent().unwrap_or(Path::new("/"));
    let places = [folder.join("../lib/bifolio/nbdkit-bifolio-plugin.so"), folder.join("libbifolio_nbdkit.so")];
    places.iter().find(|place| place.exists()).cloned().ok_or_else(|| {
        let detail = format!(
            "the plugin for nbdkit is neither {} nor {}; install it with the command, or name it in {PLUGIN_VARIABLE}",
            places[0].display(),
            places[1].display()
        );
        Failure::new(Code::Unavailable, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_named_by_their_kind() {
        assert_eq!(parse_socket("unix:/run/a"), Ok("/run/a".into()));
        for wrong in ["/run/a", "unix:", "tcp:10809"] {
            assert!(parse_socket(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_of_the_plugin_keeps_its_code() {
        let failure = of_plugin("WrongKey: disk.img: no keyslot of it is opened by this").unwrap();
        assert_eq!(
            (failure.code(), failure.message()),
            (Code::WrongKey, "disk.img: no keyslot of it is opened by this")
        );
        assert_eq!(of_plugin("Damaged: disk.img: it was cut").unwrap().code(), Code::Damaged);
        assert!(of_plugin("disk.img: WrongKey: it was cut").is_none());
    }

    #[test]
    fn the_name_before_an_error_is_left_out() {
        assert_eq!(sentence("nbdkit: error: disk.img: it was cut"), "disk.img: it was cut");
        assert_eq!(sentence("nbdkit: bifolio[3]: error: disk.img: full"), "disk.img: full");
        assert_eq!(sentence("nbdkit: disk.img: an error: none"), "disk.img: an error: none");
        assert_eq!(sentence("something else"), "something else");
    }
}
