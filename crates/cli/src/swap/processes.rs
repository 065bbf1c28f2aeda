//! The processes of a swap space: `swap serve` keeps it, and `swap work` serves it. Both are this program, started by it.
//!
//! What they have to say goes to the system's log and to a file in the folder, of which `swap status` shows the end. A thread
//! of its own says it: the folder is in memory that may have been written out to the very swap, and the log's process, too,
//! so that whoever waited for either could wait for itself.

use crate::exit::Failure;
use crate::output::printable;
use bifolio_device::DeviceChoice;
use bifolio_paging::OpenDevice;
use bifolio_paging::service;
use bifolio_paging::swap::{Instance, serve as keep, work_options};
use clap::Args as ClapArgs;
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Sentences that wait to be said.
const SENTENCES_MAX: usize = 64;
/// How long the end waits for them.
const END_MAX: Duration = Duration::from_secs(1);
/// Longer files of messages begin anew; the one before is kept.
const MESSAGES_MAX: u64 = 64 << 10;

/// Which swap space.
#[derive(Debug, ClapArgs)]
pub struct FolderArgs {
    /// Its folder.
    pub folder: PathBuf,
}

/// The command of a keeper, which leaves the terminal and goes on when this process ends.
pub fn keeper(folder: &Path) -> Command {
    let mut command = again("serve", folder);
    let messages = File::options().create(true).append(true).open(folder.join("messages"));
    if let Ok(messages) = messages {
        command.stderr(messages);
    }
    let leave = || {
        // SAFETY: takes nothing; it fails for the leader of a group only, which a child is not.
        unsafe { libc::setsid() };
        Ok(())
    };
    // SAFETY: the closure calls nothing that a child may not call after a fork.
    unsafe { command.pre_exec(leave) };
    command.current_dir("/");
    command
}

fn again(role: &str, folder: &Path) -> Command {
    // By the open program, which an update may have replaced.
    let mut command = Command::new("/proc/self/exe");
    command.args(["swap", role]).arg(folder);
    command
}

/// Keeps it.
pub fn serve(args: &FolderArgs) -> Result<(), Failure> {
    ignore_signals();
    let teller = Teller::start(&args.folder);
    let kept = keep(&args.folder, &mut |folder| again("work", folder), &|sentence| teller.say(sentence));
    teller.end(kept)
}

/// Serves it.
pub fn work(args: &FolderArgs) -> Result<(), Failure> {
    ignore_signals();
    let teller = Teller::start(&args.folder);
    let worked =
        work_options(&args.folder, opens).and_then(|options| service::work(options, &|sentence| teller.say(sentence)));
    teller.end(worked)
}

fn opens(name: &str) -> OpenDevice {
    let name = name.to_owned();
    Box::new(move || bifolio_device::open(name.parse::<DeviceChoice>()?))
}

/// Says things without making anybody wait.
struct Teller {
    sentences: SyncSender<String>,
    is_over: Receiver<()>,
}

impl Teller {
    fn start(folder: &Path) -> Self {
        let (sentences, said) = sync_channel::<String>(SENTENCES_MAX);
        let (ended, is_over) = sync_channel(1);
        let folder = folder.to_owned();
        std::thread::spawn(move || {
            for sentence in said {
                tell(&folder, &sentence);
            }
            let _ = ended.send(());
        });
        Self { sentences, is_over }
    }

    /// What there is no room for is not said: somebody has waited for very long by then.
    fn say(&self, sentence: &str) {
        let _ = self.sentences.try_send(sentence.to_owned());
    }

    /// Says how it ended, and waits for what was said, but not for ever.
    fn end(self, ended: bifolio_block::Result<()>) -> Result<(), Failure> {
        if let Err(error) = &ended {
            self.say(&error.to_string());
        }
        drop(self.sentences);
        let _ = self.is_over.recv_timeout(END_MAX);
        Ok(ended?)
    }
}

/// Says something to the system's log and to the folder's file.
fn tell(folder: &Path, sentence: &str) {
    let text = printable(sentence).to_string();
    if let Ok(line) = CString::new(text.clone()) {
        // SAFETY: the format takes one string, and both end with a zero byte.
        unsafe { libc::syslog(libc::LOG_DAEMON | libc::LOG_WARNING, c"bifolio: %s".as_ptr(), line.as_ptr()) };
    }
    let path = folder.join("messages");
    if path.metadata().is_ok_and(|found| found.len() > MESSAGES_MAX) {
        let _ = std::fs::rename(&path, folder.join("messages.old"));
    }
    // Without a place to say it, it is not said.
    let _ = File::options().create(true).append(true).open(path).and_then(|mut file| writeln!(file, "{text}"));
}

/// The end of what was said, at most `lines`.
pub fn said(instance: &Instance, lines: usize) -> Vec<String> {
    let text = std::fs::read_to_string(instance.messages()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| (*line).to_owned()).collect()
}

/// A terminal's signals, or those of whoever stops a unit, must not end what swap needs: it is switched off first.
fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: ignoring takes no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
