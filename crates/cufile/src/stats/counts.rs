//! The numbers, and the structs that they are fetched in. They are added up without a lock, so a request that ends
//! while they are fetched is in some of them.

use crate::abi::{CUfileOpCounter_t, CUfilePerGpuStats_t, CUfileStatsLevel1_t, GPUS_MAX, SIZE_BUCKETS};
use crate::caller::Layout;
use crate::range::Direction;
use bifolio_device::BackendKind;
use bifolio_device::pointer::Located;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const PAGE: u64 = 4096;

/// Calls without bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    HandleRegister,
    HandleDeregister,
    BufRegister,
    BufDeregister,
    BatchSetUp,
    BatchSubmit,
    BatchCancel,
    BatchDestroy,
}

const CALLS: usize = 8;

/// Requests by the functions that make them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Read,
    Write,
    Readv,
    Writev,
    BatchRead,
    BatchWrite,
}

const FLOWS: usize = 6;

impl Flow {
    pub(crate) fn of(direction: Direction) -> Self {
        if direction == Direction::Read { Self::Read } else { Self::Write }
    }

    pub(crate) fn of_batch(direction: Direction) -> Self {
        if direction == Direction::Read { Self::BatchRead } else { Self::BatchWrite }
    }
}

/// How the bytes of a request came there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Posix,
    NvidiaFs,
}

/// Attempts, and the time of those that succeeded.
#[derive(Debug)]
pub(super) struct Tally {
    ok: AtomicU64,
    err: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Attempts and their bytes.
#[derive(Debug)]
pub(super) struct Traffic {
    tally: Tally,
    bytes: AtomicU64,
}

#[derive(Debug)]
pub(super) struct GpuTraffic {
    traffic: Traffic,
    by_nvidia_fs: AtomicU64,
    unaligned: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Gpu {
    reads: GpuTraffic,
    writes: GpuTraffic,
    pub(super) registered: Tally,
    pub(super) registered_bytes: AtomicU64,
    pub(super) deregistered: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Counts {
    calls: [Tally; CALLS],
    flows: [Traffic; FLOWS],
    /// Reads, and writes.
    pub(super) sizes: [[AtomicU64; SIZE_BUCKETS]; 2],
    pub(super) batches: Tally,
    pub(super) enqueued: AtomicU64,
    pub(super) latest_batch: [AtomicU64; 2],
    gpus: [Gpu; GPUS_MAX],
}

impl Tally {
    const fn new() -> Self {
        Self { ok: AtomicU64::new(0), err: AtomicU64::new(0), nanoseconds: AtomicU64::new(0) }
    }

    pub(super) fn add(&self, is_ok: bool, time: Duration) {
        if is_ok {
            self.ok.fetch_add(1, Relaxed);
            self.nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
        } else {
            self.err.fetch_add(1, Relaxed);
        }
    }

    fn counter(&self) -> CUfileOpCounter_t {
        CUfileOpCounter_t { ok: self.ok.load(Relaxed), err: self.err.load(Relaxed) }
    }

    fn microseconds(&self) -> u64 {
        self.nanoseconds.load(Relaxed) / 1000
    }

    fn mean_microseconds(&self) -> u64 {
        self.microseconds().checked_div(self.ok.load(Relaxed)).unwrap_or(0)
    }

    fn clear(&self) {
        [&self.ok, &self.err, &self.nanoseconds].into_iter().for_each(clear);
    }
}

impl Traffic {
    const fn new() -> Self {
        Self { tally: Tally::new(), bytes: AtomicU64::new(0) }
    }

    pub(super) fn add(&self, outcome: Option<u64>, time: Duration) {
        self.tally.add(outcome.is_some(), time);
        self.bytes.fetch_add(outcome.unwrap_or(0), Relaxed);
    }

    fn clear(&self) {
        self.tally.clear();
        clear(&self.bytes);
    }
}

impl GpuTraffic {
    const fn new() -> Self {
        Self { traffic: Traffic::new(), by_nvidia_fs: AtomicU64::new(0), unaligned: AtomicU64::new(0) }
    }

    /// Counts a request; what has to be a multiple of a page is in `bits`.
    pub(super) fn add(&self, time: Duration, bits: u64, moved: Option<(u64, Way)>) {
        self.traffic.add(moved.map(|(bytes, _)| bytes), time);
        if let Some((_, way)) = moved {
            self.by_nvidia_fs.fetch_add(u64::from(way == Way::NvidiaFs), Relaxed);
            self.unaligned.fetch_add(u64::from(!bits.is_multiple_of(PAGE)), Relaxed);
        }
    }

    fn clear(&self) {
        self.traffic.clear();
        [&self.by_nvidia_fs, &self.unaligned].into_iter().for_each(clear);
    }
}

impl Gpu {
    const fn new() -> Self {
        Self {
            reads: GpuTraffic::new(),
            writes: GpuTraffic::new(),
            registered: Tally::new(),
            registered_bytes: AtomicU64::new(0),
            deregistered: AtomicU64::new(0),
        }
    }

    pub(super) fn of(&self, direction: Direction) -> &GpuTraffic {
        if direction == Direction::Read { &self.reads } else { &self.writes }
    }

    fn clear(&self) {
        self.reads.clear();
        self.writes.clear();
        self.registered.clear();
        [&self.registered_bytes, &self.deregistered].into_iter().for_each(clear);
    }
}

fn clear(number: &AtomicU64) {
    number.store(0, Relaxed);
}

impl Counts {
    pub(super) const fn new() -> Self {
        Self {
            calls: [const { Tally::new() }; CALLS],
            flows: [const { Traffic::new() }; FLOWS],
            sizes: [const { [const { AtomicU64::new(0) }; SIZE_BUCKETS] }; 2],
            batches: Tally::new(),
            enqueued: AtomicU64::new(0),
            latest_batch: [const { AtomicU64::new(0) }; 2],
            gpus: [const { Gpu::new() }; GPUS_MAX],
        }
    }

    pub(super) fn call(&self, call: Call) -> &Tally {
        &self.calls[call as usize]
    }

    pub(super) fn flow(&self, flow: Flow) -> &Traffic {
        &self.flows[flow as usize]
    }

    /// The GPU that memory is on; none for other devices, and for more GPUs than the structs have room for.
    pub(super) fn gpu(&self, located: &Located) -> Option<&Gpu> {
        let is_gpu = located.device.backend == BackendKind::Cuda;
        self.gpus.get(located.device.index as usize).filter(|_| is_gpu)
    }

    pub(super) fn clear(&self) {
        self.calls.iter().for_each(Tally::clear);
        self.flows.iter().for_each(Traffic::clear);
        self.sizes.iter().flatten().chain(&self.latest_batch).for_each(clear);
        self.batches.clear();
        clear(&self.enqueued);
        self.gpus.iter().for_each(Gpu::clear);
    }
}

/// The bucket of a size: below 4 KiB, below 8 KiB, and so on, the last without an end.
pub(super) fn bucket(size: usize) -> usize {
    let pages = size as u64 / PAGE;
    pages.checked_ilog2().map_or(0, |log| log as usize + 1).min(SIZE_BUCKETS - 1)
}

/// So much in a second.
fn rate(amount: u64, time: Duration) -> u64 {
    if time.is_zero() { 0 } else { (amount as f64 / time.as_secs_f64()) as u64 }
}

/// The numbers of level 1.
fn basic(counts: &Counts, time: Duration) -> CUfileStatsLevel1_t {
    let call = |call| counts.call(call).counter();
    let ops = |flow| counts.flow(flow).tally.counter();
    let bytes = |flow| counts.flow(flow).bytes.load(Relaxed);
    let bytes_per_second = |flow| rate(bytes(flow), time);
    let ops_per_second = |flow| rate(ops(flow).ok, time);
    let mean = |flow| counts.flow(flow).tally.mean_microseconds();
    let sum = |flow| counts.flow(flow).tally.microseconds();
    let (read, written) = (ops(Flow::BatchRead), ops(Flow::BatchWrite));
    let processed = CUfileOpCounter_t { ok: read.ok + written.ok, err: read.err + written.err };
    let enqueued = CUfileOpCounter_t { ok: counts.enqueued.load(Relaxed), err: 0 };
    let submit = counts.call(Call::BatchSubmit);
    CUfileStatsLevel1_t {
        read_ops: ops(Flow::Read),
        write_ops: ops(Flow::Write),
        hdl_register_ops: call(Call::HandleRegister),
        hdl_deregister_ops: call(Call::HandleDeregister),
        buf_register_ops: call(Call::BufRegister),
        buf_deregister_ops: call(Call::BufDeregister),
        read_bytes: bytes(Flow::Read),
        write_bytes: bytes(Flow::Write),
        read_bw_bytes_per_sec: bytes_per_second(Flow::Read),
        write_bw_bytes_per_sec: bytes_per_second(Flow::Write),
        read_lat_avg_us: mean(Flow::Read),
        write_lat_avg_us: mean(Flow::Write),
        read_ops_per_sec: ops_per_second(Flow::Read),
        write_ops_per_sec: ops_per_second(Flow::Write),
        read_lat_sum_us: sum(Flow::Read),
        write_lat_sum_us: sum(Flow::Write),
        batch_submit_ops: submit.counter(),
        batch_complete_ops: counts.batches.counter(),
        batch_setup_ops: call(Call::BatchSetUp),
        batch_cancel_ops: call(Call::BatchCancel),
        batch_destroy_ops: call(Call::BatchDestroy),
        batch_enqueued_ops: enqueued,
        batch_posix_enqueued_ops: enqueued,
        batch_processed_ops: processed,
        batch_posix_processed_ops: processed,
        batch_total_submit_ops: enqueued,
        batch_read_bytes: bytes(Flow::BatchRead),
        batch_write_bytes: bytes(Flow::BatchWrite),
        batch_read_bw_bytes: bytes_per_second(Flow::BatchRead),
        batch_write_bw_bytes: bytes_per_second(Flow::BatchWrite),
        batch_submit_lat_avg_us: submit.mean_microseconds(),
        batch_completion_lat_avg_us: counts.batches.mean_microseconds(),
        batch_submit_ops_per_sec: rate(submit.counter().ok, time),
        batch_complete_ops_per_sec: rate(counts.batches.counter().ok, time),
        batch_submit_lat_sum_us: submit.microseconds(),
        batch_completion_lat_sum_us: counts.batches.microseconds(),
        last_batch_read_bytes: counts.latest_batch[0].load(Relaxed),
        last_batch_write_bytes: counts.latest_batch[1].load(Relaxed),
        readv_ops: ops(Flow::Readv),
        writev_ops: ops(Flow::Writev),
        readv_bytes: bytes(Flow::Readv),
        writev_bytes: bytes(Flow::Writev),
        readv_bw_bytes_per_sec: bytes_per_second(Flow::Readv),
        writev_bw_bytes_per_sec: bytes_per_second(Flow::Writev),
        readv_lat_avg_us: mean(Flow::Readv),
        writev_lat_avg_us: mean(Flow::Writev),
        readv_ops_per_sec: ops_per_second(Flow::Readv),
        writev_ops_per_sec: ops_per_second(Flow::Writev),
        readv_lat_sum_us: sum(Flow::Readv),
        writev_lat_sum_us: sum(Flow::Writev),
        ..CUfileStatsLevel1_t::default()
    }
}

/// How much of a time something was under way, in percent; requests that overlap make at most 100.
fn utilization(traffic: &Traffic, time: Duration) -> u64 {
    rate(traffic.tally.nanoseconds.load(Relaxed) / 10_000_000, time).min(100)
}

/// The numbers of a GPU.
fn of_gpu(gpu: &Gpu, uuid: [u8; 16], time: Duration) -> CUfilePerGpuStats_t {
    let (reads, writes) = (&gpu.reads, &gpu.writes);
    let (read, written) = (reads.traffic.tally.counter(), writes.traffic.tally.counter());
    let bytes = |of: &GpuTraffic| of.traffic.bytes.load(Relaxed);
    let (nvfs_reads, nvfs_writes) = (reads.by_nvidia_fs.load(Relaxed), writes.by_nvidia_fs.load(Relaxed));
    let registered = gpu.registered.counter();
    CUfilePerGpuStats_t {
        uuid,
        read_bytes: bytes(reads),
        read_bw_bytes_per_sec: rate(bytes(reads), time),
        read_utilization: utilization(&reads.traffic, time),
        read_duration_us: reads.traffic.tally.microseconds(),
        n_total_reads: read.ok + read.err,
        n_nvfs_reads: nvfs_reads,
        n_posix_reads: read.ok.saturating_sub(nvfs_reads),
        n_unaligned_reads: reads.unaligned.load(Relaxed),
        n_reads_err: read.err,
        writes_bytes: bytes(writes),
        write_bw_bytes_per_sec: rate(bytes(writes), time),
        write_utilization: utilization(&writes.traffic, time),
        write_duration_us: writes.traffic.tally.microseconds(),
        n_total_writes: written.ok + written.err,
        n_nvfs_writes: nvfs_writes,
        n_posix_writes: written.ok.saturating_sub(nvfs_writes),
        n_unaligned_writes: writes.unaligned.load(Relaxed),
        n_writes_err: written.err,
        n_mmap: registered.ok + registered.err,
        n_mmap_ok: registered.ok,
        n_mmap_err: registered.err,
        n_mmap_free: gpu.deregistered.load(Relaxed),
        reg_bytes: gpu.registered_bytes.load(Relaxed),
        ..CUfilePerGpuStats_t::default()
    }
}

/// The struct of a level as a program of some version has it.
pub(super) fn image(counts: &Counts, level: c_int, layout: Layout, gpus: &[[u8; 16]], time: Duration) -> Vec<u8> {
    let mut image = basic(counts, time).bytes()[..layout.basic_bytes()].to_vec();
    if level >= 2 {
        let sizes = counts.sizes.iter().flatten();
        image.extend(sizes.flat_map(|count| count.load(Relaxed).to_ne_bytes()));
    }
    if level >= 3 {
        let count = gpus.len().min(GPUS_MAX) as u32;
        image.extend([count, 0].into_iter().flat_map(u32::to_ne_bytes));
        for (number, gpu) in counts.gpus.iter().enumerate() {
            let numbers = gpus.get(number).map(|uuid| of_gpu(gpu, *uuid, time)).unwrap_or_default();
            image.extend_from_slice(numbers.bytes());
        }
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::{DeviceId, DevicePtr};

    fn words(image: &[u8]) -> Vec<u64> {
        image.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect()
    }

    #[test]
    fn sizes_double_from_a_page_on_and_the_last_bucket_has_no_end() {
        let sizes = [0, 1, 4095, 4096, 8191, 8192, 1 << 20, 64 << 20, usize::MAX];
        assert_eq!(sizes.map(bucket), [0, 0, 0, 1, 1, 2, 9, 15, 31]);
    }

    /// The older struct is the beginning of the newer, and what follows it moves up.
    #[test]
    fn structs_have_the_sizes_and_places_of_the_callers_version() {
        let counts = Counts::new();
        counts.sizes[0][3].store(33, Relaxed);
        counts.sizes[1][31].store(44, Relaxed);
        counts.flow(Flow::Read).add(Some(1000), Duration::from_micros(20));
        counts.flow(Flow::Readv).add(Some(70), Duration::ZERO);
        for (layout, basic) in [(Layout::WithoutVectors, 512), (Layout::WithVectors, 624)] {
            let of = |level| words(&image(&counts, level, layout, &[[7; 16]], Duration::from_secs(1)));
            let (one, two, three) = (of(1), of(2), of(3));
            assert_eq!([one.len() * 8, two.len() * 8, three.len() * 8], [basic, basic + 512, basic + 512 + 3976]);
            assert_eq!((two[..one.len()] == one, three[..two.len()] == two), (true, true));
            assert_eq!((one[0], one[1], one[12], one[16]), (1, 0, 1000, 20));
            assert_eq!(one.get(64).copied(), (layout == Layout::WithVectors).then_some(1));
            assert_eq!((two[basic / 8 + 3], two[basic / 8 + 63]), (33, 44));
            assert_eq!(three[two.len()..][..3], [1, u64::from_ne_bytes([7; 8]), u64::from_ne_bytes([7; 8])]);
        }
    }

    #[test]
    fn a_gpu_has_its_own_numbers() {
        let counts = Counts::new();
        let of =
            |device| Located { device, context: 0, incarnation: 0, address: DevicePtr(PAGE), start: PAGE, len: PAGE };
        let third = of(DeviceId::new(BackendKind::Cuda, 2));
        assert!(counts.gpu(&of(DeviceId::HOST)).is_none());
        assert!(counts.gpu(&of(DeviceId::new(BackendKind::Cuda, 16))).is_none());
        let gpu = counts.gpu(&third).unwrap();
        gpu.reads.add(Duration::from_millis(500), 3 * PAGE, Some((10, Way::NvidiaFs)));
        gpu.reads.add(Duration::from_millis(250), PAGE | 512, Some((20, Way::Posix)));
        gpu.reads.add(Duration::from_secs(9), 1, None);
        gpu.registered.add(true, Duration::ZERO);
        let numbers = of_gpu(&counts.gpus[2], [0; 16], Duration::from_secs(2));
        assert_eq!((numbers.read_bytes, numbers.read_bw_bytes_per_sec, numbers.read_utilization), (30, 15, 37));
        assert_eq!((numbers.n_total_reads, numbers.n_reads_err), (3, 1));
        assert_eq!((numbers.n_nvfs_reads, numbers.n_posix_reads, numbers.n_unaligned_reads), (1, 1, 1));
        assert_eq!((numbers.read_duration_us, numbers.n_mmap_ok, numbers.n_total_writes), (750_000, 1, 0));
        counts.clear();
        assert_eq!(of_gpu(&counts.gpus[2], [0; 16], Duration::from_secs(2)).read_bytes, 0);
    }
}
