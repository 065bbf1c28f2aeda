//! What the process has used of the machine, as the kernel counts it.

/// Seconds of CPU that the process has used so far, user and system, all threads.
pub fn cpu_seconds() -> f64 {
    // SAFETY: `rusage` is plain old data, for which zeroes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A rate in GB/s (1e9), 0 for nothing moved.
pub fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    if bytes == 0 || seconds <= 0.0 { 0.0 } else { bytes as f64 / seconds / 1e9 }
}

/// CPU seconds for each GB (1e9), 0 for nothing moved.
pub fn cpu_s_per_gb(bytes: u64, cpu_s: f64) -> f64 {
    if bytes == 0 { 0.0 } else { cpu_s / (bytes as f64 / 1e9) }
}
