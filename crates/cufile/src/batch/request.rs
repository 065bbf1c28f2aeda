//! Requests of a batch, and how they are carried out: each alone, or short reads of one file into one device as one
//! request of the router's.

use super::progress::Event;
use crate::abi::CUfileOpError::CU_FILE_INTERNAL_ERROR;
use crate::abi::{CUFILE_BATCH, CUFILE_READ, CUFILE_WRITE, CUfileIOParams_t};
use crate::buffer::Memory;
use crate::handle::{self, Registered};
use crate::range::{Direction, MemoryRange, offset_of, router_key};
use crate::session::Active;
use crate::stats::{self, Flow, Watch, Way};
use crate::status::{Failure, Outcome, note};
use crate::transfer;
use bifolio_device::pointer::Located;
use bifolio_device::{DevicePtr, DeviceSlice};
use bifolio_io::{Cancel, ReadExtent, ReadOptions, process};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Reads of up to this many bytes are gathered; of longer ones the router makes the best by itself.
const GATHERED_BYTES_MAX: usize = 256 << 10;

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    file: Arc<Registered>,
    direction: Direction,
    offset: u64,
    memory: MemoryRange,
    cookie: usize,
}

impl Request {
    pub(super) unsafe fn of(parameters: &CUfileIOParams_t) -> Outcome<Self> {
        if parameters.mode != CUFILE_BATCH {
            return Err(Failure::argument(format!("{} is not a mode of a batched request", parameters.mode)));
        }
        let direction = match parameters.opcode {
            CUFILE_READ => Direction::Read,
            CUFILE_WRITE => Direction::Write,
            other => return Err(Failure::argument(format!("{other} is not an operation"))),
        };
        Ok(Self {
            file: handle::find_for(parameters.fh, direction)?,
            direction,
            offset: offset_of(parameters.file_offset)?,
            memory: Memory::at(parameters.devPtr_base)?.range(parameters.devPtr_offset, parameters.size)?,
            cookie: parameters.cookie.expose_provenance(),
        })
    }

    fn event(&self, outcome: Outcome<u64>) -> Event {
        // Nobody is told of one that was cancelled.
        if let Err(failure) = &outcome
            && !failure.is_cancelled()
        {
            note("a request of a batch", failure);
        }
        Event { cookie: self.cookie, direction: self.direction, outcome }
    }

    fn alone(&self, cancel: &Cancel) -> Outcome<u64> {
        stats::counted_request(Flow::of_batch(self.direction), 0, || {
            if cancel.is_cancelled() {
                return Err(Failure::system(libc::ECANCELED, "the batch was cancelled before the request began"));
            }
            let run = || transfer::run(&self.file, self.direction, self.offset, self.memory, cancel);
            catch_unwind(AssertUnwindSafe(run))
                .unwrap_or_else(|_| Err(Failure::new(CU_FILE_INTERNAL_ERROR, "a bug in Bifolio, please report it")))
        })
    }

    /// What short reads have in common that can be gathered.
    fn gathering(&self) -> Option<(usize, Located)> {
        match self.memory {
            MemoryRange::Device(located, memory)
                if self.direction == Direction::Read
                    && (1..=GATHERED_BYTES_MAX as u64).contains(&memory.len())
                    && self.offset.checked_add(memory.len()).is_some_and(|end| i64::try_from(end).is_ok()) =>
            {
                Some((Arc::as_ptr(&self.file).addr(), located))
            }
            _ => None,
        }
    }
}

/// Requests that are carried out together, in the order of their first.
pub(super) fn grouped(requests: Vec<Request>) -> Vec<Vec<Request>> {
    let mut groups: Vec<Vec<Request>> = vec![];
    let mut numbers = HashMap::new();
    for request in requests {
        match request.gathering() {
            None => groups.push(vec![request]),
            Some((file, located)) => {
                let number = *numbers.entry((file, router_key(&located))).or_insert_with(|| {
                    groups.push(vec![]);
                    groups.len() - 1
                });
                groups[number].push(request);
            }
        }
    }
    groups
}

/// Carries requests out together: their results.
pub(super) fn carry_out(group: Vec<Request>, cancel: &Cancel, active: Active) -> Vec<Event> {
    let watch = Watch::begin();
    let gathered = if group.len() > 1 { gathered(&group, cancel) } else { None };
    let events = match gathered {
        Some(bytes) => {
            let share = watch.shared_by(group.len());
            let event = |(request, bytes): (&Request, u64)| {
                let Request { direction, offset, memory, .. } = request;
                watch.end(Flow::of_batch(*direction), 0, &Ok(bytes));
                share.end_on_gpu(*direction, *offset, memory, Some((bytes, Way::Posix)));
                request.event(Ok(bytes))
            };
            group.iter().zip(bytes).map(event).collect()
        }
        None => group.iter().map(|request| request.event(request.alone(cancel))).collect(),
    };
    // Whoever has fetched the last result may close the session.
    drop((group, active));
    events
}

/// Carries out short reads by one request: the bytes of each. None where it failed.
fn gathered(group: &[Request], cancel: &Cancel) -> Option<Vec<u64>> {
    let parts: Vec<_> = group
        .iter()
        .filter_map(|request| match request.memory {
            MemoryRange::Device(located, memory) => Some((located, memory)),
            MemoryRange::Host(..) => None,
        })
        .collect();
    let (first, last) = (
        parts.iter().map(|(_, part)| part.ptr().0).min()?,
        parts.iter().map(|(_, part)| part.ptr().0 + part.len()).max()?,
    );
    // SAFETY: only the parts are touched, which lie inside memory of the program's.
    let memory = unsafe { DeviceSlice::from_raw_ordered(DevicePtr(first), last - first) };
    let extent = |(request, (_, part)): (&Request, &(Located, DeviceSlice<'_>))| ReadExtent {
        offset: request.offset,
        length: part.len(),
        place: part.ptr().0 - first,
    };
    let extents: Vec<_> = group.iter().zip(&parts).map(extent).collect();
    let options = ReadOptions { cancel: cancel.clone(), ..ReadOptions::default() };
    let opened = group[0].file.opened();
    let read = || process::router_of(&parts[0].0)?.read_batch(&opened.file, &extents, memory, &options);
    let report = catch_unwind(AssertUnwindSafe(read)).ok()?.ok()?;
    let mut bytes: Vec<u64> = extents.iter().map(|extent| extent.length).collect();
    for (number, short) in report.short {
        bytes[number] = short;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::FencedMemory;
    use std::os::fd::AsRawFd;
    use std::ptr::with_exposed_provenance_mut;

    /// Falling back to single requests looks like success, and costs twenty times as much.
    #[test]
    fn short_reads_into_one_device_are_one_request_unless_they_overlap() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, [b'x'; 10_000]).unwrap();
        let descriptor = std::fs::File::open(&path).unwrap();
        let file = Arc::new(Registered::open(descriptor.as_raw_fd()).unwrap());
        let memory = FencedMemory::alloc(2 << 20).unwrap();
        let known = Memory::at(with_exposed_provenance_mut(memory.address() as usize)).unwrap();
        let request = |offset, buffer_offset, size| {
            let (file, memory) = (Arc::clone(&file), known.range(buffer_offset, size).unwrap());
            Request { file, direction: Direction::Read, offset, memory, cookie: 0 }
        };
        let write = Request { direction: Direction::Write, ..request(0, 0, 10) };
        let requests = vec![request(0, 0, 100), write, request(9_990, 200, 20), request(5, 4096, 1 << 20)];
        let groups = grouped(requests);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(gathered(&groups[0], &Cancel::default()), Some(vec![100, 10]));
        assert_eq!(&memory.to_vec()[198..211], b"\0\0xxxxxxxxxx\0");
        let overlapping = [request(0, 0, 100), request(0, 99, 100)];
        assert_eq!(gathered(&overlapping, &Cancel::default()), None);
    }
}
