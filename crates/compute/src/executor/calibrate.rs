//! What a kind takes, before its first request: each path on each route, for a few sizes.

use super::caller::Caller;
use super::handle::Handle;
use super::request::Request;
use super::shared::Shared;
use crate::cost::{Path, Route};
use crate::memory::Memory;
use crate::service::{Service, Step};
use bifolio_device::Buffer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sizes that are measured, as long as the time for it lasts.
const SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// The best of so many runs counts.
const RUNS: usize = 3;

/// No size is measured that is expected to take longer.
const RUN_MAX: Duration = Duration::from_millis(6);

/// Measures a service. What cannot be measured stays unknown: the choice then falls to what is known.
pub(crate) fn measure<S: Service>(shared: &Arc<Shared>, handle: &Handle<S>) {
    let caller = Caller::new(shared, false);
    // A device without kernels computes by their oracles, which are slow on purpose.
    let has_kernels = shared.device.capabilities().kernels.is_yes();
    for route in Route::ALL {
        for path in [Path::Cpu, Path::Device] {
            if path == Path::Cpu && route == Route::HostToHost || has_kernels {
                measure_path(shared, &caller, handle, path, route);
            }
        }
    }
}

fn measure_path<S: Service>(shared: &Arc<Shared>, caller: &Caller, handle: &Handle<S>, path: Path, route: Route) {
    let mut expected = Duration::ZERO;
    let mut found: Vec<(u64, f32)> = vec![];
    for bytes in SIZES {
        if expected > RUN_MAX || path == Path::Device && handle.kind().is_off() {
            break;
        }
        let (params, input) = handle.service().sample(bytes);
        let step = handle.step(params);
        let len = input.len() as u64;
        if found.last().is_some_and(|(last, _)| len <= *last) {
            // A stripe is a stripe, however little is asked for.
            continue;
        }
        let Some(best) = best_of(shared, caller, &step, input, path, route) else { break };
        found.push((len, best.as_nanos() as f32));
        expected = best * 16;
    }
    // The runs were observed like any, the first and slowest of each size too: only the best of them stay.
    handle.kind().curve(path, route).draw(&found);
}

/// The best time of a few runs; none where one failed or took another path.
fn best_of(
    shared: &Arc<Shared>,
    caller: &Caller,
    step: &Step,
    input: Vec<u8>,
    path: Path,
    route: Route,
) -> Option<Duration> {
    let written = step.shape(input.len() as u64).ok()?.output.bytes(input.len() as u64);
    let memory = |bytes: Vec<u8>, on_device: bool| -> Option<Memory> {
        if !on_device {
            return Some(bytes.into());
        }
        let allocation = Arc::new(shared.device.alloc(bytes.len() as u64).ok()?);
        shared.device.create_stream().and_then(|stream| stream.upload(allocation.slice(), &bytes)).ok()?;
        Some(Buffer::new(&allocation).into())
    };
    let [from_device, to_device] = match route {
        Route::HostToHost => [false, false],
        Route::HostToDevice => [false, true],
        Route::DeviceToHost => [true, false],
        Route::DeviceToDevice => [true, true],
    };
    if written == 0 && from_device != to_device {
        return None;
    }
    let mut source = Some(memory(input, from_device)?);
    let mut destination = if written == 0 { None } else { Some(memory(vec![0; written as usize], to_device)?) };
    let mut best: Option<Duration> = None;
    for _ in 0..RUNS {
        let request = Request::new(step.clone(), source.take()?).on(path);
        let request = match destination.take() {
            Some(memory) => request.into(memory),
            None => request,
        };
        let begin = Instant::now();
        let outcome = caller.run(request);
        let took = begin.elapsed();
        if outcome.result.ok()?.path != path {
            return None;
        }
        (source, destination) = (outcome.source, outcome.destination);
        best = Some(best.map_or(took, |best| best.min(took)));
    }
    best
}
