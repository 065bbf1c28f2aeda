//! Threads that serve a program: they leave its signals alone, and do not wait long for a processor.

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

/// Asks for short turns of the processor for this thread, which so gets it soon after it was woken, also where other threads
/// keep all processors busy: they have theirs for milliseconds otherwise. For threads that wait for a device and have little
/// to do then. It gets no more of the processor than others. Linux 6.12 and later; elsewhere nothing changes.
pub fn with_short_turns() {
    /// The shortest turn that Linux gives, in nanoseconds.
    const TURN_NS: u64 = 100_000;
    let mut attributes = SchedulingAttributes::default();
    let size = size_of::<SchedulingAttributes>();
    // SAFETY: the structure is as long as the call is told; thread 0 is the calling one.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    if known && attributes.policy == libc::SCHED_OTHER as u32 {
        attributes.runtime_ns = TURN_NS;
        // SAFETY: as above. All but the turn's length is what the thread has.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// `struct sched_attr` of Linux, in its first form.
#[repr(C)]
#[derive(Debug, Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// For ordinary threads the length of a turn.
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_change_and_nothing_else() {
        let attributes = || {
            let mut attributes = SchedulingAttributes::default();
            // SAFETY: as above.
            let result =
                unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of_val(&attributes), 0) };
            assert_eq!(result, 0);
            attributes
        };
        let thread = std::thread::spawn(move || {
            let before = attributes();
            with_short_turns();
            let after = attributes();
            assert_eq!((after.policy, after.nice, after.flags), (before.policy, before.nice, before.flags));
            (before.runtime_ns, after.runtime_ns)
        });
        let (before, after) = thread.join().unwrap();
        // Systems without such turns show none.
        assert!(after == 100_000 || after == before, "{before} became {after}");
    }

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
