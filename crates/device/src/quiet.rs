//! Threads that leave a program's signals alone.

/// Starts threads, by what `start` does, that no signal is delivered to: a program's handlers run on its own
/// threads, with the masks that it has set there.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets are plain old data, for which zeroes are a valid value; the calls fill and read them.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) == 0;
        blocked.then_some(before)
    };
    let started = start();
    if let Some(before) = before {
        // SAFETY: puts back what was there.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(signal: i32) -> bool {
        // SAFETY: as above; a null set changes nothing.
        unsafe {
            let mut now: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut now);
            libc::sigismember(&raw const now, signal) == 1
        }
    }

    #[test]
    fn threads_have_signals_blocked_and_their_starter_has_not() {
        let thread = without_signals(|| std::thread::spawn(|| blocks(libc::SIGALRM)));
        assert!(thread.join().unwrap() && !blocks(libc::SIGALRM));
    }
}
