//! GPUIPLookup: looks up routes on a device.
//!
//! `GPUIPLookup(ADDR1/MASK1 [GATEWAY1] OUTPUT1, ... [keywords HEADER, ANNO, TABLE, CHK_ANNO, CHK_VALUE])`: a table as DirectIPLookup's.
//! A packet's OUTPUT of the longest prefix is written into an annotation, which a Dispatcher can look at; the destination
//! address annotation is set to the gateway, if there is one. Without a route, the output is 255.
//!
//! - OUTPUT: 0 to 254.
//! - HEADER: whether the address is looked up that stands in the IP header, and not the destination address annotation
//!   (false, but true where a GPUCheckIPHeader is in the path before it).
//! - ANNO: the annotation of a byte for the output (PAINT).
//!
//! 900,000 routes take 33 MiB on the device. Routes change while packets are under way: what is changed is uploaded before the
//! next batch, and a batch on the device sees each route as before or as after a change.
//!
//! Handlers: `table`, `lookup`, `add`, `set`, `remove`, `ctrl`, `flush`, as DirectIPLookup's.

use super::element::{Kind, Predicate, Shared, Table, tested};
use crate::args::{AnnoArg, Args, Failed};
use crate::elements::ip::routes::{Defined, command_with, configure_routes};
use crate::handler::Handlers;
use crate::lookup::{Buffer, Commands, DirectImage, DirectMirror, DirectTable, NextHop, Table as _, Verb};
use crate::packet::anno;
use crate::router::Cx;
use crate::wide::{Launching, Layout, Operation, PerDevice, Readers, Rows, Snapshot, Stage, Test, Wants};
use bifolio_compute::{Executor, Loaded};
use bifolio_device::{Allocation, Device, Error, ErrorKind, Stream};
use bifolio_kernels::packets::{self, Lookup, Memory};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The output of packets without a route.
pub(super) const NO_ROUTE: u8 = 255;
/// How many outputs there can be.
const OUTPUTS: usize = 255;
/// Packets that are looked up together.
const BURST: usize = 64;

/// Routes that elements share, and where they are on devices.
#[derive(Debug, Default)]
pub(super) struct Routes {
    table: DirectTable,
    /// How often they may have changed.
    changes: AtomicU64,
    devices: PerDevice<OnDevice>,
}

impl Routes {
    /// What a handler that changes routes does.
    fn change<R>(&self, cx: &Cx<'_>, work: impl FnOnce(Commands<'_, Defined<'_>>) -> R) -> R {
        let result = command_with(&self.table, cx, OUTPUTS, work);
        self.changes.fetch_add(1, Ordering::Release);
        result
    }
}

/// The element's kind.
#[derive(Debug, Clone)]
pub(super) struct IpLookup {
    table: Shared<Routes>,
    predicate: Predicate,
    anno: usize,
    has_header: bool,
}

impl Default for IpLookup {
    fn default() -> Self {
        Self { table: Shared::default(), predicate: Predicate::default(), anno: anno::PAINT, has_header: false }
    }
}

impl Kind for IpLookup {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut anno = AnnoArg::<1>(self.anno);
        args.key("HEADER", &mut self.has_header).key("ANNO", &mut anno);
        self.anno = anno.0;
        configure_routes(&self.table.get().table, OUTPUTS, args);
        args.finish()
    }

    fn operation(&self, predicate: Predicate) -> Arc<dyn Operation> {
        Arc::new(Self { predicate, ..self.clone() })
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let [shown, asked, grouped, flushed] = std::array::from_fn(|_| self.table.clone());
        handlers.free_read("table", move |cx, _| {
            Ok(command_with(&shown.get().table, cx, OUTPUTS, |commands| commands.table()))
        });
        handlers.free_read("lookup", move |cx, text| {
            command_with(&asked.get().table, cx, OUTPUTS, |commands| commands.lookup(text))
        });
        for (name, verb) in [("add", Verb::Add), ("set", Verb::Set), ("remove", Verb::Remove)] {
            let table = self.table.clone();
            handlers.free_write(name, move |cx, text| table.get().change(cx, |commands| commands.run(verb, text)));
        }
        handlers.free_write("ctrl", move |cx, text| grouped.get().change(cx, |commands| commands.ctrl(text)));
        handlers.free_write("flush", move |cx, _| {
            flushed.get().change(cx, |commands| commands.flush());
            Ok(())
        });
    }

    fn table(&self) -> Option<Table> {
        Some(self.table.get())
    }

    fn adopt(&mut self, table: Table) -> bool {
        self.table.adopt(table)
    }
}

impl IpLookup {
    fn uses_header(&self, before: &[Wants]) -> bool {
        self.has_header || before.iter().any(|wants| wants.finds_header)
    }
}

impl Operation for IpLookup {
    fn wants(&self, before: &[Wants]) -> Result<Wants, String> {
        let mut slots = self.predicate.or_unjudged(before).slots();
        slots.push(self.anno);
        let network = self.uses_header(before);
        let annotations = if network { Vec::new() } else { vec![anno::DST_IP] };
        Ok(Wants {
            network,
            annotations,
            slots,
            writes: vec![self.anno],
            words: vec![anno::DST_IP],
            ..Wants::default()
        })
    }

    fn stage(&self, layout: &Layout, before: &[Wants], executor: &Executor) -> Result<Arc<dyn Stage>, String> {
        let address = if self.uses_header(before) { layout.network() + 4 } else { layout.annotation(anno::DST_IP) };
        let loaded = executor.kernels().load(&packets::IpLookup).map_err(|error| error.to_string())?;
        let routes = self.table.get();
        let device = executor.device();
        let on_device = routes.devices.get(device, || OnDevice::new(device, &routes))?;
        Ok(Arc::new(LookupStage {
            routes,
            on_device,
            test: self.predicate.or_unjudged(before).test(layout),
            address,
            slot: layout.slot(self.anno),
            gateway: layout.word(anno::DST_IP),
            loaded,
        }))
    }
}

/// The table in a device's memory.
#[derive(Debug)]
struct OnDevice {
    /// In the order of [`Buffer`]: next hops, lists, codes.
    buffers: [Allocation; 3],
    stream: Stream,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mirror: DirectMirror,
    /// The number of changes that the device has.
    changes: u64,
    readers: Readers,
}

impl OnDevice {
    fn new(device: &Device, routes: &Routes) -> Result<Self, String> {
        let say = |error: Error| error.to_string();
        let changes = routes.changes.load(Ordering::Acquire);
        let (mirror, image) = routes.table.image()?;
        let alloc = |bytes: usize| device.alloc(bytes as u64).map_err(say);
        let buffers =
            [alloc(DirectImage::HOPS_BYTES)?, alloc(DirectImage::LEVEL2_BYTES)?, alloc(DirectImage::LEVEL1_BYTES)?];
        let stream = device.create_stream().map_err(say)?;
        for (buffer, bytes) in buffers.iter().zip([&image.hops, &image.level2, &image.level1]) {
            let part = buffer.slice().part(0, bytes.len() as u64).map_err(say)?;
            stream.upload(part, bytes).map_err(say)?;
        }
        Ok(Self { buffers, stream, state: Mutex::new(State { mirror, changes, readers: Readers::default() }) })
    }

    /// Brings the device's table to where the routes are, if they have changed.
    fn refresh(&self, state: &mut State, routes: &Routes) -> bifolio_device::Result<()> {
        let changes = routes.changes.load(Ordering::Acquire);
        if changes == state.changes {
            return Ok(());
        }
        let (after, update) =
            routes.table.update(&state.mirror).map_err(|error| Error::new(ErrorKind::Unsupported, error))?;
        if update.is_exclusive {
            state.readers.wait()?;
        }
        // What the device has is known again when all is there.
        state.mirror.tear();
        for write in &update.writes {
            let buffer = match write.buffer {
                Buffer::Hops => &self.buffers[0],
                Buffer::Level2 => &self.buffers[1],
                Buffer::Level1 => &self.buffers[2],
            };
            self.stream.upload(buffer.slice().part(write.at as u64, write.bytes.len() as u64)?, &write.bytes)?;
        }
        (state.mirror, state.changes) = (after, changes);
        Ok(())
    }
}

/// It in a path.
#[derive(Debug)]
struct LookupStage {
    routes: Arc<Routes>,
    on_device: Arc<OnDevice>,
    test: Option<Test>,
    /// The word of input rows with the address.
    address: u32,
    slot: u32,
    /// The word of output rows for the gateway.
    gateway: u32,
    loaded: Result<Loaded, String>,
}

impl Stage for LookupStage {
    fn refusal(&self) -> Option<String> {
        self.loaded.as_ref().err().cloned()
    }

    fn on_cpu(&self, rows: &mut Rows<'_>, _: &Snapshot, _: &mut [u8]) {
        let (mut addresses, mut hops) = ([0; BURST], [NextHop::NONE; BURST]);
        for start in (0..rows.len()).step_by(BURST) {
            let count = BURST.min(rows.len() - start);
            for (at, address) in addresses[..count].iter_mut().enumerate() {
                *address = u32::from_be_bytes(rows.row(start + at).word(self.address));
            }
            self.routes.table.lookup_batch(&addresses[..count], &mut hops[..count]);
            for (at, hop) in hops[..count].iter().enumerate() {
                if rows.takes_part(start + at, self.test) {
                    rows.set_slot(start + at, self.slot, u8::try_from(hop.output).unwrap_or(NO_ROUTE));
                    *rows.out_word(start + at, self.gateway) = hop.gateway.to_be_bytes();
                }
            }
        }
    }

    unsafe fn launch(&self, launching: &Launching<'_>) -> bifolio_device::Result<()> {
        let Ok(loaded) = &self.loaded else { return Ok(()) };
        let table = &*self.on_device;
        let mut state = table.state.lock().unwrap_or_else(PoisonError::into_inner);
        table.refresh(&mut state, &self.routes)?;
        let params = Lookup {
            rows: tested(launching.rows, self.test),
            destination: self.address,
            is_output: false,
            slot: self.slot,
            miss: NO_ROUTE.into(),
            gateway: self.gateway,
            level1_codes: DirectImage::LEVEL1_BYTES as u32 / 2,
            level2_codes: DirectImage::LEVEL2_BYTES as u32 / 2,
            hops: (DirectImage::HOPS_BYTES / 8) as u32,
        };
        let memory = Memory { input: launching.input, output: launching.output };
        let [hops, level2, level1] = &table.buffers;
        let tables = [level1.slice(), level2.slice(), hops.slice()];
        // SAFETY: the caller's promise; tables live as long as the stage, and are not written while this reads but as
        // their updates say that they may.
        let launched = unsafe { packets::launch(launching.stream, loaded.module(), &params, memory, &tables) };
        // A launch that fails may have enqueued something.
        let entered = state.readers.enter(launching.stream);
        launched.and(entered)
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = state.readers.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::Route;
    use bifolio_device::backend::fault::{FaultBackend, Faults};
    use bifolio_device::{DeviceChoice, DeviceId, open};

    /// The table's arrays, as far as they are in use, as the device has them.
    fn content(table: &OnDevice, image: &DirectImage) -> [Vec<u8>; 3] {
        let mut all = [&image.hops, &image.level2, &image.level1].map(|bytes| vec![0; bytes.len()]);
        for (bytes, buffer) in all.iter_mut().zip(&table.buffers) {
            let part = buffer.slice().part(0, bytes.len() as u64).unwrap();
            table.stream.download(bytes, part).unwrap();
        }
        all
    }

    /// Symptom: after an upload that failed, packets went by routes that were gone. Cause: the table was recorded as uploaded
    /// before it was.
    #[test]
    fn routes_whose_upload_failed_are_uploaded_by_the_next_batch() {
        let inner = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
        let faults = Arc::new(Faults::default());
        let device = Device::from_backend(FaultBackend::new(inner.backend(), &faults));
        let routes = Routes::default();
        let table = OnDevice::new(&device, &routes).unwrap();
        let mut state = table.state.lock().unwrap();
        for (at, good) in [0, 1, 2, 0].into_iter().enumerate() {
            for byte in 0..3 {
                let address = 0x0a00_0001 + ((at as u32 * 3 + byte) << 8);
                let route = Route { address, mask: u32::MAX, gateway: 9 + byte, output: at as i32 };
                routes.table.edit().insert(route, false).unwrap();
            }
            routes.changes.fetch_add(1, Ordering::Release);
            faults.copies.store(good, Ordering::SeqCst);
            assert!(table.refresh(&mut state, &routes).is_err());
            assert!(table.refresh(&mut state, &routes).is_err(), "it is not forgotten");
            faults.copies.store(-1, Ordering::SeqCst);
            table.refresh(&mut state, &routes).unwrap();
            let (_, image) = routes.table.image().unwrap();
            let found = content(&table, &image);
            assert!(found == [image.hops, image.level2, image.level1], "{good} writes were done");
        }
    }
}
