//! Requests with a known answer, along every route.

use super::memory::{Host, content, memory};
use bifolio_compute::service::Step;
use bifolio_compute::{Caller, Memory, Outcome, Path, Request, Route};
use bifolio_device::Device;

/// Which ends of a route are on the device.
fn ends(route: Route) -> (bool, bool) {
    match route {
        Route::HostToHost => (false, false),
        Route::HostToDevice => (false, true),
        Route::DeviceToHost => (true, false),
        Route::DeviceToDevice => (true, true),
    }
}

/// A chain of steps with what comes of it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) steps: Vec<Step>,
    pub(crate) input: Vec<u8>,
    /// None for what only reads.
    pub(crate) output: Option<Vec<u8>>,
    pub(crate) results: Vec<Vec<u8>>,
    /// Whether the output can go over the input.
    pub(crate) in_place: bool,
    /// Where the output is anything.
    pub(crate) gaps: Vec<std::ops::Range<usize>>,
}

impl Case {
    pub(crate) fn request(&self, source: Memory, destination: Option<Memory>) -> Request {
        let mut request = Request::new(self.steps[0].clone(), source);
        for step in &self.steps[1..] {
            request = request.then(step.clone());
        }
        match destination {
            Some(memory) => request.into(memory),
            None => request,
        }
    }

    /// Along every route, apart and in place, from ordinary and pinned memory.
    pub(crate) fn check_everywhere(&self, device: &Device, caller: &Caller, path: Path) {
        for route in Route::ALL {
            let (from_device, to_device) = ends(route);
            for host in [Host::Heap, Host::Pinned] {
                let what = format!("{} on {path:?}, {route:?}, {host:?}", device.id());
                let source = memory(device, &self.input, from_device, host);
                // Poison.
                let destination =
                    self.output.as_ref().map(|output| memory(device, &vec![0xdd; output.len()], to_device, host));
                let outcome = caller.run(self.request(source, destination).on(path));
                self.check(device, &outcome, path, &what);
                assert!(content(device, outcome.source.as_ref().unwrap()) == self.input, "{what}: the source changed");
                if self.in_place && from_device == to_device {
                    let source = memory(device, &self.input, from_device, host);
                    let outcome = caller.run(self.request(source, None).on(path));
                    self.check(device, &outcome, path, &format!("{what}, in place"));
                }
            }
        }
    }

    pub(crate) fn check(&self, device: &Device, outcome: &Outcome, path: Path, what: &str) {
        let answers = outcome.result.as_ref().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(answers.path, path, "{what}");
        assert_eq!(answers.results, self.results, "{what}");
        if let Some(expected) = &self.output {
            let written = outcome.destination.as_ref().or(outcome.source.as_ref()).unwrap();
            let mut found = content(device, written);
            for gap in &self.gaps {
                found[gap.clone()].copy_from_slice(&expected[gap.clone()]);
            }
            let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
            assert!(found.len() == expected.len() && wrong.is_none(), "{what}: byte {wrong:?}");
        }
    }
}
