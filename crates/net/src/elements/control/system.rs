//! What scripts do outside of the router: the handlers `cat`, `catq` and `kill`, and the names of signals.

use super::functions::Function;
use crate::error::reason;
use crate::lang::config::{first_word, quote, split_words, unquote};

/// All of them, by name. No socket may call them.
pub(super) static FUNCTIONS: &[(&str, Function)] =
    &[("cat", cat), ("catq", |text| cat(text).map(|text| quote(&text))), ("kill", kill)];

/// The names of signals in scripts.
const SIGNALS: &[(&str, i32)] = &[
    ("ABRT", libc::SIGABRT),
    ("ALRM", libc::SIGALRM),
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("IO", libc::SIGIO),
    ("PIPE", libc::SIGPIPE),
    ("QUIT", libc::SIGQUIT),
    ("TERM", libc::SIGTERM),
    ("TSTP", libc::SIGTSTP),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
];

/// The number of a signal, by its name or as it is.
pub(super) fn signal(name: &str) -> Option<i32> {
    let known = SIGNALS.iter().find(|(other, _)| *other == name).map(|(_, number)| *number);
    known.or_else(|| name.parse().ok().filter(|number| (0..32).contains(number)))
}

/// What a file has.
fn cat(text: &str) -> Result<String, String> {
    let name = unquote(text.trim());
    if name.is_empty() {
        return Err("bad FILE".to_owned());
    }
    let bytes = std::fs::read(&name).map_err(|error| format!("{name}: {}", reason(&error)))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Sends a signal to processes.
fn kill(text: &str) -> Result<String, String> {
    let (name, pids) = first_word(text.trim());
    let signal = signal(name).ok_or("bad SIGNO")?;
    for pid in split_words(pids) {
        let pid: libc::pid_t = pid.parse().map_err(|_| "bad PID")?;
        // SAFETY: no memory is passed.
        if unsafe { libc::kill(pid, signal) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(format!("kill({pid}, {signal}): {}", reason(&error)));
        }
    }
    Ok(String::new())
}
