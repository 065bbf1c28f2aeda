//! Mappings: a range of a file at addresses of a device.

use crate::advice::{Advice, Sequence};
use crate::cached_file::CachedFile;
use crate::error::{Error, ErrorKind, Result};
use crate::page::Device;
use crate::ranges::first_missing;
use crate::service::apart::Apart;
use crate::service::{Addresses, Answer, Lender, Request, Served, Service};
use crate::state::lease::{Client, LeaseNumber};
use crate::stats::Report;
use bifolio_device::{DeviceId, DevicePtr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A range of a file at addresses of a device.
///
/// Bytes are there between an acquire and the release that belongs to it. Kernels on a range have come to their
/// end before it is acquired again or released: neither waits for streams of the program's. What was changed
/// and not released when a mapping is closed or dropped is discarded. Kernels must not write through a mapping
/// that is not writable: nothing notices, and the bytes are never written to the file.
#[derive(Debug)]
pub struct Mapping {
    /// None where another process has it.
    file: Option<CachedFile>,
    client: Client,
    lease: LeaseNumber,
    pub(crate) device: Device,
    pub(crate) range: Range<u64>,
    /// Who has the state of the file, and where its content is seen.
    service: Arc<dyn Service>,
    addresses: Arc<dyn Addresses>,
    pub(crate) writable: bool,
    is_open: bool,
    /// Ranges acquired and not released.
    acquired: Vec<(Range<u64>, LeaseNumber)>,
    sequence: Sequence,
}

static NEXT_LEASE: AtomicU64 = AtomicU64::new(1);

/// Numbers of leases: no two of a process are the same, whichever of its mappings have them.
fn new_lease() -> LeaseNumber {
    NEXT_LEASE.fetch_add(1, Ordering::Relaxed)
}

/// Numbers that come are behind this one, which a mapping has that another process has begun.
#[cfg(feature = "fault-injection")]
pub(crate) fn pass_lease(number: LeaseNumber) {
    NEXT_LEASE.fetch_max(number + 1, Ordering::Relaxed);
}

/// Keeps the memory of a part of a mapping where it is, for arrays of a program's that may outlive a release and
/// the mapping itself: their addresses stay good. What is written there outside of an acquire and its release may
/// be lost, and what is read there may be old.
#[derive(Debug)]
pub struct Pin {
    /// The file stays as long as this, and so do addresses, where they are the mapping's own.
    _file: Option<CachedFile>,
    addresses: Arc<dyn Addresses>,
    client: Client,
    service: Arc<dyn Service>,
    lease: LeaseNumber,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = self.service.ask(self.client, Request::Unpin { lease: self.lease });
        self.addresses.end_use(self.lease);
    }
}

/// Where a mapping of another process's cache is seen, for as long as it is there: for whoever hears that memory is needed.
#[derive(Debug)]
pub struct Window(Weak<dyn Addresses>);

impl Window {
    /// Gives memory of bytes of the file back that is only there as it was shown, and neither acquired nor pinned; false once
    /// the mapping is no more.
    pub fn hide(&self, part: &Range<u64>) -> bool {
        // What cannot be given back is given back with the mapping.
        self.0.upgrade().is_some_and(|addresses| {
            let _ = addresses.hide(part);
            true
        })
    }

    /// Bytes of memory that is shown.
    pub fn shown_bytes(&self) -> u64 {
        self.0.upgrade().map_or(0, |addresses| addresses.shown_bytes())
    }

    /// The file has other content there by now: memory of it is given back as soon as nobody uses it.
    pub fn note_old(&self, part: &Range<u64>) -> bool {
        self.0.upgrade().is_some_and(|addresses| {
            addresses.note_old(part);
            true
        })
    }
}

fn bad(kind: ErrorKind, detail: impl Into<String>) -> Error {
    Error::new(kind, "mapping", detail)
}

impl CachedFile {
    /// Maps a range of it on a device of the cache: the bytes have addresses there, and come when they are
    /// acquired. Without an end, to the end of the file.
    ///
    /// # Errors
    /// `BadRange` for a range that is empty or lies beyond the end of the file, `BadUse` for one of which only a part
    /// lies in what was reserved when the file was first mapped on the device, while other mappings of that are open
    /// there; `OutOfMemory` for one so far from the beginning that there is no memory to keep account of its pages.
    pub fn map(&self, device: DeviceId, range: Range<u64>, writable: bool) -> Result<Mapping> {
        let number = self.pool.devices.iter().position(|known| known.id == device);
        let number = number.ok_or_else(|| bad(ErrorKind::BadUse, format!("{device} is no device of this cache")))?;
        self.map_on(number, range, writable)
    }

    /// The same on the device with this number: a cache may have a device several times, for programs that
    /// share one as if they did not.
    pub fn map_on(&self, device: usize, range: Range<u64>, writable: bool) -> Result<Mapping> {
        let service: Arc<dyn Service> = Arc::new(self.clone());
        let place = |_: &dyn Service, _: &Range<u64>, address| Ok(Arc::new(Served(address)) as Arc<dyn Addresses>);
        Mapping::by((Some(self.clone()), self.client, service), device, range, writable, place)
    }
}

impl Mapping {
    /// One that another process serves: it is seen at addresses of `on`, the device that has the number there, where frames
    /// are shown that `lender` lends.
    ///
    /// # Errors
    /// Those of the service, and `Device`.
    pub fn apart(
        service: Arc<dyn Service>,
        lender: Arc<dyn Lender>,
        (device, on): (usize, &bifolio_device::Device),
        range: Range<u64>,
        writable: bool,
    ) -> Result<Self> {
        // Who it is the other process knows by itself.
        let place = |service: &dyn Service, range: &Range<u64>, _| {
            Ok(Arc::new(Apart::new(on, device, range, lender, service)?) as Arc<dyn Addresses>)
        };
        Self::by((None, 0, service), device, range, writable, place)
    }

    /// The same by a service, at addresses of the caller's choice.
    pub(crate) fn by(
        (file, client, service): (Option<CachedFile>, Client, Arc<dyn Service>),
        device: usize,
        range: Range<u64>,
        writable: bool,
        addresses: impl FnOnce(&dyn Service, &Range<u64>, DevicePtr) -> Result<Arc<dyn Addresses>>,
    ) -> Result<Self> {
        let lease = new_lease();
        let Answer::Mapped { range, address } = service.ask(client, Request::Map { lease, device, range })? else {
            return Err(unexpected());
        };
        let unmap = Request::Unmap { lease, device, acquired: vec![], writable };
        let addresses =
            addresses(&*service, &range, DevicePtr(address)).inspect_err(|_| _ = service.ask(client, unmap))?;
        let (acquired, sequence) = (vec![], Sequence::default());
        Ok(Self { file, client, lease, device, range, service, addresses, writable, is_open: true, acquired, sequence })
    }

    /// Where it is seen.
    pub fn window(&self) -> Window {
        Window(Arc::downgrade(&self.addresses))
    }

    /// The file, where it is this process's.
    pub(crate) fn file(&self) -> Result<&CachedFile> {
        let elsewhere =
            || bad(ErrorKind::BadUse, "work that asks for pages while it runs needs them in its own process");
        self.file.as_ref().ok_or_else(elsewhere)
    }

    /// The address of its first byte.
    pub fn ptr(&self) -> DevicePtr {
        self.addresses.ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it has no bytes; never true.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether a part was acquired as such.
    pub(crate) fn has_acquired(&self, part: &Range<u64>) -> bool {
        self.part(part).is_ok_and(|range| self.acquired.iter().any(|(acquired, _)| *acquired == range))
    }

    /// Makes it as long, and as writable, as another one of the same bytes.
    pub(crate) fn widen(&mut self, other: &Self) {
        self.range.end = self.range.end.max(other.range.end);
        self.writable |= other.writable;
    }

    /// The bytes of the file that a part of the mapping is.
    pub(crate) fn part(&self, part: &Range<u64>) -> Result<Range<u64>> {
        if !self.is_open {
            return Err(bad(ErrorKind::BadUse, "the mapping is closed"));
        }
        if part.start >= part.end || part.end > self.len() {
            let detail =
                format!("bytes {} to {} lie outside the mapping, of {} bytes", part.start, part.end, self.len());
            return Err(bad(ErrorKind::BadRange, detail));
        }
        Ok(self.range.start + part.start..self.range.start + part.end)
    }

    /// One whose service was another process until now.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn resumed(
        file: &CachedFile,
        device: Device,
        range: Range<u64>,
        addresses: Served,
        (lease, acquired): (LeaseNumber, Vec<(Range<u64>, LeaseNumber)>),
    ) -> Self {
        let (service, addresses) = (Arc::new(file.clone()), Arc::new(addresses));
        let (client, file, sequence) = (file.client, Some(file.clone()), Sequence::default());
        let writable = true;
        Self { file, client, lease, device, range, service, addresses, writable, is_open: true, acquired, sequence }
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn locate(&self, part: &Range<u64>) -> Result<(&CachedFile, Device, Range<u64>)> {
        Ok((self.file()?, self.device, self.part(part)?))
    }

    /// Brings a part up to date: what others have released, and CPU processes have written, is seen; what this
    /// device has changed and not released stays. The bytes stay where they are until they are released.
    ///
    /// # Errors
    /// `BadRange`, `BadUse` after a close, `OutOfMemory` if more is acquired than the budget holds, `Read`,
    /// `Write` if what others have released cannot be written to the file, `Device`.
    pub fn acquire(&mut self, part: Range<u64>) -> Result<Report> {
        let (device, range, writable) = (self.device, self.part(&part)?, self.writable);
        let lease = new_lease();
        self.sequence.tempo().begin(Instant::now());
        let asked = Request::Acquire { lease, device, range: range.clone(), writable };
        let Answer::Acquired { report, edition } = self.ask(asked)? else { return Err(unexpected()) };
        if let Err(error) = self.addresses.show(&*self.service, lease, &range, edition) {
            let _ = self.ask(Request::Release { lease, device, range, writable });
            return Err(error);
        }
        self.sequence.tempo().end(Instant::now(), range.end - range.start, &report);
        if let Some(ahead) = self.sequence.acquired(&range, self.range.end) {
            self.bring(ahead);
        }
        self.acquired.push((range, lease));
        Ok(report)
    }

    /// Says what will be done with a part.
    ///
    /// # Errors
    /// `BadRange`, `BadUse` after a close, `Write` if what was released of a part that is not needed cannot be
    /// written.
    pub fn advise(&mut self, part: Range<u64>, advice: Advice) -> Result<()> {
        let range = self.part(&part)?;
        match advice {
            Advice::WillNeed => self.bring(range),
            Advice::DontNeed => {
                self.addresses.hide(&range)?;
                return self.ask(Request::GiveBack { device: self.device, range }).map(|_| ());
            }
            Advice::Random => self.sequence.is_off = true,
            Advice::Normal => self.sequence = Sequence::default(),
        }
        Ok(())
    }

    fn bring(&self, range: Range<u64>) {
        // What is not brought is missing to nobody.
        let _ = self.ask(Request::Bring { device: self.device, range, writable: self.writable });
    }

    /// Publishes what the device has changed in a part that was acquired, and gives the memory free for
    /// eviction.
    ///
    /// # Errors
    /// `BadUse` for a part that was not acquired as a whole, `Write` if bytes that have to go to the file now
    /// cannot be written, `Device`. After `Write` and `Device` the part is acquired as before: nothing is lost, and
    /// releasing it again publishes and writes what is missing.
    pub fn release(&mut self, part: Range<u64>) -> Result<Report> {
        let range = self.part(&part)?;
        let Some(at) = self.acquired.iter().position(|(acquired, _)| *acquired == range) else {
            let detail = format!("cannot release bytes {} to {}: not acquired", part.start, part.end);
            return Err(bad(ErrorKind::BadUse, detail));
        };
        let lease = self.acquired[at].1;
        let request = Request::Release { lease, device: self.device, range, writable: self.writable };
        let report = self.ask(request).and_then(|answer| reported(&answer))?;
        self.acquired.swap_remove(at);
        self.addresses.end_use(lease);
        Ok(report)
    }

    /// Keeps the memory of a part where it is for as long as what is returned, beyond its release and a close. It
    /// counts against the budget.
    ///
    /// # Errors
    /// `BadUse` for a part that is not acquired, or after a close; `BadRange`.
    pub fn pin(&self, part: Range<u64>) -> Result<Pin> {
        let range = self.part(&part)?;
        let acquired: Vec<_> = self.acquired.iter().map(|(range, _)| range.clone()).collect();
        if let Some(missing) = first_missing(&range, &acquired) {
            let detail = format!(
                "cannot pin bytes {} to {}: byte {} is not acquired",
                part.start,
                part.end,
                missing - self.range.start
            );
            return Err(bad(ErrorKind::BadUse, detail));
        }
        let lease = new_lease();
        self.ask(Request::Pin { lease, device: self.device, range: range.clone() })?;
        self.addresses.use_too(lease, &range);
        let (file, service) = (self.file.clone(), Arc::clone(&self.service));
        Ok(Pin { _file: file, addresses: Arc::clone(&self.addresses), client: self.client, service, lease })
    }

    /// Publishes what the device has changed in all that is acquired, which stays so, writes everything released
    /// to the file, by whatever device, and makes it durable.
    pub fn sync(&mut self) -> Result<()> {
        self.part(&(0..self.len()))?;
        let acquired = if self.writable { self.acquired.iter().map(|(_, lease)| *lease).collect() } else { vec![] };
        self.ask(Request::Sync { device: self.device, acquired }).map(|_| ())
    }

    /// Ends it. What was changed and not released is discarded: the report says of how many pages. If nobody else has the
    /// file open or mapped, everything that was released is written to it.
    ///
    /// # Errors
    /// `BadUse` if it was closed before; `Write` if something cannot be written: the mapping is closed then as well, and
    /// that stays in the cache, as with [`CachedFile::close`].
    pub fn close(&mut self) -> Result<Report> {
        self.part(&(0..self.len()))?;
        let report = self.end()?;
        // Two holders are its own.
        self.file.as_ref().map_or(Ok(()), |file| file.write_if_last(2))?;
        Ok(report)
    }

    fn end(&mut self) -> Result<Report> {
        self.is_open = false;
        let (lease, device, writable) = (self.lease, self.device, self.writable);
        let acquired: Vec<_> = std::mem::take(&mut self.acquired).into_iter().map(|(_, lease)| lease).collect();
        for lease in &acquired {
            self.addresses.end_use(*lease);
        }
        self.ask(Request::Unmap { lease, device, acquired, writable }).and_then(|answer| reported(&answer))
    }

    fn ask(&self, request: Request) -> Result<Answer> {
        self.service.ask(self.client, request)
    }
}

fn reported(answer: &Answer) -> Result<Report> {
    if let Answer::Reported(report) = answer { Ok(*report) } else { Err(unexpected()) }
}

fn unexpected() -> Error {
    bad(ErrorKind::BadUse, "one thing was asked for, and another one answered")
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_open {
            let _ = self.end();
        }
    }
}
